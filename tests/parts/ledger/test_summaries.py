"""Summaries of files: what is read of them is what all rows would say, whatever happens to the files meanwhile."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from cache.store.redis_store import RedisStore
from gateway.parts.ledger.columns import REQUESTS
from gateway.parts.ledger.folder import TableFiles, segments_of
from gateway.parts.ledger.live import LiveArchive
from gateway.parts.ledger.summaries import LATENCY, Summary
from tests.gateway.telemetry.conftest import server, store
from tests.parts.ledger.test_keeper import keep, record
from tests.parts.ledger.test_live import becomes, live

__all__ = ["server", "store"]

PATHS = Summary(
    "paths", "SELECT path, entry_ms - entry_ms % 1000 AS slot_ms, count(*) AS n FROM rows GROUP BY ALL", 1000
)
BY_PATH = "SELECT path, sum(n)::INTEGER AS n FROM paths GROUP BY path ORDER BY path"


async def by_path(archive: LiveArchive, from_ms: int = 0) -> list[tuple[str, int]]:
    rows = await archive.ask(BY_PATH, from_ms=from_ms, summaries=(PATHS,))
    return [(row["path"], row["n"]) for row in rows]


def rotated(folder: Path) -> None:
    with contextlib.closing(TableFiles(folder, REQUESTS)) as files:
        files.rotate()


async def test_a_summary_holds_each_request_once(store: RedisStore, tmp_path: Path) -> None:
    """Of the hot rows, of segments that are summarised and of those that are not, and of merged ones."""
    for first in (1, 11, 21):
        await record(store, first, first + 9, path="direct" if first == 11 else "escalated")
        await keep(store, tmp_path)
        rotated(tmp_path)
    await record(store, 31, 35, arm="shadow")
    await record(store, 36, 36, path="cache-exact")
    async with live(tmp_path, store) as archive:
        expected = [("cache-exact", 1), ("direct", 10), ("escalated", 20)]
        await becomes(lambda: by_path(archive), expected)  # nothing is kept of it yet: the files are read
        archive.keep(PATHS)

        async def kept() -> Any:
            [row] = await archive.ask("SELECT count(DISTINCT segment) AS n, sum(n) AS all FROM kept_paths")
            return row["n"], row["all"]

        await becomes(kept, (3, 30))
        assert await by_path(archive) == expected
        await keep(store, tmp_path)
        with contextlib.closing(TableFiles(tmp_path, REQUESTS)) as files:
            files.merge(3, 1 << 30)
        assert await by_path(archive) == expected  # though the files that it knew are gone
        await becomes(kept, (1, 30))
        assert await by_path(archive) == expected


async def test_older_files_are_not_read(store: RedisStore, tmp_path: Path) -> None:
    """From a time on, there are neither older rows nor their files; a time within a slot is refused."""
    await record(store, 1, 5)
    await keep(store, tmp_path)
    rotated(tmp_path)
    [segment] = segments_of(tmp_path, "requests")
    after = (segment.last[0] // 1000 + 1) * 1000
    async with live(tmp_path, store) as archive:
        archive.keep(PATHS)
        segment.path.write_bytes(b"no Parquet")
        assert await by_path(archive, after) == []
        assert await archive.ask("SELECT request_id FROM requests", from_ms=after) == []
        with pytest.raises(ValueError, match="no slot that begins"):
            await by_path(archive, after + 1)


@pytest.mark.parametrize("level", [0.05, 0.5, 0.95, 0.99])
def test_quantiles_of_a_histogram_are_those_of_the_values(level: float) -> None:
    """Within the error that it states, for values over five orders of magnitude."""
    values = np.exp(np.random.default_rng(1).uniform(math.log(0.2), math.log(60_000), 5_000))
    with duckdb.connect() as database:
        # As one text: a list of five thousand parameters takes a second to hand over.
        parts = "CREATE TABLE v AS SELECT 'a' AS kind, unnest(split(?, ' '))::DOUBLE AS ms"
        database.execute(parts, [" ".join(map(repr, values.tolist()))])
        counted = f"SELECT kind, {LATENCY.bin('ms')} AS bin, count(*) AS n FROM v GROUP BY ALL"
        [(_, [found])] = database.execute(LATENCY.quantiles(counted, [["kind"]], [level])).fetchall()
        halves = f"SELECT kind, (ms * 100)::INTEGER % 2 AS half, {LATENCY.bin('ms')} AS bin, 1 AS n FROM v"
        parted = database.execute(LATENCY.quantiles(halves, [["kind", "half"], ["kind"]], [level])).fetchall()
    exact = float(np.quantile(values, level, method="inverted_cdf"))
    assert found == pytest.approx(exact, rel=LATENCY.error + 1e-9)
    assert {half: value for _, half, [value] in parted}.keys() == {None, 0, 1}
    assert {half: value for _, half, [value] in parted}[None] == found
    assert LATENCY.error < 0.02
