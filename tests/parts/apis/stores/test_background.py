"""The events of responses in the background: who appends to them late brings nothing back that was deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from cache.scopes.scope import Caps
from cache.store.redis_store import RedisStore
from gateway.errors import RateLimited
from gateway.parts.apis.stores.background import BackgroundRun, BackgroundRuns
from gateway.parts.apis.stores.kept_responses import KeptResponses
from tests.support.store import UNHURRIED, LocalStore

Json = dict[str, Any]


@asynccontextmanager
async def worker(store: LocalStore, most: int = 10) -> AsyncIterator[tuple[KeptResponses, BackgroundRuns]]:
    """One worker's kept responses and runs; what waits for the store has reached it at the end."""
    client = RedisStore.from_url(store.url, slack=UNHURRIED)
    kept = KeptResponses(client, b"secret", Caps())
    runs = BackgroundRuns(kept, client, most)
    kept.start()
    runs.start()
    try:
        yield kept, runs
    finally:
        await runs.aclose()
        await kept.aclose()
        await client.aclose()


def event(number: int) -> bytes:
    return b'event: response.output_text.delta\ndata: {"sequence_number":%d}\n\n' % number


def response(status: str, ident: str = "resp_1") -> Json:
    return {"id": ident, "object": "response", "status": status, "output": [], "background": True}


async def cancel() -> None:
    """Do nothing."""


async def begun(runs: BackgroundRuns) -> BackgroundRun:
    run = await runs.begin("t", response("in_progress"), [], 60, cancel)
    await runs.open_events(run, event(0), 60)
    return run


def events_in(store: LocalStore) -> list[Any]:
    with redis.Redis.from_url(store.url) as client:
        return [value for key in client.keys("*:events") for _, value in client.xrange(key)]


async def test_events_are_appended_while_their_response_is_kept(store: LocalStore) -> None:
    async with worker(store) as (_, runs):
        run = await begun(runs)
        runs.publish(run, event(1) + event(2))
    assert events_in(store) == [{b"v": event(number)} for number in range(3)]


async def test_events_that_come_after_the_response_was_deleted_are_not_kept(store: LocalStore) -> None:
    """A client that has read the last event may delete the response before this worker has sent it to the store."""
    async with worker(store) as (kept, runs), worker(store) as (others, elsewhere):
        run = await begun(runs)
        await kept.keep_now("t", response("completed"), [], 60)
        found = await others.find("t", "resp_1")
        assert found is not None
        await elsewhere.delete(found)
        assert events_in(store) == []
        runs.publish(run, event(1))
    assert events_in(store) == []


async def test_a_stream_that_is_opened_after_its_response_was_deleted_has_no_events(store: LocalStore) -> None:
    async with worker(store) as (kept, runs):
        run = await begun(runs)
        await kept.delete("t", "resp_1")
        with redis.Redis.from_url(store.url) as client:
            client.delete(*client.keys("*:events"))
        await runs.open_events(run, event(0), 60)
    assert events_in(store) == []


async def test_a_tenant_has_so_many_at_once_and_leaves_others_theirs(store: LocalStore) -> None:
    """One more gets in when one has ended."""
    async with worker(store, most=2) as (_, runs):

        async def begin(tenant: str, number: int) -> BackgroundRun:
            return await runs.begin(tenant, response("in_progress", f"resp_{tenant}{number}"), [], 60, cancel)

        first, _ = [await begin("many", number) for number in range(2)]
        with pytest.raises(RateLimited) as refused:
            await begin("many", 2)
        assert refused.value.code == "too_many_background_responses"
        await begin("other", 0)
        runs.end(first)
        await begin("many", 3)
        with pytest.raises(RateLimited):
            await begin("many", 4)
