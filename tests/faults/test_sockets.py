"""WebSockets as an entrance (the row C24): they meet the checks of requests, and keep nobody else out."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode

from gateway.config.launch import Launch
from gateway.parts.apis.routes import response_socket
from gateway.server.listeners import bound
from gateway.server.server import built, server_of
from tests.parts.access.keys.conftest import WHY, minted, registry, server, store
from tests.support.gateway import CHAT, Gateway, config, serve, write_deployment
from tests.support.ports import free_port
from tests.support.store import LocalStore
from tests.support.upstream import Reply, Upstream
from tests.support.wait import until

__all__ = ["registry", "server", "store"]
Json = dict[str, Any]
ENDS = ("response.completed", "response.failed", "error")
UNIT = 128 << 10
"""Bytes; more than is left uncounted."""
LONG = Reply(text=" ".join(["word"] * 600), between_s=0.1)


def open_socket(gateway: Gateway, key: str = "", **more: Any) -> connect:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return connect(gateway.url.replace("http", "ws") + "/responses", additional_headers=headers, **more)


async def ask(connection: ClientConnection, text: str = "hello", **body: Any) -> None:
    await connection.send(json.dumps({"type": "response.create", "model": "chat", "input": text, **body}))


async def last_of(connection: ClientConnection) -> Json:
    """The event that ends the answer under way."""
    while True:
        event: Json = json.loads(await asyncio.wait_for(connection.recv(), 60))
        if event["type"] in ENDS:
            return event


async def end_of(connection: ClientConnection) -> tuple[Json, int]:
    """The connection's last event, and its close code."""
    event: Json = {}
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            event = json.loads(await asyncio.wait_for(connection.recv(), 60))
    assert closed.value.rcvd is not None
    return event, closed.value.rcvd.code


def status(gateway: Gateway, key: str = "", *, body: int = 0) -> int:
    """The status of a request, of so many bytes more than it needs."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    asked = {"model": "chat", "messages": [{"role": "user", "content": "hi" + "a" * body}]}
    return httpx2.post(f"{gateway.url}/chat/completions", json=asked, headers=headers, timeout=60).status_code


async def refused(gateway: Gateway, key: str = "") -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as told:
        await open_socket(gateway, key).__aenter__()
    response = told.value.response
    return response.status_code, json.loads(response.body or b"")["error"]["code"]


TENANTS = {
    "tenants": {
        "slow": {"key_env": "KEY_SLOW", "limits": {"requests_per_minute": 1}},
        "free": {"key_env": "KEY_FREE"},
        "other": {"key_env": "KEY_OTHER"},
    }
}
KEYS = {"KEY_SLOW": "key-of-slow", "KEY_FREE": "key-of-free", "KEY_OTHER": "key-of-other"}


async def test_a_handshake_counts_as_the_first_request_of_its_connection(
    tmp_path: Path, local_upstream: Upstream
) -> None:
    """So a key of one request a minute has one connection and one answer in it, not a hundred connections."""
    with serve(tmp_path, local_upstream.url, settings=TENANTS, env=KEYS) as gateway:
        async with open_socket(gateway, "key-of-slow") as connection:
            for _ in range(20):
                assert await refused(gateway, "key-of-slow") == (429, "rate_limit_exceeded")
            await ask(connection)
            assert (await last_of(connection))["type"] == "response.completed"
            await ask(connection)
            over = await last_of(connection)
            assert (over["status"], over["error"]["code"]) == (429, "rate_limit_exceeded")
            assert status(gateway, "key-of-slow") == 429
            assert status(gateway, "key-of-other") == 200


async def test_a_key_has_so_many_connections(tmp_path: Path, local_upstream: Upstream) -> None:
    """One more is refused until one is closed; another key has its own."""
    settings = {**TENANTS, "limits": {"sockets": 3}}
    with serve(tmp_path, local_upstream.url, settings=settings, env=KEYS) as gateway:
        async with AsyncExitStack() as held:
            mine = [await held.enter_async_context(open_socket(gateway, "key-of-free")) for _ in range(3)]
            assert await refused(gateway, "key-of-free") == (429, "rate_limit_exceeded")
            await held.enter_async_context(open_socket(gateway, "key-of-other"))
            await mine[0].close()
            async with asyncio.timeout(5):
                while True:
                    try:
                        await held.enter_async_context(open_socket(gateway, "key-of-free"))
                        break
                    except InvalidStatus:
                        await asyncio.sleep(0.05)
            assert await refused(gateway, "key-of-free") == (429, "rate_limit_exceeded")


async def test_silent_connections_keep_nobody_out(tmp_path: Path, local_upstream: Upstream) -> None:
    """Sockets take half of the places at most, and those that rest give way to whoever comes."""
    port = free_port()
    settings = {
        "limits": {"connections": 20},
        "admin": {"port": port, "key_env": "ADMIN_KEY"},
    }
    with serve(tmp_path, local_upstream.url, settings=settings, env={"ADMIN_KEY": "admin-key-of-tests"}) as gateway:
        async with AsyncExitStack() as held:
            for _ in range(10):
                await held.enter_async_context(open_socket(gateway))
            assert await refused(gateway) == (503, "server_is_overloaded")
            for _ in range(30):
                assert await asyncio.to_thread(status, gateway) == 200
            assert await asyncio.to_thread(probe, gateway.port, "/healthz") == 200
            assert await asyncio.to_thread(probe, port, "/admin/keys") == 401
            clients = [httpx2.Client() for _ in range(15)]  # they keep their connections
            try:
                for client in clients:
                    client.get(f"{gateway.origin}/healthz")
                stay = [httpx2.Client() for _ in range(5)]
                for client in stay:
                    assert client.get(f"{gateway.origin}/healthz").status_code == 200
                clients += stay
            finally:
                for client in clients:
                    client.close()


async def test_a_connection_that_waits_for_its_client_makes_room(tmp_path: Path, local_upstream: Upstream) -> None:
    """Where all others are busy the one that rests the longest ends for a newcomer, and says why."""
    local_upstream.queue(Reply(before_first_s=8.0), Reply(before_first_s=8.0))
    with serve(tmp_path, local_upstream.url, settings={"limits": {"connections": 4}}) as gateway:
        async with open_socket(gateway) as first, open_socket(gateway) as second:
            busy = [asyncio.create_task(asyncio.to_thread(status, gateway, body=number)) for number in (1, 2)]
            await asyncio.to_thread(local_upstream.wait_for, 2)
            assert await asyncio.to_thread(status, gateway) == 200
            event, code = await end_of(first)
            assert (event["status"], code) == (503, CloseCode.TRY_AGAIN_LATER)
            await ask(second)
            assert (await last_of(second))["type"] == "response.completed"
            assert await asyncio.gather(*busy) == [200, 200]


def probe(port: int, path: str) -> int:
    return httpx2.get(f"http://127.0.0.1:{port}{path}", timeout=60).status_code


def test_places_are_kept_back_for_the_admin_port_and_for_probes(tmp_path: Path, local_upstream: Upstream) -> None:
    """While every connection is busy a probe is answered, and so is the admin port; another request gets 503."""
    port = free_port()
    settings = {"limits": {"connections": 8}, "admin": {"port": port, "key_env": "ADMIN_KEY"}}
    local_upstream.default = LONG
    with serve(tmp_path, local_upstream.url, settings=settings, env={"ADMIN_KEY": "admin-key-of-tests"}) as gateway:
        with ExitStack() as held:
            for number in range(8):
                busy = held.enter_context(socket.create_connection(("127.0.0.1", gateway.port), 10))
                text = json.dumps(
                    {"model": "chat", "stream": True, "seed": number, "messages": [{"role": "user", "content": "hi"}]}
                )
                busy.sendall(
                    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                )
                busy.sendall(b"content-length: %d\r\n\r\n%b" % (len(text), text.encode()))
            until(lambda: local_upstream.in_flight == 8, 10, "busy connections")
            silent = [held.enter_context(socket.create_connection(("127.0.0.1", gateway.port), 10)) for _ in range(30)]
            for path in ("/healthz", "/readyz", "/metrics"):
                assert probe(gateway.port, path) == 200
            assert status(gateway) == 503
            assert probe(port, "/admin/keys") == 401
            assert len(silent) == 30
        until(lambda: status_or_0(gateway) == 200, 10, "room again")


def status_or_0(gateway: Gateway) -> int:
    try:
        return status(gateway)
    except httpx2.HTTPError:
        return 0


def nothing_is_answered(gateway: Gateway) -> bool:
    """Return whether no request is in hand: its client has the answer a moment before it is over."""
    return "\ntierline_in_flight 0.0\n" in httpx2.get(f"{gateway.origin}/metrics", timeout=20).text


@pytest.mark.parametrize("fragments", [False, True], ids=["whole", "fragments"])
async def test_messages_that_wait_count_among_the_bodies(
    tmp_path: Path, local_upstream: Upstream, fragments: bool
) -> None:
    """A connection holds no more than its key's share; then it ends, and others' bodies have had room meanwhile."""
    settings = {**TENANTS, "limits": {"body": "256KiB", "bodies": "768KiB"}}
    with serve(tmp_path, local_upstream.url, settings=settings, env=KEYS) as gateway:
        local_upstream.queue(LONG)
        async with open_socket(gateway, "key-of-free") as connection, open_socket(gateway, "key-of-free") as second:
            await ask(connection)
            await asyncio.to_thread(local_upstream.wait_for, 1)
            message = json.dumps({"type": "response.create", "model": "chat", "input": "a" * (UNIT + UNIT // 2)})
            for held in (connection, second):
                for _ in range(2):
                    try:
                        await held.send([message[:UNIT], message[UNIT:]] if fragments else message)
                    except ConnectionClosed:
                        break
            assert await asyncio.to_thread(lambda: status(gateway, "key-of-other", body=UNIT)) == 200
            event, code = await end_of(second)
            assert (event["type"], event["status"], code) == ("error", 429, CloseCode.TRY_AGAIN_LATER)
            assert "limits.bodies" in event["error"]["message"]
        async with asyncio.timeout(20):
            while await asyncio.to_thread(lambda: status(gateway, "key-of-free", body=2 * UNIT - 500)) != 200:
                await asyncio.sleep(0.1)


async def test_a_message_that_never_ends_counts_too(tmp_path: Path, local_upstream: Upstream) -> None:
    """What has come of one in pieces holds room as a whole one does, and gives it back with its connection."""
    settings = {**TENANTS, "limits": {"body": "256KiB", "bodies": "512KiB"}}
    with serve(tmp_path, local_upstream.url, settings=settings, env=KEYS) as gateway:
        async with AsyncExitStack() as stack:
            held = [await stack.enter_async_context(open_socket(gateway, "key-of-free")) for _ in range(4)]

            async def begin(connection: ClientConnection) -> None:
                async def pieces() -> Any:
                    for _ in range(20):
                        yield "a" * (UNIT // 16)
                    await asyncio.sleep(60)

                await connection.send(pieces())

            begun = [asyncio.create_task(begin(one)) for one in held]
            ended = [asyncio.create_task(end_of(one)) for one in held]
            done, _ = await asyncio.wait(ended, timeout=30, return_when=asyncio.FIRST_COMPLETED)
            assert {task.result()[1] for task in done} == {CloseCode.TRY_AGAIN_LATER}
            assert await asyncio.to_thread(lambda: status(gateway, "key-of-other", body=UNIT)) == 200
            for task in (*begun, *ended):
                task.cancel()
            await asyncio.gather(*begun, *ended, return_exceptions=True)
        async with asyncio.timeout(20):
            while await asyncio.to_thread(lambda: status(gateway, "key-of-free", body=2 * UNIT - 500)) != 200:
                await asyncio.sleep(0.1)


async def test_an_answered_message_holds_nothing(tmp_path: Path, local_upstream: Upstream) -> None:
    """A connection that has answered a large message, and goes on, leaves its room to others."""
    settings = {"limits": {"body": "256KiB", "bodies": "512KiB"}}
    with serve(tmp_path, local_upstream.url, settings=settings) as gateway:
        async with open_socket(gateway) as connection:
            for _ in range(3):
                await ask(connection, "a" * (UNIT + UNIT // 2))  # remembered too: nothing is kept here
                assert (await last_of(connection))["type"] == "response.completed"
                async with asyncio.timeout(20):
                    while await asyncio.to_thread(lambda: status(gateway, body=UNIT + UNIT // 2)) != 200:
                        await asyncio.sleep(0.1)
                await asyncio.to_thread(lambda: until(lambda: nothing_is_answered(gateway)))


async def test_what_is_remembered_of_a_connection_counts_or_is_forgotten(
    tmp_path: Path, local_upstream: Upstream
) -> None:
    """Without room for it the next request has to bring the whole conversation."""
    settings = {"limits": {"body": "256KiB", "bodies": "256KiB"}}
    with serve(tmp_path, local_upstream.url, settings=settings) as gateway:
        async with open_socket(gateway, max_size=None) as first, open_socket(gateway, max_size=None) as second:
            ids = []
            for connection in (first, second):
                local_upstream.queue(Reply(text="a" * (160 << 10)))
                await ask(connection, "write", store=False)
                ids.append((await last_of(connection))["response"]["id"])
            assert await asyncio.to_thread(lambda: status(gateway, body=128 << 10)) == 503
            await ask(first, "go on", store=False, previous_response_id=ids[0])
            assert (await last_of(first))["type"] == "response.completed"
            await ask(second, "go on", store=False, previous_response_id=ids[1])
            assert (await last_of(second))["error"]["code"] == "previous_response_not_found"


async def test_events_that_nobody_reads_end_their_request(tmp_path: Path, local_upstream: Upstream) -> None:
    """After `limits.stall` the connection is cut off, and the backend's call has ended."""
    local_upstream.queue(Reply(text=" ".join(["word" * 5000] * 4000), between_s=0.001))
    with serve(tmp_path, local_upstream.url, settings={"limits": {"stall": "1s"}}) as gateway:
        url = ("127.0.0.1", gateway.port)
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(url)
            deaf.sendall(
                b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
            assert deaf.recv(12) == b"HTTP/1.1 101"
            text = json.dumps({"type": "response.create", "model": "chat", "input": "hi"}).encode()
            deaf.sendall(bytes((0x81, 0x80 | len(text))) + bytes(4) + text)
            await asyncio.to_thread(local_upstream.wait_for, 1)
            async with asyncio.timeout(30):  # most of it until all buffers are full
                while local_upstream.in_flight:
                    await asyncio.sleep(0.02)
            await asyncio.sleep(2.5)
            ends = time.monotonic() + 10  # long before a ping would find out
            with pytest.raises(OSError):
                while time.monotonic() < ends:
                    deaf.sendall(b"\x81\x80" + bytes(4))
                    await asyncio.sleep(0.05)


@pytest.mark.parametrize("frame", ["", b""], ids=["text", "binary"])
async def test_an_empty_message_is_refused(tmp_path: Path, local_upstream: Upstream, frame: str | bytes) -> None:
    """As an empty body is; the connection goes on."""
    with serve(tmp_path, local_upstream.url) as gateway:
        async with open_socket(gateway) as connection:
            await connection.send(frame)
            event = await last_of(connection)
            assert (event["type"], event["status"], event["error"]["code"]) == ("error", 400, "invalid_json")
            await ask(connection)
            assert (await last_of(connection))["type"] == "response.completed"


async def test_a_revoked_key_ends_its_connections(
    tmp_path: Path, local_upstream: Upstream, server: LocalStore, registry: Any
) -> None:
    """One that is idle at once, and one with an answer under way after it; another key's goes on."""
    key, record = minted()
    await registry.create(record, WHY)
    other, second = minted()
    await registry.create(second, WHY)
    settings = {"keys": {"required": True}, "embedding": {"state": str(tmp_path / "state")}}
    with serve(
        tmp_path, local_upstream.url, store_url=server.url, policies={"chat": CHAT}, settings=settings
    ) as gateway:
        async with (
            open_socket(gateway, key) as idle,
            open_socket(gateway, key) as busy,
            open_socket(gateway, other) as others,
        ):
            local_upstream.queue(Reply(text="one two three four five", between_s=0.5))
            await ask(busy)
            await asyncio.to_thread(local_upstream.wait_for, 1)
            await registry.update(record, WHY, state="revoked")
            event, code = await end_of(idle)
            assert (event["type"], event["status"], code) == ("error", 401, CloseCode.POLICY_VIOLATION)
            assert (await last_of(busy))["type"] == "response.completed"
            event, code = await end_of(busy)
            assert (event["error"]["code"], code) == ("invalid_api_key", CloseCode.POLICY_VIOLATION)
            await ask(others)
            assert (await last_of(others))["type"] == "response.completed"


@pytest.fixture
def in_thread(tmp_path: Path, local_upstream: Upstream) -> Iterator[Gateway]:
    """A gateway in a thread of this process."""
    write_deployment(tmp_path, config(local_upstream.url, None))
    launch = Launch(config=tmp_path / "tierline.yaml", policies=tmp_path / "policies")
    listening = bound("127.0.0.1", 0)
    running = server_of(built(launch, launch.deployment({})))
    thread = threading.Thread(target=running.run, args=([listening],))
    thread.start()
    try:
        until(lambda: running.started, 20, "the server")
        process: Any = None
        yield Gateway(listening.getsockname()[1], tmp_path, process)
    finally:
        running.should_exit = True
        thread.join(30)


async def test_an_idle_connection_ends_in_time(in_thread: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_socket, "_IDLE_S", 0.5)
    async with open_socket(in_thread) as connection:
        await ask(connection)
        assert (await last_of(connection))["type"] == "response.completed"
        event, code = await end_of(connection)
        assert (event["error"]["code"], code) == ("websocket_connection_limit_reached", CloseCode.NORMAL_CLOSURE)
