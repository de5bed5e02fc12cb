"""A scripted model server made for load: `python -m tests.bench.live.upstream PORT CONTROL_PORT`.

What it does is told on the control port, which stays open while the other refuses: POST /behaviour (see `Behaviour`),
POST /reset forgets the calls, GET /stats gives them. Times there are `time.monotonic_ns()`, one clock for all processes
of a machine; a call is known by the `bench_id` of its body, its script by the `bench_prompt`.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import orjson
import uvloop

from tests.bench.live.behaviour import Behaviour, Script, script
from tests.bench.live.wire import (
    ROLE,
    STREAM_HEAD,
    completion,
    ending,
    error,
    logprobs_of,
    reply,
    token_event,
    tokens_of,
)

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHARS_PER_TOKEN = 4


@dataclass(slots=True)
class Record:
    """One call, as GET /stats gives it: a list of these fields in this order. 0 is never."""

    bench_id: int
    tokens_in: int
    arrived_ns: int
    first_ns: int = 0
    marked_ns: int = 0
    ended_ns: int = 0
    gone_ns: int = 0
    tokens_out: int = 0
    failed: int = 0

    def told(self) -> list[int]:
        """As JSON holds it."""
        return [
            self.bench_id,
            self.tokens_in,
            self.arrived_ns,
            self.first_ns,
            self.marked_ns,
            self.ended_ns,
            self.gone_ns,
            self.tokens_out,
            self.failed,
        ]


class Server:
    """The script, the places, and what was seen."""

    def __init__(self, port: int) -> None:
        self.behaviour = Behaviour()
        self.connections: set[Connection] = set()
        self._port = port
        self._records: list[Record] = []
        self._busy = 0
        self._peak = 0
        self._waiting: deque[Call] = deque()
        self._listening: asyncio.Server | None = None

    async def listen(self) -> None:
        """Opens the port."""
        loop = asyncio.get_running_loop()
        if self._listening is None:
            self._listening = await loop.create_server(
                lambda: Connection(self), "127.0.0.1", self._port, backlog=2048, reuse_address=True
            )

    async def control(self, path: bytes, body: bytes) -> bytes:
        """One request on the control port; the whole reply."""
        if path == b"/behaviour":
            self.behaviour = Behaviour.of(orjson.loads(body))
            if self.behaviour.outage == "refuse":
                self._refuse()
            else:
                await self.listen()
        elif path == b"/reset":
            self._records, self._peak = [], self._busy
        elif path == b"/stats":
            calls = [record.told() for record in self._records]
            return reply(200, orjson.dumps({"calls": calls, "peak": self._peak, "busy": self._busy}))
        else:
            return error(404)
        return reply(200, b"{}")

    def _refuse(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        for connection in list(self.connections):
            connection.transport.abort()

    def called(self, connection: Connection, body: dict[str, Any]) -> Call | None:
        """A model call: what it has become, or None if it is answered already."""
        behaviour = self.behaviour
        tokens_in = sum(len(message["content"]) for message in body["messages"]) // _CHARS_PER_TOKEN
        record = Record(int(body.get("bench_id", 0)), tokens_in, time.monotonic_ns())
        self._records.append(record)
        plan = script(behaviour, int(body.get("bench_prompt", 0)), tokens_in)
        if behaviour.outage == "error" or plan.fate == "fails":
            self._refuse_call(connection, record, error(500))
            return None
        call = Call(self, connection, body, behaviour, plan, record)
        if behaviour.outage == "hang" or plan.fate == "hangs":
            return call
        if not behaviour.capacity or self._busy < behaviour.capacity:
            self._begin(call)
        elif behaviour.line and len(self._waiting) >= behaviour.line:
            self._refuse_call(connection, record, error(503, f"retry-after: {behaviour.retry_after_s:g}\r\n"))
            return None
        else:
            self._waiting.append(call)
        return call

    def _refuse_call(self, connection: Connection, record: Record, whole: bytes) -> None:
        record.failed = 1
        record.ended_ns = time.monotonic_ns()
        connection.transport.write(whole)

    def _begin(self, call: Call) -> None:
        self._busy += 1
        self._peak = max(self._peak, self._busy)
        call.begin()

    def leave(self, call: Call, *, began: bool) -> None:
        """A call is over; the next in line has its place."""
        if not began:
            if call in self._waiting:
                self._waiting.remove(call)
            return
        self._busy -= 1
        while self._waiting and self._busy < self.behaviour.capacity:
            self._begin(self._waiting.popleft())


class Call:
    """One model call on its way."""

    def __init__(
        self,
        server: Server,
        connection: Connection,
        body: dict[str, Any],
        behaviour: Behaviour,
        plan: Script,
        record: Record,
    ) -> None:
        self._server, self._connection, self._record = server, connection, record
        self._plan, self._behaviour = plan, behaviour
        self._stream = bool(body.get("stream"))
        self._usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self._tokens = tokens_of(plan)
        asked = body.get("logprobs") and behaviour.logprobs
        self._logprobs = logprobs_of(plan, int(body.get("bench_prompt", 0))) if asked else None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._began = False
        self._over = False
        self._sent = 0
        self._first_at = 0.0

    def begin(self) -> None:
        """Its place is free: the answer starts a TTFT from now."""
        self._began = True
        if self._stream:
            self._first_at = self._loop.time() + self._plan.ttft_s
            self._timer = self._loop.call_at(self._first_at, self._next)
        elif self._plan.fate != "stalls":
            whole_s = self._plan.ttft_s + (len(self._tokens) - 1) * self._behaviour.pace / 1000
            self._timer = self._loop.call_later(whole_s, self._whole)

    def gone(self) -> None:
        """The peer has closed the connection."""
        if not self._over:
            self._record.gone_ns = time.monotonic_ns()
            self._end()

    def _next(self) -> None:
        record, number = self._record, self._sent
        event = token_event(self._tokens[number], self._logprobs[number] if self._logprobs else None)
        self._connection.transport.write(event if number else STREAM_HEAD + ROLE + event)
        now = time.monotonic_ns()
        record.first_ns = record.first_ns or now
        self._sent = record.tokens_out = number + 1
        if self._sent == self._behaviour.mark:
            record.marked_ns = now
        if self._sent == len(self._tokens):
            self._connection.transport.write(ending(record.tokens_in, self._sent, self._usage))
            self._answered()
        elif self._plan.fate != "stalls" or self._sent * 2 < len(self._tokens):
            due = self._first_at + self._sent * self._behaviour.pace / 1000
            self._timer = self._loop.call_at(due, self._next)

    def _whole(self) -> None:
        self._record.first_ns = time.monotonic_ns()
        self._record.tokens_out = len(self._tokens)
        self._connection.transport.write(completion(self._tokens, self._logprobs, self._record.tokens_in))
        self._answered()

    def _answered(self) -> None:
        self._record.ended_ns = time.monotonic_ns()
        self._end()

    def _end(self) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        self._connection.call = None
        self._server.leave(self, began=self._began)


class _Http(asyncio.Protocol):
    """Whole requests, one after another, of one connection."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are not of asyncio's classes
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._buffer, 0, end)
            total = end + 4 + (int(length[1]) if length else 0)
            if len(self._buffer) < total:
                return
            path, body = self._buffer.split(b" ", 2)[1], self._buffer[end + 4 : total]
            self._buffer = self._buffer[total:]
            self.requested(path, body)

    def requested(self, path: bytes, body: bytes) -> None:
        """One request is there."""
        raise NotImplementedError


class Connection(_Http):
    """Model calls, one at a time."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.call: Call | None = None
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        if self.call is not None:
            self.call.gone()

    def requested(self, path: bytes, body: bytes) -> None:
        if not path.endswith(b"/chat/completions"):
            self.transport.write(reply(200, b'{"object":"list","data":[]}'))
            return
        self.call = self._server.called(self, orjson.loads(body))


class _Control(_Http):
    def __init__(self, control: Callable[[bytes, bytes], Any]) -> None:
        super().__init__()
        self._control = control
        self._tasks: set[asyncio.Task[None]] = set()

    def requested(self, path: bytes, body: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(path, body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, path: bytes, body: bytes) -> None:
        self.transport.write(await self._control(path, body))


async def _serve(port: int, control: int) -> None:
    server = Server(port)
    await server.listen()
    controls = await asyncio.get_running_loop().create_server(lambda: _Control(server.control), "127.0.0.1", control)
    await controls.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
