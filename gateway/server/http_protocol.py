"""Extend uvicorn's HTTP protocol with limits on headers, idle time and connections, and JSON error replies.

httptools accepts a request head of any size and any number of headers, and holds it in memory before the application
sees the request; it also accepts repeated Host or Authorization headers, of which another proxy may read a different
one. uvicorn answers a parse error in text/plain, waits without limit for the rest of a request, and writes the head and
the body of a reply with a system call each. All else is left to them.
"""

from __future__ import annotations

import asyncio
import socket
from bisect import bisect_left
from collections import deque
from struct import Struct
from time import monotonic
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.errors import envelope
from gateway.http.messages import request_id_of
from gateway.server.connection_limits import PROGRESS, SLOW_S, ConnectionLimits
from gateway.server.descriptors import few_left
from gateway.telemetry.metrics import FIRST_BYTE_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.request.load_shedding import LoadShedder

_MAX_HEAD: Final = 64 << 10
_MAX_HEADERS: Final = 100
_MAX_URL: Final = 8 << 10
_LINGER_S: Final = 1.0
_VERSIONS: Final = frozenset({"1.0", "1.1"})
_ONCE: Final = frozenset({b"host", b"authorization", b"proxy-authorization", b"x-api-key"})
"""Headers that may be given once only: of two, another proxy may read the other one."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_COMMENT: Final = b"2\r\n:\n\r\n"
"""An HTTP chunk with a comment line of an event stream, which clients skip."""
_BODYLESS: Final = frozenset({204, 304})
"""Statuses of replies that have no body."""
_CONTROLS: Final = bytes({*range(32), 127} - {*b"\t\r\n"})
"""Characters that no header may have; carriage returns and line feeds are counted instead."""
_RECEIVED: Final = Struct("52x I")
"""Linux' struct tcp_info up to tcpi_last_data_recv: milliseconds since the last data came, read or not, in steps of
1 to 10 ms; since the connection was made, if none came."""
_LOOKS_S: Final = 0.02
"""Interval in seconds between checks of a half-closed connection while its reply is produced."""

_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}

_Refusal = tuple[int, str, str]
_INVALID: Final[_Refusal] = (400, "invalid_http", "This is not a valid HTTP request.")
_TWICE: Final[_Refusal] = (400, "invalid_http", "Host, Authorization and X-Api-Key may come only once.")
_CODED: Final[_Refusal] = (400, "invalid_http", "The only transfer coding is chunked; send the body with no other.")
_VERSION: Final[_Refusal] = (505, "http_version_not_supported", "Send HTTP/1.1; a proxy in front can take HTTP/2.")
_LONG_URL: Final[_Refusal] = (414, "url_too_long", f"The URL is longer than {_MAX_URL} bytes.")
_MANY: Final[_Refusal] = (431, "headers_too_large", f"The request has more than {_MAX_HEADERS} headers.")
_LARGE: Final[_Refusal] = (431, "headers_too_large", f"The request's headers are larger than {_MAX_HEAD} bytes.")
_CROWDED: Final[_Refusal] = (503, "server_is_overloaded", "This gateway is at its limit of open connections.")
_FULL: Final[_Refusal] = (503, "server_is_overloaded", "This gateway holds as many bytes of requests as it may.")
_SLOW: Final[_Refusal] = (408, "request_timeout", f"The request did not arrive within {SLOW_S:g} seconds.")


class ReplyCycle(RequestResponseCycle):
    """Send the reply to one request: its head in one write with the first piece of its body.

    Header names must be in lower case, as ASGI has them.
    """

    _head = b""
    """The head of the reply until it is written."""
    _when_gone: Callable[[], None] | None = None
    arrived = 0.0
    """When the head of the request had arrived, by `time.monotonic`."""
    first_bytes: list[float] | None = None
    """Takes the time from `arrived` to the reply, where it is counted: see `telemetry.metrics`."""
    until_close = False
    """Whether the end of the connection is the end of the body, as HTTP/1.0 has it for a body of unknown length."""
    opaque = False
    """Whether the body is not the gateway's own, so that its pieces may be cut in the middle of an event."""
    tasks: set[asyncio.Task[None]]
    """Those that answer requests of this server."""
    _failure: asyncio.Task[None] | None = None
    _end_received = False
    """Whether the application has received the end of the request's body."""

    async def receive(self) -> Any:
        """Return the next ASGI message; at once, and without an event of asyncio's, what has come already."""
        while not (self.body or self.disconnected or self.response_complete):
            if not (self.more_body or self._end_received):
                break
            if self.waiting_for_100_continue and not self.transport.is_closing():
                self.transport.write(_CONTINUE)
                self.waiting_for_100_continue = False
            if self.flow.read_paused:
                self.flow.resume_reading()
            self.message_event = asyncio.Event()
            await self.message_event.wait()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        message = {"type": "http.request", "body": bytes(self.body), "more_body": self.more_body}
        self._end_received = not self.more_body
        self.body = bytearray()
        if self.flow.read_paused:
            self.flow.resume_reading()
        return message

    def ended(self, task: asyncio.Task[None]) -> None:
        """End the reply of a request whose task has ended: by status 500, or by closing the connection in the middle.

        A callback, as a coroutine around the application's would be resumed for each chunk of a stream.
        """
        self.tasks.discard(task)
        self.on_response = _nothing  # it refers to the connection, which refers to this
        if not task.cancelled() and (error := task.exception()) is not None:
            self.logger.error("a request met a bug", exc_info=error)
        elif self.response_complete or self.disconnected:
            return
        if self.response_started:
            self.transport.close()
        else:
            self._failure = asyncio.create_task(self.send_500_response())

    def when_gone(self, callback: Callable[[], None] | None) -> None:
        """See `request.context.ClientConnection`."""
        self._when_gone = callback
        if callback is None:
            return
        if self.flow.read_paused:  # after a large body: a paused connection reports no end
            self.flow.resume_reading()
        if self.disconnected:
            asyncio.get_running_loop().call_soon(self.gone)

    def gone(self) -> None:
        """Report the client's disconnection once, to the callback of `when_gone`."""
        callback, self._when_gone = self._when_gone, None
        if callback is not None:
            callback()

    async def send(self, message: Any) -> None:  # noqa: PLR0912  (each call would count per chunk)
        """Send one ASGI message. Raises RuntimeError for one that does not fit what was sent before."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            self.opaque = "opaque" in message
            self._start(message["status"], [*self.default_headers, *message.get("headers", ())])
            return
        if not self.response_started or self.response_complete:
            raise RuntimeError("a body before its head, or after its end")
        data = message.get("body", b"")
        more = message.get("more_body", False)
        if self.chunked_encoding:
            if data:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            if not more:
                data += b"0\r\n\r\n"
        elif self.scope["method"] == "HEAD":
            data = b""
        elif not self.until_close:
            self.expected_content_length -= len(data)
            if self.expected_content_length < 0 or (not more and self.expected_content_length):
                raise RuntimeError("the body is not as long as its content-length")
        data, self._head = self._head + data, b""
        if data:
            self.transport.write(data)
        if not more:
            self.response_complete = True
            self._when_gone = None
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()

    def write_piece(self, data: bytes) -> bool:
        """Write a piece of a stream that `send` has begun, now; return whether the client reads what it is sent."""
        if self.disconnected:
            return True
        chunk = b"%x\r\n%b\r\n" % (len(data), data) if self.chunked_encoding else data
        self.transport.write(self._head + chunk)
        self._head = b""
        return not self.flow.write_paused

    def send_held_head(self) -> None:
        """Write the head now, if it waits for the first piece of the body."""
        if self._head and not self.transport.is_closing():
            self.transport.write(self._head)
        self._head = b""

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if self.response_started:
            raise RuntimeError("a second head")
        self.response_started = True
        self.waiting_for_100_continue = False
        fields = dict(headers)
        length = fields.get(b"content-length")
        if length is not None:
            self.chunked_encoding = False
            self.expected_content_length = int(length)
        elif self.scope["method"] != "HEAD" and status not in _BODYLESS:
            self.until_close = self.scope.get("http_version") == "1.0"
            self.chunked_encoding = not self.until_close
            if self.until_close:
                self.keep_alive = False
            else:
                headers.append((b"transfer-encoding", b"chunked"))
            # The first piece may take a while: that of a shared stream is another request's.
            asyncio.get_running_loop().call_soon(self.send_held_head)
        if b"close" in fields.get(b"connection", b""):
            self.keep_alive = False
        elif not self.keep_alive:
            headers.append((b"connection", b"close"))
        lines = b"\r\n".join(map(b": ".join, headers))
        breaks = len(headers) - 1
        if lines.count(b"\n") != breaks or lines.count(b"\r") != breaks or lines.translate(None, _CONTROLS) != lines:
            self.response_started = False
            raise RuntimeError("a header with control characters")
        self._head = STATUS_LINE[status] + lines + b"\r\n\r\n"
        if self.first_bytes is not None:
            took_s = monotonic() - self.arrived
            self.first_bytes[bisect_left(FIRST_BYTE_BUCKETS, took_s)] += 1
            self.first_bytes[-1] += took_s


def _nothing() -> None:
    """Do nothing: the request is over."""


async def _raising(error: Exception) -> None:
    raise error


_NOBODY_WAITS: Any = SimpleNamespace(set=bool)
"""Stands for an event until a request waits for one: most have come whole before they are read."""


class HttpProtocol(HttpToolsProtocol):
    """Handle one client connection; implements `connection_limits.Connection`."""

    scope: Any
    cycle: ReplyCycle
    pipeline: deque[tuple[ReplyCycle, Any]]  # type: ignore[assignment]
    connection: socket.socket | None = None
    """The accepted socket, where the system says when it received what; the transport's to close."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._gate: LoadShedder = self.app_state["gate"]
        self._connections: ConnectionLimits = self.app_state["connections"]
        self._admin_port: int | None = self.app_state.get("admin_port")
        times: tuple[list[float] | None, ...] = self.app_state.get("first_bytes") or (None, None)
        self._first_bytes, self._later_first_bytes = times
        self._sockets: frozenset[bytes] = self.app_state.get("sockets", frozenset())
        """Paths that a WebSocket may be opened at."""
        self._probes: frozenset[bytes] = self.app_state.get("probes", frozenset())
        self._waited_for = False
        self.kept_back = False
        """See `connection_limits.Connection`."""
        self._progress = 0
        """Bytes of the body received since progress was last reported."""
        self._in_head = False
        self._read = 0
        self._late = 0
        """Bytes of the request head that arrived after the read in which it began."""
        self._head_held = False
        """Whether the bytes of its unfinished head are counted."""
        self._opens_socket = False
        """Whether the request opens a WebSocket."""
        self._refusal = _INVALID
        self._refused = False

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        began = not self._in_head
        self._read = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # else the application answers the request, and refuses a WebSocket by 426
            if self._opens_socket:
                self.handle_websocket_upgrade()
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response(self._refusal[1])
        cycle = self.cycle
        if self._in_head or self._waited_for or (cycle is not None and cycle.more_body):
            self._note_pace(len(data))
        if self._in_head and not self._refused:
            self._late = 0 if began else self._late + len(data)
            self._head_held = True
            if (fault := self._fault(self._late)) is not None:
                self._connections.head_came(self)
                self._refusal = fault
                self.send_400_response(fault[1])
            else:
                self._connections.head_grows(self, len(data))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        room = not few_left(transport.get_extra_info("socket").fileno())
        self._connections.opened(self, self.loop.time(), room=room, admin=self._is_admin())
        self._waited_for = self.kept_back

    def _is_admin(self) -> bool:
        return self._admin_port is not None and self.server is not None and self.server[1] == self._admin_port

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.closed(self)
        super().connection_lost(exc)
        if self.cycle is not None:
            self.cycle.gone()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Handle the end of the client's data: it has disconnected, or has only finished sending (`nc -N`).

        To tell them apart, send something: a client that is gone answers with a reset. Harmless to send are an interim
        response before the reply, and a comment between two events of a stream. True keeps the connection open; the
        last reply closes it.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body or self._in_head or self._refused:
            return None
        if cycle.scope["http_version"] == "1.0":
            return None  # HTTP/1.0 has no interim responses
        if cycle.opaque:
            return None  # nothing harmless can be sent in the middle of a file
        cycle.keep_alive = False
        if not cycle.response_started and not self.pipeline:
            self.transport.write(_CONTINUE)
        elif cycle.chunked_encoding:  # of the gateway's own replies, only event streams are sent chunked
            cycle.send_held_head()
            self.transport.write(_COMMENT)
        self._look_for_reset()
        return True

    def _look_for_reset(self) -> None:
        """Abort a half-closed connection once its client answers with a reset, which asyncio no longer reports."""
        if self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            self.loop.call_later(_LOOKS_S, self._look_for_reset)

    def on_response_complete(self) -> None:
        """Answer the next request of the connection; without one it is idle.

        uvicorn would start a timer each time; here `connection_limits` closes idle connections.
        """
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            if self.flow.read_paused:
                self.flow.resume_reading()
            if self.pipeline:
                self._answer(self.pipeline.pop()[0])
        # Idle too while it closes: the end of a reply that its client does not read must not hold a place.
        if self.cycle.response_complete:
            self._connections.rests(self, self.loop.time())

    def give_way(self) -> None:
        """Close the connection; see `connection_limits.Connection`."""
        self.transport.close()

    def turn_away(self, *, patient: bool) -> None:
        """Reject the connection with 503; see `connection_limits.Connection`."""
        self._refusal = _CROWDED
        if patient:
            self.send_400_response(_CROWDED[2])
        else:
            self._refused = True
            self.transport.write(self._refusing())
            self.transport.close()

    def too_slow(self) -> None:
        """Reject the request with 408; see `connection_limits.Connection`."""
        self._refusal = _SLOW
        self.send_400_response(_SLOW[1])

    def no_room(self) -> None:
        """Reject the request with 503; see `connection_limits.Connection`."""
        self._refusal = _FULL
        self.send_400_response(_FULL[1])

    def _note_pace(self, size: int) -> None:
        """Report to the connection limits whether the rest of a request is awaited: not while an earlier one is
        answered.
        """
        cycle = self.cycle
        if self._in_head:
            waited_for = cycle is None or cycle.response_complete
        else:
            waited_for = cycle.more_body and not cycle.response_complete and not self.pipeline
        if self._waited_for:
            self._progress += 0 if self._in_head else size
            if not waited_for or self._progress >= PROGRESS:
                self._connections.goes_on(self)
                self._progress = 0
        if waited_for:
            self._connections.waits(self, self.loop.time())
        self._waited_for = waited_for

    def handle_websocket_upgrade(self) -> None:
        """Give the connection to the protocol of WebSockets; it counts among those that are open until its end."""
        self._connections.goes_on(self)
        super().handle_websocket_upgrade()
        socket_: Any = self.transport.get_protocol()
        self._connections.becomes(self, socket_)

    def _takes_sockets(self) -> bool:
        """Return whether a request to change the protocol is for a WebSocket at a path that has them."""
        return (
            not self._is_admin()
            and self.url.partition(b"?")[0] in self._sockets
            and self.parser.get_method() == b"GET"
            and dict(self.headers).get(b"upgrade", b"").lower() == b"websocket"
        )

    def on_message_begin(self) -> None:
        self._connections.begins(self)
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._in_head, self._late, self._opens_socket = True, 0, False

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._head_held:
            self._connections.head_came(self)
            self._head_held = False
        # The exact size is computed only if the limit may be exceeded: a head is rarely larger than one read.
        size = self._late + self._read
        if size > _MAX_HEAD:
            size = sum(len(name) + len(value) for name, value in self.headers)
        if (fault := self._fault(size, whole=True)) is not None:
            self._refusal = fault
            raise ValueError(fault)  # makes the parser fail, which refuses the request
        if self.kept_back and not self._is_admin() and self.url.partition(b"?")[0] not in self._probes:
            self._refusal = _CROWDED
            raise ValueError(_CROWDED)
        parser, version = self.parser, self.parser.get_http_version()
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        self.scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": parser.get_method().decode("ascii"),
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
            "headers": self.headers,
            "state": self.app_state.copy(),
        }
        if parser.should_upgrade() and self._takes_sockets():
            self._opens_socket = True
            return
        before = self.cycle
        cycle = self.cycle = ReplyCycle(
            self.scope,
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=_NOBODY_WAITS,
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        cycle.first_bytes, self._first_bytes = self._first_bytes, self._later_first_bytes
        if cycle.first_bytes is not None:
            cycle.arrived = monotonic()
            if self.connection is not None:
                try:
                    info = self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
                    cycle.arrived -= _RECEIVED.unpack(info)[0] / 1000
                except OSError:  # closed
                    pass
        if not self._gate.keeps_alive or self.kept_back:
            cycle.keep_alive = False
        if before is None or before.response_complete:
            self._answer(cycle)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def _answer(self, cycle: ReplyCycle) -> None:
        """Start the task that answers a request."""
        try:
            answering = self.app(cycle.scope, cycle.receive, cycle.send)
        except Exception as error:  # noqa: BLE001  (a bug, which `ended` answers)
            answering = _raising(error)
        task = self.loop.create_task(answering)
        cycle.tasks = self.tasks
        cycle.tasks.add(task)
        task.add_done_callback(cycle.ended)

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:  # none: a WebSocket is opened
            return
        cycle.more_body = False
        cycle.message_event.set()

    def _fault(self, head: int, *, whole: bool = False) -> _Refusal | None:
        """Return the refusal of a head of so many bytes: too large, or, once it is `whole`, what llhttp accepts and the
        gateway cannot read: headers given twice, other HTTP versions, other codings.
        """
        if len(self.url) > _MAX_URL:
            return _LONG_URL
        if len(self.headers) > _MAX_HEADERS:
            return _MANY
        if head > _MAX_HEAD:
            return _LARGE
        if not whole:
            return None
        seen = dict(self.headers)
        if len(seen) < len(self.headers):
            names = [name for name, _ in self.headers]
            if any(names.count(name) > 1 for name in _ONCE):
                return _TWICE
            seen = dict(reversed(self.headers))  # of equal names the first counts
        if self.parser.get_http_version() not in _VERSIONS:
            return _VERSION
        coding = seen.get(b"transfer-encoding")
        return _CODED if coding is not None and coding.strip().lower() != b"chunked" else None

    def send_400_response(self, msg: str) -> None:
        """Send the refusal (`self._refusal`) and ignore whatever else arrives on this connection."""
        self._refused = True
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            cycle.gone()
            if cycle.response_started:
                # A refusal cannot be sent in the middle of a reply.
                self.transport.close()
                return
        self.transport.write(self._refusing())
        # Close a moment later: a client that is still sending would get a reset and could not read the refusal.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.close)

    def _refusing(self) -> bytes:
        status, code, message = self._refusal
        type_ = "service_unavailable_error" if status == 503 else "invalid_request_error"
        body = envelope(message, type_, None, code)
        retry = "retry-after: 1\r\n" if status == 503 else ""
        head = (
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"x-request-id: {request_id_of({})}\r\nopenai-processing-ms: 0\r\n{retry}connection: close\r\n\r\n"
        )
        return STATUS_LINE[status] + head.encode() + body
