"""How a scripted model's answer goes out: a `Reply` and a request in, steps out, no sockets.

The answer goes as JSON, or as SSE in chunked encoding, in a sequence of steps that `tests.support.connection` carries
out. A fault is one of two things: another rendering (HTML, `choices: []`, an event that is no JSON) or a turn in the
sequence (hang, reset, close).
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from tests.support.openai_wire import ERROR, Chunks, completion, deltas_of, wants_usage
from tests.support.replies import Fault, Json, Reply

_GIANT_BYTES = 1 << 30
_BLOCK = b"x" * (1 << 16)


@dataclass(frozen=True, slots=True)
class Send:
    """Write these bytes, in one call."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait so many seconds."""

    seconds: float


class End(Enum):
    """How a reply ends when it does not end well. A hung connection stays open until the peer leaves."""

    HANG = auto()
    CLOSE = auto()
    RESET = auto()


Step = Send | Pause | End


def steps(reply: Reply, request: Json) -> Iterator[Step]:
    """The steps that answer `request` (a parsed chat-completions body) with `reply`."""
    yield from _pause(reply.before_headers_s)
    match reply.fault:
        case Fault.HANG_BEFORE_HEADERS:
            yield End.HANG
        case Fault.CLOSE_BEFORE_HEADERS:
            yield End.CLOSE
        case Fault.REDIRECT:
            yield _head(reply, "text/plain", 0, status=307, location="/v1/elsewhere")
        case Fault.HTML:
            yield from _whole(reply, b"<html><body>It works!</body></html>", "text/html")
        case _ if reply.body is not None:
            yield from _whole(reply, reply.body, "application/json")
        case Fault.GIANT:
            yield from _giant(reply, bool(request.get("stream")))
        case fault if bool(request.get("stream")) is not (fault is Fault.OTHER_KIND):
            yield from _stream(reply, request)
        case _:
            yield from _json(reply, request)


def _pause(seconds: float) -> Iterator[Pause]:
    if seconds:
        yield Pause(seconds)


def _head(reply: Reply, content_type: str, length: int | None, status: int | None = None, **headers: str) -> Send:
    code = status or reply.status
    phrase = http.client.responses.get(code, "Scripted")
    framing = {"transfer-encoding": "chunked"} if length is None else {"content-length": str(length)}
    fields = {"content-type": content_type} | framing | headers | {k.lower(): v for k, v in reply.headers.items()}
    lines = [f"HTTP/1.1 {code} {phrase}", *(f"{name}: {value}" for name, value in fields.items())]
    return Send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))


def _whole(reply: Reply, body: bytes, content_type: str) -> Iterator[Step]:
    yield _head(reply, content_type, len(body))
    match reply.fault:
        case Fault.HANG_AFTER_HEADERS:
            yield End.HANG
        case Fault.CLOSE_AFTER_HEADERS:
            yield End.CLOSE
        case Fault.RESET_MID_STREAM | Fault.CLOSE_MID_STREAM:
            yield Send(body[: len(body) // 2])
            yield End.RESET if reply.fault is Fault.RESET_MID_STREAM else End.CLOSE
        case Fault.SLOW_LORIS:
            yield from _drip(body, 1, max(reply.between_s, 0.01))
        case _:
            yield from _pause(reply.before_first_s)
            yield Send(body)


def _giant(reply: Reply, stream: bool) -> Iterator[Step]:
    yield _head(reply, "text/event-stream" if stream else "application/json", _GIANT_BYTES)
    opening = b'{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"'
    yield Send(b"data: " + opening if stream else opening)
    for _ in range(_GIANT_BYTES // len(_BLOCK) - 1):
        yield Send(_BLOCK)
    yield End.CLOSE


def _drip(data: bytes, size: int, every_s: float) -> Iterator[Step]:
    for at in range(0, len(data), size):
        yield Send(data[at : at + size])
        yield Pause(every_s)


def _json(reply: Reply, request: Json) -> Iterator[Step]:
    if reply.fault is Fault.MALFORMED_JSON:
        body = b'{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0,'
    elif reply.fault is Fault.ERROR_IN_200:
        body = json.dumps(ERROR).encode()
    else:
        body = json.dumps(completion(reply, request), ensure_ascii=False).encode()
    return _whole(reply, body, "application/json")


def _stream(reply: Reply, request: Json) -> Iterator[Step]:
    yield _head(reply, "text/event-stream; charset=utf-8", None)
    if reply.fault is Fault.HANG_AFTER_HEADERS:
        yield End.HANG
        return
    if reply.fault is Fault.CLOSE_AFTER_HEADERS:
        yield End.CLOSE
        return
    yield from _pause(reply.before_first_s)
    for number, event in enumerate(_events(reply, request)):
        if number > 1:
            yield from _pause(reply.between_s)
        if isinstance(event, End):
            yield event
            return
        yield from _write(reply, event)
    yield Send(b"0\r\n\r\n")


def _write(reply: Reply, event: str) -> Iterator[Step]:
    data = f"data: {event}{reply.newline * 2}".encode()
    size = 1 if reply.fault is Fault.SLOW_LORIS else reply.fragment
    for at in range(0, len(data), size or len(data)):
        part = data[at : at + (size or len(data))]
        yield Send(b"%x\r\n%b\r\n" % (len(part), part))
        if size:
            yield Pause(max(reply.between_s, 0.01) if reply.fault is Fault.SLOW_LORIS else 0)


def _events(reply: Reply, request: Json) -> Iterator[str | End]:
    """The events' data in order, or the end that a fault puts among them."""
    fault = reply.fault
    if fault is Fault.ERROR_IN_200:
        yield json.dumps(ERROR)
        return
    deltas, finish = deltas_of(reply, request)
    chunk = Chunks(reply, request)
    for number, (delta, logprobs) in enumerate(deltas):
        if fault in _MID_STREAM and number > reply.fault_after:
            break
        yield chunk(delta, logprobs)
    if fault in _MID_STREAM:
        yield from _mid_stream(fault)
        return
    if fault is not Fault.DONE_WITHOUT_FINISH:
        yield chunk({}, None, finish)
    if wants_usage(request) and reply.usage is not None:
        yield chunk(None, None)
    if fault is not Fault.NO_DONE:
        yield "[DONE]"


_MID_STREAM = frozenset(
    {
        Fault.HANG_MID_STREAM,
        Fault.RESET_MID_STREAM,
        Fault.CLOSE_MID_STREAM,
        Fault.EOF_MID_STREAM,
        Fault.MALFORMED_EVENT,
        Fault.MALFORMED_JSON,
        Fault.ERROR_MID_STREAM,
    }
)


def _mid_stream(fault: Fault | None) -> Iterator[str | End]:
    match fault:
        case Fault.HANG_MID_STREAM:
            yield End.HANG
        case Fault.RESET_MID_STREAM:
            yield End.RESET
        case Fault.CLOSE_MID_STREAM:
            yield End.CLOSE
        case Fault.ERROR_MID_STREAM:
            yield json.dumps(ERROR)
        case Fault.MALFORMED_EVENT | Fault.MALFORMED_JSON:
            yield '{"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":'
            yield "[DONE]"
