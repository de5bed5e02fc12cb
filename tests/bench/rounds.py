"""Requests and streams of two builds in turns: each round asks every subject, and the builds by turns go first."""

from __future__ import annotations

import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final

from gateway.telemetry.names import STAGE
from tests.bench import measure, peers
from tests.bench.builds import Build
from tests.bench.load import Load, Subject, run_wrk
from tests.bench.measure import Figures, NotAsMeant, Say, ask
from tests.bench.prompts import LANGUAGES, LENGTHS, natural, rewordings, stored
from tests.bench.rig import Cores, Service, bench_gateway, gateway_service, nginx_proxy, on_core, raw_model, raw_proxy
from tests.bench.streams import Shape, watch
from tests.support.gateway import Gateway
from tests.support.store import local_store
from tests.support.wait import until

Samples = dict[str, dict[str, list[float]]]
"""Figure -> who (a build, a peer, nginx) -> its value in each round."""

MANY: Final = 16
_PAIRS_AT_ONCE: Final = 4
"""Connections of those whose questions a model reads: more would wait for it, and be refused for that."""
_MAIN: Final = ("full", "words", "bare", "exact", "rule", "model")
TEXTS: Final = (*(f"full-{name}" for name in LANGUAGES), *(f"full-{name}" for name in LENGTHS))
REQUESTS: Final = (*_MAIN, *TEXTS)
"""Ways of a request. `full-...` is the full path of one language or of one length."""
STREAM: Final = "stream"
_TRIES: Final = 3
_AGAIN: Final = 100
"""What is added to the number of a round for each further try, so that its prompts are others."""
_STAGES: Final = {"rule": "rule", "model": "cross_encoder"}
"""What decides on a hit."""
_LATENCIES_AT: Final = {"full": (1, 64), "bare": (1,), "exact": (1,)}
"""Connections at which latencies are measured: what is added to the model server's own, and all of an exact hit."""
_STRAYED: Final = 0.02
"""Share of replies that may go another way before the table says so."""
_LOST: Final = 0.2
"""The share from which the measurement is made again."""


@dataclass(frozen=True, slots=True)
class Stand:
    """All that answers: the model server itself, proxies before it, a gateway of each build, and peers."""

    direct: Subject
    proxies: Sequence[Subject]
    builds: Mapping[str, Build]
    gateways: Mapping[str, Gateway]
    stores: Mapping[str, str]
    """The URL of each build's database."""
    peers: Mapping[str, Subject]
    missing: Mapping[str, str]
    """Peers that are not there, and why."""


@dataclass(frozen=True, slots=True)
class Length:
    """Seconds of each measurement in a round; wrk knows whole ones alone."""

    throughput_s: int = 3
    latency_s: int = 3
    stream_s: float = 3.0


QUICK: Final = Length(1, 1, 1.2)


@contextmanager
def stand(folder: Path, builds: Sequence[Build], cores: Cores, with_peers: bool, say: Say) -> Iterator[Stand]:
    """Start it all, each build on a database of its own in one store; this process is on the load's core meanwhile."""
    folders, missing = peers.installed(peers.HOME, say) if with_peers else ({}, {})
    with ExitStack() as stack:
        stack.enter_context(on_core(cores.load))
        upstream = stack.enter_context(raw_model())
        store = stack.enter_context(local_store())
        direct = Subject("direct", upstream)
        with on_core(cores.gateway):
            nginx = Subject("nginx", stack.enter_context(nginx_proxy(folder / "nginx", upstream.port)))
            raw = Subject("raw ASGI + aiohttp", stack.enter_context(raw_proxy(upstream.port)))
            stores = {build.name: store.url.replace("/0", f"/{number}") for number, build in enumerate(builds)}
            gateways = {
                build.name: stack.enter_context(
                    bench_gateway(
                        folder / build.name,
                        upstream.port,
                        stores[build.name],
                        cross_encoder="default",
                        launcher=("-P", "-m", "gateway"),
                        PYTHONPATH=str(build.tree),
                    )
                )
                for build in builds
            }
            theirs = peers.running(folders, direct, stack, missing, say)
        named = {build.name: build for build in builds}
        yield Stand(direct, (nginx, raw), named, gateways, stores, theirs, missing)


def subject_of(way: str, service: Service, scope: str) -> Subject:
    """Return how requests go this way; what is stored for another scope is not found."""
    if way == "words":
        return Subject(way, service, "full", unique=True, path="direct", scope=scope)
    if way == "bare":
        return Subject(way, service, path="direct")
    if way == "exact":
        return Subject(way, service, "full", path="cache-exact")
    if way == "rule":
        return Subject(way, service, "near", reworded=True, path="cache-semantic")
    if way == "model":
        return Subject(way, service, "near", texts=rewordings, path="cache-semantic", scope=scope)
    kind = way.partition("-")[2]
    languages, lengths = (kind,) if kind in LANGUAGES else LANGUAGES, (kind,) if kind in LENGTHS else tuple(LENGTHS)
    return Subject(
        way, service, "full", path="direct", scope=scope, texts=lambda seed: natural(seed, languages, lengths)
    )


@dataclass(slots=True)
class Rounds:
    """The rounds of one run. `notes` says what a reader must know, `dropped` why a way is not measured any more."""

    there: Stand
    folder: Path
    length: Length
    say: Say
    samples: Samples = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    notes: list[str] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)

    def run(self, number: int, ways: Sequence[str]) -> None:
        """Ask everything once. Where a build does not go the way that is measured, the round has no figure of it."""
        order = list(self.there.gateways)
        if number % 2:
            order.reverse()
        base = self._yardsticks(number, ways)
        for way in ways:
            for turn in range(number, _TRIES * _AGAIN, _AGAIN):
                try:
                    figures = {name: self._figures(way, name, turn, base) for name in order}
                except (NotAsMeant, AssertionError, subprocess.SubprocessError, OSError) as wrong:
                    self.dropped[way] = f"in round {number + 1}: {wrong}"  # look-ups of a busy machine end early
                    continue
                self.dropped.pop(way, None)
                for name, found in figures.items():
                    for figure, value in found.items():
                        self.samples[figure][name].append(value)
                break

    def _figures(self, way: str, name: str, number: int, base: Mapping[str, float]) -> Figures:
        self.say(f"{way}: {name}")
        service = gateway_service(self.there.gateways[name])
        if way == STREAM:
            return self._streams(Subject(way, service), base)
        return self._requests(way, name, subject_of(way, service, f"Round {number}, {way}."), number, base)

    def _yardsticks(self, number: int, ways: Sequence[str]) -> dict[str, float]:
        """Measure proxies and peers; return what the model server alone takes."""
        base: dict[str, float] = {}
        if STREAM in ways:
            base["ttft"] = _ttft_ms(self.there.direct, self.length)
        for connections in {c for way in ways for c in _LATENCIES_AT.get(way, ())}:
            load = self._wrk(self.there.direct, connections, number)
            base |= {f"p50_c{connections}": load.p50_ms, f"p99_c{connections}": load.p99_ms}
        if set(ways) - {STREAM}:
            for subject in (*self.there.proxies, *self.there.peers.values()):
                self.say(subject.name)
                self.samples["peer_cpu_us"][subject.name].append(self._wrk(subject, MANY, number).cpu_us)
        return base

    def _requests(self, way: str, name: str, subject: Subject, number: int, base: Mapping[str, float]) -> Figures:
        _prepare(subject, number, self.folder)
        if number % _AGAIN == 0 and way in _STAGES:
            self._check_stage(way, name)
        load = self._wrk(subject, _PAIRS_AT_ONCE if way == "model" else MANY, number)
        self._judge(way, name, load)
        figures = {f"{way}_cpu_us": load.cpu_us}
        for connections in _LATENCIES_AT.get(way, ()):
            own = subject if way == "exact" else replace(subject, scope=f"{subject.scope} {connections}".strip())
            load = self._wrk(own, connections, number)
            self._judge(way, name, load)
            less = (
                {"p50": 0.0, "p99": 0.0} if way == "exact" else {p: base[f"{p}_c{connections}"] for p in ("p50", "p99")}
            )
            for quantile, value in (("p50", load.p50_ms), ("p99", load.p99_ms)):
                figures[f"{way}_{quantile}_c{connections}_ms"] = value - less[quantile]
        return figures

    def _check_stage(self, way: str, name: str) -> None:
        """Raise NotAsMeant unless the trace of the latest request says that it was decided where this way has it."""
        show = ["-m", "gateway", "trace", "last", "--store", self.there.stores[name], "--json"]
        shown = ""

        def is_decided() -> bool:
            nonlocal shown
            shown = self.there.builds[name].run(show).stdout
            return f'"{STAGE}":"{_STAGES[way]}"' in shown

        try:
            until(is_decided, 2, "the record", 0.2)
        except AssertionError:
            raise NotAsMeant(f"{name} does not decide {way} by {_STAGES[way]}: {shown[-500:]}") from None

    def _streams(self, subject: Subject, base: Mapping[str, float]) -> Figures:
        long = Shape(concurrent=MANY, chunks=150, pace_ms=8)
        return {
            "ttft_ms": _ttft_ms(subject, self.length) - base["ttft"],
            "chunk_us": watch(subject, long, self.length.stream_s).cpu_us_per_chunk,
            "judged_us": watch(replace(subject, model="judged"), long, self.length.stream_s).cpu_us_per_chunk,
        }

    def _wrk(self, subject: Subject, connections: int, number: int) -> Load:
        seconds = self.length.throughput_s if connections == MANY else self.length.latency_s
        return run_wrk(subject, self.folder, connections, seconds, _seed(number, connections))

    def _judge(self, way: str, name: str, load: Load) -> None:
        count = max(1.0, load.per_second * self.length.throughput_s)
        if load.failed:
            self.notes.append(f"{way}: {load.failed} requests to {name} failed in a round")
        if load.strayed > _LOST * count:
            raise NotAsMeant(f"{load.strayed / count:.0%} of {name}'s replies went another way")
        if load.strayed > _STRAYED * count:
            self.notes.append(f"{way}: {load.strayed / count:.0%} of {name}'s replies went another way in a round")


def _prepare(subject: Subject, number: int, folder: Path) -> None:
    """Store what hits need, and see that requests go this way."""
    if subject.name == "model":
        for text in stored(_seed(number, _PAIRS_AT_ONCE)):
            ask(subject, text)
        seed = _PROBED + number
        for text in stored(seed):
            ask(subject, text)
        probes = list(islice(rewordings(seed), 400))
        until(lambda: ask(subject, probes.pop()) == subject.path, 5, f"{subject.name} to go {subject.path}")
        paths = [ask(subject, probes.pop()) for _ in range(20)]
        if paths.count(subject.path) < 0.9 * len(paths):
            raise NotAsMeant(f"{subject.name} went {sorted(set(paths))}, not {subject.path}")
    else:
        measure.check([subject], folder, number)


_PROBED: Final = 900_000
"""Seeds of what is asked before a measurement begin here."""


def _seed(number: int, connections: int) -> int:
    """Return the seed of the prompts of one measurement in a round, the same for all builds."""
    return number * 1000 + connections


def _ttft_ms(subject: Subject, length: Length) -> float:
    return statistics.median(watch(subject, Shape(concurrent=MANY, chunks=15, pace_ms=8), length.stream_s).ttft_ms)
