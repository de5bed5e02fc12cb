"""The navigation in a real browser: it fits beside who is signed in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.browser import WIDE, visit
from tests.browser.demo import RunningDemo
from tests.support.gateway import ROOT, environment
from tests.support.identity_provider import IdentityProvider
from tests.support.ports import free_port
from tests.support.wait import until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.long
MOST_ENTRIES = 9


def test_an_admin_who_is_signed_in_sees_all_of_it(browser: Browser, demo: RunningDemo, tmp_path: Path) -> None:
    """Nine entries at most, none cut off, in one line with the search, a person's name and the button beside it."""
    port = free_port()
    with IdentityProvider() as provider:
        config = tmp_path / "console.yaml"
        origin = f"http://127.0.0.1:{port}"
        login = f"{{issuer: '{provider.issuer}', client_id: tierline-console, url: '{origin}'}}"
        config.write_text(
            f"identity: {{issuers: [{{issuer: '{provider.issuer}', audience: {provider.AUDIENCE}}}]}}\n"
            "roles: [{role: admin, where: {groups: platform}}]\n"
            f"console: {{port: {port}, login: {login}}}\n"
            "tiers: [{name: one, backends: [{kind: scripted, script: [{reply: {text: Hello.}}]}]}]\n"
        )
        command = [sys.executable, "-m", "gateway", "console", "--config", str(config), "--store", demo.store]
        log = tmp_path / "console.txt"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--dir", str(demo.state / "ledger")],
                cwd=ROOT, env=environment(), stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            until(lambda: "The console is at" in log.read_text() or process.poll() is not None, 60, "the console")
            assert process.poll() is None, log.read_text()
            token = provider.token(groups=["platform"], preferred_username="maximiliane.hohenberg@acme.example")
            with visit(browser, origin, WIDE) as one:
                one.page.context.set_extra_http_headers({"authorization": f"Bearer {token}"})
                assert one.open("/now?since=15m") == 200
                assert one.page.get_by_role("button", name="Sign out").is_visible()
                entries = one.page.locator(".top nav a")
                assert 6 < entries.count() <= MOST_ENTRIES
                views = "document.querySelector('.top nav')"
                assert one.page.evaluate(f"{views}.scrollWidth - {views}.clientWidth") <= 0
                places = [box for entry in entries.all() if (box := entry.bounding_box()) is not None]
                assert max(box["x"] + box["width"] for box in places) <= WIDE
                assert one.page.locator("header.top").evaluate("one => one.clientHeight") < 2 * places[0]["height"]
        finally:
            process.terminate()
            process.wait(30)
