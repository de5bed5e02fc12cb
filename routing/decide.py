"""Where a request starts, and which tiers may follow: policy, difficulty and health in, a Decision out. Pure.

The order of things: the request's own limits and the capabilities it needs narrow the policy's ladder, which holds the
tiers that are configured; the first start rule that holds names the tier that is wanted, or where that one is not open
to the request, the next stronger one; tiers that cannot answer now are left out, and the decision says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, Literal

from policies.model import DeployedTier, Policy
from routing.difficulty.model import Difficulty
from routing.features import Features
from routing.load.latency import Forecast

Capability = Literal["tools", "vision", "json"]


class NoTierError(Exception):
    """No tier can take this request. `capable` is False when none ever could: the caller asks for too much."""

    def __init__(self, message: str, *, capable: bool) -> None:
        super().__init__(message)
        self.capable = capable


@dataclass(frozen=True, slots=True)
class TierHealth:
    """What routing knows of a tier at this moment. `unavailable` is empty, or why no backend of it can answer.

    `context` is how many tokens its backends hold, prompt and reply together; None if that is not known.
    `failing`: it is unavailable only for having failed, and may be asked when nothing else can answer. `forecast` is
    how long its next call would take, for a prompt of this request's length.
    """

    name: str
    capabilities: frozenset[str]
    endpoints: int
    unavailable: str = ""
    failing: bool = False
    forecast: Forecast | None = None
    context: int | None = None

    def unfit_for(self, needed: Set[str], room: int) -> str:
        """Why it cannot take a request that needs these capabilities and so many tokens; empty if it can."""
        if lacking := needed - self.capabilities:
            return f"{self.name} cannot do {', '.join(sorted(lacking))}"
        if self.context is not None and room > self.context:
            return f"{self.name} holds {self.context} tokens, and this may take {room} or more"
        return ""


@dataclass(frozen=True, slots=True)
class Clamp:
    """The tiers a request allows itself, by name; None leaves that end of the ladder open."""

    min_tier: str | None = None
    max_tier: str | None = None

    def of(self, policy: Policy) -> tuple[str, ...]:
        """The part of a policy's ladder that lies between the two, which need not be on it themselves."""
        within = self._within(policy.tiers)
        return tuple(name for name in policy.ladder if name in within)

    def unconfigured(self, policy: Policy) -> list[DeployedTier]:
        """The tiers between the two that are not on the ladder."""
        within = self._within(policy.tiers)
        return [tier for name, tier in policy.unconfigured.items() if name in within]

    def _within(self, tiers: tuple[str, ...]) -> tuple[str, ...]:
        low = tiers.index(self.min_tier) if self.min_tier in tiers else 0
        high = tiers.index(self.max_tier) if self.max_tier in tiers else len(tiers) - 1
        return tiers[low : high + 1]


@dataclass(frozen=True, slots=True)
class Decision:
    """The tiers to try, in order, and the reason.

    `tiers` starts with the one that answers first; the next ones take over by escalation. `fallbacks` are weaker tiers,
    tried only when all of `tiers` fail. `missing` are tiers that could take over if they could answer now: an answer
    that would have gone on to one of them must say so. `stand_in` says why the tier that was wanted does not start;
    `weaker`, that the one which starts in its place is a weaker one.
    """

    tiers: tuple[str, ...]
    fallbacks: tuple[str, ...]
    reason: str
    stand_in: str = ""
    weaker: bool = False
    missing: tuple[str, ...] = ()


def decide(
    policy: Policy,
    difficulty: Difficulty | None,
    features: Features,
    health: Mapping[str, TierHealth],
    budget_s: float,
    clamp: Clamp | None = None,
    *,
    ttft_s: float | None = None,
    holdout: bool = False,
    room: int = 0,
) -> Decision:
    """The decision for one request; raises NoTierError. `budget_s` is what is left of the deadline, in seconds.

    `ttft_s` is what is left for the first token of a stream; None where nothing limits it. With `holdout` the strongest
    tier starts, whatever the difficulty. `room` is how many tokens the prompt and the reply may take together.
    """
    capable, unfit = _capable(policy, clamp, features, room, health)
    lacks = "".join(f"; {tier.why_not}" for tier in policy.unconfigured.values())
    if len(capable) == 1:
        reason = "; ".join([f"{capable[0]} alone is open to it", *unfit.values()])
        return _with_health(capable[0], capable, health, f"{reason}{lacks}")
    if holdout:
        reason = f"{capable[-1]}: held out, to measure the others against{lacks}"
        return _with_health(capable[-1], capable, health, reason)
    wanted, reason = _wanted(policy, difficulty, features, budget_s)
    start = _nearest(policy.tiers, capable, wanted)
    if start != wanted and wanted not in policy.unconfigured:
        reason += f"; {unfit.get(wanted) or f'{wanted} is not open to this request'}"
    reason += lacks
    limit = budget_s if ttft_s is None else min(budget_s, ttft_s)
    quick = _in_time(capable[capable.index(start) :], health, features.stream, limit)
    if quick == start or health[start].unavailable:
        return _with_health(start, capable, health, reason)
    decision = _with_health(quick, capable, health, reason)
    return replace(decision, stand_in=_too_slow(start, health[start], features.stream, limit))


def _in_time(adequate: tuple[str, ...], health: Mapping[str, TierHealth], stream: bool, limit_s: float) -> str:
    """The cheapest of the adequate tiers that is expected to answer in time; where none is, the fastest of them."""
    open_ = [name for name in adequate if not health[name].unavailable] or list(adequate)
    expected = {name: _expected_s(health[name], stream) for name in open_}
    return next((name for name in open_ if expected[name] <= limit_s), min(open_, key=expected.__getitem__))


def _expected_s(health: TierHealth, stream: bool) -> float:
    """What the client would wait: for the first token of a stream, for the whole of JSON; 0 where it is not known."""
    forecast = health.forecast
    if forecast is None or not forecast.known:
        return 0.0
    return forecast.ttft_s if stream else forecast.whole_s


def _too_slow(name: str, health: TierHealth, stream: bool, limit_s: float) -> str:
    forecast = health.forecast
    if forecast is None:
        raise AssertionError("a tier is found too slow by its forecast")
    what = "a first token" if stream else "an answer"
    why = "cold" if forecast.cold else "slow now"
    expected = _expected_s(health, stream) * 1000
    queued = f", {forecast.queue_s * 1000:.0f} ms of it in line" if forecast.queue_s else ""
    return f"{name} is {why}: {expected:.0f} ms expected to {what}{queued}, {limit_s * 1000:.0f} ms left"


def _capable(
    policy: Policy, clamp: Clamp | None, features: Features, room: int, health: Mapping[str, TierHealth]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The tiers that are open to this request, and why each of the others of its ladder is not.

    `room` is a bound, no count. Where none of the tiers that surely hold it can answer now, the others are asked too:
    their backends count. Raises NoTierError, which names the keys that would open a tier.
    """
    ladder, needed = policy.ladder if clamp is None else clamp.of(policy), needs(features)
    unfit = {name: why for name in ladder if (why := health[name].unfit_for(needed, room))}
    capable = tuple(name for name in ladder if name not in unfit)
    if unfit and not any(not health[name].unavailable for name in capable):
        capable = tuple(name for name in ladder if needed <= health[name].capabilities)
        unfit = {name: why for name, why in unfit.items() if name not in capable}
    if capable:
        return capable, unfit
    lacking = [tier.why_not for tier in (clamp or Clamp()).unconfigured(policy) if needed <= tier.capabilities]
    if lacking:
        raise NoTierError(f"no tier can answer this: {'; '.join(lacking)}", capable=True)
    if not needed:
        raise NoTierError("no tier lies within the request's own limits", capable=False)
    raise NoTierError(f"no tier of this surface can do what is asked: {', '.join(sorted(needed))}", capable=False)


def needs(features: Features) -> set[str]:
    """The capabilities without which a tier cannot take the request."""
    needed: set[str] = set()
    if features.has_tools:
        needed.add("tools")
    if features.has_images:
        needed.add("vision")
    if features.wants_json:
        needed.add("json")
    return needed


def _wanted(policy: Policy, difficulty: Difficulty | None, features: Features, budget_s: float) -> tuple[str, str]:
    values = rule_values(difficulty, features, budget_s)
    for tier, rule in policy.route.start.items():
        if rule.holds({**values, "p_adequate": _p_adequate(difficulty, policy.tiers, tier)}):
            return tier, f"{tier}: {rule.source}"
    raise AssertionError("a checked policy has a rule that always holds")


def rule_values(difficulty: Difficulty | None, features: Features, budget_s: float) -> dict[str, Any]:
    """The names a start rule may use, as the cheapest tier's rule sees them: `p_adequate` is each tier's own.

    Out of its domain the classifier has no `p_adequate` and no `difficulty`.
    """
    known = difficulty is not None and difficulty.in_domain
    return {
        "p_adequate": difficulty.p_adequate if difficulty is not None and known else None,
        "difficulty": difficulty.score if difficulty is not None and known else None,
        "in_domain": known,
        "tokens_in": features.approx_tokens,
        "turns": features.turns,
        "has_tools": features.has_tools,
        "wants_json": features.wants_json,
        "has_images": features.has_images,
        "stream": features.stream,
        "budget_ms": budget_s * 1000,
    }


def _p_adequate(difficulty: Difficulty | None, ladder: tuple[str, ...], tier: str) -> float | None:
    """How likely it is that nothing stronger than `tier` would do better; None out of the classifier's domain."""
    if difficulty is None or not difficulty.in_domain:
        return None
    return difficulty.p_adequate_of(ladder.index(tier), len(ladder))


def _nearest(order: tuple[str, ...], allowed: tuple[str, ...], wanted: str) -> str:
    """`wanted` if allowed, else the next stronger allowed tier, else the strongest one there is."""
    if wanted in allowed:
        return wanted
    position = order.index(wanted)
    return next((name for name in allowed if order.index(name) > position), allowed[-1])


def _with_health(start: str, capable: tuple[str, ...], health: Mapping[str, TierHealth], reason: str) -> Decision:
    at = capable.index(start)
    upward = _available(capable[at:], health)
    downward = _available(reversed(capable[:at]), health)
    why = health[start].unavailable
    if not upward and not downward:
        # Better a tier that has failed than none: the last one is never ruled out.
        upward = tuple(name for name in capable[at:] if health[name].failing)
        downward = tuple(name for name in reversed(capable[:at]) if health[name].failing)
        if not upward and not downward:
            raise NoTierError(f"no tier can answer now: {start} is {why}", capable=True)
    stand_in = f"{start} is {why}" if why else ""
    missing = tuple(name for name in capable[at + 1 :] if health[name].unavailable)
    if upward:
        return Decision(upward, downward, reason, stand_in if upward[0] != start else "", False, missing)
    return Decision(downward[:1], downward[1:], reason, stand_in, True, missing)


def _available(names: Iterable[str], health: Mapping[str, TierHealth]) -> tuple[str, ...]:
    return tuple(name for name in names if not health[name].unavailable)
