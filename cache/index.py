"""The semantic index: which kept questions are nearest to this one, within one partition.

`ReplicaIndex` holds the vectors in each worker, so that a search is a matrix product and no round trip, and works with
any server. Who keeps an answer appends its vector to a stream in the store; every worker follows that stream, from
its beginning at start, and goes on where it was after an outage. Only similarity is decided here: whether a
neighbour's answer may be served is the guards' question, and whether it still exists the store's.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cache.codec import CorruptEntry, IndexRecord, decode_record
from cache.store import Store, StoreUnavailable

Vector = NDArray[np.float32]

_PAGE = 100
"""Records taken at once: decoding them holds the event loop for less than a millisecond."""
_BLOCK_MS = 5_000
_FIRST_ROWS = 4
_RETRY_S = (0.1, 5.0)
_SWEEP_S = 60.0


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A kept question: the key of its entry, its text, and the cosine of its vector and the one looked for."""

    key: str
    question: str
    similarity: float


class SemanticIndex(Protocol):
    """Vectors are unit length, of the index's dimension."""

    def nearest(self, partition: str, vector: Vector, k: int, at_least: float = -1.0) -> list[Neighbour]:
        """The `k` nearest unexpired ones, nearest first; the nearest alone where none is similar `at_least` so."""

    def add(self, record: IndexRecord) -> None:
        """Makes a record findable; one with the same key is replaced."""

    def forget(self, partition: str, key: str) -> None:
        """Drops a record whose entry is gone."""


class ReplicaIndex:
    """See above. Bounded per partition (its oldest row goes) and in all (the partition longest unused goes).

    `clock` is the wall clock, in seconds. A record of another dimension, with a NaN, or that is garbage is left out.
    """

    def __init__(
        self,
        dimension: int,
        *,
        per_partition: int = 5_000,
        total: int = 20_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.total = total
        self.following = False
        self._dimension = dimension
        self._per_partition = min(per_partition, total)
        self._clock = clock
        self._shelves: OrderedDict[str, _Shelf] = OrderedDict()
        self._rows = 0
        self._swept_at = clock()

    def __len__(self) -> int:
        return self._rows

    def nearest(self, partition: str, vector: Vector, k: int, at_least: float = -1.0) -> list[Neighbour]:
        shelf = self._shelves.get(partition)
        if shelf is None:
            return []
        self._shelves.move_to_end(partition)
        return shelf.nearest(vector, k, at_least, self._clock())

    def add(self, record: IndexRecord) -> None:
        now = self._clock()
        if record.expires_at <= now:
            return
        vector = np.frombuffer(record.vector, "<f4") if len(record.vector) == 4 * self._dimension else None
        if vector is None or not np.isfinite(vector).all():
            return
        shelf = self._shelves.get(record.partition)
        if shelf is None:
            shelf = self._shelves[record.partition] = _Shelf(self._dimension, self._per_partition)
        self._shelves.move_to_end(record.partition)
        self._rows += shelf.put(record.key, record.question, record.expires_at, vector)
        while self._rows > self.total:
            self._rows -= len(self._shelves.popitem(last=False)[1])
        if now - self._swept_at > _SWEEP_S:
            self._sweep(now)

    def forget(self, partition: str, key: str) -> None:
        shelf = self._shelves.get(partition)
        if shelf is not None:
            shelf.forget(key)

    def _sweep(self, now: float) -> None:
        self._swept_at = now
        for partition in [name for name, shelf in self._shelves.items() if shelf.expired(now)]:
            self._rows -= len(self._shelves.pop(partition))

    async def follow(self, store: Store, stream: str) -> None:
        """Feeds the index from `stream`, for ever: cancel it to stop."""
        last, pause = "0", _RETRY_S[0]
        while True:
            try:
                if not self.following and await _restarted(store, stream, last):
                    last = "0"
                page = await store.after(stream, last, _PAGE, _BLOCK_MS)
            except StoreUnavailable:
                self.following = False
                await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311
                pause = min(2 * pause, _RETRY_S[1])
                continue
            self.following, pause = True, _RETRY_S[0]
            for name, value in page:
                last = name
                self._take(value)

    def _take(self, value: bytes) -> None:
        with contextlib.suppress(CorruptEntry):
            self.add(decode_record(value))


async def _restarted(store: Store, stream: str, last: str) -> bool:
    """Whether the stream is a new one, whose ids begin before where the old one had come to."""
    newest = await store.latest(stream, 1)
    return bool(newest) and _order(newest[0][0]) < _order(last)


def _order(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("-"))


class _Shelf:
    """The rows of one partition: arrays that double until they are full, then a ring that overwrites its oldest row."""

    __slots__ = ("_expires", "_keys", "_most", "_next", "_questions", "_rows", "_vectors")

    def __init__(self, dimension: int, most: int) -> None:
        size = min(_FIRST_ROWS, most)
        self._most = most
        self._vectors: Vector = np.zeros((size, dimension), np.float32)
        self._expires: NDArray[np.float64] = np.zeros(size, np.float64)
        self._keys: list[str] = []
        self._questions: list[str] = []
        self._rows: dict[str, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._keys)

    def put(self, key: str, question: str, expires_at: float, vector: Vector) -> int:
        """Keeps one row; 1 if it takes room that was not taken before, else 0."""
        row = self._rows.get(key)
        grown = row is None and len(self._keys) < self._most
        if row is None:
            row = self._free_row(key)
        self._keys[row], self._questions[row] = key, question
        self._vectors[row] = vector
        self._expires[row] = expires_at
        return int(grown)

    def _free_row(self, key: str) -> int:
        if len(self._keys) < self._most:
            row = len(self._keys)
            self._keys.append(key)
            self._questions.append("")
            if row == len(self._vectors):
                self._grow()
        else:
            row = self._next
            self._next = (row + 1) % self._most
            self._rows.pop(self._keys[row], None)
        self._rows[key] = row
        return row

    def _grow(self) -> None:
        size = min(2 * len(self._vectors), self._most)
        vectors = np.zeros((size, self._vectors.shape[1]), np.float32)
        vectors[: len(self._vectors)] = self._vectors
        expires = np.zeros(size, np.float64)
        expires[: len(self._expires)] = self._expires
        self._vectors, self._expires = vectors, expires

    def nearest(self, vector: Vector, k: int, at_least: float, now: float) -> list[Neighbour]:
        """See SemanticIndex."""
        count = len(self._keys)
        scores = self._vectors[:count] @ vector
        scores[self._expires[:count] <= now] = -np.inf
        first = int(scores.argmax())
        if scores[first] < at_least:
            # The common case by far, and five times cheaper than to find the rest.
            best = np.array([first])
        elif count > k:
            best = np.argpartition(scores, count - k)[count - k :]
            best = best[np.argsort(-scores[best])]
        else:
            best = np.argsort(-scores)
        return [
            Neighbour(self._keys[row], self._questions[row], float(scores[row]))
            for row in best
            if scores[row] > -np.inf
        ]

    def forget(self, key: str) -> None:
        """Makes a row unfindable; its room is used again in its turn."""
        row = self._rows.get(key)
        if row is not None:
            self._expires[row] = 0.0

    def expired(self, now: float) -> bool:
        """Whether no row can be found any more."""
        return bool((self._expires[: len(self._keys)] <= now).all())
