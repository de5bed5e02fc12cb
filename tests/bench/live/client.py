"""The clients: raw sockets, kept alive, that note when what came. Times are `time.monotonic_ns()`."""

from __future__ import annotations

import asyncio
import math
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

_CONTENT = re.compile(rb'"content":"(?!")')
_PIECE = re.compile(rb'"content":"((?:[^"\\]|\\.)*)"')
_LOGPROB = re.compile(rb'"logprob":(-?[0-9.e-]+)')
_FINAL_COST = re.compile(rb"x-tierline-cost-usd=([0-9.]+)")
_FINAL_ATTEMPTS = re.compile(rb"x-tierline-attempts=(\d+)")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_END = b"0\r\n\r\n"
_PATIENCE_S = 60.0
_FILLER = (
    "please answer in a few words and name the part number of the chain that fits the frame of the touring bicycle"
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `number` is its own, `prompt` what decides the answer; `leave_after_s` closes the connection."""

    number: int
    model: str
    prompt: int
    stream: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)
    leave_after_s: float | None = None
    logprobs: bool = False

    def message(self, port: int) -> bytes:
        """Head and body."""
        text = f"question {self.prompt}: {_FILLER} {self.prompt * 7919 % 100_003}"
        told = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "stream": self.stream,
            "bench_id": self.number,
            "bench_prompt": self.prompt,
        }
        if self.logprobs:
            told["logprobs"] = True
        body = orjson.dumps(told)
        more = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        return f"{head}{more}content-length: {len(body)}\r\n\r\n".encode() + body


@dataclass(slots=True, eq=False)
class Answer:
    """What came back. 0 is never; `broken` says why there is no whole reply, if there is none."""

    ask: Ask
    due_ns: int = 0
    sent_ns: int = 0
    first_ns: int = 0
    """The first content."""
    done_ns: int = 0
    left_ns: int = 0
    status: int = 0
    head: bytes = b""
    body: bytes = b""
    broken: str = ""

    @property
    def ttft_ms(self) -> float:
        """From the sending to the first content."""
        return (self.first_ns - self.sent_ns) / 1e6

    @property
    def total_ms(self) -> float:
        """From the sending to the last byte."""
        return (self.done_ns - self.sent_ns) / 1e6

    @property
    def ok(self) -> bool:
        """Whether a whole answer came."""
        return self.status == 200 and not self.broken and (not self.ask.stream or b"[DONE]" in self.body)

    @property
    def headers(self) -> dict[str, str]:
        """By lower-case name."""
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}

    @property
    def text(self) -> str:
        """All content, put together."""
        return b"".join(_PIECE.findall(self.body)).decode()

    @property
    def right(self) -> bool:
        """Whether the answer is the right one."""
        return self.text.startswith("right")

    @property
    def token_probability(self) -> float:
        """exp(mean log-probability) of its tokens, if they were asked for; 0 without any."""
        found = [float(one) for one in _LOGPROB.findall(self.body)]
        return math.exp(sum(found) / len(found)) if found else 0.0

    @property
    def cost_usd(self) -> float:
        """What the gateway says it has cost; 0 where it says nothing."""
        if found := _FINAL_COST.search(self.body):
            return float(found[1])
        return float(self.headers.get("x-tierline-cost-usd", 0))

    @property
    def attempts(self) -> int:
        """How many backend calls the gateway says it took."""
        if found := _FINAL_ATTEMPTS.search(self.body):
            return int(found[1])
        return int(self.headers.get("x-tierline-attempts", 0))


class Clients:
    """All clients of one server. A connection is used again when its answer is whole."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._idle: list[_Connection] = []
        self._loop = asyncio.get_running_loop()

    async def open(self, count: int) -> None:
        """Connects beforehand, so that no connecting is measured."""
        self._idle += await asyncio.gather(*(self._connect() for _ in range(count - len(self._idle))))

    async def send(self, ask: Ask, due_ns: int = 0) -> Answer:
        """Asks, and gives the answer when it is there, or as much of it as came."""
        answer = Answer(ask, due_ns)
        try:
            connection = self._vacant() or await self._connect()
        except OSError as error:
            answer.sent_ns = answer.done_ns = time.monotonic_ns()
            answer.broken = str(error)
            return answer
        await connection.ask(answer, ask.message(self.port))
        if not answer.broken:
            self._idle.append(connection)
        return answer

    async def fetch(self, method: str, path: str, value: Any = None) -> Any:
        """Any other request, over a connection of its own; the JSON of the reply."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 30)
        try:
            body = orjson.dumps(value) if value is not None else b""
            head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            length = _LENGTH.search(await reader.readuntil(b"\r\n\r\n"))
            return orjson.loads(await reader.readexactly(int(length[1]) if length else 0))
        finally:
            writer.close()

    def close(self) -> None:
        """Closes what is idle."""
        for connection in self._idle:
            connection.transport.close()
        self._idle.clear()

    def _vacant(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    async def _connect(self) -> _Connection:
        _, protocol = await self._loop.create_connection(_Connection, "127.0.0.1", self.port)
        return protocol


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer: Answer | None = None
        self._done: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._parts: list[bytes] = []
        self._seen = b""
        self._missing: int | None = None
        """Bytes of the body still to come; None where it comes in chunks."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are not of asyncio's classes
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.transport = transport

    def ask(self, answer: Answer, message: bytes) -> asyncio.Future[None]:
        """The future is done when the answer is, whole or broken."""
        self._answer, self._done = answer, self._loop.create_future()
        self._parts, self._seen = [], b""
        leave = answer.ask.leave_after_s
        self._timer = self._loop.call_later(_PATIENCE_S if leave is None else leave, self._leave)
        answer.sent_ns = time.monotonic_ns()
        self.transport.write(message)
        return self._done

    def _leave(self) -> None:
        answer = self._answer
        if answer is not None:
            answer.left_ns = time.monotonic_ns()
            self.transport.close()
            self._finish("left" if answer.ask.leave_after_s is not None else "no end")

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        answer = self._answer
        if answer is None:
            return
        if not answer.head:
            data = self._head(answer, data)
            if not answer.head:
                return
        self._parts.append(data)
        if not answer.first_ns:
            self._seen += data
            if _CONTENT.search(self._seen):
                answer.first_ns, self._seen = now, b""
        if self._missing is None:
            tail = data if len(data) >= len(_END) else b"".join(self._parts[-5:])
            if tail.endswith(_END):
                self._finish("", now)
        else:
            self._missing -= len(data)
            if self._missing <= 0:
                self._finish("", now)

    def _head(self, answer: Answer, data: bytes) -> bytes:
        """Takes the head off; what is behind it."""
        self._seen += data
        end = self._seen.find(b"\r\n\r\n")
        if end < 0:
            return b""
        whole, self._seen = self._seen, b""
        answer.head = whole[:end]
        answer.status = int(whole[9:12])
        length = _LENGTH.search(whole, 0, end + 2)
        self._missing = int(length[1]) if length else None
        return whole[end + 4 :]

    def _finish(self, broken: str, now: int = 0) -> None:
        answer, done = self._answer, self._done
        if answer is None or done is None:
            return
        answer.done_ns = now or time.monotonic_ns()
        answer.broken = broken
        answer.body = b"".join(self._parts)
        self._answer = self._done = None
        if self._timer is not None:
            self._timer.cancel()
        if not done.done():
            done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish("the connection broke")
