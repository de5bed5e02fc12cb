"""Prolong, read and delete the entries of lasting scopes, which `cache.scopes.shelf.put` and `drop` write and delete.

A reader compares the end of an entry's life with its clock, and `sweep` deletes what has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cache.scopes.shelf import ENTRY, STRIKE, keys_of, microseconds
from cache.store.base import Command

_SWEEP: Final = STRIKE + (Path(__file__).parent / "sweep.lua").read_bytes()
SWEPT_AT_ONCE: Final = 100
"""Most entries that one `sweep` deletes, as the server serves nobody meanwhile."""


def prolong(prefix: str, digests: Sequence[str], ends_at: float) -> Command:
    """Return the command that lets entries of a lasting scope live to `ends_at` (wall clock), or as long as they do.

    There is at least one digest.
    """
    scores = [word for digest in digests for word in (microseconds(ends_at), digest.encode())]
    return Command((b"ZADD", keys_of(prefix)[1], b"XX", b"GT", *scores))


def ends(prefix: str, digests: Sequence[str]) -> Command:
    """Return the command that reads when entries of a lasting scope end; `ended` reads one of its replies."""
    return Command((b"ZMSCORE", keys_of(prefix)[1], *(digest.encode() for digest in digests)))


def ended(reply: object, now: float) -> bool:
    """Return whether an entry's life is over at this time of the wall clock."""
    return isinstance(reply, bytes) and float(reply) <= now * 1e6


def sweep(prefix: str, now: float) -> Command:
    """Return the command that deletes entries of a lasting scope that have ended; its reply is how many it deleted."""
    return Command((b"EVAL", _SWEEP, b"3", f"{prefix}{ENTRY}".encode(), *keys_of(prefix), b"", microseconds(now)))
