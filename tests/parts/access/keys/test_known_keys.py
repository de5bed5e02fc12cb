"""Keys of the store in one worker: found, followed, and known while the store is down."""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cache.store.base import Command, NoStore
from cache.store.redis_store import RedisStore
from gateway.errors import Overloaded, Unauthorized
from gateway.parts.access.keys.held_keys import HeldKeys
from gateway.parts.access.keys.kept_keys import KeptKeys, copy_file
from gateway.parts.access.keys.key_caller import KeyCaller
from gateway.parts.access.keys.known_keys import KnownKeys
from gateway.parts.access.keys.records import CONTEXT, KeyRecord, OwnerRecord, digest_of, new_key
from gateway.parts.access.keys.registry import FoundKey, KeyRegistry, KeysRefused
from gateway.parts.access.quotas.terms import Terms
from tests.parts.access.keys.conftest import WHY, minted
from tests.support.store import UNHURRIED, local_store


@asynccontextmanager
async def worker(
    store: RedisStore | NoStore, folder: Path, interval_s: float = 0.05, **owners: OwnerRecord
) -> AsyncIterator[KnownKeys]:
    """A worker that follows the registry, with a copy in this folder."""
    configured = {f"{one.kind}:{one.name}": one for one in owners.values()}
    keys = KnownKeys(KeyRegistry(store), CONTEXT, configured, KeptKeys(copy_file(folder, "store")), interval_s)
    await keys.start()
    try:
        yield keys
    finally:
        await keys.aclose()


async def caller(keys: KnownKeys, key: str) -> KeyCaller:
    return keys.known(key.encode()) or await keys.find(key.encode())


async def settles(keys: KnownKeys, key: str, *, refused: bool) -> float:
    """Return the seconds until a key is refused, or not."""
    began = time.monotonic()
    while time.monotonic() - began < 5:
        try:
            await caller(keys, key)
            if not refused:
                return time.monotonic() - began
        except Unauthorized:
            if refused:
                return time.monotonic() - began
        await asyncio.sleep(0.005)
    raise AssertionError("nothing changed")


async def test_a_key_is_looked_up_once_and_known_from_then_on(
    registry: KeyRegistry, store: RedisStore, tmp_path: Path
) -> None:
    """Made a moment ago, it works at once; one that was never made is refused, and from then on at once."""
    async with worker(store, tmp_path) as keys:
        key, record = minted(team="web")
        record = await registry.create(record, WHY)
        assert keys.known(key.encode()) is None
        assert (await caller(keys, key)).record == record
        known = keys.known(key.encode())
        assert known is not None
        assert (known.tenant, known.team, known.key) == ("acme", "web", record.id)
        made_up = new_key()
        with pytest.raises(Unauthorized, match="missing or unknown"):
            await caller(keys, made_up)
        with pytest.raises(Unauthorized, match="missing or unknown"):
            keys.known(made_up.encode())
        with pytest.raises(Unauthorized, match="mistyped or cut off"):
            await caller(keys, key[:-1])


async def test_what_is_changed_in_the_store_is_obeyed_within_a_second(
    registry: KeyRegistry, store: RedisStore, tmp_path: Path
) -> None:
    """Disabled, enabled, rotated, lowered, moved to another team, revoked: by each of four workers."""
    async with worker(store, tmp_path) as one, worker(store, tmp_path) as two, worker(store, tmp_path) as three:
        workers = (one, two, three)
        key, record = minted(team="web")
        record = await registry.create(record, WHY)
        for keys in workers:
            await caller(keys, key)
        record = await registry.update(record, WHY, state="disabled")
        assert max([await settles(keys, key, refused=True) for keys in workers]) < 1
        record = await registry.update(record, WHY, state="active")
        assert max([await settles(keys, key, refused=False) for keys in workers]) < 1
        await registry.put_owner(None, OwnerRecord("team", "ops", Terms(concurrent=1)), WHY)
        record = await registry.update(record, WHY, team="ops")
        new = new_key()
        record = await registry.rotate(record, digest_of(new.encode(), CONTEXT).hex(), 0.3, WHY)
        for keys in workers:
            found = await caller(keys, new)
            assert [(o.kind, o.terms.concurrent) for o in found.limited] == [("team", 1)]
            await settles(keys, key, refused=True)
        team = await registry.owner("team", "ops")
        await registry.put_owner(team, OwnerRecord("team", "ops", Terms(concurrent=7)), WHY)
        await asyncio.sleep(0.5)
        for keys in workers:
            assert [o.terms.concurrent for o in (await caller(keys, new)).limited] == [7]
        await registry.update(record, WHY, state="revoked")
        assert max([await settles(keys, new, refused=True) for keys in workers]) < 1


async def test_a_record_of_one_tenants_team_is_obeyed_by_keys_that_are_known(
    registry: KeyRegistry, store: RedisStore, tmp_path: Path
) -> None:
    """It takes the place of the record of every tenant's team of that name, of keys that were found by that one."""
    every = await registry.put_owner(None, OwnerRecord("team", "web", Terms(concurrent=5)), WHY)
    made = [minted(tenant=tenant, team="web") for tenant in ("acme", "gamma")]
    for _, record in made:
        await registry.create(record, WHY)
    async with worker(store, tmp_path, interval_s=60) as keys:

        async def limits() -> list[int | None]:
            return [(await caller(keys, key)).limited[0].terms.concurrent for key, _ in made]

        await keys.look()
        assert await limits() == [5, 5]
        own = await registry.put_owner(None, OwnerRecord("team", "acme/web", Terms(concurrent=2)), WHY)
        await keys.look()
        assert await limits() == [2, 5]
        await registry.put_owner(every, OwnerRecord("team", "web", Terms(concurrent=4)), WHY)
        await registry.remove_owner(own, WHY)
        await keys.look()
        assert await limits() == [4, 4]


async def test_a_flood_of_made_up_keys_costs_a_few_looks(
    store: RedisStore, registry: KeyRegistry, tmp_path: Path
) -> None:
    """None of them is looked up on its own; they share a look at what changed."""

    async def commands() -> int:
        (text,) = await store.ask([Command((b"INFO", b"commandstats"))])
        return sum(int(line.partition(b"calls=")[2].partition(b",")[0]) for line in text.splitlines()[1:])

    await registry.create(minted()[1], WHY)
    async with worker(store, tmp_path) as keys:
        before, began = await commands(), time.monotonic()
        found = await asyncio.gather(*(keys.find(new_key().encode()) for _ in range(2000)), return_exceptions=True)
        assert all(isinstance(one, Unauthorized) for one in found)
        assert await commands() - before < 800 + 200 * (time.monotonic() - began)


async def test_keys_that_were_used_are_known_while_the_store_is_down(tmp_path: Path) -> None:
    """By a worker that runs and by one that starts; an unseen key is told to come again, and is not called unknown."""
    with local_store() as server:
        store = RedisStore.from_url(server.url)
        registry = KeyRegistry(RedisStore.from_url(server.url, slack=UNHURRIED))
        (used, record), (unseen, other) = minted(team="web"), minted()
        await registry.put_owner(None, OwnerRecord("team", "web", Terms(concurrent=3)), WHY)
        await registry.create(record, WHY)
        await registry.create(other, WHY)
        async with worker(store, tmp_path) as keys:
            await caller(keys, used)
            await asyncio.sleep(0.2)
            file = copy_file(tmp_path, "store")
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            server.stop()
            await caller(keys, used)
            with pytest.raises(Overloaded) as told:
                await caller(keys, unseen)
            assert (told.value.code, told.value.headers[0][0]) == ("keys_unavailable", b"retry-after")
        async with worker(store, tmp_path) as keys:
            assert keys.notes
            found = await caller(keys, used)
            assert [one.terms.concurrent for one in found.limited] == [3]
            with pytest.raises(Overloaded):
                await caller(keys, new_key())
            assert b"tl_" not in file.read_bytes()
            server.start()  # with an empty memory
            await settles(keys, used, refused=False)
            async with asyncio.timeout(5):
                while keys.notes or await registry.revision() == 0:
                    await asyncio.sleep(0.05)
            assert (await registry.find(record.id)).digest == record.digest
            assert (await registry.owner("team", "web")) is not None
            with pytest.raises(KeysRefused):
                await registry.find(other.id)
        for one in (store, registry._store):
            await one.aclose()


async def test_a_change_that_the_store_lost_is_made_again(
    registry: KeyRegistry, store: RedisStore, tmp_path: Path
) -> None:
    """A key that was revoked stays so after the store comes back as it was before."""
    async with worker(store, tmp_path) as keys:
        key, record = minted()
        record = await registry.create(record, WHY)
        await caller(keys, key)
        await asyncio.sleep(0.2)
        (before,) = await store.ask([Command((b"DUMP", b"tierline:{keys}:records"))])
        (revision,) = await store.ask([Command((b"GET", b"tierline:{keys}:revision"))])
        await registry.update(record, WHY, state="revoked")
        await settles(keys, key, refused=True)
        await asyncio.sleep(0.2)
        await store.ask([
            Command((b"RESTORE", b"tierline:{keys}:records", b"0", before, b"REPLACE")),
            Command((b"SET", b"tierline:{keys}:revision", revision)),
            Command((b"DEL", b"tierline:{keys}:changes")),
        ])  # fmt: skip
        async with asyncio.timeout(5):
            while (await registry.find(record.id)).state != "revoked":
                await asyncio.sleep(0.02)
        await settles(keys, key, refused=True)


async def test_a_key_that_was_revoked_while_no_worker_ran_is_not_known_by_the_copy(
    registry: KeyRegistry, store: RedisStore, tmp_path: Path
) -> None:
    """What changed meanwhile is taken over at the start, before the first request."""
    key, record = minted()
    record = await registry.create(record, WHY)
    async with worker(store, tmp_path) as keys:
        await caller(keys, key)
    await registry.update(record, WHY, state="revoked")
    async with worker(store, tmp_path):
        pass
    async with worker(RedisStore.from_url("redis://127.0.0.1:9/0"), tmp_path) as keys:
        with pytest.raises(Unauthorized, match="revoked"):
            await caller(keys, key)


@pytest.mark.parametrize("missed", [False, True])
async def test_a_key_that_is_revoked_as_it_is_looked_up_is_not_known_by_the_copy(
    registry: KeyRegistry, store: RedisStore, tmp_path: Path, *, missed: bool
) -> None:
    """What was read before the change is not written after it, also of a worker that has `missed` changes."""
    async with worker(store, tmp_path, interval_s=60) as keys:
        key, record = minted()
        record = await registry.create(record, WHY)
        if not missed:
            assert await keys.look()
        await caller(keys, key)
        await registry.update(record, WHY, state="revoked")
        assert await keys.look()
    async with worker(RedisStore.from_url("redis://127.0.0.1:9/0"), tmp_path) as keys:
        with pytest.raises(Unauthorized, match="revoked"):
            await caller(keys, key)


class _HeldUp(KeyRegistry):
    """A registry whose answers to lookups are on their way until `go`."""

    def __init__(self, store: RedisStore) -> None:
        super().__init__(store)
        self.read, self.go = asyncio.Event(), asyncio.Event()

    async def looked_up(self, digest: str) -> tuple[bool, FoundKey]:
        found = await super().looked_up(digest)
        self.read.set()
        await self.go.wait()
        return found


async def test_a_key_that_is_revoked_while_it_is_looked_up_is_not_known_from_then_on(
    registry: KeyRegistry, store: RedisStore, tmp_path: Path
) -> None:
    """The change is taken over while the answer of before is on its way: what that says is neither held nor kept."""
    held_up = _HeldUp(store)
    keys = KnownKeys(held_up, CONTEXT, {}, KeptKeys(copy_file(tmp_path, "store")), 60)
    await keys.start()
    try:
        key, record = minted()
        record = await registry.create(record, WHY)
        assert await keys.look()
        finding = asyncio.create_task(keys.find(key.encode()))
        async with asyncio.timeout(20):
            await held_up.read.wait()
        await registry.update(record, WHY, state="revoked")
        assert await keys.look()
        held_up.go.set()
        await finding  # it came before the change
        with pytest.raises(Unauthorized, match="revoked"):
            await caller(keys, key)
    finally:
        await keys.aclose()
    async with worker(RedisStore.from_url("redis://127.0.0.1:9/0"), tmp_path) as alone:
        with pytest.raises((Unauthorized, Overloaded)):
            await caller(alone, key)


async def test_without_a_store_no_key_is_known(tmp_path: Path) -> None:
    """It is refused at once, and nothing is polled."""
    async with worker(NoStore(), tmp_path) as keys:
        with pytest.raises(Unauthorized):
            await caller(keys, new_key())
        assert keys.notes == ()


async def test_terms_of_the_store_hold_in_place_of_the_configs(
    registry: KeyRegistry, store: RedisStore, tmp_path: Path
) -> None:
    """Of a team of the config, for keys and for tokens; where the store has none again, the config's hold."""
    web = OwnerRecord("team", "web", Terms(concurrent=1))
    async with worker(store, tmp_path, web=web) as keys:
        changed = 0

        def note() -> None:
            nonlocal changed
            changed += 1

        keys.on_owners = note
        key, record = minted(team="web")
        await registry.create(record, WHY)
        token = KeyRecord("u_1", "00", "acme", "web")
        assert (await caller(keys, key)).limited[0].terms == (await keys.of_record(token)).limited[0].terms
        stored = await registry.put_owner(None, OwnerRecord("team", "web", Terms(concurrent=5)), WHY)
        await asyncio.sleep(0.3)
        assert [o.terms.concurrent for o in (await caller(keys, key)).limited] == [5]
        assert [o.terms.concurrent for o in (await keys.of_record(token)).limited] == [5]
        await registry.remove_owner(stored, WHY)
        await asyncio.sleep(0.3)
        assert [o.terms.concurrent for o in (await caller(keys, key)).limited] == [1]
        assert changed >= 2


def test_what_is_held_is_bounded_and_refusals_push_out_no_caller() -> None:
    """The callers used longest ago go first."""
    held = HeldKeys(most=3, most_refused=3)
    callers = [KeyCaller(record=KeyRecord(f"k_{n}", "", "acme")) for n in range(5)]
    digests = [bytes([n]) * 32 for n in range(5)]
    for digest, one in list(zip(digests, callers, strict=True))[:3]:
        held.hold(digest, one)
    held.get(digests[0])
    held.hold(digests[3], callers[3])
    assert [held.get(digest) is not None for digest in digests] == [True, False, True, True, False]
    for n in range(100, 200):
        held.hold(bytes([n]) * 32, None)
    assert len(held) == 3
    assert held.get(digests[0]) is not None
