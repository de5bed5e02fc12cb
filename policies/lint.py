"""Find rules of a policy that can never hold, and settings that are probably mistakes, for `tierline check`.

`faults` are certain and count as problems, such as a rule that can never hold; `lint` returns what is only doubtful.
Every policy passed here has already been loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from policies.caching import CACHE_VALUES
from policies.errors import KeyPath
from policies.expression import OTHERWISE, Expression, Range, Ranges, outcomes, parts
from policies.model import CLASSIFIER_VALUES, ROUTE_VALUES, Quantiles, Rules, can_occur
from policies.validation import Finding


def faults(policy: Rules) -> list[Finding]:
    """Return (where, what) for every rule that can never hold, in whole or in one of its comparisons."""
    return [
        (at, f"{dead.source!r} can never hold: {_named(dead, ranges)}")
        for at, rule, ranges in _rules(policy)
        for dead in _dead(rule, ranges)
    ]


def lint(policy: Rules) -> list[Finding]:
    """Return (where, what) for everything doubtful in `policy`."""
    return [finding for check in _CHECKS for finding in check(policy)]


def _escalation_has_somewhere_to_go(policy: Rules) -> Iterator[Finding]:
    when = policy.escalate.when
    if not when.asks_for_confidence:
        return
    at = ("escalate", "when", "confidence_below" if when.confidence_below else "uncalibrated_below")
    if len(policy.tiers) == 1:
        yield at, "this policy has one tier, so there is nothing to escalate to"
    elif policy.escalate.max_attempts == 1:
        yield at, "max_attempts is 1, so there is never a second attempt to escalate with"


def _thresholds_agree(policy: Rules) -> Iterator[Finding]:
    when = policy.escalate.when
    if when.uncalibrated_below is not None and when.uncalibrated_below < when.confidence_below:
        yield (
            ("escalate", "when", "uncalibrated_below"),
            "less than confidence_below: an uncalibrated score, which tends to be too high, is accepted where a "
            "calibrated probability is not",
        )


def _samples_are_used(policy: Rules) -> Iterator[Finding]:
    if policy.escalate.agreement is None:
        return
    when, at = policy.escalate.when, ("escalate", "agreement")
    if not when.asks_for_confidence:
        yield at, "samples are paid for but not used: when.confidence_below is 0"
    elif len(policy.tiers) == 1 or policy.escalate.max_attempts == 1:
        yield at, "no sample is ever drawn, because there is nothing to escalate to"


def _schemas_imply_json(policy: Rules) -> Iterator[Finding]:
    invalid = policy.escalate.when.invalid
    if "json_schema" in invalid and "json" not in invalid:
        yield (
            ("escalate", "when", "invalid"),
            "json is left out: answers that were asked to be JSON without a schema are never parsed",
        )


def _rules(policy: Rules) -> Iterator[tuple[KeyPath, Expression, Ranges]]:
    """Yield every rule of the policy, its key path, and the possible values of its names."""
    route = {**ROUTE_VALUES, "budget_ms": Range(0.0, policy.slo.deadline * 1000)}
    for tier, rule in policy.route.start.items():
        yield ("route", "start", tier), rule, route
    if policy.escalate.speculate.both is not None:
        yield ("escalate", "speculate", "both"), policy.escalate.speculate.both, route
    for i, rule in enumerate(policy.cache.never):
        yield ("cache", "never", i), rule, CACHE_VALUES


def _dead(rule: Expression, ranges: Ranges) -> list[Expression]:
    """Return the comparisons that can never hold, or the rule itself if only their combination cannot."""
    dead = [part for part in parts(rule) if True not in outcomes(part, ranges, can_occur)]
    return dead or ([] if True in outcomes(rule, ranges, can_occur) else [rule])


def _always_holds(rule: Expression, ranges: Ranges) -> bool:
    return False not in outcomes(rule, ranges, can_occur)


def _named(rule: Expression, ranges: Ranges) -> str:
    described = "; ".join(f"{name} is {ranges[name]}" for name in sorted(rule.names))
    both = "in_domain" in rule.names and rule.names & CLASSIFIER_VALUES
    if not both:
        return described
    return f"{described}; no comparison with {', '.join(sorted(both))} holds unless in_domain does"


def _rules_leave_a_choice(policy: Rules) -> Iterator[Finding]:
    for at, rule, ranges in _rules(policy):
        if rule.source != OTHERWISE and _always_holds(rule, ranges):
            yield at, f"{rule.source!r} holds for every request ({_named(rule, ranges)}); write 'otherwise' instead"


def _start_rules_are_reached(policy: Rules) -> Iterator[Finding]:
    settled_by: str | None = None
    for at, rule, ranges in _rules(policy):
        if at[:2] != ("route", "start"):
            continue
        if settled_by is not None:
            yield at, f"never reached: {settled_by!r} above already takes every request"
        elif _always_holds(rule, ranges):
            settled_by = str(at[-1])


def _classifier_is_there(policy: Rules) -> Iterator[Finding]:
    if policy.route.classifier != "none":
        return
    for tier, rule in policy.route.start.items():
        for name in sorted(rule.names & (CLASSIFIER_VALUES | {"in_domain"})):
            yield ("route", "start", tier), f"{name} has no value, because route.classifier is none"


def asks_for_quantiles(policy: Rules) -> bool:
    """Return whether a start rule or the rule for speculation uses `quantile`, in either form."""
    rules = [*policy.route.start.values(), policy.escalate.speculate.both]
    return any(rule is not None and "quantile" in rule.names for rule in rules)


def _traffic_is_used(policy: Rules) -> Iterator[Finding]:
    if policy.route.traffic is not None and not asks_for_quantiles(policy):
        yield ("route", "traffic"), "no rule asks for `quantile` or for the easiest of a kind, so this changes nothing"


def _hold_fits(policy: Rules) -> Iterator[Finding]:
    at = ("escalate", "stream", "hold_max")
    hold, first = policy.escalate.stream.hold_max, policy.slo.ttft.p95
    if policy.slo.deadline <= hold:
        yield at, "not less than slo.deadline: a stream can be past its deadline before it is judged"
    elif first is not None and first <= hold:
        yield at, "not less than slo.ttft.p95: holding back alone uses up the time to the first token"


def _second_opinions_come_in_time(policy: Rules) -> Iterator[Finding]:
    semantic, first = policy.cache.semantic, policy.slo.ttft.p95
    if semantic is None:
        return
    rule, at = semantic.cross_encoder, ("cache", "semantic", "cross_encoder")
    if semantic.verify != "default":
        if "cross_encoder" in semantic.model_fields_set:
            yield at, f"verify is {semantic.verify}, so the cross-encoder is never asked"
        return
    if first is not None and first <= rule.within:
        yield (*at, "within"), "not less than slo.ttft.p95: its call alone can use up the time to the first token"
    if rule.min_score == 0:
        yield (*at, "min_score"), "0 serves whatever the cross-encoder is asked about, until there are labels"


def _races_have_a_rival(policy: Rules) -> Iterator[Finding]:
    escalate = policy.escalate
    if escalate.max_attempts == 1 and (escalate.hedge is not None or escalate.speculate.both is not None):
        at = "hedge" if escalate.hedge is not None else "speculate"
        yield ("escalate", at), "max_attempts is 1, so nothing ever runs beside the first attempt"
    elif len(policy.tiers) == 1 and escalate.speculate.both is not None:
        yield ("escalate", "speculate", "both"), "this policy has one tier, so there is no second one to ask"
    if escalate.speculate.during_lookup and policy.cache.semantic is None:
        yield ("escalate", "speculate", "during_lookup"), "there is no semantic cache, so there is no lookup"
    semantic = policy.cache.semantic
    if escalate.speculate.during_check == "always" and (semantic is None or semantic.verify != "default"):
        yield ("escalate", "speculate", "during_check"), "no cross-encoder is ever asked: that takes verify: default"


def _waits_end_in_time(policy: Rules) -> Iterator[Finding]:
    load = policy.load
    if "max_wait" in load.model_fields_set and load.max_wait > policy.slo.deadline:
        yield ("load", "max_wait"), "longer than slo.deadline, which ends the wait first"


def _holdout_is_a_sample(policy: Rules) -> Iterator[Finding]:
    if policy.holdout > 0.1:
        yield (
            ("holdout",),
            f"{policy.holdout:.0%} of all requests go to the strongest tier to measure the others; 1% is enough",
        )


def _objectives_agree(policy: Rules) -> Iterator[Finding]:
    objectives: tuple[tuple[str, Quantiles], ...] = (("ttft", policy.slo.ttft), ("total", policy.slo.total))
    for name, quantiles in objectives:
        given = [(q, s) for q, s in (("p50", quantiles.p50), ("p95", quantiles.p95), ("p99", quantiles.p99)) if s]
        for (lower, less), (upper, more) in pairwise(given):
            if less > more:
                yield ("slo", name, lower), f"longer than {upper}"
        if given and given[-1][1] > policy.slo.deadline:
            yield ("slo", name, given[-1][0]), "longer than slo.deadline"


def _caches_build_on_each_other(policy: Rules) -> Iterator[Finding]:
    exact, semantic = policy.cache.exact, policy.cache.semantic
    if semantic is not None and exact is None:
        yield ("cache", "semantic"), "there is no exact cache, so even equal requests pay for an embedding"
    for rule in policy.cache.never if exact or semantic else ():
        if _always_holds(rule, CACHE_VALUES):
            yield ("cache", "never"), f"{rule.source!r} holds for every request, so nothing is ever cached"


_CHECKS: tuple[Callable[[Rules], Iterator[Finding]], ...] = (
    _objectives_agree,
    _rules_leave_a_choice,
    _start_rules_are_reached,
    _classifier_is_there,
    _traffic_is_used,
    _escalation_has_somewhere_to_go,
    _thresholds_agree,
    _samples_are_used,
    _schemas_imply_json,
    _hold_fits,
    _second_opinions_come_in_time,
    _races_have_a_rival,
    _holdout_is_a_sample,
    _waits_end_in_time,
    _caches_build_on_each_other,
)
