"""Explain in words why each hop of a trace ended as it did, from its recorded attributes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from gateway.parts.reasons import detail_names as detail
from gateway.telemetry import names
from policies.quantities import dollars, milliseconds, percent

Attributes = Mapping[str, Any]

_BASES: Final = {
    "calibrated": "calibrated by head {}",
    "logprob": "uncalibrated",
    "judge": "by a judge",
    "agreement": "by agreement with another sample",
    "scorer": "by the scorer",
}


_COSTS: Final = (detail.COST_TIERS, detail.COST_USD, detail.COST_COLD)
_IN_DOUBT: Final = 0.7
"""A kind that is less probable than this is shown with its probability."""

_FOLLOWED: Final = {
    "done": "",
    "found": "found in the cache by an identical request",
    "failed": "the identical request failed",
    "lost": "the worker that produced the answer is gone",
    "client_cancel": "the client disconnected before the end",
}


def reasons_of(hop: Mapping[str, Any], *, clause: bool = True) -> list[str]:
    """Return the reasons of one hop of a record (see `telemetry.ledger`) as short phrases, the decisive one first.

    Without `clause` the key of the policy that decided is left out.
    """
    attributes: Attributes = hop["attributes"]
    say = _WORDS.get(hop["name"], _anything)
    decided = _clause(attributes) if clause else ()
    phrases = [phrase for phrase in (*say(attributes), *decided) if phrase]
    if hop["error"]:
        phrases.append(f"error {hop['error']}")
    return phrases


def _clause(a: Attributes) -> Iterable[str]:
    """Yield the key of the policy that decided, with its place in the file."""
    clause, line = a.get(names.CLAUSE), a.get(names.CLAUSE_LINE)
    if clause:
        yield f"by {clause} ({line})" if line else f"by {clause}"


def _request(a: Attributes) -> Iterable[str]:
    yield _held_out(a)
    yield _phrase(a, names.STREAM_END, "stream ended: {}")
    yield _phrase(a, names.CLIENT_RETRY, "the client's retry no. {}")
    yield _phrase(a, names.PROMPT, "prompt: {}")


def _session(a: Attributes) -> Iterable[str]:
    yield _phrase(a, names.REASON, "{}")
    yield _phrase(a, names.SESSION_CALLS, "request {} of the session")
    yield f"{dollars(a.get(names.SESSION_USD, 0.0))} in {a.get(names.SESSION_TIME, 0.0):.0f} s"


def _input(a: Attributes) -> Iterable[str]:
    steps = [step.split(" ") for step in a.get(names.INPUT_SAVED, ())]
    yield ", ".join(f"{step} left out {tokens} tokens" for step, tokens in steps) or "nothing was left out"


def _cache(a: Attributes) -> Iterable[str]:
    outcome, reason = a.get(names.CACHE_OUTCOME, "no outcome"), a.get(names.CACHE_REASON)
    yield f"{outcome} ({reason})" if reason else str(outcome)
    yield _neighbour(a)
    yield _score(a)
    yield _phrase(a, names.READ_SCORE, "cross-encoder alone {:.3f}")
    if vetoed := a.get(names.VETOED):
        yield f"guards refused others: {', '.join(vetoed)}"
    yield _phrase(a, names.CACHE_ENTRY, "entry {}")
    yield _phrase(a, names.CACHE_AGE, "{:.0f} s old")
    yield _phrase(a, names.CACHE_DOUBT_TTL, "kept for {:.0f} s in all, as it may depend on when it is asked")


def _follow(a: Attributes) -> Iterable[str]:
    yield _phrase(a, names.FOLLOWED, "shared the answer of request {}")
    outcome = a.get(names.CACHE_OUTCOME, "")
    yield _FOLLOWED.get(outcome, str(outcome))


def _neighbour(a: Attributes) -> str:
    similarity, minimum = a.get(names.SIMILARITY), a.get(detail.MIN_SIMILARITY)
    who = f"nearest neighbour {a[names.NEIGHBOUR]}" if a.get(names.NEIGHBOUR) else "nearest neighbour"
    if similarity is None:
        return "" if minimum is None else f"no neighbour (minimum {minimum:.3f})"
    if minimum is None:
        return f"{who} at similarity {similarity:.3f}"
    return f"{who} at similarity {similarity:.3f} {_against(similarity, minimum)} minimum {minimum:.3f}"


def _score(a: Attributes) -> str:
    score, threshold = a.get(names.CACHE_SCORE), a.get(names.THRESHOLD)
    if score is None or threshold is None:
        return _phrase(a, names.CACHE_SCORE, "score {:.3f}")
    return f"score {score:.3f} {_against(score, threshold)} threshold {threshold:.3f}"


def _embed(a: Attributes) -> Iterable[str]:
    yield _phrase(a, names.EMBEDDER, "{}") or _phrase(a, names.GEN_AI_REQUEST_MODEL, "{}")
    yield _phrase(a, names.OUTCOME, "{}")


def _route(a: Attributes) -> Iterable[str]:
    tiers = a.get(names.DECISION)
    if tiers is not None:
        yield "tiers " + (" then ".join(map(str, tiers)) if isinstance(tiers, list) else str(tiers))
    yield _phrase(a, names.BUDGET, "budget at {}")
    yield _held_out(a)
    yield _phrase(a, names.REASON, "because {}")
    yield _kind(a)
    yield _phrase(a, detail.DIFFICULTY, "difficulty {:.3f}")
    yield _phrase(a, detail.P_ADEQUATE, "right by its first tier with a chance of {:.3f}")
    in_domain = a.get(detail.IN_DOMAIN)
    if in_domain is not None:
        yield "in domain" if in_domain else "out of domain: the classifier abstains"
    yield _phrase(a, detail.EFFORT, "asks for an effort of {:.3f}")
    yield _phrase(a, detail.CONVERSATION, "in its conversation {:.3f}")
    yield _phrase(a, detail.BEFORE, "by the turns before {:.3f}")
    yield _phrase(a, names.LAST_TIER, "the answer before came from {}")
    for tier, usd, cold in zip(*(a.get(name, ()) for name in _COSTS), strict=False):
        read = "not known how much it reads cold" if cold < 0 else f"{cold} tokens read cold"
        yield f"until a harder turn {tier} costs {dollars(usd) if usd >= 0 else 'an unknown amount'}, {read}"
    yield _phrase(a, detail.CLASSIFIER, "classifier {}")
    yield _forecast(a)
    yield from _others(a)
    yield from (f"slower than slo.tpot of late: {pace} a token" for pace in a.get(detail.SLOW_PACE, ()))
    yield _phrase(a, detail.BUDGET_LEFT, "{} left", milliseconds)


def _others(a: Attributes) -> Iterable[str]:
    """Yield what is known of each tier that the request did not start at."""
    lists = (
        a.get(name, [])
        for name in (
            detail.OTHER_TIERS,
            detail.OTHER_TTFT,
            detail.OTHER_LATE,
            detail.OTHER_STATE,
        )
    )
    for tier, ttft_ms, late, state in zip(*lists, strict=False):
        if state:
            yield f"{tier} is {state}"
        elif late:
            yield f"{tier} would have been late: {milliseconds(ttft_ms)} to a first token"
    if priors := a.get(detail.PRIOR):
        yield f"forecast by the model's facts, a prior, as too few calls were measured: {', '.join(priors)}"


def _kind(a: Attributes) -> str:
    """Return the kind of task, and how hard the request is among those of its kind."""
    kind, quantile, own = (a.get(name) for name in (detail.KIND, detail.QUANTILE, detail.QUANTILE_OWN))
    certainty = a.get(detail.P_KIND)
    if kind and certainty is not None and certainty < _IN_DOUBT:
        kind = f"{kind} (in doubt: {percent(certainty, 0)})"
    if not kind or quantile is None:
        return f"kind {kind}" if kind else ""
    if own is None:
        return f"kind {kind}, harder than {percent(quantile)} of the classifier's reference prompts"
    reference = f"{percent(quantile)} of the reference prompts"
    return f"kind {kind}, harder than {percent(own)} of this surface's own requests ({reference})"


def _attempt(a: Attributes) -> Iterable[str]:
    model = a.get(names.GEN_AI_RESPONSE_MODEL) or a.get(names.GEN_AI_REQUEST_MODEL)
    where = "/".join(str(a[name]) for name in (names.TIER, names.BACKEND) if a.get(name))
    yield f"{where} ({model})" if model else where
    yield "lost the race" if a.get(names.OUTCOME) == names.LOST else _phrase(a, names.OUTCOME, "{}")
    yield from _why_beside(a)
    if not str(a.get(names.REASON, "")).startswith("confidence "):  # _confidence gives that with its numbers
        yield _phrase(a, names.REASON, "because {}")
    if calls := a.get(detail.CALLS):
        yield f"called {a.get(names.CALL_ARGUMENTS) or ', '.join(calls)}"
    yield _phrase(a, names.FAULT, "served all the same: {}")
    yield _confidence(a)
    yield _lowest(a)
    if a.get(detail.NEXT_LATE):
        yield f"{a[detail.NEXT_TIER]} would have been late: {milliseconds(a[detail.NEXT_TTFT])} to a first token"
    yield _phrase(a, names.SCHEMA_UNCHECKED, "the request's schema was not checked: {}")
    yield _phrase(a, names.UPSTREAM_STATUS, "upstream HTTP {}")
    yield _phrase(a, names.BLAME, "whose fault: {}")
    yield _tokens(a)
    if added := a.get(names.PROMPT_CACHE):
        yield f"added for the prompt cache: {', '.join(added)}"
    yield _phrase(a, names.COST, "{}", dollars)
    yield _prompt_cache(a.get(names.PROMPT_CACHE_USD))
    yield _waited(a)
    yield from _load(a)
    yield _phrase(a, names.TTFT, "first token after {}", milliseconds)
    yield _forecast(a)
    yield _phrase(a, detail.BUDGET_LEFT, "{} left at the start", milliseconds)
    yield _phrase(a, names.TIMEOUT, "timeout {}", milliseconds)
    yield _phrase(a, names.STREAM_END, "stream ended: {}")


def _why_beside(a: Attributes) -> Iterable[str]:
    """Yield why an attempt ran beside another, or continued another's text."""
    if a.get(names.HEDGE):
        yield "a hedge, beside an attempt that was late"
    if a.get(names.SPECULATIVE):
        yield "speculative, started before it was known to be needed"
    yield _phrase(a, names.CONTINUES, "continues the text of attempt {}")


def _shed(a: Attributes) -> Iterable[str]:
    yield _phrase(a, names.REASON, "rejected: {}") or "rejected"
    yield _phrase(a, names.TIER, "tier {}")
    yield _waited(a)
    yield _forecast(a)


def _held_out(a: Attributes) -> str:
    return "held out: drawn at random to go to the strongest tier" if a.get(names.HOLDOUT) else ""


def _waited(a: Attributes) -> str:
    return _phrase(a, names.QUEUE, "waited {} in the queue", milliseconds) if a.get(names.QUEUE) else ""


def _forecast(a: Attributes) -> str:
    return _phrase(a, detail.FORECAST_TTFT, "first token forecast after {}", milliseconds)


def _confidence(a: Attributes) -> str:
    confidence, minimum, judged = (
        a.get(names.CONFIDENCE),
        a.get(detail.MIN_CONFIDENCE),
        a.get(names.TOKENS_JUDGED),
    )
    if confidence is None:
        return ""
    text = f"confidence {confidence:.3f}"
    if minimum is not None:
        text += f" {_against(confidence, minimum)} threshold {minimum:.3f}"
    if judged:
        text += f" over {judged} tokens"
    basis = _BASES.get(a.get(names.CONFIDENCE_BASIS, ""))
    return f"{text}, {basis.format(a.get(names.CONFIDENCE_HEAD, ''))}" if basis else text


def _lowest(a: Attributes) -> str:
    """Return the least probable tokens by their places, with their texts where these are captured."""
    places, logprobs = a.get(detail.LOWEST), a.get(detail.LOWEST_LOGPROBS)
    if not places or not logprobs:
        return ""
    texts = a.get(names.LOWEST_TOKENS) or [""] * len(places)
    shown = [f"{place} {text!r}" if text else str(place) for place, text in zip(places, texts, strict=True)]
    lowest = zip(shown[:3], logprobs, strict=False)
    return f"least sure of tokens {', '.join(f'{one} ({percent(math.exp(logprob), 0)})' for one, logprob in lowest)}"


def _load(a: Attributes) -> Iterable[str]:
    """Yield the backend's load and state where they are worth a word."""
    in_flight, capacity, queued = (a.get(name) for name in (detail.IN_FLIGHT, detail.CAPACITY, detail.QUEUED))
    if queued or (in_flight and in_flight == capacity):
        yield f"{in_flight} of {capacity} calls in flight, {queued or 0} waiting"
    if str(a.get(detail.BREAKER, "closed")) != "closed":
        yield str(a[detail.BREAKER])
    if others := a.get(names.SIBLINGS):
        yield f"beside {'; '.join(others)}"


def _sample(a: Attributes) -> Iterable[str]:
    yield f"another answer of {a.get(names.BACKEND, '')}, to compare"
    yield _tokens(a)
    yield _phrase(a, names.COST, "{}", dollars)


def _judge(a: Attributes) -> Iterable[str]:
    said = a.get(names.CONFIDENCE)
    verdict = "no verdict" if said is None else f"good enough with a probability of {said:.3f}"
    yield f"{a.get(names.BACKEND, '')} ({a.get(names.GEN_AI_REQUEST_MODEL, '')}) on the draft: {verdict}"
    yield _tokens(a)
    yield _phrase(a, names.COST, "{}", dollars)


def _tokens(a: Attributes) -> str:
    tokens_in, tokens_out = a.get(names.GEN_AI_TOKENS_IN), a.get(names.GEN_AI_TOKENS_OUT)
    if tokens_in is None and tokens_out is None:
        return ""
    counted = " (estimated)" if a.get(names.USAGE_ESTIMATED) else ""
    read, written = a.get(names.GEN_AI_TOKENS_CACHED), a.get(names.GEN_AI_TOKENS_CACHE_WRITE)
    parts = [f"{read} of them read from the prompt cache"] if read else []
    parts += (
        [f"{written} written to it" if read else f"{written} of them written to the prompt cache"] if written else []
    )
    parts += [f"{for_an_hour} of these for an hour"] if (for_an_hour := a.get(names.TOKENS_HOUR_WRITE)) else []
    cached = f" ({', '.join(parts)})" if parts else ""
    return f"tokens {tokens_in or 0} in{cached}, {tokens_out or 0} out{counted}"


def _prompt_cache(usd: float | None) -> str:
    """Return what the provider's prompt cache saved, or cost."""
    if not usd:
        return ""
    return f"the prompt cache saved {dollars(usd)}" if usd > 0 else f"writing to the prompt cache cost {dollars(-usd)}"


def _quota_wait(a: Attributes) -> Iterable[str]:
    of = f"the limits and budgets of its owners, {a.get(names.LIMITED_BY, '')} first"
    said = {"let_in": f"waited for {of}", "refused": f"was not let in by {of}"}
    yield said.get(str(a.get(names.OUTCOME)), f"went away while it waited for {of}")


def _anything(a: Attributes) -> Iterable[str]:
    return (f"{name} {value}" for name, value in a.items())


def _against(value: float, minimum: float) -> str:
    return ">=" if value >= minimum else "<"


def _phrase(a: Attributes, name: str, phrase: str, unit: Callable[[Any], str] | None = None) -> str:
    value = a.get(name)
    return "" if value is None or value == "" else phrase.format(unit(value) if unit else value)


_WORDS: Final[Mapping[str, Callable[[Attributes], Iterable[str]]]] = {
    names.REQUEST: _request,
    names.CACHE_EXACT: _cache,
    names.EMBED: _embed,
    names.CACHE_SEMANTIC: _cache,
    names.CACHE_FOLLOW: _follow,
    names.ROUTE: _route,
    names.ATTEMPT: _attempt,
    names.SAMPLE: _sample,
    names.JUDGE: _judge,
    names.CACHE_WRITE: _cache,
    names.SESSION: _session,
    names.INPUT: _input,
    names.HOP_SHED: _shed,
    names.QUOTA_WAIT: _quota_wait,
}
