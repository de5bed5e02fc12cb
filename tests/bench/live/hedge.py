"""Hedging against a model server that now and then takes twenty times as long, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.bench.live.arrivals import open_loop, poisson
from tests.bench.live.behaviour import Behaviour, Spread
from tests.bench.live.client import Answer, Ask, Clients
from tests.bench.live.scenario import Run
from tests.bench.live.stage import Play, Prices, Stage, stage, uvloop
from tests.bench.live.table import Row, most, quantile
from tests.bench.live.upstream import Record

_RATE = 60.0
_POLICY = """
surface: {name}
slo: {{deadline: 20s}}
tiers: [local, hosted]
route: {{classifier: none, start: {{local: otherwise}}}}
{escalate}
holdout: 0
"""
_HEDGE = "escalate: {hedge: {after: p95, max_extra_spend: 3%}}"
_HOSTED = Behaviour(seed=72, ttft=Spread(120, 200), pace=4.0, length=Spread(40, 60))
_PRICES = Prices(1.0, 4.0), Prices(1.5, 6.0)


def hedge(run: Run) -> list[Row]:
    """The same prompts, without and with hedging."""
    policies = {
        "plain": _POLICY.format(name="plain", escalate=""),
        "hedged": _POLICY.format(name="hedged", escalate=_HEDGE),
    }
    with stage(run.cores, Play(policies, _PRICES)) as on:
        return uvloop.run(_hedge(run, on))


async def _hedge(run: Run, on: Stage) -> list[Row]:
    slow = Spread(100, 130, slow=0.03, slow_p50=1000 if run.quick else 2000)
    await on.local.behave(Behaviour(seed=71, ttft=slow, pace=4.0, length=Spread(40, 60)))
    await on.hosted.behave(_HOSTED)
    times = poisson(_RATE, run.seconds(35, 1.2), seed=7)
    async with on.clients(128) as clients:
        await _ask(clients, "plain", times[: len(times) // 4])  # for the latency model to have something to go by
        await on.forget()
        run.say(f"hedge: {len(times):,} streams, unhedged")
        plain, plain_cost, _ = await _measure(on, clients, "plain", times)
        run.say(f"hedge: {len(times):,} streams, hedged")
        hedged, hedged_cost, second = await _measure(on, clients, "hedged", times)
    before, after = _quantiles(plain), _quantiles(hedged)
    billed = sum(answer.cost_usd for answer in hedged) / max(1e-12, sum(answer.cost_usd for answer in plain)) - 1
    ratio = after["p99"] / before["p99"]
    return [
        Row("hedge", "TTFT unhedged", before, "ms"),
        Row("hedge", "TTFT hedged", after, "ms"),
        Row("hedge", "TTFT p99, hedged of unhedged", {"value": ratio, "n": len(hedged)}, "%", (most("value", 0.5),)),
        Row("hedge", "spent more, by the servers' tokens", {"value": hedged_cost / plain_cost - 1}, "%", _SPEND),
        Row("hedge", "spent more, by what clients are told", {"value": billed}, "%", _SPEND),
        Row("hedge", "requests for which the next tier was asked", {"value": second / len(times)}, "%"),
    ]


_SPEND = (most("value", 0.03),)


async def _measure(
    on: Stage, clients: Clients, surface: str, times: Sequence[float]
) -> tuple[list[Answer], float, int]:
    """Answers, dollars by the servers' own count, calls of the second tier."""
    answers = await _ask(clients, surface, times)
    first, second = await on.local.seen(), await on.hosted.seen()
    await on.forget()
    return answers, _dollars(first.calls, _PRICES[0]) + _dollars(second.calls, _PRICES[1]), len(second.calls)


async def _ask(clients: Clients, surface: str, times: Sequence[float]) -> list[Answer]:
    return await open_loop(clients, [(at, Ask(n, surface, n)) for n, at in enumerate(times, 1)])


def _dollars(calls: Iterable[Record], prices: Prices) -> float:
    return sum(prices.of(call.tokens_in, call.tokens_out) for call in calls)


def _quantiles(answers: Sequence[Answer]) -> dict[str, float]:
    found = [answer.ttft_ms for answer in answers if answer.ok]
    return {"p50": quantile(found, 0.5), "p95": quantile(found, 0.95), "p99": quantile(found, 0.99), "n": len(found)}
