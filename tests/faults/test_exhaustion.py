"""What the process itself runs out of: memory, time, descriptors and connections (the rows O5 to O7, C5 and C23)."""

from __future__ import annotations

import http.client
import resource
import signal
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.assembly import build
from gateway.config.launch import Launch
from gateway.request.load_shedding import FEW, LoadShedder
from gateway.server import connection_limits
from gateway.server.listeners import bound
from gateway.server.process import Server
from gateway.server.server import server_of
from tests.faults.lanes import Rig, concurrently
from tests.faults.test_process import streams
from tests.support.gateway import CHAT, Gateway, config, serve, write_policies
from tests.support.store import LocalStore, local_store
from tests.support.upstream import Fault, Reply, Upstream, error_reply
from tests.support.wait import until

WORDS = " ".join(f"word{number}" for number in range(30))


@pytest.fixture
def rig(tmp_path: Path, local_upstream: Upstream) -> Iterator[Rig]:
    """A gateway of the test's own, in a process of its own."""
    with serve(tmp_path, local_upstream.url) as gateway:
        yield Rig(gateway, "")


@dataclass
class Memory:
    """The share that a gateway is to take for the one in use."""

    share: float = 0.1


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def served(tmp_path: Path, local_upstream: Upstream, store: LocalStore, memory: Memory) -> Iterator[tuple[Rig, Server]]:
    """A gateway in a thread of this process, which believes what `memory` says, and its server."""
    write_policies(tmp_path / "policies", {"chat": CHAT})
    (tmp_path / "tierline.yaml").write_text(yaml.safe_dump(config(local_upstream.url, None, store.url)))
    launch = Launch(config=tmp_path / "tierline.yaml", policies=tmp_path / "policies")
    deployment = launch.deployment({})
    gate = LoadShedder(1000, memory=lambda: memory.share)
    steps = build(deployment, launch.policy_source(deployment), gate)
    listening = bound("127.0.0.1", 0)
    port = listening.getsockname()[1]
    server = server_of(steps)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        until(lambda: server.started, 20, "the server")
        process: Any = None
        yield Rig(Gateway(port, tmp_path, process), store.url), server
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.fixture
def in_thread(served: tuple[Rig, Server]) -> Rig:
    """The same gateway, where its server does not matter."""
    return served[0]


def metric(rig: Rig, name: str) -> float:
    lines = rig.request("GET", "/metrics").body.decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_o5_memory_is_given_up_in_steps(in_thread: Rig, local_upstream: Upstream, memory: Memory) -> None:
    """First nothing more is kept, then no connection either, then nobody new is taken; streams come to their end."""
    rig = in_thread

    def at(share: float) -> None:
        memory.share = share
        until(lambda: metric(rig, "tierline_memory_ratio") == share, 5, f"a look at {share}")

    def kept(seed: int) -> bool:
        assert rig.ask("chat", seed=seed).status == 200
        time.sleep(0.1)  # an answer that is kept is kept within milliseconds
        return rig.cached("chat", seed=seed)

    at(0.84)
    assert kept(1)
    at(0.86)
    assert not kept(2)
    assert "connection" not in rig.ask("chat").headers
    local_upstream.default = Reply(text=WORDS, between_s=0.1)
    with streams(rig, 3) as begun:
        local_upstream.default = Reply()
        at(0.93)
        assert rig.ask("chat").headers["connection"] == "close"
        at(0.96)
        refused = rig.ask("chat")
        assert (refused.status, refused.error["code"]) == (503, "server_is_overloaded")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert rig.request("GET", "/healthz").status == 200
        assert [(stream.result().text, stream.result().ended) for stream in begun] == [(WORDS, True)] * 3
    at(0.5)
    assert "connection" not in rig.ask("chat").headers
    assert kept(3)


@pytest.mark.parametrize("others", [FEW, 0], ids=["crowd", "alone"])
def test_o6_a_loop_that_is_behind_refuses_newcomers(rig: Rig, local_upstream: Upstream, others: int) -> None:
    """A process that gets to run for moments only turns newcomers to a crowd away, and then is well again.

    The only request there is was not the reason, and is served.
    """
    local_upstream.default = Reply(fault=Fault.HANG_BEFORE_HEADERS)
    process = rig.gateway.process
    crowd = [rig.connect() for _ in range(others)]
    for seed, one in enumerate(crowd):
        _begin(one, seed)
    local_upstream.wait_for(others)
    local_upstream.default = Reply()
    connection = rig.connect()
    connection.request("GET", "/healthz")
    assert connection.getresponse().read()
    try:
        for moment in range(8):
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.2)
            if moment == 7:
                _begin(connection, others)
            process.send_signal(signal.SIGCONT)
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGCONT)
    response = connection.getresponse()
    assert response.status == (503 if others else 200)
    assert response.headers["retry-after"] == ("1" if others else None)
    for one in crowd:
        one.close()
    until(lambda: rig.ask("chat").status == 200, 5, "an answer")
    until(lambda: metric(rig, "tierline_loop_lag_seconds") < 0.1, 5, "a loop in time")


def test_o6_a_wait_to_be_accepted_is_seen(rig: Rig) -> None:
    """What a new connection waits for a process that does not get to run is in the time to its first byte."""
    process = rig.gateway.process
    process.send_signal(signal.SIGSTOP)
    try:
        connection = rig.connect()
        connection.request("GET", "/healthz")
        time.sleep(0.4)
    finally:
        process.send_signal(signal.SIGCONT)
    assert connection.getresponse().read()
    connection.close()
    assert metric(rig, 'tierline_first_byte_seconds_sum{connection="new"}') > 0.35


def _begin(connection: http.client.HTTPConnection, seed: int) -> None:
    """Send a request without waiting for its reply."""
    body = b'{"model":"chat","seed":%d,"messages":[{"role":"user","content":"hi"}]}' % seed
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})


@pytest.fixture(scope="module")
def saving_store() -> Iterator[LocalStore]:
    """A store that saves to its disk."""
    with local_store("--save 3600 1") as store:
        yield store


@pytest.fixture(scope="module")
def stored(
    _upstreams: tuple[Upstream, Upstream], saving_store: LocalStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rig]:
    """A gateway over one tier and that store."""
    with serve(tmp_path_factory.mktemp("stored"), _upstreams[0].url, store_url=saving_store.url) as gateway:
        yield Rig(gateway, saving_store.url)


def test_a_pause_of_all_tiers_leaves_the_gateway_ready(stored: Rig, local_upstream: Upstream) -> None:
    """While every tier asks for a pause cached answers are served, so /readyz is 200, and names the tiers."""
    rig = stored
    assert rig.ask("chat", seed=1).status == 200
    until(lambda: rig.cached("chat", seed=1), 5, "the answer in the cache")
    local_upstream.default = error_reply(429, headers={"retry-after": "1"})
    assert rig.ask("chat", seed=2).status == 429
    answer = rig.request("GET", "/readyz")
    assert (answer.status, answer.json["status"]) == (200, "degraded")
    assert "tier local: asking for a pause (status 429)" in answer.json["degraded"]
    assert rig.ask("chat", seed=1).headers["x-tierline-path"] == "cache-exact"
    local_upstream.default = Reply()
    until(lambda: rig.ask("chat", seed=3).status == 200, 5, "the end of the pause")


def test_a_store_that_cannot_save_is_named(stored: Rig, saving_store: LocalStore, local_upstream: Upstream) -> None:
    """When the store's disk is full requests are answered, also from the cache; /readyz says what no longer is kept."""
    rig = stored
    assert rig.ask("chat", seed=4).status == 200
    until(lambda: rig.cached("chat", seed=4), 5, "the answer in the cache")
    saving_store.lose_disk()
    assert rig.ask("chat", seed=5).status == 200
    until(lambda: "traces: not recorded (disk)" in rig.readyz()["degraded"], 5, "/readyz saying so")
    answer = rig.request("GET", "/readyz")
    assert answer.status == 200
    assert (
        "store: refuses writes, it cannot save to its disk (disk): new answers are not kept" in answer.json["degraded"]
    )
    assert rig.ask("chat", seed=4).headers["x-tierline-path"] == "cache-exact"


@contextmanager
def descriptors(rig: Rig, left: int) -> Iterator[None]:
    """Lets the gateway open so many more descriptors and no other."""
    pid = rig.gateway.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    # The limit is on the number that a new one gets, the lowest that is free.
    highest = max(int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir())
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1 + left, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_o7_without_descriptors_no_one_is_harmed_who_is_here(rig: Rig, local_upstream: Upstream) -> None:
    """When no more connections can be had those that there are go on, newcomers are told, and later there are more."""
    local_upstream.default = Reply(text=WORDS, between_s=0.1)
    with streams(rig, 8) as begun:
        with ExitStack() as waiting, descriptors(rig, 4):
            address = ("127.0.0.1", rig.gateway.port)
            newcomers = [waiting.enter_context(socket.create_connection(address, 5)) for _ in range(100)]
            said = [newcomer.recv(4096) for newcomer in newcomers]
            assert rig.gateway.process.poll() is None
        assert all(one.startswith(b"HTTP/1.1 503 ") and b'"code":"server_is_overloaded"' in one for one in said)
        answers = [stream.result() for stream in begun]
    assert [(answer.text, answer.ended) for answer in answers] == [(WORDS, True)] * 8
    local_upstream.default = Reply()
    until(lambda: answers_again(rig), 10, "an answer")


def answers_again(rig: Rig) -> bool:
    try:
        return rig.ask("chat").status == 200
    except OSError:
        return False


def half_head(rig: Rig) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", rig.gateway.port), 5)
    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-")
    return connection


def half_body(rig: Rig) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", rig.gateway.port), 5)
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    return connection


def median_s(rig: Rig, asked: int) -> float:
    """The median time of an answer to one client."""
    times: list[float] = []
    for _ in range(asked):
        began = time.monotonic()
        assert rig.ask("chat").status == 200
        times.append(time.monotonic() - began)
    return statistics.median(times)


def test_c5_who_does_not_finish_a_request_is_not_waited_for(in_thread: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand half requests hold up nobody; each is refused and closed in time, dribbling or not."""
    rig, slow_s = in_thread, 4.0
    monkeypatch.setattr(connection_limits, "SLOW_S", slow_s)
    alone = median_s(rig, 30)
    with ExitStack() as held:
        began = time.monotonic()
        slow = [held.enter_context(half(rig)) for _ in range(500) for half in (half_head, half_body)]
        assert median_s(rig, 30) <= 2 * alone + 0.01
        while time.monotonic() - began < slow_s - 2:
            for connection in slow[:50]:
                connection.sendall(b"a")
            time.sleep(0.5)
        for connection in slow:
            connection.settimeout(max(0.1, began + 2 * slow_s - time.monotonic()))
            answer = connection.recv(4096)
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b'"code":"request_timeout"' in answer
    assert rig.ask("chat").status == 200


def test_c5_who_does_not_finish_a_request_does_not_hold_up_a_stop(
    served: tuple[Rig, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stops refuses a slow request when its time is over, and is not kept by it for `limits.finish`."""
    rig, server = served
    monkeypatch.setattr(connection_limits, "SLOW_S", 1.0)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", rig.gateway.port), timeout=30) as client:
        client.sendall(head + b"Content-Length: 90\r\nExpect: 100-continue\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 100 ")  # so the application waits for the body
        client.sendall(b"{")
        server.should_exit = True
        assert b"".join(iter(lambda: client.recv(1000), b"")).startswith(b"HTTP/1.1 408 ")


def test_c5_who_says_nothing_is_not_kept(tmp_path: Path, local_upstream: Upstream) -> None:
    """A new connection that sends no request is closed in time; one that has sent one may wait for its next."""
    with serve(tmp_path, local_upstream.url, settings={"limits": {"silent": "500ms"}}) as gateway:
        rig = Rig(gateway, "")
        asked = rig.connect()
        asked.request("GET", "/healthz")
        assert asked.getresponse().read()
        with socket.create_connection(("127.0.0.1", gateway.port), 5) as silent:
            began = time.monotonic()
            assert silent.recv(1) == b""
            assert 0.4 < time.monotonic() - began < 4
        asked.request("GET", "/healthz")
        assert asked.getresponse().status == 200
        asked.close()


def test_c23_the_oldest_idle_connection_makes_room(tmp_path: Path, local_upstream: Upstream) -> None:
    """However many connections stand about, a burst of requests is answered, and a stream under way goes on."""
    local_upstream.default = Reply(text=WORDS, between_s=0.1)
    with serve(tmp_path, local_upstream.url, settings={"limits": {"connections": 50}}) as gateway, ExitStack() as held:
        rig = Rig(gateway, "")
        with streams(rig, 4) as begun:
            local_upstream.default = Reply()
            idle = [held.enter_context(socket.create_connection(("127.0.0.1", gateway.port), 5)) for _ in range(400)]
            burst = concurrently(40, lambda: rig.ask("chat"))
            assert [answer.status for answer in burst] == [200] * 40
            idle[0].settimeout(5)
            assert idle[0].recv(1) == b""
            assert [(stream.result().text, stream.result().ended) for stream in begun] == [(WORDS, True)] * 4
