"""Reasoning of calls is kept for a while, for one space each, in a worker and in the store."""

from __future__ import annotations

import asyncio
from typing import Any

from cache.store.base import Command, NoStore
from cache.store.redis_store import RedisStore
from gateway.parts.agents.call_memory import TTL_S, KeptCalls
from tests.support.store import UNHURRIED, LocalStore

NOTE: Any = {"message": {"reasoning_content": "so"}, "calls": {}}


async def test_another_worker_finds_a_note_in_its_own_space_alone(store: LocalStore) -> None:
    one, other = (RedisStore.from_url(store.url, slack=UNHURRIED) for _ in range(2))
    writer, reader = KeptCalls(one), KeptCalls(other)
    writer.start()
    writer.keep("acme", "c1", NOTE)
    assert await writer.find("acme", ["c1"]) == {"c1": NOTE}, "at once, in the worker that answered"
    await writer.aclose()
    assert await reader.find("acme", ["c1", "c2"]) == {"c1": NOTE}
    assert await reader.find("beta", ["c1"]) == {}
    [key] = await other.ask([Command((b"KEYS", b"tierline:calls1:*"))])
    [left] = await other.ask([Command((b"TTL", key[0]))])
    assert len(key) == 1 and 0 < left <= TTL_S
    await one.aclose()
    await other.aclose()


async def test_a_value_that_is_another_s_or_damaged_is_none(store: LocalStore) -> None:
    redis = RedisStore.from_url(store.url, slack=UNHURRIED)
    writer = KeptCalls(redis)
    writer.start()
    writer.keep("acme", "c1", NOTE)
    await writer.aclose()
    [[key]] = await redis.ask([Command((b"KEYS", b"tierline:calls1:*"))])
    for value in (b"{", b'["beta","c1",{"message":{},"calls":{}}]', b'["acme","c1",{"message":3,"calls":{}}]'):
        await redis.ask([Command((b"SET", key, value))])
        assert await KeptCalls(redis).find("acme", ["c1"]) == {}
    await redis.aclose()


async def test_without_a_store_one_worker_still_knows() -> None:
    kept = KeptCalls(NoStore())
    kept.start()
    kept.keep("acme", "c1", NOTE)
    await asyncio.sleep(0.01)
    assert await kept.find("acme", ["c1", "c2"]) == {"c1": NOTE}
    await kept.aclose()


async def test_a_worker_holds_a_bounded_number_of_bytes_for_a_bounded_time() -> None:
    now = 0.0
    kept = KeptCalls(NoStore(), lambda: now)
    large: Any = {"message": {"reasoning_content": "x" * 60_000}, "calls": {}}
    for number in range(400):
        kept.keep("acme", f"c{number}", large)
    found = await kept.find("acme", [f"c{number}" for number in range(400)])
    assert 200 < len(found) < 290 and "c399" in found and "c0" not in found
    kept.keep("acme", "huge", {"message": {"reasoning_content": "x" * 70_000}, "calls": {}})
    assert await kept.find("acme", ["huge"]) == {}
    now = TTL_S + 1
    assert await kept.find("acme", ["c399"]) == {}
