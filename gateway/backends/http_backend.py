"""Call a model endpoint over HTTP: what the backends of all dialects share, from the request's bytes to its events.

A backend serialises the request in its dialect and returns, with the bytes, a `ReplyReader` that turns what comes back
into chat completions and their chunks.
"""

from __future__ import annotations

import logging
import math
import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from time import monotonic, time
from typing import Any, Protocol, Required, TypedDict

import orjson

from cache.text.json_pieces import json_pieces
from gateway.backends.base import (
    ALIVE,
    ERROR_BODY,
    BackendError,
    BackendRequest,
    BadStatus,
    Completion,
    ContextExceeded,
    Event,
    EventStream,
    FieldRefused,
    InvalidReply,
    OutputRefused,
    Payload,
    Response,
    Transport,
    Truncated,
    Unreachable,
    error_start,
)
from gateway.backends.blame import BYTE_ORDER_MARK, says_most_output, says_too_long, status_in
from gateway.backends.server_forms import FieldMemory, Header, Quota
from gateway.backends.sse import DONE, EventParser
from gateway.chat.completions import chunks_of, fill_in
from gateway.chat.stream_state import StreamState
from gateway.dialects.native import client_path, native_body
from gateway.dialects.reasoning import NOBODY, Maker
from gateway.off_loop import off_loop

log = logging.getLogger("tierline.backends")

_EVENTS = "text/event-stream"
_MEDIA_TYPE = re.compile(r"[a-z0-9.+-]{1,40}/[a-z0-9.+-]{1,40}")
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class SseReply(ABC):
    """Read a reply of server-sent events as chunks of chat completions."""

    def __init__(self, response: Response) -> None:
        self._response = response
        self._parser = EventParser()
        self._invalid: BackendError | None = None
        self.dropped: tuple[str, ...] = ()
        self.done_seen = False

    @abstractmethod
    def _take(self, value: dict[str, Any], data: bytes, events: list[Event]) -> None:
        """Append to `events` what one server-sent event means; set `done_seen` if it is the last one.

        `value` is the object in its `data`. Raises BackendError; what was appended before is read first.
        """

    def _end(self, events: list[Event]) -> None:  # noqa: B027
        """Append to `events` what was held until the stream's end. Raises BackendError or AnswerFailed."""

    def _ended_early(self) -> bool:
        """Return whether an answer is complete but for what `_end` appends."""
        return False

    def _done(self, events: list[Event]) -> None:
        self.done_seen = True
        self._end(events)

    def _rest(self) -> list[Event]:
        """Return what is left at the end of the bytes: an event that no blank line has ended, and what was held."""
        events: list[Event] = []
        data = b""
        try:
            for data in self._parser.rest():
                if data.strip() == DONE:
                    self._done(events)
                    break
                self._take_lines(data, events)
            self._end(events)
        except AnswerFailed as failed:
            raise error_in_200(failed.error, data) from None
        except InvalidReply:
            if not events:
                return []  # a beginning of an event, which was cut
        return events

    def _take_lines(self, data: bytes, events: list[Event]) -> bool:
        """Take an event whose data is several values on a line each, or DONE with white space; return whether it ends.

        Some servers end an event with one line end. Raises InvalidReply for all else that is no JSON.
        """
        for line in data.split(b"\n"):
            text = line.strip()
            if text == DONE:
                self._done(events)
                return True
            if text:
                try:
                    value = orjson.loads(text)
                except orjson.JSONDecodeError:
                    raise InvalidReply("an event that is not JSON") from None
                if not isinstance(value, dict):
                    raise InvalidReply("an event that is not an object")
                self._take(value, text, events)
        return False

    async def read(self) -> list[Event]:  # noqa: PLR0912  (each call would count per chunk)
        """See `EventStream.read`."""
        while not self.done_seen:
            if self._invalid is not None:
                raise self._invalid
            try:
                chunk = await self._response.chunk()
            except Unreachable as error:
                if self._ended_early() and (rest := self._rest()):
                    return rest
                raise Truncated(str(error)) from error
            if not chunk:
                return self._rest()
            events: list[Event] = []
            parser, data = self._parser, b""
            comments = parser.comments
            try:
                # Most chunks are one event on one line: what `feed` would return for it, without a call for each.
                alone = chunk[:6] == b"data: " and chunk[-1:] == b"\n" and 6 < len(chunk) - 2 == chunk.find(b"\n")
                alone = alone and not parser.parts and not parser.after_cr and b"\r" not in chunk
                for data in [chunk[6:-2]] if alone else parser.feed(chunk):
                    if data == DONE:
                        self._done(events)
                        break
                    try:
                        value = orjson.loads(data)
                    except orjson.JSONDecodeError:
                        if self._take_lines(data, events):
                            break
                        continue
                    if not isinstance(value, dict):
                        raise InvalidReply("an event that is not an object")
                    self._take(value, data, events)
            except AnswerFailed as failed:
                self._invalid = error_in_200(failed.error, data)
            except BackendError as error:
                self._invalid = error  # process the events before the error first
            if events:
                return events
            if (data or parser.comments > comments) and not self.done_seen and self._invalid is None:
                return ALIVE
        return []

    def offer(self, take: Callable[[Event], bool]) -> None:  # noqa: B027
        """See `EventStream.offer`: here none."""

    def close(self) -> None:
        """See `EventStream.close`."""
        self._response.close(end_is_due=self.done_seen)


class AnswerFailed(Exception):
    """A choice says that its server failed. `error` is the error object beside it, if there is one."""

    def __init__(self, error: object) -> None:
        super().__init__("the model's server ended its answer with an error")
        self.error = error


class ReplyReader(Protocol):
    """Read the reply to one request, in the dialect of its backend."""

    def completion(self, raw: bytes) -> Completion:
        """Return the completion in a JSON reply. Raises BackendError."""

    def stream(self, response: Response) -> SseReply:
        """Return the stream in a reply of server-sent events."""


class Common(TypedDict, total=False):
    """The arguments that every kind of backend passes on to `HttpBackend`."""

    model: Required[str]
    key: Required[str | None]
    maker: Maker
    quota: Quota | None
    refused: FieldMemory | None


Prepared = tuple[dict[str, Any], ReplyReader, tuple[str, ...]]
"""The body to send, the reader of its reply, and the paths of the client's fields that are not sent."""


class Prepare(Protocol):
    """The signature of `HttpBackend._prepare`, which makes of a request what is sent."""

    def __call__(self, request: BackendRequest, *, stream: bool) -> Prepared: ...


class HttpBackend(ABC):
    """One endpoint. `model` replaces the client's; `headers` are sent with every request, and `key` to this endpoint
    only. What the model reasons is sealed, or marked, by `maker`.

    `quota` is updated from the rate-limit headers of every reply, `refused` by errors about fields. `_names` says what
    chat completions call fields that the API of this `dialect` names otherwise.
    """

    dialect: str = "chat"

    def __init__(
        self,
        transport: Transport,
        *,
        model: str,
        key: str | None,
        headers: Mapping[str, str] | None = None,
        maker: Maker = NOBODY,
        quota: Quota | None = None,
        refused: FieldMemory | None = None,
    ) -> None:
        self._loses_ends = False
        """Whether whole answers that a stop string has ended lack log-probabilities that streams have (llama.cpp)."""
        self._transport = self._streaming = transport
        """What whole answers and streams are asked over: platforms of clouds have a URL for each."""
        self._maker = maker
        self._names: Mapping[str, str] = {}
        self._refused = refused
        self._model = model
        self._quota = quota
        self._own_headers = {} if headers is None else headers
        self.rekey(key)

    def rekey(self, key: str | None) -> None:
        """Send another key from now on, None for none."""
        # A new mapping, since a transport encodes each once.
        self._headers: Mapping[str, str] = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "tierline",
            **self._own_headers,
            **({} if key is None else self._key_headers(key)),
        }
        self._key = (key or "").encode()

    def _key_headers(self, key: str) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {key}"}

    @abstractmethod
    def _prepare(self, request: BackendRequest, *, stream: bool) -> Prepared:
        """Return the request in the backend's dialect.

        Called in a thread if the request is large. Raises BackendError if the request cannot be sent.
        """

    def _headers_for(self, request: BackendRequest) -> Mapping[str, str]:
        """Return the headers to send: the same mapping for equal ones, since a transport encodes each mapping once."""
        return self._headers

    async def complete(self, request: BackendRequest) -> Completion:
        """See `Backend.complete`. A stream is joined to a whole answer."""
        body = request.body
        asks = request.ask_logprobs or body.get("logprobs")
        joins = self._loses_ends and asks and body.get("stop") and not body.get("tools")
        response, reader, dropped = await self._send(request, stream=bool(joins))
        media_type = media_type_of(response)
        if media_type == _EVENTS:
            completion = await _assembled(reader.stream(response), self._model)
        else:
            completion = await _whole(reader, response, media_type)
        return completion._replace(dropped=dropped) if dropped else completion

    async def stream(self, request: BackendRequest) -> EventStream:
        """See `Backend.stream`. A plain JSON answer is converted to a stream."""
        response, reader, dropped = await self._send(request, stream=True)
        stream: EventStream
        media_type = media_type_of(response)
        if media_type == _EVENTS:
            stream = reader.stream(response)
        else:
            stream = _ReplayedStream(await _whole(reader, response, media_type))
        stream.dropped = dropped
        return stream

    async def aclose(self) -> None:
        """Close the transport."""
        await self._transport.aclose()

    async def _send(
        self, request: BackendRequest, *, stream: bool, prepare: Prepare | None = None
    ) -> tuple[Response, ReplyReader, tuple[str, ...]]:
        """Send the request; return the reply, of status 200, its reader, and what was not sent. Raises BackendError.

        `prepare` takes the place of `_prepare`. A request that is refused for a field goes out again without it, and
        once more to a server whose refusal tells something new of it.
        """
        left_out: list[Any] = []
        if request.conversation:
            request = await self._restored(request)
        may_learn = True
        while True:
            encoding = prepare or self._prepare, request, left_out, stream
            try:
                body, sent, reader, dropped = (
                    await off_loop(partial(self._encoded, *encoding)) if request.large else self._encoded(*encoding)
                )
            except (AttributeError, LookupError, TypeError, ValueError) as unread:
                raise self._untranslatable(unread) from unread
            headers = self._headers_for(request)
            if request.headers:
                headers = {**headers, **request.headers}
            transport = self._streaming if stream else self._transport
            response = await transport.send(headers, sent, request.traceparent, request.tracestate)
            if self._quota is not None:
                hear = self._quota.heard if response.status == 200 else self._quota.refused
                hear(response.header, monotonic())
            if response.status == 200:
                if response.header("Content-Encoding") not in (None, "identity"):
                    response.close()
                    raise InvalidReply("a content encoding that was not asked for")
                if self._refused is not None and left_out:
                    self._refused.remember(left_out)
                return response, reader, dropped
            refused, fields = await self._refusal(request, response, body, left_out)
            if not fields:
                if not (may_learn and self._learns(refused.told)):
                    raise refused
                may_learn, left_out = False, []
            left_out += fields

    async def _refusal(
        self, request: BackendRequest, response: Response, body: Mapping[str, Any], left_out: Sequence[Any]
    ) -> tuple[BadStatus, Sequence[Any]]:
        """Return the error in a reply that is not of status 200, and the fields without which to send `body` again."""
        try:
            error = await error_start(response)
        finally:
            response.close()
        if self._key:
            # Some endpoints quote the refused key.
            error = error.replace(self._key, b"***")
        if says_too_long(response.status, error):
            return ContextExceeded(response.status, error), ()
        if says_most_output(response.status, error):
            return OutputRefused(response.status, error), ()
        fields, elsewhere = (
            ((), False) if self._refused is None else self._refused.refused(response.status, error, body, left_out)
        )
        if fields:
            return BadStatus(response.status, error), fields
        kind = FieldRefused if elsewhere else BadStatus
        return self._named(kind(response.status, error, retry_after_s(response.header)), request), ()

    async def _restored(self, request: BackendRequest) -> BackendRequest:
        """Return the request of a conversation with what the client cannot have sent."""
        return request

    def _learns(self, refusal: Mapping[str, Any]) -> bool:
        """Return whether an error object tells something new of the server, so that it is asked once more."""
        return False

    def _encoded(
        self, prepare: Prepare, request: BackendRequest, left_out: Sequence[Any], stream: bool
    ) -> tuple[dict[str, Any], Payload, ReplyReader, tuple[str, ...]]:
        """Return a prepared request: its body, that as JSON, its reader, and the paths of what is not sent."""
        body, reader, dropped = prepare(request, stream=stream)
        if self._refused is not None and (self._refused.until or left_out):
            body, omitted = self._refused.left_out(body, left_out, held=request.held)
            if request.prompt_cache is not None:
                request.prompt_cache.left_out(omitted)
            lost = (self._asked_as(path, request, self._refused) for path in omitted)
            dropped = tuple(dict.fromkeys((*dropped, *(path for path in lost if path))))
        return body, json_pieces(body) if request.large else orjson.dumps(body), reader, dropped

    def _asked_as(self, path: str, request: BackendRequest, refused: FieldMemory) -> str:
        """Return how the client named the field at this path of the sent body; '' if it did not ask for it."""
        own = native_body(request.native, self.dialect)
        if own is not None:
            return path if refused.asks_for(own, path) else ""
        name = self._names.get(path, path)
        return client_path(request.native, name) if refused.asks_for(request.body, name) else ""

    def _named(self, error: BadStatus, request: BackendRequest) -> BadStatus:
        """Return an error of this API's with the field that it is about as the client named it."""
        return error

    def _untranslatable(self, error: Exception) -> BadStatus:
        """Return the client's error for a body that could not be translated.

        Only what the gateway itself reads is checked when it arrives, so a translation may meet a value of a type that
        the API does not define. A backend that needs no translation refuses such a value itself.
        """
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.name} ({Path(place.filename).name}:{place.lineno})"
        log.warning("a request cannot be sent to %s: %s in %s", self._model, type(error).__name__, where)
        message = (
            "A field of the request is not of the type that the API defines, and cannot be translated for the model."
        )
        told = {"message": message, "type": "invalid_request_error", "param": None, "code": "invalid_type"}
        return BadStatus(400, orjson.dumps({"error": told}))


class _ReplayedStream:
    """Present a whole answer as a stream, for an endpoint that sent JSON instead of a stream."""

    def __init__(self, completion: Completion) -> None:
        self._events = [Event(orjson.dumps(chunk), chunk) for chunk in chunks_of(completion.value)]
        self.dropped: tuple[str, ...] = ()
        self.done_seen = False

    async def read(self) -> list[Event]:
        """Return all chunks, once."""
        events, self._events, self.done_seen = self._events, [], True
        return events

    def offer(self, take: Callable[[Event], bool]) -> None:
        """Do nothing: nothing more comes."""

    def close(self) -> None:
        """Do nothing: the body has been read already."""


async def _assembled(stream: SseReply, model: str) -> Completion:
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


async def _whole(reader: ReplyReader, response: Response, media_type: str) -> Completion:
    """Return the completion in a reply of this media type, and close it. Raises BackendError, for any but JSON too."""
    try:
        if media_type != "application/json":
            raise InvalidReply(f"content type {media_type}" if _MEDIA_TYPE.fullmatch(media_type) else "no content type")
        raw = await response.read()
    finally:
        response.close()
    try:
        return reader.completion(raw)
    except AnswerFailed as failed:
        raise error_in_200(failed.error, raw) from None


def json_object(raw: bytes) -> dict[str, Any]:
    """Return the object that a JSON reply consists of. Raises InvalidReply for anything else."""
    try:
        value = orjson.loads(raw.removeprefix(BYTE_ORDER_MARK))
    except orjson.JSONDecodeError:
        raise InvalidReply("a reply that is not JSON") from None
    if not isinstance(value, dict):
        raise InvalidReply("a reply that is not an object")
    return value


def error_in_200(error: object, raw: bytes) -> BackendError:
    """Return the error in a reply of status 200: as if it had come with the status that its code or type stands for.

    Of one that stands for none, the code or type is told; its message may quote the prompt, and is left out.
    """
    status = status_in(error)
    if says_too_long(status or 400, raw):
        return ContextExceeded(status or 400, raw[:ERROR_BODY])
    if status is not None:
        return BadStatus(status, orjson.dumps({"error": error})[:ERROR_BODY])
    named = (error.get("code") or error.get("type")) if isinstance(error, dict) else None
    word = f": {named}" if isinstance(named, str) and _WORD.fullmatch(named) else ""
    return InvalidReply(f"an error in a 200{word}")


def media_type_of(response: Response) -> str:
    """Return a reply's media type in lower case, without parameters; '' if it states none."""
    return (response.header("Content-Type") or "").partition(";")[0].strip().lower()


def retry_after_s(header: Header) -> float | None:
    """Return the seconds in `retry-after-ms` or `Retry-After` (a number or a date); None if neither is valid."""
    milliseconds = number_in(header("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = header("Retry-After")
    seconds = number_in(value)
    if value is None or seconds is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except (TypeError, ValueError):
        return None


def number_in(text: str | None) -> float | None:
    """Return the number in a header; None if it is missing, not a number or negative."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
