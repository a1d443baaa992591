"""Keep a conversation on its replica with LiteLLM as a library: an id of your own in a header."""

import os
from uuid import uuid4

import litellm

headers = {"X-Session-Id": uuid4().hex}
messages = []

for text in ("Hello", "Say more", "Go on"):
    messages.append({"role": "user", "content": text})
    response = litellm.completion(
        model="openai/qwen",
        api_base=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
        messages=messages,
        extra_headers=headers,
    )
    answer = response.choices[0].message.content
    messages.append({"role": "assistant", "content": answer})
    print(answer)
