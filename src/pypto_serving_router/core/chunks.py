"""The chunked transfer coding (RFC 9112 7.1), scanned in place: bytes are judged and counted, not copied.

A scanner is fed a body in whatever pieces the network gave. It says how much of each piece may be relayed as it is,
and where the body ends. Trailer fields are dropped (spec 4.8): the last chunk's line is relayed, the trailers are not,
and the caller writes the empty line that ends the body.
"""

from __future__ import annotations

import re
import string
from typing import Final

from pypto_serving_router.core.head import MAX_HEAD

_MAX_LINE: Final = 1024  # bytes of a size line with its extensions; generous: none are in use
_MEMORY: Final = 4096  # size lines that are remembered
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*")
_FRAMING = frozenset([b"content-length", b"transfer-encoding"])  # no trailers, RFC 9110 6.5.1; some merge them all
_CR: Final = 13
_LF: Final = 10
_DIGITS: Final = bytes(int(chr(byte), 16) if chr(byte) in string.hexdigits else 16 for byte in range(256))
_USUAL_DIGITS: Final = 6  # of a size; whatever is longer is read with more care
_LEAST: Final = 8  # bytes that hold as many digits and an end
_sizes: dict[bytes, int] = {}


class ChunkError(ValueError):
    """The bytes are not a chunked body."""


class ChunkScanner:
    """Finds the end of one chunked body.

    After `feed`, `end` is the index in the piece just past the body, or -1 while the body goes on. Where `content` is
    a list, what the chunks hold is appended to it.
    """

    __slots__ = ("_between", "_in_trailers", "_left", "_line", "_trailer_bytes", "content", "end")

    def __init__(self) -> None:
        self.end = -1
        self.content: list[bytes] | None = None
        self._between = True  # two chunks: the next byte begins a size line
        self._in_trailers = False
        self._left = 0  # bytes of the current chunk still to come, its CR LF included
        self._line = b""  # the start of a line that the piece before cut in two
        self._trailer_bytes = 0

    def feed(self, data: bytes, start: int = 0) -> int:
        """Scan `data` from `start`; return the index up to which it may be relayed as it is.

        When the body ends within `data` (`end` is then its end), the caller relays up to the returned index and then
        one CR LF.

        Raises:
            ChunkError: a size, an extension, the end of a chunk or a trailer line is malformed.
        """
        size = len(data)
        # The usual piece is an event of a stream: one whole chunk.
        if self._between and size - start > _LEAST and self.content is None:
            chunk, position = 0, start
            while position < start + _USUAL_DIGITS and (digit := _DIGITS[data[position]]) < 16:
                chunk = 16 * chunk + digit
                position += 1
            if (
                position + chunk + 4 == size
                and chunk
                and data[position] == _CR
                and data[position + 1] == _LF
                and data[size - 2] == _CR
                and data[size - 1] == _LF
            ):
                return size
        position = self._scan(data, start)
        self._between = not (self._left or self._line or self._in_trailers)
        return position

    def _scan(self, data: bytes, position: int) -> int:
        size = len(data)
        while position < size:
            if self._in_trailers:
                return self._scan_trailers(data, position, relay=position)
            if self._left > 2:
                step = min(self._left - 2, size - position)
                if self.content is not None:
                    self.content.append(data[position : position + step])
                self._left -= step
                position += step
                continue
            if self._left:  # the chunk's CR LF, perhaps in two pieces
                if data[position] != (13 if self._left == 2 else 10):
                    raise ChunkError("a chunk does not end where its size says")
                self._left -= 1
                position += 1
                continue
            stop = data.find(b"\n", position)
            if stop < 0:
                self._line += data[position:]
                if len(self._line) > _MAX_LINE:
                    raise ChunkError("a chunk's size line is too long")
                return size
            line = data[position : stop + 1]
            if self._line:
                line = self._line + line
                self._line = b""
            chunk = _sizes.get(line)
            if chunk is None:
                chunk = _read_size(line)
            position = stop + 1
            if chunk:
                # The whole chunk at hand is the usual case: an event of a stream.
                after = position + chunk + 2
                if after <= size:
                    if data[after - 2 : after] != b"\r\n":
                        raise ChunkError("a chunk does not end where its size says")
                    if self.content is not None:
                        self.content.append(data[position : after - 2])
                    position = after
                else:
                    self._left = chunk + 2
            else:
                self._in_trailers = True
                return self._scan_trailers(data, position, relay=position)
        return position

    def _scan_trailers(self, data: bytes, position: int, *, relay: int) -> int:
        while True:
            stop = data.find(b"\n", position)
            piece = data[position : stop + 1] if stop >= 0 else data[position:]
            self._trailer_bytes += len(piece)
            if self._trailer_bytes > MAX_HEAD:
                raise ChunkError("the trailers are too long")
            self._line += piece
            if stop < 0:
                return relay
            line, self._line = self._line, b""
            position = stop + 1
            if line == b"\r\n":
                self.end = position
                return relay
            if line[-2:] != b"\r\n" or not _TRAILER_LINE.fullmatch(line[:-2]):
                raise ChunkError("a trailer line is not `name: value`")
            if line.partition(b":")[0].lower() in _FRAMING:
                raise ChunkError("a trailer that tells a message's length")


def dechunk(body: bytes) -> bytes:
    """Return the content of a whole chunked body.

    Raises:
        ChunkError: it is malformed or not whole.
    """
    scanner = ChunkScanner()
    scanner.content = []
    scanner.feed(body)
    if scanner.end < 0:
        raise ChunkError("the body is not whole")
    return b"".join(scanner.content)


def _read_size(line: bytes) -> int:
    found = _SIZE_LINE.fullmatch(line[:-2]) if line[-2:] == b"\r\n" else None
    if found is None or len(line) > _MAX_LINE:
        raise ChunkError("a chunk's size line is malformed")
    size = int(found[1], 16)
    if len(line) <= 16:
        if len(_sizes) >= _MEMORY:
            _sizes.clear()
        _sizes[line] = size
    return size
