"""The rounds: every subject in turn, again and again, so that a noisy minute falls on all of them alike."""

from __future__ import annotations

import http.client
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from tests.bench.load import NotAsMeant, Subject, fresh_prompt, run_wrk
from tests.bench.rig import Rig
from tests.bench.streams import Shape, Watched, watch
from tests.support.wait import until

Figures = dict[str, float]
"""Name of a figure to its value; `_ms` and `_us` names carry their unit."""

Say = Callable[[str], None]

_HALF_CONNECTIONS = 64
_PROBES = 40
_SETTLE_S = 5.0
"""A cache is written after the reply is sent."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a run takes: rounds, and the seconds of each measurement in one. wrk knows whole seconds only."""

    rounds: int
    throughput_s: int
    latency_s: int
    stream_s: float
    concurrencies: tuple[int, ...] = (1, 16, 64)
    half_load: bool = True


QUICK = Plan(rounds=1, throughput_s=1, latency_s=1, stream_s=1.3)
FULL = Plan(rounds=5, throughput_s=3, latency_s=2, stream_s=3.0)


def request_round(subjects: Sequence[Subject], folder: Path, plan: Plan, seed: int, say: Say) -> dict[str, Figures]:
    """One round of requests; `direct` must be the first subject, since latencies are told as what is added to it."""
    found: dict[str, Figures] = {}
    for number, subject in enumerate(subjects):
        say(f"requests: {subject.name}")
        found[subject.name] = requests(subject, folder, plan, seed * 100 + number)
    direct = found["direct"]
    for subject in subjects:
        figures = found[subject.name]
        for name in [name for name in figures if name.startswith("latency_")]:
            base = 0.0 if subject.name == "exact" else direct[name.replace("_half", "_c1")]
            figures[name.replace("latency", "added")] = figures[name] - base
    return beside_raw(found)


def beside_raw(found: dict[str, Figures]) -> dict[str, Figures]:
    """Each figure also as a ratio to the raw proxy's of the same round, under `x_raw_` and its name."""
    raw = found.get("raw", {})
    return {
        name: figures | {f"x_raw_{key}": value / raw[key] for key, value in figures.items() if raw.get(key, 0) > 0}
        for name, figures in found.items()
    }


def requests(subject: Subject, folder: Path, plan: Plan, seed: int) -> Figures:
    """One subject's figures at each concurrency, with `seed` for the prompts."""
    figures: Figures = {"failed": 0, "strayed": 0}
    for connections in plan.concurrencies:
        seconds = plan.throughput_s if connections == 16 else plan.latency_s
        got = run_wrk(subject, folder, connections, seconds, seed * 1000 + connections)
        figures[f"latency_p50_c{connections}_ms"] = got.p50_ms
        figures[f"latency_p99_c{connections}_ms"] = got.p99_ms
        figures["failed"] += got.failed
        figures["strayed"] += got.strayed
        if connections == 16:
            figures |= {"per_second": got.per_second, "cpu_us": got.cpu_us, "core": got.core}
    if plan.half_load:
        think = _HALF_CONNECTIONS / (figures["per_second"] / 2) * 1000
        got = run_wrk(subject, folder, _HALF_CONNECTIONS, plan.latency_s, seed * 1000 + 999, think)
        figures["latency_p50_half_ms"], figures["latency_p99_half_ms"] = got.p50_ms, got.p99_ms
        figures["half_per_second"] = got.per_second
        figures["failed"] += got.failed
        figures["strayed"] += got.strayed
    return figures


def stream_round(subjects: Sequence[Subject], plan: Plan, say: Say) -> dict[str, Figures]:
    """One round of streams; `direct` first."""
    found: dict[str, Figures] = {}
    for subject in subjects:
        say(f"streams: {subject.name}")
        found[subject.name] = _streams(subject, plan)
    direct = found["direct"]
    for figures in found.values():
        for name in ("ttft_c1_ms", "ttft_c16_ms", "jitter_p99_ms"):
            if name in figures:
                figures[f"added_{name}"] = figures[name] - direct[name]
    return beside_raw(found)


def _streams(subject: Subject, plan: Plan) -> Figures:
    paced = Shape(concurrent=16, chunks=150, pace_ms=8)
    runs: list[Watched] = [watch(subject, paced, plan.stream_s)]
    figures = {"chunk_us": runs[0].cpu_us_per_chunk}
    if subject.name != "judged":  # it shows nothing before its end
        runs.append(watch(subject, Shape(concurrent=1, chunks=4, pace_ms=1), plan.stream_s / 2))
        runs.append(watch(subject, Shape(concurrent=16, chunks=15, pace_ms=8), plan.stream_s / 2))
        figures["ttft_c1_ms"] = statistics.median(runs[1].ttft_ms)
        figures["ttft_c16_ms"] = statistics.median(runs[2].ttft_ms)
        figures["jitter_p99_ms"] = quantile([abs(gap - paced.pace_ms) for gap in runs[0].gaps_ms], 0.99)
    figures["failed"] = sum(run.failed for run in runs)
    return figures


def stream_subjects(rig: Rig) -> list[Subject]:
    """What streams are compared: nothing, nginx, the bare proxy, ours committed at once, ours held to its end."""
    yardsticks = [Subject("direct", rig.direct), Subject("nginx", rig.nginx), Subject("raw", rig.raw)]
    if rig.gateway is None:
        return yardsticks
    return [
        *yardsticks,
        Subject("bare", rig.gateway, path="direct"),
        Subject("judged", rig.gateway, model="judged", path="direct"),
    ]


def check(subjects: Sequence[Subject], folder: Path, turn: int) -> None:
    """Raises NotAsMeant unless each subject goes the path it stands for; no two `turn`s ask the same new prompts."""
    for subject in subjects:
        if subject.reworded:
            ask(subject)  # what the others mean
            others = (fresh_prompt(subject, folder, number) for number in count((turn + 1) * 1_000_000))
            until(partial(_next_goes_its_way, subject, others), _SETTLE_S, f"{subject.name} to go {subject.path}")
        if subject.unique or subject.reworded or subject.texts is not None:
            paths = {ask(subject, fresh_prompt(subject, folder, turn * _PROBES + n)) for n in range(_PROBES)}
        else:
            until(partial(_goes_its_way, subject), _SETTLE_S, f"{subject.name} to go {subject.path}")
            paths = {ask(subject) for _ in range(_PROBES)}
        if paths != {subject.path}:
            raise NotAsMeant(f"{subject.name} went {sorted(paths)}, not {subject.path}")


def _goes_its_way(subject: Subject) -> bool:
    return ask(subject) == subject.path


def _next_goes_its_way(subject: Subject, prompts: Iterator[str]) -> bool:
    """What missed is stored, and an exact hit from then on; so each turn asks another prompt."""
    return ask(subject, next(prompts)) == subject.path


def ask(subject: Subject, prompt: str | None = None) -> str:
    """The x-tierline-path of one request."""
    return reply_to(subject, prompt)[0]


def reply_to(subject: Subject, prompt: str | None = None) -> tuple[str, bytes]:
    """The x-tierline-path and the body of one reply."""
    body = subject.body(prompt) if prompt is not None else subject.body()
    connection = http.client.HTTPConnection("127.0.0.1", subject.service.port, timeout=10)
    try:
        connection.request("POST", subject.target, body, {"content-type": "application/json", **subject.headers})
        reply = connection.getresponse()
        text = reply.read()
        if reply.status != 200:
            raise NotAsMeant(f"{subject.name}: {reply.status} {text[:500].decode(errors='replace')}")
        return reply.headers.get("x-tierline-path", ""), text
    finally:
        connection.close()


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of `values` stay under; 0 when there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def medians(rounds: Sequence[dict[str, Figures]]) -> dict[str, Figures]:
    """Each figure's median over the rounds in which it was found."""
    found: dict[str, Figures] = {}
    for name in rounds[0]:
        keys = dict.fromkeys(key for one in rounds for key in one[name])
        found[name] = {key: statistics.median(one[name][key] for one in rounds if key in one[name]) for key in keys}
    return found
