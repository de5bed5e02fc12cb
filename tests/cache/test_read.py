"""What waits for the store answers equal requests by the rules that hold for what is stored, and not for long."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from cache.entry import Demands, Lookup, StoredAnswer
from cache.planning.plan import CachePlan
from cache.read import LONGEST_S, Pending
from cache.response_cache import ResponseCache
from cache.store.base import NoStore
from cache.store.redis_store import RedisStore
from cache.write import CacheWrite, PendingWrite
from gateway.parts.cache_admin.administration import Administration
from tests.cache.samples import Facts, answer, body, policy

ITALY = "What is the capital of Italy?"


@pytest.fixture
def tenant() -> str:
    return secrets.token_hex(8)


@pytest_asyncio.fixture
async def cache(store: RedisStore) -> AsyncIterator[ResponseCache]:
    made = ResponseCache(store, embedder_name=secrets.token_hex(4), dimension=4)
    await made.start()
    yield made
    await made.aclose()


def planned(cache: ResponseCache, tenant: str, question: str = ITALY, **options: Any) -> CachePlan:
    return cache.plan(body(question), policy(), tenant, Facts(), **options)


def waiting(
    cache: ResponseCache, plan: CachePlan, kept: StoredAnswer | None = None, *, contested: bool = False
) -> PendingWrite:
    """An answer that has ended and is not written yet."""
    keep = CacheWrite(plan, answer() if kept is None else kept, contested=contested)
    keeping = PendingWrite(plan, lambda: keep)
    cache.pending.add(keeping)
    return keeping


async def exact(cache: ResponseCache, plan: CachePlan, tiers: set[str] | None = None) -> Lookup:
    """How a lookup ends once the store has the time to answer: on a busy machine it may miss its 20 ms."""
    async with asyncio.timeout(30):
        while (found := await cache.exact(plan, tiers)).outcome not in ("hit", "miss", "bypass"):
            await asyncio.sleep(0.02)
    return found


async def test_it_is_the_hit_that_the_store_gives_afterwards(cache: ResponseCache, tenant: str) -> None:
    """The same entry under the same id, before the write and after it; and no other request's answer."""
    keeping = waiting(cache, planned(cache, tenant))
    early = (await cache.exact(planned(cache, tenant))).hit
    assert (await exact(cache, planned(cache, tenant, "What is the capital of Spain?"))).hit is None
    assert (await exact(cache, planned(cache, f"{tenant}-2"))).hit is None
    keep = keeping.keep()
    assert keep is not None
    async with asyncio.timeout(30):
        while not (await cache.write_all([keep]))[0].stored:
            await asyncio.sleep(0.02)
    cache.pending.done(keeping)
    late = (await exact(cache, planned(cache, tenant))).hit
    assert early is not None
    assert late is not None
    assert (early.kind, early.entry_id, early.entry) == (late.kind, late.entry_id, late.entry)


async def test_it_is_gone_when_its_write_has_ended(cache: ResponseCache, tenant: str) -> None:
    """However that went; an answer that came later under the same key stays."""
    first = waiting(cache, planned(cache, tenant))
    second = waiting(cache, planned(cache, tenant), answer("Roma."))
    cache.pending.done(first)
    assert (await cache.exact(planned(cache, tenant))).outcome == "hit"
    cache.pending.done(second)
    assert (await exact(cache, planned(cache, tenant))).reason == "absent"


@pytest.mark.parametrize(
    ("options", "tiers", "reason"),
    [
        ({"demands": Demands(max_age_s=-1)}, None, "max-age"),
        ({"demands": Demands(min_fresh_s=1e9)}, None, "min-fresh"),
        ({}, {"hosted"}, "tier"),
        ({"read": False}, None, "no-cache"),
    ],
)
async def test_a_request_may_ask_for_more_than_what_waits(
    cache: ResponseCache, tenant: str, options: dict[str, Any], tiers: set[str] | None, reason: str
) -> None:
    """Younger, fresher, a stronger tier's, or none that is kept: as of what is stored."""
    waiting(cache, planned(cache, tenant))
    assert (await exact(cache, planned(cache, tenant, **options), tiers)).reason == reason


async def test_what_its_source_has_outlived_is_not_served(cache: ResponseCache, store: RedisStore, tenant: str) -> None:
    """A tag purged since the model was asked makes it a miss, whether the next request names the tag or not."""
    plan = planned(cache, tenant, tags=["doc:1"])
    assert (await exact(cache, plan)).outcome == "miss"
    waiting(cache, plan)
    for tags in ([], ["doc:1"]):
        assert (await exact(cache, planned(cache, tenant, tags=tags))).outcome == "hit"
    await Administration(store).purge_tag("doc:1")
    for tags in ([], ["doc:1"]):
        assert (await exact(cache, planned(cache, tenant, tags=tags))).reason == "tag"


async def test_a_weaker_tiers_fresh_answer_waits_behind_what_is_stored(cache: ResponseCache, tenant: str) -> None:
    """Where the request passed over what is stored, a stronger tier's answer stays; a weaker one's gives way."""
    for stored, came, served in (("hosted", "local", "old"), ("local", "hosted", "new"), ("local", "local", "new")):
        who = f"{tenant}-{stored}-{came}"
        async with asyncio.timeout(30):
            while not (await cache.write(planned(cache, who), answer("old", stored))).stored:
                await asyncio.sleep(0.02)
        waiting(cache, planned(cache, who, read=False), answer("new", came), contested=True)
        hit = (await exact(cache, planned(cache, who))).hit
        assert hit is not None
        assert served.encode() in hit.entry.body


async def test_what_may_not_be_kept_is_not_served(cache: ResponseCache, tenant: str) -> None:
    """An answer that was cut off, a fault found in it, no-store, or one that nobody can put together."""
    waiting(cache, planned(cache, tenant), answer(finish_reason="length"))
    assert (await exact(cache, planned(cache, tenant))).reason == "absent"
    waiting(cache, planned(cache, tenant, write=False))
    assert (await exact(cache, planned(cache, tenant))).reason == "absent"
    for make in (lambda: CacheWrite(planned(cache, tenant), answer(), fault="repetition"), lambda: None, lambda: 1 / 0):
        cache.pending.add(PendingWrite(planned(cache, tenant), make))  # type: ignore[arg-type]
        assert (await exact(cache, planned(cache, tenant))).reason == "absent"
        assert len(cache.pending) == 0


async def test_nothing_waits_for_ever_and_only_so_much_waits(cache: ResponseCache, tenant: str) -> None:
    """After a time limit it is no hit, whatever became of the write; beyond a number the oldest go."""
    now = [0.0]
    cache.pending._clock = lambda: now[0]
    waiting(cache, planned(cache, tenant))
    now[0] = LONGEST_S
    assert (await exact(cache, planned(cache, tenant))).reason == "absent"
    assert len(cache.pending) == 0
    cache.pending._most = 2
    for question in ("One?", "Two?", "Three?"):
        waiting(cache, planned(cache, tenant, question))
    found = [(await exact(cache, planned(cache, tenant, one))).outcome for one in ("One?", "Two?", "Three?")]
    assert found == ["miss", "hit", "hit"]


async def test_without_a_store_nothing_waits_for_it(cache: ResponseCache, tenant: str) -> None:
    """Nobody would ever have it."""
    pending = Pending(NoStore(), cache._keeper)
    pending.add(PendingWrite(planned(cache, tenant), lambda: None))
    assert len(pending) == 0
