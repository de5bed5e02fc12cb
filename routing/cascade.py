"""The cascade of one request, as a state machine with no I/O: `next()` says what to do, `observe()` hears how it went.

    Attempt    call this tier, and judge its answer if it is `judged`; when it is `final` nothing stronger can take over
    Serve      the answer of attempt `number` goes out
    Fail       nothing can be served

The rules, in the order they are asked:
    accepted          it goes out
    caller_fault      another tier would say the same: out at once, unless a draft shows that one tier takes it
    low_confidence    the next stronger tier takes over; with none left, the best answer so far goes out, as degraded
    retryable         another endpoint of the tier, then the next stronger tier, then the best answer so far, then
                      weaker tiers, a tier whose draft was thrown away among them
At most `max_attempts` in all, and none once the budget is spent. JSON and streams are driven alike; what differs is
that a stream's rejected draft is gone (`Outcome.kept` is False), so it cannot be served later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from policies.model import Policy
from routing.decide import Decision, TierHealth

OutcomeKind = Literal["accepted", "low_confidence", "retryable", "caller_fault"]
Path = Literal["direct", "escalated", "fallback", "degraded"]

_MIN_ATTEMPT_S = 0.005


@dataclass(frozen=True, slots=True)
class Attempt:
    """One backend call to make, within `timeout_s` for the whole and `ttft_timeout_s` for the first token.

    `prior` is the classifier's probability that this tier answers rightly; None where it does not know.
    """

    number: int
    tier: str
    timeout_s: float
    ttft_timeout_s: float
    judged: bool
    final: bool
    prior: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended. `kept`: its whole answer is in hand and could still be served."""

    kind: OutcomeKind
    detail: str = ""
    confidence: float | None = None
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Serve:
    """The answer of this attempt goes out."""

    number: int


@dataclass(frozen=True, slots=True)
class Fail:
    """Nothing can be served. `timed_out` when the budget ran out rather than the tiers."""

    timed_out: bool = False


Step = Attempt | Serve | Fail


class Cascade:
    """See the module's docstring. One instance serves one request and is then thrown away."""

    def __init__(
        self,
        decision: Decision,
        policy: Policy,
        health: Mapping[str, TierHealth],
        ttft_s: float | None = None,
        priors: Mapping[str, float] | None = None,
    ) -> None:
        """`ttft_s` is the client's own limit for the first token; the surface's p99 holds where it is tighter.

        `priors` are the classifier's probabilities that a tier answers rightly, of those it knows.
        """
        limits = [limit for limit in (policy.slo.ttft.p99, ttft_s) if limit is not None]
        self._ttft_s = min(limits) if limits else None
        self._policy = policy
        self._priors = priors or {}
        self._health = health
        self._stronger = list(decision.tiers)
        self._weaker = list(decision.fallbacks)
        self._dropped: list[str] = []
        self._tried_here = 0
        self._attempts: list[Attempt] = []
        self._outcomes: list[Outcome] = []
        self._missing = bool(decision.missing)
        self._stands_in = bool(decision.stand_in)
        self._degraded = self._stands_in and decision.weaker
        self._escalated = False
        self._failed_over = False

    @property
    def path(self) -> Path:
        """What `x-tierline-path` says of the answer that goes out."""
        if self._degraded:
            return "degraded"
        if self._failed_over or self._stands_in:
            return "fallback"
        return "escalated" if self._escalated else "direct"

    def next(self, budget_s: float) -> Step:
        """What to do now, with `budget_s` seconds left of the deadline."""
        if self._outcomes:
            last = self._outcomes[-1].kind
            if last == "accepted":
                return Serve(len(self._outcomes))
            if last == "caller_fault" and self._best() is None and not self._dropped:
                return Fail()
        timed_out = budget_s < _MIN_ATTEMPT_S
        tier = None if timed_out or not self._may_attempt() else self._current()
        if tier is None:
            return self._best_or_fail(timed_out)
        attempt = self._attempt(tier, budget_s)
        self._attempts.append(attempt)
        return attempt

    def observe(self, outcome: Outcome) -> None:
        """Tells how the attempt that `next()` last gave has ended."""
        self._outcomes.append(outcome)
        tier = self._attempts[-1].tier
        self._tried_here += 1
        if outcome.kind == "low_confidence":
            if not outcome.kept:
                self._dropped.append(tier)
            self._leave()
            self._escalated = True
        elif outcome.kind == "retryable" and self._tried_here >= self._health[tier].endpoints:
            self._leave()
            self._failed_over = True
        elif outcome.kind == "caller_fault":
            # What this tier refuses (an unknown field, say) the one with the draft has taken.
            self._stronger.clear()

    def _may_attempt(self) -> bool:
        return len(self._attempts) < self._policy.escalate.max_attempts

    def _current(self) -> str | None:
        """The tier whose turn it is; None when only an answer in hand, or nothing, is left."""
        if self._stronger:
            return self._stronger[0]
        if self._best() is not None:
            return None
        weaker = self._dropped or self._weaker
        return weaker[0] if weaker else None

    def _leave(self) -> None:
        self._tried_here = 0
        queue = self._stronger or self._dropped or self._weaker
        if queue:
            queue.pop(0)

    def _attempt(self, tier: str, budget_s: float) -> Attempt:
        number = len(self._attempts) + 1
        can_escalate = number < self._policy.escalate.max_attempts and len(self._stronger) > 1
        if not self._stronger and self._dropped:
            self._degraded = True
        # With every stronger tier out of reach the answer goes out as it is, but not without saying so.
        judged = can_escalate or (self._missing and bool(self._stronger) and not self._degraded)
        timeout = ttft_timeout = budget_s
        if can_escalate:
            # Half of what is left stays with the tier that would take over, and a draft that takes longer than nearly
            # all answers of this surface should has no claim to more: a small model in a loop writes to its limit.
            total = self._policy.slo.total
            timeout = min(budget_s / 2, total.p95 or total.p99 or budget_s)
            ttft_timeout = min(timeout, self._ttft_s or timeout)
        return Attempt(
            number, tier, timeout, ttft_timeout, judged, final=not can_escalate, prior=self._priors.get(tier)
        )

    def _best(self) -> int | None:
        """The number of the most confident answer that is still in hand."""
        kept = [(o.confidence or 0.0, i) for i, o in enumerate(self._outcomes, start=1) if o.kept]
        return max(kept)[1] if kept else None

    def _best_or_fail(self, timed_out: bool) -> Step:
        best = self._best()
        if best is None or (timed_out and self._policy.slo.on_miss == "fail"):
            return Fail(timed_out)
        self._degraded = True
        return Serve(best)
