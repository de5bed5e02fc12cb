"""Run one attempt as a state machine without I/O: events tell it what has come and when, `due()` returns what to do.

    Hold       nothing is to be decided yet: read on until so many tokens have come, or a time, or the answer's end
    Judge      gather the evidence of what has come, and hand it to `ended`, or to `looked` if a watched draft goes on
    Commit     a stream goes out; a whole answer is kept, and the cascade decides by the outcome
    Reject     the draft is not good enough, and a stronger tier would take over: cancel the call
    LookAgain  a whole answer's draft goes on: read on as for Hold
    GiveUp     nothing, or no whole answer, has come in time: the call has failed

Rules:
    time limit        a stream has until its first token the attempt's `ttft_timeout_s`, a whole answer until its end
                      `timeout_s`; a wait in the queue is part of it
    a stream          goes out with its first choice if it is not judged, or else is held: from its first token until
                      `hold_tokens` have come, `hold_max` has passed, its answer is complete or it makes a call that no
                      further token makes right. If the tier that would take over has a known time to its first token,
                      that and the verdict's own time are left when the hold ends
    a whole answer    is judged when it is complete
    a watched draft   is a whole answer that is read as a stream: it is looked at after `hold_tokens` as a stream is,
                      and then every 32 tokens, for structural faults alone. It is judged anew when it is complete
    verifiers         other than log-probabilities are asked while the draft is held, if their word can still count: it
                      comes before the hold ends, and a stronger tier would take over even then
    a poor beginning  is rejected only if a stronger tier would take over at that moment: without one, a stream goes out
                      and a draft goes on. A poor whole answer is kept: it may be the best one

All times are seconds on one clock of the caller's. The gateway drives the machine by its backends, and a walk of a
policy (what policy tests, explanations, replays and "what if" see) by the answers that it assumes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from policies.value_type import from_fields, value_type
from routing.cascade import AttemptOutcome, Left
from routing.confidence.judge import Assessment, Evidence, assess, outcome_of_verdict, structural_fault

if TYPE_CHECKING:
    from policies.model import Escalate
    from routing.cascade import Attempt, OutcomeKind
    from routing.confidence.judge import ScoringHead

UNJUDGED: Final = Assessment(True, None, "nothing stronger follows")
"""The verdict on an answer that nothing could replace."""
LOOK_EVERY: Final = 32
"""Tokens between two looks at a watched draft whose beginning was good enough."""
_VERDICT_S: Final = 0.01
"""Seconds for a timer that fires late and for the verdict on what is held of a stream."""
_LEAST_S: Final = 0.001
"""Seconds that a call has at least, after however long a wait in the queue."""


class Progress(Protocol):
    """What has come of an answer so far; `gateway.chat.stream_state.StreamState` is one."""

    tokens: int
    finished: bool
    """Whether the answer is complete."""
    has_other_output: bool
    """Whether there is output that is not text, such as a tool call."""

    @property
    def has_choice(self) -> bool:
        """Whether a choice has begun, even one without a token."""

    def call_fault(self) -> str:
        """Return the call so far that the request does not allow, in a few words; empty if there is none."""


@value_type
class Hold:
    """Read on until `tokens` tokens have come, the answer has ended or calls a tool, or the time is `until`."""

    until: float
    tokens: int


@value_type
class LookAgain:
    """Read on as for `Hold`, and judge the draft again after that; `verdict` is that of the last look."""

    until: float
    tokens: int
    verdict: Assessment


@value_type
class Judge:
    """Judge the answer so far: the driver passes its evidence to `ended`, or to `looked` before the end."""


class Commit(NamedTuple):
    """End the attempt with this answer: a stream is served, a whole answer is kept for the cascade to decide on."""

    verdict: Assessment
    outcome: AttemptOutcome


@value_type
class Reject:
    """Cancel the call: another tier takes over."""

    verdict: Assessment
    outcome: AttemptOutcome


@value_type
class GiveUp:
    """Treat the call as failed: the expected event did not arrive within `after_s` seconds."""

    after_s: float


AttemptStep = Hold | Judge | Commit | Reject | LookAgain | GiveUp
_JUDGE: Final = Judge()
_attempt_outcome: Final = from_fields(AttemptOutcome)
_commit: Final = from_fields(Commit)


class AttemptMachine:
    """The state machine described in the module's docstring. One instance serves one call.

    Each event returns what is due, as `due()` does. Call `tokens` when `wanted` tokens have come, when the answer has
    ended or calls something, and at the time `until`; it takes the first token for come then, unless that was told.
    """

    __slots__ = (
        "_attempt", "_deadline", "_escalate", "_first_due", "_full", "_head", "_looked", "_step", "_stream",
        "_takes_over", "_tokens", "_verify_s", "first_at", "hold_ends", "limit_s", "until", "wanted", "watched",
    )  # fmt: skip

    def __init__(
        self,
        attempt: Attempt,
        escalate: Escalate,
        began: float,
        deadline: float,
        first_due: float | None = None,
        *,
        takes_over: Callable[[Left], bool],
        head: ScoringHead | None = None,
        stream: bool = False,
        watches: bool = False,
        queued_s: float = 0.0,
        verify_s: float = 0.0,
    ) -> None:
        """Begin at the time `began`, after `queued_s` seconds in the queue.

        What has come is to be judged `verify_s` seconds before a hold ends: so long its verifier takes.

        `deadline` is that of the request, and `first_due` that of its first token if it has one. `head` scores the
        evidence. `takes_over` returns whether a stronger tier would take over with that much time left. `watches`: the
        backend's drafts are watched.
        """
        self._attempt = attempt
        self._full = escalate
        self._escalate = escalate if attempt.ease >= 1 else escalate.eased(attempt.ease)
        self._deadline = deadline
        self._first_due = first_due
        self._takes_over = takes_over
        self._head = head
        self._stream = stream
        self._looked = False
        self._tokens = 0
        self._verify_s = verify_s
        self._step: AttemptStep | None = None
        self.limit_s = max(_LEAST_S, (attempt.ttft_timeout_s if stream else attempt.timeout_s) - queued_s)
        """Seconds from `began` within which a stream's first token, or all of a whole answer, must come."""
        self.watched = watches and not stream and attempt.judged and not attempt.final
        """Whether the whole answer is to be read as a stream, and looked at."""
        self.first_at = math.inf
        """When the first token of a stream came that is judged; infinity before that."""
        self.hold_ends = deadline
        """When the verdict has to be there: at the end of a stream's hold, for a whole answer at the deadline."""
        self.until = began + self.limit_s
        if stream:
            self.wanted = 1 if attempt.judged else 0
        else:
            self.wanted = escalate.stream.hold_tokens if self.watched else sys.maxsize

    def due(self) -> AttemptStep:
        """Return the step that the driver has to take now."""
        return self._step or Hold(self.until, self.wanted)

    def first_token(self, at: float) -> AttemptStep:
        """Begin the hold of a stream: its first token has come."""
        if self._stream and self._attempt.judged and self.first_at == math.inf:
            self.first_at = at
            reserved_s, rules = self._attempt.reserved_s, self._escalate.stream
            due = self._deadline if self._first_due is None else min(self._deadline, self._first_due)
            latest = due - (reserved_s + _VERDICT_S if reserved_s else 0.0)
            self.hold_ends, self.wanted = min(at + rules.hold_max, max(at, latest)), rules.hold_tokens
            self.until = max(at, self.hold_ends - self._verify_s)
        return self.due()

    def tokens(self, state: Progress, at: float) -> AttemptStep:
        """Take in how much of the answer has come by the time `at`, and return the next step."""
        if not isinstance(self._step, LookAgain | None):
            return self._step
        self._tokens = state.tokens
        if not self._stream:
            ready = state.finished or self._tokens >= self.wanted
        elif not self._attempt.judged:
            ready = state.has_choice
        else:
            if self._tokens and self.first_at == math.inf:
                self.first_token(at)
            over = self.first_at <= at >= self.until or (state.has_other_output and bool(state.call_fault()))
            ready = over or state.finished or self._tokens >= self.wanted
        if ready and not self._attempt.judged:
            return self.ended(None, at)
        if ready:
            self._step = _JUDGE
        elif at >= self.until:
            self._step = GiveUp(self.limit_s)
        return self.due()

    def looked(self, evidence: Evidence, at: float) -> Reject | LookAgain:
        """Judge a watched draft that is not complete."""
        if self._looked:
            fault = structural_fault(evidence, self._escalate)
            verdict = Assessment(not fault, None, fault or "goes on")
        else:
            verdict = assess(evidence, self._escalate, self._head, self._attempt.prior)
            if verdict.reason == "no signal":  # a verifier may yet say something of the whole answer
                verdict = Assessment(True, None, "goes on")
        self._looked, self.wanted = True, self._tokens + LOOK_EVERY
        step = self._rejected(verdict, at) or LookAgain(self.until, self.wanted, verdict)
        self._step = step
        return step

    def ended(self, evidence: Evidence | None, at: float) -> Commit | Reject:
        """Judge a whole answer, or a stream whose hold has ended; None for an answer that is not judged."""
        verdict = UNJUDGED
        if evidence is not None:
            verdict = assess(evidence, self._escalate, self._head, self._attempt.prior)
        outcome = _outcome(verdict, kept=True)
        if evidence is not None and verdict.accepted and self._attempt.ease < 1:
            full = assess(evidence, self._full, self._head, self._attempt.prior)
            outcome = outcome._replace(eased=not full.accepted)
        step = (self._rejected(verdict, at) if self._stream else None) or _commit((verdict, outcome))
        self._step = step
        return step

    def why_not_ask(self, takes_s: float, at: float) -> str:
        """Return why a verifier that takes `takes_s` seconds is not worth asking at the time `at`; '' if it is."""
        if self._attempt.final:
            return "nothing stronger follows"
        if not self._attempt.ease:
            return "any confidence is taken, as the budget is nearly spent"
        if at + takes_s > self.hold_ends:
            return f"{takes_s * 1000:.0f} ms would be too late"
        return "" if self._takes_over(self._left(at + takes_s)) else "no stronger tier would answer in time after it"

    def _left(self, at: float) -> Left:
        return Left(self._deadline - at, None if self._first_due is None else self._first_due - at)

    def _rejected(self, verdict: Assessment, at: float) -> Reject | None:
        """Return the rejection of a poor beginning, None where it is good enough or nothing would take over."""
        if verdict.accepted or self._attempt.final:
            return None
        return Reject(verdict, _outcome(verdict, kept=False)) if self._takes_over(self._left(at)) else None


def _outcome(verdict: Assessment, *, kept: bool) -> AttemptOutcome:
    kind: OutcomeKind = "accepted" if verdict.accepted else outcome_of_verdict(verdict.reason)
    return _attempt_outcome((kind, verdict.reason, verdict.confidence, kept, False, False))
