"""`tierline top`: the screen as text, and its figures over a real store."""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from cache.store.redis_store import RedisStore
from gateway.cli.main import main
from gateway.parts.console.commands import top
from gateway.parts.console.commands.top import screen
from gateway.parts.console.views.now import Need
from tests.gateway.telemetry.conftest import server, store
from tests.parts.ledger.test_keeper import record
from tests.support.gateway import environment
from tests.support.store import LocalStore

__all__ = ["server", "store"]


def surface(**changes: Any) -> dict[str, Any]:
    paths = {"hits": 0.25, "direct": 0.5, "escalated": 0.125, "fallback": 0.0, "failed": 0.0625}
    return {
        "surface": "chat", "requests": 1600, "per_second": 2.5, "in_flight": 3.25, "goodput": 0.97, "burn": 3.0,
        "ttft_p95": 380.0, "ttft_limit": 400.0, "paths": paths, "per_1000": 0.31234, "cost_unknown": False,
        "canary": 0, "unavailable": {}, "chips": [],
        "ended": {"good": 1552, "late": 31, "poor": 0, "failed": 17, "refused": 9}, **changes,
    }  # fmt: skip


def drawn(width: int, *surfaces: dict[str, Any], needs: tuple[Need, ...] = ()) -> list[str]:
    verdict = {"level": "few", "text": "Too few requests."}
    data = {"surfaces": surfaces, "needs": needs, "span": "15m", "now_s": 0.0, "verdict": verdict}
    console = Console(file=io.StringIO(), width=width, no_color=True)
    console.print(screen(data, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_row_says_all_of_a_surface() -> None:
    lines = drawn(140, surface(), surface(surface="batch", goodput=None, burn=None, ttft_p95=None, cost_unknown=True))
    assert lines[0].endswith("last 15m  5.0 requests/s")
    assert lines[-2].split("  ")[0] == "chat"
    cells = [
        "chat",
        "2.5",
        "3.2",
        "1,600",
        "31",
        "17",
        "9",
        "97.0%",
        "3.0",
        "380",
        "ms",
        "of",
        "400",
        "ms",
        "25.0%",
        "12.5%",
        "$0.3123",
    ]
    assert lines[-2].split() == [*cells, "####========++!."]
    assert (
        lines[-1].split()[:10] == ["batch", "2.5", "3.2", "1,600", "31", "17", "9", "-", "-", "-"]
        and "$0.3123+?" in lines[-1]
    )


def test_a_narrow_terminal_has_fewer_columns() -> None:
    lines = drawn(80, surface(), needs=(Need("bad", "chat: \x1b[2J", 0.0, "Look.", "/"),))
    assert max(map(len, lines)) <= 80 and "[2J" in lines[1] and "\x1b" not in lines[1]
    assert lines[-1].split() == ["chat", "2.5", "97.0%", "3.0", "380", "ms", "25.0%", "12.5%", "$0.3123"]


def test_what_needs_somebody_is_sentences() -> None:
    """Since when stands within its sentence, and text that came from elsewhere stays on its line."""
    lines = drawn(120, surface(), needs=(Need("bad", "chat: late\nby tier.", 0.0, "Look.", "/"),))
    since = time.strftime("%H:%M:%S", time.localtime(0.0))
    assert lines[1] == f"! chat: late by tier since {since}. Look."


def test_no_request_is_said() -> None:
    assert drawn(80)[-1].startswith("No request in the last 15m")


async def test_figures_are_those_of_the_page(
    store: RedisStore, server: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read from the store's stream alone, where no files are kept; more than a page of it."""
    await record(store, 1, 600, slo={"ttft_p99": False})
    command = ["top", "--once", "--store", server.url, "--dir", str(tmp_path / "none")]
    assert await asyncio.to_thread(main, [*command, "--json"]) == 0
    data = orjson.loads(capsys.readouterr().out)
    [chat] = data["surfaces"]
    assert (chat["surface"], chat["requests"], chat["per_second"], chat["goodput"]) == ("chat", 600, 10.0, 0.0)
    assert chat["in_flight"] == pytest.approx(600 * 0.9 / 60) and data["needs"][0]["level"] == "bad"
    assert await asyncio.to_thread(main, command) == 0
    out = capsys.readouterr().out
    assert "10.0 requests/s" in out and "! chat: 0.0% of requests were good" in out


def test_what_cannot_be_watched_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--dir", str(tmp_path)]
    assert main(["top", "--once", "--store", "redis://:secret@127.0.0.1:1/0", *at]) == 2
    said = capsys.readouterr().err
    assert "the store does not answer" in said and "secret" not in said
    assert main(["top", "--store", "redis://127.0.0.1:1/0", *at]) == 2
    assert "--once" in capsys.readouterr().err


async def test_the_screen_goes_on_until_it_is_stopped(store: RedisStore, server: LocalStore, tmp_path: Path) -> None:
    """On a terminal: what comes in is on it within a second or two; Ctrl-C ends it well."""
    await record(store, 1, 1)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "gateway", "top", "--store", server.url, "--dir", str(tmp_path)]
    shown = subprocess.Popen(command, env=environment(TERM="xterm", COLUMNS="140"), stdout=theirs, stdin=theirs)
    os.close(theirs)
    try:
        await asyncio.to_thread(_read_until, ours, "chat")
        await record(store, 2, 61, surface="voice")
        await asyncio.to_thread(_read_until, ours, "voice")
        shown.send_signal(signal.SIGINT)
        assert shown.wait(10) == 0
    finally:
        shown.kill()
        shown.wait()
        os.close(ours)


def _read_until(terminal: int, text: str) -> None:
    """Read what is written to the terminal until `text` comes; the test's time limit ends it otherwise."""
    seen = ""
    while text not in seen:
        seen += os.read(terminal, 65536).decode(errors="replace")


@pytest.mark.parametrize(("text", "code"), [("60m", None), ("1d", None), ("90m", 2), ("1 hour", 2)])
def test_a_time_is_written_as_everywhere(text: str, code: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    """Sixty minutes are an hour and a day 24; of other times there are no figures, which is said."""
    parser = argparse.ArgumentParser()
    top.add_parser(parser.add_subparsers())
    if code is None:
        assert parser.parse_args(["top", "--since", text]).since in ("1h", "24h")
        return
    with pytest.raises(SystemExit) as stopped:
        parser.parse_args(["top", "--since", text])
    assert stopped.value.code == code and "--since" in capsys.readouterr().err
