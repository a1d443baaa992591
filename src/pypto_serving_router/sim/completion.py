"""OpenAI-shaped requests and answers: what is asked, what is said, and the documents that carry it."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import blake2b, shake_128
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from pypto_serving_router.sim.cache import TOKEN_BYTES, count_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_TOKENS = 32
"""The length of an answer for which the request sets no limit."""


class ContentPart(msgspec.Struct):
    """A part of a message; only its text is read."""

    text: str = ""


class Message(msgspec.Struct):
    """One message of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None

    @property
    def text(self) -> str:
        """The message's text, its parts joined."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class Wanted(msgspec.Struct, kw_only=True):
    """The fields of a request that the simulation heeds; others are ignored."""

    model: str = ""
    stream: bool = False
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    n: int | None = None

    @property
    def tokens(self) -> int:
        """How many tokens the answer has."""
        return self.max_completion_tokens or self.max_tokens or DEFAULT_TOKENS

    @property
    def finish_reason(self) -> str:
        """`length` for an answer cut by its limit, else `stop`."""
        return "length" if self.max_completion_tokens or self.max_tokens else "stop"


class WantedText(Wanted):
    """`POST /v1/completions`."""

    prompt: str | list[int] = ""

    def rendered(self) -> bytes:
        """Return the prompt; one that is given as tokens keeps their number."""
        if isinstance(self.prompt, str):
            return self.prompt.encode()
        return b"".join((token % 2**32).to_bytes(TOKEN_BYTES, "big") for token in self.prompt)


class WantedChat(Wanted):
    """`POST /v1/chat/completions`."""

    messages: list[Message]

    def rendered(self) -> bytes:
        """Return the conversation as a template makes it: each turn's is a prefix of the next one's."""
        turns = [f"<|{message.role}|>\n{message.text}<|end|>\n" for message in self.messages]
        return "".join([*turns, "<|assistant|>\n"]).encode()


def parse(body: bytes, *, chat: bool) -> WantedText | WantedChat:
    """Read a request.

    Raises:
        ValueError: it is not JSON, has a field of a wrong type, or wants more than one choice.
    """
    wanted: WantedText | WantedChat = msgspec.json.decode(body, type=WantedChat if chat else WantedText)
    if wanted.n is not None and wanted.n != 1:
        raise ValueError(f"n is {wanted.n}; only one choice can be generated")
    return wanted


def answer_pieces(prompt: bytes, tokens: int, size: int | None = None) -> list[str]:
    """Return the answer to a prompt, token by token: the same prompt always gets the same, another one another.

    Each token is three hex digits of a digest of the prompt and a space. With `size` the tokens are stretched
    until the whole answer has that many bytes.
    """
    digits = shake_128(prompt).hexdigest(-(-3 * tokens // 2))
    words = [digits[3 * i : 3 * i + 3] + " " for i in range(tokens)]
    if size is None:
        return words
    ends = [size * (i + 1) // tokens for i in range(tokens)]
    return [
        (word * (-(-(end - start) // len(word))))[: end - start]
        for word, start, end in zip(words, [0, *ends], ends, strict=False)
    ]


def error_document(message: str) -> bytes:
    """Return a refusal in pypto-serving's style."""
    return msgspec.json.encode({"object": "error", "message": message})


class Answer:
    """The documents of one answer."""

    def __init__(self, wanted: WantedText | WantedChat, prompt: bytes, *, model: str, serial: int, cached: int) -> None:
        self._chat = isinstance(wanted, WantedChat)
        self._finish_reason = wanted.finish_reason
        digest = blake2b(prompt + serial.to_bytes(8, "big"), digest_size=4).hexdigest()
        self._common: dict[str, Any] = {
            "id": ("chatcmpl-" if self._chat else "cmpl-") + digest,
            "object": "",
            "created": int(datetime.now(UTC).timestamp()),
            "model": wanted.model or model,
            "system_fingerprint": "pypto-serving-sim (simulation)",
        }
        prompt_tokens = count_tokens(prompt)
        self._usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": wanted.tokens,
            "total_tokens": prompt_tokens + wanted.tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def whole(self, pieces: Sequence[str]) -> bytes:
        """Return the answer to a request that doesn't stream."""
        text = "".join(pieces)
        said = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": self._finish_reason}
        return self._document("chat.completion", [choice], self._usage)

    def event(self, piece: str, *, first: bool, last: bool) -> bytes:
        """Return the event that carries one token."""
        if self._chat:
            said: dict[str, Any] = {"delta": ({"role": "assistant"} if first else {}) | {"content": piece}}
        else:
            said = {"text": piece}
        choice = {
            "index": 0,
            **said,
            "logprobs": None,
            "finish_reason": self._finish_reason if last else None,
        }
        return self._event([choice], None)

    def closing_events(self) -> bytes:
        """Return the event with the usage, which pypto-serving sends unasked, and the end of the stream."""
        return self._event([], self._usage) + b"data: [DONE]\n\n"

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> bytes:
        return b"data: %b\n\n" % self._document("chat.completion.chunk", choices, usage)

    def _document(self, kind: str, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> bytes:
        self._common["object"] = kind if self._chat else "text_completion"
        return msgspec.json.encode({**self._common, "choices": choices, "usage": usage})
