"""The sum of a day's spending: it outlasts a full store, and goes when later days begin."""

from __future__ import annotations

from cache.store.base import Write
from cache.store.redis_store import RedisStore
from gateway.parts.measures.daily_budget import DailyBudget
from tests.support.store import UNHURRIED, local_store


async def test_a_full_store_does_not_forget_what_was_spent() -> None:
    """It evicts what can be made anew, so the day's cap holds."""
    with local_store("--maxmemory 6mb --maxmemory-policy volatile-lfu") as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        budget = DailyBudget(store)
        assert await budget.reserve("chat", 0.8, 1.0) is not None
        for number in range(200):
            await store.apply([Write(f"answer:{number}", b"x" * 60_000, 86_400)])
        assert (await store.memory()).evicted > 100
        assert await budget.spent("chat") == 0.8
        assert await budget.reserve("chat", 0.3, 1.0) is None
        await store.aclose()


async def test_only_the_last_two_days_are_kept() -> None:
    """A reservation of yesterday may be settled after midnight; what is older says nothing to anybody."""
    now = [1_700_000_000.0]
    with local_store() as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        budget = DailyBudget(store, lambda: now[0])
        for day in range(4):
            now[0] = 1_700_000_000.0 + day * 86_400
            late = await budget.reserve("chat", 0.5, 1.0)
        now[0] += 86_400
        assert await budget.spent("chat") == 0
        assert await budget.reserve("shadow:chat", 0.5, 1.0) is not None
        assert late is not None
        await budget.settle(late, 0.25)
        spent = {}
        for day in range(5):
            now[0] = 1_700_000_000.0 + day * 86_400
            spent[day] = await budget.spent("chat")
        assert spent == {0: 0, 1: 0, 2: 0, 3: 0.25, 4: 0}
        await store.aclose()


async def test_one_of_several_tenants_has_half_of_what_the_others_leave() -> None:
    """Whoever comes first does not use up what is there for all; one that is alone may."""
    with local_store() as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        budget = DailyBudget(store)
        assert await budget.reserve("chat", 0.51, 1.0, "acme") is None
        first = await budget.reserve("chat", 0.5, 1.0, "acme")
        assert first is not None
        assert await budget.reserve("chat", 0.01, 1.0, "acme") is None
        assert await budget.reserve("chat", 0.26, 1.0, "gamma") is None
        assert await budget.reserve("chat", 0.25, 1.0, "gamma") is not None
        assert await budget.reserve("verify:chat", 0.5, 1.0, "acme") is not None
        await budget.settle(first, 0.1)
        assert [await budget.spent("chat", tenant) for tenant in ("", "acme", "gamma")] == [0.35, 0.1, 0.25]
        assert await budget.reserve("chat", 0.25, 1.0, "acme") is not None
        assert await budget.reserve("chat", 0.41, 1.0) is None
        assert await budget.reserve("chat", 0.4, 1.0) is not None
        await store.aclose()
