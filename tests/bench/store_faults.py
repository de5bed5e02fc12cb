"""`python -m tests.bench.store_faults [--quick] [--json]`: what a store costs that is well, frozen, killed, and back.

A steady stream of requests, hits and misses in turn, goes through the real gateway while its real Valkey is silenced
with SIGSTOP, let go on, killed and started again. How long the lookup took is the gateway's own word, the
`server-timing` of each reply; the whole is what the client saw. Nobody may fail: any status but 200 counts. A machine
that is busy with other things has the gateway refuse requests for its own lag (503), which are counted and told apart.

The targets: a hit's lookup within 0.3 / 1 ms (p50 / p99) and the whole gateway within 5 ms (p99) while the store is
well; once it is not, no lookup longer than 50 ms at first (until the breaker has opened), and 1 ms (p99) from then on.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.bench.command import BenchFigure, bench_parser, report
from tests.bench.rig import bench_gateway, raw_model
from tests.support.gateway import Gateway
from tests.support.store import LocalStore, local_store

RATE: Final = 80.0
"""Requests a second: a moderate load for one worker, on any machine."""
FIRST_S: Final = 1.0
"""How long `at first` lasts; five lookups of at most 20 ms are what the breaker needs."""
_OK: Final = 200
_LAGS: Final = 503
_LOOKUP: Final = re.compile(r"cache\.exact;dur=([\d.]+)")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: seconds since its phase began, and milliseconds."""

    at_s: float
    hit: bool
    status: int
    lookup_ms: float
    whole_ms: float

    @property
    def ok(self) -> bool:
        """Whether it was answered."""
        return self.status == _OK


@dataclass(slots=True)
class Phase:
    """What was asked while the store was in one state."""

    name: str
    asked: list[Asked] = field(default_factory=list)

    def lookups(self, least_s: float = 0.0, most_s: float = 1e9) -> list[float]:
        """The lookups' times, of the requests that began in that part of the phase."""
        return [one.lookup_ms for one in self.asked if one.ok and least_s <= one.at_s < most_s]


def run(phase_s: float) -> list[BenchFigure]:
    """All phases, so many seconds each."""
    with (
        tempfile.TemporaryDirectory(prefix="tierline-store-") as folder,
        local_store() as store,
        raw_model() as model,
        bench_gateway(Path(folder), model.port, store.url) as gateway,
    ):
        return rows_of(asyncio.run(_phases(gateway, store, phase_s)))


async def _phases(gateway: Gateway, store: LocalStore, phase_s: float) -> list[Phase]:
    changes: list[tuple[str, Callable[[], None]]] = [
        ("well", lambda: None),
        ("frozen", store.freeze),
        ("thawed", store.thaw),
        ("killed", store.stop),
        ("restarted", store.start),
    ]
    phases = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as client:
        await _ask(client, gateway, Phase("warming up"), 0, 0.0)
        await asyncio.sleep(0.5)
        for name, change in changes:
            phase = Phase(name)
            phases.append(phase)
            # A start takes a while, and must not hold up the load that it is there for.
            changing = asyncio.create_task(asyncio.to_thread(change))
            await _load(client, gateway, phase, phase_s)
            await changing
    return phases


async def _load(client: aiohttp.ClientSession, gateway: Gateway, phase: Phase, seconds: float) -> None:
    began = time.monotonic()
    asking = []
    for number in range(round(seconds * RATE)):
        due = began + number / RATE
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        asking.append(asyncio.create_task(_ask(client, gateway, phase, number, began)))
    await asyncio.gather(*asking)


async def _ask(client: aiohttp.ClientSession, gateway: Gateway, phase: Phase, number: int, began: float) -> None:
    """One request: every second one is asked by nobody else, and goes to a model."""
    asked = "always" if number % 2 == 0 else f"{phase.name} {number}"
    body: dict[str, Any] = {
        "model": "full",
        "temperature": 0,
        "messages": [{"role": "user", "content": f"Say {asked}."}],
    }
    at = time.monotonic()
    try:
        async with client.post(f"{gateway.url}/chat/completions", json=body) as response:
            await response.read()
            lookup = _LOOKUP.search(response.headers.get("server-timing", ""))
            hit = response.headers.get("x-tierline-path") == "cache-exact"
            status = response.status
    except aiohttp.ClientError:
        lookup, hit, status = None, False, 0
    whole_ms = (time.monotonic() - at) * 1000
    phase.asked.append(Asked(at - began, hit, status, float(lookup[1]) if lookup else 0.0, whole_ms))


def rows_of(phases: Sequence[Phase]) -> list[BenchFigure]:
    """The figures that have targets, and how many hits there were."""
    by_name = {phase.name: phase for phase in phases}
    hits = [one for one in by_name["well"].asked if one.hit]
    rows = [
        BenchFigure("well: exact hit, lookup p50, ms", _quantile([one.lookup_ms for one in hits], 0.5), 0.3),
        BenchFigure("well: exact hit, lookup p99, ms", _quantile([one.lookup_ms for one in hits], 0.99), 1.0),
        BenchFigure("well: exact hit, whole p50, ms", _quantile([one.whole_ms for one in hits], 0.5)),
        BenchFigure("well: exact hit, whole p99, ms", _quantile([one.whole_ms for one in hits], 0.99), 5.0),
    ]
    for name in ("frozen", "killed"):
        phase = by_name[name]
        rows.append(
            BenchFigure(f"{name}: longest lookup of the first second, ms", max(phase.lookups(0, FIRST_S)), 50.0)
        )
        rows.append(
            BenchFigure(
                f"{name}: lookups of 1 ms or more then", float(sum(one >= 1 for one in phase.lookups(0, FIRST_S)))
            )
        )
        rows.append(BenchFigure(f"{name}: lookup p99 from then on, ms", _quantile(phase.lookups(FIRST_S), 0.99), 1.0))
    for name in ("thawed", "restarted"):
        back = [one.at_s for one in by_name[name].asked if one.hit]
        rows.append(BenchFigure(f"{name}: first hit after, s", min(back, default=float("inf"))))
    asked = [one for phase in phases for one in phase.asked]
    rows.append(BenchFigure("refused for the gateway's own lag", float(sum(one.status == _LAGS for one in asked))))
    return [*rows, BenchFigure(f"failed, of {len(asked)} requests", float(sum(not one.ok for one in asked)), 0.0)]


def _quantile(values: Sequence[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else float("inf")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it and prints the table; 1 when a target is missed."""
    parser = bench_parser("store_faults", __doc__)
    parser.add_argument("--quick", action="store_true", help="three seconds a phase instead of ten")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args(arguments)
    return report(run(3.0 if asked.quick else 10.0), as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
