"""Times on pages: one zone for all of them, the browser's own, which is named; without scripts UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from tests.browser.browser import visit
from tests.browser.demo import RunningDemo

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.long
_ZONE, _NAMED = "Asia/Kolkata", "GMT+5:30"
_PAGES = ("/now?since=15m", "/requests", "/surfaces/chat?since=1h", "/policies", "/cache",
          "/usage")  # fmt: skip


def test_every_time_is_in_the_zone_of_the_browser(browser: Browser, demo: RunningDemo) -> None:
    """A list, a chart and its axis, options and the footer say the same clock and its name."""
    newest = demo.data("/requests?since=all")["rows"][0]
    name = newest["request_id"]
    at = datetime.fromtimestamp(newest["entry_ms"] / 1000, ZoneInfo(_ZONE))
    with visit(browser, demo.console, zone=_ZONE) as seen:
        for address in _PAGES:
            seen.open(address)
            assert seen.page.locator("[data-utc]").count() == 0, address
            assert seen.page.locator("footer [data-zone]").inner_text() == f"Times are in {_NAMED}", address
        seen.open("/requests?since=all")
        link = seen.page.locator(f"a[href*='{name}']")
        first = seen.page.locator("tr[data-row]", has=link).locator("time")
        assert first.inner_text() == f"{at:%H:%M:%S}"
        assert first.get_attribute("title") == f"{at:%Y-%m-%d %H:%M:%S} {_NAMED}"
        assert seen.page.locator("th", has_text="Recorded").inner_text() == f"Recorded, {_NAMED}"
        seen.open("/surfaces/chat?since=1h")
        assert seen.page.locator(".u-legend").get_by_text(_NAMED).count() == 1
        seen.open("/now?since=15m")  # a part that is put in again later
        seen.page.evaluate(
            "document.querySelector('#live').innerHTML = '<time datetime=\"2026-01-01T00:00:00Z\" data-utc=\"date\"'"
            " + ' title=\"x\">2026-01-01 00:00:00</time>'"
        )
        assert seen.page.locator("#live time").inner_text() == "2026-01-01 05:30:00"


def test_without_scripts_every_time_is_utc_and_says_so(browser: Browser, demo: RunningDemo) -> None:
    newest = demo.data("/requests?since=all")["rows"][0]
    at = datetime.fromtimestamp(newest["entry_ms"] / 1000, UTC)
    with visit(browser, demo.console, scripts=False, zone=_ZONE) as seen:
        seen.open("/requests?since=all")
        assert seen.page.locator("tr[data-row] time").first.inner_text() == f"{at:%H:%M:%S}"
        assert seen.page.locator("th", has_text="Recorded").inner_text() == "Recorded, UTC"
        assert seen.page.locator("footer [data-zone]").inner_text() == "Times are in UTC"
