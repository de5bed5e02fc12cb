"""Measures keys of the store: whether times tell a known key from an unknown one, and what a million of them cost.

    python -m tests.bench.keys --timing [--tries 10000]
    python -m tests.bench.keys --store 1000000 [--active 10000]

Times are compared by Welch's t: of keys that a worker has at hand, and of keys that it has to look up in a store, each
known or made up, in random order. With `--store` that many keys are put into a store of this machine, `--active` of
them are used, and the worker's memory and the time of a lookup are compared with those of a store of a thousandth.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.parts.access.keys.held_keys import HELD
from gateway.parts.access.keys.kept_keys import KeptKeys
from gateway.parts.access.keys.known_keys import KnownKeys
from gateway.parts.access.keys.records import CONTEXT, KeyRecord, digest_of, new_id, new_key, to_json
from gateway.parts.access.keys.registry import KeyRegistry, Why
from gateway.parts.access.quotas.terms import Terms
from tests.bench.command import BenchFigure, bench_parser, report
from tests.support.store import UNHURRIED, local_store

MOST_T: Final = 4.5
MOST_MB: Final = 20.0
_FLAT: Final = 1.5
"""How often as long a lookup may take among a thousand times as many keys."""
_TERMS: Final = [Terms.model_validate({"requests_per_minute": n, "budgets": [{"usd": n}]}) for n in range(1, 21)]


def welch(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Welch's t of two samples."""
    variances = statistics.variance(one) / len(one) + statistics.variance(other) / len(other)
    return (statistics.fmean(one) - statistics.fmean(other)) / sqrt(variances)


def record_of(key: str, number: int) -> KeyRecord:
    """Return the record of one key among many, as they look in a company of 500 teams."""
    digest = digest_of(key.encode(), CONTEXT).hex()
    return KeyRecord(
        new_id(), digest, "default", f"team-{number % 500}", f"key {number}", f"person-{number}@example.com",
        terms=_TERMS[number % len(_TERMS)], created=1.7e9 + number, created_by="ada", metadata={"app": "ide"},
    )  # fmt: skip


async def times(tries: int) -> tuple[list[tuple[bool, float]], list[tuple[bool, float]]]:
    """Return the time of each try, and whether the key was known: of keys at hand, and of those to be looked up."""
    with local_store() as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        registry = KeyRegistry(store)
        known = [new_key() for _ in range(100)]
        await registry.restore([record_of(key, number) for number, key in enumerate(known)], Why("bench"))
        keys = KnownKeys(registry, CONTEXT, {}, lookups=1_000_000_000)
        await keys.start()
        texts = [(True, key.encode()) for key in known] + [(False, new_key().encode()) for _ in known]
        held, found = [], []
        for _, key in texts:
            await asyncio.gather(keys.find(key), return_exceptions=True)
        gc.disable()
        for is_known, key in random.choices(texts, k=2 * tries):
            began = time.perf_counter_ns()
            keys.held.get(digest_of(key, CONTEXT))
            held.append((is_known, float(time.perf_counter_ns() - began)))
        for is_known, key in random.choices(texts, k=2 * tries):
            digest = digest_of(key, CONTEXT)
            keys.held.forget(digest)
            keys._to_keep.clear()
            began = time.perf_counter_ns()
            await keys._find(digest)
            found.append((is_known, float(time.perf_counter_ns() - began)))
        gc.enable()
        await keys.aclose()
        await store.aclose()
    return held, found


def timing(tries: int) -> list[BenchFigure]:
    """Return how far apart the times of known and unknown keys are."""
    figures = []
    for what, told in zip(("at hand", "looked up"), asyncio.run(times(tries)), strict=True):
        known, unknown = ([ns for is_known, ns in told if is_known is wanted] for wanted in (True, False))
        figures += [
            BenchFigure(f"{what}: |t| of known and unknown keys", abs(welch(known, unknown)), MOST_T),
            BenchFigure(f"{what}: us, known", statistics.median(known) / 1000),
            BenchFigure(f"{what}: us, unknown", statistics.median(unknown) / 1000),
        ]
    return figures


async def filled(store: RedisStore, count: int, active: int) -> list[str]:
    """Put so many keys into the store, as the registry's script does; return those that are to be used."""
    used: list[str] = []
    bits = bytearray(1 << 21)
    for start in range(0, count, 1000):
        words = [b"HSET", b"tierline:{keys}:records"]
        for number in range(start, start + 1000):
            key = new_key()
            record = record_of(key, number)
            words += [record.digest.encode(), to_json(record)]
            for at in range(0, 24, 6):
                place = int(record.digest[at : at + 6], 16)
                bits[place >> 3] |= 0x80 >> (place & 7)
            if number * active // count != (number + 1) * active // count:
                used.append(key)
        await store.ask([Command(tuple(words))], 60.0)
    await store.ask([Command((b"SET", b"tierline:{keys}:filter", bytes(bits)))])
    await KeyRegistry(store).create(record_of(new_key(), 0), Why("bench"))
    return used


async def at_size(count: int, active: int) -> tuple[float, float]:
    """Return a worker's memory in MB with so many keys held of `count`, and the median ms of a lookup."""
    with local_store() as server, TemporaryDirectory() as folder:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        used = await filled(store, count, active)
        gc.collect()
        tracemalloc.start()
        keys = KnownKeys(KeyRegistry(store), CONTEXT, {}, KeptKeys(Path(folder) / "keys.sqlite3"))
        await keys.start()
        took = []
        for number in range(active):
            key = used[number % len(used)].encode()
            began = time.perf_counter_ns()
            await keys.find(key)
            took.append((time.perf_counter_ns() - began) / 1e6)
        await keys.look()
        gc.collect()
        memory = tracemalloc.get_traced_memory()[0] / (1 << 20)
        tracemalloc.stop()
        tail = sorted(took[-1000:])
        await keys.aclose()
        await store.aclose()
    return memory, tail[len(tail) // 2]


def sizes(count: int, active: int) -> list[BenchFigure]:
    """Return what many keys cost a worker, beside a thousandth of them."""
    memory, lookup = asyncio.run(at_size(count, active))
    little, before = asyncio.run(at_size(max(1000, count // 1000), min(active, max(1000, count // 1000))))
    return [
        BenchFigure(f"MB of a worker, {active:,} active of {count:,} keys", memory, MOST_MB),
        BenchFigure(f"MB of a worker, of {max(1000, count // 1000):,} keys", little),
        BenchFigure(f"ms of a lookup among {count:,} keys", lookup, max(0.5, _FLAT * before)),
        BenchFigure(f"ms of a lookup among {max(1000, count // 1000):,} keys", before),
    ]


def main() -> int:
    """Measure what is asked for."""
    parser = bench_parser("keys", __doc__)
    parser.add_argument("--timing", action="store_true", help="compare the times of known and unknown keys")
    parser.add_argument("--tries", type=int, default=10_000, help="tries of each (default: 10000)")
    parser.add_argument("--store", type=int, metavar="N", help="put so many keys into a store")
    parser.add_argument("--active", type=int, default=HELD, help=f"of which so many are used (default: {HELD})")
    args = parser.parse_args()
    figures = timing(args.tries) if args.timing or args.store is None else []
    figures += [] if args.store is None else sizes(args.store, args.active)
    return report(figures)


if __name__ == "__main__":
    sys.exit(main())
