"""What is wrong with a TLS connection, in words for people."""

from __future__ import annotations

import ssl
from typing import Final

_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""What OpenSSL calls an answer that is not TLS, depending on its version and on the answer."""


def tls_trouble(error: ssl.SSLError) -> str:
    """Tell why there is no TLS connection to somebody, in other words than OpenSSL's."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not good: {error.verify_message}"
    if error.reason in _NOT_TLS:
        return "it does not speak https"
    return f"no TLS with it: {(error.reason or str(error)).lower().replace('_', ' ')}"
