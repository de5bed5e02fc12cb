"""An endpoint whose rate-limit headers say that nothing is left is not called until they say there is."""

from __future__ import annotations

import asyncio

import pytest

from gateway.backends.base import Saturated
from gateway.tiers import Endpoint, Tier
from tests.gateway.tiers.endpoints import CHAT, Clock, endpoint_of


def hear(endpoint: Endpoint, requests: int = 9, tokens: int = 100_000, reset: str = "4s") -> None:
    headers = {
        "x-ratelimit-remaining-requests": str(requests),
        "x-ratelimit-remaining-tokens": str(tokens),
        "x-ratelimit-reset-requests": reset,
        "x-ratelimit-reset-tokens": reset,
    }
    endpoint.quota.refused(headers.get, endpoint.now())


def test_it_says_how_long(clock: Clock, endpoint: Endpoint) -> None:
    """In words for people, in seconds for Retry-After; and afterwards it may be called."""
    assert endpoint.unhindered
    hear(endpoint, requests=0)
    assert not endpoint.unhindered
    assert endpoint.unavailable() == "out of quota for 4 s"
    assert endpoint.pause_s() == pytest.approx(4)
    clock.now += 4
    assert endpoint.unavailable() == "" and endpoint.pause_s() is None


async def test_its_requests_go_to_a_sibling(clock: Clock) -> None:
    """While there is one; and none is refused by the upstream first."""
    one, other = endpoint_of(clock, "local-1"), endpoint_of(clock, "local-2")
    hear(one, requests=0)
    tier = Tier("local", [one, other], clock)
    assert tier.health().unavailable == ""
    for _ in range(2):
        assert (await tier.acquire(CHAT)).endpoint is other


async def test_a_prompt_longer_than_what_is_left_waits_or_goes_elsewhere(clock: Clock, endpoint: Endpoint) -> None:
    """A short one is served meanwhile."""
    hear(endpoint, tokens=500)
    tier = Tier("local", [endpoint], clock)
    assert tier.health(tokens_in=2000).unavailable == "out of quota for 4 s"
    with pytest.raises(Saturated) as refused:
        await tier.acquire(CHAT._replace(tokens_in=2000))
    assert refused.value.retry_after_s == pytest.approx(4)
    (await tier.acquire(CHAT._replace(tokens_in=100))).succeeded()


async def test_calls_between_two_replies_are_counted(clock: Clock) -> None:
    """Of five requests at once, on the word that two are left, two go out."""
    endpoint = endpoint_of(clock, max_in_flight=10)
    hear(endpoint, requests=2)
    tier = Tier("local", [endpoint], clock)
    came = await asyncio.gather(*(tier.acquire(CHAT) for _ in range(5)), return_exceptions=True)
    assert [isinstance(one, Saturated) for one in came] == [False, False, True, True, True]


async def test_those_in_line_are_turned_away(clock: Clock, endpoint: Endpoint) -> None:
    """They would wait for a place that is of no use to them."""
    slots = [endpoint.take(CHAT), endpoint.take(CHAT)]
    waiting = asyncio.create_task(endpoint.wait(CHAT))
    await asyncio.sleep(0)
    hear(endpoint, requests=0)
    slots[0].succeeded()
    with pytest.raises(Saturated) as refused:
        await waiting
    assert refused.value.retry_after_s == pytest.approx(4)
