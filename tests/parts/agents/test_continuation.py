"""The call that goes on with a stream that broke, against a scripted upstream on a real socket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.backends.base import Truncated
from gateway.cascade.call import BackendCall
from gateway.parts.agents.continuation import Successors
from gateway.telemetry import names
from gateway.tiers import SlotRequest, Tier
from routing.cascade import Attempt
from tests.gateway.cascade.test_streaming import RULES, Run, text, written
from tests.support.upstream import Fault, Reply, Upstream

GOES_ON = {**RULES, "escalate": {**RULES["escalate"], "stream": {"on_break": "continue"}}}
BODY: dict[str, Any] = {"model": "chat", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


async def test_a_fault_of_our_own_gives_the_slot_back(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in what the second backend is asked costs one request, and no slot of that backend."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("gateway.parts.agents.continuation._backend_request", broken)
    first, second = (Run(upstream.url, BODY, 10.0, "5s", GOES_ON) for _ in range(2))
    tiers = {"local": Tier("local", [first.endpoint, second.endpoint])}
    attempt = Attempt(1, "local", 5.0, 5.0, judged=False, final=True)
    hop = first.request.trace.begin(names.ATTEMPT)
    with BackendCall(first.request.ledger, first.endpoint.take(SlotRequest(stream=True)), hop, 1) as call:
        call.close(Truncated("gone"))
        with pytest.raises(RuntimeError, match="a fault of ours"):
            await Successors(tiers).take_over(first.request, Truncated("gone"), attempt, call)
    assert second.endpoint.in_flight == 0
    for run in (first, second):
        await run.endpoint.aclose()


async def test_waiting_for_the_next_backend_is_no_stall_of_the_client(upstream: Upstream) -> None:
    """A second backend may take longer than a client may leave data unread; the client, which reads, is kept."""
    first, second = (Run(upstream.url, BODY, 10.0, "5s", GOES_ON, continuation="prefill") for _ in range(2))
    first.request.client.stall_s = 0.1
    upstream.queue(
        Reply(text="one two three four five", fault=Fault.CLOSE_MID_STREAM, fault_after=4),
        Reply(text=" five six", before_headers_s=0.5),
    )
    tiers = {"local": Tier("local", [first.endpoint, second.endpoint])}
    stream = await first.committed(judged=False, tiers=tiers, successor=Successors(tiers))
    writes = await written(stream)
    assert not first.request.client.gone
    assert stream.end == "done"
    assert text(writes) == "one two three four five six"
    for run in (first, second):
        assert run.endpoint.in_flight == 0
        await run.endpoint.aclose()


async def test_a_call_that_goes_on_owes_by_its_own_tier(upstream: Upstream) -> None:
    """Where it is given up, too: the tier whose stream broke may cost nothing, or answer with fewer words."""
    upstream.default = Reply(fault=Fault.HANG_BEFORE_HEADERS)
    first, second = (Run(upstream.url, BODY, 10.0, "5s", GOES_ON) for _ in range(2))
    first.endpoint.tier, second.endpoint.tier = "local", "hosted"
    tiers = {"local": Tier("local", [first.endpoint, second.endpoint])}
    attempt = Attempt(1, "local", 5.0, 5.0, judged=False, final=True)
    ledger, hop = first.request.ledger, first.request.trace.begin(names.ATTEMPT)
    slot = first.endpoint.take(SlotRequest(stream=True))
    with BackendCall(ledger, slot, hop, 1, lambda tier: {"local": 0, "hosted": 300}[tier]) as call:
        call.close(Truncated("gone"))
        assert ledger.tokens_out == 0
        going_on = asyncio.ensure_future(Successors(tiers).take_over(first.request, Truncated("gone"), attempt, call))
        await asyncio.to_thread(upstream.wait_for, 1)
        going_on.cancel()
        await asyncio.gather(going_on, return_exceptions=True)
    assert (ledger.tokens_out, ledger.usage_estimated, second.endpoint.in_flight) == (300, True, 0)
    for run in (first, second):
        await run.endpoint.aclose()
