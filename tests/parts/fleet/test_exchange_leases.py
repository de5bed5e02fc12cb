from __future__ import annotations

import asyncio
import secrets
import time

import pytest

from cache.flights import Flight, Lease
from cache.scopes.scope import Caps, put
from cache.store.base import Claim, Command, Look, NoStore, Release, StoreUnavailable, Write
from cache.store.redis_store import RedisStore
from cache.write import DelayedWrites
from gateway.parts.fleet.exchange import Claimed, Leases, _lease_of, can_serve, keep_leases, publish_frames
from tests.support.garbage import leaving_nothing
from tests.support.store import UNHURRIED, local_store


def name() -> str:
    return f"test:{{{secrets.token_hex(8)}}}"


async def test_a_lease_is_one_holders_until_it_is_released(store: RedisStore) -> None:
    """Whoever comes second is told who has it; only its holder's release gives it up."""
    lease = name()
    assert await store.claim(lease, b"one", 10, f"{lease}:x") == Claim(b"one", False)
    assert (await store.claim(lease, b"other", 10, f"{lease}:x")).holder == b"one"
    await store.apply([Release(lease, b"other")])
    assert (await store.claim(lease, b"other", 10, f"{lease}:x")).holder == b"one"
    await store.apply([Release(lease, b"one"), Release(name(), b"one")])
    assert (await store.claim(lease, b"other", 10, f"{lease}:x")).holder == b"other"


async def test_a_look_finds_the_value_or_takes_the_lease(store: RedisStore) -> None:
    """Where something is kept nobody takes a lease; where nothing is, the first who looks has it."""
    key = name()
    assert await store.look(key, f"{key}:l", b"one", 10) == Look(None, b"one")
    assert await store.look(key, f"{key}:l", b"other", 10) == Look(None, b"one")
    await store.apply([Write(key, b"kept", 10)])
    assert await store.look(key, f"{key}:l", b"other", 10) == Look(b"kept")
    assert await store.look(key, f"{key}:m", b"other", 10) == Look(b"kept")
    assert await store.get(f"{key}:m") is None


async def test_a_claim_tells_of_the_value_beside_it(store: RedisStore) -> None:
    """What was written a moment ago is seen by whoever takes the lease after that."""
    lease = name()
    await store.apply([Write(f"{lease}:x", b"v", 10)])
    assert await store.claim(lease, b"one", 10, f"{lease}:x") == Claim(b"one", True)


async def test_a_lease_expires_unless_it_is_renewed_by_its_holder(store: RedisStore) -> None:
    """A holder that is gone stands in nobody's way for long, and nobody can renew in another's name."""
    lease = name()
    await store.claim(lease, b"one", 0.5, lease)
    await keep_leases(store, [Lease(lease, b"one")], 30)
    await asyncio.sleep(0.6)
    assert (await store.claim(lease, b"other", 10, lease)).holder == b"one"
    await keep_leases(store, [Lease(lease, b"one")], 0.05)
    await keep_leases(store, [Lease(lease, b"other")], 30)
    async with asyncio.timeout(30):
        while (await store.claim(lease, b"other", 10, lease)).holder != b"other":
            await asyncio.sleep(0.01)


async def test_what_is_published_is_read_in_order_and_goes_by_itself(store: RedisStore) -> None:
    """A stream of one flight needs nobody to clean up after it."""
    stream = name()
    await publish_frames(store, stream, [b"1", b"2"], 1)
    assert [value for _, value in await store.after(stream, "0", 10, 0)] == [b"1", b"2"]
    async with asyncio.timeout(30):
        while await store.after(stream, "0", 10, 0):
            await asyncio.sleep(0.02)


async def test_without_a_store_there_are_no_leases() -> None:
    """As for every other verb: unavailable, at once."""
    store = NoStore()
    for verb in (
        store.look("k", "k:l", b"one", 1),
        store.claim("k", b"one", 1, "x"),
        keep_leases(store, [Lease("k", b"one")], 1),
        store.apply([Release("k", b"one")]),
        publish_frames(store, "s", [b"v"], 1),
    ):
        with pytest.raises(StoreUnavailable):
            await verb


def flight(key: str, worker: str = "") -> Flight:
    one = Flight(key, time.monotonic() + 10, full_deadline=True)
    one.ident = f"{worker}{one.ident}"
    return one


async def test_a_look_finds_what_is_kept_or_takes_the_lease(store: RedisStore) -> None:
    """In one round trip; where another worker makes the answer, it says who. What is there needs no lease."""
    key, ours, theirs = name(), Leases(store, DelayedWrites(store)), Leases(store, DelayedWrites(store))
    made, other = flight(key), flight(key, "other")
    claimed = await ours.look(made, key)
    assert isinstance(claimed, Claimed)
    assert claimed.lease is not None
    seen = await theirs.look(other, key)
    assert isinstance(seen, Claimed)
    assert seen.lease is None
    assert seen.theirs is not None
    assert seen.theirs.holder == claimed.lease.holder
    assert can_serve(seen.theirs, time.monotonic() + 100)
    await store.apply([put(key, b"v", 10, time.time(), Caps(), lease=ours.key_of(made))])
    ours.gone(made)
    assert await theirs.look(other, key) == b"v"
    assert await store.get(f"{key}:l") is None
    await ours.aclose()
    await theirs.aclose()


async def test_a_lease_is_renewed_for_as_long_as_its_flight_takes(store: RedisStore) -> None:
    """Longer than it would last by itself."""
    key, leases = name(), Leases(store, DelayedWrites(store))
    await leases.look(flight(key), key)
    await keep_leases(store, [Lease(f"{key}:l", (await store.get(f"{key}:l")) or b"")], 1.5)
    await asyncio.sleep(2)
    assert await store.get(f"{key}:l") is not None
    await leases.aclose()
    assert await store.get(f"{key}:l") is None


async def test_a_renewal_that_is_closed_before_it_began_leaves_nothing_behind() -> None:
    """The timer may fire in the turn of the loop in which the worker closes."""
    with leaving_nothing():
        leases = Leases(NoStore(), DelayedWrites(NoStore()))
        made = flight(name())
        leases._claimed(made, held := _lease_of(made), held.holder, written=False)
        leases._renew()
        await leases.aclose()


async def test_a_look_that_may_have_taken_the_lease_gives_it_up(store: RedisStore) -> None:
    """A request that leaves while it looks stands in nobody's way."""
    key, leases = name(), Leases(store, DelayedWrites(store))
    looking = asyncio.create_task(leases.look(flight(key), key))
    await asyncio.sleep(0)
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    next_one = Leases(store, DelayedWrites(store))
    async with asyncio.timeout(30):
        while True:
            claimed = await next_one.look(one := flight(key, "other"), key)
            if isinstance(claimed, Claimed) and claimed.lease is not None:
                break
            await asyncio.sleep(0.01)
    assert next_one.key_of(one) == f"{key}:l"
    await leases.aclose()
    await next_one.aclose()


async def test_a_look_that_came_too_late_may_be_followed_by_a_claim(store: RedisStore) -> None:
    """If it has taken the lease, that is the claimant's own."""
    key, leases = name(), Leases(store, DelayedWrites(store))
    made = flight(key)
    taken = await leases.look(made, key)
    assert isinstance(taken, Claimed)
    leases.gone(made)  # as if its answer had been lost on the way
    assert (await leases.claim(made, key)).lease == taken.lease
    await leases.aclose()


async def test_a_full_store_is_looked_into_all_the_same() -> None:
    """There is a miss without a lease, so everybody makes its own answer; and what it holds is found."""
    with local_store() as full:
        store = RedisStore.from_url(full.url, slack=UNHURRIED)
        key, leases = name(), Leases(store, DelayedWrites(store))
        await store.apply([Write(key, b"v", 60)])
        await store.ask([Command((b"CONFIG", b"SET", b"maxmemory", b"1"))])
        assert await leases.look(flight(key), key) == b"v"
        assert await leases.look(flight(other := name()), other) == Claimed(None)
        await leases.aclose()
        await store.aclose()
