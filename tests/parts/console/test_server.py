"""The console's listener, over real sockets: what it refuses, and for how long it waits."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from cache.store.redis_store import RedisStore
from gateway.parts.console.config import ConsoleConfig
from gateway.parts.console.server import CannotServeConsole, gateway_of, serve_console
from gateway.server import connection_limits
from tests.gateway.telemetry.conftest import server, store
from tests.parts.console.test_app import places
from tests.support.wait import SLACK

__all__ = ["server", "store"]

GET = b"GET /requests?since=all HTTP/1.1\r\nhost: 127.0.0.1\r\n"


@contextlib.asynccontextmanager
async def listening(folder: Path, store: RedisStore, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[int]:
    """A console with the key `editor-key`; yield its port."""
    config = ConsoleConfig(port=0, key_env="KEY")
    task = asyncio.create_task(
        serve_console(
            replace(places(folder, store), store_url=f"redis://{str(store)[11:-1]}"), config, {"KEY": "editor-key"}
        )
    )
    out = ""
    while (found := re.search(r"http://127\.0\.0\.1:(\d+)", out)) is None:
        await asyncio.sleep(0.02)
        out += capsys.readouterr().out
        assert not task.done(), task.exception()
    try:
        yield int(found[1])
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def asked(port: int, data: bytes) -> bytes:
    """Send bytes, and return all that comes until the console closes or ten seconds have passed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
        async with asyncio.timeout(10 * SLACK):
            with contextlib.suppress(ConnectionError):
                return await reader.read()
        return b""
    finally:
        writer.close()


def form(key: str, more: bytes = b"") -> bytes:
    body = b"key=" + key.encode()
    head = b"POST /sign-in HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/x-www-form-urlencoded\r\n"
    return head + b"connection: close\r\ncontent-length: %d\r\n%b\r\n" % (len(body), more) + body


async def test_heads_are_limited(store: RedisStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A header of megabytes is refused as it arrives, and so are many headers, long addresses and two keys."""
    async with listening(tmp_path, store, capsys) as port:
        refused = {
            b"x-large: " + b"a" * (30 << 20) + b"\r\n\r\n": b" 431 ",
            b"".join(b"x-%d: 1\r\n" % number for number in range(200)) + b"\r\n": b" 431 ",
            b"authorization: Bearer editor-key\r\nauthorization: Bearer other\r\n\r\n": b" 400 ",
        }
        for rest, status in refused.items():
            assert status in (await asked(port, GET + rest))[:16], rest[:40]
        assert b" 414 " in (await asked(port, b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n\r\n"))[:16]


async def test_half_a_request_is_not_waited_for(
    store: RedisStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three hundred half heads and half bodies are refused in time, while others are served."""
    monkeypatch.setattr(connection_limits, "SLOW_S", 0.5)
    async with listening(tmp_path, store, capsys) as port:
        halves = [GET, form("editor-key")[:-3]] * 150
        waiting = [asyncio.create_task(asked(port, half)) for half in halves]
        await asyncio.sleep(0.1)
        assert b" 200 " in (await asked(port, b"GET /healthz HTTP/1.0\r\n\r\n"))[:16]
        assert {reply[:13] for reply in await asyncio.gather(*waiting)} == {b"HTTP/1.1 408 "}


async def test_connections_are_limited(store: RedisStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A new connection takes the place of the silent one that has waited longest."""
    async with listening(tmp_path, store, capsys) as port:
        sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(600)]
        try:
            assert b" 200 " in (await asked(port, b"GET /healthz HTTP/1.0\r\n\r\n"))[:16]
            for one in sockets:
                one.setblocking(False)
            closed = 0
            for one in sockets:
                with contextlib.suppress(BlockingIOError):
                    closed += one.recv(1) == b""
            assert closed >= 600 - 512
        finally:
            for one in sockets:
                one.close()


async def test_cookies_bodies_and_keys_of_any_kind(
    store: RedisStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No cookie makes an error, forms have a limit, ten wrong keys are enough, and signing out ends a cookie."""
    async with listening(tmp_path, store, capsys) as port:
        close = b"connection: close\r\n"
        for value in (b"2." + b"9" * 4400 + b".x", b"\xb2.\xb2.\xb2", b"\xff\xfe", b'"', b";;=;", b"a" * 8000):
            reply = await asked(port, GET + close + b"cookie: tierline-console=" + value + b"\r\n\r\n")
            assert b" 303 " in reply[:16], value
        assert b" 413 " in (await asked(port, form("a" * 100_000)))[:16]

        signed = await asked(port, form("editor-key"))
        cookie = re.search(rb"set-cookie: (tierline-console=[^;]+)", signed)
        assert b" 303 " in signed[:16] and cookie is not None
        session = b"cookie: " + cookie[1] + b"\r\n"
        assert b" 200 " in (await asked(port, GET + close + session + b"\r\n"))[:16]
        out = b"POST /sign-out HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\n" + close + session
        assert b" 303 " in (await asked(port, out + b"\r\n"))[:16]
        assert b"location: /sign-in" in await asked(port, GET + close + session + b"\r\n")

        again = await asked(port, form("editor-key"))
        for number in range(10):
            assert b" 401 " in (await asked(port, form(f"wrong-{number}")))[:16]
        for refused in (form("wrong"), GET + close + b"authorization: Bearer wrong\r\n\r\n"):
            reply = await asked(port, refused)
            assert b" 429 " in reply[:16] and re.search(rb"retry-after: [1-9]", reply)
        assert b" 303 " in (await asked(port, form("editor-key")))[:16]
        assert b" 200 " in (await asked(port, GET + close + b"authorization: Bearer editor-key\r\n\r\n"))[:16]
        cookie = re.search(rb"set-cookie: (tierline-console=[^;]+)", again)
        assert cookie is not None
        assert b" 200 " in (await asked(port, GET + close + b"cookie: " + cookie[1] + b"\r\n\r\n"))[:16]


def test_a_key_that_is_named_has_to_be_set() -> None:
    with pytest.raises(CannotServeConsole, match="ASK_KEY is not set"):
        gateway_of(ConsoleConfig(gateway="http://127.0.0.1:8787", gateway_key_env="ASK_KEY"), {})
    assert gateway_of(ConsoleConfig(), {}) is None
