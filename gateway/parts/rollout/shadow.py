"""Run a share of the requests once more under a candidate policy in shadow mode, after the reply.

The candidate's whole cascade runs, off the path of requests: from a bounded queue, with batch priority, only where each
tier of its ladder has room to spare, and under its cap for the day (`rollout.shadow`). Nobody gets the answer. What
happened is recorded like a request, with the arm `shadow` and an id of its own; no metric and no figure of the surface
counts it. Where the candidate's policy or the one in force names a judge (`learn.judge`), it compares the candidate's
answer with the served one, within the same cap; its label names the candidate.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cache.store.base import StoreUnavailable
from gateway.accounting import Finalizer, HedgeBudgets, cost
from gateway.caching.write_behind import Take
from gateway.cascade.attempt import JsonAnswer
from gateway.cascade.runner import CascadeRunner
from gateway.chat.usage import Usage
from gateway.errors import ApiError
from gateway.parts.measures.daily_budget import DailyBudget, is_quiet
from gateway.parts.measures.label import LabelledReply, PairLabel
from gateway.parts.measures.request_figures import RequestFigures
from gateway.parts.rollout.comparer import judge_pair, most_of_judging, shown_answer
from gateway.parts.rollout.policy import CANDIDATE, Learn, RolloutSections, ShadowRules, assign
from gateway.request.context import Client, RequestContext
from gateway.telemetry import names
from gateway.telemetry.ledger import PLAYGROUND, SHADOW, Ledger
from gateway.telemetry.trace import Trace
from routing.features import room_needed

if TYPE_CHECKING:
    from cache.store.base import Store
    from gateway.cascade.protocols import AnswerVerifier
    from gateway.cascade.router import Router
    from gateway.config.policy_reload import Policies
    from gateway.parts.rollout.comparer import Comparer, PairVerdict
    from gateway.telemetry.sink import Telemetry
    from gateway.tiers import Endpoint, Tier
    from policies.loader import RollingPolicy
    from policies.model import Policy
    from routing.confidence.judge import Evidence
    from routing.embedder import Vector

log = logging.getLogger("tierline.shadow")

_QUEUE: Final = 64
_NO_LIMIT: Final = 1024
"""Tokens that an answer without a limit is taken to have, for the cap."""

Counted = Callable[[str, str, float], None]
"""Called once for each drawn request: surface, outcome and US dollars.

Outcomes: judged, answered (and not compared by a judge), failed, queue_full, busy, no_budget, no_price or store.
"""
Whole = Callable[[], Mapping[str, Any] | None]
"""Return the served answer, once it has ended; None if it is not whole."""
_LIMIT_S: Final = 120.0


@dataclass(slots=True, eq=False)
class _Drawn:
    """A served request that is to be run again. Its answer is only kept where a judge will read it."""

    request: RequestContext
    vector: Vector | None
    policy: Policy
    learn: Learn | None
    whole: Whole | None


class ShadowRunner:
    """Run shadows in one background task. Start and close it on the worker's event loop."""

    def __init__(
        self,
        policies: Policies,
        tiers: Mapping[str, Tier],
        router: Router,
        verifier: AnswerVerifier | None,
        store: Store,
        telemetry: Telemetry,
        counted: Counted,
        *,
        keep: int,
    ) -> None:
        """Store about the latest `keep` labels."""
        hedge_budgets = HedgeBudgets(tiers)  # of its own: what shadows spend earns the surface's requests no hedges
        self.policies = policies
        self._tiers = tiers
        self._router = router
        self._cascade = CascadeRunner(tiers, hedge_budgets, verifier)
        self._finalizer = Finalizer(hedge_budgets, complete=RequestFigures(policies, tiers).complete)
        self._budget = DailyBudget(store)
        self._telemetry = telemetry
        self._counted = counted
        self._endpoints = {endpoint.config.name: endpoint for tier in tiers.values() for endpoint in tier.endpoints}
        self._store = store
        self._keep = keep
        self._queue: deque[_Drawn] = deque()
        self._waiting = asyncio.Semaphore(0)
        self._task: asyncio.Task[None] | None = None

    def drawn(self, request: RequestContext) -> RollingPolicy | None:
        """Return the candidate that the request is to be run again under, of whose share it is; None for none."""
        rolling = self.policies.current.rolling.get(request.policy.surface)
        if rolling is None or rolling.mode != "shadow":
            return None
        arm = assign(rolling, request.tenant, b"", request.ledger.session).arm
        return rolling if arm == CANDIDATE else None

    @staticmethod
    def judge_of(request: RequestContext, rolling: RollingPolicy) -> Learn | None:
        """Return whose judge compares the answers: the candidate's, or else that of the policy that served."""
        return rolling.policy.of(RolloutSections).learn or request.policy.of(RolloutSections).learn

    def offer(
        self,
        rolling: RollingPolicy,
        request: RequestContext,
        vector: Vector | None,
        whole: Whole,
        _evidence: Evidence | None,
    ) -> None:
        """Run a request that was drawn once it is over; `whole` is asked only where there is a judge."""
        learn = self.judge_of(request, rolling)
        drawn = _Drawn(request, vector, rolling.policy, learn, None if learn is None else whole)
        request.trace.then(lambda _ledger: self._take(drawn))

    def _take(self, drawn: _Drawn) -> None:
        if len(self._queue) >= _QUEUE:
            self._counted(drawn.policy.surface, "queue_full", 0.0)
            return
        self._queue.append(drawn)
        self._waiting.release()

    def start(self) -> None:
        """Start the task on the running event loop."""
        self._task = asyncio.create_task(self._run(), name="tierline.shadow")

    async def aclose(self) -> None:
        """Stop at once; what waits is dropped."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._waiting.acquire()
            drawn = self._queue.popleft()
            try:
                outcome, dollars = await self._shadow(drawn)
            except StoreUnavailable:
                outcome, dollars = "store", 0.0
            except Exception:
                log.exception("request %s could not be run as a shadow", drawn.request.request_id)
                outcome, dollars = "failed", 0.0
            self._counted(drawn.policy.surface, outcome, dollars)

    async def _shadow(self, drawn: _Drawn) -> tuple[str, float]:
        """Return the outcome, and what it cost. Raises StoreUnavailable if nothing was run."""
        served, policy = drawn.request, drawn.policy
        body = {name: value for name, value in served.body.items() if name not in ("stream", "stream_options")}
        limit = max(body.get("max_tokens") or 0, body.get("max_completion_tokens") or 0) or _NO_LIMIT
        most = 0.0
        for name in policy.ladder:
            endpoint = next((endpoint for endpoint in self._tiers[name].endpoints if is_quiet(endpoint)), None)
            if endpoint is None:
                return "busy", 0.0
            if endpoint.config.price is None:
                return "no_price", 0.0
            most = max(most, cost(endpoint.config.price, Usage(room_needed(body), limit)) or 0.0)
        most *= policy.escalate.max_attempts
        judge, text = self._judge(drawn), self._served_text(drawn)
        if judge is not None and text is not None:
            most += most_of_judging(judge, served.body["messages"], text, limit)
        rollout = policy.of(RolloutSections).rollout
        rules = ShadowRules() if rollout is None else rollout.shadow
        tenant = self._budget.among_others(served.tenant, self._tiers[policy.ladder[0]].endpoints[0])
        reserved = await self._budget.reserve(f"shadow:{policy.surface}", most, rules.max_usd_per_day, tenant)
        if reserved is None:
            return "no_budget", 0.0
        request = _again(served, body, policy)
        ledger, trace = request.ledger, request.trace
        outcome, judge_usd = "failed", 0.0
        try:
            answer = (await self._cascade.prepare(request, self._router.decide(request, drawn.vector)).answer()).answer
            ledger.status, outcome = 200, "answered"
            if judge is not None and text is not None and isinstance(answer, JsonAnswer) and is_quiet(judge):
                judged = await judge_pair(
                    judge, policy.surface, served.body["messages"], (text, shown_answer(answer.value)), _LIMIT_S
                )
                judge_usd = judged.cost_usd
                if judged.verdict is not None:
                    label = self._label(drawn, request, answer.value, judged.verdict, judge, judge_usd)
                    await self._store.apply([label.append(self._keep)])
                    outcome = "judged"
        except ApiError as error:
            ledger.status, ledger.error = error.status, error.code or error.type
        except StoreUnavailable:  # the label is lost, but not what was spent
            outcome = "store"
        finally:
            trace.root.end(ledger.error)
            ledger.total_ms = trace.root.seconds * 1000
            self._finalizer.close(trace, ledger)
            self._telemetry.record(trace, ledger, counted=False)
            with contextlib.suppress(StoreUnavailable):  # the day's sum is left too high, never too low
                await self._budget.settle(reserved, ledger.cost_usd + judge_usd)
        return outcome, ledger.cost_usd + judge_usd

    def _judge(self, drawn: _Drawn) -> Endpoint | None:
        """Return the judge's backend, if there is one whose price is known and whose model answers nothing here."""
        judge = None if drawn.learn is None else self._endpoints.get(drawn.learn.judge)
        if judge is None or judge.config.price is None:
            return None
        answering = {endpoint.config.model for name in drawn.policy.ladder for endpoint in self._tiers[name].endpoints}
        return None if judge.config.model in answering else judge

    @staticmethod
    def _served_text(drawn: _Drawn) -> str | None:
        """Return what a judge reads of the served answer; None where there is none that it could read."""
        value = None if drawn.whole is None or drawn.request.features.has_images else drawn.whole()
        return None if value is None or drawn.request.ledger.status != 200 else shown_answer(value)

    def _label(
        self,
        drawn: _Drawn,
        shadow: RequestContext,
        value: Mapping[str, Any],
        verdict: PairVerdict,
        judge: Endpoint,
        judge_usd: float,
    ) -> PairLabel:
        """Return the label: of the served answer as the small one, and of the candidate's as the strong one."""
        served = drawn.request
        keep_text = drawn.learn is not None and drawn.learn.keep_text and served.options.cache.write
        answers = [
            LabelledReply(
                ledger.tier,
                ledger.backend,
                ledger.model,
                ledger is served.ledger,
                adequate,
                ledger.cost_usd,
                ledger.answer_tokens_out,
                ledger.confidence,
                None,
                text if keep_text else None,
            )
            for ledger, adequate, text in (
                (served.ledger, verdict.adequate[0], self._served_text(drawn)),
                (shadow.ledger, verdict.adequate[1], shown_answer(value)),
            )
        ]
        return PairLabel(
            served.request_id,
            served.tenant,
            drawn.policy.surface,
            served.policy.label,
            time.time(),
            PairLabel.conversation_of(served.ledger.session),
            verdict.better,
            verdict.agreed,
            judge.config.model,
            judge_usd,
            answers[0],
            answers[1],
            classifier="",
            embedder="",
            in_domain=False,
            kind="",
            quantile=None,
            p_right=(),
            tokens_in=served.features.approx_tokens,
            has_tools=served.features.has_tools,
            vector="",
            counts=(),
            messages=served.body["messages"] if keep_text else None,
            candidate=drawn.policy.label,
        )


def _again(served: RequestContext, body: Mapping[str, Any], policy: Policy) -> RequestContext:
    """Return the same request under the candidate, whole and with batch priority, as one of its own."""
    trace = Trace(names.REQUEST)
    trace.policy, trace.deadline_s = policy, policy.slo.deadline
    ledger = Ledger(f"{served.request_id}.{SHADOW}", served.tenant, surface=policy.surface, policy=policy.label)
    ledger.requested_model, ledger.arm = served.ledger.requested_model, SHADOW
    return RequestContext(
        request_id=ledger.request_id,
        tenant=served.tenant,
        policy=policy.model_copy(update={"load": policy.load.model_copy(update={"priority": "batch"})}),
        body=body,
        features=served.features._replace(stream=False),
        options=served.options,
        clamp=served.clamp,
        own_limit=served.own_limit,
        deadline=time.monotonic() + policy.slo.deadline,
        trace=trace,
        ledger=ledger,
        client=Client(None, 0.0),
        large=served.large,
        native=served.native,
    )


class AnswerDraws:
    """The comparer and the shadows of one worker: see `gateway.caching.write_behind.Observer`."""

    keys: Final = ("learn",)

    def __init__(self, comparer: Comparer, shadows: ShadowRunner) -> None:
        self.comparer = comparer
        self._shadows = shadows

    def wants(self, request: RequestContext) -> Sequence[Take]:
        """Return what chance draws this answer for."""
        if request.ledger.arm == PLAYGROUND:
            return ()
        learn = request.policy.of(RolloutSections).learn
        takes: list[Take] = []
        shadow = self._shadows.drawn(request)
        if learn is not None and self.comparer.draws(learn):
            takes.append(Take(whole=True, served=self.comparer.draw))
        if shadow is not None:
            judged = self._shadows.judge_of(request, shadow) is not None
            takes.append(Take(judged, partial(self._shadows.offer, shadow)))
        return takes

    def start(self) -> None:
        """Start the tasks of both."""
        self.comparer.start()
        self._shadows.start()

    async def aclose(self) -> None:
        """Stop at once; what waits is dropped."""
        await self._shadows.aclose()
        await self.comparer.aclose()
