"""Index in the store, with the vector sets of Redis 8.

There is one set per partition; what one worker adds, the next request finds. There is one set per partition
because a search in a common set with a filter returned a tenant's own entry only 83% of the time: the graph is searched
by nearness, and a partition may be anywhere in it. An element's name contains its entry's key and its question, so that
one round trip returns all that the guards read, from Redis 8.0 on. A sorted set beside each set holds the expiry times,
which vector sets do not support. Vectors are quantised to 8 bits, which changes cosines by 0.0005 on average and 0.003
at most (of 8,000 real pairs not one verdict changed) and takes two thirds of the server's time and 60% of its memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cache.index import IndexState, Neighbour, Vector, scope_in
from cache.store.base import Command, Store, StoreUnavailable

if TYPE_CHECKING:
    from cache.entry import IndexRecord

_END: Final = b"\0"
_EXPLORED: Final = b"100"
"""Number of candidates (EF) of a search and of an addition. For real questions with a neighbour at a cosine of 0.7 or
more, it then finds the nearest for 99.8% in a set of 20,000, and for 98.6% in one of 100,000. The server's default of
200 for an addition would find 1% more there, and hold its one thread, for which all clients wait, for 2 ms instead of
0.8.
"""
_QUANTISATION: Final = b"Q8"
"""Quantisation of vector sets; a set that has elements accepts no other."""

# One script, and so one reply and no interleaving: a set and the order of its elements always agree.
# At most 10 elements are removed at a time, to keep it short; one is added, so a set shrinks to its cap.
# If the order was evicted and the set was not, elements are removed at random: their age is unknown.
_ADD: Final = Path(__file__).with_name("vector_add.lua").read_bytes()


class VectorSetIndex:
    """The index, with at most `per_partition` elements per set; the first to expire go. `clock` is wall time."""

    def __init__(self, store: Store, *, per_partition: int = 100_000, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._per_partition = per_partition
        self._clock = clock

    async def nearest(self, partition: str, vector: Vector, k: int, at_least: float = -1.0) -> list[Neighbour]:
        """Return the nearest neighbours; see SemanticIndex."""
        # In the server's main thread: most sets are small, and a thread for each search took twice its CPU time.
        how = (b"WITHSCORES", b"COUNT", b"%d" % k, b"EF", _EXPLORED, b"NOTHREAD")
        query = (b"VSIM", _set(partition).encode(), b"FP32", vector.astype("<f4").tobytes(), *how)
        (reply,) = await self._store.ask([Command(query, optional=True)])
        if isinstance(reply, Exception):
            raise StoreUnavailable("index", str(reply))
        try:  # scores are (1 + cosine) / 2
            found = [(element, 2 * float(score) - 1) for element, score in zip(reply[::2], reply[1::2], strict=True)]
            return [_neighbour(partition, element, similarity) for element, similarity in found]
        except (TypeError, ValueError, AttributeError):
            raise StoreUnavailable("error") from None

    def operations(self, record: IndexRecord) -> tuple[Command, ...]:
        """Return the operation that adds a record; see SemanticIndex."""
        now = self._clock()
        element = _element(record.partition, record.key, record.question)
        keys = (_set(record.partition).encode(), _order(record.partition).encode())
        times = (b"%d" % round(now * 1000), b"%d" % max(1, round((record.expires_at - now) * 1000)))
        words = (*keys, record.vector, element, *times, b"%d" % self._per_partition, _QUANTISATION, _EXPLORED)
        return (Command((b"EVAL", _ADD, b"2", *words), optional=True),)

    def kept(self, record: IndexRecord) -> None:
        """Do nothing: the record is in the store only."""

    async def forget(self, partition: str, neighbour: Neighbour) -> None:
        """Remove a neighbour; see SemanticIndex."""
        element = _element(partition, neighbour.key, neighbour.question)
        keys = {b"VREM": _set(partition), b"ZREM": _order(partition)}
        await self._store.apply([Command((verb, key.encode(), element), optional=True) for verb, key in keys.items()])

    def refused(self, why: str) -> None:
        """Do nothing: who has chosen this index is told."""

    async def start(self) -> None:
        """Do nothing: adding the first element creates a set."""

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""

    def state(self) -> IndexState:
        """Return the index's state; see SemanticIndex."""
        return IndexState("vector_sets")


def _set(partition: str) -> str:
    return f"{partition}:q"


def _order(partition: str) -> str:
    return f"{partition}:qe"


def _element(partition: str, key: str, question: str) -> bytes:
    return key.removeprefix(scope_in(partition)).encode() + _END + question.encode()


def _neighbour(partition: str, element: bytes, similarity: float) -> Neighbour:
    key, _, question = element.partition(_END)
    rest = key.decode(errors="replace")
    return Neighbour(scope_in(partition) + rest, question.decode(errors="replace"), similarity)
