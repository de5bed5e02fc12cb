"""The contract of a transport, kept by each of them, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
import uvloop

from gateway.backends import http1_transport
from gateway.backends.base import BackendError, InvalidReply, Payload, Response, TimedOut, Transport, Unreachable
from gateway.backends.http1_transport import Http1Transport
from gateway.parts.fleet import httpx2_transport
from gateway.parts.fleet.httpx2_transport import Httpx2Transport
from tests.support.garbage import leaving_nothing
from tests.support.raw_upstream import RawUpstream, never_connects, raw_upstream
from tests.support.tls import make_certificate, self_signed_server, tls_front
from tests.support.upstream import Fault, Reply, Upstream
from tests.support.wait import eventually

KEY = "sk-planted-canary"
HEADERS = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
ASK = b'{"messages":[{"role":"user","content":"hi"}]}'
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
ASK_STREAM = b'{"stream":true,"messages":[{"role":"user","content":"hi"}]}'


TRANSPORTS: dict[str, Callable[..., Transport]] = {
    "http1": Http1Transport,
    "httpx2": Httpx2Transport,
}


class Make:
    """Make transports of one class to a base URL. With a certificate, plain servers on loopback get TLS in front."""

    def __init__(self, transport: Callable[..., Transport], certificate: Path | None) -> None:
        self.transport = transport
        self.certificate = certificate
        self._made = contextlib.AsyncExitStack()

    async def __call__(
        self, url: str, max_in_flight: int = 10, connect_timeout_s: float = 2.0, max_reply: int = 1 << 20
    ) -> Transport:
        parts = urlsplit(url)
        if self.certificate is not None and parts.scheme == "http" and parts.hostname == "127.0.0.1" and parts.port:
            port = await self._made.enter_async_context(tls_front(self.certificate, parts.port))
            url = f"https://localhost:{port}{parts.path}"
        one = self.transport(
            f"{url}/chat/completions",
            max_in_flight=max_in_flight,
            connect_timeout_s=connect_timeout_s,
            max_reply=max_reply,
        )
        self._made.push_async_callback(one.aclose)
        return one

    async def aclose(self) -> None:
        """Close what was made."""
        await self._made.aclose()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """The server's loop for the server's own client: uvloop has sockets and TLS of its own."""
    ours = request.node.callspec.params["make"].startswith("http1")
    return uvloop.EventLoopPolicy() if ours else asyncio.DefaultEventLoopPolicy()


@pytest.fixture(params=["http1", "http1-tls", "httpx2"])
async def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Make transports, and close them at the end."""
    name, _, tls = request.param.partition("-")
    certificate: Path | None = None
    if tls:
        certificate = request.getfixturevalue("certificate")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    http1_transport.verifying_context.cache_clear()
    httpx2_transport.verifying_context_of.cache_clear()
    kinds: dict[str, Callable[..., Transport]] = {
        "http1": Http1Transport,
        "httpx2": Httpx2Transport,
    }
    maker = Make(kinds[name], certificate)
    yield maker
    await maker.aclose()
    http1_transport.verifying_context.cache_clear()
    httpx2_transport.verifying_context_of.cache_clear()


ours = pytest.mark.parametrize("make", ["http1", "http1-tls"], indirect=True)
"""What httpx2 does not keep: it writes before it reads."""


async def send(transport: Transport, body: Payload = ASK, within_s: float = 5.0) -> Response:
    async with asyncio.timeout(within_s):
        return await transport.send(HEADERS, body)


async def finished(response: Response) -> bytes:
    """The whole body by chunks, and the connection given back."""
    parts: list[bytes] = []
    async with asyncio.timeout(30):
        while part := await response.chunk():
            parts.append(part)
    response.close()
    return b"".join(parts)


async def test_a_whole_reply(make: Make, upstream: Upstream) -> None:
    """Status, headers and body arrive as sent, and the request as we made it, with nothing of the client's own."""
    upstream.default = Reply(body=b'{"a": 1}', headers={"X-One": "1"})
    response = await send(await make(upstream.url))
    assert (response.status, response.header("x-one"), response.header("absent")) == (200, "1", None)
    assert await response.read() == b'{"a": 1}'
    response.close()
    received = upstream.requests[0]
    assert received.raw == ASK
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.headers["content-length"] == str(len(ASK))


async def test_a_request_in_pieces(make: Make, upstream: Upstream) -> None:
    """A large body in pieces arrives as one, over a new connection and over a kept one."""
    transport = await make(upstream.url)
    pieces = [ASK[:-2], b" " * (1 << 20), b" " * (1 << 20), ASK[-2:]]
    for _ in range(2):
        await finished(await send(transport, pieces))
    for received in upstream.requests:
        assert received.raw == b"".join(pieces)
        assert received.headers["content-length"] == str(len(received.raw))


async def test_a_chunked_reply(make: Make, upstream: Upstream) -> None:
    """A chunked body comes as it was sent, by chunks and as a whole alike."""
    upstream.default = Reply(text="one two three", fragment=7)
    transport = await make(upstream.url)
    by_chunks = await finished(await send(transport, ASK_STREAM))
    assert by_chunks.endswith(b"data: [DONE]\n\n")
    response = await send(transport, ASK_STREAM)
    assert (await response.read()).endswith(b"data: [DONE]\n\n")
    response.close()


async def test_an_error_status_is_a_response(make: Make, upstream: Upstream) -> None:
    """A status is for the dialect to judge: it comes back as it is."""
    upstream.default = Reply(status=503, body=b"busy")
    response = await send(await make(upstream.url))
    assert (response.status, await response.read()) == (503, b"busy")
    response.close()


@pytest.mark.parametrize("body", [ASK, ASK_STREAM], ids=["whole", "chunked"])
async def test_a_reply_over_the_limit(make: Make, upstream: Upstream, body: bytes) -> None:
    """A reply that is larger than allowed is invalid, and its connection is dropped before the rest is read."""
    upstream.default = Reply(fault=Fault.GIANT)
    response = await send(await make(upstream.url, max_reply=1 << 20), body)
    with pytest.raises(InvalidReply):
        await response.read()
    response.close()
    await eventually(lambda: upstream.requests[0].gone_at is not None, what="the upstream sees us leave")
    assert upstream.requests[0].sent_bytes < 64 << 20


async def test_redirects_are_not_followed(make: Make, upstream: Upstream) -> None:
    """A redirect is an answer like any other; the key goes nowhere else."""
    upstream.default = Reply(fault=Fault.REDIRECT)
    response = await send(await make(upstream.url))
    assert response.status == 307
    response.close()
    assert len(upstream.requests) == 1
    assert not upstream.probes


async def test_a_refused_connection(make: Make, upstream: Upstream) -> None:
    """A refused connection is Unreachable."""
    upstream.refuse()
    with pytest.raises(Unreachable):
        await send(await make(upstream.url))


async def test_an_unknown_host(make: Make) -> None:
    """So is a host that does not exist."""
    with pytest.raises(Unreachable):
        await send(await make("http://no-such-host.invalid:9/v1"))


async def test_plain_http_on_a_tls_port(make: Make, upstream: Upstream) -> None:
    """So is a server that speaks no TLS where TLS is configured; nothing falls back."""
    with pytest.raises(Unreachable) as caught:
        await send(await make(upstream.url.replace("http:", "https:")))
    assert "CERT" not in str(caught.value)
    assert not upstream.requests


async def test_a_certificate_that_nobody_signed(make: Make, tmp_path: Path) -> None:
    """So is a server whose certificate cannot be verified: neither the key nor the prompt is sent to it."""
    async with self_signed_server(tmp_path) as server:
        with pytest.raises(Unreachable):
            await send(await make(server.url))
        assert not server.received
        trusting = ssl.create_default_context(cafile=server.certificate)
        async with httpx2.AsyncClient(verify=trusting, trust_env=False) as client:
            assert (await client.get(server.url)).status_code == 200  # it is the certificate alone that is refused


async def test_a_connection_that_hangs(make: Make) -> None:
    """A connection that is not made in time is TimedOut, in the time that was configured."""
    with never_connects() as url, pytest.raises(TimedOut) as caught:
        await send(await make(url, connect_timeout_s=0.1), within_s=2)
    assert "127.0.0.1" not in str(caught.value)  # a client may get to read it


@pytest.mark.parametrize("fault", [Fault.CLOSE_BEFORE_HEADERS])
async def test_a_close_before_the_headers(make: Make, upstream: Upstream, fault: Fault) -> None:
    """A connection that ends before an answer is Unreachable."""
    upstream.default = Reply(fault=fault)
    with pytest.raises(Unreachable):
        await send(await make(upstream.url))


@pytest.mark.parametrize("fault", [Fault.RESET_MID_STREAM, Fault.CLOSE_MID_STREAM])
@pytest.mark.parametrize("body", [ASK, ASK_STREAM], ids=["whole", "chunked"])
async def test_a_body_that_breaks_off(make: Make, upstream: Upstream, fault: Fault, body: bytes) -> None:
    """A body that ends before its length, or its last chunk, is Unreachable, never a shorter body."""
    upstream.default = Reply(text="word " * 50, fault=fault)
    response = await send(await make(upstream.url), body)
    with pytest.raises(Unreachable):
        await response.read()
    response.close()


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
        b"nothing like HTTP at all\r\n\r\n",
    ],
    ids=["two lengths", "negative length", "bad chunk size", "not HTTP"],
)
async def test_broken_framing(make: Make, reply: bytes) -> None:
    """A reply whose framing is wrong is an error of ours, and its connection is not used again."""
    with raw_upstream(reply, keep_open=True) as server:
        transport = await make(server.url)
        for _ in range(2):
            with pytest.raises((Unreachable, InvalidReply)):
                await finished(await send(transport))
        assert server.connections == 2


async def test_an_interim_response_is_passed_over(make: Make) -> None:
    """A 1xx before the answer is not the answer."""
    final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
    with raw_upstream(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + final) as server:
        assert await finished(await send(await make(server.url))) == b"hi"


async def test_interim_responses_are_passed_over(make: Make) -> None:
    """Several too, and none of their fields is the answer's."""
    interim = b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nX-One: early\r\n\r\n"
    with raw_upstream(*interim, 0.02, *interim, WHOLE, keep_open=True) as server:
        transport = await make(server.url)
        for _ in range(2):
            response = await send(transport)
            assert (response.status, response.header("x-one")) == (200, None)
            assert await finished(response) == b"hi"
        assert server.connections == 1


async def test_trailers_are_passed_over(make: Make) -> None:
    """What comes after the last chunk is no part of the body, changes no header, and the connection goes on."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"
    with raw_upstream(head, 0.02, b"0\r\nContent-Type: text/html\r\nX-Sum: 1\r\n", b"\r\n", keep_open=True) as server:
        transport = await make(server.url)
        for _ in range(2):
            response = await send(transport)
            assert await response.read() == b"hi"
            assert (response.header("content-type"), response.header("x-sum")) == ("text/plain", None)
            response.close()
        assert server.connections == 1


async def test_of_a_header_that_comes_twice_the_first_counts(make: Make) -> None:
    """However its name is written."""
    with raw_upstream(b"HTTP/1.1 200 OK\r\nx-one: 1\r\nX-One: 2\r\nX-ONE: 3\r\nContent-Length: 0\r\n\r\n") as server:
        response = await send(await make(server.url))
        assert str(response.header("X-one")).split(",")[0] == "1"
        response.close()


async def test_a_body_up_to_the_end_of_the_connection(make: Make) -> None:
    """Without a length the end of the connection is the end of the body; a reset is not."""
    with raw_upstream(b"HTTP/1.1 200 OK\r\n\r\nhi", 0.02, b" there") as server:
        transport = await make(server.url)
        for _ in range(2):
            assert await finished(await send(transport)) == b"hi there"
        response = await send(transport)
        assert await response.read() == b"hi there"
        response.close()
        assert server.connections == 3


@pytest.mark.parametrize(
    "reply",
    [b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + WHOLE[17:]],
    ids=["HTTP/1.0", "close"],
)
async def test_a_connection_that_is_to_be_closed_is_not_used_again(make: Make, reply: bytes) -> None:
    """Whether the server closes it or not."""
    with raw_upstream(reply, keep_open=True) as server:
        transport = await make(server.url)
        for _ in range(2):
            assert await finished(await send(transport)) == b"hi"
        assert server.connections == 2


async def test_a_server_that_half_closes(make: Make) -> None:
    """A server that sends its reply and then its end gets its reply read, and no other request on that connection."""
    with raw_upstream(WHOLE) as server:
        transport = await make(server.url, max_in_flight=1)
        for _ in range(3):
            assert await finished(await send(transport)) == b"hi"
        assert server.connections == 3


def _has_played(server: RawUpstream) -> bool:
    return server.played == 1


@ours
@pytest.mark.parametrize("extra", [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", b"HTTP/1.1 500 "])
async def test_a_reply_that_nobody_asked_for(make: Make, extra: bytes) -> None:
    """What comes behind a reply, at once or later (a 408 of an idle connection), answers no other call."""
    for late in (0.0, 0.03):
        with raw_upstream(WHOLE + extra if not late else WHOLE, late, extra if late else b"", keep_open=True) as server:
            transport = await make(server.url)
            assert await finished(await send(transport)) == b"hi"
            await eventually(partial(_has_played, server), what="the server has sent it all")
            await asyncio.sleep(0.05)  # it arrives
            assert await finished(await send(transport)) == b"hi"
            assert server.connections == 2


@ours
async def test_an_answer_before_the_request_was_read(make: Make) -> None:
    """A server may answer by the head alone; what is left of the body then spoils no other call."""
    reply = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno"
    with raw_upstream(reply, reads_body=False) as server:
        transport = await make(server.url, max_in_flight=1)
        for _ in range(2):
            response = await send(transport, bytes(16 << 20))
            assert (response.status, await response.read()) == (413, b"no")
            response.close()
        assert server.connections == 2


@pytest.mark.parametrize(
    "parts",
    [
        [b"HTTP/1.1 200 OK\r\nX-Long: ", *[b"x" * 65536] * 64],
        [b"HTTP/1.1 200 OK\r\n", *[b"X-Many: x\r\n" * 6000] * 64],
    ],
    ids=["one field", "many fields"],
)
async def test_a_head_without_end(make: Make, parts: list[bytes]) -> None:
    """A head of many megabytes is refused, and its connection dropped, long before its end."""
    with raw_upstream(*parts, 20.0) as server:
        transport = await make(server.url, max_in_flight=1)
        for _ in range(2):
            with pytest.raises((InvalidReply, Unreachable)):
                await send(transport)


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_reply_of_exactly_the_limit(make: Make, framing: str) -> None:
    """It is taken; one byte more is refused. What frames it does not count."""
    for size in (5000, 5001):
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size
        if framing == "chunked":
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * size + b"0\r\n\r\n"
        with raw_upstream(head) as server:
            response = await send(await make(server.url, max_reply=5000))
            if size == 5000:
                assert await response.read() == b"x" * size
            else:
                with pytest.raises(InvalidReply):
                    await response.read()
            response.close()


async def test_a_reader_that_is_slow_holds_the_server_up(make: Make, upstream: Upstream) -> None:
    """What nobody reads stays with the server, but for what the sockets and a small buffer hold; then it goes on."""
    upstream.default = Reply(fault=Fault.GIANT)
    response = await send(await make(upstream.url, max_reply=1 << 40), ASK_STREAM)
    request = upstream.requests[0]

    async def stalled() -> int:
        """How much was sent when nothing more has been for 0.3 s."""
        sent, since = request.sent_bytes, time.monotonic()
        while time.monotonic() < since + 0.3:
            await asyncio.sleep(0.01)
            if request.sent_bytes != sent:
                sent, since = request.sent_bytes, time.monotonic()
            assert sent < 48 << 20
        return sent

    held = await stalled()
    read = 0
    while read < held:
        read += len(await response.chunk())
    await eventually(lambda: request.sent_bytes > held, what="the server goes on")
    await stalled()
    response.close()


async def test_a_whole_read_is_not_held_up(make: Make, upstream: Upstream) -> None:
    """Who asks for the whole body gets it, though it had been left unread for a while."""
    body = b'"' + b"x" * (4 << 20) + b'"'
    upstream.default = Reply(body=body)
    response = await send(await make(upstream.url, max_reply=8 << 20))
    await asyncio.sleep(0.1)  # the buffer is full
    async with asyncio.timeout(5):
        assert await response.read() == body
    response.close()


async def test_a_cancelled_read_loses_nothing(make: Make, upstream: Upstream) -> None:
    """A read that is cancelled and called again goes on where it was."""
    upstream.default = Reply(text="one two three four five", between_s=0.02)
    transport = await make(upstream.url)
    response = await send(transport, ASK_STREAM)
    body = b""
    cancelled = 0
    while not body.endswith(b"data: [DONE]\n\n"):
        try:
            async with asyncio.timeout(0.003):
                body += await response.chunk()
        except TimeoutError:
            cancelled += 1
    response.close()
    assert cancelled > 3
    assert body.count(b"\n\n") == 5 + 3
    assert b"five" in body


async def test_reuses_a_connection_read_to_its_end(make: Make, upstream: Upstream) -> None:
    """Replies that were read whole share one connection."""
    transport = await make(upstream.url)
    for body in (ASK, ASK_STREAM, ASK):
        await finished(await send(transport, body))
        await asyncio.sleep(0.01)
    assert upstream.connections == 1


ending = pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])


@ending
async def test_a_stale_connection_costs_no_call(make: Make, reset: bool) -> None:
    """B28: a call that meets the end of a used connection, unanswered, is made once more on a new one."""
    with raw_upstream(WHOLE, keep_open=True, answers=1, reset=reset) as server:
        transport = await make(server.url)
        for _ in range(6):
            assert await finished(await send(transport)) == b"hi"
        assert server.connections == 6  # each has answered once
        assert (
            9 <= server.requests <= 11
        )  # the rest met the end of one that was used; some keep the new one for the next


@ending
async def test_many_stale_connections_cost_no_call(make: Make, reset: bool) -> None:
    """B28: the new connection is a new one, however many idle ones have gone stale at the same time."""
    with raw_upstream(WHOLE, keep_open=True, answers=1, reset=reset) as server:
        transport = await make(server.url)
        for response in await asyncio.gather(*(send(transport) for _ in range(5))):
            await finished(response)
        filled = server.connections
        assert filled == 5
        assert await finished(await send(transport)) == b"hi"
        assert (server.requests, server.connections) == (filled + 2, filled + 1)


@ending
async def test_an_end_on_a_new_connection_is_no_stale_one(make: Make, reset: bool) -> None:
    """B28: a connection that was not used before, and ends unanswered, is a failure at once."""
    with raw_upstream(answers=0, reset=reset) as server:
        with pytest.raises(Unreachable):
            await send(await make(server.url))
        assert server.requests == 1


@ending
async def test_a_stale_connection_is_made_up_for_once(make: Make, reset: bool) -> None:
    """B28: when the new connection ends unanswered too, that is a failure."""
    with raw_upstream(WHOLE, keep_open=True, answers=1, reset=reset) as server:
        transport = await make(server.url)
        await finished(await send(transport))
        server.answers = 0
        with pytest.raises(Unreachable):
            await send(transport)
        assert (server.requests, server.connections) == (3, 2)


async def test_a_broken_reply_on_a_used_connection_is_not_asked_for_again(make: Make) -> None:
    """B28: once a reply has begun, be it nonsense, the call is not made again."""
    with raw_upstream(WHOLE, keep_open=True) as server:
        transport = await make(server.url)
        await finished(await send(transport))
        server.parts = [b"nothing like HTTP at all\r\n\r\n"]
        with pytest.raises((Unreachable, InvalidReply)):
            await finished(await send(transport))
        assert (server.requests, server.connections) == (2, 1)


async def test_close_drops_a_reply_in_progress(make: Make, upstream: Upstream) -> None:
    """Closing an unfinished reply is seen by the upstream at once, and frees the only slot."""
    upstream.queue(Reply(text="one two", fault=Fault.HANG_MID_STREAM))
    transport = await make(upstream.url, max_in_flight=1)
    response = await send(transport, ASK_STREAM)
    await response.chunk()
    response.close()
    response.close()
    await eventually(lambda: upstream.requests[0].gone_at is not None, 1, "the upstream sees us leave")
    assert await finished(await send(transport, ASK_STREAM))


async def test_close_without_a_read(make: Make, upstream: Upstream) -> None:
    """A reply of which nothing was read can be closed too."""
    upstream.queue(Reply(fault=Fault.HANG_AFTER_HEADERS))
    transport = await make(upstream.url, max_in_flight=1)
    (await send(transport, ASK_STREAM)).close()
    await eventually(lambda: upstream.requests[0].gone_at is not None, 1, "the upstream sees us leave")
    assert await finished(await send(transport))


async def test_no_more_calls_than_allowed(make: Make, upstream: Upstream) -> None:
    """The third of three calls waits until one of the two before it is over, however that ends."""
    for how in ("read", "closed", "cancelled"):
        upstream.reset()
        upstream.queue(Reply(fault=Fault.HANG_AFTER_HEADERS), Reply(text="one", before_headers_s=0.1))
        transport = await make(upstream.url, max_in_flight=2)
        first = await send(transport, ASK_STREAM)
        second = asyncio.create_task(send(transport, ASK_STREAM))
        await eventually(lambda: len(upstream.requests) == 2, what="two calls")
        third = asyncio.create_task(send(transport, ASK_STREAM))
        await asyncio.sleep(0.03)
        assert len(upstream.requests) == 2
        if how == "closed":
            first.close()
        elif how == "cancelled":
            second.cancel()
        else:
            await finished(await second)
        assert await finished(await third)
        first.close()


@pytest.mark.parametrize("stage", ["waiting", "sent", "head", "body"])
async def test_a_call_cancelled_at_any_stage(make: Make, upstream: Upstream, stage: str) -> None:
    """Its connection is closed at once, and the only place is free."""
    upstream.default = Reply(text="one two", before_headers_s=0.05)
    faults = {"sent": Fault.HANG_BEFORE_HEADERS, "head": Fault.HANG_AFTER_HEADERS, "body": Fault.HANG_MID_STREAM}
    upstream.queue(Reply(text="one two", fault=faults.get(stage, Fault.HANG_BEFORE_HEADERS)))
    transport = await make(upstream.url, max_in_flight=1)

    async def call() -> None:
        response = await transport.send(HEADERS, ASK_STREAM)
        try:
            while await response.chunk():
                pass
        finally:
            response.close()

    running = asyncio.create_task(call())
    await eventually(lambda: len(upstream.requests) == 1, what="the call is made")
    if stage == "waiting":
        second = asyncio.create_task(call())
        await asyncio.sleep(0.02)
        second.cancel()
        await asyncio.wait([second])
        assert second.cancelled()
    await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    await eventually(lambda: upstream.requests[0].gone_at is not None, 1, "the upstream sees us leave")
    assert await finished(await send(transport, ASK_STREAM))
    assert len(upstream.requests) == 2


async def test_a_call_cancelled_while_it_connects(make: Make) -> None:
    """Its place is free: the next call does not wait for it."""
    with never_connects() as url:
        transport = await make(url, max_in_flight=1, connect_timeout_s=0.3)
        running = asyncio.create_task(send(transport))
        await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        for _ in range(2):
            with pytest.raises(TimedOut):
                await send(transport, within_s=2)


async def test_a_name_with_two_addresses(make: Make, upstream: Upstream) -> None:
    """Where one address of a host refuses, the other is taken."""
    if make.certificate is None:
        transport = await make(upstream.url.replace("127.0.0.1", "localhost"))
        assert await finished(await send(transport))


async def test_a_header_with_a_line_break_is_not_sent(make: Make, upstream: Upstream) -> None:
    """It would begin a header of its own."""
    transport = await make(upstream.url, max_in_flight=1)
    with pytest.raises(BackendError):
        await transport.send({**HEADERS, "X-One": "1\r\nX-Two: 2"}, ASK)
    assert not upstream.requests
    assert await finished(await send(transport))


async def test_the_traceparent(make: Make, upstream: Upstream) -> None:
    """It is a header beside the others, of one call alone."""
    transport = await make(upstream.url)
    for traceparent in ("00-1-2-01", "", "00-3-4-01"):
        await finished(await transport.send(HEADERS, ASK, traceparent))
    assert [request.headers.get("traceparent", "") for request in upstream.requests] == ["00-1-2-01", "", "00-3-4-01"]


END_LATER = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n[DONE]\r\n"


async def test_an_end_that_is_due_keeps_the_connection(make: Make) -> None:
    """When only the end of the body is missing, it is awaited in the background and the connection used again."""
    with raw_upstream(END_LATER, 0.02, b"0\r\n\r\n", keep_open=True) as server:
        transport = await make(server.url, max_in_flight=1)
        for _ in range(3):
            response = await send(transport)
            assert await response.chunk() == b"[DONE]"
            response.close(end_is_due=True)
        await finished(await send(transport))
        assert server.connections == 1


async def test_an_end_that_is_due_and_does_not_come(make: Make) -> None:
    """An upstream that does not end its reply gets a moment; then the slot is free all the same."""
    with raw_upstream(END_LATER, 3.0, keep_open=True) as server:
        transport = await make(server.url, max_in_flight=1)
        response = await send(transport)
        await response.chunk()
        response.close(end_is_due=True)
        (await send(transport, within_s=1)).close()
        assert server.connections == 2


@pytest.mark.parametrize("how", ["chunk", "read"])
async def test_close_wakes_a_pending_read(make: Make, upstream: Upstream, how: str) -> None:
    """Whoever waits for bytes of a reply that is closed gets an error, and is not cancelled."""
    upstream.default = Reply(fault=Fault.HANG_AFTER_HEADERS)
    response = await send(await make(upstream.url), ASK_STREAM)
    waiting = asyncio.create_task(getattr(response, how)())
    await asyncio.sleep(0.02)
    response.close()
    async with asyncio.timeout(1):
        with pytest.raises(BackendError):
            await waiting


async def test_a_read_after_close(make: Make, upstream: Upstream) -> None:
    """A closed reply has no bytes left."""
    upstream.default = Reply(text="one two three", between_s=0.05)
    response = await send(await make(upstream.url), ASK_STREAM)
    await response.chunk()
    response.close()
    with pytest.raises(BackendError):
        await response.chunk()


async def test_a_read_both_cancelled_and_closed_is_silent(
    make: Make, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    """A read that nobody waits for any more, of a reply that breaks or is closed, leaves no stray error behind."""
    with leaving_nothing():
        caplog.clear()
        for fault in (Fault.HANG_AFTER_HEADERS, Fault.CLOSE_AFTER_HEADERS):
            upstream.default = Reply(fault=fault)
            response = await send(await make(upstream.url), ASK_STREAM)
            with pytest.raises((TimeoutError, Unreachable)):
                async with asyncio.timeout(0.02):
                    await response.chunk()
            response.close()
            await asyncio.sleep(0.02)
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_ignores_the_environment(make: Make, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a proxy nor a .netrc of the environment touches a call."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert await finished(await send(await make(upstream.url)))


async def test_cookies_are_not_kept(make: Make, upstream: Upstream) -> None:
    """What one reply sets, another user's call does not send."""
    upstream.default = Reply(body=b"{}", headers={"Set-Cookie": "session=one; Path=/"})
    transport = await make(upstream.url)
    for _ in range(2):
        await finished(await send(transport))
    assert not [request.headers["cookie"] for request in upstream.requests if "cookie" in request.headers]


async def test_a_large_request_arrives_whole(make: Make, upstream: Upstream) -> None:
    """Pictures make bodies of many megabytes; the connection carries the next call too."""
    body = b'{"messages":[{"role":"user","content":"' + b"x" * (12 << 20) + b'"}]}'
    transport = await make(upstream.url)
    for sent in (body, ASK):
        assert await finished(await send(transport, sent))
        assert upstream.requests[-1].raw == sent
    assert upstream.connections == 1


async def test_errors_never_hold_the_key(make: Make, upstream: Upstream) -> None:
    """No error, nor any cause of it, prints the key that the call carried."""
    calls: list[BaseException] = []
    with raw_upstream(b"HTTP/1.1 2000 what\r\n\x00: x\r\n\r\n") as garbled, never_connects() as hung:
        for url in (upstream.url.replace("http:", "https:"), "http://127.0.0.1:9/v1", garbled.url, hung):
            with pytest.raises(BackendError) as caught:
                await finished(await send(await make(url, connect_timeout_s=0.05)))
            calls.append(caught.value)
    for error in calls:
        cause: BaseException | None = error
        while cause is not None:
            assert KEY not in f"{cause} {cause!r} {getattr(cause, 'request_info', '')!r}"
            cause = cause.__cause__


async def storm(transport: Transport, seed: int, longest_s: float = 0.006) -> None:
    """20 calls at once, each cancelled before `longest_s`: waiting for a slot, connecting, or streaming."""
    chance = random.Random(seed)

    async def call() -> None:
        response: Response | None = None
        try:
            response = await transport.send(HEADERS, ASK_STREAM)
            while await response.chunk():
                pass
        finally:
            if response is not None:
                response.close()

    async def cancelled() -> None:
        task = asyncio.create_task(call())
        await asyncio.sleep(chance.uniform(0, longest_s))
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    await asyncio.gather(*(cancelled() for _ in range(20)))


async def succeed(transport: Transport, count: int) -> None:
    """So many calls at once, all of which succeed."""
    bodies = await asyncio.gather(*(send(transport, ASK_STREAM, within_s=5) for _ in range(count)))
    for body in bodies:
        assert (await finished(body)).endswith(b"data: [DONE]\n\n")


async def test_cancelled_calls_cost_no_slot(make: Make, upstream: Upstream) -> None:
    """20 calls over 10 slots cancelled after 0-6 ms, and 20 later ones succeed: httpx 0.28 lost its whole pool here."""
    upstream.default = Reply(text="one two three", between_s=0.001)
    transport = await make(upstream.url, max_in_flight=10)
    await storm(transport, seed=1)
    for _ in range(2):
        await succeed(transport, 10)


async def test_a_thousand_cancellations_cost_no_slot(make: Make, upstream: Upstream) -> None:
    """After 1,000 cancellations all ten slots still carry calls at the same time."""
    upstream.default = Reply(text="one two three", between_s=0.002)
    transport = await make(upstream.url, max_in_flight=10)
    began = time.monotonic()
    await succeed(await make(upstream.url, max_in_flight=10), 10)
    calls_s = max(
        0.03, time.monotonic() - began
    )  # ten at once; on a busy machine, and over TLS, connecting takes 30 ms
    for seed in range(50):
        await storm(transport, seed, longest_s=0.006 if seed % 2 else calls_s)
    assert len(upstream.requests) > 10 + 20  # not all were cancelled before they were sent
    upstream.default = Reply(text="one", before_headers_s=0.2)
    last = ASK_STREAM.replace(b"hi", b"last")

    def prompts() -> list[str]:
        return [request.prompt for request in upstream.requests]

    async with asyncio.timeout(30):
        running = [asyncio.create_task(send(transport, last)) for _ in range(10)]
        await eventually(lambda: prompts().count("last") == 10, 3, "ten calls at the same time")
        for response in await asyncio.gather(*running):
            await finished(response)


@pytest.mark.parametrize("make", ["http1", "httpx2"], indirect=True)
async def test_authorities_of_the_environment_are_trusted(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where SSL_CERT_FILE names a company's authorities, every client verifies servers by them."""
    async with self_signed_server(tmp_path) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(server.certificate))
        http1_transport.verifying_context.cache_clear()
        httpx2_transport.verifying_context_of.cache_clear()
        response = await send(await make(server.url))
        assert response.status == 200
        response.close()


async def test_a_certificate_of_another_host(make: Make, tmp_path: Path) -> None:
    """A certificate that is trusted, but names another host: nothing is sent there."""
    async with self_signed_server(tmp_path) as server:
        for context in contexts_of_clients():
            context.load_verify_locations(server.certificate)
        response = await send(await make(server.url))
        assert response.status == 200, "its own name"
        response.close()
        seen = len(server.received)
        with pytest.raises(Unreachable):
            await send(await make(server.url.replace("localhost", "127.0.0.1")))
        assert len(server.received) == seen


def contexts_of_clients() -> list[ssl.SSLContext]:
    """The TLS contexts by which our transports verify servers."""
    return [http1_transport.verifying_context(), httpx2_transport.verifying_context_of(http2=False)]
