"""Workers keep their requests to one limit together, over a real store and without one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest
import redis

from cache.store.base import NoStore, Store
from cache.store.redis_store import RedisStore
from gateway.parts.access.quotas.accounts import Account, Unit, Window
from gateway.parts.access.quotas.authority import NAMES_AT_MOST, Authority
from gateway.parts.access.quotas.leases import Demand, Entered, QuotaLeases, Refusal, WhenDown, freed
from gateway.parts.access.quotas.terms import OwnerKind
from gateway.telemetry.ledger import ACCOUNT_PREFIX
from tests.support.quota_clock import SharedAuthority, run_virtually
from tests.support.store import UNHURRIED, LocalStore

USD = 1_000_000_000
WINDOW = Window("2026-11@UTC", 0.0, 4e9)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalStore]:
    store = LocalStore()
    store.start()
    yield store
    store.stop()


@contextlib.asynccontextmanager
async def _workers(
    server: LocalStore | None, count: int, when_down: WhenDown = "open"
) -> AsyncIterator[Sequence[QuotaLeases]]:
    stores: list[Store] = [
        NoStore() if server is None else RedisStore.from_url(server.url, slack=UNHURRIED) for _ in range(count)
    ]
    workers = [QuotaLeases(store, when_down=when_down) for store in stores]
    try:
        yield workers
    finally:
        for worker in workers:
            await worker.aclose()
        for store in stores:
            await store.aclose()


def _money(name: str, dollars: float) -> Account:
    return Account("key", name, "usd", round(dollars * USD), WINDOW)


def _cost(expected: float, reserved: float | None = None, worst: float | None = None) -> Demand:
    amounts = (expected, reserved or expected, worst or reserved or expected)
    return Demand(0, *(round(amount * USD) for amount in amounts))


async def _entered(worker: QuotaLeases, account: Account, demand: Demand, patience_s: float = 5.0) -> Entered:
    entered = worker.enter([account], demand) or await worker.wait([account], demand, patience_s)
    assert isinstance(entered, Entered), entered
    return entered


async def _refused(worker: QuotaLeases, account: Account, demand: Demand, patience_s: float = 0.3) -> Refusal:
    assert worker.enter([account], demand) is None
    refusal = await worker.wait([account], demand, patience_s)
    assert isinstance(refusal, Refusal), refusal
    return refusal


def _pay(worker: QuotaLeases, server: LocalStore | None, entered: Entered, dollars: float) -> None:
    """Settles a request, and does what the script that appends records does."""
    amount = round(dollars * USD)
    worker.settle(entered, charged=amount)
    for account in entered.accounts:
        if server is not None:
            redis.Redis.from_url(server.url).hincrby(ACCOUNT_PREFIX + account.name, "spent", amount)
            worker.written([(account.name, amount)])


BOTH = pytest.mark.parametrize("stored", [True, False], ids=["store", "alone"])


@BOTH
async def test_requests_of_a_minute_are_counted_over_all_workers(server: LocalStore, *, stored: bool) -> None:
    """Workers together let in exactly as many as the limit says, then say when there is room again."""
    account = Account("key", f"minute-{stored}", "requests", 50)
    async with _workers(server if stored else None, 4 if stored else 1) as workers:
        let_in = 0
        for turn in range(120):
            worker = workers[turn % len(workers)]
            got = worker.enter([account], Demand()) or await worker.wait([account], Demand())
            if isinstance(got, Entered):
                worker.settle(got)
                let_in += 1
            else:
                assert (got.why, got.standing.limit, got.standing.left) == ("limit", 50, 0)
                assert 50 < got.retry_after_s <= 60.5
        assert let_in == 50


@BOTH
async def test_requests_at_once_are_limited_until_one_ends(server: LocalStore, *, stored: bool) -> None:
    """A request over the limit is refused at once; the next after one ended gets in, on any worker."""
    account = Account("team", f"at-once-{stored}", "concurrent", 3)
    async with _workers(server if stored else None, 2 if stored else 1) as workers:
        held = [await _entered(workers[turn % len(workers)], account, Demand()) for turn in range(3)]
        assert (await _refused(workers[-1], account, Demand())).why == "limit"
        workers[0].settle(held[0])
        workers[0].settle(held[0])  # a second call does nothing
        await _entered(workers[-1], account, Demand())
        assert (await _refused(workers[0], account, Demand())).why == "limit"


@BOTH
async def test_a_budget_that_is_spent_refuses_and_says_so(server: LocalStore, *, stored: bool) -> None:
    """While anything is left a request gets in, even one that could cost more; then none, until money is added."""
    account = _money(f"spent-{stored}", 1.0)
    async with _workers(server if stored else None, 2 if stored else 1) as workers:
        _pay(workers[0], server if stored else None, await _entered(workers[0], account, _cost(0.5, 64.0)), 0.99)
        _pay(workers[-1], server if stored else None, await _entered(workers[-1], account, _cost(0.5, 64.0)), 0.02)
        refusal = await _refused(workers[0], account, _cost(0.001))
        assert (refusal.why, refusal.standing.left) == ("exhausted", 0)
        share, whose = workers[0].tightest([account])
        assert share >= 1.0 and whose == account
        if stored:
            redis.Redis.from_url(server.url).hincrby(ACCOUNT_PREFIX + account.name, "spent", -USD)
        else:
            workers[0].adjusted(account.name, -USD)
        await asyncio.sleep(0.3)
        await _entered(workers[0], account, _cost(0.001))
        for worker in workers:
            assert (await _refused(worker, _money(f"nothing-{stored}", 0.0), _cost(0.0))).why == "exhausted"


@BOTH
async def test_a_limit_that_changes_holds_for_the_next_request(server: LocalStore, *, stored: bool) -> None:
    """A budget lowered under what is spent refuses at once, and one that is raised again lets in at once."""
    name = f"changed-{stored}"
    async with _workers(server if stored else None, 1) as [worker]:
        _pay(worker, server if stored else None, await _entered(worker, _money(name, 10.0), _cost(0.5)), 2.0)
        await asyncio.sleep(0.3)
        refusal = await _refused(worker, _money(name, 1.5), _cost(0.01))
        assert (refusal.why, refusal.standing.used) == ("exhausted", 2 * USD)
        await _entered(worker, _money(name, 3.0), _cost(0.01))


@BOTH
async def test_what_others_hold_is_waited_for(server: LocalStore, *, stored: bool) -> None:
    """A request waits for those that hold the rest of a budget, gets in when they cost less, and else is told to."""
    account = _money(f"held-{stored}", 1.0)
    async with _workers(server if stored else None, 2 if stored else 1) as workers:
        paid = server if stored else None
        _pay(workers[0], paid, await _entered(workers[0], account, _cost(0.85)), 0.85)
        first = await _entered(workers[0], account, _cost(0.05, 0.15))
        second = await _entered(workers[-1], account, _cost(0.02, 0.1))
        assert (await _refused(workers[-1], account, _cost(0.02, 0.1))).why == "held"
        waiting = asyncio.ensure_future(workers[-1].wait([account], _cost(0.02, 0.1), 5.0))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        _pay(workers[0], paid, first, 0.01)
        _pay(workers[-1], paid, second, 0.01)
        assert isinstance(await waiting, Entered)


@BOTH
async def test_nobody_waits_while_most_of_a_budget_is_left(server: LocalStore, *, stored: bool) -> None:
    """Where requests under way may need the rest, the next is refused at once: below 80% nobody can tell it to wait."""
    account = _money(f"at-once-usd-{stored}", 1.0)
    async with _workers(server if stored else None, 2 if stored else 1) as workers:
        held = [await _entered(workers[turn % len(workers)], account, _cost(0.1, 0.3)) for turn in range(4)]
        began = time.monotonic()
        assert (await _refused(workers[-1], account, _cost(0.1, 0.3), 5.0)).why == "held"
        assert time.monotonic() - began < 1.5
        _pay(workers[0], server if stored else None, held[0], 0.05)
        await asyncio.sleep(0.3)
        await _entered(workers[-1], account, _cost(0.1, 0.3))


@BOTH
async def test_nobody_waits_for_money_that_others_are_expected_to_need(server: LocalStore, *, stored: bool) -> None:
    """Near the end of a budget one waits, and the next, for which nothing would be left, is refused at once."""
    account = _money(f"queue-{stored}", 1.0)
    async with _workers(server if stored else None, 1) as [worker]:
        _pay(worker, server if stored else None, await _entered(worker, account, _cost(0.85)), 0.85)
        first = await _entered(worker, account, _cost(0.05, 0.2))
        waiting = asyncio.ensure_future(worker.wait([account], _cost(0.11, 0.2), 5.0))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        assert (await _refused(worker, account, _cost(0.01, 0.2), 5.0)).why == "held"
        assert time.monotonic() - began < 1.5
        _pay(worker, server if stored else None, first, 0.0)
        assert isinstance(await waiting, Entered)


@BOTH
async def test_who_came_first_is_let_in_first(server: LocalStore, *, stored: bool) -> None:
    """Requests that wait for money get in in the order in which they came; one that comes later overtakes none."""
    account = _money(f"order-{stored}", 10.0)
    order: list[int] = []
    async with _workers(server if stored else None, 1) as [worker]:
        _pay(worker, server if stored else None, await _entered(worker, account, _cost(9.5)), 9.5)

        async def ask(number: int, worst: float) -> None:
            entered = await _entered(worker, account, _cost(0.01, 0.01, worst))
            order.append(number)
            await asyncio.sleep(0.02)
            _pay(worker, server if stored else None, entered, 0.01)

        first = await _entered(worker, account, _cost(0.01, 0.01, 2.0))
        tasks = []
        for number, worst in enumerate((2.0, 2.0, 0.4, 2.0, 0.4, 2.0)):
            tasks.append(asyncio.ensure_future(ask(number, worst)))
            await asyncio.sleep(0.07)
        assert order == []
        _pay(worker, server if stored else None, first, 0.01)
        tasks.append(asyncio.ensure_future(ask(6, 0.01)))  # it comes when there is room, and others wait
        await asyncio.gather(*tasks)
    assert order == sorted(order)


@BOTH
async def test_who_waits_goes_by_the_limits_of_now(server: LocalStore, *, stored: bool) -> None:
    """A budget that is raised while a request waits lets it in; one that is lowered refuses it."""
    name = f"renewed-{stored}"
    async with _workers(server if stored else None, 1) as [worker]:
        account = _money(name, 1.0)
        _pay(worker, server if stored else None, await _entered(worker, account, _cost(0.95)), 0.95)
        first = await _entered(worker, account, _cost(0.01, 0.01, 0.5))
        for dollars, why in ((9.0, ""), (0.9, "exhausted")):
            limit = 1.0

            async def renewed() -> Sequence[Account]:
                return [_money(name, limit)]  # noqa: B023

            waiting = asyncio.ensure_future(worker.wait([_money(name, limit)], _cost(0.01, 0.01, 0.5), 3.0, renewed))
            await asyncio.sleep(0.15)
            assert not waiting.done()
            limit = dollars
            result = await waiting
            assert (result.why if isinstance(result, Refusal) else "") == why
            if isinstance(result, Entered):
                _pay(worker, server if stored else None, result, 0.0)
        _pay(worker, server if stored else None, first, 0.01)


@pytest.mark.parametrize(("kind", "evictable"), [("key", False), ("team", False), ("user", True), ("session", True)])
async def test_counters_under_names_that_clients_choose_can_be_evicted(
    server: LocalStore, kind: OwnerKind, evictable: bool
) -> None:
    """A store that is full drops those, not a key's; and they go an hour after their window at the latest."""
    now = time.time()
    account = Account(kind, "k_1:anybody", "usd", USD, Window("2026-11-28@UTC", now - 60, now + 60))
    async with _workers(server, 1) as [worker]:
        worker.settle(await _entered(worker, account, _cost(0.1)))
        await asyncio.sleep(0.3)
        with redis.Redis.from_url(server.url) as client:
            left_ms = int(client.pttl(ACCOUNT_PREFIX + account.name))  # type: ignore[arg-type]
            may_go = client.zscore("{tierline:traces}:quotas", ACCOUNT_PREFIX + account.name)
    assert 0 < left_ms <= 3_700_000 if evictable else left_ms == -1
    assert float(str(may_go)) - 1000 * now < (3_700_000 if evictable else 8 * 86_400_000)


@pytest.mark.parametrize("kind", ["user", "session"])
async def test_names_that_clients_choose_are_counted_up_to_a_number(server: LocalStore, kind: OwnerKind) -> None:
    """Beyond it those of the same key that were used longest ago go first; another key's stay."""
    now = time.time()
    window = Window("2026-11-28@UTC", now - 60, now + 3600)
    first, other, last = (Account(kind, f"key:{owner}", "usd", USD, window) for owner in ("k_1:a", "k_2:a", "k_1:b"))
    async with _workers(server, 1) as [worker]:
        with redis.Redis.from_url(server.url) as client:
            for account in (first, other):
                worker.settle(await _entered(worker, account, _cost(0.1)))
            names = f"{ACCOUNT_PREFIX}{kind}:key:k_1:names"
            assert 0 < int(client.ttl(names)) <= 90 * 86400  # type: ignore[arg-type]
            client.zadd(
                names, {f"{ACCOUNT_PREFIX}{number}": 1000 * now + 10_000 for number in range(NAMES_AT_MOST - 1)}
            )
            assert client.exists(ACCOUNT_PREFIX + first.name)
            worker.settle(await _entered(worker, last, _cost(0.1)))
            assert client.zcard(names) == NAMES_AT_MOST
            left = [bool(client.exists(ACCOUNT_PREFIX + account.name)) for account in (first, other, last)]
            listed = client.zscore("{tierline:traces}:quotas", ACCOUNT_PREFIX + first.name)
            client.delete(names)
    assert left == [False, True, True] and listed is None


def test_a_gateway_without_a_store_counts_as_many_names() -> None:
    """It forgets the oldest of a key's, and no key's own counter."""
    authority = Authority()
    for number in range(NAMES_AT_MOST + 2):
        authority.charge(f"user:key:k_1:{number}/usd/total", 1)
    authority.charge("user:key:k_2:a/usd/total", 1)
    authority.charge("key:k_1/usd/total", 1)
    authority.forget(0, 0)
    assert len(authority.accounts) == NAMES_AT_MOST + 2
    assert "user:key:k_1:1/usd/total" not in authority.accounts


async def test_a_lease_answers_without_a_round_trip(server: LocalStore) -> None:
    """A worker in use asks the store for its first request, and later only beside its requests."""
    rates, account = Account("key", "busy", "requests", 100_000), _money("busy", 100.0)
    async with _workers(server, 1) as [worker]:
        await _entered(worker, account, _cost(0.001, 0.01))
        await _entered(worker, rates, Demand())
        await asyncio.sleep(0.25)
        waits = 0
        for _ in range(100):
            entered = worker.enter([rates, account], _cost(0.001, 0.01))
            if entered is None:
                waits += 1
                got = await worker.wait([rates, account], _cost(0.001, 0.01))
                assert isinstance(got, Entered)
                entered = got
            _pay(worker, server, entered, 0.001)
            await asyncio.sleep(0.005)
        assert waits <= 10


async def test_slots_of_a_killed_worker_are_free_after_seconds(server: LocalStore) -> None:
    """What a worker held when it died is lent again after its lease's deadline, or once its heir has settled."""
    account, money = Account("key", "killed", "concurrent", 2), _money("killed", 1.0)
    async with _workers(server, 1) as [worker]:
        killed = QuotaLeases(RedisStore.from_url(server.url, slack=UNHURRIED))
        for _ in range(2):
            await _entered(killed, account, Demand())
        await _entered(killed, money, _cost(1.0))
        assert killed._task is not None
        killed._task.cancel()
        began = time.monotonic()
        assert (await _refused(worker, account, Demand())).why == "limit"
        assert (await _refused(worker, money, _cost(0.5, 0.6))).why == "held"
        redis.Redis.from_url(server.url).execute_command(*freed(killed.worker, [money.name])[0].words)
        await _entered(worker, money, _cost(0.5, 0.6))
        while not isinstance(await worker.wait([account], Demand(), 0.2), Entered):
            await asyncio.sleep(0.1)
        assert 1.0 < time.monotonic() - began < 6.0
        await killed._store.aclose()


async def test_a_store_that_is_slow_for_once_is_asked_again(server: LocalStore) -> None:
    """One exchange that takes too long refuses nobody."""
    store = RedisStore.from_url(server.url)
    worker = QuotaLeases(store)
    await _entered(worker, _money("before", 1.0), _cost(0.1))
    redis.Redis.from_url(server.url).client_pause(350, all=True)
    await _entered(worker, _money("slow-once", 1.0), _cost(0.1))
    await worker.aclose()
    await store.aclose()


async def _let_in(worker: QuotaLeases, account: Account, tries: int, at_once: int = 10) -> int:
    """How many of so many requests get in, those of a moment at once."""

    async def got_in() -> bool:
        got = worker.enter([account], Demand(1)) or await worker.wait([account], Demand(1), 3.0)
        if isinstance(got, Entered) and account.unit != "concurrent":
            worker.settle(got, 1)
        return isinstance(got, Entered)

    count = 0
    for _ in range(tries // at_once):
        count += sum(await asyncio.gather(*(got_in() for _ in range(at_once))))
        await asyncio.sleep(0.02)
    return count


@pytest.mark.parametrize("unit", ["requests", "tokens"])
@pytest.mark.parametrize("pause_ms", [350, 700, 2000])
async def test_a_store_that_pauses_opens_no_limit(server: LocalStore, pause_ms: int, unit: Unit) -> None:
    """Every worker counts by itself meanwhile, what was used before included; also what it had forgotten."""
    account = Account("key", f"paused-{unit}-{pause_ms}", unit, 30)
    with redis.Redis.from_url(server.url) as client:
        store = RedisStore.from_url(server.url)
        worker = QuotaLeases(store)
        assert await _let_in(worker, account, 20) == 20
        until_forgotten = time.monotonic() + 20
        while worker._leases and time.monotonic() < until_forgotten:
            await asyncio.sleep(0.05)
        client.client_pause(pause_ms, all=True)
        meanwhile = await _let_in(worker, account, 200)
        await asyncio.sleep(1.0)
        assert meanwhile + await _let_in(worker, account, 20) == 10
        await worker.aclose()
        await store.aclose()


async def test_one_slow_exchange_lets_nobody_count_alone(server: LocalStore) -> None:
    """Workers that count alone let in a limit each; they wait for the store before they do."""
    account = Account("key", "slow-exchange", "requests", 30)
    async with _workers(server, 2) as workers:
        for worker in workers:
            worker._store = RedisStore.from_url(server.url)
        with redis.Redis.from_url(server.url) as client:
            client.client_pause(400, all=True)
        assert sum(await asyncio.gather(*(_let_in(worker, account, 50) for worker in workers))) == 30


async def test_a_worker_lets_in_a_minutes_requests_while_the_store_is_gone() -> None:
    """`open` means that requests go on, not that all of them do; requests at once are held to their limit too."""
    server = LocalStore()
    server.start()
    store = RedisStore.from_url(server.url)
    worker = QuotaLeases(store)
    server.close()
    assert await _let_in(worker, Account("key", "gone", "requests", 30), 50) == 30
    assert await _let_in(worker, Account("key", "gone", "concurrent", 3), 10) == 3
    await worker.aclose()
    await store.aclose()


@pytest.mark.parametrize("when_down", ["open", "closed"])
async def test_without_an_answer_of_the_store_the_config_decides(when_down: WhenDown) -> None:
    """Leases go on; then requests go on by `open` and stop by `closed`, and money always stops."""
    server = LocalStore()
    server.start()
    account, money = Account("key", "k", "requests", 100), _money("k", 10.0)
    async with _workers(server, 1, when_down) as [worker]:
        for _ in range(2):  # the second has been expected
            await _entered(worker, account, Demand())
            await _entered(worker, money, _cost(0.01, 0.1))
            await asyncio.sleep(0.25)
        server.stop()
        await _entered(worker, account, Demand())
        await _entered(worker, money, _cost(0.01, 0.1))
        for _ in range(60):
            got = worker.enter([account], Demand()) or await worker.wait([account], Demand(), 1.5)
            if isinstance(got, Refusal):
                break
        assert isinstance(got, Entered) if when_down == "open" else got.why == "store"
        assert (await _refused(worker, money, _cost(1.0, 9.0))).why == "store"
        server.start()
        await asyncio.sleep(1.5)
        await _entered(worker, money, _cost(1.0, 9.0))


@pytest.mark.parametrize("pause_s", [0.4, 1.3, 2.5, 5.0])
def test_what_a_worker_has_forgotten_still_counts(pause_s: float) -> None:
    """A key that is used now and then is held to its limit, though its lease is returned and forgotten in between."""

    async def let_in() -> int:
        [worker] = SharedAuthority().workers(1)
        account, count = Account("key", "rare", "requests", 5), 0
        for _ in range(10):
            count += isinstance(worker.enter([account], Demand()) or await worker.wait([account], Demand()), Entered)
            await asyncio.sleep(pause_s)
        await worker.aclose()
        return count

    assert run_virtually(let_in()) == 5
