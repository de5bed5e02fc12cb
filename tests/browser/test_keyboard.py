"""The console by keyboard alone, and without scripts: views, rows, the panel, the search, the theme."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.browser.browser import NARROW, visit
from tests.browser.demo import RunningDemo
from tests.browser.pages import ESCALATED

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.long
AT_ROW = "document.querySelector('[data-at]')?.querySelector('a[data-peek]')?.getAttribute('href')"


def _path(page: Page) -> str:
    return urlsplit(page.url).path


def test_each_view_has_its_keys(browser: Browser, demo: RunningDemo) -> None:
    with visit(browser, demo.console) as one:
        one.open("/now")
        keys = one.page.eval_on_selector_all(
            "nav [data-key]", "all => all.map(link => [link.dataset.key, link.getAttribute('href')])"
        )
        assert len(keys) >= 4 and len({key for key, _ in keys}) == len(keys), keys
        for key, path in keys:
            # Also to where it is already: a page that loads takes no keys.
            with one.page.expect_navigation(url=re.compile(rf"://[^/]+{re.escape(path)}($|[?#])")):
                one.page.keyboard.press("g")
                one.page.keyboard.press(key)


def test_rows_are_walked_peeked_at_and_opened(browser: Browser, demo: RunningDemo) -> None:
    """j and k move, Enter peeks, the peek follows j, Esc closes it, and Enter on its heading opens the request."""
    with visit(browser, demo.console) as one:
        page = one.page
        one.open("/requests?surface=chat")
        hrefs = page.eval_on_selector_all("a[data-peek]", "all => all.map(link => link.getAttribute('href'))")
        page.keyboard.press("j")
        page.keyboard.press("j")
        assert page.evaluate(AT_ROW) == hrefs[1]
        page.keyboard.press("k")
        assert page.evaluate(AT_ROW) == hrefs[0]
        page.keyboard.press("Enter")
        page.wait_for_selector("#peek h2")
        assert hrefs[0].split("peek=")[1] in page.url
        first = page.locator("#peek h2 a").get_attribute("href")
        page.keyboard.press("j")
        page.locator(f'#peek h2 a:not([href="{first}"])').wait_for()
        assert hrefs[1].split("peek=")[1] in page.url  # so a colleague sees the same
        opened = page.locator("#peek h2 a").get_attribute("href")
        page.keyboard.press("Escape")
        page.wait_for_selector("#peek h2", state="detached")
        assert "peek=" not in page.url
        page.keyboard.press("Enter")
        page.wait_for_selector("#peek h2")
        page.locator("#peek h2 a").focus()
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{opened}")
        assert page.locator("h2", has_text="Where the time went").count() == 1
        assert one.complaints == []


def test_a_request_is_found_by_its_id(browser: Browser, demo: RunningDemo) -> None:
    """/ leads into the search, whose field keeps the other keys to itself until Esc."""
    request_id = demo.request_id(ESCALATED)
    with visit(browser, demo.console) as one:
        page = one.page
        one.open("/now")
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "find"
        page.keyboard.type("gr")
        assert _path(page) == "/now" and page.locator("#find").input_value() == "gr"
        page.locator("#find").fill(request_id)
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/requests/{request_id}*")
        assert page.locator("#summary").count() == 1
        page.keyboard.press("/")
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.id") != "find"
        page.locator("#find").fill(request_id[:9])
        page.keyboard.press("Enter")
        page.wait_for_url("**/requests?q=*")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_selector("#peek h2")


def test_a_click_on_a_row_peeks_or_opens(browser: Browser, demo: RunningDemo) -> None:
    """Beside the list where there is room, else it opens the request."""
    with visit(browser, demo.console) as one:
        one.open("/requests")
        one.page.locator("tr[data-row] td.time").nth(2).click()
        one.page.wait_for_selector("#peek h2")
        assert one.page.locator("tr[data-row]").nth(2).get_attribute("data-at") is not None
        assert one.complaints == []
    with visit(browser, demo.console, NARROW) as one:
        one.open("/requests")
        card = one.page.locator("tr[data-row]").first
        for wanted in (
            card.locator("td.link a").first,
            card.locator("[data-label=Total]"),
            card.locator("[data-label=Cost]"),
        ):
            box = wanted.bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= NARROW
        card.locator("td.time").click()
        one.page.wait_for_url(re.compile(r"/requests/[^?]+\?at="))


def test_new_requests_are_announced_and_the_list_stays(browser: Browser, demo: RunningDemo) -> None:
    with visit(browser, demo.console) as one:
        one.open("/requests?surface=chat")
        first = one.page.locator("tr[data-row] td.link a").first.get_attribute("href")
        assert demo.ask("chat", "How many windows does a lighthouse have, by and large?").status_code == 200
        newer = one.page.locator("#newer a")
        newer.wait_for()
        assert newer.inner_text() == "1 new: show it"
        assert one.page.locator("tr[data-row] td.link a").first.get_attribute("href") == first
        newer.click()
        one.page.locator(f'tr[data-row]:first-child td.link a:not([href="{first}"])').first.wait_for()


def test_a_person_changes_between_light_and_dark(browser: Browser, demo: RunningDemo) -> None:
    """The choice holds on the next page, from its first paint: the server knows it by a cookie."""
    colour = "getComputedStyle(document.body).backgroundColor"
    with visit(browser, demo.console, scheme="light") as one:
        one.open("/now")
        light = one.page.evaluate(colour)
        one.page.locator("[data-theme-toggle]").click()
        dark = one.page.evaluate(colour)
        assert light != dark
        one.open("/requests")
        assert one.page.evaluate(colour) == dark
        assert one.page.locator("html").get_attribute("data-theme") == "dark"


def test_filters_and_panels_work_without_scripts(browser: Browser, demo: RunningDemo) -> None:
    with visit(browser, demo.console, scripts=False) as one:
        page = one.page
        one.open("/requests")
        page.locator("#filters select[name=surface]").select_option("chat")
        page.locator("#filters select[name=is]").select_option("escalated")
        with page.expect_navigation(url=lambda url: "surface=chat" in url and "is=escalated" in url):
            page.locator("#filters button").click()
        rows = page.locator("[data-row]").count()
        assert 0 < rows == page.locator("[data-row] .path-escalated").count()
        with page.expect_navigation():
            page.locator("a[data-peek]").first.click()
        assert page.locator("#peek h2").count() == 1 and page.locator("[data-row]").count() == rows
        with page.expect_navigation():
            page.locator("[data-close]").click()
        assert page.locator("#peek h2").count() == 0
        with page.expect_navigation():
            page.locator("[data-row] td a").first.click()
        assert page.locator("h2", has_text="What would have changed it").count() == 1
