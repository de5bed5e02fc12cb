"""The cascade of one request, as a state machine with no I/O: `next()` says what to do, `observe()` hears how it went.

    Attempt    call this tier, and judge its answer if it is `judged`; when it is `final` nothing stronger can take over
    Wait       attempts are under way: nothing to do until one ends, or so many seconds have passed
    Serve      the answer of attempt `number` goes out; whatever else is under way has lost
    Fail       nothing can be served

The rules, in the order they are asked:
    accepted          it goes out; of attempts that run beside each other, the first one that is good enough
    caller_fault      another tier would say the same: out at once, unless a draft shows that one tier takes it
    low_confidence    the next stronger tier takes over, if it is expected to answer in what is left of the budget; else
                      `on_miss` decides: the best answer so far goes out, as degraded, or none does
    too_long          the tier cannot hold the request: the next stronger tier takes over, then weaker ones
    retryable         another endpoint of the tier, then the next stronger tier, then the best answer so far, then
                      weaker tiers, a tier whose draft was thrown away among them
At most `max_attempts` in all (one that found the request too long has done no work, and does not count), and none that
could not answer in time. A hedge (the first tier is slower than it should be) or a speculative second attempt runs
beside the first. JSON and streams are driven alike; what differs is that a stream's rejected draft is gone
(`AttemptOutcome.kept` is False), so it cannot be served later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from policies.model import Policy
from routing.decide import Decision, TierHealth

OutcomeKind = Literal["accepted", "low_confidence", "retryable", "too_long", "caller_fault"]
Path = Literal["direct", "escalated", "hedged", "fallback", "degraded"]
Role = Literal["", "hedge", "speculative"]

_MIN_ATTEMPT_S = 0.005


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of the request's budget, in seconds: of its deadline, and of the time to its first token.

    `ttft_s` is None where nothing limits the first token, and for JSON, whose client sees no first token.
    """

    total_s: float
    ttft_s: float | None = None

    @property
    def first_token_s(self) -> float:
        """What is left for a first token, by whichever limit comes first."""
        return self.total_s if self.ttft_s is None else min(self.total_s, self.ttft_s)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One backend call to make, within `timeout_s` for the whole and `ttft_timeout_s` for the first token.

    `prior` is the classifier's probability that this tier answers rightly; None where it does not know. `role` says why
    it runs beside another attempt, if it does; `alone`, that nothing will ever run beside it; `retry`, that it is made
    because another one failed. `reserved_s` is what the tier that would take over is expected to need for its own first
    token: a draft is judged early enough for that.
    """

    number: int
    tier: str
    timeout_s: float
    ttft_timeout_s: float
    judged: bool
    final: bool
    prior: float | None = None
    role: Role = ""
    alone: bool = True
    retry: bool = False
    reserved_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """How an attempt ended. `kept`: its whole answer is in hand and could still be served."""

    kind: OutcomeKind
    detail: str = ""
    confidence: float | None = None
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until an attempt ends, or `for_s` seconds have passed (None: until one ends)."""

    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Serve:
    """The answer of this attempt goes out."""

    number: int


@dataclass(frozen=True, slots=True)
class Fail:
    """Nothing can be served. `timed_out` when the budget ran out rather than the tiers; `full_s`, when it is the line
    alone that would take longer than there is, how long it would.
    """

    timed_out: bool = False
    full_s: float = 0.0


Step = Attempt | Wait | Serve | Fail


@dataclass(frozen=True, slots=True)
class Racing:
    """What may run beside the first attempt. `both`: the next tier, at once, as speculation. `after_s` gives the time
    without a first token (of an attempt at that tier) after which a hedge starts, None for never; `may_spend` is asked
    at that moment.
    """

    both: bool = False
    after_s: Callable[[str], float | None] | None = None
    may_spend: Callable[[], bool] = lambda: True


_NO_RACING = Racing()


class Cascade:
    """See the module's docstring. One instance serves one request and is then thrown away."""

    def __init__(
        self,
        decision: Decision,
        policy: Policy,
        health: Mapping[str, TierHealth],
        *,
        stream: bool = False,
        priors: Mapping[str, float] | None = None,
        racing: Racing = _NO_RACING,
    ) -> None:
        """`priors` are the classifier's probabilities that a tier answers rightly, of those it knows."""
        self._policy = policy
        self._stream = stream
        self._priors = priors or {}
        self._racing = racing
        self._health = health
        self._stronger = list(decision.tiers)
        self._weaker = list(decision.fallbacks)
        self._dropped: list[str] = []
        self._tried: dict[str, int] = {}
        self._attempts: list[Attempt] = []
        self._outcomes: dict[int, AttemptOutcome] = {}
        self._running: set[int] = set()
        self._last: AttemptOutcome | None = None
        self._winner = 0
        self._hedge_after_s: float | None = None
        self._too_long = 0
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
        if self._winner and self._attempts[self._winner - 1].role and not self._escalated:
            return "hedged"
        if self._failed_over or self._stands_in:
            return "fallback"
        return "escalated" if self._escalated else "direct"

    def next(self, left: Left, waited_s: float = 0.0) -> Step:
        """What to do now; `waited_s` is how long ago the last attempt began."""
        if self._winner:
            return Serve(self._winner)
        if self._running:
            return self._beside(left, waited_s)
        last = self._last
        if last is not None and last.kind == "caller_fault" and self._best() is None and not self._dropped:
            return Fail()
        timed_out = left.total_s < _MIN_ATTEMPT_S
        tier = None if timed_out or not self._may_attempt() else self._current()
        full_s = 0.0
        if tier is not None and not self._starts(tier, left):
            full_s = self._full_s(tier, left)
            timed_out, tier = not full_s, self._another(left)
        if tier is None:
            return self._best_or_fail(timed_out, full_s)
        return self._attempt(tier, left)

    def began(self) -> None:
        """A first token has come, though it is not committed yet: no hedge starts any more."""
        self._hedge_after_s = None

    def observe(self, outcome: AttemptOutcome, number: int = 0) -> None:
        """Tells how attempt `number` has ended; by default the last one that `next()` gave."""
        number = number or len(self._attempts)
        self._running.discard(number)
        self._outcomes[number] = self._last = outcome
        attempt = self._attempts[number - 1]
        tier, beside = attempt.tier, bool(attempt.role)
        if outcome.kind == "accepted":
            self._winner = self._winner or number
        elif outcome.kind == "low_confidence":
            self._leave(tier)
            if not outcome.kept:
                self._dropped.append(tier)
            self._escalated = self._escalated or not beside
        elif outcome.kind == "too_long":
            self._too_long += 1
            if self._above(tier) is None:
                self._failed_over = self._failed_over or not beside
            else:
                self._escalated = self._escalated or not beside
            self._leave(tier)
        elif outcome.kind == "retryable" and self._tried[tier] >= self._health[tier].endpoints:
            self._leave(tier)
            self._failed_over = self._failed_over or not beside
        elif outcome.kind == "caller_fault" and not self._running:
            # What this tier refuses (an unknown field, say) the one with the draft has taken.
            self._stronger.clear()

    def takes_over(self, left: Left) -> bool:
        """Whether a stronger tier would take over, were the running attempt's draft turned down now."""
        if len(self._running) > 1:
            return True
        tier = self._next_stronger()
        return tier is not None and self._may_attempt() and self._fits(tier, left)

    def _may_attempt(self) -> bool:
        return self._counted() < self._policy.escalate.max_attempts

    def _counted(self) -> int:
        """How many attempts have been made, of those that count."""
        return len(self._attempts) - self._too_long

    def _current(self) -> str | None:
        """The tier whose turn it is; None when only an answer in hand, or nothing, is left."""
        if self._stronger:
            return self._stronger[0]
        if self._best() is not None:
            return None
        weaker = self._dropped or self._weaker
        return weaker[0] if weaker else None

    def _next_stronger(self) -> str | None:
        return self._stronger[1] if len(self._stronger) > 1 else None

    def _leave(self, tier: str) -> None:
        self._tried[tier] = 0
        for queue in (self._stronger, self._dropped, self._weaker):
            if tier in queue:
                queue.remove(tier)

    def _starts(self, tier: str, left: Left) -> bool:
        """Whether a call of that tier may begin: with an answer in hand only if it is expected to be in time, for
        another is better; with none in hand unless it cannot be in time at all.
        """
        if self._best() is not None and self._last is not None and self._last.kind == "low_confidence":
            return self._fits(tier, left)
        return self._least_s(tier) <= left.total_s

    def _another(self, left: Left) -> str | None:
        """A tier that can still answer in time where the one whose turn it is cannot."""
        if self._best() is not None:
            return None
        others = [*self._stronger[1:], *self._weaker]
        return next((tier for tier in others if self._least_s(tier) <= left.total_s), None)

    def _fits(self, tier: str, left: Left) -> bool:
        """Whether the tier is expected to answer in what is left. Of one that is not known yet the best is thought."""
        forecast = self._health[tier].forecast
        if forecast is None or not forecast.known:
            return True
        if self._stream:
            return forecast.ttft_s <= left.first_token_s
        return forecast.whole_s <= left.total_s

    def _full_s(self, tier: str, left: Left) -> float:
        """The wait in line, where without it the tier would be in time; 0 where it is not the line."""
        forecast = self._health[tier].forecast
        if forecast is None or not forecast.queue_s:
            return 0.0
        return forecast.queue_s if forecast.least_s - forecast.queue_s <= left.total_s else 0.0

    def _least_s(self, tier: str) -> float:
        forecast = self._health[tier].forecast
        return 0.0 if forecast is None or not forecast.known else forecast.least_s

    def _attempt(self, tier: str, left: Left, role: Role = "") -> Attempt:
        number = len(self._attempts) + 1
        can_escalate = self._counted() + 1 < self._policy.escalate.max_attempts and self._above(tier) is not None
        if not self._stronger and self._dropped:
            self._degraded = True
        # With every stronger tier out of reach the answer goes out as it is, but not without saying so.
        judged = can_escalate or (self._missing and bool(self._stronger) and not self._degraded)
        reserved = self._reserved_s(tier) if can_escalate and left.ttft_s is not None else 0.0
        timeout, ttft_timeout = self._limits(left, reserved, can_escalate=can_escalate)
        attempt = Attempt(
            number,
            tier,
            timeout,
            ttft_timeout,
            judged,
            final=not can_escalate,
            prior=self._priors.get(tier),
            role=role,
            alone=not role and not self._may_race(tier),
            retry=self._last is not None and self._last.kind == "retryable" and not role,
            reserved_s=reserved,
        )
        self._tried[tier] = self._tried.get(tier, 0) + 1
        self._attempts.append(attempt)
        self._running.add(number)
        return attempt

    def _above(self, tier: str) -> str | None:
        """The tier that takes over from this one."""
        if tier not in self._stronger:
            return None
        position = self._stronger.index(tier) + 1
        return self._stronger[position] if position < len(self._stronger) else None

    def _reserved_s(self, tier: str) -> float:
        """What the tier above is expected to need for its first token; nothing where that is not known."""
        above = self._above(tier)
        forecast = self._health[above].forecast if above is not None else None
        return forecast.ttft_s if forecast is not None and forecast.known else 0.0

    def _limits(self, left: Left, reserved: float, *, can_escalate: bool) -> tuple[float, float]:
        """Seconds for the whole and for the first token. What takes over must find something left."""
        if not can_escalate:
            return left.total_s, left.total_s
        # Half of what is left stays with the tier that would take over, and a draft that takes longer than nearly
        # all answers of this surface should has no claim to more: a small model in a loop writes to its limit.
        total = self._policy.slo.total
        timeout = min(left.total_s / 2, total.p95 or total.p99 or left.total_s)
        if left.ttft_s is None or left.ttft_s <= 0:
            return timeout, timeout  # no limit, or one that has passed: the next best thing is an answer
        first = left.ttft_s - reserved if left.ttft_s > reserved else left.ttft_s
        return timeout, min(timeout, max(first, _MIN_ATTEMPT_S))

    # --- attempts beside each other -----------------------------------------------------------------------------------

    def _may_race(self, tier: str) -> bool:
        """Whether something may come to run beside an attempt at this tier, the first one."""
        self._hedge_after_s = None
        if self._attempts or not self._has_rival(tier):
            return False
        if self._racing.after_s is not None:
            self._hedge_after_s = self._racing.after_s(tier)
        return self._racing.both or self._hedge_after_s is not None

    def _has_rival(self, tier: str) -> bool:
        return self._health[tier].endpoints > 1 or self._above(tier) is not None

    def _beside(self, left: Left, waited_s: float) -> Step:
        """While attempts run: a second one, when its time has come, or nothing yet."""
        if len(self._attempts) > 1 or not self._may_attempt() or self._attempts[0].alone:
            return Wait()
        first = self._attempts[0]
        above = self._above(first.tier)
        if self._racing.both and above is not None:
            return self._attempt(above, left, "speculative") if self._fits(above, left) else Wait()
        if self._hedge_after_s is None:
            return Wait()
        if waited_s < self._hedge_after_s:
            return Wait(self._hedge_after_s - waited_s)
        self._hedge_after_s = None  # its time comes once
        rival = first.tier if self._health[first.tier].endpoints > 1 else above
        if rival is None or not self._fits(rival, left) or not self._racing.may_spend():
            return Wait()
        return self._attempt(rival, left, "hedge")

    # --- what goes out when nothing was good enough -------------------------------------------------------------------

    def _best(self) -> int | None:
        """The number of the most confident answer that is still in hand."""
        kept = [(o.confidence or 0.0, number) for number, o in self._outcomes.items() if o.kept]
        return max(kept)[1] if kept else None

    def _best_or_fail(self, timed_out: bool, full_s: float = 0.0) -> Step:
        best = self._best()
        if best is None or ((timed_out or full_s) and self._policy.slo.on_miss == "fail"):
            return Fail(timed_out, full_s)
        self._degraded = True
        return Serve(best)
