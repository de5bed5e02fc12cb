"""The gate: what a worker refuses before it has read it."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import select
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from gateway.config.schema import Limits
from gateway.errors import Overloaded
from gateway.request.load_shedding import FEW, MOST_LAG_S, LoadShedder, room_for_bodies, used_share
from gateway.server.connection_limits import HEADS
from tests.support.ask import ask
from tests.support.gateway import Gateway, serve
from tests.support.upstream import Fault, Reply, Upstream
from tests.support.wait import until


def test_one_too_many_is_refused() -> None:
    """So many requests are taken in hand, and another one as soon as one has left."""
    gate = LoadShedder(2)
    for _ in range(2):
        gate.in_hand += 1
        gate.check()
    gate.in_hand += 1
    with pytest.raises(Overloaded):
        gate.check()
    gate.in_hand -= 1
    gate.check()


async def test_a_loop_that_is_behind_takes_nothing_new() -> None:
    """While the loop comes late again and again newcomers are refused; once it keeps up, they are welcome.

    A few are always taken: they are not why it is late.
    """
    gate = LoadShedder(100)
    for _ in range(FEW + 1):
        gate.in_hand += 1
    gate.start()
    try:
        time.sleep(2 * MOST_LAG_S)
        await asyncio.sleep(0.01)
        gate.check()  # one long stop is over by now: refusing would mend nothing
        async with asyncio.timeout(30):
            while gate.lag_s <= MOST_LAG_S:
                time.sleep(2 * MOST_LAG_S)
                await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            gate.check()
        gate.in_hand -= 1
        gate.check()
        gate.in_hand += 1
        async with asyncio.timeout(30):
            while gate.lag_s > MOST_LAG_S:
                await asyncio.sleep(0.01)
        gate.check()
    finally:
        gate.stop()


BODY = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


def test_o1_a_full_worker_says_so_at_once(tmp_path: Path, upstream: Upstream) -> None:
    """503 with Retry-After and the envelope, whatever the body; once what is in hand has gone, there is room."""
    upstream.default = Reply(fault=Fault.HANG_BEFORE_HEADERS)
    with serve(tmp_path, upstream.url, settings={"limits": {"in_flight": 1}}) as gateway:
        waiting = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=15)
        waiting.request("POST", "/v1/chat/completions", json.dumps(BODY), {"content-type": "application/json"})
        until(lambda: upstream.requests, 5, "a request in hand")
        refused = ask(gateway)
        waiting.close()
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "server_is_overloaded"
        assert refused.headers["x-request-id"]
        upstream.default = Reply()
        until(lambda: ask(gateway).status_code == 200, 5, "room again")


def _large(gateway: Gateway, size: int, *, chunked: bool) -> httpx2.Response:
    body = json.dumps({**BODY, "messages": [{"role": "user", "content": "a" * size}]}).encode()
    content = (body[at : at + 65536] for at in range(0, len(body), 65536)) if chunked else body
    return httpx2.post(
        f"{gateway.url}/chat/completions", content=content, headers={"content-type": "application/json"}, timeout=15
    )


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_in_hand_have_one_budget_of_bytes(tmp_path: Path, upstream: Upstream, chunked: bool) -> None:
    """One that has no room beside those in hand gets 503; a small one is served; afterwards there is room again."""
    upstream.default = Reply(fault=Fault.HANG_BEFORE_HEADERS)
    limits = {"body": "3MiB", "bodies": "4MiB"}
    with serve(tmp_path, upstream.url, settings={"limits": limits}) as gateway:
        waiting = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=15)
        first = {**BODY, "messages": [{"role": "user", "content": "a" * (2 * MIB)}]}
        waiting.request("POST", "/v1/chat/completions", json.dumps(first), {"content-type": "application/json"})
        until(lambda: upstream.requests, 10, "a request in hand")
        upstream.default = Reply()
        refused = _large(gateway, 5 * MIB // 2, chunked=chunked)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "server_is_overloaded"
        assert "limits.bodies" in refused.json()["error"]["message"]
        assert ask(gateway).status_code == 200
        waiting.close()
        until(lambda: _large(gateway, 5 * MIB // 2, chunked=chunked).status_code == 200, 10, "room again")


def test_unfinished_heads_keep_nobody_out(tmp_path: Path, upstream: Upstream) -> None:
    """They have a room of their own, in which the oldest makes room: others' heads and bodies have theirs."""
    settings = {"limits": {"body": "128KiB", "bodies": "128KiB"}}
    half = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx-long: " + b"a" * 60_000
    most = HEADS // len(half)
    with serve(tmp_path, upstream.url, settings=settings) as gateway, ExitStack() as held:
        heads: list[socket.socket] = []
        for _ in range(most + 20):
            heads.append(held.enter_context(socket.create_connection(("127.0.0.1", gateway.port), timeout=30)))
            heads[-1].sendall(half)
        assert _large(gateway, 100_000, chunked=False).status_code == 200
        in_two = held.enter_context(socket.create_connection(("127.0.0.1", gateway.port), timeout=30))
        in_two.sendall(half)
        in_two.sendall(b"\r\n\r\n")
        assert in_two.recv(65536).startswith(b"HTTP/1.1 200 ")
        answered, _, _ = select.select(heads, [], [], 5)
        assert set(heads[:20]) <= set(answered) and len(answered) < 30
        assert {one.recv(65536).split(b"\r\n")[0] for one in answered} == {b"HTTP/1.1 503 Service Unavailable"}


def test_heads_that_are_whole_keep_nobody_out(tmp_path: Path, upstream: Upstream) -> None:
    """More of them than there is room for unfinished ones, on connections that are kept open."""
    begun = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx-long: " + b"a" * 60_000
    with serve(tmp_path, upstream.url) as gateway, ExitStack() as held:
        heads: list[socket.socket] = []
        for _ in range(HEADS // len(begun) + 60):
            heads.append(held.enter_context(socket.create_connection(("127.0.0.1", gateway.port), timeout=30)))
            heads[-1].sendall(begun)
            time.sleep(0.005)  # so that its end comes in a read of its own
            heads[-1].sendall(b"\r\n\r\n")
            assert heads[-1].recv(65536).startswith(b"HTTP/1.1 200 ")
        for one in heads:
            one.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            assert one.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_slow_bodies_hold_only_what_came(tmp_path: Path, upstream: Upstream) -> None:
    """A hundred that are announced keep nobody's body out, without keys and of the same key too."""
    settings = {"limits": {"body": "3MiB", "bodies": "4MiB"}}
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    with serve(tmp_path, upstream.url, settings=settings) as gateway, ExitStack() as held:
        for _ in range(100):
            slow = held.enter_context(socket.create_connection(("127.0.0.1", gateway.port), timeout=30))
            slow.sendall(head + b"content-length: 3000000\r\n\r\n{")
        assert _large(gateway, 2 * MIB, chunked=False).status_code == 200
        assert _large(gateway, 2 * MIB, chunked=True).status_code == 200


def test_a_keys_bodies_leave_room_for_others(tmp_path: Path, upstream: Upstream) -> None:
    """Those of one key hold half of the room at most; what is more gets 429, and another key's is served."""
    upstream.default = Reply(fault=Fault.HANG_BEFORE_HEADERS)
    settings = {
        "limits": {"body": "512KiB", "bodies": "1MiB"},
        "tenants": {"a": {"key_env": "KEY_A"}, "b": {"key_env": "KEY_B"}},
    }
    env = {"KEY_A": "key-of-a", "KEY_B": "key-of-b"}
    with serve(tmp_path, upstream.url, settings=settings, env=env) as gateway, ExitStack() as held:
        for number in range(2):
            waiting = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=15)
            held.callback(waiting.close)
            headers = {"content-type": "application/json", "authorization": "Bearer key-of-a"}
            text = str(number) + "a" * (MIB // 4 - 1000)
            body = json.dumps({**BODY, "messages": [{"role": "user", "content": text}]})
            waiting.request("POST", "/v1/chat/completions", body, headers)
            until(lambda: len(upstream.requests) > number, 10, "a request in hand")  # noqa: B023
        upstream.default = Reply()
        for key, status in (("key-of-a", 429), ("key-of-b", 200)):
            for path in ("chat/completions", "completions", "messages", "responses"):
                sent = {
                    "model": "chat",
                    "messages": [{"role": "user", "content": "a" * (MIB // 4)}],
                    "max_tokens": 5,
                }
                if path in ("completions", "responses"):
                    sent = {"model": "chat", "prompt" if path == "completions" else "input": "a" * (MIB // 4)}
                reply = httpx2.post(
                    f"{gateway.url}/{path}", json=sent, headers={"authorization": f"Bearer {key}"}, timeout=20
                )
                assert reply.status_code == status, (path, reply.text)


def test_the_budget_is_a_part_of_the_memory() -> None:
    """A sixteenth of it, shared by the workers, unless the config says; one body always fits."""
    limits = Limits(body="32MiB")
    assert room_for_bodies(limits, 1, lambda: 16 << 30) == 1 << 30
    assert room_for_bodies(limits, 4, lambda: 16 << 30) == 256 << 20
    assert room_for_bodies(limits, 1, lambda: 500 << 20) == 32 << 20
    assert room_for_bodies(Limits(body="1MiB", bodies="2MiB"), 4) == 2 << 20


MIB = 1 << 20


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A machine of 8 GiB, 1 GiB of it to be had; this process holds a third of a GiB."""
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text("MemTotal: 8388608 kB\nMemFree: 100 kB\nMemAvailable: 1048576 kB\n")
    (folder / "self/statm").write_text(f"1 {1024 * MIB // 3 // os.sysconf('SC_PAGE_SIZE')} 1 1 0 1 0\n")
    (folder / "self/cgroup").write_text("0::/\n")
    return folder


def group(folder: Path, limit: object, used: int, idle: int, *, old: bool = False) -> None:
    """A control group as the kernel shows it; sizes in MiB, and `limit` in bytes or a word."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if old else ("memory.max", "memory.current")
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used * MIB}\n")
    stat = "inactive_file 1\ntotal_inactive_file" if old else "anon 1\ninactive_file"
    (folder / "memory.stat").write_text(f"{stat} {idle * MIB}\n")


def test_without_a_limit_only_what_it_holds_counts(proc: Path, tmp_path: Path) -> None:
    """Of what it holds and what there is yet to be had; what others hold is not its fault."""
    assert used_share(proc, tmp_path / "none")() == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("old", [False, True], ids=["v2", "v1"])
def test_the_groups_working_set_over_its_limit(proc: Path, tmp_path: Path, old: bool) -> None:
    """Cached files that the kernel may take back do not count."""
    groups = tmp_path / "groups"
    (proc / "self/cgroup").write_text("7:cpu:/x\n4:memory:/pod/box\n" if old else "0::/pod/box\n")
    folder = groups / "memory/pod/box" if old else groups / "pod/box"
    group(folder, 1024 * MIB, used=900, idle=132, old=old)
    share = used_share(proc, groups)
    assert share() == 0.75
    group(folder, 1024 * MIB, used=1024, idle=0, old=old)
    assert share() == 1.0


def test_a_parents_limit_counts_too(proc: Path, tmp_path: Path) -> None:
    """The group that is nearest to its limit decides."""
    groups = tmp_path / "groups"
    (proc / "self/cgroup").write_text("0::/pod/box\n")
    group(groups / "pod/box", 1024 * MIB, used=512, idle=0)
    group(groups / "pod", 1000 * MIB, used=900, idle=0)
    assert used_share(proc, groups)() == 0.9


def test_in_a_container_its_own_folder_is_the_root(proc: Path, tmp_path: Path) -> None:
    """Where the path that the process is told is the host's, and not to be found."""
    groups = tmp_path / "groups"
    (proc / "self/cgroup").write_text("0::/../pods/box\n")
    group(groups, 1024 * MIB, used=256, idle=0)
    assert used_share(proc, groups)() == 0.25


@pytest.mark.parametrize("limit", ["max", 9223372036854771712])
def test_a_limit_beyond_the_machine_is_none(proc: Path, tmp_path: Path, limit: object) -> None:
    """Then the machine is what there is."""
    groups = tmp_path / "groups"
    group(groups, limit, used=4000, idle=0)
    assert used_share(proc, groups)() == pytest.approx(0.25, abs=0.01)


def test_where_nothing_can_be_told_nothing_is_short(tmp_path: Path) -> None:
    """A kernel that shows none of this is not one to turn requests away for."""
    assert used_share(tmp_path / "none", tmp_path / "none")() == 0.0
