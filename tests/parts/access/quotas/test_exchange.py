"""The store's script does what the authority in Python does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import astuple

import pytest
import redis

from gateway.parts.access.quotas.authority import Authority
from gateway.parts.access.quotas.leases import SCRIPT
from gateway.parts.access.quotas.machine import LeaseReply, LeaseRequest
from gateway.telemetry.ledger import ACCOUNT_PREFIX
from tests.support.store import LocalStore

UNITS = ("requests", "tokens", "concurrent", "usd")


@pytest.fixture(scope="module")
def server() -> Iterator[redis.Redis]:
    store = LocalStore()
    store.start()
    try:
        yield redis.Redis.from_url(store.url)
    finally:
        store.stop()


def _asked(server: redis.Redis, worker: str, number: int, now: int, requests: list[tuple[str, LeaseRequest]]) -> object:
    keys, words = ["{tierline:traces}:quotas", "{tierline:traces}:quotas:clock"], [worker, number, now]
    for name, request in requests:
        keys += [ACCOUNT_PREFIX + name, f"{ACCOUNT_PREFIX}{name}:slots"]
        words += [*request, 15000 if request.unit == "usd" else 4000, 120_000, 0]
    flat = server.eval(SCRIPT, len(keys), *keys, *words)
    return [LeaseReply(*flat[first : first + 9]) for first in range(0, len(flat), 9)]


def _request(chance: random.Random, unit: str, used: int) -> LeaseRequest:
    scale = chance.choice((1, 10, 1000, 2**40)) if unit in ("usd", "tokens") else 1
    few = [chance.randrange(12) * scale for _ in range(9)]
    limit, held, spare, expected, need, need_expected, least, least_expected, comfort = few
    kept, least = held + spare, min(least, need)
    counted = unit in ("requests", "tokens")
    return LeaseRequest(
        unit, limit * chance.choice((1, 10)), kept, held, expected, need, need_expected, least, least_expected, comfort,
        used if counted else 0, max(used - chance.randrange(5), 0) if counted else 0,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_script_and_authority_agree(server: redis.Redis, seed: int) -> None:
    """Replies and states are equal after each of many random exchanges, charges and steps of the clock."""
    chance = random.Random(seed)
    server.flushall()
    authority, now = Authority(), 1_700_000_000_000
    numbers, used = dict.fromkeys("abc", 0), {(worker, unit): 0 for worker in "abc" for unit in UNITS}
    for _ in range(250):
        now += chance.choice((0, 1, 7, 100, 250, 900, 3000, 5000, 20000, 70000, -400, -3000))
        worker = chance.choice("abc")
        if chance.random() < 0.2:
            amount = chance.choice((-5, 3, 40)) * chance.choice((1, 1000))
            authority.charge("of/usd", amount)
            server.hincrby(f"{ACCOUNT_PREFIX}of/usd", "spent", amount)
        numbers[worker] += chance.choice((1, 1, 1, 0))
        requests = []
        for unit in chance.sample(UNITS, chance.randint(1, 4)):
            used[worker, unit] += chance.randrange(4)
            requests.append((f"of/{unit}", _request(chance, unit, used[worker, unit])))
        told = authority.exchange(worker, numbers[worker], requests, now)
        assert told == _asked(server, worker, numbers[worker], now, requests)
    clock = server.get("{tierline:traces}:quotas:clock").split()
    assert [int(figure) for figure in clock] == [authority.heard_at, authority.silent_ms]
    for unit in UNITS:
        account = authority.accounts[f"of/{unit}"]
        stored = {name.decode(): value.decode() for name, value in server.hgetall(f"{ACCOUNT_PREFIX}of/{unit}").items()}
        assert int(stored.get("spent", 0)) == account.spent
        leases = {name[2:]: tuple(map(int, value.split())) for name, value in stored.items() if name[:2] == "w:"}
        assert leases == {name: astuple(lease) for name, lease in account.leases.items()}
        slots = server.hgetall(f"{ACCOUNT_PREFIX}of/{unit}:slots")
        assert {int(slot): int(amount) for slot, amount in slots.items()} == account.slots


def test_a_worker_that_waits_for_money_is_not_overtaken_by_another() -> None:
    """What others return is kept for who has waited for longer, whoever asks for less in between."""
    authority, number = Authority(), 0

    def leased(worker: str, now: int, *, kept: int = 0, need: int = 0) -> int:
        nonlocal number
        number += 1
        request = LeaseRequest("usd", 1000, kept, kept, 1, need, 1, need, 1, 0, 0, 0)
        [reply] = authority.exchange(worker, number, [("key:k/usd/total", request)], now)
        return reply.lease

    assert [leased("first", 1000, need=1000), leased("second", 1000, need=300)] == [1000, 300]
    assert leased("waits", 1100, need=300) == 0
    assert leased("first", 1200, kept=650) == 650
    assert leased("newcomer", 1210, need=100) == 0
    assert leased("waits", 1220, need=300) == 300
    assert leased("newcomer", 1230, need=100) == 0, "now nothing is left"
