"""Measures what many tenants and many surfaces cost: a key's lookup, an idle gateway's CPU, an edit's way into force.

    python -m tests.bench.many [--count 1000] [--rounds 3]

Each figure is shown for one (tenant, surface) and for `--count` of them. A surface is a policy file of its own, the
`chat` that ships; a tenant has a key of its own in the config. The gateway is a process of its own, with a store. The
least of the rounds counts: other load on the machine only adds. The exit code is 1 where a goal is missed.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
import timeit
from itertools import cycle
from pathlib import Path
from typing import Final

import httpx2

from gateway.config.schema import key_digest
from gateway.parts.access.authenticator import Callers
from gateway.parts.access.config import TenantConfig
from policies.loader import SHIPPED
from tests.bench.command import BenchFigure, bench_parser, report
from tests.bench.rig import cpu_s
from tests.support.gateway import config, environment, running, secrets_of, write_deployment
from tests.support.store import local_store
from tests.support.wait import until

IDLE_TARGET: Final = 0.01
"""Share of a core that an idle gateway with many surfaces may take."""
LOOKUP_TARGET_US: Final = 3.0
"""What many tenants may add to a request."""
_SETTLE_S = 3.0
_IDLE_S = 10.0
_NOWHERE = "http://127.0.0.1:9/v1"


def lookup_us(count: int) -> float:
    """CPU microseconds until it is known whom a key stands for, over the keys of `count` tenants in turn."""
    tenants = Callers({f"tenant-{n}": TenantConfig(key_digests=(key_digest(b"key-%d" % n),)) for n in range(count)})
    requests = cycle([{b"authorization": b"Bearer key-%d" % n} for n in range(count)])
    each = timeit.repeat(lambda: tenants.known(next(requests)), timer=time.thread_time, number=1000, repeat=20)
    return min(each) / 1000 * 1e6


def surfaces(count: int) -> tuple[float, float]:
    """Of a gateway with `count` surfaces: the share of a core that it takes while idle, and the seconds until an edit
    of one policy, written in place, is in force.
    """
    text = re.sub(r"(?ms)^match:.*?^(?=\S)", "", (SHIPPED / "chat.yaml").read_text())
    policies = {name: text.replace("surface: chat", f"surface: {name}") for name in _names(count)}
    with tempfile.TemporaryDirectory(prefix="tierline-bench-") as temporary, local_store() as store:
        folder = Path(temporary)
        write_deployment(folder, config(_NOWHERE, _NOWHERE, store.url), policies)
        with running(folder, environment(**secrets_of(_NOWHERE))) as gateway:
            time.sleep(_SETTLE_S)
            before, began = cpu_s(gateway.process.pid), time.monotonic()
            time.sleep(_IDLE_S)
            idle = (cpu_s(gateway.process.pid) - before) / (time.monotonic() - began)

            def version() -> str:
                found: str = httpx2.get(f"{gateway.origin}/readyz").json()["surfaces"]["chat"]
                return found

            old, began = version(), time.monotonic()
            (gateway.policies / "chat.yaml").write_text(policies["chat"].replace("deadline: 60s", "deadline: 59s"))
            until(lambda: version() != old, 30, "the edit in force")
            return idle, time.monotonic() - began


def _names(count: int) -> list[str]:
    return ["chat", *(f"surface-{n}" for n in range(count - 1))]


def main() -> int:
    """Print the table and the goals; 1 where one is missed."""
    parser = bench_parser("many", __doc__)
    parser.add_argument("--count", type=int, default=1000, metavar="N", help="how many are many (1000)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often all is measured (3)")
    asked = parser.parse_args()
    lookups: dict[int, list[float]] = {1: [], asked.count: []}
    gateways: dict[int, list[tuple[float, float]]] = {1: [], asked.count: []}
    for _ in range(asked.rounds):
        for number, times in lookups.items():
            times.append(lookup_us(number))
            gateways[number].append(surfaces(number))
    sys.stdout.write(f"{'':>10}{'key lookup, us':>16}{'idle, % of a core':>20}{'edit in force, s':>18}\n")
    for number, runs in gateways.items():
        idle, edit_s = (min(figures) for figures in zip(*runs, strict=True))
        sys.stdout.write(f"{number:>10}{min(lookups[number]):>16.1f}{idle * 100:>20.2f}{edit_s:>18.2f}\n")
    idle = min(share for share, _ in gateways[asked.count])
    added_us = min(lookups[asked.count]) - min(lookups[1])
    figures = [
        BenchFigure("idle, % of a core", idle * 100, IDLE_TARGET * 100),
        BenchFigure("tenants add, us", added_us, LOOKUP_TARGET_US),
    ]
    return report(figures)


if __name__ == "__main__":
    sys.exit(main())
