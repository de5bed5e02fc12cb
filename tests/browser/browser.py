"""The system's Chromium under Playwright, and what a page did while it was looked at."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
WIDE, NARROW = 1280, 390
HEIGHT = 900
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_GRAVE = ("serious", "critical")
_WORD_PX = 30
"""Width of a short word on the pages."""


def missing() -> str:
    """Return why there is no browser to test with, and what to do; '' if there is one."""
    if not _chromium():
        return "chromium is not installed: apt install chromium"
    if find_spec("playwright") is None:
        return "Playwright is not installed: make browser"
    return ""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Run the system's Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Containers have no user namespaces for its sandbox; the pages are our own.
        browser = playwright.chromium.launch(executable_path=_chromium(), args=["--no-sandbox", "--hide-scrollbars"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass(slots=True)
class Visit:
    """A page in a browser window of its own, what it asked for and what it complained of."""

    page: Page
    origin: str
    scripts: bool = True
    requests: list[Request] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(self, address: str) -> int:
        """Open an address of the console and return the status; scripts have run then, and figures are there."""
        self.requests.clear()
        self.complaints.clear()
        reply = self.page.goto(self.origin + address, wait_until="load")
        assert reply is not None
        if self.scripts:
            self.page.locator("#being-made").wait_for(state="detached")
        return reply.status

    def weight(self) -> int:
        """Return how many bytes the page's finished requests brought over the wire, as they were compressed."""
        return sum(request.sizes()["responseBodySize"] for request in self.loaded())

    def loaded(self) -> list[Request]:
        """Return the requests that made the page: all but data in URLs, and what the page asks for once it is shown.

        That is the stream of updates, which stays open, and figures that take long.
        """
        asked = [(one, urlsplit(one.url)) for one in self.requests if "hx-request" not in one.headers]
        return [request for request, url in asked if url.netloc and not url.path.endswith("/live")]

    def hosts(self) -> set[str]:
        """Return the hosts that the page has asked."""
        return {urlsplit(one.url).netloc for one in self.requests if one.url.startswith("http")}

    def sideways(self) -> int:
        """Return by how many pixels the page can be scrolled to the side."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def cut(self) -> list[str]:
        """Return the tables of which a word or more is hidden at the right, with the pixels that cannot be seen."""
        found = self.page.evaluate("""[...document.querySelectorAll('main .scroll')].map(
            place => [place.querySelector('table')?.className, place.scrollWidth - place.clientWidth])""")
        return [f"table {name}: {pixels} px of it are cut off" for name, pixels in found if pixels > _WORD_PX]

    def barriers(self) -> list[str]:
        """Return what axe-core finds serious or critical, one line per rule with its first element."""
        if not self.page.evaluate("'axe' in window"):
            # By the debugging protocol, which the page's content security policy does not hold for.
            self.page.evaluate(AXE.read_text("utf-8") + ";0")
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [_line(rule) for rule in found["violations"] if rule["impact"] in _GRAVE]


@contextlib.contextmanager
def visit(
    browser: Browser,
    origin: str,
    width: int = WIDE,
    scheme: str = "light",
    *,
    scripts: bool = True,
    zone: str = "UTC",
) -> Iterator[Visit]:
    """Open a window of that width, in a time zone, whose person likes light or dark pages; it shares nothing."""
    options: Mapping[str, Any] = {
        "viewport": {"width": width, "height": HEIGHT},
        "color_scheme": scheme,
        "java_script_enabled": scripts,
        "reduced_motion": "reduce",
        "timezone_id": zone,
    }
    context = browser.new_context(**options)
    try:
        page = context.new_page()
        one = Visit(page, origin, scripts)

        def ask(request: Request) -> None:
            one.requests.append(request)

        def note(message: ConsoleMessage) -> None:
            # The browser says, too, that a page is itself an error, such as one that shows what a policy lacks.
            documents = {request.url for request in one.requests if request.is_navigation_request()}
            if message.type in ("error", "warning") and message.location["url"].partition("#")[0] not in documents:
                one.complaints.append(f"{message.type}: {message.text}")

        page.on("request", ask)
        page.on("console", note)
        page.on("pageerror", lambda error: one.complaints.append(f"exception: {error}"))
        yield one
    finally:
        context.close()


@cache
def _chromium() -> str | None:
    return next(filter(None, map(shutil.which, _NAMES)), None)


def _line(rule: Mapping[str, Any]) -> str:
    node = rule["nodes"][0]
    words = " ".join(node["failureSummary"].split())
    return f"{rule['id']}, {len(rule['nodes'])} times: {words[:220]} | {node['html'][:160]}"
