"""Encode and decode feedback, a client's rating of an answer it got; stored in a stream beside the records.

    {"v": 1, "request_id": "req_...", "tenant": "acme", "surface": "chat", "score": 1.0, "comment": null,
     "at": 1767225600.123456}

`score` is from 0 (useless) to 1 (right); `at` is in Unix seconds. Of several ratings of one request the last counts.
The stream retains about its latest entries, of all tenants together: once it is full, a tenant that has half of them
makes room by its own oldest, so that nobody rates away what others have said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson

from cache.store.base import Command, Store
from gateway.parts.measures.reader import entries
from gateway.telemetry import names

STREAM: Final = "tierline:feedback"
"""Key of the store's stream of feedback, oldest first."""
_IDS: Final = f"{{{STREAM}}}:of:"
"""Prefix of the keys of tenants' lists of the ids of their entries, in the slot of the stream."""
_APPEND: Final = b"""
local keep = tonumber(ARGV[1])
redis.call('RPUSH', KEYS[2], redis.call('XADD', KEYS[1], '*', 'v', ARGV[2]))
if redis.call('XLEN', KEYS[1]) <= keep then return 1 end
while redis.call('LLEN', KEYS[2]) > keep / 2 do
  if redis.call('XDEL', KEYS[1], redis.call('LPOP', KEYS[2])) == 1 then return 1 end
end
redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', keep)
return 1
"""

_VERSION: Final = 1
_BEGINNING: Final = b'{"v":%d,' % _VERSION

Key = tuple[str, str]
"""(tenant, request id). The id alone is not unique: two tenants may send the same one."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """One rating of one request."""

    request_id: str
    tenant: str
    surface: str
    score: float
    comment: str | None
    at: float

    @property
    def key(self) -> Key:
        """Tenant and id of the rated request."""
        return self.tenant, self.request_id

    @property
    def line(self) -> str:
        """The score and the comment, as `tierline trace` shows them."""
        return f"feedback {self.score:g}" + (f": {self.comment}" if self.comment else "")

    def encode(self) -> bytes:
        """Return the bytes to append to the stream."""
        return orjson.dumps({"v": _VERSION, **self.shown()})

    def shown(self) -> dict[str, Any]:
        """Return all fields as a dict."""
        return {name: getattr(self, name) for name in self.__slots__}


def append(feedback: Feedback, keep: int) -> Command:
    """Return the command that stores feedback in a stream that retains about its latest `keep` entries."""
    keys = STREAM.encode(), (_IDS + feedback.tenant).encode()
    return Command((b"EVAL", _APPEND, b"2", *keys, b"%d" % keep, feedback.encode()))


def decode_feedback(blob: bytes) -> Feedback | None:
    """Return the feedback in one entry of the stream; None for an entry of another version or format."""
    if not blob.startswith(_BEGINNING):
        return None
    fields = orjson.loads(blob)
    del fields["v"]
    return Feedback(**fields)


async def feedback_by_request(store: Store) -> dict[Key, Feedback]:
    """Return the latest feedback on each request that has any. Raises StoreUnavailable."""
    by_request: dict[Key, Feedback] = {}
    async for _, blob in entries(store, STREAM):
        entry = decode_feedback(blob)
        if entry is not None:
            by_request.setdefault(entry.key, entry)
    return by_request


@dataclass(frozen=True, slots=True)
class ServedHit:
    """The stored answer that a recorded request was answered with.

    `created_at` (Unix seconds) tells it from a later answer under the same id; `score` is None for an answer to exactly
    this request.
    """

    entry_id: str
    created_at: float | None
    score: float | None

    @classmethod
    def of(cls, hops: Iterable[Mapping[str, Any]]) -> Self | None:
        """Return the hit in the hops of a record; None for a request that was not answered from the cache."""
        for hop in hops:
            told = hop["attributes"]
            if names.CACHE_ENTRY in told:
                return cls(told[names.CACHE_ENTRY], told.get(names.CACHE_CREATED), told.get(names.CACHE_SCORE))
        return None
