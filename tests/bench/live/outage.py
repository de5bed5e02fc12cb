"""Every backend down: how often they are asked all the same, and how soon it is noticed that they are back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.bench.live.arrivals import open_loop, poisson
from tests.bench.live.behaviour import Behaviour, Outage, Spread
from tests.bench.live.client import Answer, Ask
from tests.bench.live.scenario import Run, recovery_s, warm_up
from tests.bench.live.stage import Play, Stage, stage, uvloop
from tests.bench.live.table import Row, most, spread

_RATE = 200.0
_POLICY = """
surface: falls
slo: {deadline: 2s}
tiers: [local, hosted]
route: {classifier: none, start: {local: otherwise}}
holdout: 0
"""
_UP = Behaviour(seed=61, ttft=Spread(30, 60), pace=2.0, length=Spread(10, 15))


@dataclass(frozen=True, slots=True)
class _Fall:
    """One outage as it was: when it began and ended, and how long everything was well again."""

    kind: Outage
    began_ns: int
    ended_ns: int
    next_ns: int

    def during(self, answers: Sequence[Answer]) -> list[Answer]:
        return [answer for answer in answers if self.began_ns <= answer.sent_ns < self.ended_ns]

    def after(self, answers: Sequence[Answer]) -> list[Answer]:
        return [answer for answer in answers if self.ended_ns <= answer.sent_ns < self.next_ns]


def outage(run: Run) -> list[Row]:
    """Both tiers refuse, then come back, then hang, then come back."""
    with stage(run.cores, Play({"falls": _POLICY}, backend={"patience": "500ms"})) as on:
        return uvloop.run(_outage(run, on))


async def _outage(run: Run, on: Stage) -> list[Row]:
    lengths = ((0.5, 1.0), (2.5, 1.5), (2.5, 0.0)) if run.quick else ((3.0, 6.0), (9.0, 12.0), (9.0, 0.0))
    times = poisson(_RATE, sum(map(sum, lengths)), seed=6)
    run.say(f"outage: {len(times):,} requests")
    async with on.clients(256) as clients:
        await warm_up(clients, "falls", _UP, [on.local, on.hosted])
        asks = [(at, Ask(n, "falls", n, stream=False)) for n, at in enumerate(times, 1)]
        answers, falls = await asyncio.gather(open_loop(clients, asks), _conduct(on, lengths))
    return [row for fall in falls for row in _rows(fall, answers)]


async def _conduct(on: Stage, lengths: Sequence[tuple[float, float]]) -> list[_Fall]:
    """Ups and downs of these lengths; the kinds of outage in turn."""
    falls: list[_Fall] = []
    kinds: tuple[Outage, ...] = ("refuse", "hang")
    for kind, (up_s, down_s) in zip(kinds, lengths, strict=False):
        await asyncio.sleep(up_s)
        began = await _both(on, kind)
        await asyncio.sleep(down_s)
        falls.append(_Fall(kind, began, await _both(on, "none"), 0))
    await asyncio.sleep(lengths[-1][0])
    ends = [*(fall.began_ns for fall in falls[1:]), time.monotonic_ns()]
    return [replace(fall, next_ns=end) for fall, end in zip(falls, ends, strict=True)]


async def _both(on: Stage, kind: Outage) -> int:
    await asyncio.gather(*(backend.behave(replace(_UP, outage=kind)) for backend in (on.local, on.hosted)))
    return time.monotonic_ns()


def _rows(fall: _Fall, answers: Sequence[Answer]) -> list[Row]:
    down = fall.during(answers)
    per_request = sum(answer.attempts for answer in down) / max(1, len(down))
    named = {"refuse": "both tiers refuse", "hang": "both tiers hang"}[fall.kind]
    recovered = recovery_s(fall.after(answers), fall.ended_ns, lambda answer: answer.ok)
    return [
        Row(
            "outage",
            f"{named}: attempts per request",
            {"value": per_request, "n": len(down)},
            "",
            (most("value", 1.10),),
        ),
        Row("outage", f"{named}: time to the client's error", spread(answer.total_ms for answer in down), "ms"),
        Row("outage", f"{named}: their return to 99% answered", {"value": recovered}, "s", (most("value", 5),)),
    ]
