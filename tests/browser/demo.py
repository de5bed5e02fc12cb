"""`tierline demo` as a process: its console, its gateway, and requests of each kind in its ledger."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tests.support.gateway import ROOT, environment
from tests.support.wait import until


@dataclass(frozen=True, slots=True)
class RunningDemo:
    """Where a demo that is up answers, and the folder that it keeps everything in."""

    console: str
    gateway: str
    store: str
    state: Path

    def data(self, path: str) -> Any:
        """The data of one of the console's pages, by its path and query."""
        path, _, query = path.partition("?")
        reply = httpx2.get(f"{self.console}{path}.json?{query}", timeout=60)
        assert reply.status_code == 200, f"{path}?{query}: {reply.text}"
        return reply.json()

    def request_id(self, query: str) -> str:
        """The id of the newest request that fits a filter of the list."""
        rows = self.data(f"/requests?since=all&{query}")["rows"]
        assert rows, f"no request fits {query}"
        return str(rows[0]["request_id"])

    def ask(self, surface: str, text: str, headers: Mapping[str, str] | None = None) -> httpx2.Response:
        """Send one chat request."""
        messages = [{"role": "user", "content": text}]
        url = f"{self.gateway}/v1/chat/completions"
        return httpx2.post(url, json={"model": surface, "messages": messages}, headers=headers, timeout=60)


def demo_at(state: Path) -> RunningDemo:
    """Return the demo that runs in a state folder."""
    up = json.loads((state / "up.json").read_text())
    return RunningDemo(up["console_url"], up["url"], up["store_url"], state)


@contextlib.contextmanager
def running_demo(folder: Path, minutes: float = 0.5, rate: float = 10) -> Iterator[RunningDemo]:
    """Start a demo in `folder`, wait until its traffic has ended, and stop it with the block."""
    state, output = folder / "demo", folder / "demo.txt"
    command = [sys.executable, "-m", "gateway", "demo", "--no-browser", "--minutes", str(minutes), "--rate", str(rate)]
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--state", str(state), "--port", "0", "--console-port", "0"],
            cwd=ROOT,
            env=environment(),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        ended = "The traffic has ended"
        limit_s = minutes * 60 + 60
        until(lambda: ended in output.read_text() or process.poll() is not None, limit_s, "its end", poll_s=0.1)
        assert process.poll() is None, output.read_text()
        yield demo_at(state)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
