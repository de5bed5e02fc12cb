"""Measures the semantic indexes: what a lookup adds beyond the embedding, what a write costs, when others find it.

    python -m tests.bench.index [--entries 100000] [--partitions 1000] [--quick] [--json]

Each kind on its server (the replica's on the embedded Valkey, vector sets on a Redis 8), with the entries spread over
many partitions and all in one. Vectors are made up: topics, questions about each, and rephrasings of those to look up.
A lookup is a search and the GET of the nearest entry; its time is the client's, and the CPU of both sides is told
beside it, for that says what a machine with other work to do cannot hide. Recall is against a search row by row.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from cache.codec import IndexRecord
from cache.index import Choice, ChosenIndex
from cache.redis_store import RedisStore
from cache.store import Operation, StoreUnavailable, Write
from tests.bench.rig import cpu_s
from tests.support.redis8 import Unavailable, redis8
from tests.support.store import LocalStore

DIMENSION = 256
_BATCH = 10
_TTL_S = 3600.0
_BODY = b"x" * 1024
_NEIGHBOURS = 5
_PATIENCE_S = 600.0

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Lookups:
    """What lookups took: times in ms as (p50, p99), CPU in ms for each. `failed` ones were not answered in time."""

    search: tuple[float, float]
    lookup: tuple[float, float]
    client_cpu: float
    server_cpu: float
    recall_at_5: float
    failed: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of one kind with one layout. Times in ms, as (p50, p99)."""

    kind: str
    entries: int
    partitions: int
    lookups: Lookups
    write: tuple[float, float]
    replication: tuple[float, float]
    load_s: float
    warm_s: float


class Questions:
    """Entries and lookups that are like each other. `vectors` has a row for each entry, spread over partitions."""

    def __init__(self, entries: int, partitions: int, seed: int = 7) -> None:
        rng = np.random.default_rng(seed)
        topics = rng.standard_normal((max(1, entries // 20), DIMENSION))
        self._rng = rng
        self.vectors = _unit(topics[rng.integers(0, len(topics), entries)] + rng.standard_normal((entries, DIMENSION)))
        self.names = [f"tierline:bench:{{{secrets.token_hex(8)}}}:s:{number}" for number in range(partitions)]

    def record(self, row: int) -> IndexRecord:
        """The entry in a row."""
        partition = self.names[row % len(self.names)]
        key = f"{partition[: partition.index('}') + 1]}:x:{row}"
        return self.of(partition, key, self.vectors[row])

    def of(self, partition: str, key: str, vector: Vectors) -> IndexRecord:
        """An entry with any vector."""
        text = f"How would one go about question {key.rpartition(':')[2]}, and what does it cost?"
        return IndexRecord(partition, key, text, time.time() + _TTL_S, vector.astype("<f4").tobytes())

    def rephrased(self, row: int) -> Vectors:
        """The vector of another wording: at a cosine of about 0.85 from the entry's."""
        noise = self._rng.standard_normal(DIMENSION) * 0.62 / DIMENSION**0.5
        return _unit((self.vectors[row] + noise)[None])[0]

    def nearest(self, row: int, vector: Vectors) -> set[str]:
        """The keys of the true nearest in the row's partition."""
        rows = np.arange(row % len(self.names), len(self.vectors), len(self.names))
        best = rows[np.argsort(-(self.vectors[rows] @ vector))[:_NEIGHBOURS]]
        return {self.record(int(each)).key for each in best}


def _unit(vectors: NDArray[np.float64]) -> Vectors:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker: its store and its index."""

    store: RedisStore
    index: ChosenIndex

    async def keep(self, *records: IndexRecord) -> None:
        """Writes entries and what makes them findable; tries again what a loaded server did not take in time."""
        operations: list[Operation] = []
        for record in records:
            operations += [Write(record.key, _BODY, _TTL_S), *self.index.operations(record)]
        for _ in range(100):
            try:
                await self.store.apply(operations)
            except StoreUnavailable:
                await asyncio.sleep(0.2)
                continue
            for record in records:
                self.index.kept(record)
            return
        raise SystemExit("the store took no more writes")


@contextlib.asynccontextmanager
async def _worker(url: str, name: str, choice: Choice, entries: int) -> AsyncIterator[Worker]:
    store = RedisStore.from_url(url)
    index = ChosenIndex(store, name, DIMENSION, choice=choice, entries=entries + 1000)
    await index.start()
    while index.state().kind != choice:
        await asyncio.sleep(0.05)
    yield Worker(store, index)
    await index.aclose()
    await store.aclose()


async def measure(server: LocalStore, choice: Choice, entries: int, partitions: int, lookups: int) -> Figures:
    """Fills an index and measures it."""
    questions = Questions(entries, partitions)
    name = f"tierline:bench:{secrets.token_hex(4)}"
    async with _worker(server.url, name, choice, entries) as writer:
        began = time.perf_counter()
        for first in range(0, entries, _BATCH):
            await writer.keep(*(questions.record(row) for row in range(first, min(entries, first + _BATCH))))
        load_s = time.perf_counter() - began
        began = time.perf_counter()
        async with _worker(server.url, name, choice, entries) as reader:
            while choice == "replica" and len(reader.index) < entries:
                if time.perf_counter() - began > _PATIENCE_S:
                    raise SystemExit("the second worker never got warm")
                await asyncio.sleep(0.01)
            warm_s = time.perf_counter() - began
            looked = await _lookups(reader, questions, server.pid, lookups)
            write, replication = await _writes(writer, reader, questions, max(20, lookups // 10))
    return Figures(choice, entries, partitions, looked, write, replication, load_s, warm_s)


async def _lookups(worker: Worker, questions: Questions, server: int, count: int) -> Lookups:
    rows = np.random.default_rng(3).integers(0, len(questions.vectors), count).tolist()
    asked = [(row, questions.rephrased(row)) for row in rows]
    search, lookup, failed, right = [], [], 0, 0.0
    before = cpu_s(os.getpid()), cpu_s(server)
    answers = []
    for row, vector in asked:
        began = time.perf_counter()
        near, middle = [], began
        try:
            near = await worker.index.nearest(questions.names[row % len(questions.names)], vector, _NEIGHBOURS)
            middle = time.perf_counter()
            if near:
                await worker.store.get(near[0].key)
        except StoreUnavailable:
            failed += 1
            middle = max(middle, time.perf_counter())
            await asyncio.sleep(0.05)
        search.append(middle - began)
        lookup.append(time.perf_counter() - began)
        answers.append({each.key for each in near})
    after = cpu_s(os.getpid()), cpu_s(server)
    judged = list(zip(asked, answers, strict=True))[:300]
    for (row, vector), keys in judged:
        true = questions.nearest(row, vector)
        right += len(true & keys) / len(true) / len(judged)
    both, there = ((now - then) / count * 1000 for now, then in zip(after, before, strict=True))
    # What this process spent is told together with its children, of which the server is one.
    return Lookups(_spread(search), _spread(lookup), both - there, there, right, failed)


async def _writes(
    writer: Worker, reader: Worker, questions: Questions, count: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """How long a write takes, and how long after it another worker finds the entry."""
    rng = np.random.default_rng(11)
    took, came = [], []
    for number in range(count):
        vector = _unit(rng.standard_normal((1, DIMENSION)))[0]
        partition = questions.names[number % len(questions.names)]
        key = f"{partition[: partition.index('}') + 1]}:x:new-{number}"
        began = time.perf_counter()
        await writer.keep(questions.of(partition, key, vector))
        kept = time.perf_counter()
        took.append(kept - began)
        while time.perf_counter() - kept < 5:
            with contextlib.suppress(StoreUnavailable):
                if any(near.key == key for near in await reader.index.nearest(partition, vector, 1)):
                    break
            await asyncio.sleep(0)
        came.append(time.perf_counter() - kept)
    return _spread(took), _spread(came)


def _spread(seconds: list[float]) -> tuple[float, float]:
    p50, p99 = np.quantile(np.array(seconds) * 1000, [0.5, 0.99])
    return float(p50), float(p99)


def _servers() -> Iterator[tuple[Choice, LocalStore]]:
    yield "replica", LocalStore()
    try:
        yield "vector_sets", LocalStore(command=redis8())
    except Unavailable as why:
        print(f"vector_sets: not measured: {why}", file=sys.stderr)


def _table(rows: list[Figures]) -> Table:
    table = Table(title="Semantic indexes: ms as p50 / p99, CPU in ms per lookup")
    for name in ("kind", "entries", "partitions", "search", "lookup", "CPU here", "CPU there", "write", "to another",
                 "recall@5", "failed", "load s", "warm s"):  # fmt: skip
        table.add_column(name, justify="right")
    for row in rows:
        did = row.lookups
        times = [f"{low:.2f} / {high:.2f}" for low, high in (did.search, did.lookup, row.write, row.replication)]
        cpu = [f"{did.client_cpu:.2f}", f"{did.server_cpu:.2f}"]
        rest = [f"{did.recall_at_5:.3f}", str(did.failed), f"{row.load_s:.0f}", f"{row.warm_s:.1f}"]
        table.add_row(row.kind, f"{row.entries:,}", f"{row.partitions:,}", *times[:2], *cpu, *times[2:], *rest)
    return table


def main(arguments: list[str] | None = None) -> None:
    """The command; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.index", description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, default=1_000, help="of the layout that is spread")
    parser.add_argument("--lookups", type=int, default=2_000)
    parser.add_argument("--kind", choices=["replica", "vector_sets"], help="one alone")
    parser.add_argument("--layout", choices=["spread", "one"], help="one alone")
    parser.add_argument("--quick", action="store_true", help="2,000 entries: does it run, not what is it worth")
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    options = parser.parse_args(arguments)
    entries, lookups = (2_000, 200) if options.quick else (options.entries, options.lookups)
    layouts = {"spread": min(options.partitions, entries // 20), "one": 1}
    rows: list[Figures] = []
    for choice, server in _servers():
        for layout, partitions in layouts.items():
            if options.kind in (None, choice) and options.layout in (None, layout):
                server.start()
                try:
                    rows.append(asyncio.run(measure(server, choice, entries, partitions, lookups)))
                finally:
                    server.stop()
        server.close()
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
    else:
        Console(width=180).print(_table(rows))


if __name__ == "__main__":
    main()
