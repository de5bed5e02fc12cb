"""The default transport: an HTTP/1.1 client on httptools, a thirtieth of httpx2's CPU time per request.

Each connection is one asyncio protocol that carries one request at a time. The parser's callbacks for header fields
and body bytes are methods of a dict and a list: a reply in one packet costs four Python calls, however long its head.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import quote, urlsplit

import aiohappyeyeballs
import httptools

from gateway.backends.base import (
    DRAIN_S,
    BackendError,
    InvalidReply,
    Payload,
    Response,
    TimedOut,
    Unreachable,
    in_words,
)

_KEEPALIVE_S: Final = 30.0
_ADDRESSES_S: Final = 10.0
"""Seconds for which the resolved addresses of a host name are reused."""
_NEXT_ADDRESS_S: Final = 0.25
"""Seconds after which a host's next address is tried beside one that has not answered (RFC 8305)."""
_MAX_BUFFERED: Final = 256 << 10
"""Unread body bytes at which reading from the socket pauses."""
_LARGE: Final = 64 << 10
"""Size in bytes from which a request may not have been read completely when its answer comes."""
_PATH_CHARACTERS: Final = "/%:@!$&'()*+,;=-._~"
_MAX_HEAD: Final = 64 << 10
"""Most bytes in a row that are not body: the head with its 1xx responses, or the trailers."""
_CLOSED: Final = "the call was closed"
_CUT_SHORT: Final = "the connection ended before the reply did"
_NO_HTTP: Final = "the reply is not valid HTTP"
_NO_REPLY: Final = "the connection was closed before a reply"
_TOO_LARGE: Final = "the reply is larger than max_reply"


class Http1Transport:
    """POST to one URL over at most `max_in_flight` connections; refuse replies of more than `max_reply` bytes.

    `exchange` and `upload` send any other request to the same server. https:// verifies certificates against the
    system's authorities. For proxies and HTTP/2 there is Httpx2Transport.
    """

    def __init__(self, url: str, *, max_in_flight: int, connect_timeout_s: float, max_reply: int) -> None:
        parts = urlsplit(url)
        self._is_tls = parts.scheme == "https"
        usual_port = 443 if self._is_tls else 80
        self._name = (parts.hostname or "").encode("idna" if not (parts.hostname or "").isascii() else "ascii").decode()
        self._port = parts.port or usual_port
        shown = f"[{self._name}]" if ":" in self._name else self._name
        self._host = shown if self._port == usual_port else f"{shown}:{self._port}"
        self._path = quote(parts.path, safe=_PATH_CHARACTERS) + (f"?{parts.query}" if parts.query else "")
        self._connect_timeout_s = connect_timeout_s
        self._max_reply = max_reply
        self._headers: Mapping[str, str] | None = None
        self._head = b""
        self._places = max_in_flight
        """Number of further calls that may run. A call counts until its response has ended or was closed."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._idle: list[_Connection] = []
        """Idle connections, in the order of `idle_since`; the most recently used one is used next."""
        self._connections: set[_Connection] = set()
        self._expiry: asyncio.TimerHandle | None = None
        self._closed = False
        self._addresses: asyncio.Future[list[Any]] | None = None
        self._addresses_until = 0.0

    def send(
        self, headers: Mapping[str, str], body: Payload, traceparent: str = "", tracestate: str = ""
    ) -> Coroutine[Any, Any, Response]:
        """See `Transport.send`."""
        pieces: Sequence[bytes] = ()
        if isinstance(body, bytes):
            size = len(body)
        else:
            size, pieces, body = sum(map(len, body)), body, b""
        if headers is not self._headers:
            self._head = self.head("POST", "", {"Accept": "*/*", **headers}) + b"\r\nContent-Length: "
            self._headers = headers
        if tracestate:
            traced = f"{traceparent}\r\ntracestate: {tracestate}".encode()
            message = b"%b%d\r\ntraceparent: %b\r\n\r\n%b" % (self._head, size, traced, body)
        elif traceparent:
            message = b"%b%d\r\ntraceparent: %b\r\n\r\n%b" % (self._head, size, traceparent.encode(), body)
        else:
            message = b"%b%d\r\n\r\n%b" % (self._head, size, body)
        return self.exchange(message, pieces)

    async def exchange(self, message: bytes, pieces: Sequence[bytes] = (), *, may_repeat: bool = True) -> Response:
        """Send a whole request, and return the response, its body unread. Raises BackendError.

        Of a large request, `pieces` follow the message.

        If a reused connection ends before the response head, the request is repeated on a new one; where it may not be
        repeated, that is Unreachable.
        """
        if self._places and not self._closed:
            self._places -= 1
        else:
            await self._wait_for_place()
        connection = self._idle.pop() if self._idle else await self._connect()
        while True:
            response = connection.post(message, self._max_reply, pieces)
            try:
                await response.waiter
            except asyncio.CancelledError:
                if response.is_stale:
                    self.free_place()
                response.close()
                raise
            if not response.is_stale:
                break
            if not may_repeat:
                self.free_place()
                raise Unreachable(_NO_REPLY)
            # A new connection, not one from the pool: the server may have dropped the other idle ones too.
            connection = await self._connect()
        if not response.status and response.error is not None:
            raise response.error
        return response

    async def upload(self, head: bytes, parts: AsyncGenerator[bytes]) -> Response:
        """Send a request whose body comes in parts, and return the response, its body unread. Raises BackendError.

        `head` ends with its empty line, and the parts are as they go over the wire. The response may come before their
        end, which then is not awaited; what they raise is raised here. The connection is new, and used only once: one
        from the pool may be stale, and what was read of the parts cannot be repeated.
        """
        if self._places and not self._closed:
            self._places -= 1
        else:
            await self._wait_for_place()
        connection = await self._connect()
        response = connection.post(head, self._max_reply, is_last=True)
        sending = asyncio.create_task(connection.write_all(parts))
        try:
            await asyncio.wait({sending, response.waiter}, return_when=asyncio.FIRST_COMPLETED)
            if not response.waiter.done():
                sending.result()
                await response.waiter
        except BaseException:
            response.close()
            raise
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            if not sending.cancelled():
                sending.exception()
        if not response.status and response.error is not None:
            raise response.error
        return response

    async def aclose(self) -> None:
        """Close every connection; calls that still run or wait fail."""
        self._closed = True
        self._idle.clear()
        if self._expiry is not None:
            self._expiry.cancel()
        for connection in list(self._connections):
            connection.fail(Unreachable("the transport was closed"))
        while self._waiting:
            self.free_place()
        await asyncio.sleep(0)  # the sockets are closed in the loop's next round

    def head(self, method: str, target: str, headers: Mapping[str, str]) -> bytes:
        """Return the head of a request, without the end of its last line. `target` follows the URL's path."""
        lines = [f"{method} {self._path + target or '/'} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if any(not line.isprintable() for line in lines):
            raise InvalidReply("a header of the request holds control characters")
        return "\r\n".join(lines).encode()

    async def _wait_for_place(self) -> None:
        if self._closed:
            raise Unreachable("the transport was closed")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self.free_place()
            raise
        if self._closed:
            raise Unreachable("the transport was closed")

    async def _connect(self) -> _Connection:
        """Return a new connection for the caller's place in the pool; free that place if connecting fails."""
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                connection = await self._open()
        except BaseException as error:
            self.free_place()
            if isinstance(error, TimeoutError):
                raise TimedOut("no connection in time") from error
            if isinstance(error, (OSError, RuntimeError, ValueError)):  # uvloop may raise any of these
                self._addresses = None
                raise Unreachable(in_words(error, "no connection could be made")) from error
            raise
        if self._closed:
            connection.drop()
            raise Unreachable("the transport was closed")
        return connection

    async def _open(self) -> _Connection:
        loop = asyncio.get_running_loop()
        sock = await aiohappyeyeballs.start_connection(
            await self._resolved(), happy_eyeballs_delay=_NEXT_ADDRESS_S, loop=loop
        )
        # From here on the event loop owns the socket and closes it, even if this call is cancelled.
        _, connection = await loop.create_connection(
            lambda: _Connection(self),
            sock=sock,
            ssl=verifying_context() if self._is_tls else None,
            server_hostname=self._name.rstrip(".") if self._is_tls else None,
        )
        return connection

    async def _resolved(self) -> list[Any]:
        """Return the host's addresses: at most one look-up runs at a time, and its result is reused for 10 s."""
        loop = asyncio.get_running_loop()
        addresses = self._addresses
        if addresses is None or (addresses.done() and (addresses.exception() or loop.time() > self._addresses_until)):
            look_up = loop.getaddrinfo(self._name, self._port, type=socket.SOCK_STREAM)
            addresses = self._addresses = asyncio.ensure_future(look_up)
            self._addresses_until = loop.time() + _ADDRESSES_S
        return await asyncio.shield(addresses)

    def opened(self, connection: _Connection) -> None:
        """Add a new connection to the pool."""
        self._connections.add(connection)

    def lost(self, connection: _Connection) -> None:
        """Remove a closed connection from the pool."""
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def free_place(self) -> None:
        """Free the place of a finished call, and start the call that has waited longest."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._places += 1

    def give_back(self, connection: _Connection) -> None:
        """Keep the connection of a finished call for the next one, and free the call's place."""
        self._idle.append(connection)
        if self._expiry is None:
            self._expiry = connection.loop.call_later(_KEEPALIVE_S, self._expire)
        if self._waiting:
            self.free_place()
        else:
            self._places += 1

    def _expire(self) -> None:
        self._expiry = None
        idle = self._idle
        while idle:
            loop, until = idle[0].loop, idle[0].idle_since + _KEEPALIVE_S
            if until > loop.time():
                self._expiry = loop.call_at(until, self._expire)
                return
            idle.pop(0).drop()


@functools.cache
def verifying_context() -> ssl.SSLContext:
    """Return the TLS context shared by all connections; loading the system's authorities takes 20 ms."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class _Connection(asyncio.Protocol):
    """One connection. From `post` until the response has ended it carries that response; otherwise it is idle."""

    __slots__ = (
        "_bare",
        "_fields",
        "_is_last",
        "_parser",
        "_parts",
        "_pool",
        "_response",
        "_sends_much",
        "_transport",
        "_used",
        "_writable",
        "idle_since",
        "loop",
        "on_body",
        "on_header",
    )

    _transport: asyncio.Transport

    def __init__(self, pool: Http1Transport) -> None:
        self.loop = asyncio.get_running_loop()
        self.idle_since = 0.0
        self._pool = pool
        self._response: _Response | None = None
        self._used = False
        self._is_last = False
        self._sends_much = False
        self._writable: asyncio.Future[None] | None = None
        """Done when the socket takes more of an upload; None while it does."""
        self._bare = 0
        """Bytes received since the last body byte."""
        self._fields: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        self.on_header = self._fields.setdefault  # the first of several headers of one name counts
        self.on_body = self._parts.append
        self._parser = httptools.HttpResponseParser(self)

    def post(self, message: bytes, max_reply: int, pieces: Sequence[bytes] = (), *, is_last: bool = False) -> _Response:
        """Send a request, its head and body in one write, and further pieces of a large body.

        The connection carries no other after one that `is_last`.
        """
        self._bare = 0
        self._is_last = is_last
        self._sends_much = len(message) > _LARGE or len(pieces) > 0
        response = self._response = _Response(self, max_reply)
        self._transport.write(message)
        if pieces:
            self._transport.writelines(pieces)
        return response

    async def write_all(self, parts: AsyncGenerator[bytes]) -> None:
        """Write the parts of a body, no faster than the server reads them."""
        async with aclosing(parts):
            async for part in parts:
                self._transport.write(part)
                if self._writable is not None:
                    await self._writable

    def fail(self, error: BackendError | None) -> None:
        """Close the connection at once, ending the response that it carries, if any, with `error`.

        Without `error` the connection was stale: the response ends with neither status nor error, and its sender keeps
        the place in the pool for another connection.
        """
        response = self._response
        if response is not None:
            self._response = response.connection = None
            response.is_stale = error is None
            response.error = response.error or error
            if error is not None:
                self._pool.free_place()
            response.wake()
        self.drop()

    def drop(self) -> None:
        """Close a connection that is idle or whose response has ended."""
        self._pool.lost(self)
        self._transport.abort()

    def resume_reading(self) -> None:
        """Continue reading from the socket, after a pause for a slow reader."""
        self._transport.resume_reading()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's are not of asyncio's classes
        self._pool.opened(self)
        with contextlib.suppress(OSError):  # may already be closed
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            self.drop()  # bytes came though no request was sent
            return
        is_http = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            is_http = False
        if parts := self._parts:
            self._bare = 0
            part = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            response.left -= len(part)
            if response.left < 0:
                self.fail(InvalidReply(_TOO_LARGE))
                return
            taker = None if response.has_ended or response.waiter.done() or not is_http else response.taker
            if taker is not None and taker(part):
                return
            response.parts.append(part)
            response.size += len(part)
        else:
            self._bare += len(data)
        if response.has_ended:
            self._end(response, keep=is_http and response.keeps_open)
        elif not is_http:
            # A caller that has read part of the body must get an error for this end too.
            self.fail(Unreachable(_NO_HTTP) if response.status else InvalidReply(_NO_HTTP))
            return
        elif self._bare > _MAX_HEAD:
            self.fail(InvalidReply("the head of the reply is too large"))
            return
        elif response.size > _MAX_BUFFERED and not response.is_read_whole and not response.is_paused:
            response.is_paused = True
            self._transport.pause_reading()
        may_look = response.has_ended or (response.status and not response.is_read_whole)
        if may_look and not response.waiter.done():
            response.waiter.set_result(None)

    def pause_writing(self) -> None:
        self._writable = self.loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def eof_received(self) -> None:
        self._ended(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended(exc)
        del self._parser, self.on_header, self.on_body  # they refer to each other

    # httptools

    def on_message_begin(self) -> None:
        response = self._response
        if response is None or response.has_ended:
            raise ValueError("more than one reply")

    def on_headers_complete(self) -> None:
        response = self._response
        status = self._parser.get_status_code()
        if response is not None and status >= 200:
            response.status = status
            response.fields = self._fields.copy()
        elif status < 100 or status == 101:
            raise ValueError("no status, or an upgrade that was not asked for")
        self._fields.clear()

    def on_message_complete(self) -> None:
        self._fields.clear()  # trailers are ignored
        response = self._response
        if response is not None and response.status:  # 1xx responses also end in this callback
            response.has_ended = True
            response.keeps_open = self._parser.should_keep_alive()

    def _end(self, response: _Response, *, keep: bool) -> None:
        """Release a complete response, and keep the connection if it can carry another request."""
        self._response = response.connection = None
        if response.is_paused:
            response.is_paused = False
            self._transport.resume_reading()
        # A server that refuses a large request may have answered before reading all of it, and never read the rest. For
        # TLS no transport reports how much is unsent.
        is_sent = not self._transport.get_write_buffer_size() and (response.status < 400 or not self._sends_much)
        if keep and is_sent and not self._is_last:
            self._used = True
            self.idle_since = self.loop.time()
            self._pool.give_back(self)
        else:
            self.drop()
            self._pool.free_place()

    def _ended(self, error: Exception | None) -> None:
        """End the response, if any, when the peer closes the connection."""
        response = self._response
        if response is None:
            self.drop()
        elif response.status:
            if error is None and response.goes_to_the_end:
                response.has_ended = True
                self._end(response, keep=False)
                response.wake()
            else:
                self.fail(_caused(Unreachable(in_words(error, _CUT_SHORT) if error else _CUT_SHORT), error))
        elif self._used and not self._bare:
            self.fail(None)
        else:
            self.fail(_caused(Unreachable(in_words(error, _NO_REPLY) if error else _NO_REPLY), error))


def _caused(error: BackendError, cause: Exception | None) -> BackendError:
    error.__cause__ = cause
    return error


class _Response:
    """A response, from the sending of its request. It holds a place in the pool while it has a connection."""

    __slots__ = (
        "_by_name",
        "connection",
        "error",
        "fields",
        "has_ended",
        "is_paused",
        "is_read_whole",
        "is_stale",
        "keeps_open",
        "left",
        "parts",
        "size",
        "status",
        "taker",
        "waiter",
    )

    fields: dict[bytes, bytes]

    def __init__(self, connection: _Connection, left: int) -> None:
        self.connection: _Connection | None = connection
        self.status = 0
        """HTTP status; 0 until the head has come."""
        self.parts: list[bytes] = []
        self.size = 0
        """Unread bytes in `parts`."""
        self.left = left
        """How many more body bytes are accepted."""
        self.error: BackendError | None = None
        """The error that ended the response, if any. Bytes that came before it can still be read."""
        self.has_ended = False
        self.keeps_open = False
        self.is_paused = False
        self.is_read_whole = False
        self.is_stale = False
        self.taker: Callable[[bytes], bool] | None = None
        """Is offered what comes of the body while `chunk` waits. True: it has taken it, and the reader sleeps on."""
        self.waiter: asyncio.Future[None] = connection.loop.create_future()
        """Future of the waiting call, done at news: the head for `send`, bytes for `chunk`, the end for `read`."""
        self._by_name: dict[bytes, bytes] | None = None

    @property
    def goes_to_the_end(self) -> bool:
        """Whether the body ends when the connection does."""
        return self.header("content-length") is None and self.header("transfer-encoding") is None

    def header(self, name: str) -> str | None:
        by_name = self._by_name
        if by_name is None:
            fields = self.fields  # of several with one name the first counts
            by_name = self._by_name = dict(
                zip(map(bytes.lower, reversed(fields)), reversed(fields.values()), strict=True)
            )
        value = by_name.get(name.lower().encode())
        return None if value is None else value.decode("utf-8", "surrogateescape")

    async def read(self) -> bytes:
        self.is_read_whole = True
        while not self.has_ended and self.error is None:
            length = self.header("content-length")
            if self.connection is not None and length is not None and int(length) > self.left + self.size:
                self.connection.fail(InvalidReply(_TOO_LARGE))
                break
            self._resume()
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        if self.error is not None:
            raise self.error
        whole = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        self.parts.clear()
        return whole

    async def chunk(self) -> bytes:
        # One function without helpers, because it is called for every chunk of every stream.
        parts = self.parts
        while not parts:
            if self.error is not None:
                raise self.error
            if self.has_ended:
                return b""
            self.is_read_whole = False
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        part = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self.size = 0
        if self.is_paused:
            self._resume()
        return part

    def close(self, *, end_is_due: bool = False) -> None:
        connection, self.taker = self.connection, None
        if connection is None:
            if self.parts:
                self.parts.clear()
                self.error = Unreachable(_CLOSED)
        elif end_is_due:
            self.parts.clear()
            self.error = Unreachable(_CLOSED)
            self.is_read_whole = True
            self._resume()
            self.wake()
            connection.loop.call_later(DRAIN_S, self.close)
        else:
            self.parts.clear()
            connection.fail(Unreachable(_CLOSED))

    def wake(self) -> None:
        """Wake the waiting call, if any, to check for news."""
        if not self.waiter.done():
            self.waiter.set_result(None)

    def _resume(self) -> None:
        if self.is_paused and self.connection is not None:
            self.is_paused = False
            self.connection.resume_reading()
