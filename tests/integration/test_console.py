"""The console as a process beside a gateway: a request is on its pages within a second, and open pages are told.

It has what others leave of the cores, so the second is asserted only where they leave it one.
"""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.support.gateway import ROOT, Gateway
from tests.support.store import LocalStore
from tests.support.wait import SLACK, SLOWNESS, until


@contextmanager
def running(store: LocalStore, folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The URL and the process of a console on a store, without a keeper's files; it ends without a complaint."""
    argv = [sys.executable, "-m", "gateway", "console", "--store", store.url, "--dir", str(folder), "--port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, cwd=ROOT, env=dict(os.environ), stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("The console is at http://127.0.0.1:"), line
        # A request to a gateway on the same machine goes first.
        assert os.getpriority(os.PRIO_PROCESS, process.pid) >= min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)
        yield line.split()[-1], process
        process.terminate()
        assert process.wait(10 * SLACK) == 0
        assert process.stderr.read() == ""


@pytest.fixture
def console(cached_gateway: Gateway, store: LocalStore, tmp_path: Path) -> Iterator[str]:
    """The URL of a console on the gateway's store."""
    with running(store, tmp_path) as (url, _):
        yield url


def test_a_request_is_on_its_page_within_a_second(cached_gateway: Gateway, console: str) -> None:
    body = {"model": "chat", "messages": [{"role": "user", "content": "Is this seen?"}]}
    with httpx2.stream("GET", f"{console}/now/live", timeout=20 * SLACK) as updates:
        lines = updates.iter_lines()
        assert next(lines) == ": connected"
        reply = httpx2.post(f"{cached_gateway.url}/chat/completions", json=body, timeout=20)
        answered, cores_left = time.monotonic(), (os.cpu_count() or 1) - os.getloadavg()[0]
        page = f"{console}/requests/{reply.headers['x-request-id']}"
        until(lambda: httpx2.get(page).status_code == 200, 10, "the page", poll_s=0.1)
        assert cores_left < 1 or time.monotonic() - answered < SLOWNESS
        assert "Where the time went" in httpx2.get(page).text
        update = next(line for line in lines if line.startswith("data:") and "<tbody" in line)
        assert update


@pytest.mark.parametrize("path", ["/now", "/usage", "/requests"])
def test_a_page_is_told_of_what_came_before_its_stream(cached_gateway: Gateway, console: str, path: str) -> None:
    """A request between a page and the stream of its updates does not wait for the next one."""
    live = re.search('hx-sse:connect="([^"]+)"', httpx2.get(f"{console}{path}", timeout=20 * SLACK).text)
    assert live is not None
    body = {"model": "chat", "messages": [{"role": "user", "content": f"Is this seen on {path}?"}]}
    reply = httpx2.post(f"{cached_gateway.url}/chat/completions", json=body, timeout=20)
    page = f"{console}/requests/{reply.headers['x-request-id']}"
    until(lambda: httpx2.get(page).status_code == 200, 10, "the page", poll_s=0.1)
    with httpx2.stream("GET", console + html.unescape(live[1]), timeout=20 * SLACK) as updates:
        lines = updates.iter_lines()
        assert next(lines) == ": connected"
        assert next(line for line in lines if line).startswith("data:")


def test_a_stream_of_its_page_ends_with_the_console(store: LocalStore, tmp_path: Path) -> None:
    """The process stops at once, and without a complaint, although browsers listen; they see a whole reply."""
    with running(store, tmp_path) as (url, process), httpx2.stream("GET", f"{url}/now/live", timeout=30) as updates:
        lines = updates.iter_lines()
        assert next(lines) == ": connected"
        process.terminate()
        assert "".join(lines) == ""
