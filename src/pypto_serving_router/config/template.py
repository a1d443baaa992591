"""Placeholders in the fleet file: `{port}` stands for a value, `{{port}}` for itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PLACEHOLDERS: Mapping[str, str] = {
    "device": "the first device of the slot",
    "devices": "all devices of the slot, separated by commas",
    "port": "the port of the slot",
    "host": "the `name` of the host",
    "model": "the `model` of the host",
    "slot": "the name of the slot",
}
"""Every placeholder, and what it stands for."""

# Braces around anything but a name are left alone, so that JSON can be written in an argument as it is.
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_PATTERN = re.compile(rf"\{{\{{(?P<literal>{_NAME})\}}\}}|\{{(?P<name>{_NAME})\}}")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace each placeholder by its value, once: what a value contains is not looked at again.

    Raises:
        KeyError: A placeholder has no value.
    """

    def substitute(match: re.Match[str]) -> str:
        literal = match["literal"]
        return f"{{{literal}}}" if literal else values[match["name"]]

    return _PATTERN.sub(substitute, text)


def names(text: str) -> list[str]:
    """Tell the placeholders in `text`, known or not, in order."""
    return [match["name"] for match in _PATTERN.finditer(text) if match["name"]]
