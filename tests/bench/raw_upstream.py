"""A model server that costs next to nothing: `python -m tests.bench.raw_upstream PORT`.

Any request gets the same completion of about 600 bytes, log-probabilities included. A request for a stream says in its
own body, which every proxy passes on, how many `bench_chunks` it gets and at what `bench_pace_ms`, the first at once.
With `bench_apart` each chunk also waits until the one before was read, so that no two come in one read.
Requests are told apart by searching bytes, not by parsing: it must never be what a run measures.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from pathlib import Path
from typing import Any, cast

import uvloop

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_LOGPROBS: dict[str, Any] = {
    "content": [
        {"token": token, "logprob": -0.05, "bytes": None, "top_logprobs": []} for token in ("It", " depends", ".")
    ],
    "refusal": None,
}
_COMPLETION = {
    "id": "chatcmpl-bench",
    "object": "chat.completion",
    "created": 1760000000,
    "model": "bench",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "It depends.", "refusal": None, "annotations": []},
            "logprobs": _LOGPROBS,
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 120, "completion_tokens": 3, "total_tokens": 123},
    "service_tier": "default",
    "system_fingerprint": "fp_bench_0123456789abcdef",
}


def _event(delta: dict[str, str], finish: str | None, logprob: float | None = None) -> bytes:
    entry: dict[str, Any] = {"token": delta.get("content"), "logprob": logprob, "bytes": None, "top_logprobs": []}
    choice = {
        "index": 0,
        "delta": delta,
        "logprobs": None if logprob is None else {"content": [entry], "refusal": None},
        "finish_reason": finish,
    }
    chunk = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1760000000, "model": "bench"}
    return _framed(json.dumps(chunk | {"choices": [choice]}, separators=(",", ":")).encode())


def _framed(data: bytes) -> bytes:
    event = b"data: %b\n\n" % data
    return b"%x\r\n%b\r\n" % (len(event), event)


_BODY = json.dumps(_COMPLETION, separators=(",", ":")).encode()
_REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_BODY) + _BODY
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_FIRST = _event({"role": "assistant", "content": ""}, None)
_WORDS = [_event({"content": f" word{number % 97}"}, None, -0.05) for number in range(97)]
_LAST = _event({}, "stop") + _framed(b"[DONE]") + b"0\r\n\r\n"


class RawUpstream(asyncio.Protocol):
    """One connection; requests are answered in order, one at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are not of asyncio's classes
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = transport
        self._buffer = b""
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        while (end := buffer.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(buffer, 0, end)
            total = end + 4 + (int(length[1]) if length else 0)
            if len(buffer) < total:
                break
            if buffer.find(b'"bench_chunks"', end) < 0:
                self._transport.write(_REPLY)
            else:
                self._stream(json.loads(buffer[end + 4 : total]))
            buffer = buffer[total:]
        self._buffer = buffer

    def _stream(self, body: dict[str, float]) -> None:
        self._transport.write(_HEAD + _FIRST)
        chunks, pace_s = int(body["bench_chunks"]), body["bench_pace_ms"] / 1000
        if body.get("bench_apart"):
            self._next_apart(0, chunks, pace_s)
        else:
            self._next(0, chunks, pace_s, self._loop.time())

    def _next(self, number: int, chunks: int, pace_s: float, started: float) -> None:
        if self._transport.is_closing():
            return
        if number >= chunks:
            self._transport.write(_LAST)
            return
        self._transport.write(_WORDS[number % len(_WORDS)])
        self._loop.call_at(started + (number + 1) * pace_s, self._next, number + 1, chunks, pace_s, started)

    def _next_apart(self, number: int, chunks: int, pace_s: float) -> None:
        if self._transport.is_closing():
            return
        if not self._is_read():
            self._loop.call_later(pace_s, self._next_apart, number, chunks, pace_s)
            return
        self._transport.write(_WORDS[number % len(_WORDS)] if number < chunks else _LAST)
        if number < chunks:
            self._loop.call_later(pace_s, self._next_apart, number + 1, chunks, pace_s)

    def _is_read(self) -> bool:
        """Whether the peer has read everything: its end of the connection, as Linux lists it, holds nothing unread."""
        peer, own = (
            f"{socket.ntohl(int.from_bytes(socket.inet_aton(host))):08X}:{port:04X}"
            for host, port in (self._transport.get_extra_info(name) for name in ("peername", "sockname"))
        )
        with Path("/proc/net/tcp").open() as lines:
            fields = next((line.split() for line in lines if f" {peer} {own} " in line), None)
        return fields is None or fields[4].endswith(":00000000")


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(RawUpstream, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
