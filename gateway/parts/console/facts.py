"""Name what is recorded of a hop: each figure with its label and its limit. The terminal has phrases instead.

Pure functions of a hop's attributes (`telemetry.names`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.parts.reasons import detail_names as detail
from gateway.telemetry import names
from policies.quantities import dollars, milliseconds, percent

Attributes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HopFact:
    """A figure or a word. `state` is bad where it missed its limit, good where it met one, else ''."""

    label: str
    value: str
    state: str = ""


def hop_facts(attributes: Attributes, error: str | None = None) -> list[HopFact]:
    """Return the facts of a hop, in the order in which one asks for them."""
    facts = [fact for make in _IN_ORDER for fact in make(attributes)]
    return [*facts, HopFact("error", error.replace("_", " "), "bad")] if error else facts


def _plain(label: str, attribute: str, form: Callable[[Any], str] = str) -> Callable[[Attributes], Iterator[HopFact]]:
    def make(attributes: Attributes) -> Iterator[HopFact]:
        value = attributes.get(attribute)
        if value not in (None, "", []):
            yield HopFact(label, form(value))

    return make


def _against(label: str, attribute: str, limit: str) -> Callable[[Attributes], Iterator[HopFact]]:
    def make(attributes: Attributes) -> Iterator[HopFact]:
        value, least = attributes.get(attribute), attributes.get(limit)
        if value is not None and least is not None:
            met = value >= least
            words = f"{value:.3f}, {'at least' if met else 'under'} {least:.3f}"
            yield HopFact(label, words, "good" if met else "bad")
        elif value is not None:
            yield HopFact(label, f"{value:.3f}")

    return make


def _outcome(told: Attributes) -> Iterator[HopFact]:
    cached, outcome, reason = (told.get(name) for name in (names.CACHE_OUTCOME, names.OUTCOME, names.CACHE_REASON))
    if cached:
        yield HopFact("", f"{cached}, {reason}" if reason else cached, "good" if cached == "hit" else "")
    elif outcome:
        state = {"accepted": "good", "low_confidence": "bad", "unfit": "bad"}.get(outcome, "")
        yield HopFact("", str(outcome).replace("_", " "), state)


def _route(told: Attributes) -> Iterator[HopFact]:
    tiers = told.get(names.DECISION)
    if tiers:
        yield HopFact("order", " then ".join(tiers) if isinstance(tiers, list | tuple) else str(tiers))
    if told.get(names.HOLDOUT):
        yield HopFact("held out", "drawn at random for the strongest tier")
    if (budget := told.get(names.BUDGET)) is not None:
        ease = told.get(names.BUDGET_EASE, 1.0)
        yield HopFact("budget", f"{budget}, thresholds below the cap times {ease:.2f}")
    reason = str(told.get(names.REASON) or "")
    if reason and not reason.startswith("confidence "):
        yield HopFact("because", reason)
    if kind := told.get(detail.KIND):
        certain, quantile = told.get(detail.P_KIND, 1.0), told.get(detail.QUANTILE)
        doubt = f", {percent(certain, 0)} sure" if certain < _IN_DOUBT else ""
        harder = "" if quantile is None else f", harder than {percent(quantile, 0)} of it"
        yield HopFact("kind", f"{kind}{doubt}{harder}")
    if (hardest := told.get(detail.CONVERSATION)) is not None:
        before = told.get(detail.BEFORE)
        since = "" if before is None else f", {before:.2f} by the turns before"
        yield HopFact("conversation", f"{hardest:.2f} hard{since}")
    if told.get(detail.IN_DOMAIN) is False:
        yield HopFact("classifier", "out of its domain: it abstains")
    lists = (
        told.get(name, ())
        for name in (
            detail.OTHER_TIERS,
            detail.OTHER_TTFT,
            detail.OTHER_LATE,
            detail.OTHER_STATE,
        )
    )
    for tier, ttft_ms, late, state in zip(*lists, strict=False):
        if state or late:
            yield HopFact(tier, state or f"would have been late: {milliseconds(ttft_ms)} to a first token", "bad")
    if priors := told.get(detail.PRIOR):
        yield HopFact("prior", f"forecast by the model's facts, too few calls measured: {', '.join(priors)}")
    for slow in told.get(detail.SLOW_PACE, ()):
        yield HopFact("pace", f"slower than slo.tpot of late: {slow} a token", "bad")


def _beside(attributes: Attributes) -> Iterator[HopFact]:
    if attributes.get(names.HEDGE):
        yield HopFact("", "hedge")
    if attributes.get(names.SPECULATIVE):
        yield HopFact("", "called ahead of its need")
    if attributes.get(names.CONTINUES) is not None:
        yield HopFact("continues", f"attempt {attributes[names.CONTINUES]}")


def _model(told: Attributes) -> Iterator[HopFact]:
    model = told.get(names.GEN_AI_RESPONSE_MODEL) or told.get(names.GEN_AI_REQUEST_MODEL) or told.get(names.EMBEDDER)
    if model:
        yield HopFact("model", " at ".join(str(text) for text in (model, told.get(names.BACKEND)) if text))


def _usage(attributes: Attributes) -> Iterator[HopFact]:
    given, made = attributes.get(names.GEN_AI_TOKENS_IN), attributes.get(names.GEN_AI_TOKENS_OUT)
    if given is not None or made is not None:
        counted = ", estimated" if attributes.get(names.USAGE_ESTIMATED) else ""
        yield HopFact("tokens", f"{given or 0:,} in, {made or 0:,} out{counted}")
    if attributes.get(names.COST_UNKNOWN):
        yield HopFact("cost", "price not known", "bad")
    elif attributes.get(names.COST) is not None:
        yield HopFact("cost", dollars(attributes[names.COST]))


def _load(attributes: Attributes) -> Iterator[HopFact]:
    busy, capacity, queued = (attributes.get(name) for name in (detail.IN_FLIGHT, detail.CAPACITY, detail.QUEUED))
    if queued or (busy and busy == capacity):
        yield HopFact("backend", f"{busy} of {capacity} calls in flight, {queued or 0} waiting")
    if (state := str(attributes.get(detail.BREAKER) or "closed")) != "closed":
        yield HopFact("breaker", state, "bad")


def _given(attributes: Attributes) -> Iterator[HopFact]:
    if attributes.get(names.TIMEOUT) is not None:
        left = attributes.get(detail.BUDGET_LEFT)
        of = "" if left is None else f" of {milliseconds(left)} left"
        yield HopFact("time allowed", f"{milliseconds(attributes[names.TIMEOUT])}{of}")


def _nearest(attributes: Attributes) -> Iterator[HopFact]:
    if neighbour := attributes.get(names.NEIGHBOUR):
        # Where texts are not captured it is the id of the stored answer.
        yield HopFact("nearest entry" if _ID.fullmatch(neighbour) else "nearest question", neighbour)


def _calls(attributes: Attributes) -> Iterator[HopFact]:
    """Yield the calls of a rejected draft, with their arguments where captured, and a fault that was served."""
    if calls := attributes.get(detail.CALLS):
        yield HopFact("called", attributes.get(names.CALL_ARGUMENTS) or ", ".join(calls))
    if fault := attributes.get(names.FAULT):
        yield HopFact("served all the same", fault, "bad")


def _verified(attributes: Attributes) -> Iterator[HopFact]:
    """Yield who was asked how sure the draft is, with the answer and how long it took."""
    if (said := attributes.get(detail.VERIFIED)) is not None:
        took = milliseconds(attributes.get(names.VERIFY_MS, 0.0))
        yield HopFact("verifier", f"{_BASES[attributes[detail.VERIFIER]]}: {said:.3f}, after {took}")


def _doubts(attributes: Attributes) -> Iterator[HopFact]:
    places, logprobs = attributes.get(detail.LOWEST), attributes.get(detail.LOWEST_LOGPROBS)
    if places and logprobs:
        texts = attributes.get(names.LOWEST_TOKENS) or [f"token {place + 1}" for place in places]
        sure = [percent(math.exp(logprob), 0) for logprob in logprobs]
        least = [f"{text.strip()} {share}" for text, share in zip(texts, sure, strict=False)]
        yield HopFact("least sure of", ", ".join(least[:3]))


_ID: Final = re.compile(r"[0-9a-f]{12}")
_IN_DOUBT: Final = 0.7
"""A kind that is less probable than this is shown with its probability."""
_BASES: Final = {
    "calibrated": "calibrated",
    "logprob": "token probabilities",
    "judge": "a judge",
    "agreement": "another sample's agreement",
    "scorer": "the scorer",
}
_IN_ORDER: Final[tuple[Callable[[Attributes], Iterator[HopFact]], ...]] = (
    _outcome,
    _beside,
    _route,
    _calls,
    _against("score", names.CONFIDENCE, detail.MIN_CONFIDENCE),
    _plain("scored by", names.CONFIDENCE_BASIS, lambda basis: _BASES.get(basis, "nothing")),
    _verified,
    _plain("skipped", names.VERIFY_SKIPPED, "; ".join),
    _plain("judged", names.TOKENS_JUDGED, "{} tokens".format),
    _doubts,
    _nearest,
    _against("similarity", names.SIMILARITY, detail.MIN_SIMILARITY),
    _against("score", names.CACHE_SCORE, names.THRESHOLD),
    _plain("cross-encoder", names.READ_SCORE, "{:.3f}".format),
    _plain("refused by guard", detail.GUARD),
    _plain("guards refused others", names.VETOED, ", ".join),
    _plain("entry", names.CACHE_ENTRY),
    _plain("age", names.CACHE_AGE, lambda age_s: milliseconds(age_s * 1000)),
    _plain("shared with", names.FOLLOWED),
    _plain("difficulty", detail.DIFFICULTY, "{:.2f}".format),
    _plain("chance that the first tier suffices", detail.P_ADEQUATE, lambda share: percent(share, 0)),
    _model,
    _usage,
    _plain("queue", names.QUEUE, milliseconds),
    _load,
    _plain("first token", names.TTFT, milliseconds),
    _plain("expected", detail.FORECAST_TTFT, milliseconds),
    _given,
    _plain("upstream", names.UPSTREAM_STATUS, "HTTP {}".format),
    _plain("schema not checked", names.SCHEMA_UNCHECKED),
    _plain("stream ended", names.STREAM_END),
)
