"""The way of a person through the console: a policy is edited, refused, mended, planned and tried; a prompt is sent to
what is tried, and its trace says which hop escalated, by which line, and what would have changed it."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.browser.browser import Visit, visit
from tests.browser.demo import RunningDemo
from tests.support.wait import SLACK, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.long
LIMIT_MS = 20_000 * SLACK
ROLLOUT = "\nrollout: {steps: [50%], step_min: 1h, step_max: 2h}\n"
PROMPT = "Name three things that a lighthouse keeper needs."


def test_a_person_tries_a_policy_and_learns_what_it_does(browser: Browser, demo: RunningDemo) -> None:
    """Everything is clicked or typed; only what a step says is looked at."""
    with visit(browser, demo.console) as one:
        one.page.set_default_timeout(LIMIT_MS)
        open_the_policy(one)
        text = policy_text(one.page)
        see_a_mistake_at_its_line(one.page, text)
        wanted = text.replace("uncalibrated_below: 0.8", "uncalibrated_below: 0.97") + ROLLOUT
        assert wanted.count("0.97") == 1
        see_the_plan(one.page, wanted)
        apply_as_a_canary(one.page)
        assert one.complaints == []
        wait_for_the_small_model(demo)
        opened = open_the_trace(one.page, demo)
        find_what_escalated(one.page)
        assert one.complaints == [], opened


def open_the_policy(one: Visit) -> None:
    """From the start, by the navigation and the list."""
    one.open("/")
    one.page.keyboard.press("g")
    one.page.keyboard.press("p")
    one.page.wait_for_url("**/policies")
    one.page.locator("main").get_by_role("link", name="chat", exact=True).first.click()
    one.page.wait_for_url("**/policies/chat")


def policy_text(page: Page) -> str:
    """The text in the editor: the form's field, which CodeMirror keeps up to date."""
    return page.locator("textarea[name=text]").input_value()


def write_policy(page: Page, text: str) -> None:
    """Replace the text, as typed: in the editor where it stands, else in the form's field."""
    editor = page.locator(".cm-content")
    if editor.count():
        editor.click()
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.insert_text(text)
    else:
        page.locator("textarea[name=text]").fill(text)


def see_a_mistake_at_its_line(page: Page, text: str) -> None:
    """A key that does not exist is refused at its line, with what was meant."""
    wrong = text.replace("deadline: 2m", "deadlin: 2m")
    line = wrong[: wrong.index("deadlin:")].count("\n") + 1
    write_policy(page, wrong)
    page.get_by_role("button", name="Check").click()
    finding = page.locator(".findings li.bad", has_text=f"line {line}")
    finding.first.wait_for()
    assert "deadline" in finding.first.inner_text()
    page.locator("input[name=message]").fill("a slip")
    page.get_by_role("button", name="Apply").click()
    page.get_by_role("heading", name="Not applied").wait_for()
    assert policy_text(page) == wrong  # nothing that was typed is lost


def see_the_plan(page: Page, text: str) -> None:
    """The mended text has no errors; its plan names the one change, and replays recorded requests with it."""
    write_policy(page, text)
    page.get_by_role("button", name="Plan").click()
    page.get_by_role("heading", name=re.compile(r"^Plan over [\d,]+ recorded requests")).wait_for()
    assert page.locator(".findings li.bad").count() == 0
    changed = page.locator("#result .diff tr", has_text="escalate.when.uncalibrated_below")
    assert [changed.locator("del").inner_text(), changed.locator("ins").inner_text()] == ["0.8", "0.97"]
    assert policy_text(page) == text


def apply_as_a_canary(page: Page) -> None:
    """The reason and who gave it stand in the history; the page of changes shows what is tried."""
    page.locator("input[name=message]").fill("be surer of the small model")
    page.locator("input[name=author]").fill("ann")
    page.locator("select[name=how]").select_option("canary")
    page.get_by_role("button", name="Apply").click()
    page.get_by_text("is applied (canary)").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("navigation", name="Views").get_by_role("link", name="Changes").click()
    page.wait_for_url("**/changes")
    tried = page.get_by_role("heading", level=2).filter(has_text=re.compile(r"^chat@\w+ against chat@\w+"))
    assert tried.count() == 1
    assert page.get_by_text("ann: be surer of the small model").count() >= 1


def wait_for_the_small_model(demo: RunningDemo) -> None:
    """The demo's last requests may have been told that it is overloaded, and it rests then for some seconds."""

    def answers() -> bool:
        reply = demo.ask("chat", f"Tell me something nice about the number {time.monotonic_ns()}, please.")
        return reply.headers.get("x-tierline-path") == "direct" and reply.headers["x-tierline-tier"] == "local"

    until(answers, 20, "the small model", poll_s=0.5)


def open_the_trace(page: Page, demo: RunningDemo) -> str:
    """What is tried does not believe the small model, and escalates; the record is there within a second."""
    try_candidate = {"x-tierline-try": "candidate", "x-tierline-cache": "no-store"}
    reply = demo.ask("chat", PROMPT, try_candidate)
    assert reply.headers["x-tierline-path"] == "escalated"
    address = f"/requests/{reply.headers['x-request-id']}"
    until(lambda: httpx2.get(f"{demo.console}{address}").status_code == 200, LIMIT_MS / 1000, "the record", poll_s=0.1)
    page.goto(f"{demo.console}{address}")
    return page.url


def find_what_escalated(page: Page) -> None:
    """The hop says why, its clause leads to the line that was changed, and the page says what would have changed it."""
    assert page.locator("h1 .path-escalated").count() == 1
    hop = page.locator(".hop.attempt", has_text="low confidence").first
    assert "0.970" in hop.inner_text()
    assert page.locator("section[aria-labelledby=changed] dl.changes dd").count() >= 1
    clause = page.locator("a[href*='/policies/chat']", has_text="escalate.when.uncalibrated_below").first
    line = int(urlsplit(clause.get_attribute("href") or "").fragment.removeprefix("L"))
    clause.click()
    page.wait_for_url("**/policies/chat?version=*")
    assert "uncalibrated_below: 0.97" in page.locator(f"#L{line}").inner_text()
    assert "ann" in page.locator(f"#L{line}").inner_text()
