"""The log: what its lines look like, and that nobody waits for one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from gateway.parts.logs import logs
from gateway.parts.logs.config import LogConfig
from gateway.parts.logs.logs import LineWriter
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace
from tests.support.wait import until


class Pipe:
    """A pipe, read only when asked."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self.text = ""

    def read(self) -> str:
        """All that has come so far."""
        with contextlib.suppress(BlockingIOError):
            while more := os.read(self.reading, 65536):
                self.text += more.decode()
        return self.text

    def close(self) -> None:
        os.close(self.reading)
        os.close(self.writing)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


@contextlib.contextmanager
def log(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch, form: Literal["text", "json"] = "text"
) -> Iterator[logging.Logger]:
    """The process's log, as a gateway sets it up, going to `pipe` instead of stderr; all is written at its end."""
    monkeypatch.setattr(logs, "_STDERR", pipe.writing)
    monkeypatch.setattr(logging.root, "handlers", [])
    logs.configure(LogConfig(format=form, level="info"))
    try:
        yield logging.getLogger("tierline.test")
    finally:
        logging.root.handlers[0].close()
        logging.captureWarnings(False)
        for name in ("tierline", "uvicorn"):
            logging.getLogger(name).setLevel(logging.NOTSET)


def test_text_cannot_pass_for_a_line_of_the_log(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control characters are escaped, and what follows a line break is indented, a traceback's lines too."""
    with log(pipe, monkeypatch) as tierline:
        tierline.info("from %s", "x\n2026-01-02 03:04:05,678 ERROR tierline: hacked\r\x1b[2J\x9b1m\ud800")
        try:
            raise ValueError("one\ntwo")
        except ValueError:
            tierline.exception("a bug")
    lines = pipe.read().splitlines()
    assert lines[0].endswith(" INFO tierline.test: from x")
    assert lines[1] == r"    2026-01-02 03:04:05,678 ERROR tierline: hacked\x0d\x1b[2J\x9b1m\ud800"
    assert lines[2].endswith(" ERROR tierline.test: a bug")
    assert lines[3] == "    Traceback (most recent call last):"
    assert lines[-2:] == ["    ValueError: one", "    two"]


def test_json_lines_are_one_object_each(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a message holds; one that is very long is cut."""
    said = 'a\nb\x1b\x7f\x85\u2028\ud800"}'
    with log(pipe, monkeypatch, "json") as tierline:
        tierline.warning(said)
        tierline.warning("x" * 100_000)
        logging.getLogger("httpcore").info("Authorization: Bearer sk-canary")
    first, second = pipe.read().splitlines()
    assert first.isascii()
    assert json.loads(first)["message"] == said.replace("\ud800", "\\ud800")
    assert (json.loads(first)["level"], json.loads(first)["logger"]) == ("warning", "tierline.test")
    assert len(second) < 20_000


def test_a_request_is_one_line(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asked, where it was answered, how long it took and what it cost; what is not known is null."""
    ledger = Ledger("req_1", tenant="acme", surface="chat", requested_model="secret prompt", status=200, path="direct")
    ledger.tier, ledger.total_ms, ledger.tokens_in, ledger.cost_usd = "local", 12.345, 7, 0.000001
    with log(pipe, monkeypatch, "json"):
        logs.log_request(Trace("request"), ledger)
    line = json.loads(pipe.read())
    assert "secret" not in str(line)
    assert {name: line[name] for name in list(line)[3:]} == {
        "message": "request", "request_id": "req_1", "tenant": "acme", "surface": "chat", "path": "direct",
        "tier": "local", "status": 200, "error": None, "duration_ms": 12.3, "ttft_ms": None, "tokens_in": 7,
        "tokens_out": 0, "cost_usd": 0.000001,
    }  # fmt: skip


def test_a_pipe_that_nobody_reads_holds_up_nobody(pipe: Pipe) -> None:
    """Lines are dropped and counted; where some are missing, a line says how many."""
    fcntl.fcntl(pipe.writing, fcntl.F_SETPIPE_SZ, 4096)
    writer = LineWriter[int](pipe.writing, lambda item: b"%d\n" % item, lambda missing: b"missing: %d\n" % missing)
    began = time.monotonic()
    for number in range(10_000):
        writer.put(number)
    assert time.monotonic() - began < 1
    assert writer.dropped > 5_000
    began = time.monotonic()
    writer.close(0.1)
    assert time.monotonic() - began < 1

    def all_told() -> bool:
        lines = pipe.read().rpartition("\n")[0].splitlines()
        missing = [int(line.removeprefix("missing: ")) for line in lines if line.startswith("missing: ")]
        return (len(lines) - len(missing), sum(missing)) == (10_000 - writer.dropped, writer.dropped)

    until(all_told, 5, "the lines that were not dropped, and the number of those that were")


def test_a_full_disk_holds_up_nobody() -> None:
    """A line that cannot be written is dropped and counted, and so is the next."""
    with Path("/dev/full").open("wb", buffering=0) as full:
        writer = LineWriter[bytes](full.fileno(), lambda line: line, lambda missing: b"missing")
        writer.put(b"one")
        writer.put(b"two")
        writer.close()
        assert writer.dropped == 2
