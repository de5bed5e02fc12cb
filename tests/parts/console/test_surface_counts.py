"""When policy versions came into force, by the requests that met them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.parts.console.surface_counts import CHANGES, versions
from gateway.parts.ledger.live import LiveArchive
from gateway.telemetry import names
from gateway.telemetry.ledger import TRACES, Ledger, ledger_blob
from gateway.telemetry.trace import Trace
from tests.gateway.telemetry.conftest import server, store

__all__ = ["server", "store"]
SLOT = 60_000


@pytest.fixture
async def archive(store: RedisStore, tmp_path: Path) -> AsyncIterator[LiveArchive]:
    opened = LiveArchive(tmp_path, store)
    yield opened
    await opened.aclose()


async def changes(store: RedisStore, archive: LiveArchive, met: list[tuple[int, str, str]]) -> list[tuple[str, int]]:
    """The versions that came into force, and the slot of each, of requests by their slot, version and arm."""
    from_ms = int(time.time() * 1000) // SLOT * SLOT - 60 * SLOT
    for number, (slot, policy, arm) in enumerate(met):
        trace = Trace(names.REQUEST)
        trace.started_unix_ns = (from_ms + slot * SLOT + number) * 1_000_000
        trace.root.end()
        ledger = Ledger(f"r-{number}", surface="chat", policy=policy, arm=arm, status=200)
        entry = f"{from_ms + slot * SLOT + number}-0".encode()
        await store.ask([Command((b"XADD", TRACES.encode(), entry, b"v", ledger_blob(trace, ledger)))])
    await archive.catch_up()
    summary = versions(SLOT)
    sql = CHANGES.format(versions=summary.name, where="true")
    rows = await archive.ask(sql, from_ms=from_ms, summaries=(summary,))
    return [(row["policy"], int((row["since_s"] * 1000 - from_ms) // SLOT)) for row in rows]


async def test_a_version_that_comes_back_is_a_change_again(store: RedisStore, archive: LiveArchive) -> None:
    """A rollback is one, at the time of its own first request; slots without any request are none."""
    met = [(0, "a", ""), (1, "a", ""), (2, "b", ""), (3, "b", ""), (9, "a", ""), (11, "a", "")]
    assert await changes(store, archive, met) == [("a", 0), ("b", 2), ("a", 9)]


async def test_a_candidate_comes_into_force_when_it_is_promoted(store: RedisStore, archive: LiveArchive) -> None:
    """Not with its first request as a canary."""
    met = [(0, "a", ""), (1, "a", "control"), (1, "b", "candidate"), (2, "a", "control"), (2, "b", "candidate"),
           (3, "b", "")]  # fmt: skip
    assert await changes(store, archive, met) == [("a", 0), ("b", 3)]


async def test_workers_that_lag_behind_change_nothing_twice(store: RedisStore, archive: LiveArchive) -> None:
    met = [(0, "a", ""), (1, "a", ""), (1, "b", ""), (2, "a", ""), (2, "b", ""), (3, "b", "")]
    assert await changes(store, archive, met) == [("a", 0), ("b", 1)]
