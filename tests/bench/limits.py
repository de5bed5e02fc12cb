"""`python -m tests.bench.limits [--gateways] [--tokens] [--seconds 60] [--json]`: how exactly many workers keep limits.

Eight workers on one real store are asked for fifty keys, twice as often as the keys' limits a minute allow, at random
times. By default the workers are processes that hold the engine of leases alone; with --gateways they are the workers
of a real gateway, over sockets, and keys are tenants of its config.

The targets: in no 60 seconds more than 1% over the limit; in the first 60 no more than 1% under it; no key starved,
which is one that had less than nine tenths of its limit.
"""

from __future__ import annotations

import asyncio
import bisect
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import aiohttp

from cache.store.redis_store import RedisStore
from gateway.parts.access.quotas.accounts import OwnerAccounts
from gateway.parts.access.quotas.leases import Demand, Entered, QuotaLeases
from gateway.parts.access.quotas.terms import Terms
from tests.bench.command import BenchFigure, asked, bench_parser, report
from tests.bench.rig import raw_model
from tests.support.gateway import CHAT, config, environment, running, write_deployment
from tests.support.store import local_store

WORKERS: Final = 8
KEYS: Final = 50
MINUTE_S: Final = 60.0
TOKENS: Final = 500
"""Tokens of a request on average; a limit of tokens is so many times the one of requests."""
Granted = list[list[tuple[float, int]]]
"""For each key, when a request was let in, in monotonic seconds, and for how much."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one process sends: `rate` requests a second for each key, from `begins` on."""

    seed: int
    rate: float
    begins: float
    seconds: float


async def send_all(plan: Plan, send: Callable[[int, int], Awaitable[bool]]) -> Granted:
    """Call `send` with a key and an amount of tokens at random times; return what it let in."""
    chance = random.Random(plan.seed)
    granted: Granted = [[] for _ in range(KEYS)]
    due, under_way = plan.begins, set[asyncio.Task[None]]()

    async def one(key: int, tokens: int) -> None:
        if await send(key, tokens):
            granted[key].append((time.monotonic(), tokens))

    while (due := due + chance.expovariate(plan.rate * KEYS)) < plan.begins + plan.seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        task = asyncio.create_task(one(chance.randrange(KEYS), chance.randint(TOKENS // 5, TOKENS * 9 // 5)))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)
    return granted


def lease_requests(url: str, terms: Terms, plan: Plan) -> Granted:
    """Send to an engine of leases of this process."""

    async def run() -> Granted:
        store = RedisStore.from_url(url)
        leases = QuotaLeases(store)
        owners = [OwnerAccounts("key", f"k_{key}", terms).rates for key in range(KEYS)]

        async def send(key: int, tokens: int) -> bool:
            demand = Demand(tokens=tokens)
            entered = leases.enter(owners[key], demand) or await leases.wait(owners[key], demand)
            if isinstance(entered, Entered):
                leases.settle(entered, tokens)
            return isinstance(entered, Entered)

        try:
            return await send_all(plan, send)
        finally:
            await leases.aclose()
            await store.aclose()

    return asyncio.run(run())


def http_requests(url: str, plan: Plan) -> Granted:
    """Send to a gateway, each request over a connection of its own, so that all workers get their share."""

    async def run() -> Granted:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(60)) as client:

            async def send(key: int, tokens: int) -> bool:
                status = await asked(client, url, f"key-of-{key}", f"Say {plan.seed} {tokens}.")
                if status not in (200, 429):
                    raise RuntimeError(f"status {status}")
                return status == 200

            return await send_all(plan, send)

    return asyncio.run(run())


def figures_of(granted: Sequence[Sequence[tuple[float, int]]], limit: int, begins: float) -> list[BenchFigure]:
    """Return how far each key was from its limit, in percent; amounts of 1 for limits of requests."""
    over, under, starved = 0.0, 0.0, 0
    for taken in granted:
        times = [at for at, _ in taken]
        sums = [0]
        for _, amount in taken:
            sums.append(sums[-1] + amount)
        most = max((sums[bisect.bisect_left(times, at + MINUTE_S)] - sums[n] for n, at in enumerate(times)), default=0)
        first = sums[bisect.bisect_left(times, begins + MINUTE_S)]
        over = max(over, 100 * (most / limit - 1))
        under = max(under, 100 * (1 - first / limit))
        starved += first < 0.9 * limit
    return [
        BenchFigure("most over the limit in any 60 s, %", over, 1.0),
        BenchFigure("most under the limit in the first 60 s, %", under, 1.0),
        BenchFigure("keys starved", starved, 0.0),
        BenchFigure("requests let in", sum(map(len, granted))),
    ]


def run(per_minute: int, seconds: float, *, tokens: bool, gateways: bool) -> list[BenchFigure]:
    """Start the workers, send for so many seconds, and compare."""
    limit = per_minute * (TOKENS if tokens else 1)
    terms = Terms(tokens_per_minute=limit) if tokens else Terms(requests_per_minute=limit)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tierline-limits-")))
        store = stack.enter_context(local_store())
        senders = 2 if gateways else WORKERS
        pool = stack.enter_context(ProcessPoolExecutor(senders, get_context("spawn")))
        if gateways:
            model = stack.enter_context(raw_model())
            made = config(f"http://127.0.0.1:{model.port}/v1", None, store.url)
            made["tenants"] = {}
            for key in range(KEYS):
                (folder / f"{key}.key").write_text(f"key-of-{key}")
                (folder / f"{key}.key").chmod(0o600)
                made["tenants"][f"t{key}"] = {
                    "key_file": f"{key}.key",
                    "limits": terms.model_dump(exclude_defaults=True),
                }
            write_deployment(folder, made, {"chat": CHAT})
            gateway = stack.enter_context(running(folder, environment(), "--workers", str(WORKERS)))
        list(pool.map(time.sleep, [0.2] * senders))  # all processes are there
        begins = time.monotonic() + 2.0
        plans = [Plan(n, 2 * per_minute / MINUTE_S / senders, begins, seconds) for n in range(senders)]
        if gateways:
            found = list(pool.map(http_requests, [gateway.url] * senders, plans))
        else:
            found = list(pool.map(lease_requests, [store.url] * senders, [terms] * senders, plans))
    granted = [sorted(one for part in found for one in part[key]) for key in range(KEYS)]
    if not tokens:
        granted = [[(at, 1) for at, _ in taken] for taken in granted]
    return figures_of(granted, limit, begins)


def main(argv: list[str]) -> int:
    """Run the bench, and print its figures."""
    parser = bench_parser("limits", __doc__)
    parser.add_argument("--gateways", action="store_true", help="ask a gateway of eight workers, not the engine alone")
    parser.add_argument("--tokens", action="store_true", help="limit tokens, not requests")
    parser.add_argument("--per-minute", type=int, default=600, help="requests a minute that a key may send (600)")
    parser.add_argument("--seconds", type=float, default=MINUTE_S, help="how long to send (60)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    return report(run(args.per_minute, args.seconds, tokens=args.tokens, gateways=args.gateways), as_json=args.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
