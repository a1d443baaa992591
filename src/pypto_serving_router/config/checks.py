"""What a text in the fleet file or an option may be, beyond its type.

Each check takes a text and tells what is wrong with it, or None. A message never repeats the text whole: it may be a
secret that was pasted into the wrong place.
"""

from __future__ import annotations

import difflib
import ipaddress
import re

from pypto_serving_router.config import template
from pypto_serving_router.core.lines import is_ordinary

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,254}}\Z)({_LABEL}\.)*(?!(\d+|0[xX][\da-fA-F]*)\.?\Z){_LABEL}\.?", re.ASCII)
"""The last label is no number: resolvers read such a name as an IPv4 address in one of its old spellings."""
# What OpenSSH itself refuses in a destination, because it may reach a shell through its configuration.
_SSH_HOSTILE = re.compile(r"""[\s'"`$;&<>|(){},\\]""")


def argument(text: str) -> str | None:
    """Any text that can be handed to a program: line breaks are harmless, NUL is not."""
    if "\0" in text:
        return "contains a NUL character, which no program can be given"
    if _SURROGATE.search(text):
        return "contains half of a surrogate pair, which is not a character"
    return None


def line(text: str) -> str | None:
    """Text without control characters."""
    if match := _CONTROL.search(text):
        return f"contains the control character {match[0]!a}; only plain text on one line is allowed"
    return argument(text)


def templated_argument(text: str) -> str | None:
    """An argument in which placeholders expand."""
    return argument(text) or _placeholders(text)


def templated_line(text: str) -> str | None:
    """One line in which placeholders expand."""
    return line(text) or _placeholders(text)


def address(text: str) -> str | None:
    """A host name or an IP address, without scheme, port or path."""
    if text.startswith("-"):
        return "starts with `-`, as an option would; a host name or an IP address is allowed"
    if is_ip(text) or _HOST_NAME.fullmatch(text):
        return None
    return line(text) or "is neither a host name nor an IP address (no scheme, port, path or brackets belong here)"


def ssh_destination(text: str) -> str | None:
    """What the ssh client takes as its destination."""
    if text.startswith("-"):
        return "starts with `-`, as an option would; `user@host` or an alias of ssh_config is allowed"
    if problem := line(text):
        return problem
    if match := _SSH_HOSTILE.search(text):
        return f"contains {match[0]!a}; `user@host` or an alias of ssh_config is allowed"
    return None


def key_path(text: str) -> str | None:
    """The path of a private key, and not the key."""
    if "-----BEGIN" in text:
        return "holds key material; only the path of a key file is allowed"
    if text.startswith("-"):
        return "starts with `-`, as an option would; the path of a key file is allowed"
    return line(text)


def variable(text: str) -> str | None:
    """The name of an environment variable."""
    if not text or "=" in text:
        return "is not the name of an environment variable"
    if text.startswith("PYPTO_ROUTER_"):
        return "is reserved: variables named `PYPTO_ROUTER_*` are the router's own and are not passed on"
    return line(text)


def session_header(text: str) -> str | None:
    """The name of a header field that may stand for a session."""
    if not is_ordinary(text.lower().encode()):
        return "has a meaning of its own, or holds a secret; any other field is allowed"
    return None


def is_ip(text: str) -> bool:
    """Whether this is an IP address, without brackets or a zone, which no Host header can carry."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def nearest(text: str, known: list[str]) -> str:
    """Suggest the known word most like `text`, else list them all."""
    matches = difflib.get_close_matches(text, known, n=1)
    return f"did you mean `{matches[0]}`?" if matches else "known are " + ", ".join(f"`{k}`" for k in known)


def _placeholders(text: str) -> str | None:
    known = list(template.PLACEHOLDERS)
    for name in template.names(text):
        if name not in known:
            hint = nearest(name, known)
            return f"contains `{{{name}}}`, which is not a placeholder; {hint} (`{{{{{name}}}}}` gives a literal one)"
    return None
