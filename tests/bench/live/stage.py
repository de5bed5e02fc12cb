"""Where a scenario plays: two scripted model servers and the clients on one core, the real gateway on the other."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop
import yaml

from tests.bench.live.behaviour import Behaviour
from tests.bench.live.client import Clients
from tests.bench.live.upstream import Record
from tests.bench.rig import Cores, listens, on_core
from tests.support.gateway import ROOT, Gateway, config, environment, running, write_policies
from tests.support.ports import free_port
from tests.support.wait import until

__all__ = ["Backend", "Play", "Prices", "Seen", "Stage", "stage", "uvloop"]

TIERS = ("local", "hosted")


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars per million tokens, in and out, of one tier."""

    input: float
    output: float

    def of(self, tokens_in: int, tokens_out: int) -> float:
        """What a call costs, in dollars."""
        return (tokens_in * self.input + tokens_out * self.output) / 1e6


CHEAP = Prices(0.125, 0.5)
DEAR = Prices(2.5, 10.0)
"""Twenty times as much."""


@dataclass(frozen=True, slots=True)
class Play:
    """What a scenario wants set up: policies by surface, prices by tier, and more settings of every backend."""

    policies: Mapping[str, str]
    prices: tuple[Prices, Prices] = (CHEAP, DEAR)
    backend: Mapping[str, Any] = field(default_factory=dict)
    default_surface: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one model server saw."""

    calls: list[Record]
    peak: int
    busy: int

    def by_id(self) -> dict[int, Record]:
        """The last call of each request."""
        return {call.bench_id: call for call in self.calls}


@dataclass(frozen=True, slots=True)
class Backend:
    """One scripted model server."""

    port: int
    control: int

    async def behave(self, behaviour: Behaviour) -> None:
        """From now on."""
        await Clients(self.control).fetch("POST", "/behaviour", behaviour.told())

    async def forget(self) -> None:
        """Forgets the calls so far."""
        await Clients(self.control).fetch("POST", "/reset", {})

    async def seen(self) -> Seen:
        """The calls since it was last made to forget."""
        told = await Clients(self.control).fetch("GET", "/stats")
        calls = [Record(*fields) for fields in told["calls"]]
        return Seen(calls, told["peak"], told["busy"])


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything is up."""

    gateway: Gateway
    local: Backend
    hosted: Backend

    @asynccontextmanager
    async def clients(self, count: int = 64, port: int = 0) -> AsyncIterator[Clients]:
        """So many connections to the gateway, or to another port, opened beforehand."""
        clients = Clients(port or self.gateway.port)
        await clients.open(count)
        try:
            yield clients
        finally:
            clients.close()

    async def forget(self) -> None:
        """Both model servers forget their calls."""
        await self.local.forget()
        await self.hosted.forget()


@contextmanager
def stage(cores: Cores, play: Play) -> Iterator[Stage]:
    """The processes, each on its core; this one joins the load's."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cores.load})
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tierline-live-")))
            local, hosted = (stack.enter_context(_upstream()) for _ in TIERS)
            _write(folder, play, (local, hosted))
            with on_core(cores.gateway):
                gateway = stack.enter_context(running(folder, environment(HOSTED_KEY="sk-bench")))
            for backend in (local, hosted):
                until(lambda: listens(backend.control), 10, "a scripted model server listens")  # noqa: B023
            yield Stage(gateway, local, hosted)
    finally:
        os.sched_setaffinity(0, before)


def _write(folder: Path, play: Play, backends: tuple[Backend, Backend]) -> None:
    write_policies(folder / "policies", play.policies)
    urls = [f"http://127.0.0.1:{backend.port}/v1" for backend in backends]
    state = {"kind": "static", "state": str(ROOT / ".state")}
    deployment = config(*urls, embedding=state, default_surface=play.default_surface or next(iter(play.policies)))
    for tier, prices in zip(deployment["tiers"], play.prices, strict=True):
        more = {"max_in_flight": 1024, "price": {"input": prices.input, "output": prices.output}}
        # A copy: what two backends share would be written as a YAML alias.
        tier["backends"][0].update(more | deepcopy(dict(play.backend)))
    (folder / "tierline.yaml").write_text(yaml.safe_dump(deployment, sort_keys=False))


@contextmanager
def _upstream() -> Iterator[Backend]:
    backend = Backend(free_port(), free_port())
    command = [sys.executable, "-m", "tests.bench.live.upstream", str(backend.port), str(backend.control)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment())
    try:
        yield backend
    finally:
        process.kill()
        process.wait()
