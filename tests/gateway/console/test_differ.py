"""Differ over a real archive: what the selection shares, by the same counts from summaries as from rows."""

from __future__ import annotations

from pathlib import Path

from cache.store.redis_store import RedisStore
from tests.gateway.archive.test_keeper import keep, record
from tests.gateway.archive.test_summaries import rotated
from tests.gateway.console.test_app import console
from tests.gateway.telemetry.conftest import server, store

__all__ = ["server", "store"]

SLOW = {"slo": {"ttft_p99": False}, "backend": "distant", "ttft_ms": 900.0}


async def test_what_the_slow_ones_share_ranks_first(store: RedisStore, tmp_path: Path) -> None:
    """Of rows in files and of rows in memory; what all share comes last, and what the playground sent is left out."""
    await record(store, 101, 140, slo={"ttft_p99": True})
    await keep(store, tmp_path)
    rotated(tmp_path)
    await record(store, 141, 150, arm="playground", backend="tried")
    async with console(tmp_path, store, 30, **SLOW) as client:
        for span in ("1h", "6h", "30d"):
            data = (await client.get(f"/differ.json?since={span}&is=slow")).json()
            assert (data["requests"], data["selected"]) == (70, 30), span
            [first, *others] = data["dimensions"]
            assert first["name"] == "backend" and first["distance"] == 1.0
            [distant] = [value for value in first["values"] if value["value"] == "distant"]
            assert (distant["selected"], distant["rest"], distant["differs"]) == (30, 0, True)
            assert distant["href"].startswith("/requests?") and "backend=distant" in distant["href"]
            assert all(one["distance"] == 0 for one in others)
        drawn = (await client.get("/differ.json?since=24h&low=562&high=1000")).json()
        assert (drawn["selected"], drawn["heat"]["box"][2:]) == (30, [8, 8])
        page = (await client.get("/differ?since=24h&low=562&high=1000")).text
        assert "30 selected against 40 others" in page and 'class="box"' in page
        assert "none was failed" in (await client.get("/differ?is=failed")).text


async def test_selections_that_are_none_are_refused(store: RedisStore, tmp_path: Path) -> None:
    wrong = ("since=2h", "is=fast", "from=yesterday", "from=2000&to=1000", "low=500&high=100")
    async with console(tmp_path, store, 0) as client:
        for query in wrong:
            assert (await client.get(f"/differ?{query}")).status_code == 400, query
        assert "No request in the last 24h" in (await client.get("/differ")).text
