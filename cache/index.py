"""Find the stored questions nearest to a new one: the interface of every semantic index, and one for any server.

An index finds the stored questions nearest to a given one within one partition, and never searches another. It only
ranks by similarity: the guards decide whether a neighbour's answer may be served, and the store knows whether it still
exists. So an index may list deleted entries and lack existing ones: both end as a miss.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cache.entry import CorruptEntry, IndexRecord, decode_record, encode_record
from cache.store.base import Append, Store, StoreUnavailable
from policies.value_type import from_fields

if TYPE_CHECKING:
    from cache.store.base import IndexOperation

Vector = NDArray[np.float32]
IndexKind = Literal["vector_sets", "replica"]
Choice = Literal["auto", "vector_sets", "replica"]
"""Values of `store.index` in the config: one kind, or `auto` for the best that the server supports."""


class Neighbour(NamedTuple):
    """A stored question: the key of its entry, its text, and the cosine of its vector and the query's."""

    key: str
    question: str
    similarity: float


@dataclass(frozen=True, slots=True)
class IndexState:
    """The index's state in `/readyz`. `kind` is None while there is none; `reason` is the fault, or ''.

    `entries` is the number of questions it can find; None where counting would require a scan of the store.
    """

    kind: IndexKind | None
    entries: int | None = None
    reason: str = ""


class SemanticIndex(Protocol):
    """A semantic index. Vectors have norm 1 and the index's dimension. Raises only StoreUnavailable."""

    @property
    def current(self) -> SemanticIndex:
        """The index that is in use: this one, or the one that it has chosen by what the store supports."""

    async def nearest(self, partition: str, vector: Vector, k: int, at_least: float = -1.0) -> list[Neighbour]:
        """Return up to `k` entries of the partition whose vectors are nearest, nearest first, by cosine similarity.

        Of those below `at_least`, it may return only the first: nothing else needs them.
        """

    def respaced(self, partition: str, question: str) -> Neighbour | None:
        """Return an entry of the partition whose question differs in spaces alone; None where that takes a search."""

    def operations(self, record: IndexRecord) -> tuple[IndexOperation, ...]:
        """Return the store operations that add a record, or replace that of its key; they go with the entry's write."""

    def kept(self, record: IndexRecord) -> None:
        """Record that the operations for this record were executed."""

    async def forget(self, partition: str, neighbour: Neighbour) -> None:
        """Remove a neighbour whose cache entry no longer exists."""

    def refused(self, why: str) -> None:
        """Note that the server refused one of `operations`, for this reason."""

    async def start(self) -> None:
        """Prepare for searches, as far as the store allows now."""

    async def aclose(self) -> None:
        """Stop what `start` began."""

    def state(self) -> IndexState:
        """Return the index's state."""


NewIndex = Callable[["Store", str, int, Callable[[], float]], SemanticIndex]
"""Returns an index over a store for vectors of a name and a dimension, with a clock of wall time, not started yet."""


def scope_in(partition: str) -> str:
    """Return the common prefix of the names of a scope's partitions and of its entries' keys: up to the hash tag."""
    return partition[: partition.find("}") + 1] or partition


def single_spaced(text: str) -> str:
    """Return a text with single spaces between its words, and none around it."""
    while "  " in text:
        text = text.replace("  ", " ")
    return text.strip(" ")


Counts = NDArray[np.unsignedinteger[Any]]

_neighbour = from_fields(Neighbour)
_CANDIDATES = 256
_MOST_CANDIDATES = 1_024
"""Limit where many sketches are equally near; those left out are no nearer than those taken."""
_SAMPLE = 4_096
_FEW_DIMENSIONS = 384
_FIRST_ROWS = 4
_LAST_DOUBLING = 4_096
_SCALE = 32_767.0
_SWEPT_AT_ONCE = 256
_SWEEP_S = 1.0


class Scratch:
    """Buffers that searches reuse, one search at a time: to allocate them takes longer than to search."""

    def __init__(self, dimension: int) -> None:
        self._chosen = np.empty((_MOST_CANDIDATES, dimension), np.int16)
        self._wide = np.empty((_MOST_CANDIDATES, dimension), np.float32)
        self._differing = np.empty(0, np.uint64)
        self._bits = np.empty(0, np.uint8)
        # Up to few dimensions differing bits are counted modulo 256: an overflow is rare, and its cosine rejects it.
        self._apart: Counts = np.empty(0, np.uint8 if dimension <= _FEW_DIMENSIONS else np.uint16)

    def products(self, vectors: NDArray[np.int16], rows: NDArray[np.intp] | slice, vector: Vector) -> Vector:
        """Return the products of some rows of `vectors` with `vector`."""
        if isinstance(rows, slice):
            chosen = vectors[rows]
        else:
            chosen = self._chosen[: len(rows)]
            vectors.take(rows, axis=0, out=chosen, mode="clip")
        wide = self._wide[: len(chosen)]
        wide[...] = chosen
        return np.asarray(wide @ vector)

    def apart(self, sketches: NDArray[np.uint64], sketch: NDArray[np.uint64], count: int) -> Counts:
        """Return in how many bits each of the first `count` sketches differs from `sketch`, until the next search."""
        if count > len(self._bits):
            size = sketches.shape[1]
            self._differing, self._bits = np.empty(size, np.uint64), np.empty(size, np.uint8)
            self._apart = np.empty(size, self._apart.dtype)
        differing, bits, apart = self._differing[:count], self._bits[:count], self._apart[:count]
        into: NDArray[Any] = apart
        for line, word in zip(sketches, sketch, strict=True):
            np.bitwise_xor(line[:count], word, out=differing)
            np.bitwise_count(differing, out=into)
            if into is bits:
                np.add(apart, bits, out=apart)
            into = bits
        return apart


class Rows:
    """At most `most` rows, unordered. Vectors are stored as int16: half the memory, and a cosine accurate to 1e-4.

    They are searched in two steps: candidates by sketches, then the vectors themselves. A sketch is the signs of a
    vector, one bit each. Two vectors at an angle a differ in about the share a / pi of their signs (Charikar,
    "Similarity estimation techniques from rounding algorithms", 2002), and counting differing bits takes a thirtieth of
    the memory traffic of a product. Of 100,000 questions embedded in 256 dimensions, the 256 rows with the nearest
    sketches held 99% of the true five nearest, and 99.9% of those with a cosine of 0.8 or more. Added rows are found at
    once and removed ones are gone: there is no graph to build or to repair.
    """

    __slots__ = (
        "_expires", "_key_of", "_keys", "_most", "_questions", "_row_of", "_scratch", "_sketches", "_soonest",
        "_sweep_at", "_vectors",
    )  # fmt: skip

    def __init__(self, dimension: int, most: int, scratch: Scratch) -> None:
        size = min(_FIRST_ROWS, most)
        self._most = most
        self._scratch = scratch
        self._vectors = np.zeros((size, dimension), np.int16)
        # One line per 64 bits, so that one pass reads one line sequentially.
        self._sketches = np.zeros((-(-dimension // 64), size), np.uint64)
        self._expires = np.zeros(size, np.float64)
        self._keys: list[str] = []
        self._questions: list[str] = []
        self._row_of: dict[str, int] = {}
        self._key_of: dict[str, str] = {}  # by question in single spaces: of several, the key of the last
        self._sweep_at = self._soonest = np.inf

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._row_of

    def has(self, key: str, expires_at: float) -> bool:
        """Return whether a row with this key and expiry is stored."""
        row = self._row_of.get(key)
        return row is not None and bool(self._expires[row] == expires_at)

    def put(self, key: str, question: str, expires_at: float, vector: Vector, *, grow: bool = True) -> None:
        """Store a row, replacing that of the same key; if full or `grow` is False, replace the first to expire."""
        row = self._row_of.get(key)
        if row is None:
            row = self._append() if len(self._keys) < self._most and (grow or not self._keys) else self._take_over()
            self._row_of[key] = row
        else:
            self._forget_words(key, row)
        self._key_of[single_spaced(question)] = key
        self._keys[row], self._questions[row] = key, question
        self._vectors[row] = np.rint(np.minimum(np.maximum(vector, -1.0), 1.0) * _SCALE)
        self._sketches[:, row] = _sketch(vector, len(self._sketches))
        self._expires[row] = expires_at
        self._sweep_at = min(self._sweep_at, expires_at)
        self._soonest = min(self._soonest, expires_at)

    def _append(self) -> int:
        row = len(self._keys)
        self._keys.append("")
        self._questions.append("")
        if row == len(self._vectors):
            # Zeroed memory costs nothing until it is written to; a long copy would hold the event loop.
            size = min(2 * row, self._most) if row < _LAST_DOUBLING else self._most
            self._vectors = _longer(self._vectors, size)
            self._expires = _longer(self._expires, size)
            sketches, self._sketches = self._sketches, np.zeros((len(self._sketches), size), np.uint64)
            self._sketches[:, :row] = sketches
        return row

    def _take_over(self) -> int:
        row = int(self._expires[: len(self._keys)].argmin())
        key = self._keys[row]
        self._forget_words(key, row)
        del self._row_of[key]
        return row

    def _forget_words(self, key: str, row: int) -> None:
        words = single_spaced(self._questions[row])
        if self._key_of.get(words) == key:
            del self._key_of[words]

    def remove_first_to_expire(self) -> int:
        """Remove the row that expires first; return the number of rows removed."""
        return self.remove(self._keys[int(self._expires[: len(self._keys)].argmin())]) if self._keys else 0

    def remove(self, key: str) -> int:
        """Remove a row if it exists, moving the last one to its place; return the number of rows removed."""
        row = self._row_of.pop(key, None)
        if row is None:
            return 0
        self._forget_words(key, row)
        last = len(self._keys) - 1
        last_key, last_question = self._keys.pop(), self._questions.pop()
        if row != last:
            self._keys[row], self._questions[row], self._row_of[last_key] = last_key, last_question, row
            self._vectors[row] = self._vectors[last]
            self._sketches[:, row] = self._sketches[:, last]
            self._expires[row] = self._expires[last]
        return 1

    def sweep(self, now: float) -> None:
        """Remove expired rows, as many as a millisecond allows."""
        expires = self._expires[: len(self._keys)]
        gone = np.flatnonzero(expires <= now)
        for key in [self._keys[row] for row in gone[:_SWEPT_AT_ONCE]]:
            self.remove(key)
        self._soonest = float(self._expires[: len(self._keys)].min(initial=np.inf))
        self._sweep_at = now if len(gone) > _SWEPT_AT_ONCE else max(self._soonest, now + _SWEEP_S)

    def nearest(self, vector: Vector, k: int, at_least: float, now: float) -> list[Neighbour]:
        """Return up to `k` entries that live at `now`, nearest first; see `SemanticIndex.nearest`."""
        if self._sweep_at <= now:
            self.sweep(now)
        count = len(self._keys)
        if not count:
            return []
        rows = slice(count) if count <= _CANDIDATES else self._candidates(vector, count)
        scores = self._scratch.products(self._vectors, rows, vector.astype(np.float32, copy=False))
        scores *= np.float32(1 / _SCALE)
        if self._soonest <= now:
            scores[self._expires[rows] <= now] = -np.inf
        first = int(scores.argmax())
        # Usually none reaches `at_least`, and then the nearest one suffices.
        best = [first] if scores[first] < at_least else (-scores).argsort()[:k].tolist()
        found: list[Neighbour] = []
        for place in best:
            similarity = float(scores[place])
            if similarity == -np.inf or (found and similarity < at_least):
                break
            row = place if isinstance(rows, slice) else rows[place]
            found.append(_neighbour((self._keys[row], self._questions[row], similarity)))
        return found

    def _candidates(self, vector: Vector, count: int) -> NDArray[np.intp]:
        """Return the rows with the nearest sketches, which are compared exactly."""
        apart = self._scratch.apart(self._sketches, _sketch(vector, len(self._sketches)), count)
        sample = apart[:: max(1, count // _SAMPLE)].copy()
        sample.sort(kind="stable")  # of so small numbers by their digits, in a fifth of the time of a partition
        rows: NDArray[np.intp] = (apart <= sample[_CANDIDATES * len(sample) // count]).nonzero()[0]
        if len(rows) > _MOST_CANDIDATES:
            rows = rows[np.argpartition(apart[rows], _MOST_CANDIDATES)[:_MOST_CANDIDATES]]
        return rows


def _sketch(vector: Vector, words: int) -> NDArray[np.uint64]:
    packed = np.zeros(8 * words, np.uint8)
    signs = np.packbits(vector > 0)
    packed[: len(signs)] = signs
    return packed.view(np.uint64)


def _longer(array: NDArray, size: int) -> NDArray:  # type: ignore[type-arg]  # of whichever numbers it holds
    grown = np.zeros((size, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown


_PAGE = 50
"""Records added at once: decoding and adding them holds the event loop for about a millisecond."""
_REMEMBERED = 1_024
"""Most own entries that a worker remembers, so as not to decode them again."""
_BLOCK_MS = 5_000
_RETRY_S = (0.1, 5.0)
_CLEAN_S = 60.0


class _Share:
    """One scope's partitions, least recently used first, and the number of rows in all of them."""

    __slots__ = ("count", "partitions")

    def __init__(self) -> None:
        self.count = 0
        self.partitions: OrderedDict[str, Rows] = OrderedDict()


class ReplicaIndex:
    """The index in this worker, with at most `total` rows, and `per_partition` in one partition.

    It works with any server, and a search needs no round trip. The worker that stores an answer appends its vector to a
    stream in the store, in the same round trip. Every worker reads that stream, from its beginning at start, and
    resumes after an outage. What was trimmed from the stream by then is missing here; it was older than everything the
    stream still holds.

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
        self.current = self
        self.total = total
        self.following = False
        self._lost = False
        self._dimension = dimension
        self._scratch = Scratch(dimension)
        self._store = store
        self._stream = stream
        self._per_partition = min(per_partition, total)
        self._clock = clock
        self._shares: OrderedDict[str, _Share] = OrderedDict()
        self._count = 0
        self._appended: dict[str, bytes] = {}  # by key: this worker's entries of the stream, being written
        self._own: dict[bytes, None] = {}  # and those written, which the stream will bring back
        self._swept_at = clock()
        self._follower: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return self._count

    async def nearest(self, partition: str, vector: Vector, k: int, at_least: float = -1.0) -> list[Neighbour]:
        """Search this process's copy of the index; see `SemanticIndex.nearest`."""
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
        before = len(rows._keys)
        neighbours = rows.nearest(vector, k, at_least, self._clock())
        if (by := len(rows._keys) - before) != 0:
            self._grown(share, by)
        return neighbours

    def respaced(self, partition: str, question: str) -> Neighbour | None:
        """Return an entry whose question differs in spaces alone; see `SemanticIndex.respaced`."""
        share = self._shares.get(scope := scope_in(partition))
        rows = None if share is None else share.partitions.get(partition)
        if share is None or rows is None or (key := rows._key_of.get(single_spaced(question))) is None:
            return None
        row = rows._row_of[key]
        if rows._expires[row] <= self._clock():
            return None
        self._shares.move_to_end(scope)
        share.partitions.move_to_end(partition)
        return _neighbour((key, rows._questions[row], 1.0))

    def operations(self, record: IndexRecord) -> tuple[Append, ...]:
        """Return the entry to append to the index's stream in the store, from which every worker reads the record.

        The vector goes as float16: half the memory, and a cosine accurate to 1e-4.
        """
        half = np.frombuffer(record.vector, "<f4").astype("<f2").tobytes()
        value = encode_record(IndexRecord(*record[:-1], half))
        self._appended[record.key] = value
        if len(self._appended) > _REMEMBERED:
            del self._appended[next(iter(self._appended))]
        return (Append(self._stream, value, self.total),)

    def kept(self, record: IndexRecord) -> None:
        """Add a record written by this worker at once, before it arrives on the stream."""
        self.add(record)
        value = self._appended.pop(record.key, None)
        if value is not None:
            self._own[value] = None
            if len(self._own) > _REMEMBERED:
                del self._own[next(iter(self._own))]

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
            rows = share.partitions[record.partition] = Rows(self._dimension, self._per_partition, self._scratch)
        self._shares.move_to_end(scope)
        share.partitions.move_to_end(record.partition)
        grow = record.key in rows or self._count < self.total or self._room_beside(share, rows)
        before = len(rows._keys)
        rows.put(record.key, record.question, record.expires_at, vector, grow=grow)
        self._grown(share, len(rows._keys) - before)
        if now - self._swept_at > _CLEAN_S:
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
        return vector if vector is not None and np.logical_and.reduce(np.isfinite(vector)) else None

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
                before = len(rows._keys)
                rows.sweep(now)
                self._grown(share, len(rows._keys) - before)
                if not len(rows):
                    del share.partitions[partition]
            if not share.partitions:
                del self._shares[scope]

    def refused(self, why: str) -> None:
        """Do nothing: what it has in the store is a stream, which any server takes."""

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
                if value in self._own:  # this worker has added it already
                    del self._own[value]
                    continue
                with contextlib.suppress(CorruptEntry):
                    if not self._has(record := decode_record(value)):
                        self.add(record)


def new_replica(store: Store, name: str, dimension: int, clock: Callable[[], float]) -> ReplicaIndex:
    """Return the index of a worker that follows the stream of this name."""
    return ReplicaIndex(dimension, store=store, stream=name, clock=clock)


async def _restarted(store: Store, stream: str, last: str) -> bool:
    """Return whether the stream was recreated: its newest id is older than the last one read."""
    newest = await store.latest(stream, 1)
    return bool(newest) and _order(newest[0][0]) < _order(last)


def _order(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("-"))
