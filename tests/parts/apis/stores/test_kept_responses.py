"""Responses in the store: found at once, by other workers too, never another tenant's, and off the reply's path."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.asyncio

from cache.scopes.scope import ENTRY, Caps
from cache.store.base import Command, NoStore, Operation, Release, StoreUnavailable, Write
from cache.store.redis_store import RedisStore
from gateway.errors import InvalidRequest, Overloaded
from gateway.parts.apis.stores import kept_responses
from gateway.parts.apis.stores.conversations import Conversations
from gateway.parts.apis.stores.kept_responses import KeptResponses
from tests.support.store import UNHURRIED, LocalStore, local_store
from tests.support.wait import eventually

Json = dict[str, Any]
CAPS = Caps()


class Held(RedisStore):
    """A store whose writes wait for `go`, and can fail."""

    go: asyncio.Event
    fails = False
    loses_reply = False
    sizes: list[int]
    """How many operations each write had."""

    async def apply(self, operations: Sequence[Operation]) -> None:
        self.sizes.append(len(operations))
        await self.go.wait()
        if self.fails:
            raise StoreUnavailable("full")
        await super().apply(operations)
        if self.loses_reply:
            raise StoreUnavailable("timeout")


async def until_found(kept: KeptResponses, response_id: str) -> None:
    async with asyncio.timeout(10):
        while await kept.find("t", response_id) is None:
            await asyncio.sleep(0.01)


def made(number: int, text: str = "a") -> Json:
    """A response."""
    item = {"id": f"msg_{number}", "type": "message", "content": [{"type": "output_text", "text": text}]}
    return {"id": f"resp_{number}", "object": "response", "status": "completed", "output": [item]}


def given(text: str) -> list[Json]:
    return [{"role": "user", "content": text}]


@asynccontextmanager
async def worker(store: LocalStore, caps: Caps = CAPS) -> AsyncIterator[tuple[KeptResponses, Held]]:
    """One worker's responses, and the store beneath them, which holds nothing back yet."""
    held = Held.from_url(store.url, slack=UNHURRIED)
    assert isinstance(held, Held)
    held.go, held.sizes = asyncio.Event(), []
    held.go.set()
    kept = KeptResponses(held, b"secret", caps)
    kept.start()
    try:
        yield kept, held
    finally:
        held.go.set()
        await kept.aclose()
        await held.aclose()


async def test_a_response_is_found_before_and_after_it_is_written(store: LocalStore) -> None:
    async with worker(store) as (kept, held):
        held.go.clear()
        kept.keep("t", made(1), given("q"), [], 60)
        assert (found := await kept.find("t", "resp_1")) is not None
        assert await kept.find("other", "resp_1") is None
        held.go.set()
    async with worker(store) as (later, _):  # closing has written what was queued
        again = await later.find("t", "resp_1")
        assert again is not None
        assert (again.response, list(again.given)) == (found.response, found.given)
        assert await later.find("other", "resp_1") is None


async def test_another_worker_looks_again(store: LocalStore) -> None:
    """A client may be sent to another worker before the first one's write is done."""
    async with worker(store) as (one, held), worker(store) as (other, _):
        held.go.clear()
        one.keep("t", made(1), given("q"), [], 60)
        asking = asyncio.create_task(other.conversation("t", "resp_1"))
        await asyncio.sleep(0)
        held.go.set()
        found = await asking
        assert found is not None
        assert found[0] == [*given("q"), *made(1)["output"]]


async def test_a_conversation_is_put_together_in_order(store: LocalStore) -> None:
    async with worker(store) as (kept, _):
        before: list[str] = []
        for number in range(4):
            kept.keep("t", made(number, f"a{number}"), given(f"q{number}"), before, 60)
            before = [*before, f"resp_{number}"]
        found = await kept.conversation("t", "resp_3")
        assert found is not None
        items, ids = found
        assert ids == [f"resp_{number}" for number in range(4)]
        texts = [item["content"] if "role" in item else item["content"][0]["text"] for item in items]
        assert texts == [f"{who}{number}" for number in range(4) for who in "qa"]
        assert await kept.delete("t", "resp_1")
        assert await kept.conversation("t", "resp_3") is None
        assert not await kept.delete("t", "resp_1")


async def lives(store: Held) -> list[int]:
    """How many seconds the responses in the store still live, sorted."""
    (ages,) = (await store.ask([command("KEYS", "tierline:r3:*:ages")]))[0]
    (ends,) = await store.ask([command("ZRANGE", ages.decode(), "0", "-1", "WITHSCORES")])
    return [round(int(end) / 1e6 - time.time()) for end in ends[1::2]]


async def left(store: Held) -> list[bytes]:
    """All keys of kept responses in the store, which a gateway of other tests may use too."""
    (keys,) = await store.ask([command("KEYS", "tierline:r3:*")])
    return sorted(keys)


async def test_what_has_ended_is_not_found_and_soon_deleted(store: LocalStore) -> None:
    """By one worker a minute, whoever's it was; what has not ended stays, with no expiry that a store could go by."""
    async with worker(store) as (kept, held):
        for number in range(250):
            kept.keep("gone", made(number), given("q"), [], 1)
        kept.keep("t", made(1), given("q"), [], 1)
        kept.keep("t", made(2), given("q"), [], 60)
        await asyncio.sleep(1.3)
        assert await kept.find("t", "resp_1") is None
        assert await kept.find("gone", "resp_249") is None
        assert len(await left(held)) > 250
        await kept.sweep()
        there = await left(held)
        assert len([key for key in there if b":x:" in key]) == 1
        assert len([key for key in there if key.endswith((b":ages", b":sizes"))]) == 2
        assert [await held.ask([command("TTL", key.decode())]) for key in there if b":sw" not in key] == [[-1]] * 4
        assert await kept.find("t", "resp_2") is not None
        kept.keep("t", made(3), given("q"), [], 1)
        await asyncio.sleep(1.3)
        before = await left(held)
        await kept.sweep()
        assert await left(held) == before


async def test_a_store_that_is_full_evicts_no_response() -> None:
    """Answers and whatever else has an expiry go first, and the tenant's bounds are known afterwards."""
    with local_store("--maxmemory 6mb --maxmemory-policy volatile-lfu") as server:
        async with worker(server) as (kept, held):
            for number in range(50):
                kept.keep("t", made(number, "a" * 5000), given("q"), [], 600)
        async with worker(server) as (kept, held):
            for number in range(200):
                await held.apply([Write(f"answer:{number}", b"x" * 60_000, 86_400)])
            assert (await held.memory()).evicted > 100
            assert all([await kept.find("t", f"resp_{number}") for number in range(50)])
            assert len(await lives(held)) == 50


async def test_a_later_turn_keeps_those_before_it_as_long(store: LocalStore) -> None:
    async with worker(store) as (kept, _):
        kept.keep("t", made(1), given("q"), [], 5)
        kept.keep("t", made(2), given("r"), ["resp_1"], 500)
    async with worker(store) as (_, held):
        first, second = await lives(held)
        assert 490 < first <= second <= 500


async def test_a_later_turn_shortens_no_life(store: LocalStore) -> None:
    """Its surface may keep responses for a shorter time than that of the turns before it."""
    async with worker(store) as (kept, _):
        kept.keep("t", made(1), given("q"), [], 500)
        kept.keep("t", made(2), given("r"), ["resp_1"], 5)
        kept.keep("t", made(3), given("s"), ["resp_1", "resp_2", "resp_0"], 50)
    async with worker(store) as (kept, held):
        third, second, first = await lives(held)
        assert 40 < third <= second <= 50 and 490 < first <= 500
        assert await kept.conversation("t", "resp_2") is not None


async def test_a_tenant_has_so_much_room(store: LocalStore) -> None:
    """Beyond it, its responses that would end first go first, and nobody else's. A turn renews those before it."""
    async with worker(store, Caps(entries=3)) as (kept, _):
        kept.keep("u", made(1), given("q"), [], 5)
        for number in range(3):
            kept.keep("t", made(number), given("q"), [], 100 + number)
        kept.keep("t", made(3), given("q"), ["resp_0"], 200)
        kept.keep("t", made(4), given("q"), [], 300)
    async with worker(store, Caps(bytes=2000)) as (kept, _):
        left = [number for number in range(5) if await kept.find("t", f"resp_{number}") is not None]
        assert left == [0, 3, 4]
        assert await kept.find("u", "resp_1") is not None
        kept.keep("t", made(5, "a" * 1800), given("q"), [], 400)
    async with worker(store) as (kept, _):
        assert [number for number in range(6) if await kept.find("t", f"resp_{number}") is not None] == [5]


async def test_conversations_share_the_room_of_responses(store: LocalStore) -> None:
    """Whoever begins one after another makes room by their own that end first, and by nobody else's."""
    async with worker(store, Caps(entries=3)) as (kept, held):
        conversations = Conversations(kept, held)
        other = await conversations.create("one", [], {}, 5)
        begun = [await conversations.create("many", [], {}, 60 + number) for number in range(6)]
        left = [one for one in begun if await kept.find("many", one["id"]) is not None]
        assert left == begun[3:]
        assert await kept.find("one", other["id"]) is not None


def command(*words: str) -> Any:
    return Command(tuple(word.encode() for word in words))


async def test_a_response_that_is_deleted_while_it_is_written_is_gone(store: LocalStore) -> None:
    async with worker(store) as (kept, held):
        held.go.clear()
        kept.keep("t", made(1), given("q"), [], 60)
        await asyncio.sleep(0)  # the write has begun
        assert await kept.delete("t", "resp_1")
        held.go.set()
    async with worker(store) as (kept, _):
        assert await kept.find("t", "resp_1") is None


async def test_what_another_worker_writes_after_it_was_deleted_is_gone(store: LocalStore) -> None:
    """Its client has the id before the store has the response; whichever worker it asks, deleted stays deleted."""
    async with worker(store) as (late, held), worker(store) as (other, _):
        held.go.clear()
        late.keep("t", made(1), given("q"), [], 60)
        late.keep("t", made(2), given("q"), [], 60)
        await asyncio.sleep(0)
        assert not await other.delete("t", "resp_1"), "it is not there yet"
        held.go.set()
        await until_found(other, "resp_2")
        assert await other.find("t", "resp_1") is None


async def test_a_write_that_is_tried_again_brings_nothing_back(store: LocalStore) -> None:
    """The first try has reached the store, though its answer came too late; the response was deleted meanwhile."""
    async with worker(store) as (first, held), worker(store) as (other, _):
        first.leases["resp_1"] = Release(first.lease_of("t", "resp_1"), b"me")  # so it is tried again
        held.loses_reply = True
        first.keep("t", made(1), given("q"), [], 60)
        await until_found(other, "resp_1")
        assert await other.delete("t", "resp_1")
        held.loses_reply = False
        tries = len(held.sizes)
        await eventually(lambda: len(held.sizes) > tries)
        first.keep("t", made(2), given("q"), [], 60)
        await until_found(other, "resp_2")
        assert await other.find("t", "resp_1") is None


async def test_what_was_deleted_is_known_of_the_latest_alone(store: LocalStore) -> None:
    """Ids that nobody has take no room without end, and what is known of them goes by itself."""
    async with worker(store) as (kept, _):
        for number in range(3):
            await kept.delete("t", f"resp_{number}")
        async with redis.asyncio.Redis.from_url(store.url) as client:
            (name,) = await client.keys("*:gone")
            await client.zadd(name, {f"{number:032x}": number for number in range(12_000)})
            await kept.delete("t", "resp_3")
            assert await client.zcard(name) == 10_000
            assert 0 < await client.pttl(name) <= 600_000


async def test_a_store_that_refuses_costs_the_response_alone(
    store: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with worker(store) as (kept, held):
        held.fails = True
        with caplog.at_level(logging.WARNING):
            kept.keep("t", made(1), given("q"), [], 60)
            await kept.find("t", "resp_1")
            async with asyncio.timeout(10):
                while await kept.find("t", "resp_1") is not None:
                    await asyncio.sleep(0.001)
        assert "1 responses are not kept: the store does not answer (full)" in caplog.text
        held.fails = False
        kept.keep("t", made(2), given("q"), [], 60)
        assert await kept.find("t", "resp_2") is not None


async def test_too_many_and_too_large(store: LocalStore, caplog: pytest.LogCaptureFixture) -> None:
    """Neither may take the worker's memory: they are dropped at once."""
    async with worker(store) as (kept, held):
        held.go.clear()
        for number in range(513):
            kept.keep("t", made(number), [], [], 60)
        assert "resp_512 is not kept: 512 others wait" in caplog.text
        assert await kept.find("t", "resp_511") is not None
        assert await kept.find("t", "resp_512") is None
        kept.keep("t", made(2000), given("x" * (8 << 20)), [], 60)
    assert "resp_2000 is not kept: it has 8388" in caplog.text


async def test_so_many_bytes_wait(
    store: LocalStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more than some of them are written at once."""
    monkeypatch.setattr(kept_responses, "_MOST_PENDING_BYTES", 45_000)
    monkeypatch.setattr(kept_responses, "_WRITTEN_AT_ONCE", 5_000)
    async with worker(store) as (kept, held):
        held.go.clear()
        for number in range(6):
            kept.keep("t", made(number), given("x" * 6_000), [], 60)
        assert "resp_4 is not kept: 4 others wait for the store, with 24" in caplog.text
        assert await kept.delete("t", "resp_0")
        kept.keep("t", made(6), given("x" * 6_000), [], 60)
        held.go.set()
    assert held.sizes == [2, 2, 2, 2]  # one response in each, and whose it is
    async with worker(store) as (kept, _):
        left = [number for number in range(7) if await kept.find("t", f"resp_{number}") is not None]
        assert left == [1, 2, 3, 6]


@pytest.mark.parametrize(("name", "most"), [("_MOST_PENDING_BYTES", 60_000), ("_MOST_PENDING", 10)])
async def test_a_tenant_leaves_room_for_the_others(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    """Of responses that wait for the store: one has half of the room, the next about half of what is left."""
    monkeypatch.setattr(kept_responses, name, most)
    async with worker(store) as (kept, held):
        held.go.clear()
        for tenant in "abc":
            for number in range(12):
                kept.keep(tenant, made(number), given("x" * 5_700), [], 60)
        waiting = {tenant: count for tenant, (count, _) in kept._waiting_of.items()}
        assert waiting == {"a": 5, "b": 3, "c": 1}
        held.go.set()
    assert not kept._waiting_of
    async with worker(store) as (later, _):
        assert [await later.find(tenant, "resp_0") is not None for tenant in "abcd"] == [True, True, True, False]


@pytest.mark.parametrize(
    "value",
    [b"", b"[]", b"nothing", b'["t",5,[],[]]', b'["t",{"id":"resp_2"},[],[]]', b'["u",{"id":"resp_1"},[],[]]'],
)
async def test_a_damaged_value_is_no_response(store: LocalStore, value: bytes) -> None:
    async with worker(store) as (kept, held):
        await held.ask([command("SET", kept.key_of("t", "resp_1"), value.decode())])
        assert await kept.find("t", "resp_1") is None


async def test_items_by_their_ids(store: LocalStore) -> None:
    async with worker(store) as (kept, _):
        kept.keep("t", made(1), given("q"), [], 60)
        wanted = {"msg_1": "resp_1", "msg_2": "resp_1", "msg_3": "resp_3"}
        assert await kept.items("t", wanted) == {"msg_1": made(1)["output"][0]}


async def test_without_a_store() -> None:
    kept = KeptResponses(NoStore(), b"", Caps())
    assert not kept.configured
    with pytest.raises(InvalidRequest):
        await kept.find("t", "resp_1")
    with pytest.raises(InvalidRequest):
        await kept.delete("t", "resp_1")


async def test_a_store_that_is_away() -> None:
    kept = KeptResponses(RedisStore.from_url("redis://127.0.0.1:1"), b"x" * 100, Caps())
    with pytest.raises(Overloaded) as caught:
        await kept.conversation("t", "resp_1")
    assert caught.value.code == "state_unavailable"


async def test_a_conversation_that_is_too_long_is_refused_by_name(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its number of responses nor their bytes can hold up the worker that reads them."""
    async with worker(store) as (kept, _):
        kept.keep("t", made(1, "a" * 3000), given("q"), [], 60)
        kept.keep("t", made(2, "b" * 3000), given("r"), ["resp_1"], 60)
    async with worker(store) as (kept, _):
        whole = await kept.conversation("t", "resp_2")
        assert whole is not None and whole[1] == ["resp_1", "resp_2"]
        for bound in ("_MOST_BEFORE", "_MOST_BYTES"):
            with monkeypatch.context() as patch:
                patch.setattr(f"gateway.parts.apis.stores.kept_responses.{bound}", 0)
                with pytest.raises(InvalidRequest, match="Begin a new one") as refused:
                    await kept.conversation("t", "resp_2")
                assert refused.value.param == "previous_response_id"


async def test_a_response_is_found_by_its_owner_alone(store: LocalStore) -> None:
    """Under a key that no other tenant's request can lead to, and with the owner in the value too."""
    async with worker(store) as (kept, _):
        kept.keep("acme", made(77), given("hi"), [], 60)
        await kept.find("acme", "resp_77")
        assert await kept.find("umbrella", "resp_77") is None
        assert not await kept.delete("umbrella", "resp_77")
        one, other = (kept.key_of(tenant, "resp_77").split(ENTRY) for tenant in ("acme", "umbrella"))
        assert one[0] != other[0], "the place of all of its responses"
        assert one[1] != other[1], "the id, so that a listing does not tell who has what"
        assert await kept.find("acme", "resp_77") is not None
