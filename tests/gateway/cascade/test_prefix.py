"""The held beginning of a stream."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from gateway.backends.base import BackendRequest
from gateway.backends.openai import OpenAIBackend
from gateway.backends.script import ScriptedRule
from gateway.backends.scripted import ScriptedTransport
from gateway.cascade.call import BackendCall
from gateway.cascade.prefix import PrefixBuffer
from gateway.config.schema import BackendConfig
from gateway.lab.walk import Draft, Surroundings, walk
from gateway.request.context import RequestContext
from gateway.telemetry.trace import Hop
from gateway.tiers import Endpoint, SlotRequest
from routing.cascade import Attempt, Cascade, Left
from routing.decide import DecisionInput, TierHealth, decide
from routing.features import Features
from routing.load.latency import Forecast
from tests.support.app import in_process
from tests.support.context import streamed_request
from tests.support.gateway import CHAT
from tests.support.upstream import Reply, Upstream

HELD = CHAT.replace("slo: {deadline: 20s}", "slo: {ttft: {p99: 1500ms}, deadline: 20s}").replace(
    "hold_tokens: 4, hold_max: 250ms", "hold_tokens: 256, hold_max: 10s"
)


async def test_a_hold_leaves_the_next_tier_the_time_to_take_over(tmp_path: Path) -> None:
    """It ends while the next tier's first token can still come in time, and a doubtful draft escalates then."""
    with Upstream() as small, Upstream() as large:
        small.default = Reply(text="no idea " * 60, logprob=-2.0, between_s=0.05)
        large.default = Reply(text="certain", before_first_s=0.3)
        async with in_process(tmp_path, small.url, large.url, policies={"chat": HELD}) as app:
            slow = [app.ask(f"how long do you take {n}", model="tier:hosted", stream=True) for n in range(20)]
            await asyncio.gather(*slow)  # from here on the large model's time to a first token is known
            reply = await app.ask("what then", {"x-tierline-debug": "1"}, stream=True)
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


@pytest.mark.parametrize("hold_max_s", [0.0004, 0.0505, 0.2005])
@pytest.mark.parametrize("hold_tokens", [1, 24, 200])
@pytest.mark.parametrize("stronger", [True, False], ids=["a tier follows", "none follows"])
def test_a_walk_holds_a_stream_as_long_as_the_gateway_does(
    monkeypatch: pytest.MonkeyPatch, hold_max_s: float, hold_tokens: int, stronger: bool
) -> None:
    """Policy tests and What if judge as many tokens as are judged live, whatever limits the hold."""
    loop = SkippingLoop()
    monkeypatch.setattr(time, "monotonic", loop.time)
    stream = {"hold_tokens": hold_tokens, "hold_max": f"{hold_max_s * 1000:g}ms"}
    tiers = ["a", "b"] if stronger else ["a"]
    request = streamed_request(None, tiers=tiers, escalate={"when": {"confidence_below": 0.6}, "stream": stream})
    for ttft_limit_s, first_s, next_s in product((None, 0.0808, 0.2502, 2.0), (0.0101, 0.1), (None, 0.0601, 0.2)):
        known = Forecast(next_s or 0.0, next_s or 0.0, 1.0, 0.0, known=next_s is not None)
        health = {"a": TierHealth("a", CAN, 1), "b": TierHealth("b", CAN, 1, forecast=known)}
        given = DecisionInput(None, Features("", 1, 40, stream=True), health, 10.0, ttft_limit_s)
        drafts = {
            tier: [Draft(confidence=0.9, tokens=TOKENS, ttft_s=first_s, total_s=first_s + (TOKENS - 1) * BETWEEN_S)]
            for tier in tiers
        }
        walked = walk(request.policy, given, Surroundings(drafts=drafts))
        cascade = Cascade(decide(request.policy, given), request.policy, health, stream=True)
        attempt = cascade.next(Left(10.0, ttft_limit_s))
        assert isinstance(attempt, Attempt)
        if first_s > attempt.ttft_timeout_s:
            continue
        now = loop.time()
        limits = {"deadline": now + 10.0, "ttft_deadline": None if ttft_limit_s is None else now + ttft_limit_s}
        held = loop.run_until_complete(held_of(replace(request, **limits), attempt, first_s))
        assert walked.held == (held if attempt.judged else 0), (ttft_limit_s, first_s, next_s)
    loop.close()


async def held_of(request: RequestContext, attempt: Attempt, first_s: float) -> int:
    """Return how many tokens the gateway holds of a draft."""
    text = "word " * TOKENS
    reply = {"text": text.strip(), "ttft": f"{first_s}s", "tpot": f"{BETWEEN_S}s"}
    config = BackendConfig.model_validate({"name": "b", "base_url": "http://127.0.0.1:9/v1", "model": "m"})
    transport = ScriptedTransport([ScriptedRule.model_validate({"reply": reply})], max_reply=1 << 20)
    endpoint = Endpoint(config, OpenAIBackend(transport, model="m", key=None))
    call = BackendCall(request.ledger, endpoint.take(SlotRequest(stream=True)), Hop("attempt", 1, {}), 10)
    prefix = PrefixBuffer(request, attempt, call)
    await prefix.fill(BackendRequest(request.body, ask_logprobs=False))
    call.close("rejected")
    return prefix.state.tokens
