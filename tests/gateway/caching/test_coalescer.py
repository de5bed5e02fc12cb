"""Which requests share an answer, which lookups are one, and what becomes of a flight that fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from cache.entry import Lookup
from gateway.caching.coalescer import CoalescedRequest, RecentKeys
from gateway.errors import InvalidRequest
from gateway.request.context import Client, Reply, RequestContext
from gateway.request.options import CacheControl, RequestOptions
from gateway.steps import Steps
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace
from routing.decide import Clamp
from routing.features import features_of
from tests.support.app import in_process
from tests.support.context import streamed_request
from tests.support.store import LocalStore

ANSWER: Final = b'{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[]}'


def test_a_key_is_known_until_a_lookup_misses_it() -> None:
    """What a lookup has shown last is what is expected next."""
    known = RecentKeys()
    known.note("a", found=True)
    assert "a" in known.keys
    known.note("a", found=False)
    known.note("a", found=False)
    assert "a" not in known.keys


def test_only_the_latest_are_known() -> None:
    """The oldest go first, however many there were."""
    known = RecentKeys(most=2)
    for key in ("a", "b", "a", "c"):
        known.note(key, found=True)
    assert [key for key in "abc" if key in known.keys] == ["b", "c"]


def asks(seed: int = 0, *, deadline_s: float = 10.0, clamp: Clamp | None = None, **control: bool) -> RequestContext:
    """A request for a JSON answer; equal seeds ask the same."""
    request = streamed_request(Client(None, 60.0), cache={"exact": {"ttl": "1h"}})
    body = {"model": "chat", "messages": request.body["messages"], "seed": seed}
    return replace(
        request,
        body=body,
        features=features_of(body),
        deadline=time.monotonic() + deadline_s,
        clamp=clamp,
        options=RequestOptions(cache=CacheControl(**control)),
        trace=Trace(names.REQUEST),
        ledger=Ledger("r"),
    )


@pytest.fixture(params=["workers", "alone"])
async def steps(store: LocalStore, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Steps]:
    """The steps of a worker that shares with others, or not; no request of these tests calls its backend."""
    async with in_process(tmp_path, "http://127.0.0.1:9", store_url=store.url) as app:
        shared = app.steps.coalescer.shared
        assert shared is not None
        app.steps.coalescer.shared = shared if request.param == "workers" else None
        yield app.steps
        app.steps.coalescer.shared = shared


async def accepted(steps: Steps, request: RequestContext) -> CoalescedRequest:
    """The request, which must share its answer, after its lookup has found nothing."""
    plan = await steps.exact_cache.plan(request)
    coalesced = steps.coalescer.accept(request, plan)
    assert coalesced is not None
    assert await steps.exact_cache.find(request, plan, coalesced) is None
    return coalesced


@pytest.mark.parametrize("control", [{"read": False}, {"write": False}, {"only_if_cached": True}])
async def test_what_must_not_be_shared_is_not_accepted(steps: Steps, control: dict[str, bool]) -> None:
    """A request that wants a fresh answer, wants it kept from others, or wants none that is not stored yet."""
    request = asks(**control)
    assert steps.coalescer.accept(request, await steps.exact_cache.plan(request)) is None
    alone = await steps.coalescer.enter(None)
    with alone as shared:
        reply = Reply(body=b"{}")
        assert shared.reply is None and shared.publish(reply) is reply


async def test_an_equal_request_follows(steps: Steps) -> None:
    """It gets the leader's answer, with a hop of its own, and makes none."""
    leader = await (await accepted(steps, asks(1))).enter()
    request = asks(1)
    second = await accepted(steps, request)
    assert second.can_join
    following = asyncio.create_task(second.enter())
    await asyncio.sleep(0)
    with leader as shared:
        assert shared.reply is None
        shared.publish(Reply(body=ANSWER))
    followed = await following
    assert followed.reply is not None and followed.reply.body == ANSWER
    assert [hop.name for hop in request.trace.hops][-1] == names.CACHE_FOLLOW
    assert steps.coalescer.shared is None or steps.coalescer.shared.leases.held == 0


@pytest.mark.parametrize(
    "other", [asks(2), asks(1, deadline_s=5.0), asks(1, clamp=Clamp(max_tier="a"))], ids=["seed", "time", "tiers"]
)
async def test_another_question_deadline_or_tier_does_not_join(steps: Steps, other: RequestContext) -> None:
    """What asks the same in less time joins a flight with as little; other tiers would give another answer."""
    leader = await (await accepted(steps, asks(1, deadline_s=9.0))).enter()
    other = replace(other, deadline=min(other.deadline, time.monotonic() + 5.0))
    second = await accepted(steps, other)
    joins = other.body["seed"] == 1 and other.clamp is None
    assert second.can_join is joins
    with leader as shared:
        shared.publish(Reply(body=ANSWER))


async def test_a_flight_that_is_abandoned_is_made_anew(steps: Steps) -> None:
    """A leader that leaves fails nobody: its follower leads the next flight."""
    leader = await (await accepted(steps, asks(1))).enter()
    second = await accepted(steps, asks(1))
    following = asyncio.create_task(second.enter())
    await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError), leader:
        raise asyncio.CancelledError
    with await following as shared:
        assert shared.reply is None, "it leads"
        shared.publish(Reply(body=ANSWER))


async def test_an_error_that_meets_all_is_every_followers(steps: Steps) -> None:
    """A request that no model takes is asked once."""
    leader = await (await accepted(steps, asks(1))).enter()
    following = asyncio.create_task((await accepted(steps, asks(1))).enter())
    await asyncio.sleep(0)
    with pytest.raises(InvalidRequest), leader:
        raise InvalidRequest("no", code="no")
    with pytest.raises(InvalidRequest):
        await following


async def test_equal_lookups_at_one_time_are_one(steps: Steps) -> None:
    """A burst would use up the store's connections; where the one lookup fails, each looks for itself."""
    looks, fails = 0, True

    async def look(_: object) -> Lookup:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0.01)
        if fails:
            raise RuntimeError("a fault of ours")
        return Lookup("miss")

    async def burst() -> list[Any]:
        requests = [asks(3) for _ in range(4)]
        shared = [steps.coalescer.accept(one, await steps.exact_cache.plan(one)) for one in requests]
        return await asyncio.gather(*(one.look_up(look) for one in shared if one), return_exceptions=True)

    assert [type(one) for one in await burst()] == [RuntimeError] * 4
    assert looks == 4
    looks, fails = 0, False
    assert [one.outcome for one in await burst()] == ["miss"] * 4
    assert looks == 1
