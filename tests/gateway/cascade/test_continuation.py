"""The call that goes on with a stream that broke, against a scripted upstream on a real socket."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.backends.base import Truncated
from gateway.cascade.call import BackendCall
from gateway.cascade.continuation import Successor
from gateway.tiers import SlotRequest, Tier
from routing.cascade import Attempt
from tests.gateway.cascade.test_streaming import Run
from tests.support.upstream import Upstream


async def test_a_fault_of_our_own_gives_the_slot_back(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in what the second backend is asked costs one request, and no slot of that backend."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("gateway.cascade.continuation._backend_request", broken)
    body = {"model": "chat", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    first, second = (Run(upstream.url, body, 10.0, "5s") for _ in range(2))
    tiers = {"local": Tier("local", [first.endpoint, second.endpoint])}
    attempt = Attempt(1, "local", 5.0, 5.0, judged=False, final=True)
    with BackendCall(first.request.ledger, first.endpoint.take(SlotRequest(stream=True)), first.hop, 1) as call:
        call.close(Truncated("gone"))
        with pytest.raises(RuntimeError, match="a fault of ours"):
            await Successor(first.request, tiers).take_over(Truncated("gone"), attempt, call)
    assert second.endpoint.in_flight == 0
    for run in (first, second):
        await run.endpoint.aclose()
