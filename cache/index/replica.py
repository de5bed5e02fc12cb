"""Keep the index in each worker: it works with any server, and a search needs no round trip.

The worker that stores an answer appends its vector to a stream in the store, in the same round trip. Every worker reads
that stream, from its beginning at start, and resumes after an outage. What was trimmed from the stream by then is
missing here; it was older than everything the stream still holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cache.entry import CorruptEntry, IndexRecord, decode_record, encode_record
from cache.index.base import IndexState, Neighbour, Vector, scope_in
from cache.index.rows import Rows
from cache.store.base import Append, Store, StoreUnavailable

_PAGE = 50
"""Records added at once: decoding and adding them holds the event loop for about a millisecond."""
_BLOCK_MS = 5_000
_RETRY_S = (0.1, 5.0)
_SWEEP_S = 60.0


class _Share:
    """One scope's partitions, least recently used first, and the number of rows in all of them."""

    __slots__ = ("count", "partitions")

    def __init__(self) -> None:
        self.count = 0
        self.partitions: OrderedDict[str, Rows] = OrderedDict()


class ReplicaIndex:
    """The index in this worker, with at most `total` rows, and `per_partition` in one partition.

    When it is full, a scope with more than an equal share replaces rows of its own, in its least recently used
    partition; for one with less, the least recently used scope gives up a row. So no tenant crowds out the others,
    neither with many requests nor with many system prompts, each of which is a partition. Rows that expire first are
    removed first. `clock` is the wall clock, in seconds. A record of another dimension, with a NaN, or that is corrupt
    is ignored.
    """

    def __init__(
        self,
        dimension: int,
        *,
        store: Store | None = None,
        stream: str = "",
        per_partition: int = 100_000,
        total: int = 100_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create an index; without a `store` it holds only what is added to it."""
        self.total = total
        self.following = False
        self._lost = False
        self._dimension = dimension
        self._store = store
        self._stream = stream
        self._per_partition = min(per_partition, total)
        self._clock = clock
        self._shares: OrderedDict[str, _Share] = OrderedDict()
        self._count = 0
        self._swept_at = clock()
        self._follower: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return self._count

    async def nearest(self, partition: str, vector: Vector, k: int, at_least: float = -1.0) -> list[Neighbour]:
        """Return the nearest neighbours; see SemanticIndex."""
        return self.search(partition, vector, k, at_least)

    def search(self, partition: str, vector: Vector, k: int, at_least: float = -1.0) -> list[Neighbour]:
        """Return the nearest neighbours, like `nearest`, for callers without an event loop."""
        scope = scope_in(partition)
        share = self._shares.get(scope)
        rows = None if share is None else share.partitions.get(partition)
        if share is None or rows is None:
            return []
        self._shares.move_to_end(scope)
        share.partitions.move_to_end(partition)
        before = len(rows)
        neighbours = rows.nearest(vector, k, at_least, self._clock())
        self._grown(share, len(rows) - before)
        return neighbours

    def operations(self, record: IndexRecord) -> tuple[Append, ...]:
        """Return a stream entry, its vector as float16: half the memory, and a cosine accurate to 1e-4."""
        half = np.frombuffer(record.vector, "<f4").astype("<f2").tobytes()
        return (Append(self._stream, encode_record(replace(record, vector=half)), self.total),)

    def kept(self, record: IndexRecord) -> None:
        """Add a record written by this worker at once, before it arrives on the stream."""
        self.add(record)

    def add(self, record: IndexRecord) -> None:
        """Add a record; one with the same key is replaced. Its vector is float32 or float16."""
        now = self._clock()
        vector = self._vector(record.vector)
        if record.expires_at <= now or vector is None:
            return
        scope = scope_in(record.partition)
        share = self._shares.setdefault(scope, _Share())
        rows = share.partitions.get(record.partition)
        if rows is None:
            rows = share.partitions[record.partition] = Rows(self._dimension, self._per_partition)
        self._shares.move_to_end(scope)
        share.partitions.move_to_end(record.partition)
        grow = record.key in rows or self._count < self.total or self._room_beside(share, rows)
        before = len(rows)
        rows.put(record.key, record.question, record.expires_at, vector, grow=grow)
        self._grown(share, len(rows) - before)
        if now - self._swept_at > _SWEEP_S:
            self._sweep(now)

    def _has(self, record: IndexRecord) -> bool:
        """Return whether the record is here already: this worker has written it itself."""
        share = self._shares.get(scope_in(record.partition))
        rows = None if share is None else share.partitions.get(record.partition)
        return rows is not None and rows.has(record.key, record.expires_at)

    def _grown(self, share: _Share, by: int) -> None:
        share.count += by
        self._count += by

    def _vector(self, data: bytes) -> Vector | None:
        kind = {4 * self._dimension: "<f4", 2 * self._dimension: "<f2"}.get(len(data))
        vector = None if kind is None else np.frombuffer(data, kind).astype(np.float32, copy=False)
        return vector if vector is not None and np.isfinite(vector).all() else None

    def _room_beside(self, share: _Share, rows: Rows) -> bool:
        """Return whether another partition gave up a row for this one; if not, it must replace one of its own."""
        scope, giver = next(iter(self._shares.items()))
        if share.count * len(self._shares) > self.total or giver is share:
            giver = share
        name, longest_unused = next(iter(giver.partitions.items()))
        if longest_unused is rows:
            return False
        self._grown(giver, -longest_unused.remove_first_to_expire())
        if not len(longest_unused):
            del giver.partitions[name]
        if not giver.partitions:
            del self._shares[scope]
        return True

    async def forget(self, partition: str, neighbour: Neighbour) -> None:
        """Remove a neighbour; see SemanticIndex. Other workers notice by themselves."""
        share = self._shares.get(scope_in(partition))
        rows = None if share is None else share.partitions.get(partition)
        if share is not None and rows is not None:
            self._grown(share, -rows.remove(neighbour.key))

    def _sweep(self, now: float) -> None:
        self._swept_at = now
        for scope, share in list(self._shares.items()):
            for partition, rows in list(share.partitions.items()):
                before = len(rows)
                rows.sweep(now)
                self._grown(share, len(rows) - before)
                if not len(rows):
                    del share.partitions[partition]
            if not share.partitions:
                del self._shares[scope]

    async def start(self) -> None:
        """Start reading the stream."""
        if self._store is not None and self._follower is None:
            self._follower = asyncio.create_task(self.follow(self._store, self._stream), name="cache-index")

    async def aclose(self) -> None:
        """Stop reading the stream."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
            self._follower, self.following = None, False

    def state(self) -> IndexState:
        """Return the index's state; see SemanticIndex."""
        return IndexState("replica", len(self), "the stream that feeds it cannot be read" if self._lost else "")

    async def follow(self, store: Store, stream: str) -> None:
        """Add the records of `stream` until cancelled."""
        last, pause = "0", _RETRY_S[0]
        while True:
            try:
                if not self.following and last != "0" and await _restarted(store, stream, last):
                    last = "0"
                # The first read does not block, so that an empty stream counts as followed at once.
                page = await store.after(stream, last, _PAGE, _BLOCK_MS if self.following else 0)
            except StoreUnavailable:
                self.following, self._lost = False, True
                await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311
                pause = min(2 * pause, _RETRY_S[1])
                continue
            self.following, self._lost, pause = True, False, _RETRY_S[0]
            for name, value in page:
                last = name
                with contextlib.suppress(CorruptEntry):
                    if not self._has(record := decode_record(value)):
                        self.add(record)


async def _restarted(store: Store, stream: str, last: str) -> bool:
    """Return whether the stream was recreated: its newest id is older than the last one read."""
    newest = await store.latest(stream, 1)
    return bool(newest) and _order(newest[0][0]) < _order(last)


def _order(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("-"))
