"""Name a conversation yourself with the openai SDK: in a header for all its requests, or in the body of each."""

from uuid import uuid4

from openai import OpenAI

session = uuid4().hex
client = OpenAI()
talk = client.with_options(default_headers={"X-Session-Id": session})

talk.chat.completions.create(model="qwen", messages=[{"role": "user", "content": "Hello"}])
talk.completions.create(model="qwen", prompt="Once upon a time")
client.chat.completions.create(
    model="qwen", messages=[{"role": "user", "content": "Hello again"}], extra_body={"session_id": session}
)
