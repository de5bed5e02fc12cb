"""One browser and one demo for all of these tests; both are gone before the next package's tests begin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.browser import chromium, missing
from tests.browser.demo import RunningDemo, demo_at, running_demo

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium. It is stopped with the package: Playwright's event loop would be in the way of tests with their own."""
    if why := missing():
        pytest.skip(why)
    with chromium() as one:
        yield one


@pytest.fixture(scope="package")
def demo(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDemo]:
    """`tierline demo`, whose traffic has ended; or one that runs already, whose state folder is in BROWSER_DEMO."""
    if state := os.environ.get("BROWSER_DEMO"):
        yield demo_at(Path(state))
        return
    with running_demo(tmp_path_factory.mktemp("demo")) as one:
        yield one
