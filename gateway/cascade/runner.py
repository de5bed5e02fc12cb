"""Step 9: run one request's cascade, whose attempts run one after another or in parallel.

An attempt runs in the request's own task unless another may run beside it; only then do attempts get tasks (15 us
each). The first answer that is good enough wins; whatever else is under way is cancelled before the winner goes out, so
that no call outlives its request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from gateway.accounting import HedgeBudgets, settle
from gateway.backends.base import BackendError, ContextExceeded, RetriesSpent
from gateway.cascade.attempt import AttemptResult, JsonAnswer, Standing, try_attempt
from gateway.cascade.client_errors import exhausted, no_tier
from gateway.cascade.streaming import LiveStream
from gateway.errors import ApiError
from policies.value_type import value_type
from routing.cascade import Attempt, Cascade, Fail, Racing, Serve, Wait
from routing.decide import NoTierError

if TYPE_CHECKING:
    from cache.planning.plan import CachePlan
    from gateway.cascade.router import Routed, Router
    from gateway.request.context import RequestContext
    from gateway.tiers import Endpoint, Tier
    from routing.confidence.agreement import Cosine
    from routing.embedding.embedder import Vector

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_STORED_PATHS: Final = frozenset({"direct", "escalated", "hedged"})
"""Values of `x-tierline-path` whose answers may be stored for other requests."""
_LOSERS_S = 0.05
"""Longest wait in seconds for cancelled attempts to be charged; normally it takes one turn of the event loop."""


@value_type
class Served:
    """The answer to send, and whether it may be stored for other requests."""

    answer: JsonAnswer | LiveStream
    may_store: bool


class CascadeRunner:
    """Create the cascade of each request of one worker: step 9."""

    def __init__(self, tiers: Mapping[str, Tier], hedge_budgets: HedgeBudgets, cosine: Cosine) -> None:
        """Use these tiers. `cosine` compares two texts by meaning, for policies that require agreeing samples."""
        self.tiers = tiers
        self.hedge_budgets = hedge_budgets
        self.cosine = cosine

    def prepare(self, request: RequestContext, routed: Routed) -> CascadeRun:
        """Return the cascade of a routed request; no attempt is started yet."""
        request.client.watch()
        return CascadeRun(request, self, routed)

    def speculate(
        self, request: RequestContext, plan: CachePlan, vector: Vector | None, router: Router
    ) -> CascadeRun | None:
        """Return the cascade with its first attempt running, if the policy wants that beside the semantic lookup.

        The first attempt starts only if its tier costs nothing.
        """
        wanted = request.policy.escalate.speculate.during_lookup and not request.options.cache.only_if_cached
        if not wanted or vector is None or plan.why_not_semantic():
            return None
        return self._begun(request, vector, router, paid=False)

    def speculate_during_check(
        self, request: RequestContext, vector: Vector | None, router: Router
    ) -> CascadeRun | None:
        """Return the cascade with its first attempt running, if the policy wants that while the cross-encoder reads.

        Unless the policy says `always`, the first attempt starts only if its tier costs nothing. None, too, where no
        tier can answer: a hit still may.
        """
        when, ladder = request.policy.escalate.speculate.during_check, request.policy.ladder
        if when == "never" or request.options.cache.only_if_cached:
            return None
        if when == "free" and not any(self.tiers[name].free for name in ladder):
            return None
        try:
            return self._begun(request, vector, router, paid=when == "always")
        except ApiError:
            return None

    def _begun(self, request: RequestContext, vector: Vector | None, router: Router, *, paid: bool) -> CascadeRun:
        """Return the cascade of a request; its first attempt runs if its tier costs nothing, or may be `paid`."""
        run = self.prepare(request, router.decide(request, vector))
        if paid or self.tiers[run.first_tier].free:
            run.begin()
        return run


class CascadeRun:
    """Run the cascade of one request: call `answer()` once, or `aclose()` where that is not reached."""

    def __init__(self, request: RequestContext, runner: CascadeRunner, routed: Routed) -> None:
        decision = routed.decision
        self.first_tier = decision.tiers[0]
        self._missing = decision.missing
        self._request = request
        self._runner = runner
        racing = _racing(request, runner, both=routed.asks_both)
        self._cascade = Cascade(
            decision, request.policy, routed.health, stream=request.features.stream, priors=routed.priors, racing=racing
        )
        self._tried: dict[int, AttemptResult] = {}
        self._running: dict[asyncio.Task[AttemptResult], Standing] = {}
        self._began = 0.0
        self._served: AttemptResult | None = None

    def begin(self) -> None:
        """Start the first attempt now, beside the semantic lookup."""
        step = self._cascade.next(self._request.left())
        if isinstance(step, Attempt):
            self._start(step)

    async def answer(self) -> Served:
        """Return the answer to send. Raises ApiError if there is none; then no call is left open."""
        try:
            return _served(self._request, await self._race())
        finally:
            try:
                await self.aclose()
            finally:
                settle(self._request.ledger, self._served.attempt.number if self._served is not None else None)

    async def _race(self) -> AttemptResult:
        """Make attempts until one can be served. Raises ApiError if none can."""
        cascade, request = self._cascade, self._request
        while True:
            if self._running and self._has_begun():
                cascade.began()
            step = cascade.next(request.left(), time.monotonic() - self._began)
            if isinstance(step, Attempt) and step.alone:
                self._ended(await self._try(step, Standing(self.endpoints, self.takes_over)))
            elif isinstance(step, Attempt):
                self._start(step)
            elif isinstance(step, Wait):
                await self._wait(step.for_s)
            elif isinstance(step, Serve):
                request.ledger.path = cascade.path
                self._served = self._tried[step.number]
                return self._served
            else:
                raise self._failure(step)

    def takes_over(self) -> bool:
        """Return whether a stronger tier would take over if a draft were rejected now."""
        return self._cascade.takes_over(self._request.left())

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints at which attempts are under way."""
        return [one.slot.endpoint for one in self._running.values() if one.slot is not None]

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
            for one in self._tried.values():
                if one is not self._served and isinstance(one.answer, LiveStream):
                    one.answer.lose()
            self._running.clear()

    async def _try(self, attempt: Attempt, standing: Standing) -> AttemptResult:
        before = tuple(self._tried.values())
        runner = self._runner
        return await try_attempt(self._request, runner.tiers, attempt, standing, before, runner.cosine)

    def _start(self, attempt: Attempt) -> None:
        standing = Standing(self.endpoints, self.takes_over)
        task = asyncio.create_task(self._try(attempt, standing), name="tierline.attempt")
        self._running[task] = standing
        if not attempt.role:
            self._began = time.monotonic()

    def _has_begun(self) -> bool:
        """Return whether a first token has come, even if it is still held: its backend is no longer slow."""
        return any(one.slot is not None and one.slot.has_begun for one in self._running.values())

    async def _wait(self, for_s: float | None) -> None:
        done, _ = await asyncio.wait(self._running, timeout=for_s, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            del self._running[task]
            self._ended(task.result())

    def _ended(self, tried: AttemptResult) -> None:
        self._tried[tried.attempt.number] = tried
        self._cascade.observe(tried.outcome, tried.attempt.number)

    def _failure(self, failed: Fail) -> ApiError:
        """Return the error for the client.

        A request that is too long for the available tiers is not the client's fault while a tier that may hold it is
        down.
        """
        errors, tiers = self._errors(), [self._runner.tiers[name] for name in self._missing]
        if tiers and errors and all(isinstance(error, ContextExceeded) for error in errors):
            reason = f"the request is too long for the tiers that can answer now; {tiers[0].name} cannot"
            return no_tier(NoTierError(reason, capable=True), tiers, self._request.body, self._request.native)
        return exhausted(errors, timed_out=failed.timed_out, full_s=failed.full_s)

    def _errors(self) -> list[BackendError]:
        """Return the attempts' errors in order, without those that only mean that no retry was allowed."""
        errors = [one.error for one in self._tried.values() if one.error is not None]
        return [error for error in errors if not isinstance(error, RetriesSpent)] or errors


def _served(request: RequestContext, result: AttemptResult) -> Served:
    if result.answer is None or result.endpoint is None:
        raise AssertionError("the cascade serves only an attempt that has an answer")
    ledger = request.ledger
    ledger.tier = result.attempt.tier
    ledger.backend = result.endpoint.config.name
    ledger.model = result.endpoint.config.model
    ledger.confidence = result.outcome.confidence
    ledger.dropped = result.dropped
    # Under a clamp the tier that answers may be one that was not judged and that other requests would not stop at.
    settled = result.attempt.judged or request.clamp is None or result.attempt.tier == request.policy.ladder[-1]
    accepted = result.outcome.kind == "accepted"
    return Served(result.answer, may_store=accepted and settled and ledger.path in _STORED_PATHS)


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
