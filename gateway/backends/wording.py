"""Plain words for what the HTTP clients raise: for replies, spans and logs, where a class name says nothing."""

from __future__ import annotations

import socket
import ssl
from typing import Final

_WORDS: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (ssl.SSLCertVerificationError, "its TLS certificate is not valid"),
    (ssl.SSLError, "no TLS connection could be made"),
    (socket.gaierror, "its host name was not found"),
    (ConnectionRefusedError, "the connection was refused"),
    (ConnectionResetError, "the connection was reset"),
)


def in_words(error: BaseException, otherwise: str) -> str:
    """Words for the first error of the standard library among `error` and its causes; `otherwise` where there is none.

    None of the libraries' own texts is used: those quote certificates, addresses and headers.
    """
    cause: BaseException | None = error
    while cause is not None:
        for kind, words in _WORDS:
            if isinstance(cause, kind):
                return words
        cause = cause.__cause__
    return otherwise
