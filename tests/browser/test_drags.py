"""What is drawn with the pointer: a time to look at closer, and a number of a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.browser.browser import NARROW, WIDE, visit
from tests.browser.demo import RunningDemo

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.long


def drag(page: Page, over: Locator, first: tuple[float, float], last: tuple[float, float]) -> None:
    """Drag from one place to another, both as parts of the element's width and height."""
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    ends = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (first, last)]
    page.mouse.move(*ends[0])
    page.mouse.down()
    page.mouse.move(*ends[1], steps=6)
    page.mouse.up()


def query_of(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_chart_says_its_values_and_is_looked_at_closer(browser: Browser, demo: RunningDemo, width: int) -> None:
    """The values under the pointer stand below it; a drag puts its time into the address, and the limit stays."""
    with visit(browser, demo.console, width) as one:
        page = one.page
        one.open("/surfaces/chat?since=15m&limit=ttft_p95")
        over = page.locator(".u-over")
        over.scroll_into_view_if_needed()
        whole = demo.data("/surfaces/chat?since=15m")["requests"]
        over.hover()
        assert page.locator(".u-legend .u-value").first.inner_text() != "–"
        with page.expect_navigation():
            drag(page, over, (0.05, 0.4), (0.98, 0.5))
        query = query_of(page)
        assert set(query) == {"from", "to", "limit"} and int(query["from"][0]) < int(query["to"][0])
        shown = demo.data(f"/surfaces/chat?from={query['from'][0]}&to={query['to'][0]}")["requests"]
        assert 0 < shown <= whole
        assert one.complaints == []


def test_a_number_of_a_policy_is_dragged(browser: Browser, demo: RunningDemo) -> None:
    """The slider moves the number beside it, and the page answers with what would change."""
    with visit(browser, demo.console) as one:
        page = one.page
        one.open("/what-if?surface=chat")
        slider = page.locator("input[type=range][data-number]").first
        number = page.locator(f"[id='{slider.get_attribute('data-number')}']")
        before, name = number.input_value(), number.get_attribute("name") or ""
        drag(page, slider, (0.5, 0.5), (0.9, 0.5))
        assert number.input_value() != before
        page.wait_for_url(lambda url: name in url)
        assert one.complaints == []
