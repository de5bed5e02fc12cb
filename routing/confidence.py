"""Was the answer good enough? Token log-probabilities and the structure of the answer, against the policy. Pure.

`confidence` is exp(mean log-probability of the answer's tokens): the geometric mean of their probabilities, 0..1. It is
the one signal that carries over between domains (APGR 0.65-0.92 where embedding routers fall to chance). Structural
faults (empty, cut off, a repetition loop, invalid JSON, a refusal) reject an answer whatever its tokens say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from policies.model import Escalate

_REFUSAL = re.compile(
    r"\s*(?:i['’]?m (?:very )?sorry,? (?:but )?i (?:can(?:no|['’])t|am (?:not able|unable) to)"
    r"|i (?:can(?:no|['’])t|am unable to|am not able to) (?:assist|help|comply|provide|answer|fulfil)"
    r"|as an ai(?: language model)?,? i (?:can(?:no|['’])t|am unable))",
    re.IGNORECASE,
)
_TAIL_WORDS = 96
_MIN_LOOP_WORDS = 12
_MAX_PERIOD = 24


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of an answer, or of its first tokens (`complete` False).

    `logprobs` are the natural-log probabilities of its tokens, None where the backend gave none. `own_limit` says that
    the caller itself set the token limit, so that stopping there is no fault. `has_other_output`: it says something
    that is not text, such as a tool call or speech.
    """

    text: str
    logprobs: Sequence[float] | None = None
    finish_reason: str | None = None
    tool_arguments: Sequence[str] = field(default=())
    has_other_output: bool = False
    refused: bool = False
    wants_json: bool = False
    own_limit: bool = False
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Assessment:
    """The verdict. `confidence` is None when there was no evidence of it; `reason` says what decided, in words."""

    accepted: bool
    confidence: float | None
    reason: str


def mean_confidence(logprobs: Sequence[float] | None) -> float | None:
    """exp(mean(logprobs)), 0..1; None without any."""
    if not logprobs:
        return None
    return math.exp(min(0.0, math.fsum(logprobs) / len(logprobs)))


def assess(evidence: Evidence, escalate: Escalate) -> Assessment:
    """Whether this answer may go out, under the surface's rules."""
    confidence = mean_confidence(evidence.logprobs)
    fault = structural_fault(evidence, escalate)
    if fault:
        return Assessment(False, confidence, fault)
    threshold = escalate.when.confidence_below
    if confidence is None:
        if threshold == 0 or escalate.no_signal == "accept":
            return Assessment(True, None, "no signal, accepted by policy")
        return Assessment(False, None, "no signal")
    if confidence < threshold:
        return Assessment(False, confidence, f"confidence {confidence:.3f} < {threshold:g}")
    return Assessment(True, confidence, f"confidence {confidence:.3f} >= {threshold:g}")


def structural_fault(evidence: Evidence, escalate: Escalate) -> str:
    """The first structural fault of an answer, in a word or two; empty when there is none."""
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
    if evidence.complete and "json" in when.invalid and _should_be_json(evidence) and not _is_json(evidence.text):
        return "invalid JSON"
    if evidence.complete and "tool_args" in when.invalid and not all(map(_is_json, evidence.tool_arguments)):
        return "invalid tool arguments"
    return ""


def is_loop(text: str) -> bool:
    """Whether the text ends in a loop: a run of words, said at least three times over, twelve words or more in all."""
    words = text.split()[-_TAIL_WORDS:]
    n = len(words)
    if n < _MIN_LOOP_WORDS:
        return False
    for period in range(1, min(_MAX_PERIOD, n // 3) + 1):
        if words[-1] != words[-1 - period]:
            continue
        run = period
        while run < n and words[-1 - run] == words[-1 - run + period]:
            run += 1
        if run >= max(_MIN_LOOP_WORDS, 3 * period):
            return True
    return False


def _should_be_json(evidence: Evidence) -> bool:
    return evidence.wants_json and bool(evidence.text or not evidence.has_other_output)


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
