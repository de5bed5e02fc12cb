"""What tracing costs a request in CPU: `python -m tests.bench.tracing [--rounds N] [--json]`.

    recorded     all that the trace does on a request's path: ids, hops, attributes, the header to the backend, the
                 decision whether it is sampled, and the place in telemetry's queue
    sampled out  what of that is done for the trace alone: the ledger, the metrics and the reply's headers read the hops
                 of every request, and tail sampling may still keep them, so these are there anyway
    afterwards   what telemetry's background task does for a recorded request beyond one that is sampled out, in the
                 worker but after the reply: working out what decided each hop, and a longer record

All replay the trace of a real request (an escalated stream over two scripted tiers: the most hops that one request
usually has) on this thread, with the variants in turn in every round. CPU is the thread's own; on a busy machine it is
up to twice that of a quiet one. Each figure is the median of the rounds with the interval that has the median of
repeated runs in 95 of 100. The exit code is 1 where a target is missed.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.parts.reasons import details
from gateway.parts.recorder.decision_record import DecisionRecorder
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger, ledger_blob
from gateway.telemetry.sampling import HEAD, bound_of
from gateway.telemetry.trace import NO_PARENT, Trace
from tests.bench.command import bench_parser
from tests.support.app import in_process
from tests.support.store import local_store
from tests.support.upstream import Reply, Upstream

RECORDED_US, SAMPLED_OUT_US = 25.0, 3.0
_POLICY = """
surface: chat
slo: {deadline: 20s, ttft: {p99: 10s}}
holdout: 0%
tiers: [local, hosted]
route: {classifier: default, start: {local: (p_adequate >= 0 or not in_domain) and tokens_in < 2000, hosted: otherwise}}
escalate:
  when: {uncalibrated_below: 0.5}
  stream: {hold_tokens: 16, hold_max: 5s}
cache: {exact: {ttl: 1h}, semantic: {ttl: 1h}}
"""
_DOUBTFUL = Reply(tokens=tuple(f" word{i}" for i in range(16)), logprob=-3.0)
_SURE = Reply(text="An answer of the stronger model, of a dozen words or so, as it comes.")
_ROUNDED = frozenset({names.QUEUE, names.TTFT, names.SIMILARITY, names.THRESHOLD, names.CHECK_MS, names.CACHE_AGE})
"""Numbers that the steps round themselves."""
_DESCRIBED = frozenset(names.of_call("", "", "", "http://host:1"))
OTHERS_READ = frozenset(
    {
        names.CACHE_OUTCOME, names.CACHE_REASON, names.CACHE_ENTRY, names.CACHE_SCORE, names.CACHE_CREATED,
        names.EMBEDDER, names.HOLDOUT, names.DECISION, names.REASON, names.ATTEMPT_NUMBER, names.TIER,
        names.BACKEND, names.OUTCOME, names.HEDGE, names.SPECULATIVE, names.CONFIDENCE, names.CONFIDENCE_BASIS,
        names.CONFIDENCE_HEAD, names.QUEUE, names.TTFT, names.COST, names.COST_UNKNOWN, names.USAGE_ESTIMATED,
        names.GEN_AI_REQUEST_MODEL, names.GEN_AI_TOKENS_IN, names.GEN_AI_TOKENS_OUT, names.GEN_AI_FINISH,
    }
)  # fmt: skip
"""Attributes that accounting, metrics, headers or feedback read of every request."""


@dataclass(frozen=True)
class Figure:
    """A median in microseconds, and its interval."""

    what: str
    median_us: float
    low_us: float
    high_us: float
    target_us: float | None = None

    @property
    def met(self) -> bool:
        return self.target_us is None or self.median_us <= self.target_us

    def __str__(self) -> str:
        target = "" if self.target_us is None else f"   at most {self.target_us:g}{'' if self.met else '   MISSED'}"
        return f"{self.what:<14}{self.median_us:8.2f} us   {self.low_us:.2f} to {self.high_us:.2f}{target}"


def figure(what: str, rounds: Sequence[float], target_us: float | None = None) -> Figure:
    """The median of the rounds, with the order statistics that hold it in 95 of 100."""
    ordered, n = sorted(rounds), len(rounds)
    off = int(0.98 * n**0.5 + 0.5)
    low, high = ordered[max(0, n // 2 - off)], ordered[min(n - 1, n // 2 + off)]
    return Figure(what, statistics.median(rounds), low, high, target_us)


async def request_trace(folder: Path) -> tuple[Trace, Ledger]:
    """The trace and the ledger of one escalated stream, as they were when its reply was out."""
    with local_store() as store, Upstream() as upstream:
        _scripted(upstream)
        async with _app(folder, upstream, store.url) as app:
            taken: list[tuple[Trace, Ledger]] = []
            app.steps.telemetry.record = lambda *finished: taken.append(finished)  # type: ignore[method-assign]
            await app.ask("What is the capital of France?", stream=True)
            while not taken:
                await asyncio.sleep(0.001)
            return taken[0]


def _scripted(upstream: Upstream) -> None:
    upstream.on(lambda request: request.body["model"] == "small").reply(_DOUBTFUL)
    upstream.on(lambda request: request.body["model"] == "large").reply(_SURE)


def _app(folder: Path, upstream: Upstream, store_url: str) -> Any:
    return in_process(folder, upstream.url, upstream.url, store_url=store_url, policies={"chat": _POLICY})


def replay(trace: Trace, only: Callable[[str], bool]) -> Callable[[], None]:
    """Return what does on a new trace what was done on this one, with those attributes alone.

    It is compiled without loops, as the steps' own code has none; numbers are rounded again, and what describes the
    backend is added as one mapping.
    """
    described = {name: value for hop in trace.hops for name, value in hop.attributes.items() if name in _DESCRIBED}
    values: list[Any] = []
    lines = ["def once():", " trace = Trace(REQUEST, NO_PARENT, BELOW)", " attributes = trace.root.attributes"]
    for number, hop in enumerate(trace.hops):
        if number:
            lines += [f" hop = trace.begin({hop.name!r})", " attributes = hop.attributes"]
        if names.BACKEND in hop.attributes:
            lines += [" trace.traceparent(hop)"]
            lines += [" attributes.update(DESCRIBED)", " hop.load = (1, 8, 0, None)"]
        for name, value in hop.attributes.items():
            if name in _DESCRIBED or not only(name):
                continue
            values.append(value)
            made = f"VALUES[{len(values) - 1}]"
            lines.append(
                f" attributes[{name!r}] = {f'round({made}, 4)' if type(value) is float and name in _ROUNDED else made}"
            )
        lines.append(" hop.end()" if number else " trace.root.end()")
    lines += [" trace.deadline_s = 20.0", " trace.ttft_s = 10.0", " QUEUE.append((trace, None))", " EVENT.set()"]
    scope = {
        "Trace": Trace, "REQUEST": names.REQUEST, "NO_PARENT": NO_PARENT, "BELOW": bound_of(0.1), "VALUES": values,
        "DESCRIBED": {name: value for name, value in described.items() if only(name)},
        "QUEUE": deque[Any](maxlen=64), "EVENT": asyncio.Event(),
    }  # fmt: skip
    exec(compile("\n".join(lines), "replay", "exec"), scope)
    once: Any = scope["once"]
    return once  # type: ignore[no-any-return]


def on_path(trace: Trace, rounds: int, times: int = 300) -> list[Figure]:
    """The figures of a request's path: `recorded` and `sampled out`."""
    variants = {
        "all": replay(trace, lambda _: True),
        "needed": replay(trace, OTHERS_READ.__contains__),
        "nothing": _nothing,
    }
    seen: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + 2):
        for name in [*variants][turn % 3 :] + [*variants][: turn % 3]:
            run, began = variants[name], time.thread_time_ns()
            for _ in range(times):
                run()
            if turn > 1:
                seen[name].append((time.thread_time_ns() - began) / times / 1000)
    recorded = [a - b for a, b in zip(seen["all"], seen["nothing"], strict=True)]
    sampled = [a - b for a, b in zip(seen["all"], seen["needed"], strict=True)]
    return [
        figure("recorded", recorded, RECORDED_US),
        figure("sampled out", sampled, SAMPLED_OUT_US),
    ]


def _nothing() -> None:
    """Take the time that a call takes."""


def afterwards(trace: Trace, ledger: Ledger, rounds: int, times: int = 100) -> Figure:
    """What a recorded request costs the worker after its reply, beyond one that is sampled out."""
    before = [dict(hop.attributes) for hop in trace.hops]
    recorder, more = DecisionRecorder({}), []
    for turn in range(rounds + 2):
        spent: dict[str, float] = {}
        for kept in ("head", "") if turn % 2 else ("", "head"):
            ledger.kept, took = kept, 0
            for _ in range(times):
                for hop, attributes in zip(trace.hops, before, strict=True):
                    hop.attributes = dict(attributes)
                began = time.thread_time_ns()
                if kept:
                    details.complete(trace)
                ledger_blob(trace, ledger, recorder)
                took += time.thread_time_ns() - began
            spent[kept] = took / times / 1000
        if turn > 1:
            more.append(spent["head"] - spent[""])
    return figure("afterwards", more)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = bench_parser("tracing", __doc__)
    parser.add_argument("--rounds", type=int, default=60, metavar="N", help="rounds of each figure (default: 60)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        trace, ledger = asyncio.run(request_trace(Path(folder)))
    attributes = sum(len(hop.attributes) for hop in trace.hops)
    figures = [*on_path(trace, options.rounds), afterwards(trace, ledger, options.rounds)]
    ledger.kept = HEAD
    size = len(ledger_blob(trace, ledger))
    if options.json:
        print(json.dumps([vars(one) | {"met": one.met} for one in figures], indent=2))
    else:
        print(f"{len(trace.hops)} hops with {attributes} attributes on the path; a record of {size} bytes")
        print("\n".join(map(str, figures)))
    return 0 if all(one.met for one in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
