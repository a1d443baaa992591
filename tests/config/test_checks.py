"""What a text may be."""

from collections.abc import Callable

import pytest

from pypto_serving_router.config import checks

GOOD: list[tuple[Callable[[str], str | None], str]] = [
    (checks.argument, ""),
    (checks.argument, "two\nlines\tand a tab"),
    (checks.line, "/models/Qwen 3 (ü)"),
    (checks.templated_argument, '{"x": 1} {device} {{nope}}'),
    (checks.templated_line, "/logs/{slot}"),
    (checks.address, "node02"),
    (checks.address, "10.0.0.2"),
    (checks.address, "::1"),
    (checks.address, "2001:db8::7"),
    (checks.address, "node_1.example.org."),
    (checks.address, "3com.example"),
    (checks.address, "10.0.0.2.nip.io"),
    (checks.address, "xn--nd-xka0a.example"),
    (checks.address, "a" * 63 + ".b2"),
    (checks.ssh_destination, "user@node02"),
    (checks.ssh_destination, "alias"),
    (checks.ssh_destination, "ssh://user@node02:2222"),
    (checks.ssh_destination, "first.last@corp@node"),
    (checks.key_path, "~/.ssh/id_ed25519"),
    (checks.variable, "PYPTO_PROG_BUILD_DIR"),
    (checks.variable, "http_proxy"),
]
BAD: list[tuple[Callable[[str], str | None], str]] = [
    (checks.argument, "a\0b"),
    (checks.argument, "\ud800"),
    (checks.line, "two\nlines"),
    (checks.line, "\x7f"),
    (checks.line, "a\u2028b"),
    (checks.templated_argument, "{nope}"),
    (checks.templated_argument, "{port}\0"),
    (checks.templated_line, "/logs/{nope}"),
    (checks.templated_line, "/logs\n{slot}"),
    (checks.address, "-oProxyCommand=x"),
    (checks.address, "http://node02"),
    (checks.address, "node02:8001"),
    (checks.address, "[::1]"),
    (checks.address, "fe80::1%eth0"),
    (checks.address, "fe80::1%\nX"),
    (checks.address, "a b"),
    (checks.address, "a\r\nHost: b"),
    (checks.address, "nödé"),
    (checks.address, "node\n"),
    (checks.address, "256.1.1.1"),
    (checks.address, "10.0.0.2."),
    (checks.address, "10.0.2"),
    (checks.address, "010.0.0.2"),
    (checks.address, "0x7f000001"),
    (checks.address, "node.1"),
    (checks.address, "a..b"),
    (checks.address, ".a"),
    (checks.address, "a.-b"),
    (checks.address, "a-.b"),
    (checks.address, "a" * 64 + ".b"),
    (checks.address, "a." * 127 + "bc"),
    (checks.ssh_destination, "-oProxyCommand=touch x"),
    (checks.ssh_destination, "a b"),
    (checks.ssh_destination, "$(touch x)@host"),
    (checks.ssh_destination, "host;x"),
    (checks.ssh_destination, "host\n"),
    (checks.key_path, "-----BEGIN OPENSSH PRIVATE KEY-----\nabc"),
    (checks.key_path, "-i"),
    (checks.key_path, "a\nb"),
    (checks.variable, ""),
    (checks.variable, "A=B"),
    (checks.variable, "A\0B"),
    (checks.variable, "PYPTO_ROUTER_ADMIN_TOKEN"),
]


@pytest.mark.parametrize(("check", "text"), GOOD)
def test_usable_text_passes(check: Callable[[str], str | None], text: str) -> None:
    """Nothing that works is refused (spec 2.3)."""
    assert check(text) is None


@pytest.mark.parametrize(("check", "text"), BAD)
def test_unusable_text_is_refused_in_one_printable_line(check: Callable[[str], str | None], text: str) -> None:
    """A refusal is one line, whatever the text holds (spec 1.5)."""
    message = check(text)

    assert message
    assert message.isprintable()


def test_key_material_is_not_repeated() -> None:
    """A key that was pasted into the file does not end up in a log (spec 2.3)."""
    assert "c2VjcmV0" not in str(checks.key_path("-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0"))


def test_nearest_suggests_or_lists() -> None:
    """A typo gets a suggestion; anything else gets the list (spec 2.1)."""
    assert checks.nearest("devcies", ["devices", "model"]) == "did you mean `devices`?"
    assert checks.nearest("zzz", ["devices", "model"]) == "known are `devices`, `model`"
