"""More than a backend can carry: what is still done in time, by whom, and how soon the rest is told so."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

from tests.bench.live.arrivals import open_loop, poisson
from tests.bench.live.behaviour import Behaviour, Spread
from tests.bench.live.client import Answer, Ask, Clients
from tests.bench.live.scenario import Run, lag_ms, recovery_s, share, warm_up
from tests.bench.live.stage import Play, Stage, stage, uvloop
from tests.bench.live.table import Row, least, most, quantile, spread

_PLACES = 32
_CAPACITY = 80.0
"""Answers a second: so many places, 400 ms each. Ten times that is what one worker can at least refuse."""
_INTERACTIVE = 0.75
"""What interactive clients ask for, of the capacity; at the lowest level half of all requests. The rest is batch."""
_LEVELS = (0.5, 1.0, 2.0, 5.0, 10.0)
_SLO_MS = {"interactive": 1000.0, "batch": 5000.0}
_POLICY = """
surface: {name}
slo: {{deadline: {deadline}}}
tiers: [local]
route: {{classifier: none, start: {{local: otherwise}}}}
load: {{priority: {name}, max_wait: {wait}, max_waiting: 512}}
holdout: 0
"""
_BACKEND = Behaviour(seed=51, ttft=Spread(350, 365), pace=5.0, length=Spread(11, 13), capacity=_PLACES)


def overload(run: Run) -> list[Row]:
    """Levels of load, one after another, and interactive clients alone."""
    policies = {
        "interactive": _POLICY.format(name="interactive", deadline="3s", wait="600ms"),
        "batch": _POLICY.format(name="batch", deadline="10s", wait="4s"),
    }
    backend = {"max_in_flight": _PLACES, "queue": {"length": 512, "wait": "4s"}}
    with stage(run.cores, Play(policies, backend=backend)) as on:
        return uvloop.run(_overload(run, on))


async def _overload(run: Run, on: Stage) -> list[Row]:
    seconds = run.seconds(12, 1.2)
    goodput: dict[float, float] = {}
    async with on.clients(256) as clients:
        await warm_up(clients, "batch", _BACKEND, [on.local])
        run.say("overload: interactive clients alone")
        alone = await _level(clients, _INTERACTIVE, 0.0, seconds)
        for level in _LEVELS[1:2] if run.quick else _LEVELS[:-1]:
            run.say(f"overload: {level:g} times the capacity")
            began = time.monotonic_ns()
            inside = _inside(await _level(clients, *_mix(level), seconds), began, seconds)
            goodput[level] = sum(map(_good, inside)) / (0.75 * seconds)
        run.say(f"overload: {_LEVELS[-1]:g} times the capacity, and after")
        began = time.monotonic_ns()
        calm = _level(clients, 0.4, 0.1, run.seconds(9, 2.2), delay_s=seconds)
        flood, after = await asyncio.gather(_level(clients, *_mix(_LEVELS[-1]), seconds), calm)
        inside = _inside(flood, began, seconds)
        goodput[_LEVELS[-1]] = sum(map(_good, inside)) / (0.75 * seconds)
        recovered = recovery_s(after, began + int(seconds * 1e9), _good)
    return [*_rows(goodput, alone, flood, inside), _recovery(recovered)]


def _mix(level: float) -> tuple[float, float]:
    interactive = min(_INTERACTIVE, level / 2)
    return interactive, level - interactive


async def _level(
    clients: Clients, interactive: float, batch: float, seconds: float, delay_s: float = 0.0
) -> list[Answer]:
    """Answers to both surfaces' clients, whose rates are in capacities."""
    seed = int(1000 * (interactive + batch))
    offers: list[tuple[float, str]] = [
        (at, surface)
        for surface, rate in (("interactive", interactive), ("batch", batch))
        if rate
        for at in poisson(rate * _CAPACITY, seconds, seed, delay_s)
    ]
    asks = [(at, Ask(n, surface, n, stream=False)) for n, (at, surface) in enumerate(sorted(offers), 1)]
    return await open_loop(clients, asks)


def _good(answer: Answer) -> bool:
    return answer.ok and answer.total_ms <= _SLO_MS[answer.ask.model]


def _inside(answers: Sequence[Answer], began_ns: int, seconds: float) -> list[Answer]:
    """Those that ended while the load was on, its first quarter left out, in which the lines fill."""
    begin, end = began_ns + int(seconds * 0.25e9), began_ns + int(seconds * 1e9)
    return [answer for answer in answers if begin <= answer.done_ns < end]


def _rows(
    goodput: dict[float, float], alone: Sequence[Answer], flood: Sequence[Answer], inside: Sequence[Answer]
) -> list[Row]:
    levels = {f"{level:g}x": value for level, value in goodput.items()}
    calm, busy = (_latency(answers) for answers in (alone, flood))
    refused = [answer for answer in flood if answer.status == 503]
    served = [answer.ask.model for answer in inside if answer.ok]
    interactive = [_good(answer) for answer in flood if answer.ask.model == "interactive"]
    kept = goodput[_LEVELS[-1]] / max(goodput.values())
    return [
        Row("overload", f"goodput by load, answers/s ({_CAPACITY:g} is the capacity)", levels),
        Row("overload", "goodput's peak, of the capacity", {"value": max(goodput.values()) / _CAPACITY}, "%"),
        Row("overload", "goodput at 10x, of its peak", {"value": kept}, "%", (least("value", 0.95),)),
        Row(
            "overload",
            "interactive p99 in the flood, of what it is alone",
            {"value": busy["p99"] / calm["p99"], "alone ms": calm["p99"], "flood ms": busy["p99"]},
            "",
            (most("value", 1.2),),
        ),
        Row(
            "overload",
            "interactive answered in time in the flood",
            {"value": share(interactive)},
            "%",
            (least("value", 0.99),),  # or else their p99 is that of those who were lucky
        ),
        Row(
            "overload",
            "batch, of what is served in the flood",
            {"value": share(model == "batch" for model in served)},
            "%",
            (least("value", 0.05),),
        ),
        Row("overload", "time to a 503", spread(answer.total_ms for answer in refused), "ms", (most("p99", 5),)),
        Row("overload", "not answered in the flood, by status", _statuses(flood), "%"),
        Row(
            "overload",
            "503s with Retry-After",
            {"value": share("retry-after" in answer.headers for answer in refused)},
            "%",
            (least("value", 1),),
        ),
        Row("overload", "yardstick: how late the client sends", {"p99": quantile(lag_ms(flood), 0.99)}, "ms"),
    ]


def _statuses(answers: Sequence[Answer]) -> dict[str, float]:
    """The share of each among those that are no answers."""
    counted = Counter(str(answer.status or "broken") for answer in answers if not answer.ok)
    return {status: count / counted.total() for status, count in sorted(counted.items())} or {"none": 0.0}


def _latency(answers: Sequence[Answer]) -> dict[str, float]:
    return spread(answer.total_ms for answer in answers if answer.ok and answer.ask.model == "interactive")


def _recovery(seconds: float) -> Row:
    return Row("overload", "flood's end to 99% answered in time", {"value": seconds}, "s", (most("value", 5),))
