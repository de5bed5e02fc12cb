"""The audit trail in a real store: changes of all kinds in one order, and streams that show what was done to them."""

from __future__ import annotations

import asyncio

import pytest

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.config.addresses import open_store
from gateway.parts.access.audit import trail
from gateway.parts.access.audit.entries import APPEND, KEYS, POLICIES, REST, TrailEntry
from gateway.parts.access.audit.trail import AuditTrail, TrailFilter
from gateway.parts.rollout.registry.checks import seeds
from gateway.parts.rollout.registry.registry import PolicyRegistry
from policies.loader import PolicySource
from tests.parts.rollout.registry.conftest import folder, registry, server, source, store
from tests.parts.rollout.registry.test_registry import seeded
from tests.support.cluster import cluster_of
from tests.support.store import UNHURRIED

__all__ = ["folder", "registry", "server", "source", "store"]
_KEY = APPEND + b"audit(KEYS[1], ARGV[1], ARGV[2])"


def login(by: str, at: float = 5.0) -> TrailEntry:
    return TrailEntry(at, by, "login", by, "sign-in", how="console")


async def of_key(store: RedisStore, subject: str, action: str, at: float = 6.0) -> None:
    """Append what the registry of keys appends with a change."""
    entry = TrailEntry(at, "ada", "key", subject, action, "why", {"state": "active"}, {"state": "disabled"})
    await store.ask([Command((b"EVAL", _KEY, b"1", KEYS.encode(), entry.change(), b"admin"))])


async def listed(store: RedisStore, wanted: TrailFilter = TrailFilter()) -> list[TrailEntry]:
    return [entry async for entry in AuditTrail(store).newest(wanted)]


async def problems(store: RedisStore) -> dict[str, tuple[str, ...]]:
    return {one.stream: one.problems for one in await AuditTrail(store).checked()}


async def test_changes_of_all_kinds_stand_in_one_order(
    store: RedisStore, registry: PolicyRegistry, source: PolicySource
) -> None:
    """Each says when, who, by what, of what, and what it was before and after."""
    await AuditTrail(store).append(login("bob"))
    await asyncio.sleep(0.005)  # the store's clock orders what is more than a millisecond apart
    await seeded(registry, source)
    await asyncio.sleep(0.005)
    await of_key(store, "k_1", "disable")
    await asyncio.sleep(0.005)
    before = await registry.surface("chat")
    console = PolicyRegistry(store, "console")
    await console.pause("chat", before.revision, by="ada", message="a release", now=7.0)
    found = await listed(store)
    assert [(one.kind, one.subject, one.action, one.by, one.how) for one in found] == [
        ("policy", "chat", "pause", "ada", "console"),
        ("key", "k_1", "disable", "ada", "admin"),
        ("policy", "chat", "seed", "files", "gateway"),
        ("policy", "batch", "seed", "files", "gateway"),
        ("login", "bob", "sign-in", "bob", "console"),
    ]
    assert found[0].after["version"] == before.live[:12] and found[0].message == "a release"
    assert (found[1].before, found[1].after) == ({"state": "active"}, {"state": "disabled"})
    assert [one.subject for one in await listed(store, TrailFilter(kind="policy", by="ada"))] == ["chat"]
    assert [one.subject for one in await listed(store, TrailFilter(subject="k_"))] == ["k_1"]
    assert [one.at for one in await listed(store, TrailFilter(since=6.0))] == [7.0, 6.0]
    older = AuditTrail(store).newest(before=found[1].cursor)
    assert [one.id async for one in older] == [one.id for one in found[2:]]


async def test_entries_of_one_moment_are_each_listed_once(store: RedisStore) -> None:
    """Streams have ids of their own, so two of them may be the same."""
    for number, stream in enumerate((REST, KEYS, POLICIES)):
        entry = TrailEntry(1.0, "ada", "key", f"k_{number}", "create")
        await store.ask([Command((b"XADD", stream.encode(), b"7-1", b"v", entry.change()))])
    seen: list[str] = []
    cursor = ""
    while page := [one async for one in AuditTrail(store).newest(before=cursor)]:
        seen, cursor = [*seen, page[0].subject], page[0].cursor
    assert seen == ["k_2", "k_1", "k_0"]


async def test_more_than_a_page_is_read_in_order(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """One page of a search reads so many entries, and the next goes on where it ended."""
    for number in range(1203):
        await of_key(store, f"k_{number}", "create", float(number))
    await AuditTrail(store).append(login("bob"))
    found = await listed(store, TrailFilter(kind="key"))
    assert [one.at for one in found] == [float(number) for number in reversed(range(1203))]
    monkeypatch.setattr(trail, "MOST_LOOKED_AT", 1000)
    first = await AuditTrail(store).page(TrailFilter(subject="k_1"), "", 400)
    assert first["entries"][-1]["subject"] == "k_1000" and len(first["entries"]) == 203
    rest_of_it = await AuditTrail(store).page(TrailFilter(subject="k_1"), first["older"], 400)
    assert [one["subject"] for one in rest_of_it["entries"]][:2] == ["k_199", "k_198"] and rest_of_it["older"] == ""
    [keys, rest] = await AuditTrail(store).checked()
    assert (keys.entries, keys.problems, rest.entries, rest.problems) == (1203, (), 1, ())
    assert keys.head == found[0].chain


async def test_what_is_removed_or_altered_breaks_the_chain(store: RedisStore) -> None:
    """An entry from the middle, the oldest, the newest, and a whole stream that was written anew by other hands."""
    for number in range(6):
        await of_key(store, f"k_{number}", "create")
    ids = [one.id.encode() for one in reversed(await listed(store))]
    assert await problems(store) == {KEYS: ()}
    await store.ask([Command((b"XDEL", KEYS.encode(), ids[2]))])
    problem, count = (await problems(store))[KEYS]
    assert ids[1].decode() in problem and "removed" in problem and count == "1 of 6 entries were removed"
    await store.ask([Command((b"XDEL", KEYS.encode(), ids[0]))])
    assert "is the first, but others came before it" in (await problems(store))[KEYS][0]
    await store.ask([Command((b"XDEL", KEYS.encode(), ids[5]))])
    problem = (await problems(store))[KEYS][-2]
    assert "newest entries were removed" in problem and ids[5].decode() in problem
    head = (await listed(store))[0].chain
    await store.ask([Command((b"DEL", KEYS.encode(), f"{KEYS}:head".encode()))])
    await of_key(store, "k_0", "create")
    [check] = await AuditTrail(store).checked()
    assert not check.problems and check.head != head, "a head that was noted elsewhere tells even that"


@pytest.mark.parametrize("removed", ["all", "newest", "newest, and the mark of it"])
async def test_what_is_removed_from_the_end_is_missed(store: RedisStore, removed: str) -> None:
    """Also where the stream is made anew, without a trace of what was in it; and when changes go on after that."""
    for number in range(4):
        await of_key(store, f"k_{number}", "disable")
    assert (await problems(store))[KEYS] == ()
    (entries,) = await store.ask([Command((b"XRANGE", KEYS.encode(), b"-", b"+"))])
    if removed == "newest":
        await store.ask([Command((b"XDEL", KEYS.encode(), entries[-1][0]))])
    else:
        await store.ask([Command((b"DEL", KEYS.encode()))])
        for id_, fields in entries[:3] if removed != "all" else ():
            await store.ask([Command((b"XADD", KEYS.encode(), id_, *fields))])
    told = str((await problems(store))[KEYS])
    assert "newest entries were removed" in told and entries[-1][0].decode() in told
    assert f"{4 if removed == 'all' else 1} of 4 entries were removed" in told
    await of_key(store, "k_5", "disable")
    told = str((await problems(store))[KEYS])
    assert "others came before it" in told if removed == "all" else "one after it was removed" in told
    assert "of 5 entries were removed" in told


async def test_what_is_removed_with_the_note_beside_it_is_missed_by_the_streams_last_id(store: RedisStore) -> None:
    """Whoever removes an entry and what was noted of it cannot take back the id that the stream has given."""
    for number in range(3):
        await of_key(store, f"k_{number}", "disable")
    newest = (await listed(store))[0].id
    await store.ask([Command((b"XDEL", KEYS.encode(), newest.encode())), Command((b"DEL", f"{KEYS}:head".encode()))])
    assert (await problems(store))[KEYS] == (f"its newest entries were removed, the last of them {newest}",)


async def test_the_newest_entry_cannot_be_altered(store: RedisStore) -> None:
    """No entry after it has its hash."""
    await of_key(store, "k_0", "disable")
    await of_key(store, "k_1", "disable")
    (entries,) = await store.ask([Command((b"XRANGE", KEYS.encode(), b"-", b"+"))])
    await store.ask([Command((b"DEL", KEYS.encode()))])
    for id_, fields in entries:
        changed = [text.replace(b"k_1", b"k_2") for text in fields]
        await store.ask([Command((b"XADD", KEYS.encode(), id_, *changed))])
    assert "was altered" in str((await problems(store))[KEYS])


async def test_entries_of_a_version_that_notes_nothing_beside_are_no_break(store: RedisStore) -> None:
    """While a deployment is upgraded both append."""
    await of_key(store, "k_0", "disable")
    noted = f"{KEYS}:head".encode()
    (before,) = await store.ask([Command((b"HGETALL", noted))])
    await of_key(store, "k_1", "disable")
    await store.ask([Command((b"HSET", noted, *before))])
    assert (await problems(store))[KEYS] == ()
    await of_key(store, "k_2", "disable")
    assert (await problems(store))[KEYS] == ()


async def test_entries_of_an_older_version_stay_and_are_counted(
    store: RedisStore, registry: PolicyRegistry, source: PolicySource
) -> None:
    """Its stream had no chain: the first entry that has one holds the hash of the last that had none."""
    await seeded(registry, source)
    [(_, fields), _] = (await store.ask([Command((b"XRANGE", POLICIES.encode(), b"-", b"+"))]))[0]
    old = dict(zip(fields[::2], fields[1::2], strict=True))[b"v"]
    await store.ask([Command((b"FLUSHALL",)), Command((b"XADD", POLICIES.encode(), b"*", b"v", old))])
    assert await registry.seed(seeds(source, 1.0), "again")
    [check] = await AuditTrail(store).checked()
    assert (check.entries, check.older, check.problems) == (3, 1, ())
    assert [one.how for one in await listed(store)] == ["gateway", "gateway", ""]
    assert len(await registry.history()) == 3
    await store.ask([Command((b"XADD", POLICIES.encode(), b"*", b"v", old))])
    [check] = await AuditTrail(store).checked()
    assert check.older == 1 and "has no hash" in check.problems[0] and len(check.problems) == 1


async def test_new_entries_are_followed(store: RedisStore) -> None:
    await of_key(store, "k_0", "create")
    following = AuditTrail(store).follow(TrailFilter(kind="key"), await AuditTrail(store).ends(), every_s=0.01)
    first = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0.1)
    await AuditTrail(store).append(login("bob"))
    await of_key(store, "k_1", "create")
    assert (await asyncio.wait_for(first, 10.0)).subject == "k_1"


async def test_a_cluster_keeps_the_streams_too() -> None:
    with cluster_of() as cluster:
        store = open_store(cluster.urls[0], slack=UNHURRIED)
        try:
            await store.ping()
            await AuditTrail(store).append(login("bob"))
            await of_key(store, "k_0", "create")
            assert {one.stream for one in await AuditTrail(store).checked()} == {KEYS, REST}
            assert {one.kind for one in await listed(store)} == {"key", "login"}
        finally:
            await store.aclose()
