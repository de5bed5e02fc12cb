"""One request's cascade: one attempt after another or two at once, what is served, and what is left open."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.accounting import HedgeBudgets
from gateway.backends.openai import OpenAIBackend
from gateway.cascade.attempt import JsonAnswer
from gateway.cascade.router import Routed, Router
from gateway.cascade.runner import CascadeRun, CascadeRunner
from gateway.cascade.streaming import LiveStream
from gateway.config.backends import BackendConfig
from gateway.errors import ApiError, InvalidRequest, UpstreamFailed, UpstreamTimeout
from gateway.parts.local.kinds.scripted.replies import ScriptedTransport
from gateway.parts.local.kinds.scripted.script import ScriptedRule
from gateway.request.context import Client, RequestContext
from gateway.telemetry import names
from gateway.tiers import Endpoint, Tier
from routing.features import features_of
from tests.support.context import streamed_request
from tests.support.wait import eventually

GOOD: dict[str, Any] = {"text": "a sure answer", "confidence": 0.9}
POOR: dict[str, Any] = {"text": "a doubtful answer", "confidence": 0.3}
SLOW: dict[str, Any] = {**GOOD, "ttft": "30s"}
DOWN: dict[str, Any] = {"error": {"status": 500}}
WRONG: dict[str, Any] = {"error": {"status": 400, "body": {"error": {"message": "no", "code": "invalid_type"}}}}


class Worker:
    """Two tiers of scripted backends, and a runner over them."""

    def __init__(self, a: dict[str, Any], b: dict[str, Any], *, free: bool = True) -> None:
        self.tiers = {name: Tier(name, [_endpoint(name, reply, free=free)]) for name, reply in (("a", a), ("b", b))}
        self.runner = CascadeRunner(self.tiers, HedgeBudgets(self.tiers))
        self.router = Router(self.tiers, None)  # type: ignore[arg-type]  # no policy here has a classifier

    def run(self, request: RequestContext) -> CascadeRun:
        """The cascade of a request."""
        return self.runner.prepare(request, self.routed(request))

    def routed(self, request: RequestContext) -> Routed:
        """How it is routed."""
        return self.router.decide(request, None)

    @property
    def in_flight(self) -> int:
        """Calls that hold a slot."""
        return sum(endpoint.in_flight for tier in self.tiers.values() for endpoint in tier.endpoints)


def _endpoint(name: str, reply: dict[str, Any], *, free: bool) -> Endpoint:
    raw = {"name": name, "base_url": "http://127.0.0.1:9/v1", "model": name, "price": {"output": 0 if free else 1e6}}
    transport = ScriptedTransport([ScriptedRule.model_validate({"reply": reply})], max_reply=1 << 20)
    endpoint = Endpoint(BackendConfig.model_validate(raw), OpenAIBackend(transport, model=name, key=None))
    endpoint.tier = name
    return endpoint


def asks(*, stream: bool = False, **escalate: Any) -> RequestContext:
    """A request whose policy escalates by confidence."""
    rules = {"when": {"uncalibrated_below": 0.6}, **escalate}
    request = streamed_request(Client(None, 60.0), tiers=["a", "b"], escalate=rules, holdout=0.0)
    body = {**request.body, "stream": stream}
    route = request.policy.route.model_copy(update={"classifier": "none"})
    policy = request.policy.model_copy(update={"route": route})
    return replace(request, body=body, features=features_of(body), policy=policy)


@pytest.mark.parametrize(
    ("a", "path", "tier", "attempts", "may_store"),
    [
        (GOOD, "direct", "a", 1, True),
        (POOR, "escalated", "b", 2, True),
        (DOWN, "fallback", "b", 2, False),
    ],
)
async def test_attempts_follow_one_another_until_one_is_good(
    a: dict[str, Any], path: str, tier: str, attempts: int, may_store: bool
) -> None:
    """In the request's own task: nothing may run beside them."""
    worker, request = Worker(a, GOOD), asks()
    before = asyncio.all_tasks()
    served = await worker.run(request).answer()
    assert isinstance(served.answer, JsonAnswer)
    ledger = request.ledger
    assert (ledger.path, ledger.tier, ledger.attempts, served.may_store) == (path, tier, attempts, may_store)
    assert ledger.served == (attempts,)
    assert (worker.in_flight, asyncio.all_tasks()) == (0, before)


async def test_the_best_is_served_where_none_is_good() -> None:
    """As degraded, and for this client alone."""
    worker, request = Worker({**POOR, "confidence": 0.5}, DOWN), asks()
    served = await worker.run(request).answer()
    assert (request.ledger.path, request.ledger.tier, request.ledger.confidence) == (
        "degraded",
        "a",
        pytest.approx(0.5),
    )
    assert not served.may_store


@pytest.mark.parametrize(
    ("a", "b", "error"), [(DOWN, DOWN, UpstreamFailed), (WRONG, GOOD, ApiError), (SLOW, SLOW, UpstreamTimeout)]
)
async def test_a_cascade_that_fails_leaves_no_call_open(a: dict[str, Any], b: dict[str, Any], error: type) -> None:
    """The last attempt's error is the client's; a request that is wrong is asked of one tier alone."""
    worker, request = Worker(a, b), asks()
    request = replace(request, deadline=request.deadline - 9.8)
    with pytest.raises(error):
        await worker.run(request).answer()
    assert request.ledger.attempts == (1 if a is WRONG else 2)
    assert request.ledger.served == ()
    assert worker.in_flight == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_hedge_runs_beside_a_slow_first_attempt(stream: bool) -> None:
    """The first that is good wins; the other is cancelled before the answer goes out, and is told so."""
    worker, request = Worker(SLOW, GOOD), asks(stream=stream, hedge={"after": "10ms"})
    served = await worker.run(request).answer()
    assert (request.ledger.path, request.ledger.tier) == ("hedged", "b")
    first, second = [hop for hop in request.trace.hops if hop.name == names.ATTEMPT]
    assert (first.attributes[names.OUTCOME], second.attributes[names.HEDGE]) == (names.LOST, True)
    assert first.error is None
    if isinstance(served.answer, LiveStream):
        assert worker.in_flight == 1
        served.answer.close()
    assert worker.in_flight == 0


async def test_of_two_streams_at_once_one_is_lost() -> None:
    """Neither is left to its backend."""
    worker = Worker({**GOOD, "tpot": "5ms"}, {**GOOD, "tpot": "5ms"})
    request = asks(stream=True, speculate={"both": "turns >= 1"})
    served = await worker.run(request).answer()
    assert isinstance(served.answer, LiveStream)
    assert request.ledger.attempts == 2
    outcomes = {hop.attributes[names.OUTCOME] for hop in request.trace.hops if hop.name == names.ATTEMPT}
    assert outcomes == {"accepted", names.LOST}
    assert worker.in_flight == 1
    served.answer.close()
    assert worker.in_flight == 0


@pytest.mark.parametrize("options", [{}, {"hedge": {"after": "10ms"}}], ids=["alone", "hedged"])
async def test_a_client_that_leaves_ends_all_calls(options: dict[str, Any]) -> None:
    """No call outlives its request."""
    worker, request = Worker(SLOW, SLOW), asks(**options)
    task = asyncio.create_task(worker.run(request).answer())
    await eventually(lambda: worker.in_flight == 1 + len(options), 5, "the calls")
    request.client.gone = True
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await eventually(lambda: not worker.in_flight, 5, "the end of the calls")
    hops = [hop for hop in request.trace.hops if hop.name == names.ATTEMPT]
    assert {hop.attributes[names.OUTCOME] for hop in hops} == {"caller_gone"}


VECTOR: Any = object()
"""A vector that is there and that nothing here reads."""


async def test_an_answer_that_began_early_is_served_in_its_block() -> None:
    """The end of the block leaves a stream that is served alone."""
    worker, request = Worker(GOOD, GOOD), asks(stream=True)
    async with worker.runner.early(request, VECTOR, worker.router) as early:
        early.beside_check()
        assert early.run is not None
        served = await early.run.answer()
    assert isinstance(served.answer, LiveStream)
    assert (worker.in_flight, request.ledger.attempts) == (1, 1)
    served.answer.close()
    assert worker.in_flight == 0


async def test_a_lookup_that_fails_ends_the_call_beside_it() -> None:
    """A call that began early does not outlive its request."""
    worker, request = Worker(SLOW, SLOW), asks()
    with pytest.raises(InvalidRequest):
        async with worker.runner.early(request, VECTOR, worker.router) as early:
            early.beside_check()
            await asyncio.sleep(0.01)
            assert worker.in_flight == 1
            raise InvalidRequest("whatever")
    assert worker.in_flight == 0


@pytest.mark.parametrize(
    ("when", "free", "begins"),
    [("free", True, True), ("free", False, False), ("always", False, True), ("never", True, False)],
)
async def test_an_attempt_begins_while_the_cross_encoder_reads(when: str, free: bool, begins: bool) -> None:
    """Where it costs nothing, or always, by policy."""
    worker, request = Worker(SLOW, SLOW, free=free), asks(speculate={"during_check": when})
    async with worker.runner.early(request, VECTOR, worker.router) as early:
        early.beside_check()
        early.beside_check()
        await asyncio.sleep(0.01)
        assert worker.in_flight == (1 if begins else 0)
    assert worker.in_flight == 0
