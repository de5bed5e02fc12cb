"""Say what would have changed the parts of a request's path: its escalation, its hit, its hedge, its limits.

Pure functions of a record. A change that is one number of the policy names it, so that it can be tried in What if.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.parts.console.summary import cost_after, saved_by
from gateway.parts.reasons import detail_names as detail
from gateway.telemetry import names
from policies.quantities import dollars, milliseconds, write_share

if TYPE_CHECKING:
    from gateway.parts.console.bar import Bar
    from gateway.parts.console.policy_numbers import PolicyNumber
    from gateway.parts.console.timeline import Timeline
    from policies.model import Hedge

_SCORES: Final = frozenset({"escalate.when.confidence_below", "escalate.when.uncalibrated_below"})
_DIGITS: Final = 1000
_FARTHEST: Final = 0.3
"""The lowest `min_similarity` that is worth a try."""
_UNIT_S: Final[Mapping[str, float]] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class WhatChanges:
    """One thing that would have changed a part of the path.

    `key` is the policy's key that it is about, or ''; `value` the value to try there: a share of 1, or seconds.
    """

    part: str
    text: str
    key: str = ""
    value: float | None = None


def what_changes(ledger: Mapping[str, Any], timeline: Timeline, hedge: Hedge | None) -> list[WhatChanges]:
    """Return which other values of the policy would have changed a request's course.

    `hedge` are the policy's rules of hedging; None without any.
    """
    bars = timeline.bars
    return [
        *(change for bar in bars if bar.name == names.ATTEMPT for change in _of_verdict(ledger, bar)),
        *_of_hedge(ledger, bars, hedge),
        *_of_lookups(bars),
        *_of_limits(ledger, timeline),
    ]


def tried_as(change: WhatChanges, numbers: Sequence[PolicyNumber]) -> tuple[str, str] | None:
    """Return the number's name and value by which the What if page tries a change; None if the policy lacks it."""
    number = next((number for number in numbers if number.name == change.key), None)
    if number is None or change.value is None:
        return None
    if number.unit in _UNIT_S:
        scaled = change.value / _UNIT_S[number.unit]
    else:
        scaled = change.value * 100 if number.unit == "%" else change.value
    return (number.name, f"{scaled:.6g}") if scaled > 0 else None


def _of_verdict(ledger: Mapping[str, Any], bar: Bar) -> Iterator[WhatChanges]:
    """Yield what would have turned the verdict on an attempt round."""
    told = bar.attributes
    if bar.verdict_ms is None or bar.lost:
        return
    tier, clause = told.get(names.TIER), bar.clause
    confidence, least, following = (
        told.get(names.CONFIDENCE),
        told.get(detail.MIN_CONFIDENCE),
        told.get(detail.NEXT_TIER),
    )
    part = "The escalation" if not bar.served else "The verdict"
    if clause in _SCORES and confidence is not None and least is not None:
        if not bar.served and confidence < least:
            value = math.floor(confidence * _DIGITS) / _DIGITS
            text = f"{clause} at {value:g} or less (it is {least:g}): {tier}'s draft would have been served"
            yield WhatChanges(part, text + _gain(ledger, bar), clause, value)
        elif bar.served and following and confidence < 1:
            value = (math.floor(confidence * _DIGITS) + 1) / _DIGITS
            text = f"{clause} at {value:g} or more (it is {least:g}): the draft would have been rejected"
            yield WhatChanges(part, f"{text}, and {following} asked", clause, min(value, 1.0))
    elif not bar.served:
        reason = str(told.get(names.REASON) or told.get(names.OUTCOME) or "").replace("_", " ")
        yield WhatChanges(part, f"Another answer of {tier}: it was rejected for “{reason}”, at any score", clause)
    elif following and confidence is None:
        text = (
            f"escalate.no_signal: escalate, where nothing says how sure {tier} was: {following} would have been asked"
        )
        yield WhatChanges(part, text, clause)


def _gain(ledger: Mapping[str, Any], draft: Bar) -> str:
    soon, cost = saved_by(ledger, draft), cost_after(ledger, draft)
    sooner = "" if soon is None else f", {milliseconds(soon)} sooner"
    return f"{sooner}, and {'cost is not known' if cost is None else f'{dollars(cost)} cheaper'}"


def _of_lookups(bars: Sequence[Bar]) -> Iterator[WhatChanges]:
    for bar in bars:
        attributes = bar.attributes
        outcome = attributes.get(names.CACHE_OUTCOME)
        if bar.name == names.CACHE_EXACT and outcome == "hit":
            age = float(attributes.get(names.CACHE_AGE) or 0.0)
            text = "any other word in the question, or Cache-Control: no-cache: a model would have answered"
            yield WhatChanges("The hit", text[:1].upper() + text[1:])
            if age > 0:
                key = "cache.doubt_ttl" if names.CACHE_DOUBT_TTL in attributes else "cache.exact.ttl"
                text = f"{key} below {milliseconds(age * 1000)}, which the answer was old"
                yield WhatChanges("The hit", text, key, age * 0.99)
        elif bar.name == names.CACHE_SEMANTIC and outcome == "hit":
            yield from _of_semantic_hit(attributes)
        elif bar.name == names.CACHE_SEMANTIC and attributes.get(names.SIMILARITY) is not None:
            yield from _of_semantic_miss(attributes)


def _of_semantic_hit(told: Mapping[str, Any]) -> Iterator[WhatChanges]:
    score, least, similarity = told.get(names.CACHE_SCORE), told.get(names.THRESHOLD), told.get(names.SIMILARITY)
    if score is not None and least is not None:
        if score < 1:
            text = f"A threshold above {score:.3f} (it is {least:.3f}, kept by cache.semantic.max_error): no hit"
        else:
            text = f"No threshold (it is {least:.3f}): a rule takes the two questions for the same, with a score of 1"
        yield WhatChanges("The hit", text)
    if similarity is not None and similarity < 1:
        value = (math.floor(similarity * _DIGITS) + 1) / _DIGITS
        text = (
            f"cache.semantic.min_similarity at {value:g} or more (it is {told.get(detail.MIN_SIMILARITY, 0):g}): no hit"
        )
        yield WhatChanges("The hit", text, "cache.semantic.min_similarity", min(value, 1.0))
    yield WhatChanges("The hit", "Cache-Control: no-cache from the client: a model would have answered")


def _of_semantic_miss(told: Mapping[str, Any]) -> Iterator[WhatChanges]:
    similarity, minimum = float(told[names.SIMILARITY]), told.get(detail.MIN_SIMILARITY)
    score, least, guard = told.get(names.CACHE_SCORE), told.get(names.THRESHOLD), told.get(detail.GUARD)
    if guard:
        yield WhatChanges("The miss", f"No threshold: the guard for {guard} refuses the nearest question at any score")
    elif minimum is not None and similarity < minimum:
        value = math.floor(similarity * _DIGITS) / _DIGITS
        if value < _FARTHEST:
            yield WhatChanges("The miss", f"Nothing: the nearest question is far off, at a similarity of {value:g}")
            return
        text = (
            f"cache.semantic.min_similarity at {value:g} or less (it is {minimum:g}): the nearest would have been read"
        )
        yield WhatChanges("The miss", text, "cache.semantic.min_similarity", value)
    elif score is not None and least is not None and score < least:
        text = f"A threshold of {score:.3f} or less (it is {least:.3f}, kept by cache.semantic.max_error): a hit"
        yield WhatChanges("The miss", text)


def _of_hedge(ledger: Mapping[str, Any], bars: Sequence[Bar], hedge: Hedge | None) -> Iterator[WhatChanges]:
    attempts = [bar for bar in bars if bar.name == names.ATTEMPT]
    beside = next((bar for bar in attempts if bar.attributes.get(names.HEDGE)), None)
    awaited = "its first token" if ledger.get("stream") else "its answer"
    if beside is not None:
        late = next((bar for bar in attempts if bar is not beside and bar.start_ms < beside.start_ms), None)
        if late is None:
            return
        waited = beside.start_ms - late.start_ms
        tier = late.attributes.get(names.TIER)
        text = f"Had {tier} given {awaited} within {milliseconds(waited)}, none would have begun"
        yield WhatChanges("The hedge", text, "escalate.hedge.after")
        if beside.served:
            text = f"A later escalate.hedge.after: more time for {tier}, which was cancelled after"
            yield WhatChanges("The hedge", f"{text} {milliseconds(late.duration_ms)}", "escalate.hedge.after")
        return
    served = next((bar for bar in attempts if bar.served), None)
    if hedge is None or served is None or len(attempts) != 1:
        return
    took = served.first_ms if ledger.get("stream") else served.end_ms
    if took is not None:
        after = hedge.after if isinstance(hedge.after, str) else milliseconds(hedge.after * 1000)
        text = f"None began: {awaited} came after {milliseconds(took - served.start_ms)}. One begins after {after}"
        text += f", as long as hedges cost at most {write_share(hedge.max_extra_spend)} of what is spent"
        yield WhatChanges("A hedge", text, "escalate.hedge.after")


def _of_limits(ledger: Mapping[str, Any], timeline: Timeline) -> Iterator[WhatChanges]:
    total, first = ledger["total_ms"], ledger["ttft_ms"]
    if timeline.deadline_ms is not None and total is not None:
        allowed = milliseconds(timeline.deadline_ms)
        if total >= timeline.deadline_ms:
            text = f"More than {allowed}: the deadline came before the end. How much more is not known"
        else:
            text = f"Less than {milliseconds(total)} (it was {allowed}): the deadline would have cut it off"
        yield WhatChanges("The deadline", text, "slo.deadline")
    if timeline.target_ms is None or first is None or not ledger.get("stream"):
        return
    due = milliseconds(timeline.target_ms)
    if first <= timeline.target_ms:
        text = f"slo.ttft.p99 below {milliseconds(first)} (it was due after {due}): missed"
        yield WhatChanges("The first token", text, "slo.ttft.p99", first / 1000 * 0.99)
        return
    parts = [(min(part.end_ms, first) - part.start_ms, part) for part in timeline.path if part.start_ms < first]
    took, longest = max(parts, key=lambda part: part[0], default=(0.0, None))
    labels = {bar.number: bar.label for bar in timeline.bars}
    if longest is not None and longest.number is not None:
        where = f"{'the queue of ' if longest.queued else ''}{labels[longest.number]}"
        text = f"{milliseconds(first - timeline.target_ms)} less, in time: {where} took {milliseconds(took)} of it"
        yield WhatChanges("The first token", text, "slo.ttft.p99", first / 1000 * 1.01)
