"""Text that is shown to people: nothing in it drives a terminal, and colours are for those who want them."""

from __future__ import annotations

import json
import os
import re
from typing import Final

_BARE: Final = re.compile(r"[A-Za-z0-9._:/@+-]+")
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_COLOURS: Final = {
    "debug": _DIM,
    "info": "\x1b[32m",
    "warning": "\x1b[33m",
    "error": "\x1b[31m",
    "critical": "\x1b[31m",
}


def escape(text: str) -> str:
    """Replace what a terminal would not show as a character of its own: controls, line ends, marks of direction."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def one_line(text: str) -> str:
    """Put several lines into one, and escape what is left."""
    return escape(" | ".join(text.splitlines()))


def word(value: object) -> str:
    """Write a field's value so that it reads as one word, or as a quoted one."""
    if isinstance(value, str):
        if _BARE.fullmatch(value):
            return value
        return escape(json.dumps(value, ensure_ascii=False))
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else escape(json.dumps(value, default=str, ensure_ascii=False))


def begin_record(timestamp: str, level: str, event: str, *, coloured: bool) -> str:
    """Write what stands before the fields of a record, so that fields stand below fields."""
    shown = f"{level:7}"
    if coloured:
        timestamp, shown = f"{_DIM}{timestamp}{_PLAIN}", f"{_COLOURS[level]}{shown}{_PLAIN}"
    return f"{timestamp} {shown} {event:32} "


def wants_colour(fd: int) -> bool:
    """Tell whether what is written to a descriptor may have colours: on a terminal that has them, unless refused."""
    return os.isatty(fd) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _escaped(character: str) -> str:
    code = ord(character)
    if character.isprintable():
        return character
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
