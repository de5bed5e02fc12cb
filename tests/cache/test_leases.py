from __future__ import annotations

import asyncio
import secrets

import pytest

from cache.no_store import NoStore
from cache.redis_store import RedisStore
from cache.store import Claim, StoreUnavailable, Write


def name() -> str:
    return f"test:{{{secrets.token_hex(8)}}}"


async def test_a_lease_is_one_holders_until_it_is_released(store: RedisStore) -> None:
    """Whoever comes second is told who has it; only its holder's release gives it up."""
    lease = name()
    assert await store.claim(lease, b"one", 10, f"{lease}:x") == Claim(b"one", False)
    assert (await store.claim(lease, b"other", 10, f"{lease}:x")).holder == b"one"
    await store.release([(lease, b"other")])
    assert (await store.claim(lease, b"other", 10, f"{lease}:x")).holder == b"one"
    await store.release([(lease, b"one"), (name(), b"one")])
    assert (await store.claim(lease, b"other", 10, f"{lease}:x")).holder == b"other"


async def test_a_claim_tells_of_the_value_beside_it(store: RedisStore) -> None:
    """What was written a moment ago is seen by whoever takes the lease after that."""
    lease = name()
    await store.apply([Write(f"{lease}:x", b"v", 10)])
    assert await store.claim(lease, b"one", 10, f"{lease}:x") == Claim(b"one", True)


async def test_a_lease_expires_unless_it_is_renewed_by_its_holder(store: RedisStore) -> None:
    """A holder that is gone stands in nobody's way for long, and nobody can renew in another's name."""
    lease = name()
    await store.claim(lease, b"one", 0.05, lease)
    await store.renew(lease, b"one", 30)
    await asyncio.sleep(0.1)
    assert (await store.claim(lease, b"other", 10, lease)).holder == b"one"
    await store.renew(lease, b"one", 0.05)
    await store.renew(lease, b"other", 30)
    async with asyncio.timeout(5):
        while (await store.claim(lease, b"other", 10, lease)).holder != b"other":
            await asyncio.sleep(0.01)


async def test_what_is_published_is_read_in_order_and_goes_by_itself(store: RedisStore) -> None:
    """A stream of one flight needs nobody to clean up after it."""
    stream = name()
    await store.publish(stream, [b"1", b"2"], 0.2)
    assert [value for _, value in await store.after(stream, "0", 10, 0)] == [b"1", b"2"]
    async with asyncio.timeout(5):
        while await store.after(stream, "0", 10, 0):
            await asyncio.sleep(0.02)


async def test_without_a_store_there_are_no_leases() -> None:
    """As for every other verb: unavailable, at once."""
    store = NoStore()
    for verb in (
        store.claim("k", b"one", 1, "x"),
        store.renew("k", b"one", 1),
        store.release([("k", b"one")]),
        store.publish("s", [b"v"], 1),
    ):
        with pytest.raises(StoreUnavailable):
            await verb
