"""`python -m tests.bench.kills [--seconds 30] [--json]`: whether a kill loses keys, budgets or money.

A gateway of four workers gets requests of ten keys with budgets, of a tenth of a cent each. After a third of the time
every worker is killed with SIGKILL, after two thirds the store, which keeps an append-only file and is started again.
At the end what each budget has spent is compared with what the scripted provider served for that key. A call that was
under way when its worker was killed is one that the provider did not finish; it is charged as estimated, and counted.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import aiohttp

from cache.store.redis_store import RedisStore
from gateway.parts.access.keys.budgets import OwnerBudgets
from gateway.parts.access.keys.records import KeyRecord
from gateway.parts.access.keys.registry import KeyRegistry
from gateway.parts.access.quotas.terms import Budget, Terms
from policies.quantities import NANO
from tests.bench.command import BenchFigure, asked, bench_parser, report
from tests.bench.obeyed import WHY, minted
from tests.support.gateway import CHAT, Gateway, config, environment, running, write_deployment
from tests.support.processes import children_of, command_line
from tests.support.store import UNHURRIED, LocalStore, local_store
from tests.support.upstream import Reply, Upstream

KEYS: Final = 10
RATE: Final = 40.0
"""Requests a second, of all keys together."""
PRICE: Final = {"input": 2.5, "output": 7.5}
USAGE: Final = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
CALL: Final = NANO // 1000
"""Nanodollars of a call."""
SETTLES_S: Final = 20.0
_OK: Final = 200


async def one(client: aiohttp.ClientSession, url: str, key: str, number: int) -> int:
    """Send one request; return its status, 0 if it was cut off."""
    try:
        return await asked(client, url, key, f"{number % KEYS} asks {number}")
    except aiohttp.ClientError:
        return 0


async def loaded(gateway: Gateway, server: LocalStore, provider: Upstream, seconds: float) -> list[BenchFigure]:
    """Make keys, send, kill, and compare."""
    store = RedisStore.from_url(server.url, slack=UNHURRIED)
    registry = KeyRegistry(store)
    terms = Terms(budgets=(Budget(usd=1000, per="total"),))
    keys: list[tuple[str, KeyRecord]] = []
    for _ in range(KEYS):
        key, record = minted(terms=terms)
        keys.append((key, await registry.create(record, WHY)))
    statuses: Counter[int] = Counter()
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(30)) as client:

        async def send(number: int) -> None:
            statuses[await one(client, gateway.url, keys[number % KEYS][0], number)] += 1

        began, sending = time.monotonic(), []
        kills = [
            asyncio.create_task(_after(seconds / 3, lambda: _kill_workers(gateway))),
            asyncio.create_task(_after(seconds * 2 / 3, lambda: _restart(server))),
        ]
        for number in range(round(seconds * RATE)):
            await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
            sending.append(asyncio.create_task(send(number)))
        await asyncio.gather(*sending, *kills)
        await asyncio.sleep(SETTLES_S)
        known = [await one(client, gateway.url, key, number) for number, (key, _) in enumerate(keys)]
    await asyncio.sleep(2.0)
    spent = await OwnerBudgets(store).counters()
    kept = [await registry.find(record.id) for _, record in keys]
    await store.aclose()
    served, unfinished = Counter[str](), Counter[str]()
    for request in provider.requests:
        (served if request.done_at is not None else unfinished)[request.prompt.split()[0]] += 1
    charged = [spent.get(f"key:{record.id}/usd/total", 0) for _, record in keys]
    missing = [max(0, served[str(n)] * CALL - charged[n]) for n in range(KEYS)]
    beyond = [max(0, charged[n] - (served[str(n)] + unfinished[str(n)]) * CALL) for n in range(KEYS)]
    return [
        BenchFigure("requests answered", statuses[_OK]),
        BenchFigure("requests refused or cut off", sum(statuses.values()) - statuses[_OK]),
        BenchFigure("calls that the provider finished", sum(served.values())),
        BenchFigure("calls under way that a kill ended", sum(unfinished.values())),
        BenchFigure("keys lost", sum(status != _OK for status in known), 0.0),
        BenchFigure("budgets forgotten", sum(one.terms != terms for one in kept) + charged.count(0), 0.0),
        BenchFigure("charged too little, cents", 100 * sum(missing) / NANO, 0.005),
        BenchFigure("charged too much: estimates of those, cents", 100 * sum(beyond) / NANO, 0.5),
    ]


async def _after(seconds: float, what: Callable[[], None]) -> None:
    await asyncio.sleep(seconds)
    await asyncio.to_thread(what)


def _restart(server: LocalStore) -> None:
    server.stop()
    server.start()


def _kill_workers(gateway: Gateway) -> None:
    for pid in children_of(gateway.process.pid):
        if "spawn_main" in command_line(pid):
            os.kill(pid, signal.SIGKILL)


def run(seconds: float) -> list[BenchFigure]:
    """Start a durable store, a provider and a gateway of four workers, and measure."""
    with (
        tempfile.TemporaryDirectory(prefix="tierline-kills-") as name,
        local_store("--appendonly yes --appendfsync everysec") as store,
        Upstream() as provider,
    ):
        provider.default = Reply(text="well " * 10, usage=USAGE, before_headers_s=0.3)
        made = config(provider.url, None, store.url)
        made["tiers"][0]["backends"][0]["price"] = PRICE
        write_deployment(Path(name), made, {"chat": CHAT})
        with running(Path(name), environment(), "--workers", "4") as gateway:
            return asyncio.run(loaded(gateway, store, provider, seconds))


def main(argv: list[str]) -> int:
    """Run the bench, and print its figures."""
    parser = bench_parser("kills", __doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to send (30)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    return report(run(args.seconds), as_json=args.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
