"""Describe each step of a request's path as lines for people; nothing is called."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cache.planning.eligibility import counts_as_volatile, longest_kept
from cache.planning.eligibility import never_values as cache_values
from cache.planning.volatile import volatility_of
from gateway.parts.lint.written import written
from policies.errors import KeyPath
from policies.expression import OTHERWISE, Expression, parts
from policies.model import Escalate, Policy
from policies.quantities import percent, write_duration, write_share
from policies.sections import all_added
from routing.decide import Clamp, Decision, DecisionInput, NoTierError, TierHealth, decide, needs, rule_values
from routing.difficulty.model import Difficulty

if TYPE_CHECKING:
    from cache.planning.plan import CachePlan

_WHY_SEMANTIC = {
    "policy": "the policy has no semantic cache",
    "follow_up": "the question leans on what was said before",
    "payload": "it brings a text to work on",
    "no_text": "its last message is no plain text of a user",
    "long": "the question is longer than its vector covers",
    "temperature": "it asks for a higher temperature than max_temperature",
}
"""The reasons of `cache.planning.eligibility` in words; the others name a field of the request."""


@dataclass(frozen=True, slots=True)
class PathLine:
    """One line of an explanation: the step that it belongs to, what happens there, and the key that rules it."""

    step: str
    text: str
    at: KeyPath = ()
    held: bool | None = None
    """Of a rule or a comparison, whether it holds."""


def start_of(policy: Policy, given: DecisionInput) -> str | None:
    """Return the tier that answers first; None if none can."""
    try:
        return decide(policy, given).tiers[0]
    except NoTierError:
        return None


def decision_lines(policy: Policy, given: DecisionInput) -> list[PathLine]:
    """Return the steps from the features to the decision, and what could happen after it."""
    values = rule_values(policy, given.difficulty, given.features, given.budget_s)
    added = (line for part in all_added() for line in part.describe(policy))
    lines = [PathLine(name, text, (name,)) for name, text in added]
    lines += [*_features(policy, values, given), *_classifier(policy, given, values)]
    lines += [*_conversation(policy, given, values), *_budget(policy, given)]
    try:
        decision = decide(policy, given)
    except NoTierError as error:
        return [*lines, *_tiers(policy, given), PathLine("decision", f"no tier: {error}")]
    lines += _rules(policy, given, values, decision)
    lines += _tiers(policy, given)
    lines += _decision(decision)
    lines += _set_fields(policy, decision)
    return [*lines, *_escalation(policy, given, values, decision)]


def cache_lines(policy: Policy, plan: CachePlan, body: Mapping[str, Any]) -> list[PathLine]:
    """Return why the request may be answered from the store and its answer kept, or why not."""
    cache, lines = policy.cache, []
    values = {**cache_values(body, plan.facts), "volatile": counts_as_volatile(cache, volatility_of(plan.facts.text))}
    for i, rule in enumerate(cache.never):
        at = ("cache", "never", i)
        held = rule.holds(values)
        lines.append(PathLine("cache", f"never {rule.source}: {_verdict(held)} {_compared(rule, values)}", at, held))
    if plan.reason:
        why = "the policy has no cache" if plan.reason == "policy" else plan.reason
        return [*lines, PathLine("cache", f"neither served from the store nor kept: {why}", ("cache",))]
    if not plan.read:
        lines.append(PathLine("cache", "not served from the store: the client says no-cache", ("cache",)))
    if not plan.write:
        lines.append(PathLine("cache", "the answer is not kept: the client says no-store", ("cache",)))
    longest = longest_kept(cache, body, plan.facts)
    if longest < math.inf:
        text = f"the answer may depend on when it is asked: kept for {write_duration(longest)} at most"
        lines.append(PathLine("cache", text, ("cache", "doubt_ttl")))
    if cache.exact is None:
        lines.append(PathLine("cache", "exact: the policy has none", ("cache",)))
    elif plan.read:
        kept = write_duration(min(cache.exact.ttl, longest))
        lines.append(PathLine("cache", f"exact: looked up, kept for {kept}", ("cache", "exact")))
    why = plan.why_not_semantic()
    if why:
        text = f"semantic: not looked up: {_WHY_SEMANTIC.get(why, f'it sets {why}')}"
    else:
        kept = write_duration(min(cache.semantic.ttl, longest)) if cache.semantic else ""
        text = f"semantic: looked up, kept for {kept}" if kept else ""
    lines.append(PathLine("cache", text, ("cache", "semantic")))
    return lines


def _features(policy: Policy, values: Mapping[str, Any], given: DecisionInput) -> Iterator[PathLine]:
    flags = ("stream", "has_tools", "wants_json", "has_images")
    shown = [f"tokens_in {values['tokens_in']}", f"turns {values['turns']}"]
    shown += [f"{name} {_yes(values[name])}" for name in flags]
    shown += [f"needs {name}" for name in sorted(given.features.further)]
    shown += ["reasoning_above yes"] if given.features.reasoning_above else []
    if last := given.features.last_tier:
        shown.append(f"last_tier {last} ({policy.tiers[last - 1]})")
    yield PathLine("features", ", ".join(shown))
    if given.room:
        yield PathLine("features", f"prompt and reply take {given.room} tokens at most")


def _classifier(policy: Policy, given: DecisionInput, values: Mapping[str, Any]) -> Iterator[PathLine]:
    difficulty, at = given.difficulty, ("route", "classifier")
    if policy.route.classifier == "none":
        yield PathLine("classifier", "not asked: route.classifier is none", at)
    elif difficulty is None:
        yield PathLine("classifier", "not asked, or no vector in time: nothing is known of the difficulty", at)
    elif not difficulty.in_domain:
        named = f"kind {difficulty.kind} (probability {difficulty.p_kind:.2f}); " if difficulty.kind else ""
        yield PathLine("classifier", f"{named}its ranking is not known to hold for this request, so it abstains", at)
        yield PathLine(
            "classifier", f"work that it asks for, by common sense (effort): {_number(difficulty.effort)}", at
        )
    else:
        yield PathLine(
            "classifier",
            f"kind {difficulty.kind or 'missing'} (probability {difficulty.p_kind:.2f}), "
            f"quantile {_number(difficulty.quantile)}, difficulty {difficulty.score:.3f}",
            at,
        )
        if values["quantile"] != difficulty.quantile:
            text = f"of this surface's own requests, the quantile is {_number(values['quantile'])}"
            yield PathLine("classifier", text, ("route", "traffic"))
        adequate = [f"{tier} {_number(_own_adequate(policy, difficulty, tier))}" for tier in policy.tiers]
        yield PathLine("classifier", f"chance that a tier suffices (p_adequate): {', '.join(adequate)}", at)
        yield PathLine(
            "classifier", f"work that it asks for, by common sense (effort): {_number(difficulty.effort)}", at
        )


def _conversation(policy: Policy, given: DecisionInput, values: Mapping[str, Any]) -> Iterator[PathLine]:
    asked = given.difficulty is not None and "conversation_difficulty" in policy.asked
    if not asked or (given.features.turns <= 1 and not given.features.before):
        return
    before, whole = given.features.before, values["conversation_difficulty"]
    if before is None:
        text = "how hard the turns before are is not known"
    else:
        text = f"the turns before make it {before:.3f} hard at least: conversation_difficulty {_number(whole)}"
    yield PathLine("classifier", text, ("route", "classifier"))


def _budget(policy: Policy, given: DecisionInput) -> Iterator[PathLine]:
    yield PathLine("budget", f"{write_duration(round(given.budget_s, 3))} until the deadline", ("slo", "deadline"))
    if given.ttft_s is not None:
        text = f"{write_duration(round(given.ttft_s, 4))} until the first token is due"
        yield PathLine("budget", text, ("slo", "ttft", "p99"))
    if (spent := given.spent) is not None:
        steering, steers_from = policy.steering(spent), percent(policy.steer_from)
        text = f"{percent(spent.share)} of the tightest budget is spent, and it steers from {steers_from}"
        if steering is not None:
            text += (
                f": the cap is {steering.cap or 'none'}, and thresholds below it are {percent(steering.ease)} of theirs"
            )
        yield PathLine("budget", text, ("spending", "steer_from"), held=steering is not None)


def _rules(policy: Policy, given: DecisionInput, values: Mapping[str, Any], decision: Decision) -> Iterator[PathLine]:
    wanted = next((tier for tier, rule in policy.route.start.items() if _follows(decision, tier, rule)), None)
    if wanted is None:
        yield PathLine("rules", f"not read: {decision.reason}", ("route", "start"))
        return
    for tier, rule in policy.route.start.items():
        own = {**values, "p_adequate": _own_adequate(policy, given.difficulty, tier)}
        held, at = rule.holds(own), ("route", "start", tier)
        yield PathLine("rules", f"{tier}: {rule.source}: {_verdict(held)}", at, held)
        if rule.source != OTHERWISE:
            yield PathLine("rules", f"  {_compared(rule, own)}", at)
        if held:
            return


def _follows(decision: Decision, tier: str, rule: Expression) -> bool:
    return decision.reason == f"{tier}: {rule.source}" or decision.reason.startswith(f"{tier}: {rule.source};")


def _tiers(policy: Policy, given: DecisionInput) -> Iterator[PathLine]:
    limit = given.budget_s if given.ttft_s is None else min(given.budget_s, given.ttft_s)
    within = (given.clamp or Clamp()).of(policy)
    for i, tier in enumerate(policy.tiers):
        at = ("tiers", i)
        if tier in policy.unconfigured:
            yield PathLine("tiers", policy.unconfigured[tier].why_not, at, held=False)
        elif tier not in policy.ladder:
            yield PathLine("tiers", f"{tier}: this deployment has no such tier", at, held=False)
        elif tier not in within:
            yield PathLine("tiers", f"{tier}: outside the client's own limits", at, held=False)
        else:
            health = given.health[tier]
            why = health.unfit_for(needs(given.features), given.room)
            if not why and health.unavailable:
                why = f"{tier} is {health.unavailable}"
            text = why or f"{tier}: open to it{_expectation(health, given.features.stream, limit)}"
            yield PathLine("tiers", text, at, held=not why)


def _expectation(health: TierHealth, stream: bool, limit: float) -> str:
    forecast = health.forecast
    if forecast is None or not forecast.known:
        return ""
    expected = forecast.ttft_s if stream else forecast.whole_s
    if not expected:  # nothing of this kind was measured yet
        return ""
    what = "first token" if stream else "answer"
    late = f", later than the {write_duration(round(limit, 4))} left" if expected > limit else ""
    return f", {what} expected after {write_duration(round(expected, 4))}{late}"


def _decision(decision: Decision) -> Iterator[PathLine]:
    yield PathLine("decision", f"starts at {decision.tiers[0]}: {decision.reason}")
    if decision.stand_in:
        yield PathLine("decision", f"in the place of another tier: {decision.stand_in}")
    if decision.missing:
        yield PathLine("decision", f"unavailable and stronger: {', '.join(decision.missing)}")
    if decision.fallbacks:
        yield PathLine("decision", f"only if these fail: {', '.join(decision.fallbacks)}")


def _set_fields(policy: Policy, decision: Decision) -> Iterator[PathLine]:
    """Say what the policy sets in the request to each tier; what a backend sets is the config's."""
    for tier in decision.tiers:
        fields = policy.tier_fields.get(tier)
        for how, values in (("set", fields.set), ("force", fields.force)) if fields is not None else ():
            if values:
                when = "where the request leaves it open" if how == "set" else "in any case"
                yield PathLine("fields", f"{tier}: {written(values)} {when}", ("tier_fields", tier, how))
    if policy.output.instruction:
        yield PathLine("fields", f"system text ends: {policy.output.instruction}", ("output", "instruction"))


def _escalation(
    policy: Policy, given: DecisionInput, values: Mapping[str, Any], decision: Decision
) -> Iterator[PathLine]:
    rules, when, stream = policy.escalate, policy.escalate.when, given.features.stream
    both = rules.speculate.both
    if both is not None:
        held = both.holds(values)
        text = f"both at once if {both.source}: {_verdict(held)} {_compared(both, values)}"
        yield PathLine("escalation", text, ("escalate", "speculate", "both"), held)
    if len(decision.tiers) < 2 or rules.max_attempts == 1:
        why = "no stronger tier follows" if len(decision.tiers) < 2 else "max_attempts is 1"
        yield PathLine("escalation", f"none: {why}, so the answer is not judged", ("escalate",))
        return
    yield PathLine("escalation", f"to {decision.tiers[1]}, if the answer of {decision.tiers[0]} is", ("escalate",))
    if when.asks_for_confidence:
        text = (
            f"  of a confidence below {when.threshold(calibrated=True):g} by its head, "
            f"or below {when.threshold(calibrated=False):g} without one; without evidence: {rules.no_signal}"
        )
        yield PathLine("escalation", text, ("escalate", "when", "confidence_below"))
        yield PathLine("escalation", f"  {_asked(rules)}", ("escalate", "verify"))
    if when.invalid and (given.features.wants_json or given.features.has_tools):
        yield PathLine("escalation", f"  invalid: {', '.join(sorted(when.invalid))}", ("escalate", "when", "invalid"))
    if when.finish:
        yield PathLine("escalation", f"  ended by: {', '.join(sorted(when.finish))}", ("escalate", "when", "finish"))
    others = [name for name in ("repetition", "refusal") if getattr(when, name)]
    if others:
        yield PathLine("escalation", f"  a {' or a '.join(others)}", ("escalate", "when", others[0]))
    if stream:
        hold = rules.stream
        text = (
            f"  judged after {hold.hold_tokens} tokens or {write_duration(hold.hold_max)}, before the client sees any"
        )
        yield PathLine("escalation", text, ("escalate", "stream", "hold_tokens"))
    if rules.hedge is not None:
        after = rules.hedge.after if isinstance(rules.hedge.after, str) else write_duration(rules.hedge.after)
        text = f"  hedged after {after}, for up to {write_share(rules.hedge.max_extra_spend)} of the spending"
        yield PathLine("escalation", text, ("escalate", "hedge"))


def _asked(rules: Escalate) -> str:
    """Return who says how sure the answer is, in order, as far as the policy tells: the scorer is the deployment's."""
    judge = rules.judge
    words = {
        "logprobs": "its log-probabilities",
        "judge": judge and f"{judge.backend} as its judge, within {write_duration(judge.within)}",
        "agreement": rules.agreement and "a second sample",
        "scorer": "the config's scorer, if it has one",
    }
    return f"as told by {', else '.join(text for by in rules.verify if (text := words[by]))}"


def _compared(rule: Expression, values: Mapping[str, Any]) -> str:
    """Return what the rule's comparisons come to: `(kind == chat: no, kind is code)`."""
    shown = []
    for part, _ in parts(rule):
        names = ", ".join(f"{name} is {_value(values[name])}" for name in sorted(part.names))
        shown.append(f"{part.source.replace(chr(39), '')}: {_yes(part.holds(values))}, {names}")
    shown += [f"{name}: {_yes(bool(values[name]))}" for name in dict.fromkeys(_bare_names(rule.tree))]
    return f"({'; '.join(shown)})"


def _verdict(held: bool) -> str:
    return "holds" if held else "does not hold"


def _value(value: Any) -> str:
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return _yes(value)
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float | None) -> str:
    return "missing" if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _bare_names(node: ast.expr | None) -> Iterator[str]:
    """Yield the names that stand in a rule without a comparison."""
    match node:
        case ast.BoolOp(values=every):
            for step in every:
                yield from _bare_names(step)
        case ast.UnaryOp(operand=inner):
            yield from _bare_names(inner)
        case ast.Name(id=name):
            yield name


def _own_adequate(policy: Policy, difficulty: Difficulty | None, tier: str) -> float | None:
    if difficulty is None or not difficulty.in_domain:
        return None
    return difficulty.p_adequate_of(policy.tiers.index(tier), len(policy.tiers))
