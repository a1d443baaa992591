"""Keep a conversation on its replica with requests: a client for each conversation remembers its id."""

import os

import requests

url = os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1")
messages = []

with requests.Session() as talk:
    for text in ("Hello", "Say more", "Go on"):
        messages.append({"role": "user", "content": text})
        response = talk.post(f"{url}/chat/completions", json={"model": "qwen", "messages": messages}, timeout=600)
        response.raise_for_status()
        talk.headers["X-Session-Id"] = response.headers["X-Session-Id"]
        message = response.json()["choices"][0]["message"]
        messages.append({"role": "assistant", "content": message["content"]})
        print(message["content"])
