from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from cache.entry import Lookup, StoredAnswer
from cache.index import Vector
from cache.planning.plan import CachePlan
from cache.response_cache import ResponseCache
from cache.scopes.scope import ENTRY, LISTED, SEEN_S, Caps, Generations, drop, put
from cache.store.base import Command
from cache.store.redis_store import RedisStore
from cache.write import CacheWrite, PendingWrite
from gateway.parts.cache_admin.administration import Administration
from policies.model import Policy
from tests.cache.samples import Facts, answer, body, policy
from tests.support.ports import free_port
from tests.support.store import UNHURRIED, LocalStore, local_store
from tests.support.wait import eventually

ITALY, SAME = "What is the capital of Italy?", "what's the capital of Italy"
FACTS = Facts()
CAPS = Caps(entries=50, bytes=40_000)


def vector(angle: float = 0.0) -> Vector:
    return np.array([np.cos(angle), np.sin(angle), 0, 0], np.float32)


@pytest.fixture
def tenant() -> str:
    return secrets.token_hex(8)


@pytest_asyncio.fixture
async def cache(store: RedisStore) -> AsyncIterator[ResponseCache]:
    """One worker's cache; the tenants `red-...` are of one team."""
    teams = {"red-1": "red", "red-2": "red", "blue": "blue"}
    made = ResponseCache(store, embedder_name=secrets.token_hex(4), dimension=4, teams=teams, caps=CAPS)
    await made.start()
    yield made
    await made.aclose()


@pytest.fixture
def admin(store: RedisStore) -> Administration:
    return Administration(store)


def planned(cache: ResponseCache, question: str, tenant: str, rules: Policy | None = None, **options: Any) -> CachePlan:
    return cache.plan(body(question), rules or policy(), tenant, FACTS, **options)


async def answered(look_up: Callable[[], Awaitable[Lookup]]) -> Lookup:
    """How a lookup ends once the store has the time to answer: on a busy machine it may miss its 20 ms."""
    async with asyncio.timeout(30):
        while (found := await look_up()).outcome not in ("hit", "miss", "bypass"):
            await asyncio.sleep(0.02)
    return found


async def exact(
    cache: ResponseCache, question: str, tenant: str, rules: Policy | None = None, **options: Any
) -> Lookup:
    return await answered(lambda: cache.exact(planned(cache, question, tenant, rules, **options)))


async def hit(cache: ResponseCache, question: str, tenant: str, rules: Policy | None = None, **options: Any) -> bool:
    return (await exact(cache, question, tenant, rules, **options)).hit is not None


async def test_of_a_long_question_the_beginning_is_kept(
    cache: ResponseCache, admin: Administration, tenant: str
) -> None:
    """Its answer is found by the whole of it, and takes no more room than an answer does."""
    question = "a long document " * 10_000
    async with asyncio.timeout(30):
        while not (await cache.write(planned(cache, question, tenant), answer())).stored:
            await asyncio.sleep(0.02)
    assert await hit(cache, question, tenant)
    assert not await hit(cache, question + "!", tenant)
    (held,) = [one for one in await admin.stats() if one.scope.owner == f"tenant:{tenant}"]
    assert held.bytes < 5_000


async def looked_up(cache: ResponseCache, plan: CachePlan) -> CachePlan:
    """The plan after its exact lookup: its tags have been read."""
    async with asyncio.timeout(30):
        while plan.tags is not None and plan.tags.versions is None:
            await answered(lambda: cache.exact(plan))
    return plan


async def keep(cache: ResponseCache, plan: CachePlan, kept: StoredAnswer, vector: Vector | None = None) -> None:
    """Writes until it is written."""
    async with asyncio.timeout(30):
        while not (await cache.write(plan, kept, vector)).stored:
            await asyncio.sleep(0.02)


async def test_when_a_purge_returns_no_worker_serves_what_was_kept_before_it(
    store: RedisStore, cache: ResponseCache, admin: Administration, tenant: str
) -> None:
    """One number moves all workers to fresh scopes, for one tenant or for all; other surfaces stay."""
    other = ResponseCache(store, embedder_name="e", dimension=4)
    await other.start()
    batch = policy().model_copy(update={"surface": "batch"})
    for who, rules in ((tenant, policy()), (f"{tenant}-2", policy()), (tenant, batch)):
        await keep(cache, planned(cache, ITALY, who, rules), answer())
    assert await hit(other, ITALY, tenant)
    purged = await admin.purge_surface("chat", f"tenant:{tenant}")
    assert (purged.scopes, purged.entries) == (1, 1)
    assert not await hit(cache, ITALY, tenant)
    assert not await hit(other, ITALY, tenant)
    assert await hit(cache, ITALY, f"{tenant}-2")
    await admin.purge_surface("chat")
    assert not await hit(cache, ITALY, f"{tenant}-2")
    assert await hit(cache, ITALY, tenant, batch)
    await other.aclose()


async def test_an_answer_on_its_way_during_a_purge_is_not_served_after_it(
    cache: ResponseCache, admin: Administration, tenant: str
) -> None:
    """Neither while it waits for the store nor when it is there: its plan is of the scope before."""
    plan = planned(cache, ITALY, tenant)
    await admin.purge_surface("chat", f"tenant:{tenant}")
    kept = CacheWrite(plan, answer())
    cache.pending.add(PendingWrite(plan, lambda: kept))
    assert not await hit(cache, ITALY, tenant)
    await keep(cache, plan, answer())
    assert not await hit(cache, ITALY, tenant)


async def test_what_is_kept_after_a_purge_stays(
    store: RedisStore, cache: ResponseCache, admin: Administration, tenant: str
) -> None:
    """From the moment in which a worker has begun anew, and at the latest from when the call returns, by any worker."""
    other = ResponseCache(store, embedder_name="e", dimension=4)
    await other.start()
    before = planned(cache, ITALY, tenant).keys
    purging = asyncio.create_task(admin.purge_surface("chat", f"tenant:{tenant}"))
    await eventually(lambda: planned(cache, ITALY, tenant).keys != before, what="the new generation")
    assert not purging.done()
    await keep(cache, planned(cache, ITALY, tenant), answer())
    await purging
    await keep(other, planned(other, SAME, tenant), answer())
    for one in (cache, other):
        await one._generations.refresh()
        assert await hit(one, ITALY, tenant)
        assert await hit(one, SAME, tenant)
    await other.aclose()


async def test_a_worker_that_cannot_know_of_a_purge_shares_with_nobody(store: RedisStore) -> None:
    """Its generations are its own from when it has not read them for as long as a purge waits, others each time."""
    now = [0.0]
    read = Generations(store, clock=lambda: now[0])
    alone = [read.of("tenant:t", "chat")]
    for _ in range(2):
        async with asyncio.timeout(30):
            while (known := read.of("tenant:t", "chat")) < 0:
                await read.refresh()
        now[0] += SEEN_S
        assert read.of("tenant:t", "chat") == known
        now[0] += 0.001
        alone.append(read.of("tenant:t", "chat"))
    assert all(each < 0 for each in alone)
    assert len(set(alone)) == 3


async def test_generations_stay_known_while_no_request_needs_them(store: RedisStore) -> None:
    """They are read less often then, and yet in time: the first request after a rest finds what was kept."""
    read = Generations(store)
    task = asyncio.create_task(read.run())
    await asyncio.sleep(1.6 * SEEN_S)
    known = read.of("tenant:t", "chat")
    task.cancel()
    assert known >= 0


async def test_generations_do_not_fall_back_when_the_store_loses_its_connections() -> None:
    """They are known for a second more; then, or where they could never be read, a worker shares with nobody."""
    with local_store() as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        cache = ResponseCache(store, embedder_name="e", dimension=4)
        await cache.start()
        first = planned(cache, ITALY, "t").keys
        await Administration(store).purge_surface("chat")
        known = planned(cache, ITALY, "t").keys
        assert known != first
        server.stop()
        assert planned(cache, ITALY, "t").keys == known
        await eventually(lambda: planned(cache, ITALY, "t").keys not in (first, known), what="a scope of its own")
        late = ResponseCache(store, embedder_name="e", dimension=4)
        await late.start()
        assert planned(late, ITALY, "t").keys not in (first, known)
        server.start()
        for one in (cache, late):
            await one.aclose()
        await store.aclose()


async def test_a_cache_is_shared_within_a_team_only_where_the_policy_says_so(cache: ResponseCache) -> None:
    """Two tenants of a team share under `scope: team`, another team's and teamless ones never; the default is apart."""
    shared, apart = policy(version=secrets.token_hex(4), scope="team"), policy(version=secrets.token_hex(4))
    for rules in (shared, apart):
        await keep(cache, planned(cache, ITALY, "red-1", rules), answer())
    assert await hit(cache, ITALY, "red-2", shared)
    assert not await hit(cache, ITALY, "red-2", apart)
    for stranger in ("blue", "nobody", "red", "team:red", "tenant:red-1"):
        assert not await hit(cache, ITALY, stranger, shared)
        assert not await hit(cache, ITALY, stranger, apart)


async def test_answers_drawn_from_a_source_go_when_it_changes(
    cache: ResponseCache, admin: Administration, tenant: str
) -> None:
    """A purged tag makes its entries misses at once, for those who named it and for those who did not."""
    plan = await looked_up(cache, planned(cache, ITALY, tenant, tags=["doc:42", "doc:43"]))
    await keep(cache, plan, answer())
    assert await hit(cache, ITALY, tenant, tags=["doc:43"])
    await admin.purge_tag("doc:7")
    assert await hit(cache, ITALY, tenant)
    await admin.purge_tag("doc:42")
    for tags in ([], ["doc:42"], ["doc:43"], ["doc:42", "doc:43"]):
        found = await exact(cache, ITALY, tenant, tags=tags)
        assert (found.outcome, found.reason) == ("miss", "tag")
    plan = await looked_up(cache, planned(cache, ITALY, tenant, tags=["doc:42"]))
    await keep(cache, plan, answer())
    assert await hit(cache, ITALY, tenant), "an answer drawn from the source as it is now"


@pytest.mark.parametrize("read", [True, False])
async def test_an_answer_that_is_written_while_its_source_changes_is_not_served(
    cache: ResponseCache, admin: Administration, tenant: str, read: bool
) -> None:
    """The versions count that the tags had before the model was asked, for requests that want a fresh answer too."""
    plan = planned(cache, ITALY, tenant, tags=["doc:42"], read=read)
    await looked_up(cache, plan)
    await admin.purge_tag("doc:42")
    await keep(cache, plan, answer())
    assert not await hit(cache, ITALY, tenant)


async def test_a_tagged_answer_whose_tags_were_never_read_is_not_kept(cache: ResponseCache, tenant: str) -> None:
    """Nobody can tell whether its sources have changed since."""
    outcome = await cache.write(planned(cache, ITALY, tenant, tags=["doc:42"]), answer())
    assert (outcome.stored, outcome.reason) == (False, "tags")


async def test_a_copy_made_by_a_semantic_hit_goes_with_the_sources_of_both(
    cache: ResponseCache, admin: Administration, tenant: str
) -> None:
    """What the entry was drawn from, and what the asker's answer is drawn from."""
    rules = policy(tags=("doc:1",))
    plan = await looked_up(cache, planned(cache, ITALY, tenant, rules))
    await keep(cache, plan, answer(), vector())
    again = await looked_up(cache, planned(cache, SAME, tenant, rules, tags=["doc:2"]))
    assert (await answered(lambda: cache.semantic(again, vector(0.1)))).hit is not None
    await _until_hit(cache, SAME, tenant, rules)
    await admin.purge_tag("doc:2")
    assert not await hit(cache, SAME, tenant, rules)
    assert await hit(cache, ITALY, tenant, rules)
    await admin.purge_tag("doc:1")
    assert not await hit(cache, ITALY, tenant, rules)


async def test_requests_without_tags_read_nothing_more(cache: ResponseCache, tenant: str, valkey: LocalStore) -> None:
    """A lookup without tags is one GET; one with tags reads all in one round trip."""
    await keep(cache, planned(cache, ITALY, tenant), answer())
    store = RedisStore.from_url(valkey.url, slack=UNHURRIED)
    before = await _calls(store)
    assert await hit(cache, ITALY, tenant)
    after = await _calls(store)
    assert after.get("get", 0) - before.get("get", 0) == 1
    assert after.get("hmget", 0) == before.get("hmget", 0)
    await store.aclose()


async def test_an_entry_is_found_by_its_id_and_removed_with_its_copies(
    cache: ResponseCache, admin: Administration, tenant: str
) -> None:
    """The id is the one in headers and traces, of the entry itself or of a copy: the question it answered goes too."""
    for entry_of in (ITALY, SAME):
        await keep(cache, planned(cache, ITALY, tenant), answer("Rome."), vector())
        await answered(lambda: cache.semantic(planned(cache, SAME, tenant), vector(0.1)))
        await _until_hit(cache, SAME, tenant)
        hits = {one: (await exact(cache, one, tenant)).hit for one in (ITALY, SAME)}
        chosen = hits[entry_of]
        assert chosen is not None
        found = await admin.find(chosen.entry_id)
        assert found is not None
        assert (found.id, found.scope.owner, found.entry.question) == (chosen.entry_id, f"tenant:{tenant}", ITALY)
        assert await admin.remove_wrong(chosen.entry_id, "chat", cache.scopes.owners("somebody-else")) is None
        assert await admin.remove_wrong(chosen.entry_id, "chat", cache.scopes.owners(tenant)) is not None
        assert not await hit(cache, ITALY, tenant)
        assert not await hit(cache, SAME, tenant)
        assert (await answered(lambda: cache.semantic(planned(cache, SAME, tenant), vector(0.1)))).hit is None
        assert await admin.find(chosen.entry_id) is None


async def test_a_tenant_that_fills_its_scope_evicts_its_own_oldest_and_nobody_elses(
    cache: ResponseCache, admin: Administration, tenant: str
) -> None:
    """Entries and bytes are both bounded, a long answer counts for more, and what is there can be counted (S16)."""
    await keep(cache, planned(cache, ITALY, f"{tenant}-quiet"), answer())
    for i in range(200):
        await keep(cache, planned(cache, f"Question {i}?", tenant), answer(f"Answer {i}."))
    assert [i for i in range(200) if await hit(cache, f"Question {i}?", tenant)] == list(range(150, 200))
    for i in range(20):
        await keep(cache, planned(cache, f"Long {i}?", tenant), answer(secrets.token_hex(2000)))
    stats = {one.scope.owner: one for one in await admin.stats()}
    loud = stats[f"tenant:{tenant}"]
    assert loud.bytes <= CAPS.bytes
    assert loud.entries < CAPS.entries
    assert await hit(cache, "Long 19?", tenant)
    assert stats[f"tenant:{tenant}-quiet"].entries == 1
    assert await hit(cache, ITALY, f"{tenant}-quiet")


async def test_an_answer_that_took_the_wrong_ones_place_stays(
    cache: ResponseCache, admin: Administration, tenant: str
) -> None:
    """Whoever calls an answer wrong means the one that it got, not the fresh one under the same key."""
    await keep(cache, planned(cache, ITALY, tenant), answer("Milan."))
    wrong = (await exact(cache, ITALY, tenant)).hit
    assert wrong is not None
    await keep(cache, planned(cache, ITALY, tenant), answer("Rome."))
    owners = cache.scopes.owners(tenant)
    assert await admin.remove_wrong(wrong.entry_id, "chat", owners, wrong.entry.created_at) is None
    fresh = (await exact(cache, ITALY, tenant)).hit
    assert fresh is not None
    assert await admin.remove_wrong(fresh.entry_id, "chat", owners, fresh.entry.created_at) is not None


async def test_a_copy_that_is_on_its_way_when_its_original_is_removed_is_not_stored(
    cache: ResponseCache, admin: Administration, tenant: str
) -> None:
    """A client may call a hit wrong at once; the copies of a moment are stored together, a moment later."""
    await keep(cache, planned(cache, ITALY, tenant), answer("Rome."), vector())
    plan = planned(cache, SAME, tenant)
    assert (await answered(lambda: cache.semantic(plan, vector()))).hit is not None
    copies, cache.delayed._writes = cache.delayed._writes, []
    (mine,) = await admin.scopes("chat", {f"tenant:{tenant}"})
    original = (await exact(cache, ITALY, tenant)).hit
    assert original is not None
    assert await admin.remove(original.entry_id, [mine]) is not None
    await cache._store.ask(copies, 5.0)
    assert not await hit(cache, SAME, tenant)
    assert [one for one in await admin.stats() if one.scope == mine.scope] == []


async def test_a_copy_is_not_stored_once_its_original_has_made_room_for_others(store: RedisStore, tenant: str) -> None:
    """Nothing says that such an original was deleted, and yet nobody could remove its copy with it any more."""
    prefix = f"tierline:test:{{{tenant}}}"
    first, copy = f"{0:032x}", f"{1:032x}"
    original = put(f"{prefix}{ENTRY}{first}", b"Rome.", 60, time.time(), CAPS)
    copied = put(f"{prefix}{ENTRY}{copy}", b"Rome.", 60, time.time(), CAPS, first)
    there = Command((b"EXISTS", f"{prefix}{ENTRY}{copy}".encode()))
    *_, stored = await store.ask([original, copied, there])
    await store.ask([drop(prefix, [first, copy])])
    *_, late = await store.ask([copied, there])
    assert (stored, late) == (1, 0)


async def test_an_entry_that_was_removed_is_not_written_by_who_comes_late(
    cache: ResponseCache, admin: Administration, tenant: str
) -> None:
    """A write that was on its way brings nothing back; a fresh answer is stored, and so is what is put back."""
    plan = planned(cache, ITALY, tenant)
    written = CacheWrite(plan, answer("Milan."))
    await cache.write_all([written])
    wrong = (await exact(cache, ITALY, tenant)).hit
    assert wrong is not None
    assert await admin.remove(wrong.entry_id, undo="req_1") is not None
    await cache.write_all([written])
    assert not await hit(cache, ITALY, tenant)
    assert await admin.put_back("req_1") == 1
    assert await hit(cache, ITALY, tenant)
    assert await admin.remove(wrong.entry_id) is not None
    await keep(cache, planned(cache, ITALY, tenant), answer("Rome."))
    assert await hit(cache, ITALY, tenant)


async def test_a_copy_of_a_removed_answer_is_not_stored_beside_the_fresh_one(
    cache: ResponseCache, admin: Administration, tenant: str
) -> None:
    """The copy names the key that the fresh answer has now, but it was made from the one before."""
    await keep(cache, planned(cache, ITALY, tenant), answer("Milan."), vector())
    assert (await answered(lambda: cache.semantic(planned(cache, SAME, tenant), vector()))).hit is not None
    copies, cache.delayed._writes = cache.delayed._writes, []
    wrong = (await exact(cache, ITALY, tenant)).hit
    assert wrong is not None
    assert await admin.remove(wrong.entry_id) is not None
    await keep(cache, planned(cache, ITALY, tenant), answer("Rome."))
    await cache._store.ask(copies, 5.0)
    assert not await hit(cache, SAME, tenant)


async def test_a_copy_that_is_written_while_its_original_is_removed_goes_too(
    cache: ResponseCache, admin: Administration, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written after the copies were listed, and before the original is gone."""
    await keep(cache, planned(cache, ITALY, tenant), answer("Milan."), vector())
    assert (await answered(lambda: cache.semantic(planned(cache, SAME, tenant), vector()))).hit is not None
    copies, cache.delayed._writes = cache.delayed._writes, []
    found = admin.find

    async def find(*given: Any) -> Any:
        result = await found(*given)
        await cache._store.ask(copies, 5.0)
        return result

    monkeypatch.setattr(admin, "find", find)
    wrong = (await exact(cache, ITALY, tenant)).hit
    assert wrong is not None
    assert await admin.remove(wrong.entry_id) is not None
    assert not await hit(cache, SAME, tenant)


async def test_a_hit_by_meaning_and_its_copy_know_their_score(cache: ResponseCache, tenant: str) -> None:
    """So that who calls either wrong is heard at that score; an answer to the very question has none."""
    await keep(cache, planned(cache, ITALY, tenant), answer(), vector())
    found = await answered(lambda: cache.semantic(planned(cache, SAME, tenant), vector(0.1)))
    assert found.hit is not None
    await _until_hit(cache, SAME, tenant)
    copy, own = (await exact(cache, SAME, tenant)).hit, (await exact(cache, ITALY, tenant)).hit
    assert copy is not None and own is not None
    assert copy.score == found.hit.score == found.score == pytest.approx(np.cos(0.1), abs=1e-4)
    assert own.score is None


async def test_what_strangers_write_into_the_lists_is_passed_over(
    store: RedisStore, cache: ResponseCache, admin: Administration, tenant: str
) -> None:
    """The store may hold anything; what is ours is still told."""
    await keep(cache, planned(cache, ITALY, tenant), answer())
    (mine,) = await admin.scopes("chat", {f"tenant:{tenant}"})
    sizes = f"{mine.scope.prefix}:sizes".encode()
    await store.ask([Command((b"HSET", sizes, b"junk", b"x y")), Command((b"HSET", LISTED.encode(), b"j", b"{"))])
    try:
        assert (await exact(cache, ITALY, tenant)).hit is not None
        assert any(one.scope.owner == f"tenant:{tenant}" for one in await admin.stats())
        assert await admin.find("a" * 12) is None
    finally:
        await store.ask([Command((b"HDEL", LISTED.encode(), b"j"))])


async def test_an_entry_written_again_is_counted_once(cache: ResponseCache, admin: Administration, tenant: str) -> None:
    """Its new size counts, and not its old one too."""
    for text in ("Rome.", "Rome, since 1871.", "Rome."):
        await keep(cache, planned(cache, ITALY, tenant), answer(text))
    once = next(one for one in await admin.stats() if one.scope.owner == f"tenant:{tenant}")
    assert once.entries == 1
    hits = (await exact(cache, ITALY, tenant)).hit
    assert hits is not None
    found = await admin.find(hits.entry_id)
    assert found is not None
    assert found.bytes == once.bytes


async def test_what_is_listed_and_empty_is_tidied_away(store: RedisStore, tenant: str) -> None:
    """A scope that can hold nothing any more leaves the list."""
    now = [1_000_000.0]
    cache = ResponseCache(store, embedder_name="e", dimension=4, clock=lambda: now[0])
    await cache.start()
    await keep(cache, planned(cache, ITALY, tenant), answer())
    admin = Administration(store, lambda: now[0])
    owners = {f"tenant:{tenant}"}
    await admin.tidy()
    assert len(await admin.scopes("chat", owners)) == 1
    now[0] += 2 * 86_400
    await admin.tidy()
    assert await admin.scopes("chat", owners) == []
    await cache.aclose()


async def test_all_that_one_command_touches_is_in_one_slot_of_a_cluster() -> None:
    """A server in cluster mode refuses a command over several slots; none of ours is."""
    with local_store(f"--cluster-enabled yes --cluster-port {free_port()}") as server:
        await asyncio.to_thread(_takes_all_slots, server)
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        cache = ResponseCache(store, embedder_name="e", dimension=4, caps=Caps(entries=2))
        await cache.start()
        for i in range(4):
            plan = await looked_up(cache, planned(cache, f"Question {i}?", "t", tags=["doc:1"]))
            await keep(cache, plan, answer(), vector())
        assert not await hit(cache, "Question 0?", "t")
        assert await hit(cache, "Question 3?", "t")
        admin = Administration(store, seen_s=0)
        await admin.purge_tag("doc:1")
        assert (await admin.stats())[0].entries == 2
        assert (await admin.purge_surface("chat")).entries == 2
        await cache.aclose()
        await store.aclose()


def _takes_all_slots(server: LocalStore) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 5) as connection:
        connection.sendall(b"CLUSTER ADDSLOTSRANGE 0 16383\r\n")
        assert connection.recv(64).startswith(b"+OK")
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            connection.sendall(b"CLUSTER INFO\r\n")
            if b"cluster_state:ok" in connection.recv(4096):
                return
            time.sleep(0.05)
        raise RuntimeError("the cluster is not up")


async def _until_hit(cache: ResponseCache, question: str, tenant: str, rules: Policy | None = None) -> None:
    async with asyncio.timeout(30):
        while not await hit(cache, question, tenant, rules):
            await asyncio.sleep(0.005)


async def _calls(store: RedisStore) -> dict[str, int]:
    (reply,) = await store.ask([Command((b"INFO", b"commandstats"))])
    lines = [line.removeprefix("cmdstat_").split(":calls=") for line in reply.decode().splitlines() if "calls=" in line]
    return {name: int(rest.split(",")[0]) for name, rest in lines}
