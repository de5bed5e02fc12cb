"""The OpenAI dialect of chat completions: llama.cpp, vLLM, Ollama, OpenAI and many others."""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial
from time import monotonic, time
from types import NoneType
from typing import Any

import orjson

from gateway.backends.base import (
    BYTE_ORDER_MARK,
    BackendError,
    BackendRequest,
    BadStatus,
    Completion,
    ContextExceeded,
    Event,
    EventStream,
    InvalidReply,
    Response,
    Transport,
    Truncated,
    Unreachable,
)
from gateway.backends.context_limit import says_too_long
from gateway.backends.quota import Quota, number_in
from gateway.backends.sse import DONE, EventParser
from gateway.backends.tool_calls import ToolCallDeltas
from gateway.chat.completions import chunks_of, fill_in, usage_of
from gateway.chat.stream_state import StreamState
from gateway.dialects.native import NATIVE, lost_fields
from gateway.off_loop import off_loop

_ERROR_BODY_LIMIT = 64 << 10
_ERROR_BODY_S = 1.0
_PIECE_CHARS = 256 << 10
_MEDIA_TYPE = re.compile(r"[a-z0-9.+-]{1,40}/[a-z0-9.+-]{1,40}")
_INDEX = (int, NoneType)
_NO_CHOICES = "an event whose choices are no choices"
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class OpenAIBackend:
    """One endpoint. `model` replaces the client's; unknown fields are passed on; the key is sent to this endpoint only.

    `quota` is updated from the rate-limit headers of every reply.
    """

    def __init__(self, transport: Transport, *, model: str, key: str | None, quota: Quota | None = None) -> None:
        self._transport = transport
        self._model = model
        self._quota = quota
        self._headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "tierline",
        }
        self._key = (key or "").encode()
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"

    async def complete(self, request: BackendRequest) -> Completion:
        """See `Backend.complete`."""
        response = await self._send(request, stream=False)
        lost = lost_fields(request.body, "chat")
        if _is_type(response, "text/event-stream"):
            return await _assembled(_ServerSentEvents(response, lost), self._model)
        try:
            if not _is_type(response, "application/json"):
                raise _wrong_type(response)
            raw = await response.read()
        finally:
            response.close()
        completion = _completion(raw, self._model)
        return replace(completion, dropped=lost) if lost else completion

    async def stream(self, request: BackendRequest) -> EventStream:
        """See `Backend.stream`. A plain JSON answer is converted to a stream."""
        response = await self._send(request, stream=True)
        lost = lost_fields(request.body, "chat")
        if _is_type(response, "text/event-stream"):
            return _ServerSentEvents(response, lost)
        try:
            if not _is_type(response, "application/json"):
                raise _wrong_type(response)
            return _Replayed(_completion(await response.read(), self._model), lost)
        finally:
            response.close()

    async def aclose(self) -> None:
        """Close the transport."""
        await self._transport.aclose()

    async def _send(self, request: BackendRequest, *, stream: bool) -> Response:
        if request.large:
            body = await off_loop(partial(self._payload, request, stream=stream))
        else:
            body = self._payload(request, stream=stream)
        response = await self._transport.send(self._headers, body, request.traceparent)
        if self._quota is not None:
            hear = self._quota.heard if response.status == 200 else self._quota.refused
            hear(response.header, monotonic())
        if response.status == 200:
            if response.header("Content-Encoding") not in (None, "identity"):
                response.close()
                raise InvalidReply("a content encoding that was not asked for")
            return response
        try:
            error = await _error_body(response)
        finally:
            response.close()
        if self._key:
            # Some endpoints quote the refused key.
            error = error.replace(self._key, b"***")
        if says_too_long(response.status, error):
            raise ContextExceeded(response.status, error)
        raise BadStatus(response.status, error, _retry_after(response))

    def _payload(self, request: BackendRequest, *, stream: bool) -> bytes:
        payload = {**request.body, "model": self._model}
        payload.pop(NATIVE, None)
        if request.ask_logprobs:
            # Always send a number: without one llama.cpp returns twenty alternatives per token.
            payload["logprobs"] = True
            payload["top_logprobs"] = request.alternatives
        if stream:
            payload["stream"] = True
            payload["stream_options"] = {**(payload.get("stream_options") or {}), "include_usage": True}
        return orjson.dumps(_in_pieces(payload) if request.large else payload)


def _in_pieces(value: Any) -> Any:
    """Return the value with its long texts serialised already, one slice after another.

    In a single call, a text with two million line breaks would hold Python's lock for 20 ms.
    """
    if isinstance(value, dict):
        return {name: _in_pieces(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_in_pieces(item) for item in value]
    if not isinstance(value, str) or len(value) <= _PIECE_CHARS:
        return value
    starts = range(0, len(value), _PIECE_CHARS)
    pieces = (orjson.dumps(value[start : start + _PIECE_CHARS])[1:-1] for start in starts)
    return orjson.Fragment(b'"%b"' % b"".join(pieces))


class _ServerSentEvents:
    def __init__(self, response: Response, dropped: tuple[str, ...]) -> None:
        self._response = response
        self.dropped = dropped
        self._parser = EventParser()
        self._invalid: BackendError | None = None
        self._tool_calls: ToolCallDeltas | None = None
        self.done_seen = False

    async def read(self) -> list[Event]:
        while not self.done_seen:
            if self._invalid is not None:
                raise self._invalid
            try:
                chunk = await self._response.chunk()
            except Unreachable as error:
                raise Truncated(str(error)) from error
            if not chunk:
                return []
            events: list[Event] = []
            try:
                for data in self._parser.feed(chunk):
                    if data == DONE:
                        self.done_seen = True
                        break
                    events.append(self._event(data))
            except (InvalidReply, ContextExceeded) as error:
                self._invalid = error  # process the events before the error first
            if events:
                return events
        return []

    def _event(self, data: bytes) -> Event:
        """Return the event, its bytes unchanged unless something must be corrected. Raises InvalidReply."""
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise InvalidReply("an event that is not JSON") from None
        if not isinstance(value, dict):
            raise InvalidReply("an event that is not an object")
        if value.get("error"):
            raise _error_in_200(value["error"], data)
        choices = value.get("choices")
        if choices is None:
            # A chunk with the usage alone: clients expect the `choices` list, even if empty.
            value["choices"] = []
            return Event(orjson.dumps(value), value)
        if not isinstance(choices, list):
            raise InvalidReply(_NO_CHOICES)
        calls_tools = False
        for choice in choices:
            if not isinstance(choice, dict) or type(choice.get("index")) not in _INDEX:
                raise InvalidReply(_NO_CHOICES)
            delta = choice.get("delta")
            if type(delta) is dict:
                calls_tools = calls_tools or "tool_calls" in delta
            elif delta is not None:
                raise InvalidReply(_NO_CHOICES)
        # SSE needs a `data:` on each line of JSON; re-encoded on one line it needs only one.
        changed = b"\n" in data
        if calls_tools:
            if self._tool_calls is None:
                self._tool_calls = ToolCallDeltas()
            changed = self._tool_calls.mend(choices) or changed
        return Event(orjson.dumps(value) if changed else data, value)

    def close(self) -> None:
        self._response.close(end_is_due=self.done_seen)


class _Replayed:
    """Present a whole answer as a stream, for an endpoint that sent JSON instead of a stream."""

    def __init__(self, completion: Completion, dropped: tuple[str, ...]) -> None:
        self.dropped = dropped
        self._events = [Event(orjson.dumps(chunk), chunk) for chunk in chunks_of(completion.value)]
        self.done_seen = False

    async def read(self) -> list[Event]:
        events, self._events, self.done_seen = self._events, [], True
        return events

    def close(self) -> None:
        """Do nothing: the body has been read already."""


async def _assembled(stream: _ServerSentEvents, model: str) -> Completion:
    """Return the whole answer from a stream that an endpoint sent instead of JSON."""
    state = StreamState()
    state.collect()
    try:
        while events := await stream.read():
            for event in events:
                state.add(event.value)
                state.assemble(event.value)
    finally:
        stream.close()
    if not state.finished:
        raise Truncated("the stream ended before its answer")
    value = state.completion()
    fill_in(value, model)
    return Completion(orjson.dumps(value), value, sound=not state.miscounted)


def _completion(raw: bytes, model: str) -> Completion:
    """Return the completion with missing members filled in; its bytes stay unchanged if none is missing."""
    raw = raw.removeprefix(BYTE_ORDER_MARK)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise InvalidReply("a reply that is not JSON") from None
    if not isinstance(value, dict):
        raise InvalidReply("a reply that is not an object")
    if value.get("error"):
        raise _error_in_200(value["error"], raw)
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices or not all(map(_is_choice, choices)):
        raise InvalidReply("a reply without choices")
    if not all(isinstance(finish := choice.get("finish_reason"), str) and finish for choice in choices):
        raise InvalidReply("a reply without a finish_reason, so perhaps not whole")
    changed, sound = fill_in(value, model), True
    if value.get("usage") is not None and usage_of(value) is None:
        # Drop impossible token counts, because clients add them up.
        value["usage"] = None
        changed, sound = True, False
    return Completion(orjson.dumps(value) if changed else raw, value, sound)


def _is_choice(choice: object) -> bool:
    return isinstance(choice, dict) and isinstance(choice.get("message"), dict)


def _error_in_200(error: object, raw: bytes) -> BackendError:
    """Return the error in a reply of status 200, by its code or type. Its message may quote the prompt, so it is left
    out.

    A context-length error becomes ContextExceeded, as if sent with status 400.
    """
    if says_too_long(400, raw):
        return ContextExceeded(400, raw[:_ERROR_BODY_LIMIT])
    named = (error.get("code") or error.get("type")) if isinstance(error, dict) else None
    word = f": {named}" if isinstance(named, str) and _WORD.fullmatch(named) else ""
    return InvalidReply(f"an error in a 200{word}")


def _wrong_type(response: Response) -> InvalidReply:
    named = (response.header("Content-Type") or "none").partition(";")[0]
    return InvalidReply(f"content type {named}" if _MEDIA_TYPE.fullmatch(named) else "no content type")


def _is_type(response: Response, expected: str) -> bool:
    content_type = response.header("Content-Type")
    return content_type is not None and content_type.partition(";")[0].strip().lower() == expected


async def _error_body(response: Response) -> bytes:
    """Return the start of an error body, or less if it does not arrive: the status matters more."""
    body = b""
    with contextlib.suppress(BackendError, TimeoutError):
        async with asyncio.timeout(_ERROR_BODY_S):
            while len(body) < _ERROR_BODY_LIMIT and (part := await response.chunk()):
                body += part
    return body


def _retry_after(response: Response) -> float | None:
    """Return the seconds in `retry-after-ms` or `Retry-After` (a number or a date); None if neither is valid."""
    milliseconds = number_in(response.header("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = response.header("Retry-After")
    seconds = number_in(value)
    if value is None or seconds is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except (TypeError, ValueError):
        return None
