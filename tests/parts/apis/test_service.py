"""Calls of a service, over real sockets: which are repeated, and what becomes of bodies that are streamed to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.backends.base import BadStatus, TimedOut, Truncated, Unreachable
from gateway.backends.http1_transport import Http1Transport
from gateway.parts.apis.service import ServiceClient
from tests.support.raw_upstream import raw_upstream

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


@asynccontextmanager
async def client_at(url: str, idle_timeout_s: float = 5.0) -> AsyncIterator[ServiceClient]:
    """A client of the service there."""
    client = ServiceClient(
        url, "sk-x", max_in_flight=2, max_reply=1 << 20, connect_timeout_s=2, idle_timeout_s=idle_timeout_s
    )
    try:
        yield client
    finally:
        await client.aclose()


async def answer_of(client: ServiceClient, method: str, body: bytes | AsyncIterator[bytes] | None = None) -> bytes:
    """The reply to one call."""
    reply = await client.send(method, "/files", {}, body)
    try:
        return await reply.read()
    finally:
        reply.close()


@pytest.mark.parametrize(("method", "repeated"), [("GET", True), ("DELETE", True), ("POST", False)])
async def test_what_is_repeated_on_a_new_connection(method: str, repeated: bool) -> None:
    """A request that meets the end of a kept connection is sent again, unless it may make a thing twice."""
    with raw_upstream(WHOLE, keep_open=True, answers=1) as server:
        async with client_at(server.url) as client:
            body = b"{}" if method == "POST" else None
            assert await answer_of(client, method, body) == b"hi"
            if repeated:
                assert await answer_of(client, method, body) == b"hi"
            else:
                with pytest.raises(Unreachable):
                    await answer_of(client, method, body)
            for _ in range(3):  # and its place is free
                assert await answer_of(client, "GET") == b"hi"


async def test_a_refusal_before_the_end_of_an_upload() -> None:
    """Is the reply at once; what is left of the body is not waited for, and no more of it is read."""
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield b"x" * 65536
            await asyncio.sleep(0)

    reply = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno"
    with raw_upstream(reply, reads_body=False) as server:
        async with client_at(server.url) as client:
            for _ in range(2):
                async with asyncio.timeout(3):
                    with pytest.raises(BadStatus) as refused:
                        await client.send("POST", "/files", {}, endless())
                assert (refused.value.status, refused.value.body) == (413, b"no")
            before = read
            await asyncio.sleep(0.05)
            assert read == before
            assert server.connections == 2


async def test_a_service_that_does_not_read_an_upload() -> None:
    """Holds the client up, but for what sockets hold, until its time is over."""
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield b"x" * 65536

    with raw_upstream(10.0, reads_body=False) as server:
        async with client_at(server.url, idle_timeout_s=0.3) as client:
            with pytest.raises(TimedOut):
                await client.send("POST", "/files", {}, endless())
            assert read * 65536 < 48 << 20


async def test_what_a_body_raises_ends_its_call() -> None:
    """Is raised to the caller, and the service sees the connection end."""

    async def broken() -> AsyncIterator[bytes]:
        yield b"one"
        raise ZeroDivisionError

    with raw_upstream(10.0) as server:
        async with client_at(server.url) as client:
            for _ in range(3):  # of two places
                with pytest.raises(ZeroDivisionError):
                    await client.send("POST", "/files", {}, broken())


async def test_a_reply_that_breaks_off_is_truncated() -> None:
    """Not a shorter one."""
    with raw_upstream(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi") as server:
        async with client_at(server.url) as client:
            with pytest.raises(Truncated):
                await answer_of(client, "GET")


@pytest.mark.parametrize(
    ("url", "line", "host"),
    [
        ("http://localhost/v1", b"GET /v1/x?a=%20b HTTP/1.1", b"Host: localhost"),
        ("https://localhost:443/v1", b"GET /v1/x?a=%20b HTTP/1.1", b"Host: localhost"),
        ("https://[::1]:8443", b"GET /x?a=%20b HTTP/1.1", b"Host: [::1]:8443"),
        ("http://bücher.example:80/ö/v1", b"GET /%C3%B6/v1/x?a=%20b HTTP/1.1", b"Host: xn--bcher-kva.example"),
        ("http://localhost:81/a%2Fb", b"GET /a%2Fb/x?a=%20b HTTP/1.1", b"Host: localhost:81"),
    ],
)
def test_the_first_lines_of_a_request(url: str, line: bytes, host: bytes) -> None:
    """The path as the config has it, with what follows as it came; the host as a server expects it."""
    transport = Http1Transport(url, max_in_flight=1, connect_timeout_s=1, max_reply=1)
    assert transport.head("GET", "/x?a=%20b", {"X-One": "1"}).split(b"\r\n") == [line, host, b"X-One: 1"]
