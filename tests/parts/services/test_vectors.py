"""The stored vectors of the embeddings API: whose they are, how long they last, and what is not taken for one."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
import redis

from cache.scopes.scope import Caps, Scopes
from cache.store.redis_store import RedisStore
from gateway.parts.services.text_encoder import StoredVector, VectorCache
from policies.model import Policy
from tests.support.store import LocalStore

POLICY = Policy.model_validate(
    {
        "surface": "chat",
        "slo": {"deadline": "20s"},
        "tiers": ["local"],
        "route": {"classifier": "none", "start": {"local": "otherwise"}},
        "version": "0123456",
    }
)
MODEL = {"service": None, "model": "m"}
VECTOR = struct.pack("<2f", 0.6, 0.8)


class _Clock:
    now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def opened(store: RedisStore, valkey: LocalStore) -> tuple[RedisStore, _Clock]:
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
    return store, _Clock()


def vectors_of(opened: tuple[RedisStore, _Clock], generation: int = 0, caps: Caps | None = None) -> VectorCache:
    store, clock = opened
    return VectorCache(store, Scopes(b"secret", {}, lambda *_: generation), b"secret", caps or Caps(), clock)


def entry(clock: _Clock, ttl_s: float = 60) -> StoredVector:
    return StoredVector(VECTOR, 3, clock.now, clock.now + ttl_s)


async def test_what_is_written_is_read_in_order(opened: Any) -> None:
    vectors = vectors_of(opened)
    keys = vectors.keys("acme", POLICY, MODEL, ["one", "two", [1, 2], "three"])
    assert len(set(keys)) == 4
    await vectors.write({keys[0]: entry(opened[1]), keys[2]: entry(opened[1])})
    assert await vectors.read(keys) == [entry(opened[1]), None, entry(opened[1]), None]
    assert await vectors.read([]) == []


async def test_many_vectors_leave_the_event_loop_to_others(opened: Any) -> None:
    """While 2,048 are written, and while they are decoded, another task gets its turn again and again."""
    vectors, turns = vectors_of(opened), 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    keys = vectors.keys("acme", POLICY, MODEL, [str(number) for number in range(2048)])
    other = asyncio.create_task(count())
    await vectors.write(dict.fromkeys(keys, entry(opened[1])))
    written, turns = turns, 0
    found = await vectors.read(keys)
    other.cancel()
    assert found == [entry(opened[1])] * 2048
    assert min(written, turns) >= 2048 // 64


async def test_keys_are_of_their_tenant_model_and_generation(opened: Any) -> None:
    """A text alone finds nothing."""
    one, purged = vectors_of(opened), vectors_of(opened, generation=1)
    (key,) = one.keys("acme", POLICY, MODEL, ["text"])
    others = [
        one.keys("other", POLICY, MODEL, ["text"]),
        one.keys("acme", POLICY, MODEL | {"model": "n"}, ["text"]),
        one.keys("acme", POLICY.model_copy(update={"surface": "batch"}), MODEL, ["text"]),
        purged.keys("acme", POLICY, MODEL, ["text"]),
        one.keys("acme", POLICY, MODEL, ["[1]"]),
        one.keys("acme", POLICY, MODEL, [[1]]),
    ]
    assert len({key, *(other for (other,) in others)}) == 7


async def test_an_entry_ends_with_its_time(opened: Any) -> None:
    vectors, clock = vectors_of(opened), opened[1]
    (key,) = vectors.keys("acme", POLICY, MODEL, ["text"])
    await vectors.write({key: entry(clock, 60)})
    clock.now += 59
    assert await vectors.read([key]) != [None]
    clock.now += 2
    assert await vectors.read([key]) == [None]
    await vectors.write({key: entry(clock, -1)})
    assert await vectors.read([key]) == [None]


async def test_what_is_damaged_or_anothers_is_nothing(opened: Any, valkey: LocalStore) -> None:
    """Every byte counts, and an entry under another key is not that key's."""
    vectors = vectors_of(opened)
    one, other = vectors.keys("acme", POLICY, MODEL, ["one", "other"])
    await vectors.write({one: entry(opened[1])})
    with redis.Redis.from_url(valkey.url) as client:
        whole = client.get(one)
        assert isinstance(whole, bytes)
        for at in range(len(whole)):
            client.set(one, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert await vectors.read([one]) == [None], at
        for short in (b"", whole[:10], whole[:-1]):
            client.set(one, short)
            assert await vectors.read([one]) == [None]
        client.set(other, whole)
        assert await vectors.read([other]) == [None]


async def test_a_scope_keeps_to_its_caps(opened: Any) -> None:
    """A tenant that embeds without end pushes out its own oldest vectors."""
    vectors = vectors_of(opened, caps=Caps(entries=3))
    clock = opened[1]
    keys = vectors.keys("acme", POLICY, MODEL, [f"text {i}" for i in range(5)])
    for key in keys:
        clock.now += 1
        await vectors.write({key: entry(clock)})
    assert [one is not None for one in await vectors.read(keys)] == [False, False, True, True, True]
