"""How the process ends, and what those see who are being answered then (the rows P of the catalogue of faults)."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.lanes import Answer, Rig, received
from tests.support.gateway import config, environment, running, serve, write_deployment
from tests.support.upstream import Fault, Reply, Upstream
from tests.support.wait import until

WORDS = " ".join(f"word{number}" for number in range(40))


@contextmanager
def gateway(folder: Path, upstream: Upstream, drain: str, finish: str) -> Iterator[Rig]:
    settings = {"limits": {"drain": drain, "finish": finish}}
    with serve(folder, upstream.url, settings=settings) as served:
        yield Rig(served, "")


@contextmanager
def streams(rig: Rig, count: int) -> Iterator[list[Future[Answer]]]:
    """So many streams that are under way, and being read: their heads have come, and so their first tokens."""
    with ThreadPoolExecutor(count) as pool:
        yield [pool.submit(received, response) for response in pool.map(lambda n: begin(rig, n), range(count))]


def begin(rig: Rig, number: int) -> http.client.HTTPResponse:
    """A stream of its own: equal requests would share one call."""
    connection = rig.connect()
    body = {"model": "chat", "stream": True, "seed": 1000 + number, "messages": [{"role": "user", "content": "hi"}]}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    return connection.getresponse()


def stop(rig: Rig, number: signal.Signals = signal.SIGTERM) -> None:
    rig.gateway.process.send_signal(number)


def ready(rig: Rig) -> tuple[int, str]:
    answer = rig.request("GET", "/readyz")
    return answer.status, answer.json["status"]


def test_p1_sigterm_lets_everybody_finish(tmp_path: Path, local_upstream: Upstream) -> None:
    """The balancer is told at once, newcomers are served for a while yet, streams come to their end, and so do we."""
    local_upstream.default = Reply(text=WORDS, between_s=0.1)
    with gateway(tmp_path, local_upstream, "2s", "30s") as rig, streams(rig, 20) as begun:
        kept = rig.connect()
        kept.request("GET", "/healthz")
        assert received(kept.getresponse()).status == 200
        stop(rig)
        until(lambda: ready(rig) == (503, "draining"), 1.5, "/readyz saying so")
        local_upstream.default = Reply()
        newcomer = rig.ask("chat")
        assert (newcomer.status, newcomer.headers["connection"]) == (200, "close")
        kept.request("GET", "/healthz")
        assert received(kept.getresponse()).headers["connection"] == "close"
        assert not any(stream.done() for stream in begun)
        until(lambda: refuses(rig), 5, "no more newcomers")
        answers = [stream.result() for stream in begun]
        assert [(answer.status, answer.ended, answer.text) for answer in answers] == [(200, True, WORDS)] * 20
        assert all(answer.events[-1] == "[DONE]" for answer in answers)
        assert rig.gateway.process.wait(30) == 0
    assert "Traceback" not in rig.gateway.log()


def refuses(rig: Rig) -> bool:
    try:
        rig.request("GET", "/healthz")
    except ConnectionError:
        return True
    return False


def test_p1_at_the_limit_they_are_told(tmp_path: Path, local_upstream: Upstream) -> None:
    """What has not ended by then ends as broken, with an error event or a 503, and its backend call with it."""
    local_upstream.default = Reply(text=WORDS, fault=Fault.HANG_MID_STREAM, fault_after=20)
    with gateway(tmp_path, local_upstream, "100ms", "500ms") as rig, streams(rig, 10) as begun:
        local_upstream.default = Reply(fault=Fault.HANG_BEFORE_HEADERS)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(rig.ask, "chat")
            local_upstream.wait_for(11)
            stop(rig)
            unanswered = waiting.result()
        assert (unanswered.status, unanswered.error["code"]) == (503, "draining")
        for stream in begun:
            assert stream.result().broken["code"] == "draining"
            assert stream.result().text.startswith("word0 word1")
        assert rig.gateway.process.wait(30) == 0
    assert all(request.gone_at for request in local_upstream.requests)
    assert "Traceback" not in rig.gateway.log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_p2_the_second_signal_ends_it_at_once(tmp_path: Path, local_upstream: Upstream, number: signal.Signals) -> None:
    """Nobody is waited for any more, they are told, and the exit code says that it was no clean end."""
    local_upstream.default = Reply(text=WORDS, fault=Fault.HANG_MID_STREAM, fault_after=20)
    with gateway(tmp_path, local_upstream, "60s", "60s") as rig, streams(rig, 3) as begun:
        stop(rig, number)
        if number == signal.SIGTERM:
            until(lambda: ready(rig) == (503, "draining"), 1.5, "/readyz saying so")
        else:
            until(lambda: refuses(rig), 5, "no more newcomers")
        assert not any(stream.done() for stream in begun)
        again = time.monotonic()
        stop(rig, number)
        assert {stream.result().broken["code"] for stream in begun} == {"draining"}
        assert rig.gateway.process.wait(30) == 130
        assert time.monotonic() - again < 10
    assert "Traceback" not in rig.gateway.log()


def test_p1_p2_with_workers(tmp_path: Path, local_upstream: Upstream) -> None:
    """The workers of a process stop with it, gently at the first signal and at once at the second."""
    write_deployment(tmp_path, config(local_upstream.url, None, limits={"drain": "60s", "finish": "60s"}))
    with running(tmp_path, environment(), "--workers", "2", forked=True) as served:
        rig = Rig(served, "")
        local_upstream.default = Reply(text=WORDS, fault=Fault.HANG_MID_STREAM, fault_after=20)
        with streams(rig, 4) as begun:
            stop(rig)
            until(lambda: all(ready(rig)[0] == 503 for _ in range(8)), 5, "both workers saying so")
            assert not any(stream.done() for stream in begun)
            stop(rig)
            assert {stream.result().broken["code"] for stream in begun} == {"draining"}
            assert served.process.wait(30) == 130


def test_p4_a_log_that_nobody_reads_stops_nobody(tmp_path: Path, local_upstream: Upstream) -> None:
    """With stderr a full pipe requests are answered, lost lines are counted, and the end comes in time."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    settings = {"limits": {"drain": "0s"}, "log": {"format": "json", "requests": True}}
    with (
        os.fdopen(reading, "rb") as said,
        serve(tmp_path, local_upstream.url, settings=settings, output=writing) as served,
    ):
        rig = Rig(served, "")
        assert rig.ask("chat").status == 200
        lines = map(json.loads, iter(said.readline, b""))  # a busy machine's may begin with one about its lag
        line = next(line for line in lines if line["logger"] == "tierline.requests")
        assert (line["surface"], line["status"]) == ("chat", 200)
        for _ in range(1200):  # each is said in the log
            with socket.create_connection(("127.0.0.1", served.port), 5) as connection:
                connection.sendall(b"nonsense\r\n\r\n")
        assert rig.ask("chat", seed=1).status == 200
        metrics = rig.request("GET", "/metrics").body.decode().splitlines()
        assert float(next(line for line in metrics if line.startswith("tierline_log_dropped_total ")).split()[1]) > 0
        stop(rig)
        assert served.process.wait(30) == 0
    os.close(writing)
