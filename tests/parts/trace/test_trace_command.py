from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from cache.store.base import Append
from cache.store.redis_store import RedisStore
from gateway.parts.measures.feedback import STREAM, Feedback
from gateway.parts.metrics.metrics import PrometheusMetrics
from gateway.parts.trace.commands import trace
from gateway.telemetry.sink import Telemetry
from tests.gateway.telemetry.requests_made import escalated, failed
from tests.support.store import LocalStore
from tests.support.template import run_command

_ROOT = Path(__file__).parents[3]


def _tierline(*words: str, cwd: Path = _ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "TIERLINE_STORE_URL"}
    return run_command("trace", *words, env=clean | environment, folder=cwd)


@pytest.fixture
async def traced(store: RedisStore, server: LocalStore) -> str:
    """The URL of a store with two requests in it, `req-2` the newest."""
    telemetry = Telemetry(store, keep=100, exporter=None, metrics=PrometheusMetrics())
    telemetry.start()
    telemetry.record(*escalated())
    telemetry.record(*failed())
    await telemetry.aclose()
    return server.url


def test_last_show_and_list(traced: str) -> None:
    """`last` draws the newest, `show` the one asked for, `list` a line for each, all with exit code 0."""
    last = _tierline("last", "--store", traced)
    assert (last.returncode, last.stderr) == (0, "")
    assert last.stdout.startswith("request req-2")
    assert _tierline("show", "req-1", "--store", traced).stdout.startswith("request req-1")
    rows = _tierline("list", "--store", traced).stdout.splitlines()
    assert [row.split()[-1] for row in rows] == ["request", "req-2", "req-1"]
    assert len(_tierline("list", "-n", "1", "--store", traced).stdout.splitlines()) == 2


async def test_feedback_is_shown(traced: str, store: RedisStore) -> None:
    """What was said of an answer stands with its request, the last word alone."""
    words = [Feedback("req-1", "acme", "chat", score, None, 1.0) for score in (0.0, 1.0)]
    await store.apply([Append(STREAM, word.encode(), 10) for word in words])
    assert "\nfeedback 1\n" in _tierline("show", "req-1", "--store", traced).stdout
    assert "feedback" not in _tierline("show", "req-2", "--store", traced).stdout
    await store.delete(STREAM)


def test_json_is_the_record_as_stored(traced: str) -> None:
    """`--json` prints one JSON object per line."""
    lines = _tierline("list", "--json", "--store", traced).stdout.splitlines()
    assert [orjson.loads(line)["ledger"]["request_id"] for line in lines] == ["req-2", "req-1"]


def test_the_running_store_is_found(traced: str, tmp_path: Path) -> None:
    """With no URL given, the store is the environment's, else that of the `tierline up` running in this folder."""
    assert _tierline("last", cwd=tmp_path, TIERLINE_STORE_URL=traced).returncode == 0
    (tmp_path / ".state").mkdir()
    (tmp_path / ".state" / "up.json").write_bytes(orjson.dumps({"store_url": traced, "url": "http://x", "pid": 1}))
    assert _tierline("last", cwd=tmp_path).stdout.startswith("request req-2")
    assert _tierline("last", "--state", str(tmp_path / ".state")).stdout.startswith("request req-2")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("last",), "`tierline up` is not running here"),
        (("last", "--store", "redis://:secret@127.0.0.1:1/0"), "the store does not answer (refused: 127.0.0.1:1)"),
        (("last", "--store", "bogus"), "redis://, rediss:// or unix://"),
        (("last", "--config", "nowhere.yaml"), "nowhere.yaml: no such file"),
    ],
)
def test_no_store_is_said_in_one_line(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """Without a store to read there is one line on stderr, which holds no password, and exit code 2."""
    done = _tierline(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and len(done.stderr.splitlines()) == 1 and "secret" not in done.stderr


def test_an_unknown_request_is_said(traced: str) -> None:
    """An id nobody has, and an empty store, are told from each other, with exit code 2."""
    done = _tierline("show", "nobody", "--store", traced)
    assert done.returncode == 2 and "no request 'nobody'" in done.stderr
    empty = _tierline("last", "--store", traced.removesuffix("/0") + "/1")
    assert empty.returncode == 2 and "no request has been recorded yet" in empty.stderr


def test_a_reader_that_leaves_is_no_error(traced: str) -> None:
    """`tierline trace list | head -1` ends quietly."""
    command = f"'{sys.executable}' -m gateway trace list --json --store {traced} | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False, text=True, cwd=_ROOT, timeout=60)
    assert (done.stdout, done.stderr) == ("{", "")


def test_a_count_below_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """`-n 0` is a usage error."""
    parser = argparse.ArgumentParser()
    trace.add_parser(parser.add_subparsers())
    with pytest.raises(SystemExit):
        parser.parse_args(["trace", "list", "-n", "0"])
    assert "not a whole number from 1 on" in capsys.readouterr().err
