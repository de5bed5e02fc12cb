"""Find rules of a policy that can never hold, and settings that are probably mistakes, each with what to write instead.

`faults` are certain and count as problems, such as a rule that can never hold; `lint` returns what is only doubtful.
Every policy passed here has already been loaded. `gateway.parts.lint.codes` lists the codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from gateway.parts.lint.outcomes import can_occur, nothing_left, outcomes
from gateway.parts.lint.rule_values import (
    CACHE_VALUES,
    CLASSIFIER_VALUES,
    RATED,
    ROUTE_VALUES,
    Range,
    Ranges,
    asks_for_quantiles,
)
from gateway.parts.lint.slips import yaml_text
from policies.errors import Edit, Finding, KeyPath
from policies.expression import OTHERWISE, Expression, parts
from policies.model import Rules
from policies.quantities import write_duration, write_share
from policies.sections import all_added

_ROUNDING_S = 1e-9
_ATTEMPTS, _STREAM = ("escalate", "max_attempts"), ("escalate", "stream", "hold_max")


def faults(policy: Rules) -> list[Finding]:
    """Return a finding for each rule that can never hold, in whole or in one of its comparisons, and other faults."""
    findings = []
    for at, rule, ranges in _rules(policy):
        for dead, start in _dead(rule, ranges):
            message = f"{dead.source!r} can never hold: {_named(dead, ranges)}"
            share = _as_share(rule, dead, start, ranges)
            mend, edits = (f"write {share!r}", (Edit(at, yaml_text(share)),)) if share else without_rule(policy, at)
            findings.append(Finding(at, message, "T205", mend, edits, start))
    return findings + [finding for part in all_added() for finding in part.faults(policy)]


def lint(policy: Rules) -> list[Finding]:
    """Return everything doubtful in `policy`."""
    checks = (*_CHECKS, *(part.lint for part in all_added()))
    return [finding for check in checks for finding in check(policy)]


def _escalation_has_somewhere_to_go(policy: Rules) -> Iterator[Finding]:
    when = policy.escalate.when
    if not when.asks_for_confidence:
        return
    given = [name for name in ("confidence_below", "uncalibrated_below") if getattr(when, name)]
    at = ("escalate", "when", given[0])
    if len(policy.tiers) == 1:
        edits = tuple(Edit(("escalate", "when", name)) for name in given)
        message = "this policy has one tier, so there is nothing to escalate to"
        yield Finding(at, message, "T401", "leave it out, or name a second tier", edits)
    elif policy.escalate.max_attempts == 1:
        message = "max_attempts is 1, so there is never a second attempt to escalate with"
        yield Finding(at, message, "T401", "write max_attempts: 2", (Edit(_ATTEMPTS, "2"),))


def _thresholds_agree(policy: Rules) -> Iterator[Finding]:
    when, at = policy.escalate.when, ("escalate", "when", "uncalibrated_below")
    if when.uncalibrated_below is not None and when.uncalibrated_below < when.confidence_below:
        yield Finding(
            at,
            "less than confidence_below: an uncalibrated score, which tends to be too high, is accepted where a "
            "calibrated probability is not",
            "T402",
            f"write {when.confidence_below:g} or more",
            (Edit(at, f"{when.confidence_below:g}"),),
        )


def _samples_are_used(policy: Rules) -> Iterator[Finding]:
    if policy.escalate.agreement is None:
        return
    when, at = policy.escalate.when, ("escalate", "agreement")
    mend = "leave it out"
    if not when.asks_for_confidence:
        message = "samples are paid for but not used: when.confidence_below is 0"
        yield Finding(at, message, "T403", f"{mend}, or set that", (Edit(at),))
    elif len(policy.tiers) == 1 or policy.escalate.max_attempts == 1:
        message = "no sample is ever drawn, because there is nothing to escalate to"
        yield Finding(at, message, "T403", mend, (Edit(at),))


def _verifiers_are_asked(policy: Rules) -> Iterator[Finding]:
    escalate = policy.escalate
    for name, section in (("judge", escalate.judge), ("agreement", escalate.agreement)):
        own: KeyPath = ("escalate", name)
        if section is not None and name not in escalate.verify:
            message = f"{name} has a section, and verify leaves it out: it is never asked"
            yield Finding(own, message, "T409", "leave it out, or add it to verify", (Edit(own),))
        elif section is None and name in escalate.verify and "verify" in escalate.model_fields_set:
            at: KeyPath = ("escalate", "verify", escalate.verify.index(name))
            mend = f"write {name}: {{{'backend: ...' if name == 'judge' else 'samples: 1'}}}, or leave it out here"
            yield Finding(at, f"{name} has no section, so it is never asked", "T409", mend, (Edit(at),))
    judge, hold_max = escalate.judge, escalate.stream.hold_max
    if judge is not None and judge.within > hold_max and "within" in judge.model_fields_set:
        at, longest = ("escalate", "judge", "within"), f"{hold_max:g}s"
        message = f"streams are held for {longest} at most (stream.hold_max), so none waits so long for its judge"
        yield Finding(at, message, "T409", f"write {longest}, or raise that", (Edit(at, longest),))


def _switching_is_weighed(policy: Rules) -> Iterator[Finding]:
    at: KeyPath = ("route", "weigh_switching")
    if "weigh_switching" not in policy.route.model_fields_set or not policy.route.weigh_switching:
        return
    if len(policy.tiers) == 1:
        yield Finding(at, "there is no other tier to switch to", "T211", "leave it out", (Edit(at),))
    for tier, rule in policy.route.start.items():
        if "last_tier" in rule.names:
            message = "last_tier keeps a conversation at its tier whatever that costs, where weigh_switching weighs it"
            mend = "ask for something else, or write weigh_switching: false"
            yield Finding(("route", "start", tier), message, "T211", mend, (Edit(at, "false"),))


def _checks_are_whole(policy: Rules) -> Iterator[Finding]:
    invalid, at = policy.escalate.when.invalid, ("escalate", "when", "invalid")
    if "json_schema" in invalid and "json" not in invalid:
        mended = yaml_text(sorted([*invalid, "json"]))
        message = "json is left out: answers that were asked to be JSON without a schema are never parsed"
        yield Finding(at, message, "T404", f"write {mended}", (Edit(at, mended),))
    if "tool_args" in invalid and "tool_calls" not in invalid:
        mended = yaml_text(sorted([*invalid, "tool_calls"]))
        message = "tool_calls is left out: a call of a tool that was not offered, or one written as text, is accepted"
        yield Finding(at, message, "T408", f"write {mended}", (Edit(at, mended),))


def _rules(policy: Rules) -> Iterator[tuple[KeyPath, Expression, Ranges]]:
    """Yield every rule of the policy, its key path, and the possible values of its names."""
    route = {**ROUTE_VALUES, "budget_ms": Range(0.0, policy.slo.deadline * 1000)}
    for tier, rule in policy.route.start.items():
        yield ("route", "start", tier), rule, route
    if policy.escalate.speculate.both is not None:
        yield ("escalate", "speculate", "both"), policy.escalate.speculate.both, route
    for i, rule in enumerate(policy.cache.never):
        yield ("cache", "never", i), rule, CACHE_VALUES


def _dead(rule: Expression, ranges: Ranges) -> list[tuple[Expression, int]]:
    """Return the comparisons that can never hold, each with where it begins, or the rule itself if only as a whole."""
    dead = [(part, start) for part, start in parts(rule) if True not in outcomes(part, ranges, can_occur)]
    return dead or ([] if True in outcomes(rule, ranges, can_occur) else [(rule, 0)])


def _always_holds(rule: Expression, ranges: Ranges) -> bool:
    return False not in outcomes(rule, ranges, can_occur)


def _named(rule: Expression, ranges: Ranges) -> str:
    described = "; ".join(f"{name} is {ranges[name]}" for name in sorted(rule.names))
    both = "in_domain" in rule.names and rule.names & CLASSIFIER_VALUES
    if not both:
        return described
    return f"{described}; no comparison with {', '.join(sorted(both))} holds unless in_domain does"


def _as_share(rule: Expression, dead: Expression, start: int, ranges: Ranges) -> str | None:
    """Return the rule with a share that was written in percent, `p_adequate >= 70`, as one; None for other mistakes."""
    name, _, number = dead.source.rpartition(" ")
    first = name.split(" ")[0]
    if first not in ranges or ranges[first].high != 1.0 or not number.replace(".", "", 1).isdigit():
        return None
    if not 1 < float(number) <= 100 or not rule.source.startswith(dead.source, start):
        return None
    return f"{rule.source[:start]}{name} {float(number) / 100:g}{rule.source[start + len(dead.source) :]}"


def without_rule(policy: Rules, at: KeyPath) -> tuple[str, tuple[Edit, ...]]:
    """Return how to leave out a rule that takes no request, and its tier where that would then not be reached."""
    if at[:2] != ("route", "start"):
        return "leave it out", (Edit(at),)
    place = policy.tiers.index(str(at[-1]))
    others = [policy.tiers.index(name) for name in policy.route.start if name != at[-1]]
    if others and place >= min(others):
        return "leave it out, or write when a request starts there", (Edit(at),)
    return "write when a request starts there", ()


def _rules_leave_a_choice(policy: Rules) -> Iterator[Finding]:
    for at, rule, ranges in _rules(policy):
        if rule.source != OTHERWISE and at[0] != "cache" and _always_holds(rule, ranges):
            message = f"{rule.source!r} holds for every request ({_named(rule, ranges)})"
            yield Finding(at, message, "T206", "write 'otherwise' instead", (Edit(at, OTHERWISE),))


def _start_rules_are_reached(policy: Rules) -> Iterator[Finding]:
    above: list[tuple[str, Expression]] = []
    for at, rule, ranges in _rules(policy):
        if at[:2] != ("route", "start"):
            continue
        settled_by = next((tier for tier, earlier in above if _always_holds(earlier, ranges)), None)
        if settled_by is not None:
            message = f"never reached: {settled_by!r} above already takes every request"
            last = ("route", "start", settled_by)
            edits: tuple[Edit, ...] = (Edit(at),)
            if rule.source != OTHERWISE:
                edits = (Edit(last), Edit(last, policy.route.start[settled_by].source))
            yield Finding(at, message, "T207", f"write it above {settled_by!r}, or leave it out", edits, of_key=True)
        elif above and rule.names and nothing_left(rule, [earlier for _, earlier in above], ranges, can_occur):
            tiers = " and ".join(repr(tier) for tier, _ in above)
            message = f"never reached: whenever {rule.source!r} holds, a request has started at {tiers} above"
            mend, edits = without_rule(policy, at)
            yield Finding(at, message, "T207", f"write it above them, or {mend}", edits)
        above.append((str(at[-1]), rule))


def _classifier_is_there(policy: Rules) -> Iterator[Finding]:
    if policy.route.classifier != "none":
        return
    for tier, rule in policy.route.start.items():
        for name in sorted(rule.names & RATED):
            at = ("route", "start", tier)
            message = f"{name} has no value, because route.classifier is none"
            mend = "write classifier: default, or a rule without it"
            yield Finding(at, message, "T208", mend, (Edit(("route", "classifier")),), rule.start_of(name))


def _traffic_is_used(policy: Rules) -> Iterator[Finding]:
    if policy.route.traffic is not None and not asks_for_quantiles(policy):
        at = ("route", "traffic")
        message = "no rule asks for `quantile` or for the easiest of a kind, so this changes nothing"
        yield Finding(at, message, "T209", "leave it out", (Edit(at),))


def _aliases_differ(policy: Rules) -> Iterator[Finding]:
    models = policy.match.models
    for i, name in enumerate(models):
        at = ("match", "models", i)
        if name in models[:i]:
            yield Finding(at, f"{name!r} is named twice", "T210", "leave it out", (Edit(at),))
        elif name == policy.surface:
            message = f"{name!r} is the surface's own name, which always means it"
            yield Finding(at, message, "T210", "leave it out", (Edit(at),))


def _hold_fits(policy: Rules) -> Iterator[Finding]:
    hold, ttft, deadline = policy.escalate.stream.hold_max, policy.slo.ttft, policy.slo.deadline
    if policy.escalate.max_attempts == 1:
        return  # nothing can take over, so nothing is held back
    if deadline <= hold:
        message = "not less than slo.deadline: a stream can be past its deadline before it is judged"
        half = write_duration(deadline / 2)
        yield Finding(_STREAM, message, "T304", f"write such as {half}", (Edit(_STREAM, half),))
        return
    budgets = [(name, value) for name, value in (("p95", ttft.p95), ("p99", ttft.p99)) if value is not None]
    for name, first in budgets[:1]:
        if first <= hold:
            message = f"not less than slo.ttft.{name}: holding back alone uses up the time to the first token"
            half = write_duration(first / 2)
            yield Finding(_STREAM, message, "T303", f"write such as {half}", (Edit(_STREAM, half),))


def _second_opinions_come_in_time(policy: Rules) -> Iterator[Finding]:
    semantic, first = policy.cache.semantic, policy.slo.ttft.p95
    if semantic is None:
        return
    rule, at = semantic.cross_encoder, ("cache", "semantic", "cross_encoder")
    if semantic.verify != "default":
        if "cross_encoder" in semantic.model_fields_set:
            message = f"verify is {semantic.verify}, so the cross-encoder is never asked"
            yield Finding(at, message, "T504", "leave it out, or write verify: default", (Edit(at),))
        return
    if first is not None and first <= rule.within:
        message = "not less than slo.ttft.p95: its call alone can use up the time to the first token"
        half = write_duration(first / 2)
        yield Finding((*at, "within"), message, "T306", f"write such as {half}", (Edit((*at, "within"), half),))
    if rule.min_score == 0:
        message = "0 serves whatever the cross-encoder is asked about, until there are labels"
        mend = "leave it out for the model's own threshold"
        yield Finding((*at, "min_score"), message, "T505", mend, (Edit((*at, "min_score")),))


def _races_have_a_rival(policy: Rules) -> Iterator[Finding]:
    escalate, semantic = policy.escalate, policy.cache.semantic
    speculate: KeyPath = ("escalate", "speculate")
    if escalate.max_attempts == 1 and (escalate.hedge is not None or escalate.speculate.both is not None):
        at: KeyPath = ("escalate", "hedge" if escalate.hedge is not None else "speculate")
        message = "max_attempts is 1, so nothing ever runs beside the first attempt"
        yield Finding(at, message, "T405", "leave it out, or write max_attempts: 2", (Edit(_ATTEMPTS, "2"),))
    elif len(policy.tiers) == 1 and escalate.speculate.both is not None:
        message = "this policy has one tier, so there is no second one to ask"
        yield Finding((*speculate, "both"), message, "T405", "leave it out", (Edit((*speculate, "both")),))
    if escalate.speculate.during_check == "always" and (semantic is None or semantic.verify != "default"):
        at = (*speculate, "during_check")
        message = "no cross-encoder is ever asked: that takes verify: default"
        yield Finding(at, message, "T407", "leave it out", (Edit(at),))


def _hedges_come_in_time(policy: Rules) -> Iterator[Finding]:
    hedge, at = policy.escalate.hedge, ("escalate", "hedge", "after")
    if hedge is None or isinstance(hedge.after, str):
        return
    budget, named = policy.slo.ttft.p99, "slo.ttft.p99"
    if budget is None:
        budget, named = policy.slo.deadline, "slo.deadline"
    if hedge.after >= budget:
        message = f"not less than {named}: the second answer cannot come in time"
        yield Finding(at, message, "T307", "write p95, or a shorter time", (Edit(at, "p95"),))


def _waits_end_in_time(policy: Rules) -> Iterator[Finding]:
    load, at = policy.load, ("load", "max_wait")
    if "max_wait" in load.model_fields_set and load.max_wait > policy.slo.deadline:
        most, half = write_duration(policy.slo.deadline), write_duration(policy.slo.deadline / 2)
        message = "longer than slo.deadline, which ends the wait first"
        yield Finding(at, message, "T305", f"write less than {most}", (Edit(at, half),))


def _holdout_is_a_sample(policy: Rules) -> Iterator[Finding]:
    if policy.holdout is not None and policy.holdout > 0.1:
        share = write_share(policy.holdout)
        message = f"{share} of all requests go to the strongest tier to measure the others; 1% is enough"
        yield Finding(("holdout",), message, "T601", "write 1%", (Edit(("holdout",), "1%"),))


def _objectives_agree(policy: Rules) -> Iterator[Finding]:
    for name, quantiles in policy.slo.quantiles().items():
        given = [(q, s) for q, s in (("p50", quantiles.p50), ("p95", quantiles.p95), ("p99", quantiles.p99)) if s]
        for (lower, less), (upper, more) in pairwise(given):
            at, most = ("slo", *name.split("_"), lower), write_duration(more)
            if less > more:
                yield Finding(at, f"longer than {upper}", "T301", f"write {most} or less", (Edit(at, most),))
        if given and given[-1][1] > policy.slo.deadline:
            at, most = ("slo", *name.split("_"), given[-1][0]), write_duration(policy.slo.deadline)
            yield Finding(at, "longer than slo.deadline", "T302", f"write {most} or less", (Edit(at, most),))


def _stages_fit_the_whole(policy: Rules) -> Iterator[Finding]:
    """Yield quantiles at which a request's stages add up to more than the first token or the answer may take."""
    slo = policy.slo
    for quantile in ("p50", "p95", "p99"):
        parts = {name: s for name, stage in slo.stages.items() if (s := getattr(stage, quantile)) is not None}
        before = {name: seconds for name, seconds in parts.items() if name != "decode"}
        first_s, total_s = getattr(slo.ttft, quantile), getattr(slo.total, quantile)
        last = (f"slo.total.{quantile}", total_s, parts) if total_s else ("slo.deadline", slo.deadline, parts)
        for named, limit_s, summed in ((f"slo.ttft.{quantile}", first_s, before), last):
            if limit_s is not None and (takes_s := sum(summed.values())) > limit_s + _ROUNDING_S:
                what = " + ".join(f"{name} {write_duration(seconds)}" for name, seconds in summed.items())
                message = f"{quantile} of its stages add up to {write_duration(round(takes_s, 4))} ({what})"
                message += f", more than {named} ({write_duration(limit_s)})"
                yield Finding(("slo", "stages"), message, "T309", "write shorter times, or a longer whole")
                break


def _pace_fits_the_answer(policy: Rules) -> Iterator[Finding]:
    slo, tokens = policy.slo, policy.output.max_tokens
    given = [(q, s) for q, s in (("p99", slo.tpot.p99), ("p95", slo.tpot.p95), ("p50", slo.tpot.p50)) if s]
    if not given or tokens is None or tokens < 2:
        return
    (name, pace_s), limit_s = given[0], slo.total.p99 or slo.deadline
    takes_s, named = pace_s * (tokens - 1), "slo.total.p99" if slo.total.p99 else "slo.deadline"
    if takes_s > limit_s:
        # Three digits, of one per cent less, so that rounding never exceeds the limit.
        at, most = ("slo", "tpot", name), write_duration(float(f"{0.99 * limit_s / (tokens - 1):.3g}"))
        message = f"{tokens} tokens (output.max_tokens) at that pace take {takes_s:.3g}s, longer than {named}"
        yield Finding(at, message, "T308", f"write {most} or less, or fewer tokens", (Edit(at, most),))


def _caches_build_on_each_other(policy: Rules) -> Iterator[Finding]:
    exact, semantic = policy.cache.exact, policy.cache.semantic
    if semantic is not None and exact is None:
        message = "there is no exact cache, so even equal requests pay for an embedding"
        ttl = yaml_text({"ttl": write_duration(semantic.ttl)})
        yield Finding(("cache", "semantic"), message, "T501", f"add exact: {ttl}", (Edit(("cache", "exact"), ttl),))
    if semantic is not None and exact is not None and semantic.ttl > exact.ttl > 0:
        at: KeyPath = ("cache", "semantic", "ttl")
        message = (
            f"longer than cache.exact.ttl: after {write_duration(exact.ttl)} only requests in other words are served"
        )
        mend = f"write {write_duration(exact.ttl)} or less"
        yield Finding(at, message, "T506", mend, (Edit(at, write_duration(exact.ttl)),))
    for name, section in (("exact", exact), ("semantic", semantic)):
        if section is not None and section.ttl == 0:
            message = "0 keeps no answer"
            yield Finding(("cache", name, "ttl"), message, "T507", f"leave {name} out", (Edit(("cache", name)),))
    if semantic is not None and policy.cache.store_tool_calls:
        at = ("cache", "store_tool_calls")
        message = "requests here call tools, and no request that offers tools is answered by the semantic cache"
        yield Finding(at, message, "T503", "leave cache.semantic out", (Edit(("cache", "semantic")),))
    for i, rule in enumerate(policy.cache.never if exact or semantic else ()):
        if _always_holds(rule, CACHE_VALUES):
            at = ("cache", "never", i)
            message = f"{rule.source!r} holds for every request, so nothing is ever cached"
            yield Finding(at, message, "T502", "leave it out", (Edit(at),))


def _doubt_is_there(policy: Rules) -> Iterator[Finding]:
    cache, at = policy.cache, ("cache", "doubt_ttl")
    lifetimes = [section.ttl for section in (cache.exact, cache.semantic) if section is not None]
    if "doubt_ttl" not in cache.model_fields_set or not lifetimes:
        return
    if not any("volatile" in rule.names for rule in cache.never):
        message = "no rule of cache.never names volatile, so nothing is in doubt"
        yield Finding(at, message, "T508", "leave it out, or add volatile to cache.never", (Edit(at),))
    elif cache.doubt_ttl >= max(lifetimes):
        message = f"no shorter than {write_duration(max(lifetimes))}, for which answers are kept anyway"
        yield Finding(at, message, "T508", "write a shorter time, or leave it out")


_CHECKS: tuple[Callable[[Rules], Iterator[Finding]], ...] = (
    _objectives_agree,
    _pace_fits_the_answer,
    _stages_fit_the_whole,
    _rules_leave_a_choice,
    _start_rules_are_reached,
    _classifier_is_there,
    _traffic_is_used,
    _aliases_differ,
    _escalation_has_somewhere_to_go,
    _thresholds_agree,
    _samples_are_used,
    _verifiers_are_asked,
    _checks_are_whole,
    _switching_is_weighed,
    _hold_fits,
    _second_opinions_come_in_time,
    _races_have_a_rival,
    _hedges_come_in_time,
    _holdout_is_a_sample,
    _waits_end_in_time,
    _caches_build_on_each_other,
    _doubt_is_there,
)
