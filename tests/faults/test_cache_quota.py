"""S16 of the fault table, and what a full store does to the caps of scopes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from cache.entry import Lookup
from cache.planning.plan import CachePlan
from cache.response_cache import ResponseCache
from cache.scopes.scope import Caps
from cache.store.redis_store import RedisStore
from cache.write import CacheWrite
from gateway.parts.cache_admin.administration import Administration
from tests.cache.samples import Facts, answer, body, policy
from tests.support.store import UNHURRIED, local_store

_FACTS = Facts()


async def _written(cache: ResponseCache, keeps: list[CacheWrite]) -> None:
    """All of them, however busy the machine is."""
    while keeps:
        outcomes = await cache.write_all(keeps[:50])
        keeps = keeps[50:] + [keep for keep, outcome in zip(keeps, outcomes, strict=False) if not outcome.stored]


async def _looked_up(look_up: Callable[[], Awaitable[Lookup]]) -> Lookup:
    """What comes of it once the store has had the time to answer."""
    deadline = time.monotonic() + 10
    while (found := await look_up()).outcome not in ("hit", "miss") and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return found


def _plan(cache: ResponseCache, question: str, tenant: str) -> CachePlan:
    return cache.plan(body(question), policy(), tenant, _FACTS)


@pytest.mark.parametrize(("prompts", "cap"), [(1_500, 300), pytest.param(10_000, 2_000, marks=pytest.mark.long)])
async def test_s16_thousands_of_prompts_of_one_tenant_evict_nobody_else(prompts: int, cap: int) -> None:
    """What the others keep is there afterwards, exactly and by meaning, and the flood holds its own latest prompts."""
    with local_store("--maxmemory 64mb --maxmemory-policy volatile-lfu") as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        cache = ResponseCache(store, embedder_name="e", dimension=4, caps=Caps(entries=cap))
        await cache.start()
        axes = np.eye(4, dtype=np.float32)
        quiet = [_plan(cache, "What is the capital of Italy?", f"quiet-{i}") for i in range(20)]
        await _written(cache, [CacheWrite(plan, answer(), axes[0]) for plan in quiet])
        flood = (_plan(cache, f"Tell me of number {i}", "loud") for i in range(prompts))
        await _written(cache, [CacheWrite(plan, answer(f"Answer {i}."), axes[1]) for i, plan in enumerate(flood)])
        held = {one.scope.owner: one.entries for one in await Administration(store).stats()}
        assert held.pop("tenant:loud") <= cap
        assert held == {f"tenant:quiet-{i}": 1 for i in range(20)}
        for i, plan in enumerate(quiet):
            assert (await _looked_up(lambda plan=plan: cache.exact(plan))).outcome == "hit"
            other = _plan(cache, "what's the capital of Italy", f"quiet-{i}")
            assert (await _looked_up(lambda plan=other: cache.semantic(plan, axes[0]))).outcome == "hit"
        await cache.aclose()
        await store.aclose()


async def test_r4_a_full_store_refuses_entries_and_goes_on_serving_them() -> None:
    """Where the server evicts nothing itself, a write is `full`, counted, and what is there is still found."""
    with local_store("--maxmemory 4mb --maxmemory-policy noeviction") as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        cache = ResponseCache(store, embedder_name="e", dimension=4)
        await cache.start()
        first = _plan(cache, "What is the capital of Italy?", "t")
        await _written(cache, [CacheWrite(first, answer())])
        reasons = set()
        for i in range(200):
            noise = np.random.default_rng(i).bytes(50_000).hex()
            reasons.add((await cache.write(_plan(cache, f"Number {i}?", "t"), answer(noise))).reason)
            if "full" in reasons:
                break
        assert "full" in reasons
        assert (await _looked_up(lambda: cache.exact(first))).outcome == "hit"
        assert store.state().reason == "full"
        await cache.aclose()
        await store.aclose()
