"""What a killed worker's journal leaves, and how it is adopted, over a real store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.parts.access.quotas.accounts import life_ms
from gateway.parts.access.quotas.kept_charges import ChargeJournal, LeftJournal, adopt
from gateway.parts.measures import reader
from gateway.parts.recorder.decision_record import DecisionRecorder
from gateway.parts.records.part import StoreWriter
from gateway.telemetry.ledger import ACCOUNT_PREFIX, TRACES, Ledger
from tests.support.store import UNHURRIED, LocalStore


@pytest.fixture
async def store(store: LocalStore) -> AsyncIterator[RedisStore]:
    opened = RedisStore.from_url(store.url, slack=UNHURRIED)
    yield opened
    await opened.aclose()


ACCOUNT = "key:k_1/usd/2026-11@UTC"
OTHER = "key:k_2/usd/2026-11@UTC"
_CHILD = """
import os, signal, sys
from pathlib import Path
from gateway.parts.access.quotas.kept_charges import ChargeJournal
from gateway.telemetry.ledger import Ledger
journal = ChargeJournal(Path(sys.argv[1]), "0123456789abcdef")
def begun(name): return journal.begin(Ledger(name, "acme", key="k_1"), [sys.argv[2]], 5_000_000)
begun("expected")
draft = begun("draft"); draft.add(1_500_000); draft.add(500_000)
settled = begun("settled"); settled.add(1); settled.settle(3_000_000)
batched = begun("batched"); batched.settle(7_000_000); batched.put_into(4)
begun("gone").free()
os.kill(os.getpid(), signal.SIGKILL)
"""


async def spent(store: RedisStore, account: str = ACCOUNT) -> int:
    [value] = await store.ask([Command((b"HGET", (ACCOUNT_PREFIX + account).encode(), b"spent"))], 1.0)
    return int(value or 0)


def killed(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _CHILD, str(folder), ACCOUNT], check=False)
    assert done.returncode == -signal.SIGKILL


async def test_what_a_killed_worker_left_is_charged_once(store: RedisStore, tmp_path: Path) -> None:
    """What was settled as it was, what was under way by what was charged or else expected, and that is marked."""
    killed(tmp_path)
    key, lease = (ACCOUNT_PREFIX + ACCOUNT).encode(), b"w:0123456789abcdef"
    await store.ask([Command((b"HSET", key, lease, b"9 9 9 9 9 9 0 0"))], 1.0)
    assert await adopt(tmp_path, store, 100) == 4
    assert await store.ask([Command((b"HEXISTS", key, lease))], 1.0) == [0], "what it had leased is free at once"
    assert await spent(store) == 5_000_000 + 2_000_000 + 3_000_000 + 7_000_000
    kept = {one["request_id"]: one for one in (orjson.loads(blob)["ledger"] for blob in await reader.latest(store, 9))}
    assert {name: one["usage_estimated"] for name, one in kept.items()} == {
        "expected": True, "draft": True, "settled": False, "batched": False,
    }  # fmt: skip
    assert sum(round(one["charged_usd"] * 1e9) for one in kept.values()) == await spent(store)
    assert kept["draft"]["error"] == "worker_died" and kept["draft"]["accounts"] == [ACCOUNT]
    assert not list(tmp_path.iterdir()) and await adopt(tmp_path, store, 100) == 0


async def test_a_batch_that_was_written_is_not_written_again(store: RedisStore, tmp_path: Path) -> None:
    """The worker may have died between the store's step and its reply; its batch has a number."""
    writer = StoreWriter(store, 0, DecisionRecorder({}), lambda *_: None)
    journal = ChargeJournal(tmp_path, writer.token)
    ledger = Ledger("once", charged_usd=0.004, accounts=(OTHER,))
    ledger.entry = entry = journal.begin(ledger, ledger.accounts, 1)
    assert entry is not None
    entry.settle(4_000_000)
    writer.charge(ledger)
    writer.add(())
    left = journal.map[:]
    await writer.write()
    journal.map[:] = left  # the worker dies before it hears that the store has it
    journal.map.close()
    os.close(journal._file)
    assert await spent(store, OTHER) == 4_000_000
    assert await adopt(tmp_path, store, 100) == 1
    assert await spent(store, OTHER) == 4_000_000


async def test_a_living_worker_is_left_alone(store: RedisStore, tmp_path: Path) -> None:
    """Its file is locked; it goes when it ends with nothing left."""
    journal = ChargeJournal(tmp_path, "0123456789abcdef")
    entry = journal.begin(Ledger("alive"), [ACCOUNT], 5)
    assert await adopt(tmp_path, store, 100) == 0 and not list(LeftJournal.all_in(tmp_path))
    assert entry is not None
    entry.free()
    journal.close()
    assert not list(tmp_path.iterdir())


async def test_a_charge_after_a_users_counter_has_gone_leaves_none_for_ever(store: RedisStore) -> None:
    """Clients choose the names of end users and sessions; a key's counter stays."""
    named = ("user:key:k_1:anybody/usd/2026-11@UTC", "session:key:k_1:any/usd/total", OTHER)
    accounts = cast(Any, SimpleNamespace(worker="w", written=lambda _: None, life_ms=life_ms))
    writer = StoreWriter(store, 100, DecisionRecorder({}), lambda *_: None, accounts)
    writer.charge(Ledger("late", charged_usd=0.004, accounts=named))
    writer.add([b"a", b"b"])
    await writer.write()
    assert [await spent(store, account) for account in named] == [4_000_000] * 3
    stored = await store.ask([Command((b"XRANGE", TRACES.encode(), b"-", b"+"))], 1.0)
    assert [entry[1][1] for entry in stored[0][-2:]] == [b"a", b"b"], "the records behind the amounts"
    keys = [(ACCOUNT_PREFIX + account).encode() for account in named]
    left = await store.ask([Command((b"PTTL", key)) for key in keys], 1.0)
    assert [0 < ms <= 3_600_000 for ms in left] == [True, True, False] and left[2] == -1
