"""Run one case of a policy test: from what is given to what the client gets, without calling anything."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from gateway.parts.lab.policy_tests.cache_lookup import CacheResult, consulted, why_not_stored
from gateway.parts.lab.policy_tests.format import Case, DraftRules, StatedCost, Tested, TierWorld
from gateway.parts.lab.walk import GOOD, STATUS, Draft, Step, Surroundings, TierQueue, Walk, Walks
from policies.errors import InvalidContent, Problem
from policies.expression import Expression
from policies.model import DeployedTier
from policies.steering import Spent
from policies.value_type import value_type
from routing.decide import Clamp, DecisionInput, TierCost, TierHealth, rule_values
from routing.difficulty.model import Difficulty
from routing.features import Features, effective_body
from routing.load.latency import Forecast

if TYPE_CHECKING:
    from gateway.parts.lab.policy_tests.format import StoredAnswerRules
    from policies.errors import KeyPath
    from policies.model import Policy

_ROOM_FOR_A_REPLY: Final = 256
_STABLE_TEXT: Final = "How do I change the chain of a bicycle?"
_VOLATILE_TEXT: Final = "What is the weather in Lisbon today?"
"""Texts that stand for a question where the test gives none."""
_UNKNOWN: Final = TierWorld()


@value_type
class StatedDifficulty(Difficulty):
    """What a test says in place of the classifier: p_adequate of each tier of the policy, and its difficulty."""

    adequate: tuple[float, ...] = ()
    stated: float | None = None

    @property
    def score(self) -> float:
        """The difficulty, 0..1."""
        return 1.0 - self.adequate[0] if self.stated is None else self.stated

    @property
    def p_adequate(self) -> float:
        """The probability that the cheapest tier is adequate."""
        return self.adequate[0]

    def p_right_of(self, position: int, tiers: int) -> float:
        """Return the same as `p_adequate_of`: the strongest tier is taken to be right."""
        del tiers
        return self.adequate[position]

    def p_adequate_of(self, position: int, tiers: int) -> float:
        """Return the probability that the tier at `position` is adequate."""
        del tiers
        return self.adequate[position]


@value_type
class CaseOutcome:
    """What one request gets from a policy: from its cache, or by the walk, under these output limits."""

    walk: Walk
    cache: CacheResult
    body: Mapping[str, Any]
    given: DecisionInput
    parts: Sequence[Sequence[Step]] = ()
    """What the rules did, in order, in parts that equal requests share."""

    @property
    def steps(self) -> list[Step]:
        """What the rules did, in order."""
        return [step for part in self.parts for step in part]


@dataclass(frozen=True, slots=True)
class Request:
    """One request in a form that policies decide on, with the stored answers and the surroundings of its world."""

    features: Features
    body: Mapping[str, Any]
    given: Mapping[str, Any]
    difficulty: Difficulty | None = None


@dataclass(frozen=True, slots=True)
class WorldView:
    """A world as one policy sees it: without the tiers that are not configured there."""

    world: Mapping[str, TierWorld]
    policy: Policy
    health: Mapping[str, TierHealth]
    queues: Mapping[str, TierQueue]
    watching: frozenset[str]


_BODY_KEYS: Final = ("temperature", "top_p", "n", "seed", "logprobs")
"""Values that are handed on in the request's body as they are given. The cache reads all of them."""
_COUNTS: Final[Mapping[str, Callable[[Features], int | bool]]] = {
    "turns": attrgetter("turns"),
    "tokens_in": attrgetter("approx_tokens"),
    "stream": attrgetter("stream"),
}
"""Values that the cache reads only where a rule of `cache.never` asks for them."""


class PolicyUnderTest:
    """One policy, with all that its cases share.

    Each request is decided by itself. What follows is worked out once for requests that are equal in all that it
    depends on: what the cache does, what happens behind the decision (`Walks`), and what the rules did.
    """

    def __init__(self, tested: Tested) -> None:
        """Prepare the policy's rules: their comparisons are evaluated one by one for the coverage."""
        self.tested = tested
        self.policy = tested.policy
        route, cache = self.policy.route, self.policy.cache
        self.start = [
            (
                position,
                rule.source,
                _either(("route", "start", tier), rule.source),
                _parts(("route", "start", tier), rule),
            )
            for (tier, rule), position in ((item, self.policy.tiers.index(item[0])) for item in route.start.items())
        ]
        self.never = [(rule, conditions(rule)) for rule in cache.never]
        both = self.policy.escalate.speculate.both
        at = ("escalate", "speculate", "both")
        self.both = None if both is None else (both, _either(at, both.source), _parts(at, both))
        self.asks_for = self.policy.asked
        self._variants: dict[frozenset[str], Policy] = {frozenset(): self.policy}
        self._worlds: dict[int, WorldView] = {}
        self._around: dict[tuple[Any, ...], tuple[Surroundings, Mapping[str, Any]]] = {}
        self._walks = Walks()
        self._cached: dict[tuple[Any, ...], tuple[CacheResult, StoredAnswerRules | None]] = {}
        cache_asks = frozenset[str]().union(*(rule.names for rule in cache.never))
        self._counts_for_cache = [get for name, get in _COUNTS.items() if name in cache_asks]
        self._rules_seen: dict[tuple[int, ...], Sequence[Step]] = {}
        self._asks_for_difficulty = bool(self.asks_for & {"p_adequate", "difficulty"})

    def run(self, case: Case, request: Request | None = None) -> CaseOutcome:
        """Return what a case's request gets; `request` replaces the one that follows from its values."""
        asked = self._request(case) if request is None else request
        view = self._in_world(case.world)
        policy = view.policy
        features, values = asked.features, asked.given
        body, own_limit = effective_body(dict(asked.body), policy.output)
        clamp, ladder = None, policy.ladder
        if "min_tier" in values or "max_tier" in values:
            clamp = Clamp(values.get("min_tier"), values.get("max_tier"))
            ladder = clamp.of(policy)
        allowed = None if clamp is None else ladder
        if request is None:
            lookup = self._consulted(asked, case.stored, allowed)
        else:
            lookup = consulted(policy.cache, body, features, case.stored, self.never, allowed)
        given = self._given(asked, view, clamp, ladder)
        if lookup.hit and case.stored is not None:
            tier = case.stored.tier or ""
            path = "cache-exact" if lookup.hit == "exact" else "cache-semantic"
            served = Walk(path=path, tier=tier)  # type: ignore[arg-type]
            return CaseOutcome(served, lookup, body, given, (lookup.steps,))
        got = self._walks.walk(policy, given, self._surroundings(case, values, view, features.stream, own_limit))
        capped = () if policy.output.max_tokens is None else _CAPPED[own_limit]
        in_time: Sequence[Step] = ()
        if got.refused in ("deadline", "timeout"):
            in_time = (Step(("slo", "deadline"), True, got.reason),)
        if got.refused or policy.slo.deadline <= given.budget_s:
            in_time = in_time or _IN_TIME
        return CaseOutcome(
            got, lookup, body, given, (lookup.steps, self._rule_steps(given, got), got.steps, capped, in_time)
        )

    def _consulted(
        self, asked: Request, stored: StoredAnswerRules | None, allowed: tuple[str, ...] | None
    ) -> CacheResult:
        """Return what the cache does, worked out once for requests that are equal in all that it reads."""
        features, body = asked.features, asked.body
        key = (
            features.text, features.has_tools, features.has_images, features.wants_json, id(stored), allowed,
            *map(body.get, _BODY_KEYS), *[get(features) for get in self._counts_for_cache],
        )  # fmt: skip
        known = self._cached.get(key)
        if known is None:
            lookup = consulted(self.policy.cache, body, features, stored, self.never, allowed)
            known = self._cached[key] = lookup, stored
        return known[0]

    def _request(self, case: Case) -> Request:
        values = case.given
        wants = values.get
        text = wants("text") or (_VOLATILE_TEXT if wants("volatile") else _STABLE_TEXT)
        body = {key: values[key] for key in _BODY_KEYS if key in values}
        if "max_tokens" in values:
            body["max_completion_tokens"] = values["max_tokens"]
        if wants("stop"):
            body["stop"] = list(values["stop"])
        tools = bool(wants("has_tools"))
        features = Features(
            text,
            int(wants("turns", 1)),
            int(wants("tokens_in", 100)),
            tools,
            bool(wants("wants_json")),
            bool(wants("has_images")),
            bool(wants("stream")),
            int(tools),
            further=frozenset({*(wants("needs") or ()), *(("n",) if (wants("n") or 1) > 1 else ())}),
            reasoning_above=bool(wants("reasoning_above")),
            before=wants("conversation_difficulty", 0.0),
            last_tier=int(wants("last_tier", 0)),
        )
        return Request(features, body, values, self._difficulty(case, values))

    def _difficulty(self, case: Case, values: Mapping[str, Any]) -> Difficulty | None:
        """Return what the test says in place of the classifier. Raises InvalidContent where a rule needs more."""
        tiers = self.policy.tiers
        p_adequate, difficulty = values.get("p_adequate"), values.get("difficulty")
        kind, quantile = values.get("kind"), values.get("quantile")
        stated = not (p_adequate is None and difficulty is None and kind is None and quantile is None)
        effort = values.get("effort")
        if not values.get("in_domain", stated):
            return StatedDifficulty((0.0, 1.0), False, "stated", effort=effort, adequate=(0.0,) * len(tiers))
        if p_adequate is None and difficulty is None and self._asks_for_difficulty:
            key = "difficulty" if "p_adequate" not in self.asks_for else "p_adequate"
            file = self.tested.document.file.name
            message = f"{case.name}: a rule of {file} asks for {key}, which the classifier gives for all in its domain"
            raise InvalidContent([Problem(self.tested.document.file, 0, "", f"{message}; say it under `given`")])
        if p_adequate is None:
            p_adequate = 1.0 if difficulty is None else 1.0 - difficulty
        if isinstance(p_adequate, Mapping):
            adequate = tuple(p_adequate.get(name, 1.0) for name in tiers)
        else:
            adequate = (*[p_adequate] * (len(tiers) - 1), 1.0 if len(tiers) > 1 else p_adequate)
        return StatedDifficulty(
            (adequate[0], adequate[-1]), True, "stated", kind or "", quantile, 1.0, effort, adequate, difficulty
        )

    def _given(
        self,
        asked: Request,
        view: WorldView,
        clamp: Clamp | None,
        ladder: Sequence[str],
    ) -> DecisionInput:
        policy, health = view.policy, view.health
        values, features, slo = asked.given, asked.features, policy.slo
        budget_s = slo.deadline
        if "budget_ms" in values:
            budget_s = min(budget_s, values["budget_ms"] / 1000)
        ttft_s = slo.ttft.p99 if features.stream else None
        if features.stream and "ttft_ms" in values:
            ttft_s = min(values["ttft_ms"] / 1000, budget_s if ttft_s is None else ttft_s)
        room = values.get("room")
        if room is None:
            room = features.approx_tokens + (values.get("max_tokens") or _ROOM_FOR_A_REPLY)
        classified = policy.route.classifier != "none" and len(ladder) > 1
        strongest = policy.ladder[-1] if policy.ladder else ""
        may_hold_out = (
            policy.held_out and clamp is None and len(policy.ladder) > 1 and not health[strongest].unavailable
        )
        return DecisionInput(
            asked.difficulty if classified else None,
            features,
            health,
            budget_s,
            ttft_s,
            clamp,
            bool(values.get("holdout") and may_hold_out),
            room,
            _costs(values.get("costs") or {}, health),
            None if (share := values.get("budget_share")) is None else Spent(share, values.get("budget_cap") or ""),
        )

    # --- the world ----------------------------------------------------------------------------------------------------

    def _in_world(self, world: Mapping[str, TierWorld]) -> WorldView:
        """Return the world as this policy sees it. Worlds are told apart by identity: cases mostly share one."""
        known = self._worlds.get(id(world))
        if known is not None:
            return known
        tiers = self.policy.tiers
        absent = frozenset(name for name in tiers if not world.get(name, _UNKNOWN).configured)
        policy = self._variants.get(absent)
        if policy is None:
            missing = {
                name: DeployedTier(name, (), world[name].capabilities, "its key is not set") for name in sorted(absent)
            }
            ladder = tuple(name for name in tiers if name not in absent)
            policy = self.policy.model_copy(update={"ladder": ladder, "unconfigured": missing})
            self._variants[absent] = policy
        health = {name: _health(name, world.get(name, _UNKNOWN)) for name in policy.ladder}
        queues = {name: TierQueue(state.queue, state.waiting) for name, state in world.items() if state.queue}
        watching = frozenset(name for name, state in world.items() if state.watch_drafts)
        known = self._worlds[id(world)] = WorldView(world, policy, health, queues, watching)
        return known

    def _surroundings(
        self, case: Case, values: Mapping[str, Any], view: WorldView, stream: bool, own_limit: bool
    ) -> Surroundings:
        """Return what holds around a request: one object for all that are equal in it."""
        may_hedge = values.get("may_hedge", True)
        key = id(view), id(case.drafts), stream, may_hedge, own_limit
        known = self._around.get(key)
        if known is not None:
            return known[0]
        hedge, world = view.policy.escalate.hedge, view.world
        after = None
        if hedge is not None and isinstance(hedge.after, str):
            name = f"{'ttft' if stream else 'total'}_{hedge.after}"

            def after(tier: str) -> float | None:
                quantile: float | None = getattr(world.get(tier, _UNKNOWN), name)
                return quantile

        drafts = {tier: tuple(map(draft_of, drafts)) for tier, drafts in case.drafts.items()}
        around = Surroundings(drafts, after, may_hedge, view.queues, view.watching, own_limit)
        # The drafts are kept, so that no other ones get their identity.
        self._around[key] = around, case.drafts
        return around

    # --- what the rules did -------------------------------------------------------------------------------------------

    def _rule_steps(self, given: DecisionInput, got: Walk) -> Sequence[Step]:
        """Return which start rules held, and which of their comparisons: up to the first rule that does."""
        steps: list[Step] = []
        if given.holdout:
            steps.append(_HELD_OUT[True])
        elif self.policy.held_out:
            steps.append(_HELD_OUT[False])
        if given.spent is not None and got.decision is not None:
            steering = got.decision.steering
            steps.append(_STEERED[steering is not None])
            steps += [] if steering is None else [_CAPPED_AT[bool(steering.wanted)]]
        if got.rule or self.both is not None:
            difficulty, tiers = given.difficulty, len(self.policy.tiers)
            values = rule_values(self.policy, difficulty, given.features, given.budget_s)
            cheapest = values["p_adequate"]
            if got.rule:
                judged = difficulty is not None and difficulty.in_domain
                for position, source, whole, parts in self.start:
                    steps.append(whole[source == got.rule])
                    if parts:
                        if judged and difficulty is not None:
                            values["p_adequate"] = difficulty.p_adequate_of(position, tiers)
                        steps += [either[comparison.holds(values)] for comparison, either in parts]
                    if source == got.rule:
                        break
            if self.both is not None:
                rule, whole, parts = self.both
                values["p_adequate"] = cheapest
                steps.append(whole[rule.holds(values)])
                steps += [either[comparison.holds(values)] for comparison, either in parts]
        return self._rules_seen.setdefault(tuple([id(step) for step in steps]), steps)


def _either(at: KeyPath, text: str) -> tuple[Step, Step]:
    """Return the steps of a rule: where it does not hold, and where it does."""
    return Step(at, False, text), Step(at, True, text)


def _parts(at: KeyPath, rule: Expression) -> Sequence[tuple[Expression, tuple[Step, Step]]]:
    """Return a rule's comparisons, each with its steps."""
    return [(condition, _either((*at, i), condition.source)) for i, condition in enumerate(conditions(rule))]


_HELD_OUT: Final = (Step(("holdout",), False, "not held out"), Step(("holdout",), True, "held out"))
_STEERED: Final = _either(("spending", "steer_from"), "the budget's share")
_CAPPED_AT: Final = _either(("spending", "cap"), "where it starts")
_IN_TIME: Final = (Step(("slo", "deadline"), False, "the deadline was kept"),)
_CAPPED: Final = (
    (Step(("output", "max_tokens"), True, "the policy limits"),),
    (Step(("output", "max_tokens"), False, "the client limits"),),
)
"""The step of the token limit, by whether the client's own is the lower one."""


def draft_of(rules: DraftRules) -> Draft:
    """Return the draft that a test describes."""
    return Draft(
        rules.confidence,
        rules.calibrated,
        rules.tokens,
        rules.finish,
        rules.invalid or "",
        rules.refusal,
        rules.repetition,
        rules.empty,
        rules.calls_tools or rules.invalid in ("tool_args", "tool_calls"),
        rules.text,
        rules.fails or "",
        rules.ttft,
        rules.total,
        rules.by,
    )


def conditions(rule: Expression) -> Sequence[Expression]:
    """Return what a rule joins by and, or, not: comparisons and flags, each as a rule; none where it is only one."""
    if rule.tree is None:
        return ()
    open_, found = [rule.tree], []
    while open_:
        node = open_.pop(0)
        if isinstance(node, ast.BoolOp):
            open_ = [*node.values, *open_]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.BoolOp):
            open_.insert(0, node.operand)
        else:
            found.append(Expression.parse(ast.unparse(node)))
    return found if len(found) > 1 else ()


def _costs(stated: Mapping[str, StatedCost], health: Mapping[str, TierHealth]) -> dict[str, TierCost] | None:
    named = {name: stated[name] for name in health if name in stated}
    return {name: TierCost(cost.cold, cost.usd, cost.cold_time) for name, cost in named.items()} or None


def _health(name: str, world: TierWorld) -> TierHealth:
    """Return the state of a tier as routing sees it."""
    first, whole, queue_s = world.ttft_p50, world.total_p50, world.queue
    known = first is not None or whole is not None or queue_s > 0
    forecast = None
    if known:
        ttft_s = first or 0.0
        whole_s = ttft_s if whole is None else whole
        forecast = Forecast(
            ttft_s + queue_s,
            (world.ttft_p95 or ttft_s) + queue_s,
            whole_s + queue_s,
            queue_s,
            known=True,
            cold=world.cold,
            least_s=(world.ttft_p5 or 0.0) + queue_s,
        )
    unavailable = "" if world.up else "down"
    failing = world.failing and not world.up
    return TierHealth(name, world.capabilities, world.backends, unavailable, failing, forecast, world.context)


def is_stored(policy: Policy, outcome: CaseOutcome) -> bool:
    """Return whether the answer goes into the cache."""
    got = outcome.walk
    if outcome.cache.may == "none" or got.refused or not got.may_store:
        return False
    choices = outcome.body.get("n") or 1
    return not why_not_stored(policy.cache, got.draft or GOOD, choices, wants_json=outcome.given.features.wants_json)


def _tokens(outcome: CaseOutcome) -> int | None:
    limits = [outcome.body[key] for key in ("max_completion_tokens", "max_tokens") if outcome.body.get(key) is not None]
    return min(limits, default=None)


GOT: Final[Mapping[str, Callable[[Policy, CaseOutcome], Any]]] = {
    "start": lambda _, outcome: outcome.walk.start,
    "rule": lambda _, outcome: outcome.walk.rule,
    "tier": lambda _, outcome: outcome.walk.tier,
    "path": lambda _, outcome: outcome.walk.path,
    "attempts": lambda _, outcome: len(outcome.walk.called),
    "called": lambda _, outcome: outcome.walk.called,
    "seen_of_draft": lambda _, outcome: outcome.walk.seen_of_draft,
    "held": lambda _, outcome: outcome.walk.held,
    "why": lambda _, outcome: outcome_reasons(outcome),
    "first_token_within": lambda _, outcome: outcome.walk.first_token_s,
    "within": lambda _, outcome: outcome.walk.total_s,
    "refused": lambda _, outcome: outcome.walk.refused,
    "status": lambda _, outcome: STATUS[outcome.walk.refused],
    "cache": lambda _, outcome: outcome.cache.may,
    "cache_why": lambda _, outcome: outcome.cache.missed or outcome.cache.why,
    "stored": is_stored,
    "max_tokens": lambda _, outcome: _tokens(outcome),
    "stop": lambda _, outcome: tuple(outcome.body.get("stop") or ()),
    "priority": lambda policy, _: policy.load.priority,
    "deadline": lambda _, outcome: outcome.given.budget_s,
}
"""How to read what each key of `expect` names."""


def outcome_reasons(outcome: CaseOutcome) -> str:
    """Return why a draft was taken or replaced, why a tier stands in, and why there is no answer, in a few words."""
    got = outcome.walk
    reasons = [got.judged.reason if got.judged is not None else "", got.reason]
    if got.decision is not None:
        reasons.append(got.decision.stand_in)
    return "; ".join(filter(None, reasons))


def is_as_expected(key: str, expected: Any, got: Any) -> bool:
    """Return whether what was got is what one key of `expect` asks for."""
    match key:
        case "first_token_within" | "within":
            return bool(got <= expected)
        case "why" | "cache_why":
            return expected in got if expected else not got
        case "rule":
            return bool(" ".join(expected.split()) == got)
        case "refused":
            return any(bool(got) is value if isinstance(value, bool) else got == value for value in expected)
        case "start" | "tier" | "path" | "attempts" | "cache":
            return got in expected
        case _:
            return bool(got == expected)
