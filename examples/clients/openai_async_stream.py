"""Keep a conversation on its replica with the openai SDK: asynchronous, streamed."""

import asyncio

from openai import AsyncOpenAI


async def main() -> None:
    """Hold one conversation."""
    client = AsyncOpenAI()
    messages = []
    headers = {}
    for text in ("Hello", "Say more", "Go on"):
        messages.append({"role": "user", "content": text})
        raw = await client.chat.completions.with_raw_response.create(
            model="qwen", messages=messages, stream=True, extra_headers=headers
        )
        headers = {"X-Session-Id": raw.headers["x-session-id"]}
        answer = ""
        async for chunk in raw.parse():
            piece = chunk.choices[0].delta.content or "" if chunk.choices else ""
            print(piece, end="", flush=True)
            answer += piece
        print()
        messages.append({"role": "assistant", "content": answer})


asyncio.run(main())
