"""The bench's machinery: two cores, the processes pinned to them, and what /proc says these cost."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import yaml

from tests.support.gateway import ROOT, Gateway, config, environment, running, write_policies
from tests.support.ports import free_port
from tests.support.processes import descendants
from tests.support.wait import until

HERE = Path(__file__).parent
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PACKAGES = {"wrk": "wrk", "nginx": "nginx-light"}
_DEBIAN_SBIN = "/usr/sbin"

BARE = """
surface: bare
slo: {deadline: 20s}
holdout: 0
tiers: [local, hosted]
route: {classifier: none, start: {local: otherwise}}
"""
"""The least our path can be: no cache, no classifier; the default surface, so that `tier:hosted` falls under it."""

FULL = """
surface: full
slo: {deadline: 20s}
holdout: 0
tiers: [local, hosted]
route:
  classifier: default
  start: {local: "p_adequate >= 0.5", hosted: otherwise}
escalate:
  when: {confidence_below: 0.3, invalid: [json, tool_args], finish: [length], repetition: true}
cache:
  exact: {ttl: 1h}
  semantic: {ttl: 1h, min_similarity: 0.95, audit: 0%, guards: [negation, numbers, entities, dates]}
"""
"""Every step of the path, one attempt: the raw upstream's answers are confident."""

NEAR = FULL.replace("surface: full", "surface: near").replace("0.95,", "0.7,")
"""As FULL; a question in other words is near enough for a hit."""
_READ = NEAR.replace("0.7,", "0.7, cross_encoder: {within: 2s},")
"""As NEAR, where there is a cross-encoder; a question waits for its reading as long as it takes."""

JUDGED = """
surface: judged
slo: {deadline: 20s}
holdout: 0
tiers: [local, hosted]
route: {classifier: none, start: {local: otherwise}}
escalate:
  when: {confidence_below: 0.3}
  stream: {hold_tokens: 256, hold_max: 20s}
"""
"""A stream that is held, and judged, to its end."""


class MissingTools(Exception):
    """What has to be installed first; the message is the line to show."""


@dataclass(frozen=True, slots=True)
class Cores:
    """The core of what is measured, and the one of the load, the raw upstream and the store."""

    gateway: int
    load: int


@dataclass(frozen=True, slots=True)
class Service:
    """Something that answers chat completions on a port; `pid` is its process, children included in its costs."""

    name: str
    port: int
    pid: int


def choose_cores() -> Cores:
    """Two of the cores this process may use."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise MissingTools("the bench needs two cores: one for the gateway, one for the load")
    return Cores(usable[0], usable[1])


def require_tools() -> None:
    """Raises MissingTools, naming the Debian packages, when wrk or nginx is not there."""
    missing = [package for command, package in _PACKAGES.items() if tool(command) is None]
    if missing:
        raise MissingTools(f"the bench needs {' and '.join(missing)}: apt-get install {' '.join(missing)}")


def tool(command: str) -> str | None:
    """Where a command is; Debian keeps nginx outside an ordinary user's PATH."""
    return shutil.which(command) or shutil.which(command, path=_DEBIAN_SBIN)


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """What this thread starts meanwhile runs on `core`."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def bench_gateway(
    folder: Path,
    upstream: int,
    store_url: str | None,
    embedding: str = "static",
    cross_encoder: str = "none",
    launcher: Sequence[str] = ("-m", "gateway"),
    **env: str,
) -> Iterator[Gateway]:
    """Our gateway over the raw upstream, both tiers, with the surfaces `bare`, `full`, `near` and `judged`."""
    folder.mkdir(parents=True, exist_ok=True)
    near = NEAR if cross_encoder == "none" else _READ
    write_policies(folder / "policies", {"bare": BARE, "full": FULL, "near": near, "judged": JUDGED})
    url = f"http://127.0.0.1:{upstream}/v1"
    state = {"kind": embedding, "state": str(ROOT / ".state")}
    deployment = config(url, url, store_url, embedding=state, cross_encoder=cross_encoder, default_surface="bare")
    for tier in deployment["tiers"]:
        tier["backends"][0]["max_in_flight"] = 1024
    (folder / "tierline.yaml").write_text(yaml.safe_dump(deployment, sort_keys=False))
    with running(folder, environment(HOSTED_KEY="sk-bench", **env), launcher=launcher) as gateway:
        until(lambda: _model_is_open(gateway.port), 60)
        yield gateway


def _model_is_open(port: int) -> bool:
    """Return whether no cross-encoder is still to be opened: its time and memory would be taken for a request's."""
    model = httpx2.get(f"http://127.0.0.1:{port}/readyz").json().get("cross_encoder") or {}
    return model.get("state") != "not open yet"


def gateway_service(gateway: Gateway) -> Service:
    """A gateway, as something to measure."""
    return Service("gateway", gateway.port, gateway.process.pid)


@contextmanager
def process(name: str, port: int, *arguments: str, **env: str) -> Iterator[Service]:
    """A Python process with these arguments, listening on `port`."""
    started = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=environment(**env))
    with stopped(started):
        until(lambda: listens(port), 10, f"{name} listens")
        yield Service(name, port, started.pid)


def raw_model() -> AbstractContextManager[Service]:
    """The model server that costs next to nothing, which is what `direct` asks."""
    port = free_port()
    return process("direct", port, "-m", "tests.bench.raw_upstream", str(port))


def raw_proxy(upstream: int, launcher: Sequence[str] = ("-m", "uvicorn")) -> AbstractContextManager[Service]:
    """The raw proxy, run by uvicorn; `launcher` stands for `-m uvicorn` where another module is to run that."""
    port = free_port()
    arguments = [*launcher, "tests.bench.raw_proxy:app", "--port", str(port), "--loop", "uvloop"]
    arguments += ["--http", "httptools", "--no-access-log", "--log-level", "warning", "--backlog", "1024"]
    return process("raw proxy", port, *arguments, BENCH_UPSTREAM=f"http://127.0.0.1:{upstream}")


@contextmanager
def nginx_proxy(folder: Path, upstream: int) -> Iterator[Service]:
    """Run nginx as a proxy of the raw upstream."""
    folder.mkdir(parents=True)
    port = free_port()
    text = (HERE / "nginx.conf").read_text().replace("UPSTREAM", str(upstream)).replace("PORT", str(port))
    (folder / "nginx.conf").write_text(text)
    command = [tool("nginx") or "nginx", "-p", str(folder), "-c", "nginx.conf", "-e", "stderr"]
    with stopped(process := subprocess.Popen(command)):
        until(lambda: listens(port), 10, "nginx listens")
        yield Service("nginx", port, process.pid)


@contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """The process runs during the block, and has ended after it."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def listens(port: int) -> bool:
    """Whether something accepts connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# --- /proc --------------------------------------------------------------------------------------------------------


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    return [pid, *descendants(pid)]


def cpu_s(pid: int) -> float:
    """CPU seconds, user and system, of a process and its descendants so far."""
    total = 0
    for one in family(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total * _TICK_S


def memory_mb(pid: int) -> tuple[float, float, float]:
    """(RSS, PSS, USS) in MB of the largest process of a family: the worker, where there is a supervisor.

    PSS divides a shared page among those that share it, USS leaves shared pages out.
    """
    sizes = []
    for one in family(pid):
        text = Path(f"/proc/{one}/smaps_rollup").read_text()
        kb = {name: int(size) for name, size in re.findall(r"(?m)^(\w+):\s+(\d+) kB", text)}
        sizes.append((kb["Rss"], kb["Pss"], kb["Private_Clean"] + kb["Private_Dirty"]))
    rss, pss, uss = max(sizes)
    return rss / 1000, pss / 1000, uss / 1000


@dataclass(slots=True)
class Meter:
    """CPU and wall time between its making and `read()`."""

    pid: int
    _cpu: float = 0.0
    _wall: float = 0.0

    def __post_init__(self) -> None:
        self._cpu, self._wall = cpu_s(self.pid), time.perf_counter()

    def read(self) -> tuple[float, float]:
        """(CPU seconds, wall seconds) since."""
        return cpu_s(self.pid) - self._cpu, time.perf_counter() - self._wall
