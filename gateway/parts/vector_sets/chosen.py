"""Choose the index that the server supports: probed at start, every few seconds, and when the server refuses one.

The server behind an address may change (an upgrade, a failover), and COMMAND INFO for one name is cheap. With `auto`
it is vector sets where the server has them, else the replica index, which works with any server. An explicitly chosen
kind is used or none is. A fault of the index affects only the semantic cache: the exact one continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cache.index import Choice, IndexKind, IndexState, Neighbour, ReplicaIndex, SemanticIndex, Vector
from cache.store.base import IndexOperation, Store, StoreUnavailable
from gateway.parts.vector_sets.in_store import VectorSetIndex

if TYPE_CHECKING:
    from cache.entry import IndexRecord

_NEEDED: Final = "VADD"
"""The command of a server that has vector sets."""
_LOOK_EVERY_S = 5.0
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
