"""`python -m tests.bench.obeyed [--json]`: how long a change of a key takes to reach the last of four workers.

A gateway of four workers gets requests with a key over many connections, all the time, while the key is revoked,
rotated without a grace, and has its budget lowered under what is spent; and again after the store was silent for five
seconds, in which a known key is to be served and an unknown one refused. The time counts from the beginning of the
change in the store to the sending of the last request that was answered by the old state. The target is a second.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp

from cache.store.redis_store import RedisStore
from gateway.parts.access.keys.records import CONTEXT, KeyRecord, digest_of, new_id, new_key
from gateway.parts.access.keys.registry import KeyRegistry, Why
from gateway.parts.access.quotas.terms import Budget, Terms
from tests.bench.command import BenchFigure, asked, bench_parser, report
from tests.bench.rig import raw_model
from tests.support.gateway import CHAT, Gateway, config, environment, running, write_deployment
from tests.support.store import UNHURRIED, LocalStore, local_store

CONNECTIONS: Final = 24
PAUSE_S: Final = 0.1
WHY: Final = Why("bench", "a measurement")
_OK: Final = 200


class Probe:
    """Send requests with one key over connections that stay open, to whichever worker each of them is at."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._key = key
        self._sent: list[tuple[float, int]] = []
        """When each request was sent, and its status."""

    async def run(self) -> None:
        """Send until cancelled."""
        await asyncio.gather(*(self._send(number) for number in range(CONNECTIONS)))

    def last(self, since: float, *, let_in: bool) -> float:
        """Return milliseconds from `since` to the sending of the last request that was let in, or was not."""
        times = [at for at, status in self._sent if (status == _OK) == let_in]
        return max(0.0, 1000 * (max(times, default=since) - since))

    def statuses(self, since: float) -> set[int]:
        """The statuses of requests sent since then."""
        return {status for at, status in self._sent if at >= since}

    async def _send(self, number: int) -> None:
        await asyncio.sleep(PAUSE_S * number / CONNECTIONS)
        connector = aiohttp.TCPConnector(limit=1, keepalive_timeout=60)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(30)) as client:
            while True:
                at = time.monotonic()
                self._sent.append((at, await asked(client, self._url, self._key, f"Say {number}.")))
                await asyncio.sleep(PAUSE_S)


def minted(**fields: Any) -> tuple[str, KeyRecord]:
    """Return a new key and its record."""
    key = new_key()
    return key, KeyRecord(new_id(), digest_of(key.encode(), CONTEXT).hex(), "bench", **fields)


async def measured(
    gateway: Gateway, key: str, change: Callable[[], Coroutine[Any, Any, object]], *, obeys: bool = False
) -> float:
    """Return milliseconds until the last worker obeys a change, after which the key is let in if `obeys`."""
    probe = Probe(gateway.url, key)
    sending = asyncio.create_task(probe.run())
    await asyncio.sleep(2.0)
    began = time.monotonic()
    await change()
    await asyncio.sleep(4.0)
    ends = time.monotonic() - 1.0
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    if (probe.statuses(ends) == {_OK}) != obeys or (_OK in probe.statuses(ends)) != obeys:
        raise RuntimeError(f"not obeyed at all: {probe.statuses(ends)}")
    return probe.last(began, let_in=not obeys)


async def rows(gateway: Gateway, server: LocalStore) -> list[BenchFigure]:
    """Make keys, change them, and measure."""
    async with AsyncExitStack() as stack:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        stack.push_async_callback(store.aclose)
        registry = KeyRegistry(store)
        budget = Terms(budgets=(Budget(usd=1000, per="day"),))
        revoked, changed, rotated, late = [(key, await registry.create(one, WHY)) for key, one in (
            minted(), minted(terms=budget), minted(), minted(),
        )]  # fmt: skip
        poor = Terms(budgets=(Budget(usd=1e-9, per="day"),))
        successor = new_key()
        digest = digest_of(successor.encode(), CONTEXT).hex()
        figures = [
            (what, await measured(gateway, key, change, obeys=obeys))
            for what, key, change, obeys in (
                ("revoked", revoked[0], lambda: registry.update(revoked[1], WHY, state="revoked"), False),
                ("budget lowered", changed[0], lambda: registry.update(changed[1], WHY, terms=poor), False),
                ("rotated: the new key", successor, lambda: registry.rotate(rotated[1], digest, 1.0, WHY), True),
            )
        ]
        probes = [Probe(gateway.url, key) for key in (late[0], new_key())]
        sending = [asyncio.create_task(probe.run()) for probe in probes]
        await asyncio.sleep(2.0)
        server.freeze()
        began = time.monotonic()
        await asyncio.sleep(5.0)
        known, unknown = (probe.statuses(began) for probe in probes)
        server.thaw()
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        took = await measured(gateway, late[0], lambda: registry.update(late[1], WHY, state="revoked"))
        figures.append(("revoked after the store was silent", took))
    return [
        *(BenchFigure(f"{what}, ms", value, 1000.0) for what, value in figures),
        BenchFigure("store silent: known key refused (1: yes)", float(known != {_OK}), 0.0),
        BenchFigure("store silent: unknown key let in (1: yes)", float(_OK in unknown), 0.0),
    ]


def run() -> list[BenchFigure]:
    """Start a store, a model and a gateway of four workers, and measure."""
    with (
        tempfile.TemporaryDirectory(prefix="tierline-obeyed-") as name,
        local_store() as store,
        raw_model() as model,
    ):
        made = config(f"http://127.0.0.1:{model.port}/v1", None, store.url)
        made["tiers"][0]["backends"][0]["price"] = {"input": 1, "output": 1}
        write_deployment(Path(name), made, {"chat": CHAT})
        with running(Path(name), environment(), "--workers", "4") as gateway:
            return asyncio.run(rows(gateway, store))


def main(argv: list[str]) -> int:
    """Run the bench, and print its figures."""
    parser = bench_parser("obeyed", __doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    return report(run(), as_json=args.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
