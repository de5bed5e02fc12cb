"""A scripted OpenAI-compatible model server on a real socket, with every fault a backend can have.

    with Upstream() as upstream:
        upstream.on("hard question").reply(text="no idea", logprob=-3.0)    # a word of the prompt, or a predicate
        upstream.queue(error_reply(503), Reply(text="second time lucky"))   # once each, before any rule
        ...                                                                  # talk to upstream.url
        assert upstream.requests[0].body["model"] == "small"
        upstream.requests[0].wait_gone(0.1)                                  # the peer cancelled

It runs an event loop in a thread of its own, so tests of any kind, and processes they start, can use it. With nothing
scripted it answers any chat completion; see `Reply`. Times are `time.monotonic()` seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httptools

from tests.support.rendering import End, Pause, Send, Step, steps
from tests.support.replies import Fault, Json, Reply, ToolCall, error_reply
from tests.support.wait import until

__all__ = ["Fault", "Received", "Reply", "ToolCall", "Upstream", "error_reply"]


@dataclass(eq=False)
class Received:
    """One request, as it came, and what became of its reply. Header names are lower case."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    at: float
    body: Any = None
    """The parsed JSON, or None."""
    reply: Reply | None = None
    sent_bytes: int = 0
    done_at: float | None = None
    """When the reply, or the fault in it, was complete."""
    gone_at: float | None = None
    """When the peer left before that."""

    @property
    def prompt(self) -> str:
        """The text of the last message."""
        messages = self.body.get("messages") if isinstance(self.body, dict) else None
        return str(messages[-1].get("content") or "") if messages else ""

    def wait_gone(self, timeout_s: float = 5.0) -> float:
        """When the peer left before the reply was complete; AssertionError if it did not within `timeout_s`."""
        return until(lambda: self.gone_at, timeout_s, f"the peer leaves {self.path}") or 0.0


Match = Callable[[Received], bool]


@dataclass(eq=False)
class Rule:
    """Replies for the requests that match: in order, the last one again and again."""

    match: Match
    replies: deque[Reply] = field(default_factory=deque)

    def reply(self, *replies: Reply, **members: Any) -> None:
        """Answers with `replies`, or with `Reply(**members)`."""
        self.replies.extend(replies or (Reply(**members),))

    def next(self) -> Reply:
        """The reply for one more request."""
        return self.replies.popleft() if len(self.replies) > 1 else self.replies[0]


class Upstream:
    """See the module's docstring. `reset()` forgets the script and the requests, and keeps the port."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.requests: list[Received] = []
        """The model calls, in order."""
        self.probes: list[Received] = []
        """Everything else: health checks, lists of models."""
        self.default = Reply()
        self.connections = 0
        self._host, self._port = host, port
        self._queue: deque[Reply] = deque()
        self._rules: list[Rule] = []
        self._open: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="upstream", daemon=True)
        self._server: asyncio.Server | None = None
        self._placeholder: socket.socket | None = None

    def __enter__(self) -> Upstream:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    @property
    def url(self) -> str:
        """The base URL, as an OpenAI client wants it."""
        return f"http://{self._host}:{self._port}/v1"

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._port

    @property
    def in_flight(self) -> int:
        """Model calls whose reply is neither complete nor abandoned."""
        return sum(1 for request in self.requests if request.done_at is None and request.gone_at is None)

    def on(self, match: Match | str) -> Rule:
        """Replies for the requests that `match`, or whose last message contains it; the newest rule wins."""
        rule = Rule((lambda request: match in request.prompt) if isinstance(match, str) else match)
        self._rules.insert(0, rule)
        return rule

    def queue(self, *replies: Reply) -> None:
        """Answers the next model calls with these, one each, whatever the rules say."""
        self._queue.extend(replies)

    def reset(self) -> None:
        """Back to the beginning: the default reply, no rules, no requests, listening; hung replies are closed."""
        self.accept()
        self._run(self._reset())

    def refuse(self) -> None:
        """Connections are refused, and the open ones closed, until `accept()`; the port stays ours."""
        self._run(self._refuse())

    def accept(self) -> None:
        """Listens again."""
        if self._placeholder is not None:
            self._run(self._listen())

    def close_idle(self) -> None:
        """Closes the kept-alive connections, as a server does that has waited long enough."""
        self._run(self._drop(lambda connection: not connection.busy))

    def wait_for(self, count: int, timeout_s: float = 5.0) -> list[Received]:
        """The model calls, once there are `count`."""
        until(lambda: len(self.requests) >= count, timeout_s, f"{count} model calls")
        return self.requests

    # Below: on the loop's thread.

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _reset(self) -> None:
        await self._drop(lambda connection: connection.busy)
        self.default = Reply()
        self._queue.clear()
        self._rules.clear()
        self.requests.clear()
        self.probes.clear()
        self.connections = 0

    async def _listen(self) -> None:
        self._free()
        self._server = await self._loop.create_server(
            lambda: _Connection(self), self._host, self._port, reuse_address=True, backlog=1024
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        await self._stop()
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((self._host, self._port))
        self._placeholder = held

    async def _stop(self) -> None:
        self._free()
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._drop(lambda connection: True)

    async def _drop(self, which: Callable[[_Connection], bool]) -> None:
        for connection in [one for one in self._open if which(one)]:
            connection.transport.abort()
        await asyncio.sleep(0)

    def _free(self) -> None:
        if self._placeholder is not None:
            self._placeholder.close()
            self._placeholder = None

    def _choose(self, request: Received) -> Reply:
        if self._queue:
            return self._queue.popleft()
        return next((rule.next() for rule in self._rules if rule.match(request)), self.default)


class _Connection(asyncio.Protocol):
    """One connection: parses requests, carries out the steps of their replies, notes when the peer leaves."""

    transport: asyncio.Transport

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._headers, self._raw = b"", dict[str, str](), bytearray()
        self._request: Received | None = None
        self._reply: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def busy(self) -> bool:
        """Whether a reply is on its way."""
        return self._reply is not None and not self._reply.done()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._upstream.connections += 1
        self._upstream._open.add(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def eof_received(self) -> None:
        self._peer_left()

    def connection_lost(self, exc: Exception | None) -> None:
        self._peer_left()
        self._upstream._open.discard(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _peer_left(self) -> None:
        request = self._request
        if request is not None and request.done_at is None and request.gone_at is None:
            request.gone_at = time.monotonic()
        if self._reply is not None:
            self._reply.cancel()

    # httptools

    def on_message_begin(self) -> None:
        self._url, self._headers, self._raw = b"", {}, bytearray()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._raw += body

    def on_message_complete(self) -> None:
        method, path, raw = self._parser.get_method().decode(), self._url.decode(), bytes(self._raw)
        request = self._request = Received(method, path, self._headers, raw, time.monotonic())
        with contextlib.suppress(ValueError):  # no JSON: recorded as it came, with no parsed body
            request.body = json.loads(raw) if raw else None
        self._answer(request)

    def _answer(self, request: Received) -> None:
        body: Json = request.body if isinstance(request.body, dict) else {}
        if request.method == "POST" and request.path.endswith("/chat/completions"):
            reply = self._upstream._choose(request)
            self._upstream.requests.append(request)
        else:
            reply = _probe(request)
            self._upstream.probes.append(request)
        request.reply = reply
        self._reply = asyncio.create_task(self._carry_out(request, steps(reply, body)))

    async def _carry_out(self, request: Received, script: Any) -> None:
        for step in script:
            if isinstance(step, End):
                await self._end(request, step)
                return
            await self._step(request, step)
        request.done_at = time.monotonic()

    async def _step(self, request: Received, step: Step) -> None:
        match step:
            case Send(data):
                await self._writable.wait()
                self.transport.write(data)
                request.sent_bytes += len(data)
            case Pause(seconds):
                await asyncio.sleep(seconds)

    async def _end(self, request: Received, end: End) -> None:
        match end:
            case End.HANG:
                await asyncio.Event().wait()
            case End.CLOSE:
                request.done_at = time.monotonic()
                self.transport.close()
            case End.RESET:
                request.done_at = time.monotonic()
                await asyncio.sleep(0.01)  # what was sent arrives before the reset throws the rest away
                sock = self.transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.transport.abort()


def _probe(request: Received) -> Reply:
    if request.path.endswith("/models"):
        found = {"object": "list", "data": [{"id": "scripted", "object": "model", "created": 0, "owned_by": "tests"}]}
        return Reply(body=json.dumps(found).encode())
    if request.path in ("/health", "/v1/health"):
        return Reply(body=b'{"status":"ok"}')
    return error_reply(404, f"no such path: {request.path}", "invalid_request_error", "unknown_url")
