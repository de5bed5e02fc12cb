"""What a request asks of a stored answer, and what stored answers may take each other's place, at the cache itself."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio

from cache.entry import Demands
from cache.planning.plan import CachePlan
from cache.response_cache import ResponseCache
from cache.store.redis_store import RedisStore
from cache.write import CacheWrite
from tests.cache.samples import Facts, answer, body, policy

ITALY, SAME = "What is the capital of Italy?", "what's the capital of Italy"
NEAR = float(np.cos(0.2))
HOUR = 3600


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def vector(angle: float = 0.0) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Unit vectors in a plane: the similarity of two is the cosine of the angle between them."""
    return np.array([np.cos(angle), np.sin(angle), 0, 0], np.float32)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest_asyncio.fixture
async def cache(store: RedisStore, clock: Clock) -> AsyncIterator[ResponseCache]:
    made = ResponseCache(
        store, embedder_name=secrets.token_hex(4), dimension=4, secret=secrets.token_bytes(32), clock=clock
    )
    await made.start()
    yield made
    await made.aclose()


def planner(cache: ResponseCache, **demands: float) -> CachePlan:
    """The plan of one question with these demands."""
    return cache.plan(body(ITALY), policy(), "t", Facts(), demands=Demands(**demands))


async def test_age_and_freshness_are_held_against_the_entry(cache: ResponseCache, clock: Clock) -> None:
    """An answer older than max-age, or with less left than min-fresh, is a miss that says which."""
    await cache.write(cache.plan(body(ITALY), policy(), "t", Facts()), answer(), vector())
    clock.now += 600
    assert (await cache.exact(planner(cache, max_age_s=600))).outcome == "hit"
    assert (await cache.exact(planner(cache, max_age_s=599))).reason == "max-age"
    assert (await cache.exact(planner(cache, min_fresh_s=23 * HOUR))).outcome == "hit"
    assert (await cache.exact(planner(cache, min_fresh_s=24 * HOUR))).reason == "min-fresh"
    # By meaning it lives for six hours only; and what is too old for one request is not forgotten for others.
    found = await cache.semantic(planner(cache, min_fresh_s=6 * HOUR), vector())
    assert found.reason == "min-fresh"
    assert (await cache.semantic(planner(cache), vector())).outcome == "hit"


async def test_a_request_may_raise_the_similarity_and_not_lower_it(cache: ResponseCache) -> None:
    """A nearer question than the policy's may be asked for; a farther one changes nothing."""
    await cache.write(cache.plan(body(ITALY), policy(), "t", Facts()), answer(), vector())
    asked = {
        least: cache.plan(body(SAME), policy(), "t", Facts(), demands=Demands(min_similarity=least))
        for least in (0.5, NEAR - 0.001, 0.99)
    }
    assert [(await cache.semantic(plan, vector(0.2))).outcome for plan in asked.values()] == ["hit", "hit", "miss"]
    assert (await cache.semantic(asked[0.99], vector(0.2))).reason == "min-similarity"
    assert (await cache.semantic(asked[0.5], vector(1.0))).outcome == "miss"


async def test_a_back_filled_answer_keeps_its_similarity_and_its_time(cache: ResponseCache, clock: Clock) -> None:
    """Under the exact key too it is another question's answer: no nearer than it was, and no younger."""
    await cache.write(cache.plan(body(ITALY), policy(), "t", Facts()), answer(), vector())
    plan = cache.plan(body(SAME), policy(), "t", Facts())
    clock.now += 5 * HOUR
    assert (await cache.semantic(plan, vector(0.2))).outcome == "hit"
    async with asyncio.timeout(30):
        while (found := (await cache.exact(plan)).hit) is None:
            await asyncio.sleep(0.01)
    near = cache.plan(body(SAME), policy(), "t", Facts(), demands=Demands(min_similarity=0.99))
    assert (await cache.exact(near)).reason == "min-similarity"
    assert (found.age_s, found.entry.expires_at) == (5 * HOUR, clock.now + HOUR)
    clock.now += HOUR
    assert (await cache.exact(plan)).hit is None


async def test_one_who_passed_over_the_exact_entry_back_fills_nothing(cache: ResponseCache) -> None:
    """Its exact key may hold a better answer than the neighbour's, which only this request would not have."""
    await cache.write(cache.plan(body(ITALY), policy(), "t", Facts()), answer("Roma.", "local"), vector())
    plan = cache.plan(body(SAME), policy(), "t", Facts())
    await cache.write(plan, answer("Rome.", "hosted"), vector(0.2))
    assert (await cache.exact(plan, {"local"})).reason == "tier"
    found = await cache.semantic(plan, vector(0.05), {"local"})
    assert found.hit is not None and b"Roma." in found.hit.entry.body
    assert (await cache.semantic(plan, vector(0.05), {"other"})).reason == "tier"
    await cache.aclose()
    kept = (await cache.exact(plan)).hit
    assert kept is not None and b"Rome." in kept.entry.body


async def test_a_nearer_question_in_other_words_serves_who_asks_for_more_than_the_equal_one_has(
    cache: ResponseCache, clock: Clock
) -> None:
    """An equal text is chosen first; where this request may not have its answer, the neighbours behind it are tried."""
    await cache.write(cache.plan(body(SAME), policy(), "t", Facts()), answer("Rome."), vector(0.2))
    clock.now += HOUR
    await cache.write(cache.plan(body(ITALY), policy(), "t", Facts()), answer("Roma."), vector())
    for demands in (Demands(max_age_s=HOUR / 2), Demands(min_fresh_s=5.5 * HOUR), Demands(min_similarity=0.998)):
        plan = cache.plan(body(SAME), policy(), "t", Facts(), demands=demands)
        found = await cache.semantic(plan, vector(0.05))
        assert found.hit is not None and b"Roma." in found.hit.entry.body, demands
    unmet = cache.plan(body(SAME), policy(), "t", Facts(), demands=Demands(min_fresh_s=7 * HOUR))
    found = await cache.semantic(unmet, vector(0.05))
    assert (found.reason, found.question) == ("min-fresh", SAME)


@pytest.mark.parametrize(
    ("there", "new", "contested", "stored"),
    [
        ("local", "hosted", True, True),
        ("hosted", "local", True, False),
        ("hosted", "hosted", True, True),
        ("gone", "local", True, True),
        ("hosted", "local", False, True),
    ],
)
async def test_a_weaker_answer_takes_no_stronger_ones_place(
    cache: ResponseCache, there: str, new: str, contested: bool, stored: bool
) -> None:
    """Of two tiers the stronger one's answer stays; of the same, or one that the policy has no more, the newer.

    Who has not passed over what is stored has found nothing there, and need not look again.
    """
    plan = cache.plan(body(ITALY), policy(), "t", Facts())
    await cache.write(plan, answer("old", there))
    [outcome] = await cache.write_all([CacheWrite(plan, answer("new", new), contested=contested)])
    assert (outcome.stored, outcome.reason) == ((True, "") if stored else (False, "weaker"))
    hit = (await cache.exact(plan)).hit
    assert hit is not None
    assert (b"new" in hit.entry.body, hit.entry.tier) == (stored, new if stored else there)


async def test_a_weaker_answer_takes_no_stronger_ones_place_that_is_written_with_it(cache: ResponseCache) -> None:
    """Answers that wait together are written in one round trip, in which the store has none of them yet."""
    plan = cache.plan(body(ITALY), policy(), "t", Facts())
    await cache.write(plan, answer("old", "local"))
    keeps = [
        CacheWrite(plan, answer(text, tier), contested=True) for text, tier in (("strong", "hosted"), ("new", "local"))
    ]
    assert [outcome.reason for outcome in await cache.write_all(keeps)] == ["", "weaker"]
    hit = (await cache.exact(plan)).hit
    assert hit is not None and hit.entry.tier == "hosted"
