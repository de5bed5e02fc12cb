"""Change the state of the world: which tiers are up, how fast they are, what they hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Final

from gateway.lab.explain.moves import Move, Patch, crossings, near, nearest_moves, relative, unchanged
from policies.model import Policy
from routing.decide import DecisionInput, TierHealth
from routing.load.latency import Forecast


def changed_world(policy: Policy, given: DecisionInput, patch: Patch) -> tuple[Policy, DecisionInput] | None:
    """Return the policy and the input in a deployment whose tiers are in another state; None if there is no such."""
    health = dict(given.health)
    unconfigured = dict(policy.unconfigured)
    for (what, *of), value in patch.items():
        if what == "configured":
            tier = unconfigured.pop(of[0])
            health[tier.name] = TierHealth(tier.name, tier.capabilities, 1)
        elif what == "up":
            state = "" if value else _DOWN
            health[of[0]] = replace(health[of[0]], unavailable=state, failing=False, forecast=None)
        elif what == "context":
            health[of[0]] = replace(health[of[0]], context=value)
    for (what, *of), value in patch.items():
        if what == "expected":
            if health[of[0]].unavailable or ("up", of[0]) in patch:
                return None
            health[of[0]] = replace(health[of[0]], forecast=_forecast(health[of[0]].forecast, given, value))
    if len(unconfigured) < len(policy.unconfigured):
        ladder = tuple(name for name in policy.tiers if name in health)
        policy = policy.model_copy(update={"ladder": ladder, "unconfigured": unconfigured})
        health = {name: health[name] for name in ladder}
    return policy, replace(given, health=health, holdout=patch.get(("holdout",), given.holdout))


_DOWN: Final = "down"


def _forecast(now: Forecast | None, given: DecisionInput, seconds: float) -> Forecast:
    if now is None or not now.known:
        return Forecast(seconds, seconds, seconds, 0.0, known=True)
    return replace(now, ttft_s=seconds) if given.features.stream else replace(now, whole_s=seconds)


def world_things(policy: Policy, given: DecisionInput) -> list[list[Move]]:
    """Return, for each state of the world that can matter, the moves that are worth a try."""
    stream = given.features.stream
    limit = given.budget_s if given.ttft_s is None else min(given.budget_s, given.ttft_s)
    expected = {name: _expected_s(one, stream) for name, one in given.health.items()}
    things: list[list[Move]] = []
    for name, one in given.health.items():
        down = bool(one.unavailable)
        things.append([Move(("up", name), down, name, one.unavailable or "up", _DOWN if not down else "up", 1.0)])
        if not down:
            others = {seconds for other, seconds in expected.items() if other != name}
            known = one.forecast is not None and one.forecast.known
            things.append(_expected_moves(name, expected[name] if known else None, limit, others, stream=stream))
        if given.room:
            values = [given.room] if one.context is not None and one.context < given.room else [given.room - 1]
            things.append(
                [
                    Move(
                        ("context", name), most, f"tokens that {name} holds",
                        "unknown" if one.context is None else str(one.context), str(most),
                        1.0 if one.context is None else relative(one.context, most),
                    )
                    for most in values
                ]
            )  # fmt: skip
    for name, tier in policy.unconfigured.items():
        things.append([Move(("configured", name), True, name, tier.unconfigured, "configured", 1.0)])
    if given.holdout:
        things.append([Move(("holdout",), False, "holdout", "drawn", "not drawn", 1.0)])
    return [moves for moves in things if moves]


def _expected_moves(name: str, now: float | None, limit: float, others: set[float], *, stream: bool) -> list[Move]:
    cuts = {limit, *others}
    values = sorted({value for value in crossings(unchanged, cuts, 0.0, math.inf) if value >= 0})
    tests: list[Callable[[Any], Hashable]] = [lambda value: (value or 0.0) <= limit]
    tests += [
        lambda value, other=other: ((value or 0.0) > other) - ((value or 0.0) < other)  # type: ignore[misc]
        for other in others
    ]
    texts = {cut * 1000 for cut in cuts}
    what = f"time that {name} is expected to take to {'a first token' if stream else 'its answer'}"
    return nearest_moves(
        ("expected", name), what, now, values, tests, relative,
        lambda value: "unknown" if value is None else f"{near(value * 1000, texts)} ms", same_if_missing=True,
    )  # fmt: skip


def _expected_s(health: TierHealth, stream: bool) -> float:
    forecast = health.forecast
    return 0.0 if forecast is None or not forecast.known else forecast.ttft_s if stream else forecast.whole_s
