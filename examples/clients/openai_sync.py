"""Keep a conversation on its replica with the openai SDK."""

from openai import OpenAI

client = OpenAI()  # OPENAI_BASE_URL=http://localhost:8000/v1, OPENAI_API_KEY=anything
messages = []
headers = {}

for text in ("Hello", "Say more", "Go on"):
    messages.append({"role": "user", "content": text})
    raw = client.chat.completions.with_raw_response.create(model="qwen", messages=messages, extra_headers=headers)
    headers = {"X-Session-Id": raw.headers["x-session-id"]}
    answer = raw.parse().choices[0].message.content
    messages.append({"role": "assistant", "content": answer})
    print(answer)
