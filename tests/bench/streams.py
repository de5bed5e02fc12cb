"""Streams, watched from the client's side: when the first chunk comes, how evenly the rest do, what a chunk costs."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass, field
from typing import cast

import uvloop

from tests.bench.load import Subject
from tests.bench.rig import Meter

_CHUNK = b"data: {"
_END = b"0\r\n\r\n"
_SPREAD_S = 0.1
"""Streams begin one after another over this time: were they to begin together, each would wait for all others."""


@dataclass(frozen=True, slots=True)
class Shape:
    """So many streams at a time, each of so many chunks, one every `pace_ms`."""

    concurrent: int
    chunks: int
    pace_ms: float


@dataclass(slots=True)
class Watched:
    """What was seen of all streams of one run. Times in ms; `gaps_ms` are between paced chunks."""

    ttft_ms: list[float] = field(default_factory=list)
    gaps_ms: list[float] = field(default_factory=list)
    chunks: int = 0
    failed: int = 0
    cpu_s: float = 0.0

    @property
    def cpu_us_per_chunk(self) -> float:
        """The service's CPU time per chunk, its share of the requests' own cost included."""
        return self.cpu_s / max(1, self.chunks) * 1e6


def watch(subject: Subject, shape: Shape, seconds: float) -> Watched:
    """Streams through `subject` for `seconds`; those that began in time are read to their end."""
    found = Watched()
    meter = Meter(subject.service.pid)
    uvloop.run(_watch(subject, shape, seconds, found))
    found.cpu_s = meter.read()[0]
    return found


async def _watch(subject: Subject, shape: Shape, seconds: float, found: Watched) -> None:
    deadline = time.perf_counter() + seconds
    request = _request(subject, shape)
    apart = min(shape.chunks * shape.pace_ms / 1000, _SPREAD_S) / shape.concurrent
    clients = [_client(subject.service.port, request, n * apart, deadline, found) for n in range(shape.concurrent)]
    await asyncio.gather(*clients)


def _request(subject: Subject, shape: Shape) -> bytes:
    body = subject.body(stream=True, max_tokens=4096, bench_chunks=shape.chunks, bench_pace_ms=shape.pace_ms)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def _client(port: int, request: bytes, wait_s: float, deadline: float, found: Watched) -> None:
    await asyncio.sleep(wait_s)
    _, protocol = await asyncio.get_running_loop().create_connection(lambda: _Reader(found), "127.0.0.1", port)
    while time.perf_counter() < deadline:
        try:
            await asyncio.wait_for(protocol.ask(request), 30)
        except (ConnectionError, TimeoutError):
            found.failed += 1
            break
    protocol.transport.close()


class _Reader(asyncio.Protocol):
    """One kept-alive connection, one stream at a time."""

    transport: asyncio.Transport

    def __init__(self, found: Watched) -> None:
        self._found = found
        self._done: asyncio.Future[None] | None = None
        self._sent = self._last = 0.0
        self._seen = 0
        self._tail = b""

    def ask(self, request: bytes) -> asyncio.Future[None]:
        """Sends the request; the future is done when its stream is."""
        self._done = asyncio.get_running_loop().create_future()
        self._seen = 0
        self._tail = b""
        if self.transport.is_closing():
            self.connection_lost(None)
            return self._done
        self._sent = time.perf_counter()
        self.transport.write(request)
        return self._done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are not of asyncio's classes
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if count := data.count(_CHUNK):
            self._count(count, now)
        self._tail = (self._tail + data)[-len(_END) :]
        if self._tail == _END and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _count(self, count: int, now: float) -> None:
        if not self._seen:
            self._found.ttft_ms.append((now - self._sent) * 1000)
        elif self._seen > 1:  # the first two leave together
            self._found.gaps_ms += [(now - self._last) * 1000, *[0.0] * (count - 1)]
        self._seen += count
        self._found.chunks += count
        self._last = now

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionResetError("the stream broke"))
