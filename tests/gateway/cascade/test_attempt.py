"""One attempt, against a scripted upstream on a real socket."""

from __future__ import annotations

import asyncio

import pytest

from gateway.cascade.attempt import Standing, try_attempt
from gateway.tiers import Tier
from routing.cascade import Attempt
from tests.gateway.cascade.test_streaming import Run
from tests.support.upstream import Upstream


def alone() -> Standing:
    """The standing of an attempt that nothing runs beside, and that a stronger tier would take over from."""
    return Standing(rivals=list, takes_over=lambda: True)


async def test_an_answer_is_booked_though_the_client_leaves_before_its_verdict(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend has been paid by then, whatever the judge still waits for."""
    judging = asyncio.Event()

    async def never(*_: object) -> None:
        judging.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("gateway.cascade.attempt.check_schemas", never)
    run = Run(upstream.url, {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}, 10.0, "5s")
    attempt = Attempt(1, "local", 5.0, 5.0, judged=True, final=False)
    task = asyncio.create_task(try_attempt(run.request, {"local": Tier("local", [run.endpoint])}, attempt, alone()))
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
    run = Run(upstream.url, {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}, 10.0, "5s")
    attempt = Attempt(1, "local", 5.0, 5.0, judged=True, final=False)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        await try_attempt(run.request, {"local": Tier("local", [run.endpoint])}, attempt, alone())
    assert run.endpoint.in_flight == 0
    await run.endpoint.aclose()
