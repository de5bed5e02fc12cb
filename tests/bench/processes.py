"""What one build costs outside a request's usual path: its start, counts, memory, large bodies, many tenants.

Each function takes a build, a place to work in, and returns figures of one round. Gateways are run on the core of what
is measured. What needs the inside of a build is measured by the bench of its own tree.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tests.bench import bodies, budgets, many, questions, starts
from tests.bench.builds import Build, NoBuild
from tests.bench.load import Subject, send
from tests.bench.measure import Figures
from tests.bench.prompts import natural
from tests.bench.rig import Cores, bench_gateway, gateway_service, memory_mb, on_core
from tests.support.gateway import Gateway
from tests.support.store import local_store

REQUESTS: Final = 10_000
_REST_S: Final = 1.0
_IMPORT: Final = (
    "import time; wall, cpu = time.perf_counter(), time.process_time(); from tierline import Tierline; "
    "print(time.process_time() - cpu, time.perf_counter() - wall)"
)
"""The module alone imports nothing: what is to be had from it is what takes time."""
_BODY: Final = "text_30"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one build is measured: a folder, the cores, the model server's port, and whether it is to be short."""

    folder: Path
    cores: Cores
    upstream: int
    quick: bool = False


@contextmanager
def _gateway(build: Build, place: Place) -> Iterator[Gateway]:
    with local_store() as store, on_core(place.cores.gateway):
        gateway = bench_gateway(
            place.folder / build.name, place.upstream, store.url, cross_encoder="default",
            launcher=("-P", "-m", "gateway"), PYTHONPATH=str(build.tree),
        )  # fmt: skip
        with gateway as running:
            yield running


def counts(build: Build, place: Place) -> Figures:
    """Count calls by path with the build's own bench, and the peak of a miss in MB."""
    run = _own_bench(build, "budgets", "--json")
    rows = {"bare": "bare", "exact": "exact hit", "semantic": "semantic hit", "miss": "miss"}
    rows |= {"chunk": "stream, committed chunk", "busy": budgets.AMONG, "idle": budgets.IDLE}
    return {f"calls_{name}": run[row]["calls"] for name, row in rows.items()} | {
        "peak_mb": run["miss"]["peak_bytes"] / 1e6
    }


def memory(build: Build, place: Place) -> Figures:
    """Return a worker's memory in MB after so many distinct natural requests, all of them misses."""
    count = REQUESTS // 10 if place.quick else REQUESTS
    with _gateway(build, place) as gateway:
        subject = Subject("full", gateway_service(gateway), "full")
        send(gateway.port, (subject.request(text) for text in islice(natural(1), count)))
        time.sleep(_REST_S)
        return {"rss_mb": memory_mb(gateway.process.pid)[0]}


def lookup(build: Build, place: Place) -> Figures:
    """Return the median CPU in ms of the loop's thread for a look-up among many in one scope, without embedding."""
    entries = 2_000 if place.quick else 20_000
    arguments = ["--entries", str(entries), "--lookups", "500", "--layout", "one", "--kind", "replica", "--json"]
    if questions.PUBLIC:
        arguments += ["--questions", *map(str, questions.PUBLIC)]
    return {"lookup_cpu_ms": _own_bench(build, "index", *arguments)["rows"][0]["cpu_here"][0]}


def start(build: Build, place: Place) -> Figures:
    """Return CPU and seconds of `serve` to its first 200 with what the build ships, and of importing the package."""
    with local_store() as store, on_core(place.cores.gateway):
        begun = starts.shipped(build.tree, place.folder, place.upstream, store.url, build.env())
        figures = {"start_cpu_s": begun.cpu_s, "start_s": begun.start_s}
        times = [build.run(["-c", _IMPORT]).stdout.split() for _ in range(5)]
    cpu, wall = (statistics.median(float(value) * 1000 for value in each) for each in zip(*times, strict=True))
    return figures | {"import_cpu_ms": cpu, "import_ms": wall}


def body(build: Build, place: Place) -> Figures:
    """Return how long bodies of 30 MB hold the loop, in ms, and the peak of memory that one takes, over its size."""
    rows = _own_bench(build, "bodies", "--only", _BODY, "pictures_30", "--rounds", "1", "--json")
    with _gateway(build, place) as gateway:
        port, status = gateway.port, Path(f"/proc/{gateway.process.pid}/status")
        subject = Subject("full", gateway_service(gateway), "full")
        send(port, (subject.request(text) for text in islice(natural(2), 50)))
        large = subject.head(raw := bodies.KINDS[_BODY]().replace(b'"chat"', b'"full"', 1)) + raw
        Path(f"/proc/{gateway.process.pid}/clear_refs").write_text("5")  # forgets the peak so far
        before = _kb(status, "VmRSS")
        send(port, [large], connections=1)
        peak = (_kb(status, "VmHWM") - before) * 1024 / len(raw)
    return {"body_held_ms": max(row["held_ms"] for row in rows), "body_peak": peak}


def growth(build: Build, place: Place) -> Figures:
    """Return by how much a request costs more CPU among many surfaces, tenants and keys than where there is one."""
    sizes = {kind: counts[:1] if place.quick else counts for kind, counts in many.SIZES.items()}
    with on_core(place.cores.gateway):
        found = many.costs(place.folder / build.name, place.upstream, sizes, build.env(), place.cores)
    return {f"growth_{what}": value for what, value in found.items()}


def _kb(status: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(f"{name}:"))


def _own_bench(build: Build, name: str, *arguments: str) -> Any:
    """Run a bench of the build's own tree, and return the JSON that it prints; its goals are not ours."""
    run = build.run(["-m", f"tests.bench.{name}", *arguments])
    try:
        return json.loads(run.stdout)
    except ValueError:
        raise NoBuild(
            f"tests.bench.{name} of {build.commit} ended with {run.returncode}: {run.stderr[-500:]}"
        ) from None


SLOW: Final[Mapping[str, Callable[[Build, Place], Figures]]] = {
    "start": start,
    "memory": memory,
    "lookup": lookup,
    "body": body,
    "many": growth,
    "counts": counts,
}
ONCE: Final = ("many", "counts")
"""What takes its own turns, and what does not swing."""
MOST_ROUNDS: Final = 5
"""Rounds of all others; each takes a minute or two."""
