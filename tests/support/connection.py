"""One connection of the scripted upstream: requests in, the steps of their replies out, and when the peer left.

The replies are those of `kind: scripted` (`gateway.parts.local.kinds.scripted.replies`), here in HTTP/1.1 on a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import httptools

from gateway.parts.local.kinds.scripted.replies import CREATED, End, Head, Pause, Send, Step, steps
from gateway.parts.local.kinds.scripted.script import Json
from gateway.parts.local.kinds.scripted.script import ModelReply as Reply
from tests.support.wait import until

_ids = itertools.count(1)


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


class Host(Protocol):
    """What a connection belongs to. All calls come on the event loop's thread."""

    def opened(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection) -> None: ...

    def reply_to(self, request: Received) -> Reply:
        """The scripted reply; the request is recorded from here on."""


class Connection(asyncio.Protocol):
    """One connection: parses requests, carries out the steps of their replies, notes when the peer leaves."""

    transport: asyncio.Transport

    def __init__(self, host: Host) -> None:
        self._host = host
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
        self._host.opened(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def eof_received(self) -> None:
        self._peer_left()

    def connection_lost(self, exc: Exception | None) -> None:
        self._peer_left()
        self._host.closed(self)

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
        request.reply = reply = self._host.reply_to(request)
        identity = {"id": f"chatcmpl-{next(_ids)}", "created": CREATED}
        self._reply = asyncio.create_task(self._carry_out(request, framed(steps(reply, body, identity))))

    async def _carry_out(self, request: Received, script: Iterator[Step]) -> None:
        for step in script:
            if self.transport.is_closing():
                return  # the peer is gone; a script of writes alone would never let the loop say so
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
            case _:
                raise AssertionError(f"{step} is no step on a socket")

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


def framed(script: Iterator[Step]) -> Iterator[Step]:
    """Yield the steps with their bytes as HTTP/1.1 has them: heads written out, bodies of no known length chunked."""
    chunked = False
    for step in script:
        match step:
            case Head(status, content_type, length, more):
                chunked = length is None
                framing = {"transfer-encoding": "chunked"} if chunked else {"content-length": str(length)}
                fields = {"content-type": content_type} | framing | {k.lower(): v for k, v in more.items()}
                phrase = http.client.responses.get(status, "Scripted")
                lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in fields.items())]
                yield Send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
            case Send(data) if chunked:
                yield Send(b"%x\r\n%b\r\n" % (len(data), data))
            case End():
                yield step
                return
            case _:
                yield step
    if chunked:
        yield Send(b"0\r\n\r\n")
