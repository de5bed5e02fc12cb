"""Counters of budgets come back to a store that has lost its data, and stay as an operator has set them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from cache.store.redis_store import RedisStore
from gateway.config.environment import write_private
from gateway.parts.access.quotas.accounts import Account, Window
from gateway.parts.access.quotas.leases import Demand, Entered, QuotaLeases
from gateway.parts.access.quotas.spent_copies import SpentCopies
from gateway.telemetry.ledger import ACCOUNT_PREFIX
from tests.support.store import UNHURRIED, LocalStore
from tests.support.wait import eventually

USD = 1_000_000_000
NAME = "key:k_1/usd/total"
MAY_GO = round(1000 * time.time()) + 3_600_000


@contextlib.asynccontextmanager
async def copies_of(store: LocalStore, folder: Path) -> AsyncIterator[SpentCopies]:
    """The copies of a worker that does not look by itself."""
    client = RedisStore.from_url(store.url, slack=UNHURRIED)
    copies = SpentCopies(client, SpentCopies.file_in(folder, store.url), write_private)
    await copies.start()
    assert copies._task is not None
    copies._task.cancel()
    try:
        yield copies
    finally:
        await copies.aclose()
        await client.aclose()


def spent_in(store: LocalStore, name: str = NAME) -> int:
    with redis.Redis.from_url(store.url, decode_responses=True) as client:
        return int(str(client.hget(ACCOUNT_PREFIX + name, "spent") or 0))


async def test_a_store_that_was_emptied_gets_its_counters_back_each_time(store: LocalStore, tmp_path: Path) -> None:
    async with copies_of(store, tmp_path) as copies:
        assert not await copies.look()
        assert await copies.compared({NAME: (5 * USD, 0, MAY_GO)}) == {}
        assert copies.notes() == []
        for lost in range(2):
            with redis.Redis.from_url(store.url) as client:
                client.flushall()
            assert await copies.compared({NAME: (lost, 0, MAY_GO)}) == {NAME: 5 * USD}
            assert spent_in(store) == 5 * USD
            assert "lost its data" in copies.notes()[0]
        assert not await copies.look()


async def test_a_store_that_goes_on_from_an_older_state_gets_what_is_missing(store: LocalStore, tmp_path: Path) -> None:
    """One that was saved a while ago, or a replica that had not everything."""
    async with copies_of(store, tmp_path) as copies:
        for _ in range(3):
            await copies.look()
        await copies.compared({NAME: (5 * USD, 0, 0), "key:k_2/usd/total": (USD, 0, 0)})
        with redis.Redis.from_url(store.url) as client:
            client.hset("{tierline:traces}:quotas:generation", "looks", 1)
            client.hset(ACCOUNT_PREFIX + NAME, "spent", 3 * USD)
            client.hset(ACCOUNT_PREFIX + "key:k_2/usd/total", "spent", 2 * USD)
        assert await copies.look()
        assert (spent_in(store), spent_in(store, "key:k_2/usd/total")) == (5 * USD, 2 * USD)


async def test_each_worker_notices_a_loss_although_others_have_looked_since(store: LocalStore, tmp_path: Path) -> None:
    """Also soon after the first look, or after another loss, when there were as many looks before it as since."""
    async with copies_of(store, tmp_path) as first, copies_of(store, tmp_path) as second:
        await first.look()
        await second.look()
        await first.compared({NAME: (5 * USD, 0, MAY_GO)})
        for _ in range(2):
            with redis.Redis.from_url(store.url) as client:
                client.flushall()
            assert await second.look()
            assert await first.look()
            assert spent_in(store) == 5 * USD


async def test_what_an_operator_has_reset_stays_so(store: LocalStore, tmp_path: Path) -> None:
    """It is what is known from then on, also of a store that is emptied later."""
    async with copies_of(store, tmp_path) as copies:
        await copies.look()
        await copies.compared({NAME: (5 * USD, 0, MAY_GO)})
        assert await copies.compared({NAME: (USD, 0, MAY_GO)}) == {}
        assert copies.notes() == []
        with redis.Redis.from_url(store.url) as client:
            client.flushall()
        assert await copies.compared({NAME: (0, 0, MAY_GO)}) == {NAME: USD}


async def test_a_worker_that_starts_gives_back_what_those_before_it_knew(store: LocalStore, tmp_path: Path) -> None:
    """But for windows that are long over; a file that is damaged is as good as none."""
    async with copies_of(store, tmp_path) as copies:
        await copies.look()
        await copies.compared({NAME: (5 * USD, 0, MAY_GO), "old": (USD, 0, 1)})
    async with copies_of(store, tmp_path) as other:  # a worker that knows another account
        await other.look()
        await other.compared({"key:k_2/usd/total": (2 * USD, 0, 0)})
    with redis.Redis.from_url(store.url) as client:
        client.flushall()
    async with copies_of(store, tmp_path) as later:
        assert await later.look()
        assert (spent_in(store), spent_in(store, "key:k_2/usd/total")) == (5 * USD, 2 * USD)
        assert spent_in(store, "old") == 0
    SpentCopies.file_in(tmp_path, store.url).write_bytes(b"[1, ")
    async with copies_of(store, tmp_path) as damaged:
        assert not await damaged.look()


async def test_what_was_written_since_the_store_was_heard_is_given_back_too(store: LocalStore, tmp_path: Path) -> None:
    """A charge whose record the store took after the last exchange, and lost with the rest."""
    account = Account("key", "k_since", "usd", USD, Window("total", 0.0, float("inf")))
    client = RedisStore.from_url(store.url, slack=UNHURRIED)
    copies = SpentCopies(client, SpentCopies.file_in(tmp_path, store.url), write_private)
    leases = QuotaLeases(client, copies=copies)
    await copies.look()
    with redis.Redis.from_url(store.url) as direct:
        for cost in (USD // 10, USD // 4):
            got = await leases.wait([account], Demand(expected=cost, worst=cost), 5.0)
            assert isinstance(got, Entered)
            direct.hincrby(ACCOUNT_PREFIX + account.name, "spent", cost)
            leases.settle(got, 0, cost)
            leases.written([(account.name, cost)])
            if cost == USD // 10:
                await asyncio.sleep(0.6)
        direct.flushall()  # before anything could be exchanged
        await eventually(lambda: spent_in(store, account.name) == USD // 10 + USD // 4, 5)
    await leases.aclose()
    await client.aclose()


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_budget_holds_although_the_store_loses_its_data_twice(
    store: LocalStore, tmp_path: Path, workers: int
) -> None:
    """Requests go on meanwhile. What is charged between two exchanges is all that can be missing."""
    account = Account("key", "k_lost", "usd", USD, Window("total", 0.0, float("inf")))
    clients = [RedisStore.from_url(store.url, slack=UNHURRIED) for _ in range(workers)]
    file = SpentCopies.file_in(tmp_path, store.url)
    leases = [QuotaLeases(client, copies=SpentCopies(client, file, write_private)) for client in clients]
    for one in leases:
        await one.start()
    cost, spent, refused = USD // 100, 0, 0
    with redis.Redis.from_url(store.url) as client:
        for number in range(400):
            if number in (50, 90):
                client.flushall()
            one = leases[number % workers]
            demand = Demand(expected=cost, worst=cost)
            got = one.enter([account], demand) or await one.wait([account], demand, 1.0)
            if isinstance(got, Entered):
                client.hincrby(ACCOUNT_PREFIX + account.name, "spent", cost)
                one.settle(got, 0, cost)
                one.written([(account.name, cost)])
                spent += cost
                await asyncio.sleep(0.005)
            else:
                refused += 1
                if refused > 3:
                    break
    for one in leases:
        await one.aclose()
    for store_client in clients:
        await store_client.aclose()
    assert USD <= spent <= 1.2 * USD
