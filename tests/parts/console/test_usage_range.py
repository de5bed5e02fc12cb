"""The days that the page Usage is of, and what it shows of them: rows and bars of those days alone."""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.parts.console.page import BadQuery
from gateway.parts.console.usage_range import UsageRange
from gateway.parts.console.views.usage import UsageView
from gateway.parts.ledger.live import LiveArchive
from gateway.telemetry import names
from gateway.telemetry.ledger import TRACES, ledger_blob
from gateway.telemetry.trace import Trace
from tests.gateway.telemetry.conftest import server, store
from tests.parts.console.consoles import console
from tests.parts.ledger.test_usage import one

__all__ = ["server", "store"]
NOW = datetime(2026, 11, 28, 18, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("query", "first", "last", "words", "runs"),
    [
        ({}, date(2026, 11, 1), date(2026, 11, 30), "November 2026", True),
        ({"month": "2026-11"}, date(2026, 11, 1), date(2026, 11, 30), "November 2026", True),
        ({"month": "2026-02"}, date(2026, 2, 1), date(2026, 2, 28), "February 2026", False),
        ({"from": "2026-10-20", "to": "2026-11-05"}, date(2026, 10, 20), date(2026, 11, 5), "2026-10-20 to 2026-11-05",
         False),
        ({"from": "2026-11-20"}, date(2026, 11, 20), date(2026, 11, 28), "2026-11-20 to 2026-11-28", False),
        ({"from": "2026-11-20", "to": "2026-11-20"}, date(2026, 11, 20), date(2026, 11, 20), "2026-11-20", False),
    ],
)  # fmt: skip
def test_a_url_names_days(query: dict[str, str], first: date, last: date, words: str, runs: bool) -> None:
    """The last one is in it; a page of the month that runs goes on with the next."""
    span = UsageRange.asked_for(query, NOW)
    assert (span.first, span.last, span.words, span.runs) == (first, last, words, runs)
    assert span.end_s - span.start_s == ((last - first).days + 1) * 86400 and bool(span.query) is not runs
    assert span.bars * span.days_a_bar >= (last - first).days + 1


@pytest.mark.parametrize(
    "query",
    [{"from": "2026-11-31"}, {"month": "2026-13"}, {"month": "x"}, {"from": "2026-11-02", "to": "2026-11-01"},
     {"month": "2026-11", "from": "2026-11-01"}, {"from": "1000-01-01", "to": "2026-01-01"}],
)  # fmt: skip
def test_what_names_no_days_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(BadQuery):
        UsageRange.asked_for(query, NOW)


def test_a_chart_of_years_has_bars_of_several_days() -> None:
    span = UsageRange.asked_for({"from": "2025-01-01", "to": "2025-12-31"}, NOW)
    assert (span.days_a_bar, span.bars) == (6, 61)


@pytest.fixture
async def archive(store: RedisStore, tmp_path: Path) -> AsyncIterator[LiveArchive]:
    opened = LiveArchive(tmp_path, store)
    yield opened
    await opened.aclose()


async def test_rows_and_bars_are_of_those_days_alone(store: RedisStore, archive: LiveArchive) -> None:
    """By key and by day, to the last second of the last day, and the bars add up to the total."""
    today = datetime.fromtimestamp(time.time(), UTC).replace(hour=0, minute=0, second=0, microsecond=0)

    def at(days_ago: int, seconds: int = 60) -> float:
        return (today - timedelta(days=days_ago)).timestamp() + seconds

    for began, ledger in (
        (at(9), one(1, usd=1.0)), (at(8), one(2, usd=2.0)), (at(6, 86399), one(3, "k_2", usd=4.0)),
        (at(5, 0), one(4, usd=8.0)),
    ):  # fmt: skip
        trace = Trace(names.REQUEST)
        trace.root.end()
        entry = f"{began * 1000:.0f}-0".encode()
        await store.ask([Command((b"XADD", TRACES.encode(), entry, b"v", ledger_blob(trace, ledger)))])
    await archive.catch_up()
    view = UsageView(archive, store)
    first, last = ((today - timedelta(days=ago)).date().isoformat() for ago in (8, 6))
    span = UsageRange.asked_for({"from": first, "to": last}, time.time())
    data = await view.data("key", span=span)
    assert [(row["name"], row["spent"]) for row in data["rows"]] == [("k_2", 4.0), ("k_1", 2.0)]
    assert data["total"]["spent"] == 6.0 and data["rows"][0]["month"].usd is None
    assert data["bars"] == [[0.0, 2.0], [0.0, 0.0], [4.0, 0.0]] and data["names_of_bars"] == ["k_2", "k_1"]
    by_day = await view.data("day", span=span)
    assert [(row["name"], row["spent"]) for row in by_day["rows"]] == [(last, 4.0), (first, 2.0)]
    assert sum(map(sum, by_day["bars"])) == 6.0


async def test_the_page_takes_any_days(store: RedisStore, tmp_path: Path) -> None:
    """Its forms, links and file keep them; it draws a bar for each day."""
    today = datetime.fromtimestamp(time.time(), UTC).date()
    async with console(tmp_path, store, [one(1, usd=0.25)]) as client:
        page = (await client.get(f"/usage?from={today}&to={today}")).text
        assert f'name="from" value="{today}"' in page and f'href="/usage?by=team&from={today}&amp;to={today}"' in (
            page.replace("by=team&amp;from", "by=team&from")
        )
        assert re.search(r'<svg[^>]*class="bars"[^>]*aria-label="Dollars charged, [^"]*\$0.25 in all"', page)
        text = (await client.get(f"/usage.csv?by=day&from={today}&to={today}")).text
        assert [(line["day"], line["charged_usd"]) for line in csv.DictReader(io.StringIO(text))] == [
            (str(today), "0.25")
        ]
        empty = (await client.get("/usage?month=2020-02")).text
        assert "Nobody has used anything: February 2020" in empty
        assert (await client.get("/usage?from=yesterday")).status_code == 400
        live = f"/usage/live?by=key&amp;from={today}&amp;to={today}"
        assert f'hx-sse:connect="{live}&amp;added=' in page
