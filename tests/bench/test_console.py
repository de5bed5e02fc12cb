"""The bench of the console measures real pages over a ledger that it made."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from cache.store.redis_store import RedisStore
from gateway.parts.ledger.folder import segments_of
from gateway.parts.ledger.query import connect
from tests.bench import console
from tests.bench.console_files import Spread, multiply
from tests.gateway.telemetry.conftest import server, store
from tests.parts.ledger.test_keeper import keep, record

__all__ = ["server", "store"]


@pytest.mark.long
async def test_pages_are_measured_over_many_requests(
    store: RedisStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a few recorded ones, each with an id of its own; what the pages then say is a table."""
    await record(store, 1, 30)
    await keep(store, tmp_path / "seeds")
    folder, day_ms = tmp_path / "ledger", 86_400_000
    multiply(tmp_path / "seeds", folder, Spread(12_000, int(time.time() * 1000) - day_ms, day_ms / 12_000), print)
    assert len(segments_of(folder, "requests")) == 1
    with connect(folder) as ledger:
        sql = "SELECT count(*), count(DISTINCT request_id), count(DISTINCT total_ms) > 1000 FROM requests"
        assert ledger.execute(sql).fetchall() == [(12_000, 12_000, True)]
        assert ledger.execute("SELECT count(*) FROM requests_hot").fetchall() == [(10_000,)]
    capsys.readouterr()
    assert console.main(["--ledger", str(folder), "--rounds", "1", "--json"]) in (0, 1)
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["now, 24h"]["median_ms"] > 0 and rows["filter: rare error"]["kb"] > 0.5
