"""A key in a real browser: made, copied, rotated and revoked, with scripts and without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.browser import NARROW, visit
from tests.browser.demo import RunningDemo

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.long


@pytest.mark.parametrize("scripts", [True, False])
def test_a_key_is_made_copied_rotated_and_revoked(browser: Browser, demo: RunningDemo, scripts: bool) -> None:
    """It can be copied where scripts run; revoking asks first either way."""
    with visit(browser, demo.console, NARROW, scripts=scripts) as one:
        page = one.page
        if scripts:
            page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=demo.console)
        one.open("/keys")
        page.get_by_label("Name", exact=True).fill("laptop")
        page.get_by_label("Budgets in dollars").first.fill("25/month Europe/Berlin")
        page.get_by_role("button", name="Make the key").click()
        key = page.inner_text("#the-key")
        assert key.startswith("tl_") and key in page.inner_text("#snippet-3")
        copy = page.get_by_role("button", name="Copy the key")
        assert copy.is_visible() is scripts
        if scripts:
            copy.click()
            page.get_by_role("button", name="Copied").wait_for()
            assert page.evaluate("navigator.clipboard.readText()") == key
        page.get_by_role("link", name="Its page").click()
        page.get_by_role("button", name="Rotate").click()
        assert page.inner_text("#the-key") != key
        page.get_by_role("link", name="Its page").click()
        page.get_by_role("button", name="Revoke").click()
        assert "Revoking is for ever" in page.get_by_role("alert").inner_text()
        page.get_by_label("It is revoked for ever").check()
        page.get_by_role("button", name="Revoke").click()
        assert "revoked" in page.inner_text("h1")
