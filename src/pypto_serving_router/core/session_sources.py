"""Session ids that clients send under names of their own: header fields and body fields, where the operator asks.

An id from such a place is `name:value`, or `.name:value` from a body field, so that equal values from different places
are different sessions. A value that would make this unusable takes part by its hash: the conversation keeps its place,
and the id that the answer carries can be sent back as `X-Session-Id`.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pypto_serving_router.core.ids import SessionId
from pypto_serving_router.core.session_id import read_object, spelled, text_of, usable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LONGEST_NAME: Final = 64
"""Characters of a name that leave room for a hash in a usable id."""

_HASH: Final = 16  # bytes: as hard to meet by accident as a minted id

_OURS: Final = "session_id"


class SessionSources:
    """Where else to look for a session id, in order: header fields, the body's `session_id`, body fields."""

    def __init__(self, headers: Sequence[str], fields: Sequence[str]) -> None:
        """Take the names of header fields and of body fields, those of nested ones with dots."""
        self._headers = {name.lower().encode(): f"{name.lower()}:" for name in headers}
        paths = [name.split(".") for name in fields]
        keys = list(dict.fromkeys([_OURS, *(path[0] for path in paths)]))
        self._read_body = _reader(keys)
        self._fields = [
            (f".{name}:", _attribute(keys.index(path[0])), [_reader([key]) for key in path[1:]])
            for name, path in zip(fields, paths, strict=True)
        ]

    def in_head(self, lines: Sequence[bytes]) -> SessionId | None:
        """Return the id in a request's header lines. A field that is repeated is one list of its different values."""
        found: dict[bytes, dict[bytes, None]] = {}
        for line in lines:
            name, _, value = line.partition(b":")
            name = name.lower()
            if name in self._headers and (value := value.strip(b" \t")):
                found.setdefault(name, {})[value] = None
        if found:
            for name, prefix in self._headers.items():
                if name in found:
                    return _id(prefix, b", ".join(found[name]))
        return None

    def in_body(self, body: bytes) -> SessionId | None:
        """Return the id in a JSON body: a usable `session_id`, else the first field that is a string with any text."""
        found = read_object(body, self._read_body)
        if found is None:
            return None
        ours = spelled(getattr(found, _attribute(0)))
        if ours is not None:
            return ours
        for prefix, attribute, steps in self._fields:
            value = _string(getattr(found, attribute), steps)
            if value:
                return _id(prefix, value.encode(errors="surrogatepass"))
        return None


def _string(literal: msgspec.Raw, steps: Sequence[Callable[[msgspec.Raw], Any]]) -> str | None:
    try:
        for step in steps:
            literal = getattr(step(literal), _attribute(0))
    except (msgspec.DecodeError, RecursionError):
        return None  # absent, or not an object
    return text_of(literal)


def _id(prefix: str, value: bytes) -> SessionId:
    return usable(prefix + value.decode("latin-1")) or SessionId(prefix + blake2b(value, digest_size=_HASH).hexdigest())


def _attribute(index: int) -> str:
    return f"key{index}"


def _reader(keys: Sequence[str]) -> Callable[[bytes | msgspec.Raw], Any]:
    """Make a function that reads these keys of a JSON object, each as it is spelled."""
    names = {_attribute(index): key for index, key in enumerate(keys)}
    fields = [(attribute, msgspec.Raw, msgspec.Raw()) for attribute in names]
    return msgspec.json.Decoder(msgspec.defstruct("Keys", fields, rename=names, gc=False)).decode
