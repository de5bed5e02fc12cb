"""One attempt, against a scripted upstream on a real socket."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from gateway.backends.openai import OpenAIBackend
from gateway.cascade.attempt import AttemptResult, AttemptRun
from gateway.cascade.streaming import LiveStream
from gateway.config.backends import BackendConfig
from gateway.parts.lab.walk import Draft, Surroundings, walk
from gateway.parts.local.kinds.scripted.replies import ScriptedTransport
from gateway.parts.local.kinds.scripted.script import ScriptedRule
from gateway.request.context import Client, RequestContext
from gateway.telemetry import names
from gateway.telemetry.trace import Trace
from gateway.tiers import Endpoint, Tier
from routing.cascade import Attempt, Cascade, Left
from routing.decide import DecisionInput, TierHealth, decide
from routing.features import Features
from routing.load.latency import Forecast
from tests.gateway.cascade.test_streaming import Run
from tests.support.app import in_process
from tests.support.context import streamed_request
from tests.support.gateway import CHAT
from tests.support.upstream import Reply, Upstream

JSON: Final = {
    "model": "chat",
    "messages": [{"role": "user", "content": "hi"}],
    "response_format": {"type": "json_object"},
}


def judged(run: Run) -> AttemptRun:
    """An attempt that nothing runs beside, and that a stronger tier would take over from."""
    attempt = Attempt(1, "local", 5.0, 5.0, judged=True, final=False)
    return AttemptRun(run.request, {"local": Tier("local", [run.endpoint])}, attempt, lambda _: True)


async def test_an_answer_is_booked_though_the_client_leaves_before_its_verdict(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend has been paid by then, whatever the judge still waits for."""
    judging = asyncio.Event()

    async def never(*_: object) -> None:
        judging.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("gateway.cascade.attempt.check_schemas", never)
    run = Run(upstream.url, JSON, 10.0, "5s")
    task = asyncio.create_task(judged(run).run())
    await asyncio.wait_for(judging.wait(), 5)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert run.request.ledger.tokens_out > 0
    assert run.endpoint.in_flight == 0
    await run.endpoint.aclose()


async def test_a_fault_of_our_own_gives_the_place_back(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs the request it happens to, and the endpoint is as free as before."""

    async def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("gateway.cascade.attempt.check_schemas", broken)
    run = Run(upstream.url, JSON, 10.0, "5s")
    with pytest.raises(RuntimeError, match="a fault of ours"):
        await judged(run).run()
    assert run.endpoint.in_flight == 0
    await run.endpoint.aclose()


HELD = CHAT.replace("slo: {deadline: 20s}", "slo: {ttft: {p99: 1500ms}, deadline: 20s}").replace(
    "hold_tokens: 4, hold_max: 250ms", "hold_tokens: 256, hold_max: 10s"
)


async def test_a_hold_leaves_the_next_tier_the_time_to_take_over(tmp_path: Path) -> None:
    """It ends while the next tier's first token can still come in time, and a doubtful draft escalates then.

    On a busy machine a hold may end too late for that, and the draft is served: then another is asked for.
    """
    with Upstream() as small, Upstream() as large:
        small.default = Reply(text="no idea " * 60, logprob=-2.0, between_s=0.05)
        large.default = Reply(text="certain", before_first_s=0.2)
        async with in_process(tmp_path, small.url, large.url, policies={"chat": HELD}) as app:
            for begin in range(0, 20, 5):  # from here on the large model's time to a first token is known
                slow = [app.ask(f"how long, {n}", model="tier:hosted", stream=True) for n in range(begin, begin + 5)]
                await asyncio.gather(*slow)
            for number in range(5):
                reply = await app.ask(f"what then, {number}", {"x-tierline-debug": "1"}, stream=True)
                if reply.headers["x-tierline-path"] != "degraded":
                    break
            assert reply.headers["x-tierline-path"] == "escalated", reply.headers
            assert "certain" in reply.text and "no idea" not in reply.text


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


CAN, TOKENS, BETWEEN_S = frozenset({"tools", "vision", "json"}), 120, 0.003
"""Every tier can do all; a draft's tokens, and the seconds from one to the next."""
LIMITS_S, FIRSTS_S, NEXT_S = (None, 0.0808, 0.2502, 2.0), (0.0101, 0.1), (None, 0.0601, 0.2)
"""When the first token is due; when it comes; how long the next tier is expected to take to its own."""


@pytest.mark.parametrize("way", ["stream", "whole", "watched"])
@pytest.mark.parametrize("confidence", [0.9, 0.4])
@pytest.mark.parametrize(("hold_tokens", "hold_max_s"), [(1, 0.0505), (24, 0.0004), (24, 0.2005), (200, 0.2005)])
@pytest.mark.parametrize("stronger", [True, False], ids=["a tier follows", "none follows"])
def test_a_walk_and_the_gateway_drive_an_attempt_to_the_same_end(
    monkeypatch: pytest.MonkeyPatch, way: str, confidence: float, hold_tokens: int, hold_max_s: float, stronger: bool
) -> None:
    """Outcome, judged tokens and time are equal, whatever ends the hold: policy tests and What if say what happens."""
    loop = SkippingLoop()
    monkeypatch.setattr(time, "monotonic", loop.time)
    rules = {
        "when": {"confidence_below": 0.6, "uncalibrated_below": 0.6},
        "stream": {"hold_tokens": hold_tokens, "hold_max": f"{hold_max_s * 1000:g}ms"},
    }
    tiers, stream = ["a", "b"] if stronger else ["a"], way == "stream"
    request = streamed_request(Client(None, stall_s=60), tiers=tiers, escalate=rules)
    for ttft_limit_s, first_s, next_s in product(LIMITS_S if stream else (None,), FIRSTS_S, NEXT_S):
        known = Forecast(next_s or 0.0, next_s or 0.0, 1.0, 0.0, known=next_s is not None)
        health = {"a": TierHealth("a", CAN, 1), "b": TierHealth("b", CAN, 1, forecast=known)}
        given = DecisionInput(None, Features("", 1, 40, stream=stream), health, 1.0, ttft_limit_s)
        last_s = first_s + (TOKENS - 1) * BETWEEN_S
        poor = Draft(confidence, calibrated=False, tokens=TOKENS, ttft_s=first_s, total_s=last_s)
        drafts = {"a": [poor], "b": [Draft(ttft_s=0.0, total_s=0.0)]}
        around = Surroundings(drafts=drafts, watches_drafts=frozenset("a" if way == "watched" else ""))
        walked = walk(request.policy, given, around)
        cascade = Cascade(decide(request.policy, given), request.policy, health, stream=stream)
        attempt = cascade.next(Left(1.0, ttft_limit_s))
        assert isinstance(attempt, Attempt)
        now = loop.time()
        limits = {"deadline": now + 1.0, "ttft_deadline": None if ttft_limit_s is None else now + ttft_limit_s}
        timed = replace(request, **limits, features=given.features, trace=Trace(names.REQUEST))
        result = loop.run_until_complete(attempted(timed, attempt, cascade, first_s, confidence, way == "watched"))
        judged = timed.trace.hops[-1].attributes.get(names.TOKENS_JUDGED, 0)
        case = ttft_limit_s, first_s, next_s
        assert walked.held == judged, case
        assert walked.first_token_s == pytest.approx(loop.time() - now, abs=0.02), case
        left_s = 1.0 - walked.first_token_s
        step = cascade.observe(result.outcome) or cascade.next(
            Left(left_s, ttft_limit_s and ttft_limit_s - walked.first_token_s)
        )
        assert walked.called == (("a", step.tier) if isinstance(step, Attempt) else ("a",)), case
    loop.close()


async def attempted(
    request: RequestContext, attempt: Attempt, cascade: Cascade, first_s: float, confidence: float, watched: bool
) -> AttemptResult:
    """Return how the attempt ends in the gateway."""
    scripted = {
        "text": " ".join(f"w{number}" for number in range(TOKENS)),
        "ttft": f"{first_s}s",
        "tpot": f"{BETWEEN_S}s",
        "confidence": confidence,
    }
    raw = {"name": "a", "base_url": "http://127.0.0.1:9/v1", "model": "m", "watch_drafts": watched}
    transport = ScriptedTransport([ScriptedRule.model_validate({"reply": scripted})], max_reply=1 << 20)
    endpoint = Endpoint(BackendConfig.model_validate(raw), OpenAIBackend(transport, model="m", key=None))
    result = await AttemptRun(request, {"a": Tier("a", [endpoint])}, attempt, cascade.takes_over).run()
    if isinstance(result.answer, LiveStream):
        result.answer.lose()
    assert not endpoint.in_flight
    return result
