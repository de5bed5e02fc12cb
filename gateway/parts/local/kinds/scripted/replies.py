"""Reply from a script, in this process and in the OpenAI dialect: for trials, demos and tests without a model.

The transport takes the place of those over sockets, below `OpenAIBackend`, so that a scripted reply is read, checked
and failed like any other. Every reply is recognisable: `system_fingerprint` is `scripted`, and its id begins with
`chatcmpl-scripted-`. The same messages get the same bytes: the id is their hash, and `created` is always CREATED.

A reply goes out as JSON, or as SSE, in a sequence of steps. A fault is one of two things: another rendering (HTML,
`choices: []`, an event that is no JSON) or a turn in the sequence (hang, reset, close). The tests' model server carries
the same steps out on a real socket.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

import orjson

from gateway.backends.base import InvalidReply, Payload, Response, Unreachable, in_one_piece, whole_body
from gateway.parts.local.kinds.scripted.script import MID_STREAM, Fault, Json, ModelReply, ScriptedRule, ToolCall

FINGERPRINT = "scripted"
"""`system_fingerprint` of every reply."""
CREATED = 1760000000
"""`created` of every reply, in Unix seconds."""
ERROR: Json = {"error": {"message": "scripted error", "type": "server_error", "param": None, "code": "scripted"}}
"""Error object sent instead of an answer."""

_GIANT_BYTES = 1 << 30
_BLOCK = b"x" * (1 << 16)
_SLOWEST_S = 0.01
"""Pause after each byte of a reply that is sent byte by byte."""


@dataclass(frozen=True, slots=True)
class Head:
    """Send status and headers. `length` is the body's in bytes; None if its end is marked in another way."""

    status: int
    content_type: str
    length: int | None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Send:
    """Send these body bytes in one write."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for `seconds`."""

    seconds: float


class End(Enum):
    """An abnormal end of a reply. HANG keeps it open until the client disconnects."""

    HANG = auto()
    CLOSE = auto()
    RESET = auto()


Step = Head | Send | Pause | End


class ScriptedTransport:
    """Answer every call from a script. `max_reply` is in bytes; replies name the model that the request names."""

    def __init__(self, rules: Sequence[ScriptedRule], *, max_reply: int) -> None:
        self._rules = [(rule, rule.reply.reply()) for rule in rules]
        self._left = [rule.times for rule in rules]
        self._max_reply = max_reply

    async def send(
        self, headers: Mapping[str, str], body: Payload, traceparent: str = "", tracestate: str = ""
    ) -> Response:
        """See `Transport.send`."""
        request = orjson.loads(in_one_piece(body))
        reply = self._reply_to(request)
        if not request.get("stream"):
            tokens_s = reply.between_s * max(0, len(reply.pieces()) - 1)
            reply = replace(reply, before_first_s=reply.before_first_s + tokens_s)
        script = steps(reply, request, identity_of(request))
        for step in script:
            match step:
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case Head():
                    return _ScriptedResponse(step, script, self._max_reply)
                case _:
                    await _fail(step)
        raise AssertionError("every reply has a head, or ends before it")

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""

    def _reply_to(self, request: Json) -> ModelReply:
        """Return the reply of the first rule that applies to the request, and count its use."""
        question = last_user_text(request)
        for number, (rule, reply) in enumerate(self._rules):
            left = self._left[number]
            if left == 0 or not rule.matches(question):
                continue
            if left is not None:
                self._left[number] = left - 1
            return reply
        raise AssertionError("the config's last rule matches every request")


class _ScriptedResponse:
    """A response whose body is rendered from the remaining steps."""

    def __init__(self, head: Head, script: Iterator[Step], max_reply: int) -> None:
        self.status = head.status
        self._headers = {"content-type": head.content_type, **{k.lower(): v for k, v in head.headers.items()}}
        self._script = script
        self._step: Step | None = None
        self._due: float | None = None
        self._left = max_reply

    def header(self, name: str) -> str | None:
        return self._headers.get(name.lower())

    async def read(self) -> bytes:
        return await whole_body(self.chunk)

    async def chunk(self) -> bytes:
        """Return the next bytes, b'' at the end. A cancelled call loses nothing."""
        await asyncio.sleep(0)  # yields as a socket would, so that a reply without pauses does not hold the loop
        while (step := self._step or next(self._script, None)) is not None:
            self._step = step
            if isinstance(step, Pause):
                now = asyncio.get_running_loop().time()
                self._due = now + step.seconds if self._due is None else self._due
                await asyncio.sleep(self._due - now)
                self._due = None
            elif not isinstance(step, Send):
                await _fail(step)
            self._step = None
            if isinstance(step, Send):
                self._left -= len(step.data)
                if self._left < 0:
                    raise InvalidReply("larger than max_reply")
                return step.data
        return b""

    def close(self, *, end_is_due: bool = False) -> None:
        self._script = iter(())
        self._step = None


async def _fail(step: Step) -> None:
    """Execute an abnormal end: wait until the caller cancels, or raise Unreachable."""
    if step is End.HANG:
        await asyncio.Event().wait()
    raise Unreachable("the script closes the connection" if step is End.CLOSE else "the script resets the connection")


def identity_of(request: Json) -> Json:
    """Return the id, time and fingerprint shared by all chunks of a reply; the same messages give the same id."""
    digest = hashlib.sha256(orjson.dumps(request.get("messages"))).hexdigest()
    return {"id": f"chatcmpl-scripted-{digest[:24]}", "created": CREATED, "system_fingerprint": FINGERPRINT}


def last_user_text(request: Json) -> str:
    """Return the text of the last user message; the texts of several parts are joined by line breaks."""
    messages = [message for message in request.get("messages") or () if message.get("role") == "user"]
    content = messages[-1].get("content") if messages else None
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return str(content or "")


def steps(reply: ModelReply, request: Json, identity: Json) -> Iterator[Step]:
    """Yield the steps that answer `request` (a parsed chat-completions body) with `reply`.

    `identity` holds the members shared by the reply and all its chunks, `id` and `created` among them.
    """
    streamed = bool(request.get("stream")) is not (reply.fault is Fault.OTHER_KIND)
    yield from _pause(reply.before_headers_s)
    match reply.fault:
        case Fault.HANG_BEFORE_HEADERS:
            yield End.HANG
        case Fault.CLOSE_BEFORE_HEADERS:
            yield End.CLOSE
        case Fault.REDIRECT:
            yield Head(307, "text/plain", 0, {"location": "/v1/elsewhere", **reply.headers})
        case Fault.HTML:
            yield from _whole(reply, b"<html><body>It works!</body></html>", "text/html")
        case _ if reply.body is not None:
            yield from _whole(reply, reply.body, "application/json")
        case Fault.GIANT:
            yield from _giant(reply, bool(request.get("stream")))
        case _ if streamed:
            yield from _stream(reply, request, identity)
        case Fault.MALFORMED_JSON:
            body = b'{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0,'
            yield from _whole(reply, body, "application/json")
        case fault:
            value = ERROR if fault is Fault.ERROR_IN_200 else completion(reply, request, identity)
            yield from _whole(reply, json.dumps(value, ensure_ascii=False).encode(), "application/json")


def _pause(seconds: float) -> Iterator[Pause]:
    if seconds:
        yield Pause(seconds)


def _whole(reply: ModelReply, body: bytes, content_type: str) -> Iterator[Step]:
    yield Head(reply.status, content_type, len(body), reply.headers)
    match reply.fault:
        case Fault.HANG_AFTER_HEADERS:
            yield End.HANG
        case Fault.CLOSE_AFTER_HEADERS:
            yield End.CLOSE
        case Fault.RESET_MID_STREAM | Fault.CLOSE_MID_STREAM:
            yield Send(body[: len(body) // 2])
            yield End.RESET if reply.fault is Fault.RESET_MID_STREAM else End.CLOSE
        case Fault.SLOW_LORIS:
            for at in range(len(body)):
                yield Send(body[at : at + 1])
                yield Pause(max(reply.between_s, _SLOWEST_S))
        case _:
            yield from _pause(reply.before_first_s)
            yield Send(body)


def _giant(reply: ModelReply, stream: bool) -> Iterator[Step]:
    yield Head(reply.status, "text/event-stream" if stream else "application/json", _GIANT_BYTES, reply.headers)
    opening = b'{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"'
    yield Send(b"data: " + opening if stream else opening)
    for _ in range(_GIANT_BYTES // len(_BLOCK) - 1):
        yield Send(_BLOCK)
    yield End.CLOSE


def _stream(reply: ModelReply, request: Json, identity: Json) -> Iterator[Step]:
    yield Head(reply.status, "text/event-stream; charset=utf-8", None, reply.headers)
    if reply.fault in (Fault.HANG_AFTER_HEADERS, Fault.CLOSE_AFTER_HEADERS):
        yield End.HANG if reply.fault is Fault.HANG_AFTER_HEADERS else End.CLOSE
        return
    yield from _pause(reply.before_first_s)
    for number, event in enumerate(_events(reply, request, identity)):
        if number > 1:
            yield from _pause(reply.between_s)
        if isinstance(event, End):
            yield event
            return
        data = f"data: {event}{reply.newline * 2}".encode()
        size = 1 if reply.fault is Fault.SLOW_LORIS else reply.fragment
        for at in range(0, len(data), size or len(data)):
            yield Send(data[at : at + (size or len(data))])
            if size:
                yield Pause(max(reply.between_s, _SLOWEST_S) if reply.fault is Fault.SLOW_LORIS else 0)


def _events(reply: ModelReply, request: Json, identity: Json) -> Iterator[str | End]:
    """Yield the data of each event in order, or the abnormal end where the fault places it."""
    fault = reply.fault
    if fault is Fault.ERROR_IN_200:
        yield json.dumps(ERROR)
        return
    base = _base(reply, request, identity, "chat.completion.chunk")
    totals = _wants_usage(request)

    def chunk(delta: Json | None, logprobs: Json | None = None, finish: str | None = None) -> str:
        """Return a chunk with this delta for every choice; without a delta, the chunk that reports the usage."""
        choice = {"delta": delta, "logprobs": logprobs, "finish_reason": finish}
        count = 0 if delta is None else request.get("n") or 1
        value = base | {"choices": [{"index": index} | choice for index in range(count)]}
        _break_choices(value, fault)
        if totals:
            value["usage"] = _usage(reply, request) if delta is None else None
        return json.dumps(value | reply.extra, ensure_ascii=False, separators=(",", ":"))

    deltas, finish = _deltas(reply, request)
    for number, (delta, logprobs) in enumerate(deltas):
        if fault in MID_STREAM and number > reply.fault_after:
            break
        yield chunk(delta, logprobs)
    if fault in MID_STREAM:
        yield from _broken_off(fault)
        return
    if fault is not Fault.DONE_WITHOUT_FINISH:
        yield chunk({}, None, finish)
    if totals and reply.usage is not None:
        yield chunk(None)
    if fault is not Fault.NO_DONE:
        yield "[DONE]"


def _broken_off(fault: Fault | None) -> Iterator[str | End]:
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


def completion(reply: ModelReply, request: Json, identity: Json) -> Json:
    """Return the reply to `request` as a chat.completion object."""
    tokens, finish = _cut(reply, request)
    message: Json = {"role": "assistant", "content": "".join(tokens), "refusal": None, "annotations": []}
    if reply.tool_calls:
        message |= {"content": None, "tool_calls": [_tool_call(call) for call in reply.tool_calls]}
    choice = {"message": message, "logprobs": _logprobs(reply, request, tokens, 0), "finish_reason": finish}
    value = _base(reply, request, identity, "chat.completion")
    value["choices"] = [{"index": index} | choice for index in range(request.get("n") or 1)]
    _break_choices(value, reply.fault)
    if reply.usage is not None:
        value["usage"] = _usage(reply, request)
    return value | reply.extra


def _base(reply: ModelReply, request: Json, identity: Json, kind: str) -> Json:
    return identity | {"object": kind, "model": reply.model or request.get("model")}


def _usage(reply: ModelReply, request: Json) -> Json:
    """Return the token counts: the scripted ones, else counted words."""
    if isinstance(reply.usage, dict):
        return reply.usage
    words = [len(str(message.get("content") or "").split()) for message in request.get("messages", ())]
    prompt, answer = sum(words), len(_cut(reply, request)[0]) * (request.get("n") or 1)
    usage: Json = {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
    if reply.prompt_cache:
        usage["prompt_tokens_details"] = {"cached_tokens": sum(words[:-2])}
    return usage


def _cut(reply: ModelReply, request: Json) -> tuple[Sequence[str], str]:
    """Return the tokens within the request's limit, and the matching finish_reason."""
    tokens = () if reply.tool_calls else reply.pieces()
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    if limit is not None and len(tokens) > limit:
        return tokens[:limit], "length"
    usual = "tool_calls" if reply.tool_calls else "length" if reply.fault is Fault.LOOP else "stop"
    return tokens, reply.finish_reason or usual


def _tool_call(call: ToolCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _logprobs(reply: ModelReply, request: Json, tokens: Sequence[str], start: int) -> Json | None:
    """Return the log-probabilities of `tokens`, the first being token `start` of the reply; None if not requested."""
    if not request.get("logprobs") or reply.no_logprobs:
        return None
    every = reply.logprob
    given = every if isinstance(every, tuple) else (every,) * (start + len(tokens))
    top = request.get("top_logprobs") or 0
    content = []
    for token, logprob in zip(tokens, given[start:], strict=False):
        entry = {"token": token, "logprob": logprob, "bytes": list(token.encode())}
        content.append(entry | {"top_logprobs": [entry] if top else []})
    return {"content": content, "refusal": None}


def _break_choices(value: Json, fault: Fault | None) -> None:
    match fault:
        case Fault.EMPTY_CHOICES:
            value["choices"] = []
        case Fault.NULL_CHOICES:
            value["choices"] = None
        case Fault.NO_CHOICES:
            del value["choices"]


def _wants_usage(request: Json) -> bool:
    """Return whether the request asks for the usage of its stream."""
    return bool((request.get("stream_options") or {}).get("include_usage"))


def _deltas(reply: ModelReply, request: Json) -> tuple[list[tuple[Json, Json | None]], str]:
    """Return (delta, logprobs) of every chunk but the last, beginning with the role; and the finish_reason."""
    tokens, finish = _cut(reply, request)
    content = None if reply.tool_calls else ""
    deltas: list[tuple[Json, Json | None]] = [({"role": "assistant", "content": content, "refusal": None}, None)]
    for at, token in enumerate(tokens):
        deltas.append(({"content": token}, _logprobs(reply, request, [token], at)))
    for index, call in enumerate(reply.tool_calls):
        opening = _tool_call(call)
        opening["function"]["arguments"] = ""
        deltas.append(({"tool_calls": [{"index": index} | opening]}, None))
        for at in range(0, len(call.arguments), 8):
            part: dict[str, Any] = {"index": index, "function": {"arguments": call.arguments[at : at + 8]}}
            deltas.append(({"tool_calls": [part]}, None))
    return deltas, finish
