"""Step 9: run one request's cascade, whose attempts run one after another or in parallel.

An attempt runs in the request's own task unless another may run beside it; only then do attempts get tasks (15 us
each). The first answer that is good enough wins; whatever else is under way is cancelled before the winner goes out, so
that no call outlives its request.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from gateway.accounting import HedgeBudgets, settle
from gateway.backends.base import BadStatus, ContextExceeded, RetriesSpent
from gateway.cascade.attempt import AttemptResult, AttemptRun, JsonAnswer
from gateway.cascade.client_errors import exhausted, no_tier
from gateway.cascade.streaming import LiveStream
from gateway.errors import ApiError
from policies.value_type import from_fields
from routing.cascade import NO_RACING, Attempt, Cascade, Fail, Racing, Serve, Step, Wait
from routing.decide import NoTierError, needs
from routing.features import limit_of

if TYPE_CHECKING:
    from gateway.backends.server_forms import RefusalVerdict
    from gateway.cascade.protocols import AnswerVerifier, StreamSuccessor
    from gateway.cascade.router import Routed, Router
    from gateway.request.context import CallerLimits, RequestContext
    from gateway.tiers import Tier
    from routing.embedder import Vector

_USUAL_ANSWER = 400
"""Tokens of an answer where nothing is known of the backend's."""
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_LOSERS_S = 0.05
"""Longest wait in seconds for cancelled attempts to be charged; normally it takes one turn of the event loop."""
_OF_SIZE = (413, 429)
"""Statuses of refusals that are about a request's length, whatever its kind."""


class Served(NamedTuple):
    """The answer that the cascade serves, and whether it may be stored for other requests."""

    answer: JsonAnswer | LiveStream
    may_store: bool


_served: Final = from_fields(Served)


class CascadeRunner:
    """Create the cascade of each request of one worker: step 9."""

    def __init__(
        self,
        tiers: Mapping[str, Tier],
        hedge_budgets: HedgeBudgets,
        verifier: AnswerVerifier | None = None,
        successor: StreamSuccessor | None = None,
        limits: CallerLimits | None = None,
    ) -> None:
        """Use these tiers. `verifier` says how sure drafts are that have no log-probabilities, `successor` continues
        streams that break, `limits` are those of the senders."""
        self.tiers = tiers
        self.hedge_budgets = hedge_budgets
        self.verifier = verifier
        self.successor = successor
        self.limits = limits

    async def route(self, request: RequestContext, vector: Vector | None, router: Router) -> CascadeRun:
        """Route the request and return its cascade, not started.

        Waits first while a nearly spent budget lets its owner's other requests go first.
        """
        if request.hold is not None:
            await request.hold.before_routing(request)
        return self.prepare(request, router.decide(request, vector))

    def prepare(self, request: RequestContext, routed: Routed) -> CascadeRun:
        """Return the cascade of a routed request; no attempt is started yet."""
        request.client.watch()
        return CascadeRun(request, self, routed)

    def owed(self, request: RequestContext, tier: str) -> int:
        """Return the completion tokens that a call of this tier is charged if its answer is never known."""
        called = self.tiers[tier]
        if called.free:
            return 0
        if self.limits is not None:
            return self.limits.owed(request, tier)
        usual = round(max(model.mean_out for model in called.endpoints)) or _USUAL_ANSWER
        return min(usual, limit_of(request.body) or usual)

    def early(self, request: RequestContext, vector: Vector | None, router: Router) -> EarlyRun:
        """Return the owner of an attempt that may begin before it is known whether there is a hit."""
        return EarlyRun(self, request, vector, router)


@dataclass(slots=True)
class EarlyRun:
    """Own the cascade of a request while its stored answer is looked for: `async with` closes what has begun.

    `run` is the cascade that has begun, if any. Its `answer` may be asked for within the block.
    """

    runner: CascadeRunner
    request: RequestContext
    vector: Vector | None
    router: Router
    run: CascadeRun | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel an attempt whose answer is not served, and charge its cost."""
        if self.run is not None:
            await self.run.aclose()

    def beside_check(self) -> None:
        """Begin the first attempt while the cross-encoder reads, if the policy wants that and none has begun.

        Unless the policy says `always`, only a tier that costs nothing is called. No tier that can answer is no error:
        there may yet be a hit.
        """
        request, tiers = self.request, self.runner.tiers
        when = request.policy.escalate.speculate.during_check
        if self.run is not None or when == "never" or request.options.cache.only_if_cached:
            return
        if when == "always" or any(tiers[name].free for name in request.policy.ladder):
            with contextlib.suppress(ApiError):
                self._begin(paid=when == "always")

    def _begin(self, *, paid: bool) -> None:
        """Route the request; start its first attempt if its tier costs nothing, or may be `paid`, and its money is
        there without waiting. A request that has a budget and does not start is routed anew, once that is known."""
        run, hold = self.runner.prepare(self.request, self.router.decide(self.request, self.vector)), self.request.hold
        begins = paid or self.runner.tiers[run.first_tier].free
        if begins and (hold is None or hold.reserve_now(self.request, run.tiers)):
            run.begin()
        elif hold is not None and hold.has_budget:
            return
        self.run = run


class CascadeRun:
    """Run the cascade of one request: call `answer()` once, or `aclose()` where that is not reached."""

    def __init__(self, request: RequestContext, runner: CascadeRunner, routed: Routed) -> None:
        decision = routed.decision
        self.tiers = decision.tiers
        self.first_tier = decision.tiers[0]
        self._missing = decision.missing
        self._request = request
        self._runner = runner
        hedges = request.policy.escalate.hedge is not None and decision.steering is None
        self._races = hedges or routed.asks_both
        racing = _racing(request, runner, both=routed.asks_both) if self._races else NO_RACING
        self._cascade = Cascade(
            decision, request.policy, routed.health, stream=request.features.stream, priors=routed.priors, racing=racing
        )
        self._tried: dict[int, AttemptResult] = {}
        self._running: dict[asyncio.Task[AttemptResult], AttemptRun] = {}
        self._began = 0.0
        self._served: AttemptResult | None = None

    def begin(self) -> None:
        """Start the first attempt now, while the cross-encoder reads."""
        step = self._next()
        if isinstance(step, Attempt):
            self._start(step)

    async def answer(self) -> Served:
        """Return the answer to send. Raises ApiError if there is none; then no call is left open."""
        try:
            if (hold := self._request.hold) is not None:
                await hold.before_calls(self._request, self.tiers, races=self._races)
            elif self._races and self._runner.limits is not None:  # what its surface's calls owe that lose
                self._request.trace.then(self._runner.limits.learner(self._request, self.tiers))
            step = self._next()
            while not isinstance(step, Serve):
                if isinstance(step, Attempt) and step.alone:
                    step = self._ended(await self._attempt(step).run()) or self._next()
                    continue
                if isinstance(step, Attempt):
                    self._start(step)
                elif isinstance(step, Wait):
                    await self._wait(step.for_s)
                else:
                    raise self._failure(step)
                step = self._next()
            return self._serve(step.number)
        finally:
            try:
                await self.aclose()
            finally:
                settle(self._request.ledger, self._served.attempt.number if self._served is not None else None)

    def _next(self) -> Step:
        cascade, running = self._cascade, self._running
        # A first token that has come shows that its backend is no longer slow, even while it is held.
        if running and any(run.slot is not None and run.slot.has_begun for run in running.values()):
            cascade.began()
        return cascade.next(self._request.left(), time.monotonic() - self._began)

    async def aclose(self) -> None:
        """Cancel running attempts, and close and charge the streams that are not served."""
        losers = tuple(self._running)
        for task in losers:
            self._running[task].lost = not self._request.client.gone
            task.cancel()
        try:
            if losers:
                await asyncio.wait(losers, timeout=_LOSERS_S)
        except BaseException:
            self._served = None  # the client has left meanwhile, so close the answer
            raise
        finally:
            for task in losers:
                if task.done() and not task.cancelled() and task.exception() is None:
                    self._tried[task.result().attempt.number] = task.result()
            for result in self._tried.values():
                if result is not self._served and isinstance(result.answer, LiveStream):
                    result.answer.lose()
            self._running.clear()

    def _attempt(self, attempt: Attempt) -> AttemptRun:
        runner = self._runner
        return AttemptRun(
            self._request,
            runner.tiers,
            attempt,
            self._cascade.takes_over,
            self._tried.values(),
            self._running.values(),
            runner.verifier,
            runner.owed,
            runner.successor,
        )

    def _start(self, attempt: Attempt) -> None:
        run = self._attempt(attempt)
        self._running[asyncio.create_task(run.run(), name="tierline.attempt")] = run
        if not attempt.role:
            self._began = time.monotonic()

    async def _wait(self, for_s: float | None) -> None:
        done, _ = await asyncio.wait(self._running, timeout=for_s, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            del self._running[task]
            self._ended(task.result())

    def _ended(self, result: AttemptResult) -> Serve | None:
        self._tried[result.attempt.number] = result
        return self._cascade.observe(result.outcome, result.attempt.number)

    def _serve(self, number: int) -> Served:
        self._served = result = self._tried[number]
        if result.answer is None or result.endpoint is None:
            raise AssertionError("the cascade serves only an attempt that has an answer")
        request, config = self._request, result.endpoint.config
        if len(self._tried) > 1:
            self._decide_doubts("cannot")
            self._note_refused()
        ledger = request.ledger
        ledger.path = self._cascade.path
        ledger.tier, ledger.backend, ledger.model = result.attempt.tier, config.name, config.model
        ledger.confidence = result.outcome.confidence
        ledger.dropped = result.dropped
        return _served((result.answer, self._cascade.may_store(number, clamped=request.clamp is not None)))

    def _failure(self, failed: Fail) -> ApiError:
        """Return the error for the client.

        A request that is too long for the available tiers is not the client's fault while a tier that may hold it is
        down. An error that only means that no retry was allowed counts where there is no other.
        """
        errors = [result.error for result in self._tried.values() if result.error is not None]
        refusing = {
            result.attempt.tier
            for result in self._tried.values()
            if isinstance(result.error, BadStatus) and result.error.about_the_request
        }
        if len(refusing) > 1 and len(refusing) == len({result.attempt.tier for result in self._tried.values()}):
            self._decide_doubts("callers")
        errors = [error for error in errors if not isinstance(error, RetriesSpent)] or errors
        tiers = [self._runner.tiers[name] for name in self._missing]
        if tiers and errors and all(isinstance(error, ContextExceeded) for error in errors):
            reason = f"the request is too long for the tiers that can answer now; {tiers[0].name} cannot"
            return no_tier(NoTierError(reason, capable=True), tiers, self._request.body, self._request.native)
        return exhausted(errors, timed_out=failed.timed_out, full_s=failed.full_s)

    def _note_refused(self) -> None:
        """Remember of the tiers that refused the request, which another has answered, that they refuse its kind."""
        request = self._request
        for result in self._tried.values():
            error = result.error if result.outcome.kind in ("refused", "doubtful") else None
            if isinstance(error, BadStatus) and error.status not in _OF_SIZE:
                refused, features = self._runner.tiers[result.attempt.tier].refused, request.features
                if refused is not None:
                    refused.note(request.tenant, request.body, needs(features), features.tools)

    def _decide_doubts(self, verdict: RefusalVerdict) -> None:
        """Remember what the refusals meant that no rule knows, now that another tier has answered or refused, too."""
        for result in self._tried.values():
            if result.doubt is not None:
                result.doubt.decide(verdict)


def _racing(request: RequestContext, runner: CascadeRunner, *, both: bool) -> Racing:
    """Return the conditions for attempts parallel to the first. They must not refer to the run: a reference cycle."""
    hedge = request.policy.escalate.hedge
    if hedge is None:
        return Racing(both)
    after, features = hedge.after, request.features

    def after_s(tier: str) -> float | None:
        if not isinstance(after, str):
            return after
        q = _QUANTILES[after]
        return runner.tiers[tier].quantile_s(q, features.approx_tokens, whole=not features.stream)

    return Racing(both, after_s, lambda: runner.hedge_budgets.may_hedge(request.policy))
