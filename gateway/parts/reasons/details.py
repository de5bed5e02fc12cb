"""Add to the hops of a finished trace what decided them, by which key of the policy, and what else could have happened.

This runs after the reply, in telemetry's background task, and only for requests whose hops are recorded. On the
request's path the steps leave what they have at hand: the routing decision with its input, and what an answer was
judged by. The decision is pure, so what led to it is worked out again here.

Attributes are numbers, words, flags and lists of them, as OpenTelemetry wants; `telemetry.names` explains each.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.parts.reasons import detail_names as detail
from gateway.telemetry import names
from gateway.telemetry.ledger import NEVER
from gateway.telemetry.sink import MOST_CHARS
from policies.expression import OTHERWISE, Expression, parts
from policies.quantities import milliseconds
from routing.confidence.judge import CALIBRATED
from routing.decide import clause_of, conversation_difficulty, values_for

if TYPE_CHECKING:
    from gateway.telemetry.trace import Hop, RecordedDecision, Trace
    from policies.model import Policy, Quantiles
    from routing.confidence.judge import Evidence
    from routing.decide import TierCost, TierHealth
    from routing.difficulty.model import Difficulty
    from routing.features import Features
    from routing.load.latency import Forecast

MOST_TOKENS: Final = 128
"""Judged tokens of which the log-probability is recorded; a prefix is shorter, a whole answer may be longer."""
_LOWEST: Final = 5
_MOST_CALLS: Final = 16
_MOST_NAME: Final = 128
"""Calls of a rejected answer, and characters of the names of their tools, that are recorded."""
_GUARD: Final = "guard: "
_UNKNOWN: Final = -1.0
_LOOKUPS: Final = frozenset({names.CACHE_EXACT, names.CACHE_SEMANTIC})
_OTHERS: Final = (
    detail.OTHER_TIERS, detail.OTHER_LATE, detail.OTHER_STATE,
    detail.OTHER_TTFT, detail.OTHER_TTFT_P95, detail.OTHER_WHOLE, detail.OTHER_QUEUE,
)  # fmt: skip


def complete(trace: Trace) -> None:
    """Add the details to the hops of a finished trace; its root has ended, and nothing of it changes any more."""
    policy, made, root = trace.policy, trace.decision, trace.root
    due_ns = None if trace.deadline_s is None else root.start_ns + int(trace.deadline_s * 1e9)
    figures = _NONE_KNOWN if made is None else _figures(made.given.health)
    for hop in trace.hops:
        name, attributes = hop.name, hop.attributes
        if due_ns is not None and detail.BUDGET_LEFT not in attributes:
            attributes[detail.BUDGET_LEFT] = (due_ns - hop.start_ns) // 100_000 / 10
        if name == names.ATTEMPT:
            _complete_attempt(trace, hop, made, figures)
        elif name == names.ROUTE and made is not None:
            _complete_route(attributes, made, figures)
        elif name in _LOOKUPS:
            if name == names.CACHE_SEMANTIC and policy is not None and policy.cache.semantic is not None:
                attributes[detail.MIN_SIMILARITY] = policy.cache.semantic.min_similarity
            _complete_lookup(hop)
        else:
            continue
        if policy is not None and (clause := attributes.get(names.CLAUSE)) is not None:
            attributes[names.CLAUSE_LINE] = policy.lines[clause]
    if due_ns is not None:
        root.attributes[detail.DEADLINE] = root.attributes[detail.BUDGET_LEFT]
    if trace.ttft_s is not None:
        root.attributes[detail.TTFT_TARGET] = round(trace.ttft_s * 1000, 1)


# The decision.


def _costs(costs: Mapping[str, TierCost]) -> dict[str, Any]:
    usd = [_UNKNOWN if cost.usd is None else cost.usd for cost in costs.values()]
    cold = [-1 if cost.cold is None else cost.cold for cost in costs.values()]
    return {detail.COST_TIERS: list(costs), detail.COST_USD: usd, detail.COST_COLD: cold}


def _complete_route(attributes: dict[str, Any], made: RecordedDecision, figures: Mapping[str, _Figures]) -> None:
    policy, given, decision = made.policy, made.given, made.decision
    first, limit_s = None, given.budget_s
    attributes[detail.BUDGET_LEFT] = round(given.budget_s * 1000, 1)  # what the start rules read
    if given.costs:
        attributes |= _costs(given.costs)
    if given.difficulty is not None:
        _describe_difficulty(attributes, policy, given.difficulty, given.features)
    if given.ttft_s is not None and given.ttft_s < limit_s:
        limit_s = given.ttft_s
    if decision is not None:
        first = decision.tiers[0]
        if (ttft_ms := figures[first].ttft_ms) >= 0:
            attributes[detail.FORECAST_TTFT] = ttft_ms
        clause = clause_of(policy, decision)
        if clause != "tiers" or given.clamp is None:  # else the request's own limits left one tier
            attributes[names.CLAUSE] = clause
        if clause.startswith("route.start.") and len(policy.route.start) > 1:
            attributes[detail.CHECKS] = _checks(made, clause.removeprefix("route.start."))
        if " expected to " in decision.stand_in:  # the wanted tier is not down but slow
            attributes[detail.STAND_IN_CLAUSE] = "slo.ttft.p99" if limit_s < given.budget_s else "slo.deadline"
    _describe_others(attributes, made, first, limit_s, figures)


def _describe_others(
    attributes: dict[str, Any],
    made: RecordedDecision,
    first: str | None,
    limit_s: float,
    figures: Mapping[str, _Figures],
) -> None:
    """Add what was known of all tiers, and what was expected of those that the request does not start at."""
    health, stream = made.given.health.values(), made.given.features.stream
    priors: list[str] = []
    for tier in health:
        forecast = tier.forecast
        if forecast is not None and (forecast.prior_ttft if stream else forecast.prior_whole):
            priors.append(tier.name)
    if priors:
        attributes[detail.PRIOR] = priors
    if stream and (slow := _too_slow(made.policy.slo.tpot, health)):
        attributes[detail.SLOW_PACE] = slow
    if len(health) < 2:
        return
    columns: tuple[list[Any], ...] = [], [], [], [], [], [], []
    tiers, late, states, ttft_ms, ttft_p95_ms, whole_ms, queue_ms = columns
    for tier in health:
        if tier.name == first:
            continue
        expected = figures[tier.name]
        tiers.append(tier.name)
        late.append((expected.ttft_ms if stream else expected.whole_ms) > limit_s * 1000)
        states.append(tier.unavailable)
        ttft_ms.append(expected.ttft_ms)
        ttft_p95_ms.append(expected.ttft_p95_ms)
        whole_ms.append(expected.whole_ms)
        queue_ms.append(expected.queue_ms)
    attributes.update(zip(_OTHERS, columns, strict=True))


def _too_slow(tpot: Quantiles, tiers: Iterable[TierHealth]) -> list[str]:
    """Return the tiers whose mean pace of late exceeds the objective of the widest quantile: `local: 62 ms`."""
    most_s = tpot.p99 or tpot.p95 or tpot.p50
    if not most_s:
        return []
    paces = {tier.name: tier.forecast.tpot_s for tier in tiers if tier.forecast is not None}
    return [f"{tier}: {milliseconds(pace_s * 1000)}" for tier, pace_s in paces.items() if pace_s > most_s]


def _describe_difficulty(
    attributes: dict[str, Any], policy: Policy, difficulty: Difficulty, features: Features
) -> None:
    if "conversation_difficulty" in policy.asked:
        if (hardest := conversation_difficulty(policy, difficulty, features)) is not None:
            attributes[detail.CONVERSATION] = round(hardest, 4)
        if features.before is not None:
            attributes[detail.BEFORE] = round(features.before, 4)
    attributes[detail.IN_DOMAIN] = difficulty.in_domain
    attributes[detail.CLASSIFIER] = difficulty.model_version
    if difficulty.kind:
        attributes[detail.KIND] = difficulty.kind
        attributes[detail.P_KIND] = round(difficulty.p_kind, 4)
    if difficulty.effort is not None:
        attributes[detail.EFFORT] = round(difficulty.effort, 4)
    if not difficulty.in_domain:
        return
    attributes[detail.DIFFICULTY] = round(difficulty.score, 4)
    attributes[detail.P_ADEQUATE] = round(difficulty.p_adequate, 4)
    if difficulty.quantile is not None:
        attributes[detail.QUANTILE] = round(difficulty.quantile, 4)
        own = policy.route.share_easier(difficulty.kind, difficulty.quantile, difficulty.model_version)
        if own is not None:
            attributes[detail.QUANTILE_OWN] = round(own, 4)


class _Figures(NamedTuple):
    """The forecast of a tier in milliseconds, -1 where nothing was measured."""

    ttft_ms: float = _UNKNOWN
    ttft_p95_ms: float = _UNKNOWN
    whole_ms: float = _UNKNOWN
    queue_ms: float = _UNKNOWN


_NO_FIGURES: Final = _Figures()
_NONE_KNOWN: Final[Mapping[str, _Figures]] = MappingProxyType({})
_figures_of: dict[int, tuple[TierHealth, _Figures]] = {}
_MOST_FIGURES: Final = 512


def _figures(health: Mapping[str, TierHealth]) -> Mapping[str, _Figures]:
    """Return the forecasts of tiers by name. A tier gives many requests the same object, whose figures are kept."""
    figures: dict[str, _Figures] = {}
    for name, tier in health.items():
        known = _figures_of.get(id(tier))
        if known is None or known[0] is not tier:
            if len(_figures_of) >= _MOST_FIGURES:
                _figures_of.clear()
            known = _figures_of[id(tier)] = tier, _figures_from(tier.forecast)
        figures[name] = known[1]
    return figures


def _figures_from(forecast: Forecast | None) -> _Figures:
    if forecast is None or not forecast.known:
        return _NO_FIGURES
    return _Figures(
        round(forecast.ttft_s * 1000, 1) or _UNKNOWN,
        round(forecast.ttft_p95_s * 1000, 1) or _UNKNOWN,
        round(forecast.whole_s * 1000, 1) or _UNKNOWN,
        round(forecast.queue_s * 1000, 1),
    )


def _checks(made: RecordedDecision, until: str) -> list[str]:
    """Return each comparison of the start rules up to that of tier `until`: `local: p_adequate 0.31 >= 0.5: no`."""
    lines: list[str] = []
    for tier, rule in made.policy.route.start.items():
        if rule.source == OTHERWISE:
            lines.append(f"{tier}: otherwise")
        else:
            _add_checks(lines, tier, rule, values_for(made.policy, made.given, tier))
        if tier == until:
            break
    return lines


def _add_checks(lines: list[str], tier: str, rule: Expression, values: Mapping[str, Any]) -> None:
    """Add each comparison and each flag of a rule with the value that it read, and whether it holds."""
    known = _read_of.get(id(rule))
    if known is None or known[0] is not rule:
        if len(_read_of) >= _MOST_FIGURES:
            _read_of.clear()
        known = _read_of[id(rule)] = rule, *_read_by(rule)
    _, compared, flags = known
    for part, text in compared:
        line = text
        for name in part.names:
            value = values.get(name)
            shown = "missing" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
            line = line.replace(name, f"{name} {shown}", 1)
        lines.append(f"{tier}: {line}: {'yes' if part.holds(values) else 'no'}")
    if flags:
        lines += [f"{tier}: {name}: {'yes' if values.get(name) else 'no'}" for name in flags]


_read_of: dict[int, tuple[Expression, tuple[tuple[Expression, str], ...], tuple[str, ...]]] = {}
"""What each start rule in force reads, by its identity: hashing an expression is a call for each of its parts."""


def _read_by(rule: Expression) -> tuple[tuple[tuple[Expression, str], ...], tuple[str, ...]]:
    """Return the comparisons of a rule, each with its text, and the flags that stand in it alone."""
    compared = tuple([(part, part.source.replace("'", "")) for part, _ in parts(rule)])
    within = {id(name) for node in _nodes(rule, ast.Compare) for name in ast.walk(node)}
    flags = [node.id for node in _nodes(rule, ast.Name) if isinstance(node, ast.Name) and id(node) not in within]
    return compared, tuple(dict.fromkeys(flags))


def _nodes(rule: Expression, kind: type[ast.expr]) -> Iterable[ast.expr]:
    return () if rule.tree is None else [node for node in ast.walk(rule.tree) if isinstance(node, kind)]


# An attempt.


def _complete_attempt(  # noqa: PLR0912  (one story, and one call for each attempt)
    trace: Trace, hop: Hop, made: RecordedDecision | None, figures: Mapping[str, _Figures]
) -> None:
    attributes, judged, at_ns = hop.attributes, hop.judged, hop.end_ns or trace.root.end_ns
    if names.TIMEOUT in attributes:
        attributes[names.TIMEOUT] = round(attributes[names.TIMEOUT], 1)
    if hop.load is not None:
        in_flight, capacity, queued, ejection = hop.load
        attributes[detail.IN_FLIGHT], attributes[detail.CAPACITY], attributes[detail.QUEUED] = (
            in_flight,
            capacity,
            queued,
        )
        attributes[detail.BREAKER] = "closed" if ejection is None else f"half-open: {ejection.reason}"
    if judged is not None:
        at_ns = judged.at_ns
        if judged.threshold is not None:
            attributes[detail.MIN_CONFIDENCE] = judged.threshold
        attributes[names.CLAUSE] = clause_of_verdict(
            attributes.get(names.REASON, ""), attributes.get(names.CONFIDENCE_BASIS, "none")
        )
        if verified := judged.evidence.verified:  # by one at most
            [(attributes[detail.VERIFIER], attributes[detail.VERIFIED])] = verified.items()
        attributes[detail.VERDICT_AT] = round((at_ns - hop.start_ns) / 1e6, 2)
        if judged.evidence.logprobs:
            _describe_tokens(attributes, judged.evidence.logprobs, judged.tokens)
        if judged.evidence.tool_names and attributes.get(names.OUTCOME) != "accepted":
            _describe_calls(attributes, judged.evidence, captures=trace.captures)
        if trace.captures and names.PREFIX_TOKENS not in attributes:
            attributes[names.PREFIX_TEXT] = judged.evidence.text[:MOST_CHARS]
    elif hop.error == "saturated":
        waits_already = "wait already" in attributes.get(names.REASON, "")
        attributes[names.CLAUSE] = "load.max_waiting" if waits_already else "load.max_wait"
    if names.HEDGE in attributes:
        attributes[detail.RACE_CLAUSE] = "escalate.hedge.after"
    elif names.SPECULATIVE in attributes:
        attributes[detail.RACE_CLAUSE] = "escalate.speculate.both"
    elif names.CONTINUES in attributes:
        attributes[detail.RACE_CLAUSE] = "escalate.stream.on_break"
    elif made is not None:
        _describe_next(trace, attributes, made, figures, at_ns)


def _describe_tokens(attributes: dict[str, Any], logprobs: Sequence[float], tokens: Sequence[str]) -> None:
    lowest = sorted(range(len(logprobs)), key=logprobs.__getitem__)[:_LOWEST]
    attributes[detail.PREFIX] = rounded = list(map(round, logprobs[:MOST_TOKENS], repeat(3)))
    attributes[detail.LOWEST] = lowest
    if len(rounded) < len(logprobs):
        attributes[detail.LOWEST_LOGPROBS] = list(map(round, map(logprobs.__getitem__, lowest), repeat(3)))
    else:
        attributes[detail.LOWEST_LOGPROBS] = list(map(rounded.__getitem__, lowest))
    if len(tokens) == len(logprobs):
        attributes[names.PREFIX_TOKENS] = list(tokens[:MOST_TOKENS])
        attributes[names.LOWEST_TOKENS] = list(map(tokens.__getitem__, lowest))


def _describe_calls(attributes: dict[str, Any], evidence: Evidence, *, captures: bool) -> None:
    """Record the calls of a rejected answer; what they were made with only where texts are captured."""
    attributes[detail.CALLS] = [name[:_MOST_NAME] for name in evidence.tool_names[:_MOST_CALLS]]
    if captures:
        made = zip(attributes[detail.CALLS], evidence.tool_arguments, strict=False)
        attributes[names.CALL_ARGUMENTS] = ", ".join(f"{name}({given})" for name, given in made)[:MOST_CHARS]


def _describe_next(
    trace: Trace, attributes: dict[str, Any], made: RecordedDecision, figures: Mapping[str, _Figures], at_ns: int
) -> None:
    """Record which tier would take over from this attempt, and whether it would have been in time at that moment."""
    tier, tiers = attributes.get(names.TIER), () if made.decision is None else made.decision.tiers
    if tier not in tiers[:-1]:
        return
    name = tiers[tiers.index(tier) + 1]
    expected = figures[name]
    attributes[detail.NEXT_TIER] = name
    attributes[detail.NEXT_TTFT] = expected.ttft_ms
    attributes[detail.NEXT_WHOLE] = expected.whole_ms
    if trace.deadline_s is None:
        return
    gone_s, stream = (at_ns - trace.root.start_ns) / 1e9, made.given.features.stream
    left_s = trace.deadline_s - gone_s
    if stream and trace.ttft_s is not None and trace.ttft_s - gone_s < left_s:
        left_s = trace.ttft_s - gone_s
    attributes[detail.NEXT_LATE] = (expected.ttft_ms if stream else expected.whole_ms) > left_s * 1000


# A lookup.

_LOOKUP_CLAUSES: Final = {
    "temperature": "cache.semantic.max_temperature",
    "no_neighbour": "cache.semantic.min_similarity",
    "audit": "cache.semantic.audit",
    "policy": "cache",
    "in_doubt": "cache.doubt_ttl",
}


def _complete_lookup(hop: Hop) -> None:
    attributes = hop.attributes
    reason = attributes.get(names.CACHE_REASON, "")
    if reason in _LOOKUP_CLAUSES:
        attributes[names.CLAUSE] = _LOOKUP_CLAUSES[reason]
    elif reason and reason.startswith(_GUARD):
        attributes[detail.GUARD] = reason.removeprefix(_GUARD)
        attributes[names.CLAUSE] = "cache.semantic.guards"
    elif reason and reason.startswith(NEVER):
        attributes[names.CLAUSE] = "cache.never"
    elif hop.name == names.CACHE_EXACT:
        attributes[names.CLAUSE] = "cache.exact"
    elif names.CACHE_SCORE in attributes:
        similarity, least = attributes.get(names.SIMILARITY), attributes.get(detail.MIN_SIMILARITY)
        if similarity is not None and least is not None and similarity < least:
            attributes[names.CLAUSE] = "cache.semantic.min_similarity"
        else:
            attributes[names.CLAUSE] = f"cache.semantic.{'max_error' if names.THRESHOLD in attributes else 'verify'}"


_CLAUSES: Final = {
    "empty": "escalate.when",
    "refusal": "escalate.when.refusal",
    "cut off": "escalate.when.finish",
    "content filter": "escalate.when.finish",
    "repetition loop": "escalate.when.repetition",
    "no signal": "escalate.no_signal",
    "no signal, accepted by policy": "escalate.no_signal",
}
"""The policy's key that each reason of a verdict comes from; all other faults are of `escalate.when.invalid`."""


def clause_of_verdict(reason: str, basis: str) -> str:
    """Return the dotted key of the policy by which an answer was judged, from its verdict's `reason` and `basis`."""
    if reason.startswith("confidence "):
        return f"escalate.when.{'confidence_below' if basis in CALIBRATED else 'uncalibrated_below'}"
    return _CLAUSES.get(reason, "escalate.when.invalid")
