"""The registry of keys in a real store."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.parts.access.audit.entries import TrailEntry
from gateway.parts.access.audit.trail import AuditTrail
from gateway.parts.access.keys.key_caller import caller_of
from gateway.parts.access.keys.made_keys import change_key, make_key, rotate_key
from gateway.parts.access.keys.records import CONTEXT, KeyRecord, OwnerRecord, digest_of, new_key, secret_of
from gateway.parts.access.keys.registry import KeyPage, KeyRegistry, KeysConflict, KeysRefused
from gateway.parts.access.keys.roles import ADMIN, Grant, Person
from gateway.parts.access.quotas.terms import Terms
from tests.parts.access.keys.conftest import WHY, minted
from tests.parts.access.test_settled_change import old_redis
from tests.support.store import UNHURRIED, local_store


async def audited(store: RedisStore) -> list[TrailEntry]:
    return [entry async for entry in AuditTrail(store).newest()]


async def test_a_key_is_found_by_its_digest_with_the_terms_of_its_owners(registry: KeyRegistry) -> None:
    """Whom it stands for has the limits of key, team and tenant, those that have any."""
    terms = Terms.model_validate({"requests_per_minute": 60, "budgets": [{"usd": 25, "zone": "Europe/Berlin"}]})
    await registry.put_owner(None, OwnerRecord("team", "web", terms, per_user=Terms(concurrent=2)), WHY)
    key, record = minted(team="web", terms=Terms(concurrent=8), surfaces=("chat",), metadata={"app": "ide"})
    record = await registry.create(record, WHY)
    there, found = await registry.looked_up(digest_of(key.encode(), CONTEXT).hex())
    assert there
    assert found.record == record
    assert (record.created_by, record.revision) == ("ada", 1)
    assert found.tenant is None
    caller = caller_of(*found)
    assert [(one.kind, one.name) for one in caller.limited] == [("key", record.id), ("team", "acme/web")]
    assert caller.limited[1].terms == terms
    assert [(one.name, one.terms) for one in caller.per_user] == [("acme/web", Terms(concurrent=2))]
    assert not (await registry.looked_up("00" * 32))[0]


async def test_every_change_is_in_the_trail_and_never_a_key_or_digest(registry: KeyRegistry, store: RedisStore) -> None:
    """An entry says what was changed; the key and its digest stand in none."""
    key, record = minted(name="ide")
    record = await registry.create(record, WHY)
    record = await registry.update(record, WHY._replace(action="disable"), state="disabled")
    entries = await audited(store)
    assert [(one.action, one.subject, one.kind) for one in entries] == [
        ("disable", record.id, "key"),
        ("create", record.id, "key"),
    ]
    assert entries[0].words == "state: active -> disabled"
    assert key not in str(entries)
    assert record.digest not in str(entries)


async def test_the_grace_of_an_old_key_ends_with_the_key(registry: KeyRegistry) -> None:
    """A longer grace gives it no longer life, nor does a second rotation to the one before."""
    ends = time.time() + 600
    old = await registry.create(minted(expires=ends)[1], WHY)
    new = await registry.rotate(old, digest_of(new_key().encode(), CONTEXT).hex(), 86400.0, WHY)
    newest = await registry.rotate(new, digest_of(new_key().encode(), CONTEXT).hex(), 86400.0, WHY)
    for one in (old, new, newest):
        found = await registry.by_digest(one.digest)
        assert found is not None
        assert found.expires == pytest.approx(ends, abs=0.001)


async def test_a_key_that_has_expired_is_rotated_with_another_end_alone(registry: KeyRegistry) -> None:
    """Its new secret would be valid for no moment, and its old one for the grace."""
    key = await registry.create(minted(expires=time.time() - 1)[1], WHY)
    digest = digest_of(new_key().encode(), CONTEXT).hex()
    with pytest.raises(KeysRefused, match="has expired"):
        await registry.rotate(key, digest, 3600.0, WHY)
    assert await registry.by_digest(digest) is None
    ends = time.time() + 60
    assert (await registry.rotate(key, digest, 3600.0, WHY, expires=ends)).expires == ends
    found = await registry.by_digest(key.digest)
    assert found is not None and found.expires == key.expires


async def test_a_rotated_key_keeps_its_id_and_the_old_one_is_valid_for_the_grace(
    registry: KeyRegistry, store: RedisStore
) -> None:
    """What is changed in the grace is changed for both; the trail says it once."""
    _, old = minted(name="ide")
    old = await registry.create(old, WHY)
    digest = digest_of(new_key().encode(), CONTEXT).hex()
    new = await registry.rotate(old, digest, 3600.0, WHY)
    assert (new.id, new.digest, new.replaces, new.expires) == (old.id, digest, old.digest, None)
    before = await registry.by_digest(old.digest)
    assert before is not None
    assert before.expires == pytest.approx(time.time() + 3600, abs=60)
    assert await registry.find(old.id) == new
    assert [one.action for one in await audited(store)] == ["rotate", "create"]
    await registry.update(new, WHY._replace(action="revoke"), state="revoked")
    for one in (old.digest, digest):
        found = await registry.by_digest(one)
        assert found is not None
        assert found.state == "revoked"
    with pytest.raises(KeysRefused, match="revoked"):
        await registry.rotate(await registry.find(old.id), "11" * 32, 1.0, WHY)


async def test_of_two_changes_of_one_record_one_is_refused(registry: KeyRegistry, store: RedisStore) -> None:
    """It changes nothing, and leaves no entry."""
    _, record = minted()
    record = await registry.create(record, WHY)
    await registry.update(record, WHY, name="one")
    with pytest.raises(KeysConflict, match="changed meanwhile"):
        await registry.update(record, WHY, name="other")
    assert (await registry.find(record.id)).name == "one"
    with pytest.raises(KeysConflict, match="there already"):
        await registry.create(record, WHY)
    assert len(await audited(store)) == 2


async def test_keys_are_listed_in_pages_the_newest_first(registry: KeyRegistry) -> None:
    """Of all, of one team, and of what is wanted; a key that moves to another team is listed there."""
    made = [await registry.create(minted(name=f"n{i}", team="web" if i % 2 else "ops")[1], WHY) for i in range(7)]

    async def listed(**how: object) -> list[str]:
        names, page = [], KeyPage([], "")
        while True:
            page = await registry.page(page.older, 2, **how)  # type: ignore[arg-type]
            names += [key.name for key in page.keys]
            if not page.older:
                return names

    assert await listed() == [f"n{i}" for i in reversed(range(7))]
    assert await listed(team="web") == ["n5", "n3", "n1"]
    await registry.update(made[0], WHY, team="web")
    assert await listed(team="web") == ["n5", "n3", "n1", "n0"]
    assert await listed(wanted=lambda key: key.name in ("n0", "n6", "n2")) == ["n6", "n2", "n0"]
    assert (await registry.find("n3")).id == made[3].id
    with pytest.raises(KeysRefused, match="no key 'n9'"):
        await registry.find("n9")


async def test_a_search_looks_at_so_many_keys_and_says_where_to_go_on(
    registry: KeyRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for a name that there is not does not make the gateway read a million keys."""
    monkeypatch.setattr("gateway.parts.access.keys.registry.MOST_LOOKED_AT", 2)
    monkeypatch.setattr("gateway.parts.access.keys.registry._PAGE", 2)
    made = [await registry.create(minted(name=f"key-{number}")[1], WHY) for number in range(5)]
    page = await registry.page(most=1, wanted=lambda key: key.name == "key-0")
    assert (page.keys, page.older, page.cut) == ([], made[3].id, 2)
    page = await registry.page(page.older, 1, wanted=lambda key: key.name == "key-1")
    assert [key.name for key in page.keys] == ["key-1"]
    with pytest.raises(KeysRefused, match="name it by its id"):
        await registry.find("key-0")
    assert (await registry.find(made[0].id)).name == "key-0"


async def test_a_follower_is_told_what_changed_since_a_revision(registry: KeyRegistry, store: RedisStore) -> None:
    """In one round trip; after a loss it is told that it knows nothing."""
    assert (await registry.changes(0)).revision == 0
    _, record = minted()
    record = await registry.create(record, WHY)
    first = await registry.changes(0)
    assert not first.whole
    since = first.revision
    assert await registry.changes(since) == replace(first, whole=True)
    await registry.put_owner(None, OwnerRecord("team", "web", Terms(concurrent=1)), WHY)
    await registry.update(record, WHY, name="x")
    told = await registry.changes(since)
    assert (told.revision, told.digests, told.owners) == (since + 2, (record.digest,), ("team:web",))
    for other in (since - 5, since + 100):
        assert not (await registry.changes(other)).whole
    await store.delete("tierline:{keys}:revision")
    assert (await registry.changes(since + 2)).revision == 0


async def test_a_change_waits_for_the_disk_of_a_store_that_has_one(store: RedisStore) -> None:
    """Where the server has no append-only file, that is said."""
    memory = KeyRegistry(store, durable=True)
    await memory.create(minted()[1], WHY)
    assert memory.on_disk is False
    with local_store("--appendonly yes --appendfsync always") as server:
        opened = RedisStore.from_url(server.url, slack=UNHURRIED)
        disk = KeyRegistry(opened, durable=True)
        await disk.create(minted()[1], WHY)
        assert disk.on_disk is True
        await opened.aclose()


async def test_a_key_of_a_redis_before_7_2_is_made_rotated_and_revoked() -> None:
    """Its secret comes back each time: a server that cannot say whether a change is on its disk has made it."""
    server = old_redis()
    opened = RedisStore.from_url(server.url, slack=UNHURRIED)
    try:
        registry = KeyRegistry(opened, durable=True)
        made, key = await make_key(registry, ADMIN, KeyRecord("", "", "acme"), WHY)
        assert registry.on_disk is None
        new, rotated = await rotate_key(registry, ADMIN, made, 0.0, WHY)
        assert await registry.by_digest(digest_of(rotated.encode(), secret_of()).hex()) == new
        assert key != rotated
        revoked = await change_key(registry, ADMIN, new, replace(new, state="revoked"), WHY)
        assert (await registry.find(made.id)).state == revoked.state == "revoked"
    finally:
        await opened.aclose()
        server.close()


async def test_a_key_is_made_and_rotated_within_what_its_own_tenants_team_allows_by_now(registry: KeyRegistry) -> None:
    """Not within what a record for every tenant's team of that name allows, nor what was allowed when it was made."""
    lead = Person("kay@acme.example", "u_2", (Grant("key_admin", ("web",)),), tenant="acme")
    wanted = KeyRecord("", "", "acme", "web")
    key, _ = await make_key(registry, lead, wanted, WHY)
    assert (key.surfaces, key.tiers, key.expires) == ((), (), None)
    for name, surfaces in (("web", ("chat", "search")), ("acme/web", ("chat",))):
        owner = OwnerRecord("team", name, surfaces=surfaces, tiers=("local",), longest_life_s=3600.0)
        await registry.put_owner(None, owner, WHY)
    for record, _ in (await make_key(registry, lead, wanted, WHY), await rotate_key(registry, lead, key, 0.0, WHY)):
        assert (record.surfaces, record.tiers) == (("chat",), ("local",))
        assert record.expires is not None and record.expires <= time.time() + 3600.0


async def test_a_key_is_revoked_although_it_is_rotated_meanwhile(registry: KeyRegistry) -> None:
    """Old and new: who revokes has seen the one before, and must not be told to look again while a thief goes on."""
    old = await registry.create(minted()[1], WHY)
    new = await registry.rotate(old, digest_of(new_key().encode(), CONTEXT).hex(), 3600.0, WHY)
    await change_key(registry, ADMIN, old, replace(old, state="revoked"), WHY)
    for digest in (old.digest, new.digest):
        record = await registry.by_digest(digest)
        assert record is not None and record.state == "revoked"
    with pytest.raises(KeysRefused, match="revoked"):
        await change_key(registry, ADMIN, new, replace(new, state="disabled"), WHY)


async def test_a_rotation_under_way_does_not_outlive_a_revocation(registry: KeyRegistry) -> None:
    """It has read the key before that was revoked; its new secret is never valid."""
    seen = await registry.create(minted()[1], WHY)
    await change_key(registry, ADMIN, seen, replace(seen, state="revoked"), WHY)
    digest = digest_of(new_key().encode(), CONTEXT).hex()
    with pytest.raises(KeysConflict):
        await registry.rotate(seen, digest, 3600.0, WHY)
    assert await registry.by_digest(digest) is None


async def test_records_are_restored_once_whatever_is_there_already(registry: KeyRegistry, store: RedisStore) -> None:
    """An export comes back as it was, with keys that were rotated, and changes nothing that is there."""
    _, record = minted()
    old = await registry.create(record, WHY)
    await registry.rotate(old, "ab" * 32, 60.0, WHY)
    records: list[KeyRecord | OwnerRecord] = [one async for one in registry.records()]
    records.append(OwnerRecord("team", "web", Terms(concurrent=1)))
    assert await registry.restore(records, WHY) == 1
    assert await registry.restore(records, WHY) == 0
    assert [one.name for one in await registry.owners()] == ["web"]
    await store.ask([Command((b"FLUSHALL",))])
    for order in (records, records[::-1]):
        await registry.restore(order, WHY)
        assert (await registry.find(record.id)).digest == "ab" * 32
