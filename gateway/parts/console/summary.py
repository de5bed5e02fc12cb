"""Say in one sentence what became of a request, and why, from its ledger and the attributes of its hops.

Every figure is a recorded one or the difference of two. Pure functions of a record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.parts.reasons import detail_names as detail
from gateway.telemetry import names
from policies.quantities import dollars, milliseconds

if TYPE_CHECKING:
    from gateway.parts.console.bar import Bar

_BY_PATH: Final[Mapping[str, str]] = {
    "escalated": "A draft was not good enough, so {} answered",
    "fallback": "A tier before it failed, so {} answered",
    "hedged": "{} won against a late attempt",
    "passthrough": "The request was passed on to {} as it was",
}
"""Sentences by path for requests without recorded hops."""
_MUCH: Final = 0.2
"""Share of the total time from which a wait in a queue is told, where a limit was missed."""
_LONG_MS: Final = 100.0
"""A wait for limits and budgets from which it is told: a shorter one is the store's answer."""
_ERROR: Final = 400
_SERVER_ERROR: Final = 500


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """The sentence; `missed` are the limits that the request did not keep, such as ttft.p99."""

    text: str
    missed: Sequence[str]


def summary_of(ledger: Mapping[str, Any], bars: Sequence[Bar]) -> RequestSummary:
    """Return the summary of a request. `bars` may be those of some hops only, where the others were not recorded."""
    missed = [name.replace("_", ".") for name, kept in (ledger.get("slo") or {}).items() if kept is False]
    if ledger["status"] >= _ERROR:
        return RequestSummary(_failure(ledger, bars), missed)
    if (ledger["path"] or "").startswith("cache"):
        return RequestSummary(_hit(ledger, bars), missed)
    attempts = [bar for bar in bars if bar.name == names.ATTEMPT]
    served = [bar for bar in attempts if bar.served]
    if (followed := _named(bars, names.CACHE_FOLLOW)) and not attempts:
        text = f"It shared the answer of {ledger['tier']} to an identical request at the same time"
        return RequestSummary(f"{text} ({followed[0].attributes.get(names.FOLLOWED, '')}), at no cost", missed)
    if not served:
        by = ledger["tier"] or ledger["backend"] or "the backend"
        return RequestSummary(_BY_PATH.get(ledger["path"], "{} answered").format(by), missed)
    text, queued_ms = _answer(ledger, bars, attempts, served) + _waited(bars), served[-1].queue_ms
    if missed and queued_ms > _MUCH * (ledger["total_ms"] or 0.0):
        text += f"; {milliseconds(queued_ms)} of it in the queue"
    return RequestSummary(text, missed)


def why_rejected(bar: Bar) -> str:
    """Return in words why a draft was not good enough: its score against that which is asked, or its fault."""
    attributes = bar.attributes
    confidence, least = attributes.get(names.CONFIDENCE), attributes.get(detail.MIN_CONFIDENCE)
    reason = str(attributes.get(names.REASON) or "")
    if confidence is not None and least is not None and confidence < least and reason[:11] in ("", "confidence "):
        return f"scored {confidence:.2f} where {least:.2f} is asked"
    return f"was rejected: {reason or str(attributes.get(names.OUTCOME) or 'no reason recorded').replace('_', ' ')}"


def cost_after(ledger: Mapping[str, Any], draft: Bar) -> float | None:
    """Return what the calls besides a draft cost in US dollars; None where a price is not known."""
    if ledger["cost_unknown"]:
        return None
    return float(ledger["cost_usd"]) - float(draft.attributes.get(names.COST) or 0.0)


def saved_by(ledger: Mapping[str, Any], draft: Bar) -> float | None:
    """Return how much sooner a rejected draft would have answered, in milliseconds: a stream's first byte, or the end.

    None where that is not recorded.
    """
    if ledger.get("stream"):
        late, soon = ledger["ttft_ms"], draft.verdict_ms
    else:
        late, soon = ledger["total_ms"], draft.end_ms
    return None if late is None or soon is None or late < soon else late - soon


def _answer(ledger: Mapping[str, Any], bars: Sequence[Bar], attempts: Sequence[Bar], served: Sequence[Bar]) -> str:
    last = served[-1]
    tier = _tier(last)
    if last.attributes.get(names.CONTINUES) is not None and len(served) > 1:
        broken = served[-2]
        return (
            f"{_tier(broken)} broke off after {milliseconds(broken.duration_ms)} ({_error(broken)}), "
            f"and {tier} continued its text"
        )
    before = [bar for bar in attempts if not bar.served and not bar.lost and bar.start_ms <= last.start_ms]
    if before:
        text = f"{', '.join(map(_why_not, before))}, so {tier} answered"
        return text + (_price_of(ledger, before[0]) if len(before) == 1 and before[0].verdict_ms is not None else "")
    if (raced := _raced(attempts, last)) is not None:
        return raced
    return f"{tier} answered: {_why_first(bars, last)}"


def _why_not(bar: Bar) -> str:
    if bar.verdict_ms is None:
        return f"{_tier(bar)} failed ({_error(bar)})"
    return f"{_tier(bar)}'s draft {why_rejected(bar)}"


def _price_of(ledger: Mapping[str, Any], draft: Bar) -> str:
    """Return what the answer took and cost more than the draft would have; empty where neither is known."""
    more = []
    if (later := saved_by(ledger, draft)) is not None:
        more.append(f"+{milliseconds(later)}")
    cost = cost_after(ledger, draft)
    more.append("at an unknown price" if cost is None else dollars(cost, signed=True))
    return f": {', '.join(more)}"


def _raced(attempts: Sequence[Bar], last: Bar) -> str | None:
    """Return the sentence of a hedge or a speculation; None without one."""
    beside = next((bar for bar in attempts if bar.attributes.get(names.HEDGE)), None)
    if beside is not None:
        late = next((bar for bar in attempts if bar is not beside and bar.start_ms < beside.start_ms), None)
        text = f"a hedge went to {_tier(beside)}"
        if late is not None:
            text = f"{_tier(late)} was late, so after {milliseconds(beside.start_ms - late.start_ms)} {text}"
        if beside is last:
            return f"{text}, which won"
        return f"{text}, and {_tier(last)} won all the same; the hedge cost {_cost(beside)}"
    ahead = next((bar for bar in attempts if bar.attributes.get(names.SPECULATIVE)), None)
    if ahead is None or len(attempts) < 2:
        return None
    if ahead is last:
        return f"{_tier(last)} was called ahead, and won"
    return f"{_tier(last)} answered; {_tier(ahead)} had been called ahead, which cost {_cost(ahead)}"


def _why_first(bars: Sequence[Bar], last: Bar) -> str:
    attributes = last.attributes
    confidence, least = attributes.get(names.CONFIDENCE), attributes.get(detail.MIN_CONFIDENCE)
    if confidence is not None and least:
        return f"its draft scored {confidence:.2f} where {least:.2f} is asked"
    route = _named(bars, names.ROUTE)
    if route and route[0].attributes.get(names.HOLDOUT):
        return "drawn at random, as the baseline of the other tiers"
    reason = str(route[0].attributes.get(names.REASON) or "") if route else ""
    return f"it starts there by the rule “{reason}”" if reason else "no other was asked"


def _hit(ledger: Mapping[str, Any], bars: Sequence[Bar]) -> str:
    lookup = next((bar for bar in bars if bar.attributes.get(names.CACHE_OUTCOME) == "hit"), None)
    attributes: Mapping[str, Any] = {} if lookup is None else lookup.attributes
    age = attributes.get(names.CACHE_AGE)
    who = f"{ledger['tier']} gave it" + ("" if age is None else f" {milliseconds(age * 1000)} before")
    text = "The answer came from the cache: "
    if ledger["path"] == "cache-semantic":
        score, least = attributes.get(names.CACHE_SCORE), attributes.get(names.THRESHOLD)
        if score is not None and least is not None:
            return f"{text}{who} to a question that scored {score:.3f} where {least:.3f} is asked{_spared(ledger)}"
        return f"{text}{who} to a question that is alike{_spared(ledger)}"
    return f"{text}{who} to the same question{_spared(ledger)}"


def _waited(bars: Sequence[Bar]) -> str:
    """Return how long the request waited for its owners' limits and budgets, and whose; '' if hardly."""
    waits = [bar for bar in _named(bars, names.QUOTA_WAIT) if bar.duration_ms >= _LONG_MS]
    if not waits:
        return ""
    whose = str(waits[-1].attributes.get(names.LIMITED_BY) or "its owners").partition("/")[0]
    return f", after {milliseconds(sum(bar.duration_ms for bar in waits))} of waiting for the budget of {whose}"


def _spared(ledger: Mapping[str, Any]) -> str:
    full = ledger["counterfactual_usd"]
    return f"; the strongest tier would have cost {dollars(full)}" if full else ""


def _failure(ledger: Mapping[str, Any], bars: Sequence[Bar]) -> str:
    status, error = ledger["status"], ledger["error"] or "no reason recorded"
    if limits := [bar.attributes[names.LIMIT_SAID] for bar in bars if bar.attributes.get(names.LIMIT_SAID)]:
        return f"Refused with {status}: {str(limits[0]).rstrip('.')}{_waited(bars)}"
    if shed := _named(bars, names.HOP_SHED):
        return f"Refused with {status}: {shed[0].attributes.get(names.REASON) or error}"
    if error == "client_gone":
        return f"The client went away after {milliseconds(ledger['total_ms'] or 0.0)}, before it had the whole answer"
    tried = [f"{_tier(bar)} failed ({_error(bar)})" for bar in bars if bar.name == names.ATTEMPT and bar.error]
    if tried:
        return f"Answered with {status}: {', '.join(tried)}, and no other tier was left"
    if status < _SERVER_ERROR:
        return f"Refused with {status}: {error.replace('_', ' ')}"
    return f"Failed with {status}: {error.replace('_', ' ')}"


def _named(bars: Sequence[Bar], name: str) -> list[Bar]:
    return [bar for bar in bars if bar.name == name]


def _tier(bar: Bar) -> str:
    return str(bar.attributes.get(names.TIER) or bar.label)


def _error(bar: Bar) -> str:
    status = bar.attributes.get(names.UPSTREAM_STATUS)
    error = str(bar.error or bar.attributes.get(names.OUTCOME) or "no reason recorded").replace("_", " ")
    return f"{error}: HTTP {status}" if status is not None and status >= 400 else error


def _cost(bar: Bar) -> str:
    told = bar.attributes
    return "an unknown price" if told.get(names.COST_UNKNOWN) else dollars(float(told.get(names.COST) or 0.0))
