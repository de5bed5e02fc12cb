"""Measures what many tenants and many surfaces cost: a request, a key's lookup, an idle gateway, an edit's way.

    python -m tests.bench.many [--count 1000] [--rounds 3] [--requests]

With `--requests`, and nothing else then: the CPU of a request among 100 and 1,000 surfaces, 100 and 1,000 tenants with
a key each, and 1,000 keys of the store, over that of one with one of each, in turns; it may be 5% more.

Each figure is shown for one (tenant, surface) and for `--count` of them. A surface is a policy file of its own, the
`chat` that ships; a tenant has a key of its own in the config. The gateway is a process of its own, with a store. The
least of the rounds counts: other load on the machine only adds. The exit code is 1 where a goal is missed.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import sys
import tempfile
import time
import timeit
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

import httpx2

from cache.store.redis_store import RedisStore
from gateway.config.schema import key_digest
from gateway.parts.access.authenticator import Callers
from gateway.parts.access.config import TenantConfig
from gateway.parts.access.keys.records import new_key
from gateway.parts.access.keys.registry import KeyRegistry, Why
from gateway.parts.access.quotas.terms import NO_TERMS
from policies.loader import SHIPPED
from tests.bench.command import BenchFigure, bench_parser, report
from tests.bench.keys import record_of
from tests.bench.load import PROMPT, Subject, send
from tests.bench.rig import BARE, Cores, Meter, Service, choose_cores, cpu_s, on_core, raw_model
from tests.support.gateway import Gateway, config, environment, running, secrets_of, write_deployment
from tests.support.store import UNHURRIED, local_store
from tests.support.wait import until

IDLE_TARGET: Final = 0.01
"""Share of a core that an idle gateway with many surfaces may take."""
LOOKUP_TARGET_US: Final = 3.0
"""What many tenants may add to a request."""
SIZES: Final = {"surfaces": (100, 1_000), "tenants": (100, 1_000), "keys": (1_000,)}
FLAT: Final = 1.05
"""What a request may cost among many, over its cost among one."""
_REQUESTS = 2_000
_TURNS = 5
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


def costs(
    folder: Path, upstream: int, sizes: Mapping[str, Sequence[int]], env: Mapping[str, str], cores: Cores
) -> dict[str, float]:
    """Return the CPU of a request among so many surfaces, tenants and keys, each over that of its kind among one.

    The gateways are those of the packages in `env`; all of them run at once, and are asked in turns.
    """
    spent: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as stack:
        store = stack.enter_context(local_store())
        with on_core(cores.gateway):
            crowds = {
                (kind, count): stack.enter_context(
                    _crowd(folder / f"{kind}-{count}", kind, count, upstream, store.url, env)
                )
                for kind, counts in sizes.items()
                for count in (1, *counts)
            }
        for number in range(_TURNS + 1):
            for key, (gateway, requests) in crowds.items():
                meter = Meter(gateway.process.pid)
                send(gateway.port, islice(cycle(requests), _REQUESTS))
                if number:  # in the first turn each surface and key is met for the first time
                    spent.setdefault(key, []).append(meter.read()[0])
    return {
        f"{kind}_{count}": statistics.median(
            many / one for many, one in zip(spent[kind, count], spent[kind, 1], strict=True)
        )
        for kind, counts in sizes.items()
        for count in counts
    }


@contextmanager
def _crowd(
    folder: Path, kind: str, count: int, upstream: int, store_url: str, env: Mapping[str, str]
) -> Iterator[tuple[Gateway, list[bytes]]]:
    """Run a gateway with so many surfaces, tenants or keys; yield it and a request for each of them."""
    folder.mkdir(parents=True)
    names, keys, more = ["bare"], [""], dict[str, Any]()
    if kind == "surfaces":
        names += [f"surface-{number}" for number in range(count - 1)]
    elif kind == "tenants":
        keys = [f"key-of-tenant-{number:04}" for number in range(count)]
        for number, key in enumerate(keys):
            _secret(folder / f"key-{number}", key)
        more = {"tenants": {f"tenant-{number}": {"key_file": f"key-{number}"} for number in range(count)}}
    else:
        keys = [new_key() for _ in range(count)]
        asyncio.run(_keep(store_url, keys))
        more = {"keys": {"required": True}}
    url = f"http://127.0.0.1:{upstream}/v1"
    policies = {name: BARE.replace("surface: bare", f"surface: {name}") for name in names}
    write_deployment(folder, config(url, url, store_url, default_surface="bare", **more), policies)
    subjects = [Subject(name, Service("", 0, 0), name) for name in names]
    requests = [
        replace(subject, headers={"authorization": f"Bearer {key}"} if key else {}).request(PROMPT)
        for subject in subjects
        for key in keys
    ]
    own = {**env, **secrets_of(url)}
    with running(folder, own, launcher=("-P", "-m", "gateway")) as gateway:
        yield gateway, requests


def _secret(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o600)


async def _keep(store_url: str, keys: Sequence[str]) -> None:
    store = RedisStore.from_url(store_url, slack=UNHURRIED)
    records = [replace(record_of(key, number), terms=NO_TERMS) for number, key in enumerate(keys)]
    await KeyRegistry(store).restore(records, Why("bench"))
    await store.aclose()


def _names(count: int) -> list[str]:
    return ["chat", *(f"surface-{n}" for n in range(count - 1))]


def main() -> int:
    """Print the table and the goals; 1 where one is missed."""
    parser = bench_parser("many", __doc__)
    parser.add_argument("--count", type=int, default=1000, metavar="N", help="how many are many (1000)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often all is measured (3)")
    parser.add_argument("--requests", action="store_true", help="measure requests alone")
    asked = parser.parse_args()
    if asked.requests:
        return _report_costs()
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


def _report_costs() -> int:
    cores = choose_cores()
    os.sched_setaffinity(0, {cores.load})
    with tempfile.TemporaryDirectory(prefix="tierline-bench-") as folder, raw_model() as model:
        found = costs(Path(folder), model.port, SIZES, environment(), cores)
    return report([BenchFigure(f"{what.replace('_', ', ')}: x one", value, FLAT) for what, value in found.items()])


if __name__ == "__main__":
    sys.exit(main())
