"""Provide the seam `index` of `gateway.seams`.

Choose the index that the server supports: probed at start, every few seconds, and when the server refuses one.

The server behind an address may change (an upgrade, a failover), and COMMAND INFO for one name is cheap. With `auto`
it is vector sets where the server has them, else the replica index, which works with any server. An explicitly chosen
kind is used or none is. A fault of the index affects only the semantic cache: the exact one continues.

Index in the store, with the vector sets of Redis 8.

There is one set per partition; what one worker adds, the next request finds. There is one set per partition
because a search in a common set with a filter returned a tenant's own entry only 83% of the time: the graph is searched
by nearness, and a partition may be anywhere in it. An element's name contains its entry's key and its question, so that
one round trip returns all that the guards read, from Redis 8.0 on. A sorted set beside each set holds the expiry times,
which vector sets do not support. Vectors are quantised to 8 bits, which changes cosines by 0.0005 on average and 0.003
at most (of 8,000 real pairs not one verdict changed) and takes two thirds of the server's time and 60% of its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cache.index import Choice, IndexKind, IndexState, Neighbour, ReplicaIndex, SemanticIndex, Vector, scope_in
from cache.store.base import Command, IndexOperation, Store, StoreUnavailable

if TYPE_CHECKING:
    from cache.entry import IndexRecord
    from cache.index import NewIndex

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

    def respaced(self, partition: str, question: str) -> Neighbour | None:
        """Return None: the questions are in the store; see SemanticIndex."""
        return None

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


_NEEDED: Final = "VADD"
"""The command of a server that has vector sets."""
_LOOK_EVERY_S = 15.0
_LOOK_AGAIN_S = 0.5
_TOLD_FOR_S = 60.0


class ChosenIndex:
    """The SemanticIndex of a deployment. Until the first probe succeeds it is the replica index, which always works.

    `name` identifies the vectors; it is part of the names of everything stored.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        dimension: int,
        *,
        choice: Choice = "auto",
        entries: int = 100_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take the store, and `entries`: the maximum number in a replica, or in one partition in the store."""
        self._store = store
        self._name = name
        self._dimension = dimension
        self._choice = choice
        self._entries = entries
        self._clock = clock
        self._kind: IndexKind | None = None
        self._works_unprobed = choice in ("auto", "replica")
        self.usable: bool
        """Whether there is an index to search; False where the server lacks the explicitly chosen kind."""
        self.current: SemanticIndex
        """The replica index while it is in use: it needs nothing of this one, which is not in between then."""
        self._use(self._made("replica"), usable=self._works_unprobed)
        self._why_none = "not probed yet"
        self._refusal, self._refused_at = "", float("-inf")
        self._doubted = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return self._current.state().entries or 0

    async def nearest(self, partition: str, vector: Vector, k: int, at_least: float = -1.0) -> list[Neighbour]:
        """Return the nearest neighbours; see SemanticIndex."""
        if not self.usable:
            return []
        try:
            return await self._current.nearest(partition, vector, k, at_least)
        except StoreUnavailable as error:
            if error.reason == "index":
                self.refused(str(error))
            raise

    def respaced(self, partition: str, question: str) -> Neighbour | None:
        """Return None: the questions are in the store; see SemanticIndex."""
        return None

    def operations(self, record: IndexRecord) -> tuple[IndexOperation, ...]:
        """Return the operations that add a record; see SemanticIndex."""
        return self._current.operations(record) if self.usable else ()

    def kept(self, record: IndexRecord) -> None:
        """Record that the operations for this record were executed; see SemanticIndex."""
        if self.usable:
            self._current.kept(record)

    def refused(self, why: str) -> None:
        """Record that the server refused an operation of this index, and probe again."""
        self._refusal, self._refused_at = why, time.monotonic()
        self._doubted.set()

    async def forget(self, partition: str, neighbour: Neighbour) -> None:
        """Remove a neighbour; see SemanticIndex."""
        await self._current.forget(partition, neighbour)

    async def start(self) -> None:
        """Probe once, waiting for the store, and continue to probe in the background."""
        await self._look()
        self._watcher = asyncio.create_task(self._watch(), name="cache-index-probe")

    async def aclose(self) -> None:
        """Stop probing, and close the index."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        await self._current.aclose()

    def state(self) -> IndexState:
        """Return the index's state, or a recent refusal; see SemanticIndex."""
        if self._kind is None:
            return IndexState(None, reason=self._why_none)
        refusal = self._refusal if time.monotonic() - self._refused_at < _TOLD_FOR_S else ""
        now = self._current.state()
        return IndexState(now.kind, now.entries, now.reason or refusal)

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S if self._kind else _LOOK_AGAIN_S):
                    await self._doubted.wait()
                    # A single refusal causes one probe soon; many refusals cause no more than the periodic ones.
                    await asyncio.sleep(_LOOK_AGAIN_S)
            self._doubted.clear()
            await self._look()

    async def _look(self) -> None:
        """Switch to the index that the server supports now; keep the present one while it does not answer."""
        try:
            kind = await carried(self._store, self._choice)
            if kind is not None:
                await self._take(kind)
        except StoreUnavailable as error:
            self._why_none = str(error)
            return
        if kind is None:
            self._kind, self._why_none = None, f"the server has no {self._choice}"
            self._use(self._current, usable=self._works_unprobed)

    async def _take(self, kind: IndexKind) -> None:
        if kind == self._current.state().kind:
            await self._current.start()
        else:
            taken = self._made(kind)
            await taken.start()
            left = self._current
            self._use(taken, usable=True)
            await left.aclose()
        self._kind = kind
        self._use(self._current, usable=True)

    def _use(self, index: ReplicaIndex | VectorSetIndex, *, usable: bool) -> None:
        self._current, self.usable = index, usable
        self.current = index if usable and isinstance(index, ReplicaIndex) else self

    def _made(self, kind: IndexKind) -> ReplicaIndex | VectorSetIndex:
        if kind == "vector_sets":
            return VectorSetIndex(self._store, per_partition=self._entries, clock=self._clock)
        return ReplicaIndex(
            self._dimension, store=self._store, stream=self._name, total=self._entries, clock=self._clock
        )


async def carried(store: Store, choice: Choice = "auto") -> IndexKind | None:
    """Return the kind of index for this choice on this store; None where the server does not support it.

    Raises StoreUnavailable, with reason "index" where the server may not be asked for an explicitly chosen kind.
    """
    if choice == "replica":
        return "replica"
    try:
        if await store.commands([_NEEDED]):
            return "vector_sets"
    except StoreUnavailable as error:
        if error.reason != "index" or choice != "auto":
            raise
        # COMMAND INFO is refused, so vector sets cannot be relied on.
    return "replica" if choice == "auto" else None


__all__ = ["carried", "index_of"]


def index_of(choice: Choice) -> NewIndex:
    """Return what makes the index of a worker: this kind, or the best that the server supports."""

    def new(store: Store, name: str, dimension: int, clock: Callable[[], float]) -> ChosenIndex:
        return ChosenIndex(store, name, dimension, choice=choice, clock=clock)

    return new
