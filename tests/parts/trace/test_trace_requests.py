"""`tierline trace list` and `trace tail` as a user runs them, over a real store."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import orjson
import pytest

from cache.store.base import Append
from cache.store.redis_store import RedisStore
from gateway.cli.main import main
from gateway.telemetry.ledger import TRACES, Ledger, ledger_blob
from gateway.telemetry.trace import Trace
from tests.gateway.telemetry.conftest import server, store
from tests.gateway.telemetry.requests_made import escalated, failed
from tests.support.gateway import environment
from tests.support.store import UNHURRIED, LocalStore

__all__ = ["server", "store"]


@pytest.fixture
async def filled(store: RedisStore) -> RedisStore:
    """Requests that differ in what they can be chosen by; `slow` began an hour ago, `old` ended then."""
    slow, old = escalated("slow", path="degraded", ttft_ms=2500.0, total_ms=9000.0), escalated("old")
    for trace, _ in (slow, old):
        trace.started_unix_ns -= 3600 * 10**9
    slow[1].total_ms = 3_600_000.0
    direct = escalated("direct", surface="batch", path="direct", tier="local", ttft_ms=None, total_ms=700.0)
    hit = escalated("hit", path="cache-semantic", tier="", ttft_ms=5.0)
    broken = escalated("broken", path="direct", error="broken_stream")
    for made in (old, slow, direct, hit, broken, failed("failed"), failed("refused", 429, "quota")):
        await _record(store, made)
    return store


async def _record(store: RedisStore, made: tuple[Trace, Ledger]) -> None:
    await store.apply([Append(TRACES, ledger_blob(*made), 1000)])


async def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = await asyncio.to_thread(main, ["trace", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "refused failed broken hit direct slow old"),
        ("-n 2 --path direct", "broken direct"),
        ("--surface batch", "direct"),
        ("--path cache", "hit"),
        ("--path cache-exact", ""),
        ("--path dir", ""),
        ("--tier local", "direct"),
        ("--status 5xx", "failed"),
        ("--status 429", "refused"),
        ("--slower-than 700ms", "direct slow"),
        ("--since 30m", "refused failed broken hit direct slow"),
        ("--errors", "refused failed broken"),
        ("--errors --status 200 --tier hosted", "broken"),
    ],
)
async def test_requests_are_chosen_by_all_that_is_given(
    filled: RedisStore, server: LocalStore, capsys: pytest.CaptureFixture[str], given: str, expected: str
) -> None:
    code, out, err = await _run(capsys, "list", "--json", *given.split(), "--store", server.url)
    found = [orjson.loads(line)["ledger"]["request_id"] for line in out.splitlines()]
    assert (code, found) == (0, expected.split())
    assert ("none of the 7 requests" in err) == (not expected)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--status", "4x"), "write 429, or 5xx"),
        (("--slower-than", "400"), "write a number with its unit, such as 400ms"),
        (("--since", "yesterday"), "write a number with its unit, such as 400ms"),
    ],
)
def test_a_filter_that_is_none_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], given: tuple[str, str], said: str
) -> None:
    for action in ("list", "tail"):
        with pytest.raises(SystemExit):
            main(["trace", action, *given])
        assert said in capsys.readouterr().err


async def test_requests_are_followed_as_they_end(filled: RedisStore, server: LocalStore) -> None:
    """The latest of those wanted first, then each that comes; others are left out, and Ctrl-C ends it well.

    A store that is away for a while is waited for.
    """
    command = [sys.executable, "-m", "gateway", "trace", "tail", "-n", "1", "--errors", "--json", "--store", server.url]
    pipe = subprocess.PIPE
    follower = subprocess.Popen(command, env=environment(), stdout=pipe, stderr=pipe, text=True)
    assert follower.stdout is not None and follower.stderr is not None
    try:
        assert orjson.loads(follower.stdout.readline())["ledger"]["request_id"] == "refused"
        await _record(filled, escalated("well"))
        await _record(filled, failed("new"))
        assert orjson.loads(follower.stdout.readline())["ledger"]["request_id"] == "new"
        server.stop()
        assert "trying on" in follower.stderr.readline()
        server.start()
        again = RedisStore.from_url(server.url, slack=UNHURRIED)
        await _record(again, failed("later"))
        await again.aclose()
        assert orjson.loads(follower.stdout.readline())["ledger"]["request_id"] == "later"
        follower.send_signal(signal.SIGINT)
        assert follower.wait(10) == 0
    finally:
        follower.kill()
        follower.wait()
        follower.stdout.close()
        follower.stderr.close()
