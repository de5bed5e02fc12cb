"""The archive as it grows: each record is seen once, from the stream or from a segment, with a keeper or without."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from cache.store.base import Append
from cache.store.redis_store import RedisStore
from gateway.parts.console.filters import query_filter
from gateway.parts.console.views.requests import request_page
from gateway.parts.ledger.columns import REQUESTS
from gateway.parts.ledger.folder import TableFiles
from gateway.parts.ledger.live import LiveArchive
from gateway.parts.ledger.query import QueryError
from gateway.telemetry.ledger import TRACES, ledger_blob
from gateway.telemetry.trace import new_request_id
from tests.gateway.telemetry.conftest import server, store
from tests.gateway.telemetry.requests_made import escalated
from tests.parts.ledger.test_keeper import expected, keep, record
from tests.support.wait import SLACK

__all__ = ["server", "store"]


@contextlib.asynccontextmanager
async def live(folder: Path, store: RedisStore) -> AsyncIterator[LiveArchive]:
    archive = LiveArchive(folder, store)
    archive.start()
    try:
        yield archive
    finally:
        await archive.aclose()


async def ids(archive: LiveArchive) -> list[str]:
    rows = await archive.ask("SELECT request_id FROM requests ORDER BY entry_ms, entry_seq")
    return [row["request_id"] for row in rows]


async def becomes(value: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Wait until `value()` is what is wanted."""
    async with asyncio.timeout(5 * SLACK):
        while await value() != wanted:
            await asyncio.sleep(0.02)


async def test_without_a_keeper_the_stream_is_read(store: RedisStore, tmp_path: Path) -> None:
    await record(store, 1, 5)
    async with live(tmp_path / "missing", store) as archive:
        await becomes(lambda: ids(archive), expected(1, 5))
        await record(store, 6, 6)
        await becomes(lambda: ids(archive), expected(1, 6))
        assert archive.failing == ""
        [row] = await archive.ask("SELECT count(*) AS bases FROM bases")
        assert row["bases"] >= 0


async def test_files_and_stream_hold_each_record_once(store: RedisStore, tmp_path: Path) -> None:
    """Hot rows that become a segment while the archive is open are neither lost nor seen twice."""
    await record(store, 1, 20)
    await keep(store, tmp_path)
    async with live(tmp_path, store) as archive:
        assert await ids(archive) == expected(1, 20)
        await record(store, 21, 30)
        await becomes(lambda: ids(archive), expected(1, 30))
        await keep(store, tmp_path)
        with contextlib.closing(TableFiles(tmp_path, REQUESTS)) as files:
            files.rotate()

        async def hot() -> int:
            [row] = await archive.ask("SELECT count(*) AS hot FROM requests_hot")
            return int(row["hot"])

        await becomes(hot, 0)
        assert await ids(archive) == expected(1, 30)
        await record(store, 31, 31)
        await becomes(lambda: ids(archive), expected(1, 31))


async def test_a_reader_is_woken_by_a_request(store: RedisStore, tmp_path: Path) -> None:
    async with live(tmp_path, store) as archive:
        assert not await archive.wait_for_requests(archive.added, 0.01)
        await record(store, 1, 1)
        assert await archive.wait_for_requests(0, 5)
        assert await ids(archive) == ["req-1"]


async def test_a_bad_query_says_why(store: RedisStore, tmp_path: Path) -> None:
    async with live(tmp_path, store) as archive:
        with pytest.raises(QueryError, match="nosuch"):
            await archive.ask("SELECT nosuch FROM requests")


async def test_a_request_is_found_by_its_id_whatever_time_that_tells(store: RedisStore, tmp_path: Path) -> None:
    """At the time that our own ids tell; one that a client chose, and that looks like ours, is found too."""
    own, chosen = new_request_id(), "req_1a20a93d14e0123456789abc"
    for request_id in (own, chosen):
        trace, made = escalated(request_id)
        await store.apply([Append(TRACES, ledger_blob(trace, made), 100)])
    await keep(store, tmp_path)
    with contextlib.closing(TableFiles(tmp_path, REQUESTS)) as files:
        files.rotate()
    async with live(tmp_path, store) as archive:
        for request_id in (own, chosen):
            [row] = await archive.by_id("request_id, entry_ms", request_id)
            assert row["request_id"] == request_id
            assert await archive.by_id("request_id", request_id, row["entry_ms"]) == [{"request_id": request_id}]
            assert await archive.by_id("request_id", request_id, row["entry_ms"] - 60_000) == []
            for beginning in (request_id, request_id[:-4], request_id[:12]):
                rows, _ = await request_page(archive, query_filter([("q", beginning)]), "", 5)
                assert request_id in [one["request_id"] for one in rows]
        assert await archive.by_id("request_id", new_request_id()) == []
