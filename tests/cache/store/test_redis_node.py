"""The rules of one server: which failures its breaker counts, what stops writes alone, and what ends a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cache.store import resp
from cache.store.base import StoreUnavailable
from cache.store.redis_node import Moved, Node
from cache.store.redis_nodes import Dialler
from tests.support.redis_script import scripted_redis
from tests.support.store import UNHURRIED
from tests.support.wait import eventually

PING = resp.command(b"PING")
FAILURES = 5
"""So many in a row open the breaker."""


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def node_at(url: str, clock: Clock | None = None) -> AsyncIterator[tuple[Node, list[str]]]:
    """A node there, and a word for each time that it was in trouble."""
    troubles: list[str] = []
    dialler = Dialler(url, clock or Clock(), UNHURRIED)
    node = dialler.first(lambda: troubles.append("trouble"))
    yield node, troubles
    await node.aclose()
    await dialler.aclose()


async def reason_of(node: Node) -> str:
    """Why one request fails; '' if it does not."""
    try:
        await node.request(PING, 1, 0.02)
    except StoreUnavailable as failure:
        return failure.reason
    return ""


@pytest.mark.parametrize(
    ("reply", "reason", "counts"),
    [
        (b"-LOADING the dataset\r\n", "loading", True),
        (b"-MASTERDOWN no link\r\n", "masterdown", True),
        (b"-CLUSTERDOWN no slot\r\n", "clusterdown", True),
        (b"-READONLY a replica\r\n", "readonly", True),
        (b"-NOAUTH who is it\r\n", "auth", True),
        (b"-NOPERM not you\r\n", "auth", True),
        (b"-ERR something\r\n", "error", True),
        (b"nothing like RESP\r\n", "error", True),
        (b"-OOM memory\r\n", "full", False),
        (b"-MISCONF disk\r\n", "disk", False),
        (b"-WRONGTYPE a list\r\n", "wrong_type", False),
        (b"-TRYAGAIN it moves\r\n", "moved", False),
    ],
)
async def test_what_the_breaker_counts(reply: bytes, reason: str, counts: bool) -> None:
    """Five failures of the server open it, after which nothing is sent; what is no fault of it never does."""
    async with scripted_redis(reply) as server, node_at(server.url) as (node, troubles):
        assert [await reason_of(node) for _ in range(FAILURES)] == [reason] * FAILURES
        assert await reason_of(node) == ("open" if counts else reason)
        assert len(troubles) == (FAILURES if counts else 0)
        assert node.state().status == ("degraded" if counts or reason in ("full", "disk") else "ok")


async def test_a_success_in_between_starts_the_count_anew() -> None:
    """Four failures, an answer and four failures leave it closed."""
    async with scripted_redis(b"-LOADING\r\n") as server, node_at(server.url) as (node, _):
        for _ in range(2):
            server.reply = b"-LOADING\r\n"
            assert [await reason_of(node) for _ in range(FAILURES - 1)] == ["loading"] * (FAILURES - 1)
            server.reply = b"+PONG\r\n"
            assert await reason_of(node) == ""
        assert node.state().status == "ok"


async def test_an_open_breaker_lets_through_what_no_request_waits_for() -> None:
    """And closes when a probe of its own is answered."""
    clock = Clock()
    async with scripted_redis(b"-LOADING\r\n") as server, node_at(server.url, clock) as (node, _):
        for _ in range(FAILURES):
            await reason_of(node)
        server.reply = b"+PONG\r\n"
        assert await node.uncounted(PING, 1, 1.0) == [b"PONG"]
        assert (node.state().status, node.state().reason) == ("degraded", "loading")
        clock.now_s += 1
        await eventually(lambda: node.state().status == "ok", 5, "the probe")
        assert await reason_of(node) == ""


@pytest.mark.parametrize("reply", [b"-OOM memory\r\n", b"-MISCONF disk\r\n"])
async def test_a_refused_write_stops_writes_for_30_seconds(reply: bytes) -> None:
    """Unless one is taken before; reads go on, and a health check that is refused so is no failure."""
    clock = Clock()
    async with scripted_redis(reply) as server, node_at(server.url, clock) as (node, troubles):
        reason = await reason_of(node)
        assert node.rest == reason
        clock.now_s += 29
        assert node.rest == reason
        clock.now_s += 2
        assert node.rest == ""
        await node.ping()
        assert (node.rest, node.state().reason, troubles) == (reason, reason, [])
        node.wrote()
        assert (node.rest, node.state().status) == ("", "ok")


async def test_a_failed_health_check_opens_it_at_once() -> None:
    """The first of them, and an answered one closes it."""
    async with scripted_redis(b"-LOADING\r\n") as server, node_at(server.url) as (node, troubles):
        with pytest.raises(StoreUnavailable):
            await node.ping()
        assert await reason_of(node) == "open"
        assert troubles == ["trouble"]
        server.reply = b"+PONG\r\n"
        await node.ping()
        assert await reason_of(node) == ""


async def test_a_refusal_of_an_optional_command_is_returned() -> None:
    """Others of the same exchange are raised."""
    async with scripted_redis(b"-ERR unknown command\r\n") as server, node_at(server.url) as (node, _):
        (refused,) = await node.request(PING, 1, 0.02, {0})
        assert "unknown command" in str(refused)
        with pytest.raises(StoreUnavailable):
            await node.request(PING + PING, 2, 0.02, {0})
        server.reply = b"-LOADING\r\n"  # which is no refusal of this command
        with pytest.raises(StoreUnavailable):
            await node.request(PING, 1, 0.02, {0})


@pytest.mark.parametrize(
    ("reply", "moved"),
    [
        (b"-MOVED 7 10.0.0.1:7000\r\n", Moved(7, "10.0.0.1", 7000, asking=False)),
        (b"-ASK 8 :7001\r\n", Moved(8, "", 7001, asking=True)),
    ],
)
async def test_a_redirection_is_a_reply(reply: bytes, moved: Moved) -> None:
    """With the node that it names; nothing has failed."""
    async with scripted_redis(reply) as server, node_at(server.url) as (node, troubles):
        assert await node.request(PING, 1, 0.02) == [moved]
        assert not troubles


@pytest.mark.parametrize(
    "reply", [b"+PONG\r\n+PONG\r\n", b"-READONLY a replica\r\n"], ids=["one too many", "a replica"]
)
async def test_what_ends_a_connection(reply: bytes) -> None:
    """A reply that nobody asked for would be the next request's, and a replica is not at its master's address."""
    async with scripted_redis(reply) as server, node_at(server.url) as (node, _):
        for _ in range(2):
            await reason_of(node)
            await asyncio.sleep(0.02)
        assert server.connections == 2


async def test_a_request_that_is_too_late_ends_its_connection() -> None:
    """And one in time keeps it."""
    async with scripted_redis(b"+PONG\r\n") as server, node_at(server.url) as (node, _):
        for _ in range(3):
            assert await reason_of(node) == ""
        assert server.connections == 1
        server.delay_s = 5.0
        with pytest.raises(StoreUnavailable) as late:
            await node.request(PING, 1, 0.05 / UNHURRIED)
        assert late.value.reason == "timeout"
        server.delay_s = 0.0
        assert await reason_of(node) == ""
        assert server.connections == 2
