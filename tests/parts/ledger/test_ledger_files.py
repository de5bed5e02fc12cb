"""`tierline ledger keep`, `query`, `export` and `tail` as a user runs them, over a real store and real files."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import orjson
import pytest

from cache.store.base import Append
from cache.store.redis_store import RedisStore
from gateway.cli.main import main
from gateway.parts.measures import feedback
from gateway.parts.measures.feedback import Feedback
from gateway.telemetry.ledger import TRACES, ledger_blob
from tests.gateway.telemetry.conftest import server, store
from tests.gateway.telemetry.requests_made import escalated
from tests.support.gateway import environment
from tests.support.store import LocalStore
from tests.support.wait import until

__all__ = ["server", "store"]


@pytest.fixture(autouse=True)
async def _filled(store: RedisStore) -> None:
    """Three requests of chat and one of batch, and feedback on `req-2`."""
    await store.apply([Append(feedback.STREAM, Feedback("req-2", "acme", "chat", 0.5, "so so", 1.0).encode(), 10)])
    for number, surface in enumerate(("chat", "batch", "chat", "chat")):
        await _record(store, number, surface)


async def _record(store: RedisStore, number: int, surface: str) -> None:
    trace, ledger = escalated(f"req-{number}", surface=surface)
    await store.apply([Append(TRACES, ledger_blob(trace, ledger), 1000)])


async def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = await asyncio.to_thread(main, ["ledger", *arguments])
    said = capsys.readouterr()
    assert said.err == "" or code, said.err
    return code, said.out, said.err


async def test_records_are_kept_and_asked_for(
    store: RedisStore, server: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table for people, JSON lines for scripts, and files of both formats with the feedback on each request."""
    folder = tmp_path / "ledger"
    at = ("--dir", str(folder))
    assert (await _run(capsys, "keep", "--once", "--store", server.url, *at))[0] == 0
    code, out, _ = await _run(
        capsys, "query", "SELECT surface, count(*) AS n FROM requests GROUP BY ALL ORDER BY 2", *at
    )
    assert code == 0 and [line.split() for line in out.splitlines()] == [
        ["surface", "n"],
        ["batch", "1"],
        ["chat", "3"],
    ]
    _, out, _ = await _run(capsys, "query", "SELECT request_id, calls FROM requests ORDER BY 1", "--json", *at)
    rows = [orjson.loads(line) for line in out.splitlines()]
    assert [row["request_id"] for row in rows] == [f"req-{number}" for number in range(4)]

    jsonl, parquet = tmp_path / "chat.jsonl", tmp_path / "all.parquet"
    assert (await _run(capsys, "export", "--jsonl", str(jsonl), "--surface", "chat", *at))[1].startswith(
        "3 requests written"
    )
    scores = {row["request_id"]: row["score"] for row in map(orjson.loads, jsonl.read_bytes().splitlines())}
    assert scores == {"req-0": None, "req-2": 0.5, "req-3": None}
    assert (await _run(capsys, "export", "--parquet", str(parquet), *at))[0] == 0
    with duckdb.connect() as database:
        assert database.execute(f"SELECT count(*) FROM '{parquet}'").fetchall() == [(4,)]
    code, out, said = await _run(
        capsys, "export", "--parquet", str(parquet), "--since", "1s", "--surface", "voice", *at
    )
    assert (code, out[:2], said) == (0, "0 ", "")


async def test_mistakes_are_named(store: RedisStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No files, a query that DuckDB refuses, a store that is not there: exit code 2, and what to do."""
    code, _, said = await _run(capsys, "query", "SELECT 1", "--dir", str(tmp_path))
    assert code == 2 and "holds no ledger" in said and "ledger keep" in said
    (tmp_path / "requests.jsonl").touch()
    (tmp_path / "feedback.jsonl").touch()
    code, _, said = await _run(capsys, "query", "SELECT surfaces FROM requests", "--dir", str(tmp_path))
    assert "tierline: \n" not in said, "a line without words"
    assert (code == 2 and "surfaces" in said and "Did you mean" in said) or "Candidate" in said
    code, _, said = await _run(capsys, "keep", "--once", "--store", "redis://127.0.0.1:9/0", "--dir", str(tmp_path))
    assert code == 2 and "store does not answer" in said


async def test_a_keeper_follows_until_it_is_stopped(
    store: RedisStore, server: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What comes in is in the files at once, what comes in as it stops too; SIGTERM ends it with exit code 0."""
    command = [sys.executable, "-m", "gateway", "ledger", "keep", "--store", server.url, "--dir", str(tmp_path)]
    keeper = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        until((tmp_path / "requests.jsonl").exists, 20, "its files")
        until(lambda: len((tmp_path / "requests.jsonl").read_bytes().splitlines()) == 4, 10, "the first four")
        await _record(store, 4, "voice")
        until(lambda: b"req-4" in (tmp_path / "requests.jsonl").read_bytes(), 10, "the fifth")
        code, _, said = await _run(capsys, "keep", "--once", "--store", server.url, "--dir", str(tmp_path))
        assert code == 2 and "another process keeps" in said
        await _record(store, 5, "voice")
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(15) == 0
    finally:
        keeper.kill()
        keeper.wait()
    _, out, _ = await _run(capsys, "query", "SELECT count(*) FROM requests", "--json", "--dir", str(tmp_path))
    assert orjson.loads(out) == {"count_star()": 6}


async def test_the_latest_are_shown_as_they_come(
    store: RedisStore, server: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tail` prints the oldest of them first; with --follow it goes on, without a second heading."""
    _, out, _ = await _run(capsys, "tail", "-n", "2", "--surface", "chat", "--store", server.url)
    assert [line.split()[-1] for line in out.splitlines()] == ["request", "req-2", "req-3"]
    _, out, _ = await _run(capsys, "tail", "-n", "1", "--json", "--store", server.url)
    assert orjson.loads(out)["ledger"]["request_id"] == "req-3"
    command = [sys.executable, "-m", "gateway", "ledger", "tail", "-n", "1", "--follow", "--store", server.url]
    follower = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    assert follower.stdout is not None
    try:
        assert follower.stdout.readline().split()[-1] == "request"
        assert follower.stdout.readline().split()[-1] == "req-3"
        await _record(store, 9, "chat")
        assert follower.stdout.readline().split()[-1] == "req-9"
        follower.send_signal(signal.SIGINT)
        assert follower.wait(10) == 0
    finally:
        follower.kill()
        follower.wait()
