"""Decide where a request starts and which tiers may follow: a policy and a DecisionInput in, a Decision out. No I/O.

Steps: the request's own limits and the capabilities it needs narrow the policy's ladder (its configured tiers); the
first start rule that holds names the wanted tier, or if that tier is not open to the request, the next stronger one;
tiers that cannot answer now are left out, and the decision records that. Where the conversation is warm at a stronger
tier than the wanted one, the cheapest of the tiers between them starts, by their `costs`, and what a weaker one would
have to read cold is a part of its expected time. A request that is steered to less starts no higher than its cap
(`policies.steering`).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from policies.quantities import dollars
from policies.value_type import value_type

if TYPE_CHECKING:
    from policies.model import DeployedTier, Policy
    from policies.steering import Spent, Steering
    from routing.difficulty.model import Difficulty
    from routing.features import Features
    from routing.load.latency import Forecast


GOES_ON: Final = "goes on at "
"""How the part of a reason begins that says why a conversation stays at its tier."""


class NoTierError(Exception):
    """No tier can take this request. `capable` is False if no tier could at any time: the request asks for too much.

    `lacking` is the first of the capabilities that it needs too much, or that only a tier without a key has; '' if it
    has shut out all tiers itself.
    """

    def __init__(self, message: str, *, capable: bool, lacking: str = "") -> None:
        super().__init__(message)
        self.capable = capable
        self.lacking = lacking


@dataclass(frozen=True, slots=True)
class TierHealth:
    """The state of one tier now. `unavailable` is empty, or the reason why none of its backends can answer.

    `context` is the number of tokens its backends hold, prompt and reply together; None if unknown. `failing` means
    that failures are the only reason why it is unavailable, so it may be called when nothing else can answer.
    `forecast` is the expected latency of its next call for a prompt of this request's length.
    """

    name: str
    capabilities: frozenset[str]
    endpoints: int
    unavailable: str = ""
    failing: bool = False
    forecast: Forecast | None = None
    context: int | None = None

    def unfit_for(self, needed: Set[str], room: int) -> str:
        """Return why it cannot take a request that needs these capabilities and `room` tokens; empty if it can."""
        if lacking := needed - self.capabilities:
            return f"{self.name} cannot do {', '.join(sorted(lacking))}"
        if self.context is not None and room > self.context:
            return f"{self.name} holds {self.context} tokens, and this may take {room} or more"
        return ""


@dataclass(frozen=True, slots=True)
class Clamp:
    """The range of tiers that a request allows, by its ends; None leaves that end open."""

    min_tier: str | None = None
    max_tier: str | None = None

    def of(self, policy: Policy) -> tuple[str, ...]:
        """Return the part of a policy's ladder within this range, whose ends need not be on the ladder themselves."""
        within = self._within(policy.tiers)
        return tuple(name for name in policy.ladder if name in within)

    def unconfigured(self, policy: Policy) -> list[DeployedTier]:
        """Return the tiers within this range that are not on the ladder."""
        within = self._within(policy.tiers)
        return [tier for name, tier in policy.unconfigured.items() if name in within]

    def _within(self, tiers: tuple[str, ...]) -> tuple[str, ...]:
        low = tiers.index(self.min_tier) if self.min_tier in tiers else 0
        high = tiers.index(self.max_tier) if self.max_tier in tiers else len(tiers) - 1
        return tiers[low : high + 1]


class TierCost(NamedTuple):
    """What a tier would cost a conversation until a turn asks for the tier where it is warm.

    `cold` is how many tokens of this turn's prompt it must read cold, and `cold_s` how many seconds that takes more
    than its usual call; None and 0 where they are not known. `usd` is None where it is not known.
    """

    cold: int | None
    usd: float | None
    cold_s: float = 0.0


@value_type
class DecisionInput:
    """What a decision depends on besides the policy: an equal input gives an equal decision.

    `budget_s` is what is left of the deadline in seconds. `ttft_s` is the time left for a stream's first token in
    seconds; None where nothing limits it. With `holdout` the strongest tier starts whatever the difficulty. `room` is
    an upper bound of the tokens in prompt and reply together. `health` has every tier of the policy's ladder.
    `costs` are those of the tiers up to the one where the conversation is warm, if it is. `spent` is None for a request
    without a budget.
    """

    difficulty: Difficulty | None
    features: Features
    health: Mapping[str, TierHealth]
    budget_s: float
    ttft_s: float | None = None
    clamp: Clamp | None = None
    holdout: bool = False
    room: int = 0
    costs: Mapping[str, TierCost] | None = None
    spent: Spent | None = None


@value_type
class Decision:
    """The tiers to try, in order, and the reason.

    `tiers` begins with the tier that answers first; escalation moves through the rest. `fallbacks` are weaker tiers,
    tried only when all of `tiers` fail. `missing` are stronger tiers that are unavailable now: an answer that would
    have escalated to one of them is marked as degraded. `stand_in` is the reason why the wanted tier does not start;
    `weaker` is set when the tier that starts in its place is a weaker one. `steering` is None unless the request's
    budget is nearly spent.
    """

    tiers: tuple[str, ...]
    fallbacks: tuple[str, ...]
    reason: str
    stand_in: str = ""
    weaker: bool = False
    missing: tuple[str, ...] = ()
    steering: Steering | None = None


def decide(policy: Policy, given: DecisionInput) -> Decision:
    """Return the decision for one request. Raises NoTierError."""
    if given.spent is not None and (steering := policy.steering(given.spent)) is not None:
        return _steered(policy, given, steering)
    features, health, budget_s, ttft_s = given.features, given.health, given.budget_s, given.ttft_s
    capable, unfit = _capable(policy, given)
    lacks = "".join(f"; {tier.why_not}" for tier in policy.unconfigured.values()) if policy.unconfigured else ""
    if len(capable) == 1:
        reason = "; ".join([f"{capable[0]} alone is open to it", *unfit.values()])
        return _with_health(capable[0], capable, health, f"{reason}{lacks}")
    if given.holdout:
        reason = f"{capable[-1]}: held out, to measure the others against{lacks}"
        return _with_health(capable[-1], capable, health, reason)
    wanted, reason = start_by_rules(policy, given.difficulty, features, budget_s)
    start = wanted if wanted in capable else _next_above(policy.tiers, capable, wanted)
    if start != wanted and wanted not in policy.unconfigured:
        reason += f"; {unfit.get(wanted) or f'{wanted} is not open to this request'}"
    reason += lacks
    costs = given.costs if policy.route.weigh_switching else None
    limit = budget_s if ttft_s is None else min(budget_s, ttft_s)
    if costs and not health[start].unavailable:
        adequate = capable[capable.index(start) :]
        goes_on = _cheapest(adequate, health, costs)
        if goes_on != start and (
            _expected_s(health[goes_on], features.stream, costs) <= limit
            or _in_time(adequate, given, costs, limit) == goes_on
        ):
            reason += f"; {_why_on(start, goes_on, costs)}"
            start = goes_on
    quick = _in_time(capable[capable.index(start) :], given, costs, limit)
    if quick == start or health[start].unavailable:
        return _with_health(start, capable, health, reason)
    decision = _with_health(quick, capable, health, reason)
    expected_s = _expected_s(health[start], features.stream, costs)
    return replace(decision, stand_in=_too_slow(health[start], features.stream, expected_s, limit))


def _steered(policy: Policy, given: DecisionInput, steering: Steering) -> Decision:
    """Return the decision as it would be, but for a start above the cap where a tier up to it can answer in time."""
    free, place = decide(policy, replace(given, spent=None, holdout=False)), policy.tiers.index
    cap, wanted, below = steering.cap, free.tiers[0], free.fallbacks
    if not cap or free.weaker or place(wanted) <= place(cap):
        return replace(free, steering=steering)
    limit = given.budget_s if given.ttft_s is None else min(given.budget_s, given.ttft_s)
    costs = given.costs if policy.route.weigh_switching else None
    waits = partial(_expected_s, stream=given.features.stream, costs=costs)
    start = next((name for name in below if place(name) <= place(cap) and waits(given.health[name]) <= limit), None)
    if start is None:
        return replace(free, steering=steering, reason=f"{free.reason}; no tier up to {cap} can answer in time")
    at = below.index(start) + 1
    return replace(
        free,
        tiers=(*reversed(below[:at]), *free.tiers),
        fallbacks=below[at:],
        reason=f"{free.reason}; {steering.why}",
        steering=steering._replace(wanted=wanted),
    )


def _cheapest(adequate: tuple[str, ...], health: Mapping[str, TierHealth], costs: Mapping[str, TierCost]) -> str:
    """Return the adequate tier that costs the conversation least; the first where its own cost is not known."""
    usd = {name: cost.usd for name in adequate if (cost := costs.get(name)) is not None and cost.usd is not None}
    if adequate[0] not in usd:
        return adequate[0]
    return min([name for name in usd if not health[name].unavailable], key=usd.__getitem__)


def _why_on(start: str, goes_on: str, costs: Mapping[str, TierCost]) -> str:
    less, more = dollars(costs[goes_on].usd or 0.0), dollars(costs[start].usd or 0.0)
    why = f", as it reads {cold} tokens cold" if (cold := costs[start].cold) else ""
    return f"{GOES_ON}{goes_on}: {start} would cost {more} until a harder turn{why}, {goes_on} {less}"


def _in_time(
    adequate: tuple[str, ...], given: DecisionInput, costs: Mapping[str, TierCost] | None, limit_s: float
) -> str:
    """Return the cheapest adequate tier that is expected to answer in time; if there is none, the fastest of them."""
    health, stream = given.health, given.features.stream
    first = health[adequate[0]]
    if not first.unavailable and _expected_s(first, stream, costs) <= limit_s:
        return adequate[0]
    open_ = [name for name in adequate if not health[name].unavailable] or list(adequate)
    expected = {name: _expected_s(health[name], stream, costs) for name in open_}
    return next((name for name in open_ if expected[name] <= limit_s), min(open_, key=expected.__getitem__))


def _expected_s(health: TierHealth, stream: bool, costs: Mapping[str, TierCost] | None) -> float:
    """Return the client's expected wait: seconds to a stream's first token or to the whole JSON; 0 if unknown."""
    forecast = health.forecast
    if forecast is None or not forecast.known:
        return 0.0
    seconds = forecast.ttft_s if stream else forecast.whole_s
    return seconds + costs[health.name].cold_s if seconds and costs and health.name in costs else seconds


def _too_slow(health: TierHealth, stream: bool, expected_s: float, limit_s: float) -> str:
    forecast = health.forecast
    if forecast is None:
        raise AssertionError("a tier without a forecast cannot be too slow")
    what = "a first token" if stream else "an answer"
    prior = forecast.prior_ttft if stream else forecast.prior_whole
    why = "cold" if forecast.cold else "slow, by what is known of its model" if prior else "slow now"
    queued = f", {forecast.queue_s * 1000:.0f} ms of it in line" if forecast.queue_s else ""
    return (
        f"{health.name} is {why}: {expected_s * 1000:.0f} ms expected to {what}{queued}, {limit_s * 1000:.0f} ms left"
    )


def _capable(policy: Policy, given: DecisionInput) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the tiers that are open to this request, and for each other tier of its ladder the reason why it is not.

    The room is an upper bound. If no tier that holds it for certain can answer now, the other tiers are open as well:
    their backends count the tokens exactly. Raises NoTierError, whose message names the keys that would open a tier.
    """
    clamp, health = given.clamp, given.health
    ladder, needed = policy.ladder if clamp is None else clamp.of(policy), needs(given.features)
    unfit: dict[str, str] = {}
    for name in ladder:
        state = health[name]
        if not needed <= state.capabilities or (state.context is not None and given.room > state.context):
            unfit[name] = state.unfit_for(needed, given.room)
    if not unfit and ladder:
        return ladder, unfit
    capable = tuple(name for name in ladder if name not in unfit)
    if unfit and not any(not health[name].unavailable for name in capable):
        capable = tuple(name for name in ladder if needed <= health[name].capabilities)
        unfit = {name: why for name, why in unfit.items() if name not in capable}
    if capable:
        return capable, unfit
    lacking = [tier.why_not for tier in (clamp or Clamp()).unconfigured(policy) if needed <= tier.capabilities]
    beyond = sorted(needed.difference(*[health[name].capabilities for name in ladder])) if ladder else []
    if lacking:
        message = f"no tier can answer this: {'; '.join(lacking)}"
        raise NoTierError(message, capable=True, lacking=beyond[0] if beyond else "")
    if not needed:
        raise NoTierError("no tier lies within the request's own limits", capable=False)
    # No tier can do these; or if each can be done somewhere, no tier can do all of them.
    names = sorted(needed.difference(*[health[name].capabilities for name in ladder]) or needed)
    message = f"no tier of this surface can do what is asked: {', '.join(names)}"
    raise NoTierError(message, capable=False, lacking=names[0])


def needs(features: Features) -> set[str]:
    """Return the capabilities that the request needs of a tier, such as `tools` and `vision`."""
    needed: set[str] = set()
    if features.has_tools:
        needed.add("tools")
    if features.has_images:
        needed.add("vision")
    if features.wants_json:
        needed.add("json")
    if features.further:
        needed |= features.further
    return needed


def start_by_rules(
    policy: Policy, difficulty: Difficulty | None, features: Features, budget_s: float
) -> tuple[str, str]:
    """Return the tier of the first start rule that holds, and that rule as the reason."""
    values: dict[str, Any] = {}
    rated = difficulty if difficulty is not None and difficulty.in_domain else None
    for tier, rule in policy.route.start.items():
        if rule.tree is not None:  # it is not `otherwise`, which reads nothing
            values = values or rule_values(policy, difficulty, features, budget_s)
            if rated is not None and "p_adequate" in rule.names:
                values["p_adequate"] = rated.p_adequate_of(policy.tiers.index(tier), len(policy.tiers))
            if not rule.holds(values):
                continue
        return tier, f"{tier}: {rule.source}"
    raise AssertionError("no start rule holds, though a checked policy has one that always does")


def clause_of(policy: Policy, decision: Decision) -> str:
    """Return the dotted key of the policy that decided where the request starts; `tiers` if it had no choice."""
    if decision.steering is not None and decision.steering.wanted:
        return decision.steering.clause
    if " alone is open to it" in decision.reason:
        return "tiers"
    tier, _, why = decision.reason.partition(": ")
    return f"route.start.{tier}" if tier in policy.route.start and not why.startswith("held out") else "holdout"


def values_for(policy: Policy, given: DecisionInput, tier: str) -> dict[str, Any]:
    """Return the names and values that the start rule of this tier reads."""
    values = rule_values(policy, given.difficulty, given.features, given.budget_s)
    return {**values, "p_adequate": _p_adequate(given.difficulty, policy.tiers, tier)}


def asks_both(policy: Policy, given: DecisionInput) -> bool:
    """Return whether the request is to start at two tiers at once, by the rule `escalate.speculate.both`."""
    rule = policy.escalate.speculate.both
    if rule is None or (given.spent is not None and policy.steering(given.spent) is not None):
        return False
    return rule.holds(rule_values(policy, given.difficulty, given.features, given.budget_s))


def priors(policy: Policy, difficulty: Difficulty | None) -> Mapping[str, float]:
    """Return the classifier's probability, by tier, that it answers correctly; empty if the classifier abstains."""
    if difficulty is None or not difficulty.in_domain:
        return {}
    tiers = policy.tiers
    return {name: difficulty.p_right_of(position, len(tiers)) for position, name in enumerate(tiers)}


def rule_values(policy: Policy, difficulty: Difficulty | None, features: Features, budget_s: float) -> dict[str, Any]:
    """Return the names and values that a start rule may use. `p_adequate` is the cheapest tier's; rules get their own.

    `quantile` is of the surface's own requests where the policy knows those of this kind, else of the classifier's
    reference prompts. Outside its domain the classifier gives no `p_adequate`, `difficulty`, `kind` or `quantile`: they
    are None. `effort` is given there too, and is None only where the text does not tell.
    """
    said = difficulty if difficulty is not None and difficulty.in_domain else None
    return {
        "p_adequate": said.p_adequate if said else None,
        "difficulty": said.score if said else None,
        "in_domain": said is not None,
        "kind": said.kind or None if said else None,
        "quantile": quantile_of(policy, said) if said else None,
        "effort": None if difficulty is None else difficulty.effort,
        "tokens_in": features.approx_tokens,
        "turns": features.turns,
        "conversation_difficulty": (
            conversation_difficulty(policy, difficulty, features)
            if "conversation_difficulty" in policy.asked
            else None  # saves calls for each request of the policies that do not ask for it
        ),
        "last_tier": features.last_tier,
        "has_tools": features.has_tools,
        "wants_json": features.wants_json,
        "has_images": features.has_images,
        "stream": features.stream,
        "reasoning_above": features.reasoning_above,
        "budget_ms": budget_s * 1000,
    }


def hardness_of(policy: Policy, difficulty: Difficulty) -> float:
    """Return how hard a turn is by itself, 0..1: its `quantile`, or `difficulty` where the classifier has no quantile.

    Where the classifier abstains, the turn is as hard as the work that it asks for; where the text does not tell that
    either, as hard as any: 1.
    """
    if not difficulty.in_domain:
        return 1.0 if difficulty.effort is None else difficulty.effort
    quantile = quantile_of(policy, difficulty)
    return difficulty.score if quantile is None else quantile


def conversation_difficulty(policy: Policy, difficulty: Difficulty | None, features: Features) -> float | None:
    """Return how hard the turn is in its conversation; None if the classifier was not asked about all that counts."""
    before = 0.0 if features.before is None and features.turns <= 1 else features.before
    if difficulty is None or before is None:
        return None
    return max(before, hardness_of(policy, difficulty))


def quantile_of(policy: Policy, difficulty: Difficulty) -> float | None:
    """Return the share, 0..1, of requests of its kind that are easier: of the surface's own where that is known."""
    if difficulty.quantile is None:
        return None
    own = policy.route.share_easier(difficulty.kind, difficulty.quantile, difficulty.model_version)
    return difficulty.quantile if own is None else own


def _p_adequate(difficulty: Difficulty | None, ladder: tuple[str, ...], tier: str) -> float | None:
    """Return the probability that no stronger tier would do better than `tier`; None outside the trained domain."""
    if difficulty is None or not difficulty.in_domain:
        return None
    return difficulty.p_adequate_of(ladder.index(tier), len(ladder))


def _next_above(order: tuple[str, ...], allowed: tuple[str, ...], wanted: str) -> str:
    """Return the next allowed tier that is stronger than `wanted`, else the strongest allowed one."""
    position = order.index(wanted)
    return next((name for name in allowed if order.index(name) > position), allowed[-1])


def _with_health(start: str, capable: tuple[str, ...], health: Mapping[str, TierHealth], reason: str) -> Decision:
    at = capable.index(start)
    why = health[start].unavailable
    upward: list[str] = []
    downward: list[str] = []
    missing: list[str] = []
    for place, name in enumerate(capable):
        if not health[name].unavailable:
            (upward if place >= at else downward).append(name)
        elif place > at:
            missing.append(name)
    if not upward and not downward:
        # Calling a tier that has failed is better than refusing the request.
        upward = [name for name in capable[at:] if health[name].failing]
        downward = [name for name in capable[:at] if health[name].failing]
        if not upward and not downward:
            raise NoTierError(f"no tier can answer now: {start} is {why}", capable=True)
    stand_in = f"{start} is {why}" if why else ""
    down = tuple(reversed(downward))
    if upward:
        return Decision(tuple(upward), down, reason, stand_in if upward[0] != start else "", False, tuple(missing))
    return Decision(down[:1], down[1:], reason, stand_in, True, tuple(missing))
