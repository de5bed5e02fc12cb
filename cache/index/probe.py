"""Which index the server can carry: asked at start, every few seconds since, and whenever the server refuses one.

A server may change behind its address (an upgrade, a failover), and COMMAND INFO for two names costs it nothing. With
`auto` vector sets come first, then the query engine, then the replica's own index, for which any server will do. A
kind that is asked for by name is used or none is. Trouble with an index costs the semantic cache alone: the exact one
goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from cache.codec import IndexRecord
from cache.index.base import Choice, IndexKind, IndexState, Neighbour, SemanticIndex, Vector
from cache.index.query_engine import QueryEngineIndex
from cache.index.replica import ReplicaIndex
from cache.index.vector_sets import VectorSetIndex
from cache.store.base import IndexOperation, Store, StoreUnavailable

_NEEDS: tuple[tuple[IndexKind, str], ...] = (("vector_sets", "VADD"), ("query_engine", "FT.SEARCH"))
_LOOK_EVERY_S = 5.0
_LOOK_AGAIN_S = 0.5
_TOLD_FOR_S = 60.0


class ChosenIndex:
    """The SemanticIndex of a deployment. Before the first answer to a probe it is the replica's, which always works.

    `name` is that of the vectors; it is part of the names of all that is kept.
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
        """`entries`: how many a replica holds at most, and a partition in the store."""
        self._store = store
        self._name = name
        self._dimension = dimension
        self._choice = choice
        self._entries = entries
        self._clock = clock
        self._kind: IndexKind | None = None
        self._current: SemanticIndex = self._made("replica")
        self._why_none = "not probed yet"
        self._refusal, self._refused_at = "", float("-inf")
        self._doubted = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return self._current.state().entries or 0

    @property
    def usable(self) -> bool:
        """Whether there is an index to ask; not where the server cannot carry the kind that was chosen by name."""
        return self._kind is not None or self._choice in ("auto", "replica")

    async def nearest(self, partition: str, vector: Vector, k: int, at_least: float = -1.0) -> list[Neighbour]:
        """See SemanticIndex."""
        if not self.usable:
            return []
        try:
            return await self._current.nearest(partition, vector, k, at_least)
        except StoreUnavailable as error:
            if error.reason == "index":
                self.refused(str(error))
            raise

    def operations(self, record: IndexRecord) -> tuple[IndexOperation, ...]:
        """See SemanticIndex."""
        return self._current.operations(record) if self.usable else ()

    def kept(self, record: IndexRecord) -> None:
        """See SemanticIndex."""
        if self.usable:
            self._current.kept(record)

    def refused(self, why: str) -> None:
        """Hears that the server refused an operation of this index: it is probed anew."""
        self._refusal, self._refused_at = why, time.monotonic()
        self._doubted.set()

    async def forget(self, partition: str, neighbour: Neighbour) -> None:
        """See SemanticIndex."""
        await self._current.forget(partition, neighbour)

    async def start(self) -> None:
        """Probes, for as long as the store may take, and goes on probing."""
        await self._look()
        self._watcher = asyncio.create_task(self._watch(), name="cache-index-probe")

    async def aclose(self) -> None:
        """Stops probing, and closes the index."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        await self._current.aclose()

    def state(self) -> IndexState:
        """See SemanticIndex."""
        if self._kind is None:
            return IndexState(None, reason=self._why_none)
        told = self._refusal if time.monotonic() - self._refused_at < _TOLD_FOR_S else ""
        now = self._current.state()
        return IndexState(now.kind, now.entries, now.reason or told)

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S if self._kind else _LOOK_AGAIN_S):
                    await self._doubted.wait()
                    # One refusal brings a look at once, many bring no more than the usual few.
                    await asyncio.sleep(_LOOK_AGAIN_S)
            self._doubted.clear()
            await self._look()

    async def _look(self) -> None:
        """Takes the index that the server can carry now; what there was stays while it does not answer."""
        try:
            kind = await carried(self._store, self._choice)
            if kind is not None:
                await self._take(kind)
        except StoreUnavailable as error:
            self._why_none = str(error)
            return
        if kind is None:
            self._kind, self._why_none = None, f"the server has no {self._choice}"

    async def _take(self, kind: IndexKind) -> None:
        if kind == self._current.state().kind:
            await self._current.start()
        else:
            taken = self._made(kind)
            await taken.start()
            left, self._current = self._current, taken
            await left.aclose()
        self._kind = kind

    def _made(self, kind: IndexKind) -> SemanticIndex:
        if kind == "vector_sets":
            return VectorSetIndex(self._store, per_partition=self._entries, clock=self._clock)
        if kind == "query_engine":
            return QueryEngineIndex(self._store, f"{self._name}:q", self._dimension, clock=self._clock)
        return ReplicaIndex(
            self._dimension, store=self._store, stream=self._name, total=self._entries, clock=self._clock
        )


async def carried(store: Store, choice: Choice = "auto") -> IndexKind | None:
    """The kind of index that a deployment with this choice has on this store; None where it can have none.

    Raises StoreUnavailable.
    """
    if choice == "replica":
        return "replica"
    try:
        has = await store.commands([command for _, command in _NEEDS])
    except StoreUnavailable as error:
        if error.reason != "index":
            raise
        has = frozenset()  # it will not say: then it is not to be relied on
    able = [kind for kind, command in _NEEDS if command in has and choice in ("auto", kind)]
    if able:
        return able[0]
    return "replica" if choice == "auto" else None
