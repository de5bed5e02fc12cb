"""Measure whether limits and budgets hold: over interleavings, over a minute at twice the limit, and with agents.

    python -m tests.bench.quotas --interleavings 1000000 [--first SEED] [--processes 2]
    python -m tests.bench.quotas --minute
    python -m tests.bench.quotas --agents

`--interleavings` runs so many orders of events (`tests.support.quota_world`): requests, exchanges that are lost or
late, kills, resets, steps of the clock, loss of the store, windows that pass and limits that change. It prints the seed
and the shortest steps that break something. `--minute` sends twice the limit of 50 keys to 8 workers for three minutes
and counts every 60 seconds. `--agents` has agents with max_tokens of 64,000 and answers of some hundred tokens spend
the last 5% of $25 each. A 429 is false if the budget was not spent, unless the requests under way and those that wait
were expected to need the rest, or it had waited for them as long as a request may. Time is virtual in both.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
import time
from bisect import bisect_left
from collections import Counter, deque
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from gateway.parts.access.quotas.accounts import Account, Window
from gateway.parts.access.quotas.leases import PATIENCE_S, Demand, Entered, QuotaLeases
from policies.quantities import NANO
from tests.bench.command import BenchFigure, bench_parser, report
from tests.support.quota_clock import SharedAuthority, run_virtually
from tests.support.quota_world import explore

_BATCH = 5000
_HEARD_S = 0.5
"""Longest time until other workers have heard of a record that was written."""
WINDOW = Window("2026-11@UTC", 0.0, 1e9)


@dataclass(frozen=True, slots=True)
class MinuteFigures:
    """How many requests were let in at twice the limit."""

    most: float
    """The most of any key in any 60 seconds, as a share of the limit."""
    first: float
    """The least of any key in the first minute, as a share of the limit."""
    least: float
    """The least of any key in all the time, as a share of what one process that forgets nothing would let in."""
    mean: float
    """The mean of that over all keys."""


def minute(keys: int, workers: int, limit: int, seconds: float, unit: str = "requests") -> MinuteFigures:
    """Send twice the limit of each key to all workers in turn."""
    return run_virtually(_minute(keys, workers, limit, seconds, unit))


async def _minute(keys: int, count: int, limit: int, seconds: float, unit: str) -> MinuteFigures:
    shared = SharedAuthority()
    workers, loop = shared.workers(count), asyncio.get_running_loop()
    times: dict[int, list[tuple[float, int]]] = {key: [] for key in range(keys)}
    arrivals: dict[int, list[float]] = {key: [] for key in range(keys)}

    async def client(key: int, worker: QuotaLeases) -> None:
        chance = random.Random(key * 1000 + workers.index(worker))
        account = Account("key", f"k{key}", unit, limit)  # type: ignore[arg-type]
        size = max(limit // 600, 1) if unit == "tokens" else 1
        while loop.time() < seconds:
            await asyncio.sleep(chance.expovariate(2 * limit / size / 60 / count))
            demand = Demand(tokens=size)
            arrivals[key].append(loop.time())
            entered = worker.enter([account], demand) or await worker.wait([account], demand)
            if isinstance(entered, Entered):
                times[key].append((loop.time(), size))
                worker.settle(entered, tokens=size)

    await asyncio.gather(*(client(key, worker) for key in range(keys) for worker in workers))
    for worker in workers:
        await worker.aclose()
    most, first, shares = 0.0, math.inf, []
    for key, entries in times.items():
        size = entries[0][1]
        most = max(most, *(_within(entries, at, limit) for at, _ in entries))
        first = min(first, _within(entries, 0.0, limit))
        shares.append(len(entries) / _ideal(sorted(arrivals[key]), limit // size))
    return MinuteFigures(most, first, min(shares), sum(shares) / len(shares))


def _ideal(arrivals: list[float], most: int) -> int:
    """Return how many of these one process would let in that keeps the time of each."""
    let_in: deque[float] = deque()
    count = 0
    for at in arrivals:
        while let_in and let_in[0] <= at - 60:
            let_in.popleft()
        if len(let_in) < most:
            let_in.append(at)
            count += 1
    return count


def _within(entries: list[tuple[float, int]], begin: float, limit: int) -> float:
    first, last = bisect_left(entries, (begin, 0)), bisect_left(entries, (begin + 60, 0))
    return sum(size for _, size in entries[first:last]) / limit


@dataclass(frozen=True, slots=True)
class AgentFigures:
    """What agents met: requests, false refusals, and the most spent beyond the limit and one lease."""

    requests: int
    false: int
    held: int
    """Refusals while money was left that other requests were expected to need, or held for as long as one waits."""
    overspent_usd: float
    over_limit_usd: float
    waited_s: float
    """Mean wait of the requests that were let in."""


def agents(keys: int, each: int, workers: int = 4, seed: int = 1) -> AgentFigures:
    """Have `each` agents of every key work until its budget is spent."""
    return run_virtually(_agents(keys, each, workers, seed))


async def _agents(keys: int, each: int, count: int, seed: int) -> AgentFigures:
    shared = SharedAuthority()
    workers, loop = shared.workers(count), asyncio.get_running_loop()
    counts: Counter[str] = Counter()
    limit, most, waited = 25 * NANO, 0, 0.0
    spent = dict.fromkeys(range(keys), limit * 95 // 100)
    expected = dict.fromkeys(range(keys), 0)  # of the requests under way and those that wait

    def release(key: int, amount: int) -> None:
        expected[key] -= amount

    async def agent(key: int, number: int) -> None:
        nonlocal most, waited
        chance = random.Random(seed * 1_000_003 + key * 101 + number)
        worker, account = workers[(key + number) % count], Account("key", f"k{key}", "usd", limit, WINDOW)
        prompt = chance.randint(3000, 12_000)
        while True:
            await asyncio.sleep(chance.uniform(0.5, 8.0))
            prompt = min(prompt + chance.randint(100, 2000), 60_000)
            tokens = min(max(int(chance.lognormvariate(5.8, 0.6)), 10), 64_000)
            dollars = (prompt * 3 + tokens * 15) / 1e6
            demand = Demand(
                expected=round((prompt * 3 + 400 * 15) * 1000), worst=round((prompt * 3 + 64_000 * 15) * 1000)
            )
            counts["requests"] += 1
            began = loop.time()
            entered = worker.enter([account], demand)
            if entered is None:
                expected[key] += demand.expected
                entered = await worker.wait([account], demand)
                expected[key] -= demand.expected
            if not isinstance(entered, Entered):
                if entered.why == "exhausted" and spent[key] >= limit:
                    return
                is_due = spent[key] + expected[key] >= limit or loop.time() - began >= PATIENCE_S
                counts["held" if entered.why == "held" and is_due else "false"] += 1
                await asyncio.sleep(entered.retry_after_s)
                continue
            waited += loop.time() - began
            most = max(most, demand.worst)
            expected[key] += demand.expected
            await asyncio.sleep(0.8 + tokens / 70)
            charged = round(dollars * NANO)
            spent[key] += charged
            worker.settle(entered, charged=charged)
            await asyncio.sleep(chance.uniform(0.01, 0.2))
            shared.authority.charge(account.name, charged)
            worker.written([(account.name, charged)])
            loop.call_later(_HEARD_S, release, key, demand.expected)

    for key in range(keys):
        shared.authority.charge(f"key:k{key}/usd/{WINDOW.name}", spent[key])
    await asyncio.gather(*(agent(key, number) for key in range(keys) for number in range(each)))
    for worker in workers:
        await worker.aclose()
    over = max(spent.values()) - limit
    return AgentFigures(
        counts["requests"], counts["false"], counts["held"],
        max(over - max(limit // 10, most), 0) / NANO, max(over, 0) / NANO,
        waited / counts["requests"],
    )  # fmt: skip


def _interleavings(count: int, first: int, processes: int) -> int:
    began = time.perf_counter()
    batches = [range(at, min(at + _BATCH, first + count)) for at in range(first, first + count, _BATCH)]
    with ProcessPoolExecutor(processes) as pool:
        for done, found in enumerate(pool.map(explore, batches), 1):
            if found:
                print(found)
                pool.shutdown(cancel_futures=True)
                return 1
            if sys.stderr.isatty():
                print(f"\r{min(done * _BATCH, count):,} of {count:,}", end="", file=sys.stderr)
    print(f"{count:,} interleavings from seed {first}: nothing breaks, {time.perf_counter() - began:.0f} s")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Measure what is asked for; return 1 where a figure is over its target."""
    parser = bench_parser("quotas", __doc__)
    parser.add_argument("--interleavings", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minute", action="store_true")
    parser.add_argument("--agents", action="store_true")
    options = parser.parse_args(arguments)
    failed = 0
    if options.interleavings:
        failed |= _interleavings(options.interleavings, options.first, options.processes)
    if options.minute:
        for unit, limit in (("requests", 600), ("tokens", 60_000)):
            held = minute(50, 8, limit, 180.0, unit)
            print(f"50 keys of {limit:,} {unit} a minute, twice as many sent over 8 workers")
            figures = [
                BenchFigure("% over the limit, the worst 60 s of any key", 100 * (held.most - 1), 1.0),
                BenchFigure("% under it in the first minute, the worst key", 100 * (1 - held.first), 1.0),
                BenchFigure("% less than one process would let in, mean", 100 * (1 - held.mean), 1.0),
                BenchFigure("% less than one process would let in, worst key", 100 * (1 - held.least)),
            ]
            failed |= report(figures)
    if options.agents:
        for each in (1, 4, 8):
            met = agents(2400 // each // 2, each)
            print(f"{met.requests:,} requests, {each} agents a key, mean wait {met.waited_s:.2f} s")
            figures = [
                BenchFigure("% of false 429", 100 * met.false / met.requests, 0.1),
                BenchFigure("% held by others' requests", 100 * met.held / met.requests),
                BenchFigure("US dollars beyond limit and one lease", met.overspent_usd, 0.0),
                BenchFigure("US dollars beyond the limit, the most of any key", met.over_limit_usd),
            ]
            failed |= report(figures)
    return failed


if __name__ == "__main__":
    sys.exit(main())
