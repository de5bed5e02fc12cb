"""Feedback: what a client says afterwards of an answer it got, kept in a stream of its own beside the records.

    {"v": 1, "request_id": "req_...", "tenant": "acme", "surface": "chat", "score": 1.0, "comment": null,
     "at": 1767225600.123456}

`score` is from 0 (useless) to 1 (right); `at` is in Unix seconds. The last word on a request counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

STREAM: Final = "tierline:feedback"
"""The store's stream of feedback, the newest last."""

_VERSION: Final = 1
_BEGINNING: Final = b'{"v":%d,' % _VERSION

Key = tuple[str, str]
"""(tenant, request id): two tenants may have sent the same id."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """One word on one request."""

    request_id: str
    tenant: str
    surface: str
    score: float
    comment: str | None
    at: float

    @property
    def key(self) -> Key:
        """Whose request it speaks of."""
        return self.tenant, self.request_id

    def encode(self) -> bytes:
        """The bytes to append to the stream."""
        return orjson.dumps({"v": _VERSION, **self.shown()})

    def shown(self) -> dict[str, Any]:
        """All that it says."""
        return {name: getattr(self, name) for name in self.__slots__}


def decode(blob: bytes) -> Feedback | None:
    """The feedback in one entry of the stream; None for another version's or a stranger's."""
    if not blob.startswith(_BEGINNING):
        return None
    said = orjson.loads(blob)
    del said["v"]
    return Feedback(**said)


def key_of(ledger: Mapping[str, Any]) -> Key:
    """The key under which a recorded request's feedback is found."""
    return ledger["tenant"], ledger["request_id"]
