"""Clients that leave at any moment, and races that are lost: how soon a server notices, and what is left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

from tests.bench.live.arrivals import fixed, open_loop, poisson
from tests.bench.live.behaviour import Behaviour, Spread
from tests.bench.live.client import Answer, Ask, Clients
from tests.bench.live.scenario import Run, ms
from tests.bench.live.stage import Play, Seen, Stage, stage, uvloop
from tests.bench.live.table import Row, least, most, spread

_PLACES = 256
_RATE = 120.0
_POLICY = """
surface: leaves
slo: {deadline: 20s}
tiers: [local, hosted]
route: {classifier: none, start: {local: otherwise}}
escalate:
  when: {uncalibrated_below: 0.85}
  stream: {hold_tokens: 12, hold_max: 5s}
holdout: 0
"""
_RACES = """
surface: races
slo: {deadline: 20s}
tiers: [local, hosted]
route: {classifier: none, start: {local: otherwise}}
escalate:
  hedge: {after: 60ms, max_extra_spend: 100%}
  speculate: {both: "tokens_in > 0"}
holdout: 0
"""
_LOCAL = Behaviour(seed=31, ttft=Spread(60, 200), pace=16.0, length=Spread(40, 80), right=0.6)
_HOSTED = Behaviour(seed=32, ttft=Spread(120, 300), pace=16.0, length=Spread(40, 80))
_FULL_HOUSE = Behaviour(seed=33, ttft=Spread(400, 420), pace=1.0, length=Spread(4, 5), token_probability=0.97)
_LONGEST_S = 0.7


def cancel(run: Run) -> list[Row]:
    """10,000 clients in a full run."""
    play = Play({"leaves": _POLICY, "races": _RACES}, backend={"max_in_flight": _PLACES, "adaptive": False})
    with stage(run.cores, play) as on:
        return uvloop.run(_cancel(run, on))


async def _cancel(run: Run, on: Stage) -> list[Row]:
    count = 200 if run.quick else 10_000
    await on.local.behave(_LOCAL)
    await on.hosted.behave(_HOSTED)
    async with on.clients(256) as clients:
        run.say(f"cancel: {count:,} clients that leave")
        times = poisson(_RATE, 1e9, seed=3, most=count)
        left = await open_loop(clients, [(at, _leaver(n)) for n, at in enumerate(times, 1)])
        await asyncio.sleep(0.5)
        noticed, unnoticed = _noticed(left, (await on.local.seen(), await on.hosted.seen()))
        await on.forget()
        run.say("cancel: races")
        raced = await _races(run, on, clients)
        run.say("cancel: does every place still work?")
        in_flight = await _in_flight(clients)
        served, peak = await _full_house(on, clients)
    return [
        Row("cancel", "client closes to the model server noticing", spread(noticed), "ms", (most("p99", 100),)),
        Row("cancel", "calls that went on without a client", {"value": unnoticed}, "", (most("value", 0),)),
        Row("cancel", "race won (client has a token) to the loser noticing", spread(raced), "ms", (most("p99", 100),)),
        Row("cancel", "calls still counted afterwards", {"value": in_flight}, "", (most("value", 0),)),
        Row(
            "cancel",
            f"answered at once, and seen at once, of {_PLACES} calls afterwards",
            {"answered": served, "at once": peak},
            "",
            (least("answered", _PLACES), least("at once", _PLACES)),
        ),
    ]


def _leaver(number: int) -> Ask:
    chance = random.Random(number)
    return Ask(number, "leaves", number, chance.random() < 0.75, leave_after_s=chance.uniform(0.001, _LONGEST_S))


def _noticed(left: Iterable[Answer], seen: Iterable[Seen]) -> tuple[list[float], int]:
    """How long each call went on after its client, and how many went on to their end."""
    times: list[float] = []
    to_the_end = 0
    calls = [calls.by_id() for calls in seen]
    for answer in left:
        for found in calls:
            call = found.get(answer.ask.number)
            if call is None or not answer.left_ns:
                continue
            if call.gone_ns > answer.left_ns:
                times.append(ms(call.gone_ns - answer.left_ns))
            elif not call.gone_ns and (not call.ended_ns or call.ended_ns > answer.left_ns + 100_000_000):
                to_the_end += 1
    return times, to_the_end


async def _races(run: Run, on: Stage, clients: Clients) -> list[float]:
    """From the client's first token to the loser's end, for streams of which both tiers were asked."""
    times = poisson(60, run.seconds(15, 1), seed=4)
    answers = await open_loop(clients, [(at, Ask(n, "races", n)) for n, at in enumerate(times, 1)])
    await asyncio.sleep(0.3)
    first, second = (await on.local.seen()).by_id(), (await on.hosted.seen()).by_id()
    await on.forget()
    return [
        ms(call.gone_ns - answer.first_ns)
        for answer in answers
        if answer.ok and answer.ask.number in first.keys() & second.keys()
        for call in (first[answer.ask.number], second[answer.ask.number])
        if call.gone_ns
    ]


async def _in_flight(clients: Clients) -> int:
    report = await clients.fetch("GET", "/readyz")
    return sum(backend["in_flight"] for tier in report["tiers"].values() for backend in tier["backends"].values())


async def _full_house(on: Stage, clients: Clients) -> tuple[int, int]:
    """As many calls at once as there are places: how many were answered, and how many were there at once."""
    await on.local.behave(_FULL_HOUSE)
    await on.local.forget()
    await clients.open(_PLACES)
    asks = [Ask(n, "leaves", n, headers={"x-tierline-max-tier": "local"}) for n in range(1, _PLACES + 1)]
    answers = await fixed(clients, asks, _PLACES)
    return sum(answer.ok for answer in answers), (await on.local.seen()).peak
