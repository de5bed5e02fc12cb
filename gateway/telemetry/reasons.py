"""Why each hop ended as it did, in words: a recorded hop's attributes, read back as a person would say them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from gateway.telemetry import names

Attributes = Mapping[str, Any]

_BASES: Final = {
    "calibrated": "calibrated by head {}",
    "logprob": "uncalibrated",
    "agreement": "by agreement with another sample",
}


_FOLLOWED: Final = {
    "done": "",
    "found": "found in the cache by an equal request",
    "failed": "the equal request has failed",
    "lost": "who made the answer is gone",
    "client_cancel": "the client left before the end",
}


def explain(hop: Mapping[str, Any]) -> list[str]:
    """The reasons of one hop of a record (see `telemetry.record`), as short phrases, the decisive one first."""
    attributes: Attributes = hop["attributes"]
    say = _WORDS.get(hop["name"], _anything)
    phrases = [phrase for phrase in say(attributes) if phrase]
    if hop["error"]:
        phrases.append(f"error {hop['error']}")
    return phrases


def milliseconds(value: float) -> str:
    """A duration given in milliseconds, with the unit that reads best."""
    if value < 1:
        return f"{value * 1000:.0f} us"
    if value < 1000:
        return f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"
    return f"{value / 1000:.2f} s" if value < 120_000 else f"{value / 60_000:.1f} min"


def dollars(value: float) -> str:
    """An amount of US dollars: cents from a dollar on, else as many decimals as it takes, up to seven."""
    if value >= 1 or not value:
        return f"${value:.2f}" if value else "$0"
    return f"${value:.7f}".rstrip("0") if value >= 1e-7 else "<$0.0000001"


def _request(a: Attributes) -> Iterable[str]:
    yield _held_out(a)
    yield _said(a, names.STREAM_END, "stream ended: {}")
    yield _said(a, names.CLIENT_RETRY, "the client's retry no. {}")
    yield _said(a, names.PROMPT, "prompt: {}")


def _cache(a: Attributes) -> Iterable[str]:
    outcome, reason = a.get(names.CACHE_OUTCOME, "no outcome"), a.get(names.CACHE_REASON)
    yield f"{outcome} ({reason})" if reason else str(outcome)
    yield _neighbour(a)
    yield _score(a)
    yield _said(a, names.CACHE_ENTRY, "entry {}")
    yield _said(a, names.CACHE_AGE, "{:.0f} s old")


def _follow(a: Attributes) -> Iterable[str]:
    yield _said(a, names.FOLLOWED, "shared the answer of request {}")
    outcome = a.get(names.CACHE_OUTCOME, "")
    yield _FOLLOWED.get(outcome, str(outcome))


def _neighbour(a: Attributes) -> str:
    found, minimum = a.get(names.SIMILARITY), a.get(names.MIN_SIMILARITY)
    who = f"nearest neighbour {a[names.NEIGHBOUR]}" if a.get(names.NEIGHBOUR) else "nearest neighbour"
    if found is None:
        return "" if minimum is None else f"no neighbour (minimum {minimum:.3f})"
    if minimum is None:
        return f"{who} at similarity {found:.3f}"
    return f"{who} at similarity {found:.3f} {_against(found, minimum)} minimum {minimum:.3f}"


def _score(a: Attributes) -> str:
    score, threshold = a.get(names.CACHE_SCORE), a.get(names.THRESHOLD)
    if score is None or threshold is None:
        return _said(a, names.CACHE_SCORE, "score {:.3f}")
    return f"score {score:.3f} {_against(score, threshold)} threshold {threshold:.3f}"


def _embed(a: Attributes) -> Iterable[str]:
    yield _said(a, names.GEN_AI_REQUEST_MODEL, "{}")
    yield _said(a, names.OUTCOME, "{}")


def _route(a: Attributes) -> Iterable[str]:
    tiers = a.get(names.DECISION)
    if tiers is not None:
        yield "tiers " + (" then ".join(map(str, tiers)) if isinstance(tiers, list) else str(tiers))
    yield _held_out(a)
    yield _said(a, names.REASON, "because {}")
    yield _said(a, names.DIFFICULTY, "difficulty {:.3f}")
    yield _said(a, names.P_ADEQUATE, "p_adequate {:.3f}")
    in_domain = a.get(names.IN_DOMAIN)
    if in_domain is not None:
        yield "in domain" if in_domain else "out of domain: the classifier abstains"
    yield _said(a, names.CLASSIFIER, "classifier {}")
    yield _forecast(a)
    yield _said(a, names.BUDGET_LEFT, "{} left", milliseconds)


def _attempt(a: Attributes) -> Iterable[str]:
    model = a.get(names.GEN_AI_RESPONSE_MODEL) or a.get(names.GEN_AI_REQUEST_MODEL)
    where = "/".join(str(a[name]) for name in (names.TIER, names.BACKEND) if a.get(name))
    yield f"{where} ({model})" if model else where
    yield "lost the race" if a.get(names.OUTCOME) == names.LOST else _said(a, names.OUTCOME, "{}")
    yield from _why_beside(a)
    if not str(a.get(names.REASON, "")).startswith("confidence "):  # that is told with its numbers, next
        yield _said(a, names.REASON, "because {}")
    yield _confidence(a)
    yield _said(a, names.SCHEMA_UNCHECKED, "the request's schema was not checked: {}")
    yield _said(a, names.UPSTREAM_STATUS, "upstream HTTP {}")
    yield _tokens(a)
    yield _said(a, names.COST, "{}", dollars)
    yield _waited(a)
    yield _said(a, names.TTFT, "first token after {}", milliseconds)
    yield _forecast(a)
    yield _said(a, names.BUDGET_LEFT, "{} left at the start", milliseconds)
    yield _said(a, names.TIMEOUT, "timeout {}", milliseconds)
    yield _said(a, names.STREAM_END, "stream ended: {}")


def _why_beside(a: Attributes) -> Iterable[str]:
    """Why an attempt ran beside another, or went on where another ended."""
    if a.get(names.HEDGE):
        yield "a hedge, beside an attempt that was late"
    if a.get(names.SPECULATIVE):
        yield "speculative, begun before it was known to be needed"
    yield _said(a, names.CONTINUES, "goes on with the text of attempt {}")


def _shed(a: Attributes) -> Iterable[str]:
    yield _said(a, names.REASON, "turned away: {}") or "turned away"
    yield _said(a, names.TIER, "tier {}")
    yield _waited(a)
    yield _forecast(a)


def _held_out(a: Attributes) -> str:
    return "held out: the strongest tier answers, by chance and not by difficulty" if a.get(names.HOLDOUT) else ""


def _waited(a: Attributes) -> str:
    return _said(a, names.QUEUE, "waited {} in line", milliseconds) if a.get(names.QUEUE) else ""


def _forecast(a: Attributes) -> str:
    return _said(a, names.FORECAST_TTFT, "first token forecast after {}", milliseconds)


def _confidence(a: Attributes) -> str:
    found, minimum, judged = a.get(names.CONFIDENCE), a.get(names.MIN_CONFIDENCE), a.get(names.TOKENS_JUDGED)
    if found is None:
        return ""
    text = f"confidence {found:.3f}"
    if minimum is not None:
        text += f" {_against(found, minimum)} threshold {minimum:.3f}"
    if judged:
        text += f" over {judged} tokens"
    basis = _BASES.get(a.get(names.CONFIDENCE_BASIS, ""))
    return f"{text}, {basis.format(a.get(names.CONFIDENCE_HEAD, ''))}" if basis else text


def _sample(a: Attributes) -> Iterable[str]:
    yield f"{a.get(names.BACKEND, '')} asked once more, to compare"
    yield _tokens(a)
    yield _said(a, names.COST, "{}", dollars)


def _tokens(a: Attributes) -> str:
    tokens_in, tokens_out = a.get(names.GEN_AI_TOKENS_IN), a.get(names.GEN_AI_TOKENS_OUT)
    if tokens_in is None and tokens_out is None:
        return ""
    counted = " (estimated)" if a.get(names.USAGE_ESTIMATED) else ""
    return f"tokens {tokens_in or 0} in, {tokens_out or 0} out{counted}"


def _anything(a: Attributes) -> Iterable[str]:
    return (f"{name} {value}" for name, value in a.items())


def _against(found: float, minimum: float) -> str:
    return ">=" if found >= minimum else "<"


def _said(a: Attributes, name: str, phrase: str, unit: Callable[[Any], str] | None = None) -> str:
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
    names.CACHE_WRITE: _cache,
    names.HOP_SHED: _shed,
}
