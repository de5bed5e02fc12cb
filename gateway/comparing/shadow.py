"""Run a share of the requests once more under a candidate policy in shadow mode, after the reply.

The candidate's whole cascade runs, off the path of requests: from a bounded queue, with batch priority, only where each
tier of its ladder has room to spare, and under its cap for the day (`rollout.shadow`). Nobody gets the answer. What
happened is recorded like a request, with the arm `shadow` and an id of its own; no metric and no figure of the surface
counts it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from cache.store.base import StoreUnavailable
from gateway.accounting import Finalizer, HedgeBudgets, cost
from gateway.cascade.runner import CascadeRunner
from gateway.chat.completions import Usage
from gateway.comparing.daily_budget import DailyBudget
from gateway.comparing.room import is_quiet
from gateway.errors import ApiError
from gateway.request.context import Client, RequestContext
from gateway.rollout.assignment import CANDIDATE, assign
from gateway.telemetry import names
from gateway.telemetry.ledger import SHADOW, Ledger
from gateway.telemetry.trace import Trace
from policies.rollout import ShadowRules
from routing.features import room_needed

if TYPE_CHECKING:
    from cache.store.base import Store
    from gateway.cascade.router import Router
    from gateway.config.policy_reload import Policies
    from gateway.telemetry.sink import Telemetry
    from gateway.tiers import Tier
    from policies.loader import RollingPolicy
    from policies.model import Policy
    from routing.confidence.agreement import Cosine
    from routing.embedding.embedder import Vector

log = logging.getLogger("tierline.shadow")

_QUEUE: Final = 64
_NO_LIMIT: Final = 1024
"""Tokens that an answer without a limit is taken to have, for the cap."""

Counted = Callable[[str, str, float], None]
"""Called once for each drawn request: surface, outcome and US dollars.

Outcomes: answered, failed, queue_full, busy, no_budget, no_price or store.
"""


class ShadowRunner:
    """Run shadows in one background task. Start and close it on the worker's event loop."""

    def __init__(
        self,
        policies: Policies,
        tiers: Mapping[str, Tier],
        router: Router,
        cosine: Cosine,
        store: Store,
        telemetry: Telemetry,
        counted: Counted,
    ) -> None:
        hedge_budgets = HedgeBudgets(tiers)  # of its own: what shadows spend earns the surface's requests no hedges
        self.policies = policies
        self._tiers = tiers
        self._router = router
        self._cascade = CascadeRunner(tiers, hedge_budgets, cosine)
        self._finalizer = Finalizer(policies, tiers, hedge_budgets)
        self._budget = DailyBudget(store)
        self._telemetry = telemetry
        self._counted = counted
        self._queue: deque[tuple[RequestContext, Vector | None, RollingPolicy]] = deque()
        self._waiting = asyncio.Semaphore(0)
        self._task: asyncio.Task[None] | None = None

    def offer(self, request: RequestContext, vector: Vector | None) -> None:
        """Queue the request if its surface has a candidate in shadow mode, of whose share it is."""
        rolling = self.policies.current.rolling.get(request.policy.surface)
        if rolling is None or rolling.mode != "shadow":
            return
        if assign(rolling, request.tenant, b"", request.body["messages"]).arm != CANDIDATE:
            return
        if len(self._queue) >= _QUEUE:
            self._counted(request.policy.surface, "queue_full", 0.0)
            return
        self._queue.append((request, vector, rolling))
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
            request, vector, rolling = self._queue.popleft()
            try:
                outcome, dollars = await self._shadow(request, vector, rolling.policy)
            except StoreUnavailable:
                outcome, dollars = "store", 0.0
            except Exception:
                log.exception("request %s could not be run as a shadow", request.request_id)
                outcome, dollars = "failed", 0.0
            self._counted(request.policy.surface, outcome, dollars)

    async def _shadow(self, served: RequestContext, vector: Vector | None, policy: Policy) -> tuple[str, float]:
        """Return the outcome, and what it cost. Raises StoreUnavailable."""
        body = {name: value for name, value in served.body.items() if name not in ("stream", "stream_options")}
        most = 0.0
        for name in policy.ladder:
            endpoint = next((one for one in self._tiers[name].endpoints if is_quiet(one)), None)
            if endpoint is None:
                return "busy", 0.0
            if endpoint.config.price is None:
                return "no_price", 0.0
            limit = max(body.get("max_tokens") or 0, body.get("max_completion_tokens") or 0) or _NO_LIMIT
            most = max(most, cost(endpoint.config.price, Usage(room_needed(body), limit)) or 0.0)
        rules = (policy.rollout and policy.rollout.shadow) or ShadowRules()
        reserved = await self._budget.reserve(
            f"shadow:{policy.surface}", most * policy.escalate.max_attempts, rules.max_usd_per_day
        )
        if reserved is None:
            return "no_budget", 0.0
        request = _again(served, body, policy)
        ledger, trace = request.ledger, request.trace
        try:
            await self._cascade.prepare(request, self._router.decide(request, vector)).answer()
            ledger.status = 200
        except ApiError as error:
            ledger.status, ledger.error = error.status, error.code or error.type
        finally:
            await self._budget.settle(reserved, ledger.cost_usd)
        trace.root.end(ledger.error)
        ledger.total_ms = trace.root.seconds * 1000
        self._finalizer.close(trace, ledger)
        self._telemetry.keep_uncounted(trace, ledger)
        return "answered" if ledger.error is None else "failed", ledger.cost_usd


def _again(served: RequestContext, body: Mapping[str, Any], policy: Policy) -> RequestContext:
    """Return the same request under the candidate, whole and with batch priority, as one of its own."""
    trace = Trace(names.REQUEST)
    ledger = Ledger(f"{served.request_id}.{SHADOW}", served.tenant, policy.surface, policy.label)
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
    )
