"""Keep a conversation on its replica with aiohttp, streamed."""

import asyncio
import json
import os

import aiohttp


async def main() -> None:
    """Hold one conversation."""
    url = os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1")
    messages = []
    headers = {}
    async with aiohttp.ClientSession() as client:
        for text in ("Hello", "Say more", "Go on"):
            messages.append({"role": "user", "content": text})
            body = {"model": "qwen", "messages": messages, "stream": True}
            answer = ""
            async with client.post(f"{url}/chat/completions", json=body, headers=headers) as response:
                response.raise_for_status()
                headers = {"X-Session-Id": response.headers["X-Session-Id"]}
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        for choice in json.loads(line[6:])["choices"]:
                            answer += choice["delta"].get("content") or ""
            messages.append({"role": "assistant", "content": answer})
            print(answer)


asyncio.run(main())
