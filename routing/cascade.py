"""Run one request's cascade as a state machine without I/O: `next()` returns the next step, `observe()` takes a result.

    Attempt    call this tier; judge its answer if `judged` is set; when `final` is set no stronger tier can take over
    Wait       attempts are running: do nothing until one ends or the given number of seconds has passed
    Serve      send the answer of attempt `number`; every other running attempt is abandoned
    Fail       nothing can be served

Rules, in the order in which they are applied to an attempt's outcome:
    accepted          serve it; of attempts that run in parallel, the first accepted one is served; as degraded if it is
                      `short` of what the request requires
    caller_fault      every tier would reject the request: fail at once, unless a tier has already produced a draft
    low_confidence    escalate to the next stronger tier if it is expected to answer within the remaining budget; else
                      `on_miss` decides: serve the best answer so far as degraded, or fail
    unfit             a structural fault, such as a call of a tool that was not offered: as low_confidence
    too_long          the tier's context cannot hold the request: try the next stronger tier, then weaker ones
    refused           the tier cannot do what the request asks for: as too_long
    doubtful          the tier refuses the request in words that nobody knows: as too_long, but only once; the second
                      such outcome is a caller_fault
    retryable         try another endpoint of the tier, then the next stronger tier, then the best answer so far, then
                      weaker tiers, including a tier whose draft was discarded
There are at most `max_attempts` attempts (those of NO_WORK did none and are not counted), and none starts that
could not answer in time. A hedge (the first tier is slower than it should be) or a speculative second attempt runs in
parallel with the first. JSON and streams follow the same rules, except that a stream's rejected draft is discarded
(`AttemptOutcome.kept` is False), so it cannot be served later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from policies.value_type import from_fields, value_type

if TYPE_CHECKING:
    from policies.model import Policy
    from routing.decide import Decision, TierHealth

OutcomeKind = Literal[
    "accepted", "low_confidence", "unfit", "retryable", "too_long", "refused", "doubtful", "caller_fault"
]
Path = Literal["direct", "escalated", "hedged", "fallback", "degraded"]
_STORED_PATHS: Final = ("direct", "escalated", "hedged")
"""Paths of answers that may be stored for other requests."""
Role = Literal["", "hedge", "speculative"]

MIN_ATTEMPT_S: Final = 0.005
"""Seconds left below which no attempt begins."""
REJECTED: Final = ("low_confidence", "unfit")
"""Outcomes of an attempt whose answer was not good enough."""
NO_WORK: Final = ("too_long", "refused", "doubtful")
"""Outcomes of an attempt that its tier turned down at once, though another tier may take the request."""


class Left(NamedTuple):
    """Remaining time budget of the request in seconds: until its deadline, and until its first token is due.

    `ttft_s` is None if nothing limits the first token, and for JSON, which has no first token.
    """

    total_s: float
    ttft_s: float | None = None

    @property
    def first_token_s(self) -> float:
        """Seconds left for a first token, by the tighter of the two limits."""
        return self.total_s if self.ttft_s is None else min(self.total_s, self.ttft_s)


class Attempt(NamedTuple):
    """One backend call to make, within `timeout_s` for the whole and `ttft_timeout_s` for the first token (seconds).

    `prior` is the classifier's probability that this tier answers correctly; None if unknown. `role` is set on an
    attempt that runs in parallel with another one; `alone` means that no other attempt will run in parallel with it;
    `retry` means that it is made because another one failed. `reserved_s` is the expected time to first token of the
    tier that would take over: the draft is judged early enough to leave that much time. `ease` is the factor of the
    policy's thresholds of confidence, below 1 where the request's budget is nearly spent.
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
    ease: float = 1.0


class AttemptOutcome(NamedTuple):
    """How an attempt ended. `kept` is set when its whole answer is stored and could still be served.

    `eased`: it was accepted only because the thresholds had come down. `short`: it is accepted because nothing better
    is left, though it lacks what the request requires.
    """

    kind: OutcomeKind
    detail: str = ""
    confidence: float | None = None
    kept: bool = False
    eased: bool = False
    short: bool = False


@value_type
class Wait:
    """Do nothing until an attempt ends, or `for_s` seconds have passed (None: until one ends)."""

    for_s: float | None = None


class Serve(NamedTuple):
    """Send the answer of attempt `number`."""

    number: int


@value_type
class Fail:
    """Nothing can be served.

    `timed_out` is set when the budget ran out, as opposed to every tier having failed. `full_s` is the expected queue
    wait in seconds when that wait alone exceeds the remaining budget, else 0.
    """

    timed_out: bool = False
    full_s: float = 0.0


Step = Attempt | Wait | Serve | Fail
_new_attempt: Final = from_fields(Attempt)
_serve: Final = from_fields(Serve)


@value_type
class Racing:
    """Which attempts may run in parallel with the first one.

    `both` starts the next tier at once, as speculation. `after_s(tier)` gives the seconds without a first token after
    which a hedge starts, None for never; `may_spend` is called when the hedge is due and can refuse it.
    """

    both: bool = False
    after_s: Callable[[str], float | None] | None = None
    may_spend: Callable[[], bool] = lambda: True


NO_RACING: Final = Racing()


class Cascade:
    """The state machine described in the module's docstring. One instance serves one request."""

    def __init__(
        self,
        decision: Decision,
        policy: Policy,
        health: Mapping[str, TierHealth],
        *,
        stream: bool = False,
        priors: Mapping[str, float] | None = None,
        racing: Racing = NO_RACING,
    ) -> None:
        """Start a cascade. `priors` maps a tier to the classifier's probability that it answers correctly, if known."""
        self._policy = policy
        self._stream = stream
        self._priors = priors or {}
        self._racing = racing
        self._health = health
        self._stronger = list(decision.tiers)
        self._weaker = list(decision.fallbacks)
        self._steering = decision.steering
        self._dropped: list[str] = []
        self._tried: dict[str, int] = {}
        self._attempts: list[Attempt] = []
        self._outcomes: dict[int, AttemptOutcome] = {}
        self._running: set[int] = set()
        self._last: AttemptOutcome | None = None
        self._winner = 0
        self._hedge_after_s: float | None = None
        self._no_work = 0
        self._doubted = False
        self._missing = bool(decision.missing)
        self._stands_in = bool(decision.stand_in)
        self._degraded = self._stands_in and decision.weaker
        self._escalated = False
        self._failed_over = False

    @property
    def path(self) -> Path:
        """The value of the `x-tierline-path` header for the answer that is served."""
        if self._degraded:
            return "degraded"
        if self._winner and self._attempts[self._winner - 1].role and not self._escalated:
            return "hedged"
        if self._failed_over or self._stands_in:
            return "fallback"
        return "escalated" if self._escalated else "direct"

    def may_store(self, number: int, *, clamped: bool) -> bool:
        """Return whether the answer of attempt `number`, which is served, may be stored for other requests.

        Under a clamp (`clamped`), and where a budget steers, the tier that answers may be one that was not judged and
        that other requests would not stop at.
        """
        attempt, outcome = self._attempts[number - 1], self._outcomes[number]
        narrowed = clamped or self._steering is not None
        settled = attempt.judged or not narrowed or attempt.tier == self._policy.ladder[-1]
        return settled and not outcome.eased and outcome.kind == "accepted" and self.path in _STORED_PATHS

    def next(self, left: Left, waited_s: float = 0.0) -> Step:
        """Return the next step; `waited_s` is the number of seconds since the last attempt began."""
        if self._winner:
            return Serve(self._winner)
        if self._running:
            return self._beside(left, waited_s)
        last = self._last
        if last is not None and last.kind == "caller_fault" and self._best() is None and not self._dropped:
            return Fail()
        timed_out = left.total_s < MIN_ATTEMPT_S
        tier = None
        if not timed_out and self._may_attempt():
            tier = self._stronger[0] if self._stronger else self._current()
        full_s = 0.0
        if tier is not None and not self._starts(tier, left):
            full_s = self._full_s(tier, left)
            timed_out, tier = not full_s, self._another(left)
        if tier is None:
            return self._best_or_fail(timed_out, full_s)
        return self._attempt(tier, left)

    def began(self) -> None:
        """Record that a first token has arrived, though it is not committed yet: no hedge starts any more."""
        self._hedge_after_s = None

    def observe(self, outcome: AttemptOutcome, number: int = 0) -> Serve | None:
        """Record how attempt `number` ended; by default the last attempt that `next()` returned.

        Returns the next step if it follows from that alone, else None: then ask `next()`.
        """
        number = number or len(self._attempts)
        self._running.discard(number)
        if outcome.kind == "doubtful":
            outcome = outcome._replace(kind="caller_fault") if self._doubted else outcome
            self._doubted = True
        self._outcomes[number] = self._last = outcome
        attempt = self._attempts[number - 1]
        tier, beside = attempt.tier, bool(attempt.role)
        if outcome.kind == "accepted":
            self._degraded = self._degraded or (outcome.short and not self._winner)
            self._winner = self._winner or number
        elif outcome.kind in REJECTED:
            self._leave(tier)
            if not outcome.kept:
                self._dropped.append(tier)
            self._escalated = self._escalated or not beside
        elif outcome.kind in NO_WORK:
            self._no_work += 1
            if self._above(tier) is None:
                self._failed_over = self._failed_over or not beside
            else:
                self._escalated = self._escalated or not beside
            self._leave(tier)
        elif outcome.kind == "retryable" and self._tried[tier] >= self._health[tier].endpoints:
            self._leave(tier)
            self._failed_over = self._failed_over or not beside
        elif outcome.kind == "caller_fault" and not self._running:
            # A request that this tier rejects (for an unknown field, say) was accepted by the tier with the draft.
            self._stronger.clear()
        return _serve((self._winner,)) if self._winner else None

    def takes_over(self, left: Left) -> bool:
        """Return whether a stronger tier would take over if the running attempt's draft were rejected now."""
        if len(self._running) > 1:
            return True
        return len(self._stronger) > 1 and self._may_attempt() and self._fits(self._stronger[1], left)

    def _may_attempt(self, more: int = 1) -> bool:
        """Return whether so many more attempts may be made; those that did no work are not counted."""
        return len(self._attempts) - self._no_work + more <= self._policy.escalate.max_attempts

    def _current(self) -> str | None:
        """Return the tier to call once none is stronger; None when only a finished answer, or nothing, is left."""
        if self._best() is not None:
            return None
        weaker = self._dropped or self._weaker
        return weaker[0] if weaker else None

    def _leave(self, tier: str) -> None:
        self._tried[tier] = 0
        for queue in (self._stronger, self._dropped, self._weaker):
            if tier in queue:
                queue.remove(tier)

    def _starts(self, tier: str, left: Left) -> bool:
        """Return whether a call of that tier may begin.

        After a low-confidence answer that could still be served, the tier must be expected to answer in time.
        Otherwise it may begin unless it cannot possibly answer in time.
        """
        if self._last is not None and self._last.kind in REJECTED and self._best() is not None:
            return self._fits(tier, left)
        return self._least_s(tier) <= left.total_s

    def _another(self, left: Left) -> str | None:
        """Return a tier that can still answer in time, when the current one cannot; None if an answer is in hand."""
        if self._best() is not None:
            return None
        others = [*self._stronger[1:], *self._weaker]
        return next((tier for tier in others if self._least_s(tier) <= left.total_s), None)

    def _fits(self, tier: str, left: Left) -> bool:
        """Return whether the tier is expected to answer in the time left; True where there is no forecast yet.

        One that was not measured may be as fast as its prior's 5% quantile, so that a call can show whether it is.
        """
        forecast = self._health[tier].forecast
        if forecast is None or not forecast.known:
            return True
        if forecast.prior_ttft if self._stream else forecast.prior_whole:
            return forecast.least_s <= (left.first_token_s if self._stream else left.total_s)
        if self._stream:
            return forecast.ttft_s <= left.first_token_s
        return forecast.whole_s <= left.total_s

    def _full_s(self, tier: str, left: Left) -> float:
        """Return the queue wait in seconds if the tier would be in time without it; 0 if the queue is not the cause."""
        forecast = self._health[tier].forecast
        if forecast is None or not forecast.queue_s:
            return 0.0
        return forecast.queue_s if forecast.least_s - forecast.queue_s <= left.total_s else 0.0

    def _least_s(self, tier: str) -> float:
        forecast = self._health[tier].forecast
        return 0.0 if forecast is None or not forecast.known else forecast.least_s

    def _attempt(self, tier: str, left: Left, role: Role = "") -> Attempt:
        number = len(self._attempts) + 1
        above = self._above(tier)
        can_escalate = above is not None and self._may_attempt(2)
        if not self._stronger and self._dropped:
            self._degraded = True
        # If all stronger tiers are unavailable, the answer is served without escalation, but marked as degraded.
        judged = can_escalate or (self._missing and bool(self._stronger) and not self._degraded)
        reserved = 0.0
        if can_escalate and above is not None and left.ttft_s is not None:
            forecast = self._health[above].forecast
            reserved = forecast.ttft_s if forecast is not None and forecast.known else 0.0
        timeout, ttft_timeout = self._limits(left, reserved, can_escalate=can_escalate)
        alone = not role and not self._may_race(tier, above)
        retry = self._last is not None and self._last.kind == "retryable" and not role
        ease = 1.0 if self._steering is None else self._steering.ease_at(self._policy.tiers, tier)
        limits, prior = (timeout, ttft_timeout), self._priors.get(tier)
        attempt = _new_attempt(
            (number, tier, *limits, judged, not can_escalate, prior, role, alone, retry, reserved, ease)
        )
        self._tried[tier] = self._tried.get(tier, 0) + 1
        self._attempts.append(attempt)
        self._running.add(number)
        return attempt

    def _above(self, tier: str) -> str | None:
        """Return the next stronger tier after this one, or None."""
        if tier not in self._stronger:
            return None
        position = self._stronger.index(tier) + 1
        return self._stronger[position] if position < len(self._stronger) else None

    def _limits(self, left: Left, reserved: float, *, can_escalate: bool) -> tuple[float, float]:
        """Return the seconds for the whole call and for its first token; a part stays for the tier that takes over."""
        if not can_escalate:
            return left.total_s, left.total_s
        # Half of what is left stays with the tier that would take over. A draft that takes longer than nearly all
        # answers of this surface should is stopped: a small model in a loop writes to its limit.
        total = self._policy.slo.total
        timeout = min(left.total_s / 2, total.p95 or total.p99 or left.total_s)
        if left.ttft_s is None or left.ttft_s <= 0:
            return timeout, timeout  # there is no TTFT limit, or it has passed: only the total limit applies
        first = left.ttft_s - reserved if left.ttft_s > reserved else left.ttft_s
        return timeout, min(timeout, max(first, MIN_ATTEMPT_S))

    # --- attempts in parallel -----------------------------------------------------------------------------------------

    def _may_race(self, tier: str, above: str | None) -> bool:
        """Return whether another attempt may run in parallel with the first one, at this tier or the one above."""
        self._hedge_after_s = None
        if self._attempts or (above is None and self._health[tier].endpoints < 2):
            return False
        if self._racing.after_s is not None:
            self._hedge_after_s = self._racing.after_s(tier)
        return self._racing.both or self._hedge_after_s is not None

    def _beside(self, left: Left, waited_s: float) -> Step:
        """Return the step while attempts run: a second attempt when it is due, else Wait."""
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
        self._hedge_after_s = None  # at most one hedge per request
        rival = first.tier if self._health[first.tier].endpoints > 1 else above
        if rival is None or not self._fits(rival, left) or not self._racing.may_spend():
            return Wait()
        return self._attempt(rival, left, "hedge")

    # --- what is served when no answer was accepted -------------------------------------------------------------------

    def _best(self) -> int | None:
        """Return the number of the attempt with the most confident answer that can still be served."""
        if not self._outcomes:
            return None
        kept = [(o.confidence or 0.0, number) for number, o in self._outcomes.items() if o.kept]
        return max(kept)[1] if kept else None

    def _best_or_fail(self, timed_out: bool, full_s: float = 0.0) -> Step:
        best = self._best()
        if best is None or ((timed_out or full_s) and self._policy.slo.on_miss == "fail"):
            return Fail(timed_out, full_s)
        self._degraded = True
        return Serve(best)
