"""Every page in a real browser: what it loads, what the browser complains of, and what axe-core finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.browser.browser import AXE, NARROW, WIDE, visit
from tests.browser.demo import RunningDemo
from tests.browser.pages import ESCALATED, addresses

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.long
MOST_REQUESTS, MOST_BYTES = 3, 150_000


@pytest.fixture(scope="module")
def every(demo: RunningDemo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An address of every page, and of the states that look different, by name."""
    found = addresses(demo, tmp_path_factory.mktemp("routes"))
    assert len(found) > 12
    yield found


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_read_every_page(
    browser: Browser, demo: RunningDemo, every: dict[str, str], scheme: str, width: int
) -> None:
    """axe-core finds nothing serious or critical, and a page is scrolled up and down alone.

    On a desk no table is cut off either.
    """
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: make browser")
    found: dict[str, list[str]] = {}
    with visit(browser, demo.console, width, scheme) as one:
        for name, address in every.items():
            one.open(address)
            wrong = one.barriers()
            if (sideways := one.sideways()) > 0:
                wrong.append(f"{sideways} px wider than the window")
            if width == WIDE:
                wrong.extend(one.cut())
            if wrong:
                found[name] = wrong
    assert not found, "\n".join(f"{name}: {line}" for name, lines in found.items() for line in lines)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_scale_of_usage_is_in_sight(browser: Browser, demo: RunningDemo, every: dict[str, str], width: int) -> None:
    """Also where the chart is wider than the window and begins with its newest end; no amount lies beneath a bar."""
    hidden = """() => {
        const chart = document.querySelector('.chart');
        chart.scrollIntoView({ block: 'center' });
        const edge = chart.getBoundingClientRect();
        return [...chart.querySelectorAll('.amount')].filter(one => {
            const box = one.getBoundingClientRect();
            const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
            return box.left < edge.left || box.right > edge.right || !one.closest('svg').contains(top);
        }).map(one => one.textContent);
    }"""
    with visit(browser, demo.console, width, "light") as one:
        one.open(every["usage"])
        assert one.page.locator(".chart .amount").count() == 5
        scrolled = one.page.evaluate("document.querySelector('.chart').scrollLeft")
        assert (scrolled > 0) == (width == NARROW) and one.page.evaluate(hidden) == []


def test_every_page_is_light_and_nobody_complains(browser: Browser, demo: RunningDemo, every: dict[str, str]) -> None:
    """Three requests and 150 KB at most, all of our own host, and the browser's console says nothing."""
    ours = urlsplit(demo.console).netloc
    for name, address in every.items():
        with visit(browser, demo.console) as one:  # a window of its own, so nothing is cached
            one.open(address)
            loaded = [request.url for request in one.loaded()]
            assert len(loaded) <= MOST_REQUESTS, (name, loaded)
            assert one.weight() <= MOST_BYTES, (name, one.weight())
            assert one.hosts() == {ours}, (name, one.hosts())
            assert one.complaints == [], (name, one.complaints)


def test_every_page_is_whole_without_scripts(browser: Browser, demo: RunningDemo, every: dict[str, str]) -> None:
    """What the page says is in its HTML: its heading, its links and its forms, as with scripts.

    A policy stands in a field, whose text is no part of the page; with scripts in an editor, which is left out.
    """
    whole = """() => ({
        words: document.querySelector('main').innerText.length
            - (document.querySelector('main .cm-editor')?.innerText.length ?? 0),
        links: document.querySelectorAll('main a[href]:not(svg a)').length, // a histogram's bars differ by the second
        dead: [...document.querySelectorAll('main a:not([href]), main a[href="#"]')].length,
        formless: [...document.querySelectorAll('main :is(input, select, textarea, button)')]
            .filter(one => !one.form && one.checkVisibility()).map(one => one.outerHTML.slice(0, 90)),
    })"""
    with visit(browser, demo.console, scripts=False) as plain, visit(browser, demo.console) as scripted:
        for name, address in every.items():
            assert scripted.open(address) == plain.open(address)  # whose figures are made by then
            without, with_them = plain.page.evaluate(whole), scripted.page.evaluate(whole)
            assert without["words"] > 0.9 * with_them["words"], (name, without, with_them)
            assert without["links"] >= with_them["links"], (name, without, with_them)
            assert without["dead"] == 0 and without["formless"] == [], (name, without)
            assert plain.page.locator("h1").count() == 1 or name in ("nowhere",), name


def test_a_page_is_printed_dark_on_light_and_without_what_is_clicked(browser: Browser, demo: RunningDemo) -> None:
    with visit(browser, demo.console, scheme="dark") as one:
        one.open(f"/requests/{demo.request_id(ESCALATED)}")
        lightness = (
            "() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((sum, one) => sum + +one, 0)"
        )
        assert one.page.evaluate(lightness) < 150
        one.page.emulate_media(media="print")
        assert one.page.evaluate(lightness) > 600
        assert not one.page.locator("header.top").is_visible() and one.page.locator("h1").is_visible()
