"""HTTP/1.1 with no library between a test and the bytes: a server of scripted replies, and a client's connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType

from tests.support.loop_thread import LoopThread

_EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class PlainReply:
    """A reply of a `PlainServer`: of server-sent events where `events`, which may be cut off after the body."""

    body: bytes
    events: bool = False
    cut: bool = False
    status: int = 200
    pieces: tuple[int, ...] = ()
    """Places at which the body is cut into writes of their own."""
    content_type: str = "application/json"
    """Of a body that is no stream of events."""


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """What a `PlainClient` got. `whole`: the body came to the end that its head announced."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool = True


class PlainServer:
    """Answer each request with what `reply` returns for its path and its body. It runs in a thread of its own."""

    def __init__(self, reply: Callable[[str, bytes], PlainReply]) -> None:
        self._reply = reply
        self._thread = LoopThread("plain-server")
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.method = ""
        """Of the request whose reply is being made."""

    def __enter__(self) -> PlainServer:
        self._thread.start()
        self._thread.run(self._listen())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._thread.run(self._close())
        self._thread.stop()

    @property
    def url(self) -> str:
        """The base URL, as an OpenAI client wants it."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 22)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        while self._open:
            await asyncio.sleep(0.001)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._exchange(reader, writer):
                    pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection stays open."""
        first, headers = await _head(reader)
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        self.method, path, _ = first.split(" ")
        reply = self._reply(path, raw)
        kind = _EVENTS if reply.events else reply.content_type
        head = f"HTTP/1.1 {reply.status} OK\r\ncontent-type: {kind}\r\n"
        if reply.events:
            writer.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
            begin = 0
            for end in (*reply.pieces, len(reply.body)):
                if part := reply.body[begin:end]:
                    writer.write(b"%x\r\n%b\r\n" % (len(part), part))
                begin = end
            writer.write(b"" if reply.cut else b"0\r\n\r\n")
        else:
            cut = 1 if reply.cut else 0  # a length that the body does not reach
            writer.write(f"{head}content-length: {len(reply.body) + cut}\r\n\r\n".encode() + reply.body)
        await writer.drain()
        return not reply.cut


class PlainClient:
    """One kept-alive connection, opened again where the server closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(
        self, path: str, body: bytes | None, headers: Mapping[str, str] | None = None, timeout_s: float = 30.0
    ) -> PlainAnswer:
        """POST a body, or GET without one. Raises TimeoutError where no whole reply comes in time."""
        if body is None:
            return await self.send("GET", path, headers or {}, b"", timeout_s)
        typed = {**(headers or {}), "content-type": "application/json", "content-length": str(len(body))}
        return await self.send("POST", path, typed, body, timeout_s)

    async def send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, timeout_s: float = 30.0
    ) -> PlainAnswer:
        """Send any request with just these headers. Raises TimeoutError where no whole reply comes in time."""
        async with asyncio.timeout(timeout_s):
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
            reader, writer = self._streams
            lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
            first, found = await _head(reader)
            while first.startswith("HTTP/1.1 1"):  # 100 Continue: the reply is the next
                first, found = await _head(reader)
            try:
                answered, whole = b"" if method == "HEAD" else await _body(reader, found), True
            except asyncio.IncompleteReadError as error:
                answered, whole = error.partial, False
            if not whole or found.get("connection") == "close":
                self.close()
            return PlainAnswer(int(first.split(" ")[1]), found, answered, whole)

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    pairs = (line.partition(":") for line in lines)
    return first, {name.lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    parts: list[bytes] = []
    while True:
        try:
            size = int(await reader.readuntil(b"\r\n"), 16)
            part = await reader.readexactly(size + 2)
        except asyncio.IncompleteReadError as error:
            raise asyncio.IncompleteReadError(b"".join(parts), None) from error
        if not size:
            return b"".join(parts)
        parts.append(part[:-2])
