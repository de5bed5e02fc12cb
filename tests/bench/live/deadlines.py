"""No answer after its deadline: clients with little time, model servers with long tails, and some that never answer."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from tests.bench.live.arrivals import open_loop, poisson
from tests.bench.live.behaviour import Behaviour, Spread
from tests.bench.live.client import Answer, Ask
from tests.bench.live.scenario import Run, lag_ms, share
from tests.bench.live.stage import Play, Stage, stage, uvloop
from tests.bench.live.table import Row, most, quantile, spread

_RATE = 300.0
_TOLERANCE_MS = 50.0
_POLICY = """
surface: {name}
slo: {{deadline: 10s, on_miss: {on_miss}}}
tiers: [local, hosted]
route: {{classifier: none, start: {{local: otherwise}}}}
escalate:
  when: {{uncalibrated_below: 0.8}}
  stream: {{hold_tokens: 4, hold_max: 250ms}}
holdout: 0
"""
_TAILS = Behaviour(pace=8.0, length=Spread(6, 14), hangs=0.04, stalls=0.03, fails=0.01)
_LOCAL = replace(_TAILS, seed=21, ttft=Spread(60, 600), right=0.6)
_HOSTED = replace(_TAILS, seed=22, ttft=Spread(150, 900), right=0.9)


def deadlines(run: Run) -> list[Row]:
    """100,000 requests in a full run, 2,000 in a quick one."""
    play = Play({name: _POLICY.format(name=name, on_miss=name) for name in ("serve_best", "fail")})
    with stage(run.cores, play) as on:
        return uvloop.run(_deadlines(run, on))


async def _deadlines(run: Run, on: Stage) -> list[Row]:
    count = 2_000 if run.quick else 100_000
    await on.local.behave(_LOCAL)
    await on.hosted.behave(_HOSTED)
    found: list[Answer] = []
    async with on.clients(256) as clients:
        while len(found) < count:
            batch = min(count - len(found), 10_000)  # so that what is known of each need not be held for all
            run.say(f"deadlines: {len(found):,} of {count:,} requests")
            times = poisson(500 if run.quick else _RATE, 1e9, seed=len(found), most=batch)
            found += await open_loop(clients, [(at, _ask(len(found) + n)) for n, at in enumerate(times)])
            await on.forget()
    return _rows(found)


def _ask(number: int) -> Ask:
    chance = random.Random(number)
    wanted = math.exp(chance.uniform(math.log(50), math.log(2000)))
    surface = chance.choice(("serve_best", "fail"))
    headers = {"x-tierline-deadline-ms": f"{wanted:.0f}"}
    return Ask(number + 1, surface, number + 1, chance.random() < 0.5, headers)


def _late_ms(answer: Answer) -> float:
    return answer.total_ms - float(answer.ask.headers["x-tierline-deadline-ms"])


def _rows(found: list[Answer]) -> list[Row]:
    late = [_late_ms(answer) for answer in found]
    streamed = [answer for answer in found if answer.ask.stream and answer.status == 200]
    figures = {"value": share(one > _TOLERANCE_MS for one in late), "n": len(late)}
    return [
        Row("deadlines", "share answered over 50 ms after the deadline", figures, "%", (most("value", 0),)),
        Row("deadlines", "past the deadline (below 0: before it)", {**spread(late), "max": max(late)}, "ms"),
        Row(
            "deadlines",
            "whole answers / streams cut at the deadline / no answer",
            {
                "whole": share(answer.ok for answer in found),
                "cut": sum(not answer.ok for answer in streamed) / len(found),
                "none": share(answer.status != 200 for answer in found),
            },
            "%",
        ),
        Row(
            "deadlines",
            "yardstick: how late the client sends",
            {"p99": quantile(lag_ms(found), 0.99), "max": max(lag_ms(found))},
            "ms",
        ),
    ]
