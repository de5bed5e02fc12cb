"""Limit the size of each scope and list its entries.

A scope has two keys besides its entries: a hash from each entry's digest to its size in bytes and, for a copy, the
digest of the original, with the sum of all bytes under ''; and a sorted set of the digests by time of creation. One
script writes an entry and both: if the scope then exceeds its limit of entries or bytes, the oldest are deleted until
it fits (at most 100 at a time), so that a tenant that fills its scope evicts only its own entries (S16). Expired
entries are removed in the same way, so the counts are exact except for entries that the server itself evicted. A copy
is not written once its original is gone, since that may have been purged while the copy was on its way.
What is deleted for good stays so although somebody still writes it: a third key, a sorted set of the digests by time of
deletion, outlives every writer that comes late, and refuses what was made before. It has the latest 10,000.
All keys of a scope are in one slot of a cluster, and both keys are deleted with the last entry.

The keys of a lasting scope have no expiry, so a server that is full does not evict them. Its entries are ordered by the
end of their lives instead: those that end first are deleted first, a life can be made longer, a reader compares the end
with its clock, and `sweep` deletes what has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cache.store.base import Command

ENTRY: Final = ":x:"

_HERE: Final = Path(__file__).parent
_STRIKE: Final = (_HERE / "strike.lua").read_bytes()
_PUT: Final = _STRIKE + (_HERE / "put.lua").read_bytes()
_DROP: Final = _STRIKE + (_HERE / "drop.lua").read_bytes()

_SWEEP: Final = _STRIKE + (_HERE / "sweep.lua").read_bytes()
GONE_S: Final = 600.0
"""How long it is known what was deleted for good: longer than any write is tried again, or waits."""
SWEPT_AT_ONCE: Final = 100
"""Most entries that one `sweep` deletes, as the server serves nobody meanwhile."""


@dataclass(slots=True)
class Caps:
    """Limits of one scope, in entries and in bytes as stored. Who owns them may change them at any time."""

    entries: int = 20_000
    bytes: int = 32 << 20


@dataclass(frozen=True, slots=True)
class Placed:
    """One entry as the size hash records it: its digest, its bytes, and the original's digest if it is a copy."""

    digest: str
    bytes: int
    origin: str


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
    keys = (key.encode(), *_keys(prefix), *((lease.encode(),) if lease else ()))
    return Command(
        (
            b"EVAL", _PUT, b"%d" % len(keys), *keys, digest.encode(), value, b"%d" % ttl_ms,
            b"%d" % created_us, origin.encode(), b"%d" % caps.entries, b"%d" % caps.bytes,
            b"%d" % (created_us - 1000 * ttl_ms), b"1" if lasting else b"",
        )
    )  # fmt: skip


def drop(prefix: str, digests: Iterable[str], at: float | None = None) -> Command:
    """Return the command that deletes entries of one scope; its reply is 1 if the first of them existed, else 0.

    With a time `at` (wall clock) they are deleted for good: none that was made until then is written any more. In a
    lasting scope none is at all.
    """
    digests = list(digests)
    key = f"{prefix}{ENTRY}{digests[0]}".encode()
    words = (*map(str.encode, digests), b"%d" % (0 if at is None else round(1000 * GONE_S)), _microseconds(at or 0.0))
    return Command((b"EVAL", _DROP, b"3", key, *_keys(prefix), *words))


def allow(prefix: str, digest: str) -> Command:
    """Return the command that lets an entry be written again that was deleted for good."""
    return Command((b"ZREM", _keys(prefix)[0] + b":gone", digest.encode()))


def prolong(prefix: str, digests: Sequence[str], ends_at: float) -> Command:
    """Return the command that lets entries of a lasting scope live to `ends_at` (wall clock), or as long as they do.

    There is at least one digest.
    """
    scores = [word for digest in digests for word in (_microseconds(ends_at), digest.encode())]
    return Command((b"ZADD", _keys(prefix)[1], b"XX", b"GT", *scores))


def ends(prefix: str, digests: Sequence[str]) -> Command:
    """Return the command that reads when entries of a lasting scope end; `ended` reads one of its replies."""
    return Command((b"ZMSCORE", _keys(prefix)[1], *(digest.encode() for digest in digests)))


def ended(reply: object, now: float) -> bool:
    """Return whether an entry's life is over at this time of the wall clock."""
    return isinstance(reply, bytes) and float(reply) <= now * 1e6


def sweep(prefix: str, now: float) -> Command:
    """Return the command that deletes entries of a lasting scope that have ended; its reply is how many it deleted."""
    return Command((b"EVAL", _SWEEP, b"3", f"{prefix}{ENTRY}".encode(), *_keys(prefix), b"", _microseconds(now)))


def measured(prefix: str) -> tuple[Command, Command]:
    """Return the commands that read the number of entries (plus 1) and of bytes in a scope."""
    sizes, _ = _keys(prefix)
    return Command((b"HLEN", sizes)), Command((b"HGET", sizes, b""))


def page(prefix: str, cursor: bytes = b"0") -> Command:
    """Return the command that reads a page of a scope's entries; `paged` reads the reply."""
    return Command((b"HSCAN", _keys(prefix)[0], cursor, b"COUNT", b"1000"))


def paged(reply: object) -> tuple[bytes, list[Placed]]:
    """Return the cursor of the next page (b"0" after the last), and the entries of this one."""
    if not isinstance(reply, list) or len(reply) != 2:
        return b"0", []
    cursor, fields = reply
    entries = []
    for name, value in zip(fields[::2], fields[1::2], strict=False):
        size, _, origin = value.partition(b" ")
        if name and size.isdigit():
            entries.append(Placed(name.decode(), int(size), origin.decode()))
    return cursor, entries


def _keys(prefix: str) -> tuple[bytes, bytes]:
    """Return the keys of a scope's size hash and of its sorted set of creation times."""
    return f"{prefix}:sizes".encode(), f"{prefix}:ages".encode()


def _microseconds(at: float) -> bytes:
    return b"%d" % round(at * 1e6)
