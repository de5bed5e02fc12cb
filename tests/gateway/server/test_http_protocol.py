"""The replies of the HTTP protocol: how many writes they take, and what they refuse to send."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from gateway.request.load_shedding import LoadShedder
from gateway.server.connection_limits import ConnectionLimits
from gateway.server.http_protocol import HttpProtocol, ReplyCycle

Headers = list[tuple[bytes, bytes]]


class _Written:
    """Stands for a socket's transport, and keeps each write apart."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def _cycle(transport: Any, method: str = "POST", *, keep_alive: bool = True) -> ReplyCycle:
    return ReplyCycle(
        scope={"method": method},  # type: ignore[typeddict-item]
        transport=transport,
        flow=FlowControl(transport),
        logger=logging.getLogger(),
        access_logger=logging.getLogger(),
        access_log=False,
        default_headers=[(b"date", b"today")],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=keep_alive,
        on_response=lambda: None,
    )


def _replied(*messages: Any, method: str = "POST", keep_alive: bool = True, pause: bool = False) -> _Written:
    """What was written for these messages; with `pause` the loop turns after each."""
    transport = _Written()

    async def reply() -> None:
        cycle = _cycle(transport, method, keep_alive=keep_alive)
        for message in messages:
            await cycle.send(message)
            if pause:
                await asyncio.sleep(0)

    asyncio.run(reply())
    return transport


def _start(headers: Headers, status: int = 200) -> Any:
    return {"type": "http.response.start", "status": status, "headers": headers}


def _body(data: bytes, *, more: bool = False) -> Any:
    return {"type": "http.response.body", "body": data, "more_body": more}


def test_head_and_body_are_one_write() -> None:
    transport = _replied(_start([(b"content-length", b"2")]), _body(b"ok"))
    assert transport.writes == [b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\n\r\nok"]
    assert not transport.closed


def test_the_head_of_a_stream_goes_out_with_its_first_chunk() -> None:
    transport = _replied(_start([]), _body(b"one", more=True), _body(b"two", more=True), _body(b""))
    head = b"HTTP/1.1 200 OK\r\ndate: today\r\ntransfer-encoding: chunked\r\n\r\n"
    assert transport.writes == [head + b"3\r\none\r\n", b"3\r\ntwo\r\n", b"0\r\n\r\n"]


def test_the_head_of_a_stream_does_not_wait_for_a_late_chunk() -> None:
    transport = _replied(_start([]), _body(b"one"), pause=True)
    assert transport.writes[1:] == [b"3\r\none\r\n0\r\n\r\n"]


@pytest.mark.parametrize("headers", [[(b"content-length", b"2")], []])
def test_a_reply_to_head_has_no_body(headers: Headers) -> None:
    transport = _replied(_start(headers), _body(b"ok"), method="HEAD")
    assert len(transport.writes) == 1
    assert transport.writes[0].endswith(b"\r\n\r\n")


def test_the_last_reply_says_so_once() -> None:
    length = (b"content-length", b"0")
    told = _replied(_start([length, (b"connection", b"close")]), _body(b""))
    untold = _replied(_start([length]), _body(b""), keep_alive=False)
    for transport in (told, untold):
        assert transport.closed
        assert b"".join(transport.writes).count(b"connection: close") == 1


@pytest.mark.parametrize("value", [b"a\r\nx-evil: 1", b"a\nb", b"a\rb", b"a\x00b", b"a\x7f"])
def test_control_characters_in_headers_are_refused(value: bytes) -> None:
    with pytest.raises(RuntimeError, match="control characters"):
        _replied(_start([(b"x-name", value)]), _body(b""))


@pytest.mark.parametrize(
    "messages",
    [
        lambda: (_start([(b"content-length", b"2")]), _body(b"longer")),
        lambda: (_start([(b"content-length", b"9")]), _body(b"shorter")),
        lambda: (_body(b"first"),),
        lambda: (_start([]), _start([])),
        lambda: (_start([]), _body(b""), _body(b"late")),
    ],
)
def test_messages_that_do_not_fit_are_refused(messages: Callable[[], tuple[Any, ...]]) -> None:
    with pytest.raises(RuntimeError):
        _replied(*messages())


@pytest.mark.parametrize("early", [True, False], ids=["before", "after"])
async def test_a_departure_is_told_once(early: bool) -> None:
    """Whoever asks hears of it, also where the client had left before."""
    told: list[str] = []
    cycle = _cycle(_Written())
    cycle.disconnected = early
    cycle.when_gone(lambda: told.append("gone"))
    if not early:
        cycle.gone()
    await asyncio.sleep(0)
    cycle.gone()
    assert told == ["gone"]


async def test_no_departure_is_told_after_the_reply() -> None:
    told: list[str] = []
    cycle = _cycle(_Written())
    cycle.when_gone(lambda: told.append("gone"))
    await cycle.send(_start([]))
    await cycle.send(_body(b""))
    cycle.gone()
    assert told == []


async def test_a_reply_that_nobody_reads_does_not_hold_the_last_place() -> None:
    """The connection closes once its reply is read; until then a new one may take its place."""
    sent = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        large = scope["path"] == "/large"
        body = bytes(32 << 20) if large else b"ok"
        await send(_start([(b"content-length", b"%d" % len(body)), (b"connection", b"close")]))
        await send(_body(body))
        if large:
            sent.set()

    shared = {"gate": LoadShedder(10, lambda: 0.0), "connections": ConnectionLimits(1, 10.0)}
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: HttpProtocol(config, ServerState(), shared), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    _, unread = await asyncio.open_connection(*address)
    unread.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
    await asyncio.wait_for(sent.wait(), 10)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    reply = await asyncio.wait_for(reader.read(), 10)
    assert reply.startswith(b"HTTP/1.1 200")
    for end in (unread, writer):
        end.transport.abort()
    server.close()


async def test_a_body_in_pieces_is_handed_on_to_its_end_and_then_the_departure() -> None:
    """Each piece once, also where the application reads faster than they come, and where the end comes by itself."""
    got: list[Any] = []
    read, left = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            got.append((message["body"], more := message["more_body"]))
            read.set()
        got.append((await receive())["type"])
        left.set()

    shared = {"gate": LoadShedder(10, lambda: 0.0), "connections": ConnectionLimits(1, 10.0)}
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    server = await asyncio.get_running_loop().create_server(
        lambda: HttpProtocol(config, ServerState(), shared), "127.0.0.1", 0
    )
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
    for piece in (b"3\r\ntwo\r\n", b"0\r\n\r\n"):
        await asyncio.wait_for(read.wait(), 10)
        read.clear()
        writer.write(piece)
    await asyncio.wait_for(read.wait(), 10)
    writer.transport.abort()
    await asyncio.wait_for(left.wait(), 10)
    assert got == [(b"one", True), (b"two", True), (b"", False), "http.disconnect"]
    server.close()
