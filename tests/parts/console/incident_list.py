"""Twenty incidents: what is wrong with a deployment, what somebody says about it, and the hop and line that explain it.

Each changes lines of POLICY, a surface that is well, and what its two models do. The lines are named by their keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.upstream import Fault, Reply

POLICY: Final = """\
surface: help
slo:
  ttft: {p95: 300ms, p99: 900ms}
  total: {p95: 1500ms}
  deadline: 3s
tiers: [local, hosted]
route:
  classifier: none
  start:
    local: tokens_in < 3000
    hosted: otherwise
escalate:
  when:
    uncalibrated_below: 0.5
    invalid: [json]
    finish: [length]
    repetition: true
    refusal: true
  no_signal: accept
  stream:
    hold_tokens: 4
    hold_max: 150ms
    on_break: continue
  max_attempts: 3
cache:
  exact: {ttl: 1h}
  semantic: {ttl: 1h, min_similarity: 0.8, verify: fast, audit: 0%}
  never: ["temperature > 1"]
output: {max_tokens: 200}
load:
  max_wait: 1s
holdout: 0%
"""
WELL: Final = Reply(text="A sound answer of some eight words or so.", before_first_s=0.02)
LARGE: Final = Reply(text="The large model says all that there is to say.", before_first_s=0.15)
DOUBTFUL: Final = Reply(text="It may be so or not at all.", logprob=-1.2, before_first_s=0.02)
WORDS: Final = " ".join(f"word{number}" for number in range(60))


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident. `edits` are replaced in POLICY; the requests have `body` besides a question of their own."""

    name: str
    complaint: str
    kind: str
    """What is complained about: slow, failed, refused, dear, wrong, or uncached."""
    hop: str | tuple[str, ...]
    """How the label of the hop begins that shows it; of several, any does."""
    keys: Sequence[str]
    """The keys of the policy any of which is the right answer; the page names the line."""
    edits: Mapping[str, str] = field(default_factory=dict)
    local: Reply = WELL
    hosted: Reply = LARGE
    body: Mapping[str, Any] = field(default_factory=dict)
    questions: Sequence[str] = ()
    """Asked instead of the usual ones; the last is complained about."""
    at_once: int = 1
    backend: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the local tier's backend."""


INCIDENTS: Final = (
    Incident(
        "all drafts are rejected", "The bill of help has doubled since the last change.", "dear",
        "attempt 1 · local", ["escalate.when.uncalibrated_below"],
        {"uncalibrated_below: 0.5": "uncalibrated_below: 0.97"},
    ),
    Incident(
        "doubtful drafts are served", "A customer got nonsense from help.", "wrong",
        "attempt 1 · local", ["escalate.when.uncalibrated_below"],
        {"uncalibrated_below: 0.5": "uncalibrated_below: 0.1"}, local=DOUBTFUL,
    ),
    Incident(
        "everything starts at hosted", "Help costs much more than it did; the small model stands idle.", "dear",
        "route", ["route.start.hosted", "route.start.local"], {"tokens_in < 3000": "tokens_in < 3"},
    ),
    Incident(
        "drafts are given up too early", "Help is slow, and the local model's answers are thrown away.", "dear",
        "attempt 1 · local", ["slo.total.p95"], {"total: {p95: 1500ms}": "total: {p95: 80ms}"},
        local=Reply(text="Slow but sound.", before_headers_s=0.4), body={"stream": False},
    ),
    Incident(
        "a stream is held back too long", "Help shows its first words late.", "slow",
        "attempt 1 · local", ["escalate.stream.hold_tokens", "escalate.stream.hold_max"],
        {"hold_tokens: 4": "hold_tokens: 200", "hold_max: 150ms": "hold_max: 800ms"},
        local=Reply(text=WORDS, between_s=0.02),
    ),
    Incident(
        "the hosted model is slow", "Long questions to help take a second to begin.", "slow",
        "attempt 1 · hosted", ["route.start.hosted", "route.start.local"], {"tokens_in < 3000": "tokens_in < 20"},
        hosted=Reply(text="Late.", before_first_s=0.7), body={"user": "long"},
    ),
    Incident(
        "requests queue", "Help is slow at busy times.", "slow",
        "attempt 1 · local", ["load.max_wait"], {"max_wait: 1s": "max_wait: 5s"},
        local=Reply(text="One at a time.", before_first_s=0.25), at_once=4, backend={"max_in_flight": 1},
    ),
    Incident(
        "requests are refused when busy", "Help answers 503 at busy times.", "failed",
        "attempt", ["load.max_wait"], {"max_wait: 1s": "max_wait: 1ms", "tiers: [local, hosted]": "tiers: [local]",
                                       "    hosted: otherwise\n": "", "tokens_in < 3000": "otherwise"},
        local=Reply(text="One at a time.", before_first_s=0.3), at_once=4, backend={"max_in_flight": 1},
    ),
    Incident(
        "the deadline is too short", "Hard questions to help come back cut short or poor.", "wrong",
        "attempt 2 · hosted", ["slo.deadline"],
        {"deadline: 3s": "deadline: 300ms", "  total: {p95: 1500ms}\n": "", "  ttft: {p95: 300ms, p99: 900ms}\n": ""},
        local=DOUBTFUL, hosted=Reply(text="Too late.", before_headers_s=0.8), body={"stream": False},
    ),
    Incident(
        "the local model is down", "Help has become dearer since this morning.", "dear",
        ("attempt 1 · local", "route"), ["route.start.local"], local=Reply(status=500, body=b"{}"),
    ),
    Incident(
        "both are asked every time", "The hosted model is called for every question, and mostly for nothing.", "dear",
        "attempt 2 · hosted", ["escalate.speculate.both"],
        {"  no_signal: accept": "  speculate: {both: tokens_in > 0}\n  no_signal: accept"},
    ),
    Incident(
        "another question's answer", "A customer got the answer to another customer's question.", "wrong",
        "cache.semantic", ["cache.semantic.max_error"],
        {"min_similarity: 0.8, verify: fast": "min_similarity: 0.3, max_error: 50%, verify: fast"},
        questions=(*["How do I paint a wooden fence?"] * 2, "How should I paint a wooden fence?"),
    ),
    Incident(
        "nothing is cached", "Equal questions to help are never answered from the cache.", "uncached",
        "cache.exact", ["cache.never"], {'"temperature > 1"': '"tokens_in > 0"'},
    ),
    Incident(
        "JSON that does not parse", "The extraction job costs twice what it did.", "dear",
        "attempt 1 · local", ["escalate.when.invalid"], local=Reply(text="Here it is: name = Ada"),
        body={"response_format": {"type": "json_object"}, "stream": False},
        hosted=Reply(text='{"name": "Ada"}'),
    ),
    Incident(
        "answers are cut off", "Nearly every request to help goes on to the hosted model.", "dear",
        "attempt 1 · local", ["escalate.when.finish"], {"max_tokens: 200": "max_tokens: 9"},
        local=Reply(text=WORDS, finish_reason="length"), hosted=Reply(text="Short."), body={"stream": False},
    ),
    Incident(
        "the local model refuses", "Help asks the hosted model for things that the local one used to answer.", "dear",
        "attempt 1 · local", ["escalate.when.refusal"], body={"stream": False},
        local=Reply(text="I'm sorry, but I can't help with that."),
    ),
    Incident(
        "a stream breaks off", "An answer of help stopped, and began again.", "broken",
        "attempt", ["escalate.stream.on_break"],
        local=Reply(text=WORDS, between_s=0.002, fault=Fault.RESET_MID_STREAM, fault_after=20),
        questions=("How tall is a birch?", "How old is an oak?"),
    ),
    Incident(
        "no log-probabilities", "Since the update of the local model everything goes to the hosted one.", "dear",
        "attempt 1 · local", ["escalate.no_signal"], {"no_signal: accept": "no_signal: escalate"},
        local=Reply(text="A sound answer.", no_logprobs=True),
    ),
    Incident(
        "going round in circles", "Help is dear, and the local model's answers are odd.", "dear",
        "attempt 1 · local", ["escalate.when.repetition"], body={"stream": False},
        local=Reply(text="again and " * 40),
    ),
    Incident(
        "nobody can be in time", "Help serves poor drafts although the hosted model is up.", "wrong",
        "attempt", ["slo.ttft.p99"], {"p95: 300ms, p99: 900ms": "p95: 100ms, p99: 150ms"}, local=DOUBTFUL,
        hosted=Reply(text="Good but late.", before_first_s=0.6), at_once=4,
        questions=[f"Which shelf has book number {number}?" for number in range(48)],
    ),
)  # fmt: skip
