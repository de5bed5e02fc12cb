"""Limit the size of each scope.

A scope has two keys besides its entries: a hash from each entry's digest to its size in bytes and, for a copy, the
digest of the original, with the sum of all bytes under ''; and a sorted set of the digests by time of creation. One
script writes an entry and both: if the scope then exceeds its limit of entries or bytes, the oldest are deleted until
it fits (at most 100 at a time), so that a tenant that fills its scope evicts only its own entries. Expired
entries are removed in the same way, so the counts are exact except for entries that the server itself evicted. A copy
is not written once its original is gone, since that may have been purged while the copy was on its way.
What is deleted for good stays so although somebody still writes it: a third key, a sorted set of the digests by time of
deletion, outlives every writer that comes late, and refuses what was made before. It has the latest 10,000.
All keys of a scope are in one slot of a cluster, and both keys are deleted with the last entry.

The keys of a lasting scope have no expiry, so a server that is full does not evict them. Its entries are ordered by the
end of their lives instead, and those that end first are deleted first. Who keeps them deletes what has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cache.store.base import Command

ENTRY: Final = ":x:"

_HERE: Final = Path(__file__).parent
STRIKE: Final = (_HERE / "strike.lua").read_bytes()
"""The beginning of scripts that delete entries."""
_PUT: Final = STRIKE + (_HERE / "put.lua").read_bytes()
_DROP: Final = STRIKE + (_HERE / "drop.lua").read_bytes()
GONE_S: Final = 600.0
"""How long it is known what was deleted for good: longer than any write is tried again, or waits."""


@dataclass(slots=True)
class Caps:
    """The most that one scope may hold, in entries and in bytes as stored. The values may change while it is in use."""

    entries: int = 20_000
    bytes: int = 32 << 20


def put(
    key: str,
    value: bytes,
    ttl_s: float,
    created_at: float,
    caps: Caps,
    origin: str = "",
    lease: str = "",
    *,
    lasting: bool = False,
) -> Command:
    """Return the command that writes an entry under its scope's caps. Times in seconds of the writer's wall clock.

    A `lasting` scope gives the end of the entry's life as `created_at`.
    `lease` is the key of the lease under which the answer was produced; it is deleted, because lookups now hit.
    """
    prefix, _, digest = key.rpartition(ENTRY)
    ttl_ms = max(1, round(ttl_s * 1000))
    created_us = round(created_at * 1e6)
    keys = (key.encode(), *keys_of(prefix), *((lease.encode(),) if lease else ()))
    return Command(
        (
            b"EVAL", _PUT, b"%d" % len(keys), *keys, digest.encode(), value, b"%d" % ttl_ms,
            b"%d" % created_us, origin.encode(), b"%d" % caps.entries, b"%d" % caps.bytes,
            b"%d" % (created_us - 1000 * ttl_ms), b"1" if lasting else b"",
        )
    )  # fmt: skip


def drop(prefix: str, digests: Iterable[str], at: float | None = None) -> Command:
    """Return the command that deletes entries of one scope; its reply is 1 if the first of them existed, else 0.

    With a time `at` (wall clock, in seconds) they are deleted for good: a later write of an answer that was made until
    then is refused. In a lasting scope every later write of them is refused.
    """
    digests = list(digests)
    key = f"{prefix}{ENTRY}{digests[0]}".encode()
    words = (*map(str.encode, digests), b"%d" % (0 if at is None else round(1000 * GONE_S)), microseconds(at or 0.0))
    return Command((b"EVAL", _DROP, b"3", key, *keys_of(prefix), *words))


def keys_of(prefix: str) -> tuple[bytes, bytes]:
    """Return the keys of a scope's size hash and of its sorted set of creation times."""
    return f"{prefix}:sizes".encode(), f"{prefix}:ages".encode()


def microseconds(at: float) -> bytes:
    """Return a time of the wall clock in whole microseconds."""
    return b"%d" % round(at * 1e6)
