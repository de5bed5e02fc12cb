"""Judge whether an answer is good enough: its tokens and its structure against the policy's rules. No I/O.

`confidence` is 0..1, and its `basis` tells how it was obtained:
    calibrated   the probability that the answer is right, by the backend's confidence head, where it has one
    logprob      exp(mean log-probability of the tokens), the geometric mean of their probabilities: it ranks answers
                 well in every domain (APGR 0.65-0.92 where embedding routers fall to chance), and is no probability
    judge        the probability that a model gives to "yes, it is good enough"; no head was fitted to its answers
    agreement    how far a second sample of the same backend agrees
    scorer       the probability that a small model gives to question and answer together, where one is handed in
    none         there is no evidence; the policy's `no_signal` decides
The policy's `escalate.verify` says which of them is read first; a head calibrates any of them for its backend.
Structural faults (empty, cut off, a repetition loop, invalid JSON, a call that cannot be (`routing.confidence.calls`),
a refusal) reject an answer at any confidence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, runtime_checkable

import orjson

from policies.value_type import from_fields, value_type
from routing.confidence.calls import NOTHING_OFFERED, CallRules, call_fault

if TYPE_CHECKING:
    from policies.model import Escalate, Verifier

Basis = Literal["calibrated", "logprob", "judge", "agreement", "scorer", "none"]
CALIBRATED: Final = ("calibrated", "scorer")
"""Bases whose confidence is a probability, which `confidence_below` is compared with."""

_REFUSAL = re.compile(
    r"\s*(?:i['’]?m (?:very )?sorry,? (?:but )?i (?:can(?:no|['’])t|am (?:not able|unable) to)"
    r"|i (?:can(?:no|['’])t|am unable to|am not able to) (?:assist|help|comply|provide|answer|fulfil)"
    r"|as an ai(?: language model)?,? i (?:can(?:no|['’])t|am unable))",
    re.IGNORECASE,
)
_TAIL_WORDS = 96
_MIN_LOOP_WORDS = 12
_MAX_PERIOD = 24


@value_type
class Evidence:
    """What is known of an answer, or of its first tokens (`complete` False).

    `logprobs` are the natural-log probabilities of its tokens, None where the backend gave none; `top_logprobs` those
    of each token's likeliest alternatives, as many as were requested. `verified` is what
    other verifiers say, 0..1: how far further samples agree, how likely it is good enough by the judge or the scorer.
    `own_limit` is set when the caller itself set the token limit, so that stopping there is no fault.
    `has_other_output` is set when there is output that is not text, such as a tool call or speech; `tool_names` and
    `tool_arguments` list the tool calls in the same order. `misfit` says in a few words how the answer breaks the
    schema that came with the request; empty where it fits or cannot be checked. `call_rules` are the calls that the
    request allows; None where the policy does not check them.
    """

    text: str
    logprobs: Sequence[float] | None = None
    top_logprobs: Sequence[Sequence[float]] | None = None
    verified: Mapping[Verifier, float] = field(default_factory=dict)
    finish_reason: str | None = None
    tool_arguments: Sequence[str] = field(default=())
    tool_names: Sequence[str] = field(default=())
    has_other_output: bool = False
    refused: bool = False
    wants_json: bool = False
    own_limit: bool = False
    complete: bool = True
    misfit: str = ""
    call_rules: CallRules | None = None


@runtime_checkable
class ScoringHead(Protocol):
    """Turn evidence into a probability: a confidence head, fitted to the labelled answers of one model."""

    @property
    def model(self) -> str:
        """The model that it was fitted to."""

    @property
    def alternatives(self) -> int:
        """Number of `top_logprobs` per token that the head reads; 0 for none."""

    @property
    def version(self) -> str:
        """Hash of the fitted numbers, which identifies them."""

    def p_right(self, evidence: Evidence, prior: float | None = None, by: Verifier = "logprobs") -> float | None:
        """Return the calibrated probability that the answer is right; None without evidence of `by` that it can use."""


class Assessment(NamedTuple):
    """The verdict on an answer and its basis.

    `confidence` is None without evidence; `threshold` is the value it was compared with; `head` is the version of the
    head that gave it, empty for any other basis. `reason` names the deciding rule.
    """

    accepted: bool
    confidence: float | None
    reason: str
    basis: Basis = "none"
    threshold: float | None = None
    head: str = ""


_assessment: Final = from_fields(Assessment)


def mean_confidence(logprobs: Sequence[float] | None) -> float | None:
    """Return exp(mean(logprobs)), 0..1; None without any."""
    if not logprobs:
        return None
    return math.exp(min(0.0, math.fsum(logprobs) / len(logprobs)))


def assess(
    evidence: Evidence, escalate: Escalate, head: ScoringHead | None = None, prior: float | None = None
) -> Assessment:
    """Decide whether this answer may be served under the surface's rules.

    `head` is the one fitted to the backend that gave it, `prior` the classifier's probability that it would be right.
    """
    confidence, basis = confidence_of(evidence, head, prior, escalate.verify)
    version = head.version if head is not None and basis == "calibrated" else ""
    fault = structural_fault(evidence, escalate)
    if confidence is None:
        if not fault and (escalate.no_signal == "accept" or not escalate.when.asks_for_confidence):
            return Assessment(True, None, "no signal, accepted by policy")
        return Assessment(False, None, fault or "no signal")
    threshold = escalate.when.threshold(calibrated=basis in CALIBRATED)
    accepted = confidence >= threshold
    by = f"calibrated by {version}" if version else basis
    compared = f"confidence {confidence:.3f} {'>=' if accepted else '<'} {threshold:g} ({by})"
    return _assessment((accepted and not fault, confidence, fault or compared, basis, threshold, version))


def confidence_of(
    evidence: Evidence, head: ScoringHead | None, prior: float | None, order: Sequence[Verifier]
) -> tuple[float | None, Basis]:
    """Return the confidence, 0..1, and its basis: that of the first verifier in `order` with evidence.

    `head` turns it into a calibrated probability, where it can.
    """
    for by in order:
        value = evidence.verified.get(by)
        if value is None and by == "logprobs":
            value = mean_confidence(evidence.logprobs)
        if value is None:
            continue
        if head is not None and (p_right := head.p_right(evidence, prior, by)) is not None:
            return p_right, "calibrated"
        return value, "logprob" if by == "logprobs" else by
    return None, "none"


def structural_fault(evidence: Evidence, escalate: Escalate) -> str:
    """Return the first structural fault of an answer in a word or two; empty when there is none."""
    when = escalate.when
    if evidence.complete and not evidence.text.strip() and not evidence.has_other_output:
        return "empty"
    if when.refusal and (evidence.refused or _REFUSAL.match(evidence.text)):
        return "refusal"
    if evidence.finish_reason == "length" and "length" in when.finish and not evidence.own_limit:
        return "cut off"
    if evidence.finish_reason == "content_filter" and "content_filter" in when.finish:
        return "content filter"
    if when.repetition and is_loop(evidence.text):
        return "repetition loop"
    rules = evidence.call_rules
    if rules is not None and (evidence.tool_names or rules is not NOTHING_OFFERED):
        names, finish = evidence.tool_names, evidence.finish_reason
        if fault := call_fault(rules, names, evidence.text, finish, complete=evidence.complete):
            return fault
    if evidence.complete and "json" in when.invalid and _should_be_json(evidence) and not _is_json(evidence.text):
        return "invalid JSON"
    if evidence.complete and "tool_args" in when.invalid and not all(map(_are_arguments, evidence.tool_arguments)):
        return "invalid tool arguments"
    return evidence.misfit


def outcome_of_verdict(reason: str) -> Literal["low_confidence", "unfit"]:
    """Return how a rejected answer's attempt ended, from the `reason` of its verdict: `unfit` by a structural fault."""
    return "low_confidence" if reason.startswith(("confidence ", "no signal")) else "unfit"


def is_loop(text: str) -> bool:
    """Return whether the text ends in a loop: at least three repetitions of a run of words, twelve words in all."""
    return loop_period(text.split()[-_TAIL_WORDS:]) > 0


def loop_period(words: Sequence[str]) -> int:
    """Return the period, in words, of the loop in which these words end; 0 for no loop."""
    n = len(words)
    if n < _MIN_LOOP_WORDS:
        return 0
    for period in range(1, min(_MAX_PERIOD, n // 3) + 1):
        if words[-1] != words[-1 - period]:
            continue
        run = period
        while run < n and words[-1 - run] == words[-1 - run + period]:
            run += 1
        if run >= max(_MIN_LOOP_WORDS, 3 * period):
            return period
    return 0


def _should_be_json(evidence: Evidence) -> bool:
    return evidence.wants_json and bool(evidence.text or not evidence.has_other_output)


def _are_arguments(text: str) -> bool:
    """Return whether a text is the arguments of a call: a JSON object, or nothing at all, as of a tool without any."""
    if not text.strip():
        return True
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
