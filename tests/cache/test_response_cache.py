from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
import pytest_asyncio

from cache.entry import CacheEntry
from cache.index import Vector
from cache.planning.plan import CachePlan
from cache.response_cache import ResponseCache
from cache.store.base import StoreUnavailable
from cache.store.redis_store import RedisStore
from cache.write import CacheWrite
from policies.model import Policy
from tests.cache.samples import Facts, answer, body, doubtful_text, policy
from tests.support.wait import eventually

ITALY, SAME, SPAIN = "What is the capital of Italy?", "what's the capital of Italy", "What is the capital of Spain?"
FACTS = Facts()


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def vector(angle: float = 0.0) -> Vector:
    """Unit vectors in a plane: the similarity of two is the cosine of the angle between them."""
    return np.array([np.cos(angle), np.sin(angle), 0, 0], np.float32)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tenant() -> str:
    return secrets.token_hex(8)


@pytest_asyncio.fixture
async def cache(store: RedisStore, clock: Clock) -> AsyncIterator[ResponseCache]:
    """One worker's cache, on index streams of its own."""
    made = ResponseCache(store, embedder_name=secrets.token_hex(4), dimension=4, secret=b"s" * 100, clock=clock)
    await made.start()
    yield made
    await made.aclose()


async def test_what_was_written_is_found_exactly(cache: ResponseCache, clock: Clock, tenant: str) -> None:
    """The same request again, streamed or not, is a hit with the answer as it was and its age."""
    plan = cache.plan(body(ITALY), policy(), tenant, FACTS)
    assert (await cache.exact(plan)).outcome == "miss"
    assert (await cache.write(plan, answer())).stored
    clock.now += 60
    again = cache.plan(body(ITALY, stream=True, user="u"), policy(), tenant, FACTS)
    hit = (await cache.exact(again)).hit
    assert hit is not None
    assert orjson.loads(hit.entry.body) == {"created": None, **answer().completion}
    assert (hit.kind, hit.age_s, hit.entry.tier, hit.entry.policy) == ("exact", 60, "local", "chat@1234567")
    assert len(hit.entry_id) == 12


async def test_an_edited_threshold_keeps_what_is_stored_and_another_model_never_sees_it(
    cache: ResponseCache, tenant: str
) -> None:
    """Exactly and by meaning; with the old model back, its answers are there again."""

    def rules(version: str, answers_version: str) -> Policy:
        return policy(version).model_copy(update={"answers_version": answers_version})

    async def found(policy: Policy) -> list[str]:
        exact = await cache.exact(cache.plan(body(ITALY), policy, tenant, FACTS))
        near = await cache.semantic(cache.plan(body(SAME), policy, tenant, FACTS), vector(0.1))
        return [exact.outcome, near.outcome]

    assert (await cache.write(cache.plan(body(ITALY), rules("1" * 7, "a"), tenant, FACTS), answer(), vector())).stored
    assert await found(rules("2" * 7, "b")) == ["miss", "miss"]
    assert await found(rules("2" * 7, "a")) == ["hit", "hit"]
    assert await found(rules("1" * 7, "b")) == ["miss", "miss"]


async def test_what_means_the_same_is_found_and_back_filled(cache: ResponseCache, clock: Clock, tenant: str) -> None:
    """A rephrasing is a semantic hit; from then on it is an exact one, no younger than the answer."""
    await cache.write(cache.plan(body(ITALY), policy(), tenant, FACTS), answer(), vector())
    plan = cache.plan(body(SAME), policy(), tenant, FACTS)
    assert (await cache.exact(plan)).outcome == "miss"
    found = await cache.semantic(plan, vector(0.1))
    assert found.hit is not None
    assert found.hit.kind == "semantic"
    assert found.hit.similarity == pytest.approx(np.cos(0.1), abs=1e-4)
    assert found.question == ITALY
    async with asyncio.timeout(30):
        while (exact := await cache.exact(plan)).hit is None:
            await asyncio.sleep(0.01)
    assert exact.hit.entry.expires_at == clock.now + 6 * 3600


async def test_a_neighbour_must_be_near_and_pass_the_guards(cache: ResponseCache, tenant: str) -> None:
    """A miss says how near the nearest was, and what spoke against it."""
    await cache.write(cache.plan(body(ITALY), policy(), tenant, FACTS), answer(), vector())
    far = await cache.semantic(cache.plan(body(SAME), policy(), tenant, FACTS), vector(1.0))
    assert (far.outcome, far.reason, far.question) == ("miss", "similarity", ITALY)
    assert far.similarity == pytest.approx(np.cos(1.0), abs=1e-4)
    trap = await cache.semantic(cache.plan(body(SPAIN), policy(), tenant, FACTS), vector(0.01))
    assert (trap.outcome, trap.reason) == ("miss", "guard: entities")


async def test_a_second_neighbour_may_pass_where_the_first_did_not(cache: ResponseCache, tenant: str) -> None:
    """The nearest is not always the one that means the same."""
    await cache.write(cache.plan(body(ITALY), policy(), tenant, FACTS), answer("Rome."), vector(0.1))
    await cache.write(cache.plan(body(SPAIN), policy(), tenant, FACTS), answer("Madrid."), vector(0.0))
    found = await cache.semantic(cache.plan(body(SAME), policy(), tenant, FACTS), vector(0.01))
    assert found.hit is not None
    assert b"Rome." in found.hit.entry.body


async def test_tenants_surfaces_and_policies_never_meet(cache: ResponseCache, tenant: str) -> None:
    """Another tenant, another policy version or another history finds nothing, exactly or by meaning."""
    await cache.write(cache.plan(body(ITALY), policy(), tenant, FACTS), answer(), vector())
    history = body(ITALY)
    history["messages"].insert(1, {"role": "assistant", "content": "Hello."})
    for plan in (
        cache.plan(body(ITALY), policy(), tenant + "x", FACTS),
        cache.plan(body(ITALY), policy("7654321"), tenant, FACTS),
        cache.plan(body(ITALY), policy(), tenant, FACTS, model="tier:hosted"),
        cache.plan(history, policy(), tenant, FACTS),
    ):
        assert (await cache.exact(plan)).outcome == "miss"
        assert (await cache.semantic(plan, vector())).reason == "no_neighbour"


async def test_a_pinned_request_gets_no_weaker_answer(cache: ResponseCache, tenant: str) -> None:
    """An answer of a tier that is not allowed is a miss, in both caches; a stronger one then takes its place."""
    plan = cache.plan(body(ITALY), policy(), tenant, FACTS)
    await cache.write(plan, answer(), vector())
    hosted = frozenset({"hosted"})
    assert (await cache.exact(plan, hosted)).reason == "tier"
    assert (await cache.semantic(plan, vector(), hosted)).reason == "tier"
    await cache.write(plan, answer("Rome!", "hosted"), vector())
    assert (await cache.exact(plan, hosted)).outcome == "hit"
    assert (await cache.exact(plan)).outcome == "hit"


async def test_the_times_of_each_cache_are_its_own(cache: ResponseCache, clock: Clock, tenant: str) -> None:
    """An entry outlives its life in the semantic cache as an exact one, and not its own."""
    plan = cache.plan(body(ITALY), policy(), tenant, FACTS)
    await cache.write(plan, answer(), vector())
    clock.now += 7 * 3600
    assert (await cache.semantic(plan, vector())).outcome == "miss"
    assert (await cache.exact(plan)).outcome == "hit"
    clock.now += 18 * 3600
    assert (await cache.exact(plan)).reason == "expired"


async def test_a_client_may_refuse_reading_or_keeping(cache: ResponseCache, tenant: str) -> None:
    """no-cache looks nothing up and still keeps the answer; no-store keeps nothing."""
    fresh = cache.plan(body(ITALY), policy(), tenant, FACTS, read=False)
    secret = cache.plan(body(ITALY), policy(), tenant, FACTS, write=False)
    assert (await cache.write(secret, answer(), vector())).reason == "no-store"
    assert (await cache.exact(secret)).outcome == "miss"
    assert (await cache.write(fresh, answer(), vector())).stored
    assert (await cache.exact(fresh)).reason == (await cache.semantic(fresh, vector())).reason == "no-cache"
    assert (await cache.exact(secret)).outcome == "hit"


async def test_ineligible_requests_and_answers_are_left_alone(cache: ResponseCache, tenant: str) -> None:
    """A bypass says why; an answer that is not whole, or too big, is not kept."""
    never = cache.plan(body(ITALY), policy(never=("tools",)), tenant, Facts(has_tools=True))
    assert ((await cache.exact(never)).outcome, never.reason) == ("bypass", "never: tools")
    assert (await cache.semantic(never, vector())).outcome == "bypass"
    assert (await cache.write(never, answer(), vector())).reason == "never: tools"
    plan = cache.plan(body(ITALY), policy(), tenant, FACTS)
    assert (await cache.write(plan, answer(finish_reason="length"), vector())).reason == "finish: length"
    assert (await cache.write(plan, answer("x" * 2_000_000), vector())).reason == "size"
    assert (await cache.exact(plan)).outcome == "miss"


async def test_a_rule_on_volatile_governs_both_caches(cache: ResponseCache, tenant: str) -> None:
    """Without one what passes with the day is kept by both."""
    question = "What is the weather in Rome?"
    plan = cache.plan(body(question), policy(), tenant, Facts(question))
    assert (await cache.write(plan, answer(), vector())).stored
    assert (await cache.exact(plan)).outcome == (await cache.semantic(plan, vector())).outcome == "hit"
    never = cache.plan(body(question), policy("aaaaaaa", never=("volatile",)), tenant, Facts(question))
    assert (await cache.write(never, answer(), vector())).reason == "never: volatile"
    assert [found.reason for found in (await cache.exact(never), await cache.semantic(never, vector()))] == [
        "never: volatile"
    ] * 2


async def test_what_may_be_volatile_is_kept_for_a_short_time(cache: ResponseCache, clock: Clock, tenant: str) -> None:
    """By both caches, and the entry says so."""
    question, rules = doubtful_text(), policy(never=("volatile",), doubt_ttl="5m")
    plan = cache.plan(body(question), rules, tenant, Facts(question))
    assert (await cache.write(plan, answer(), vector())).stored
    clock.now += 299
    for found in (await cache.exact(plan), await cache.semantic(plan, vector())):
        assert found.hit is not None and found.hit.entry.in_doubt
    clock.now += 2
    assert (await cache.exact(plan)).reason == "expired"
    assert (await cache.semantic(plan, vector())).outcome == "miss"


async def test_a_question_in_doubt_gets_no_old_answer_of_another(
    cache: ResponseCache, clock: Clock, tenant: str
) -> None:
    """The older answer stays there for those who ask what is not in doubt, and a copy of a fresh one lives briefly."""
    question, rules = doubtful_text(), policy(never=("volatile",), doubt_ttl="5m")
    plan = cache.plan(body(ITALY), rules, tenant, Facts(ITALY))
    assert (await cache.write(plan, answer(), vector())).stored
    doubtful = cache.plan(body(SAME), rules, tenant, Facts(question))
    clock.now += 301
    assert (await cache.semantic(doubtful, vector())).reason == "in_doubt"
    assert (await cache.semantic(plan, vector())).outcome == "hit"
    clock.now -= 200
    found = await cache.semantic(doubtful, vector())
    assert found.hit is not None and not found.hit.entry.in_doubt
    copy = await found_exactly(cache, doubtful)
    assert copy.in_doubt and copy.expires_at - copy.created_at == 300


async def found_exactly(cache: ResponseCache, plan: CachePlan) -> CacheEntry:
    """Return the entry of an equal request, once it is stored."""
    hit = None
    for _ in range(100):
        hit = (await cache.exact(plan)).hit
        if hit is not None:
            break
        await asyncio.sleep(0.01)
    assert hit is not None
    return hit.entry


async def test_one_cache_without_the_other(cache: ResponseCache, tenant: str) -> None:
    """A policy may have either cache alone."""
    semantic_only = policy(exact=None)
    plan = cache.plan(body(ITALY), semantic_only, tenant, FACTS)
    await cache.write(plan, answer(), vector())
    assert (await cache.exact(plan)).reason == "policy"
    assert (await cache.semantic(plan, vector())).outcome == "hit"
    exact_only = policy("aaaaaaa", semantic=None)
    plan = cache.plan(body(ITALY), exact_only, tenant, FACTS)
    await cache.write(plan, answer(), vector())
    assert (await cache.exact(plan)).outcome == "hit"
    assert (await cache.semantic(plan, vector())).reason == "policy"


async def test_another_worker_finds_it_too(store: RedisStore, clock: Clock, tenant: str) -> None:
    """What one worker keeps, another finds by meaning, also when it started later."""
    name = secrets.token_hex(4)
    writer, reader = (ResponseCache(store, embedder_name=name, dimension=4, clock=clock) for _ in range(2))
    await writer.start()
    await writer.write(writer.plan(body(ITALY), policy(), tenant, FACTS), answer(), vector())
    await reader.start()
    await eventually(lambda: len(reader.index) == 1, what="the other worker's record")
    found = await reader.semantic(reader.plan(body(SAME), policy(), tenant, FACTS), vector())
    assert found.outcome == "hit"
    await reader.aclose()
    await writer.aclose()


@pytest.mark.parametrize("broken", [np.full(4, np.nan), np.zeros(4), np.ones(5) / 5**0.5])
async def test_a_broken_vector_costs_only_the_semantic_cache(
    cache: ResponseCache, tenant: str, broken: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> None:
    """NaN, nothing or another dimension: the answer is kept and found exactly (R13)."""
    plan = cache.plan(body(ITALY), policy(), tenant, FACTS)
    assert (await cache.write(plan, answer(), broken.astype(np.float32))).stored
    assert (await cache.semantic(plan, broken.astype(np.float32))).reason == "vector"
    assert (await cache.exact(plan)).outcome == "hit"
    assert len(cache.index) == 0


async def test_a_copy_that_the_store_did_not_take_has_registered_no_scope(
    cache: ResponseCache, store: RedisStore, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that lists its scope for purges went with it: the next write sends it again."""
    plan = cache.plan(body(ITALY), policy(), tenant, FACTS)
    assert (await cache.write(plan, answer(), vector())).stored
    assert plan.scope is not None
    registry = cache._keeper.registry
    registry.forget()

    async def lost(_: object) -> None:
        raise StoreUnavailable("lost")

    monkeypatch.setattr(store, "apply", lost)
    asked = cache.plan(body(SAME), policy(), tenant, FACTS)
    assert (await cache.semantic(asked, vector())).outcome == "hit"
    assert registry.enter(plan.scope, 1.0) == ()
    await cache.delayed.aclose()
    assert registry.enter(plan.scope, 1.0) != ()


async def test_too_much_to_do_later_is_dropped(cache: ResponseCache, store: RedisStore, tenant: str) -> None:
    """Nothing said to the store afterwards can pile up without end, nor can its failing be heard."""
    begun: list[str] = []

    async def stuck(key: str) -> None:
        begun.append(key)
        await asyncio.sleep(0.2)
        raise StoreUnavailable("lost")

    store.delete = stuck  # type: ignore[method-assign]
    for i in range(1100):
        cache._later(store.delete(str(i)))
    await cache.aclose()
    assert begun == [str(i) for i in range(1000)]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"choices": [{"finish_reason": "stop", "message": "Rome."}]}, "malformed"),
        ({"choices": ["Rome."]}, "malformed"),
        ({**answer().completion, "extra": object()}, "malformed"),
        ({**answer().completion, "extra": "\ud800"}, "malformed"),
    ],
)
async def test_one_bad_answer_of_a_batch_is_refused_alone(
    cache: ResponseCache, tenant: str, broken: dict[str, Any], reason: str
) -> None:
    """Whatever an answer looks like, it costs neither its batch nor more than its own place in the cache."""
    plans = [cache.plan(body(question), policy(), tenant, FACTS) for question in (ITALY, SPAIN, SAME)]
    answers = [answer("Rome."), replace(answer(), completion=broken), answer("Rome.")]
    outcomes = await cache.write_all(
        [CacheWrite(plan, one, vector()) for plan, one in zip(plans, answers, strict=True)]
    )
    assert [(one.stored, one.reason) for one in outcomes] == [(True, ""), (False, reason), (True, "")]
    assert [(await cache.exact(plan)).outcome for plan in plans] == ["hit", "miss", "hit"]


async def test_a_text_to_work_on_is_kept_exactly_only(cache: ResponseCache, tenant: str) -> None:
    """Two requests that differ only in the text they bring are near in meaning, and never share an answer."""
    kept = cache.plan(body("Translate to German: the dog is in the house"), policy(), tenant, FACTS)
    assert (await cache.write(kept, answer("Der Hund ist im Haus."), vector())).stored
    other = cache.plan(body("Translate to German: the dog is on the house"), policy(), tenant, FACTS)
    found = await cache.semantic(other, vector())
    assert (found.outcome, found.reason) == ("bypass", "payload")
    assert len(cache.index) == 0
    assert (await cache.exact(kept)).outcome == "hit"


async def test_a_question_that_its_vector_may_not_cover_is_never_looked_up_by_meaning(store: RedisStore) -> None:
    """Two long texts that differ only where the encoder does not read have the same vector, and not the same answer."""
    cache = ResponseCache(store, embedder_name=secrets.token_hex(4), dimension=4, longest_question=len(ITALY) - 1)
    assert cache.plan(body(ITALY), policy(), "t", FACTS).why_not_semantic() == "long"
