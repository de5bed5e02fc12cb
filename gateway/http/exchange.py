"""Handle one request for an answer and its reply, in the client's dialect: all steps around the pipeline."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from gateway import pipeline
from gateway.chat.completions import wants_usage
from gateway.dialects.client_paths import client_path
from gateway.errors import ApiError, InvalidRequest, RequestTooLarge
from gateway.http.base_exchange import BaseExchange
from gateway.http.build_context import build_context
from gateway.http.early_head import EarlyHead
from gateway.http.messages import (
    linger,
    read_body,
    send_json,
    start_events,
    with_null_usage,
)
from gateway.http.translated_events import translated
from gateway.http.tried_policy import TRY, tried_policy
from gateway.request.context import ClientGone
from gateway.telemetry import names
from gateway.telemetry.ledger import PLAYGROUND

if TYPE_CHECKING:
    from gateway.dialects.client import ClientDialect, StreamWriter
    from gateway.dialects.native import Native
    from gateway.request.body import ChatBodies
    from gateway.request.reply import Header, Reply
    from gateway.steps import Steps


class Exchange(BaseExchange):
    """Handle one request and its reply: steps 1 to 3, `pipeline.answer`, steps 10 and 11."""

    def __init__(
        self,
        steps: Steps,
        bodies: ChatBodies,
        scope: Any,
        receive: Any,
        send: Any,
        dialect: ClientDialect | None = None,
    ) -> None:
        """Prepare the exchange. `dialect` translates for a client that does not speak chat completions."""
        super().__init__(steps, scope, receive, send)
        self._bodies = bodies
        self._dialect = dialect
        self._writer: StreamWriter | None = None
        """Writes the stream of a client that does not speak chat completions."""
        self._started = False
        self._events_open = False
        """Whether a stream's head was sent but not its end, so that an error can only be sent as an event."""
        self._null_usage = False
        """Whether chunks get `usage: null`, as the client asked for its stream's usage."""
        self._early_head: EarlyHead | None = None

    def deliver(self, reply: Reply) -> Coroutine[Any, Any, None]:
        """Return the coroutine that sends the reply, whole or as a stream."""
        return self._send_body(reply) if reply.events is None else self._send_stream(reply, reply.events)

    def close(self) -> None:
        """Record the request's times; an early head that waits for its first event is given up."""
        if self._early_head is not None:
            self._early_head.abandon()
        super().close()

    async def answer(self) -> Reply:
        """Read the request, give it to the pipeline, and return the pipeline's reply."""
        steps, headers = self.steps, self.headers
        self.admit()
        raw = await read_body(self.receive, headers, steps.deployment.limits.body, steps.gate, typed=steps.guard.active)
        native = None
        if self._dialect is None:
            body, large = await self._bodies.read(raw)
            self._null_usage = wants_usage(body)
        else:
            given, large = await self._bodies.read_object(raw)
            body, native, large = await self._dialect.read(given, self.ledger.tenant, large=large)
            await self._check(body, native, large=large)
        self.ledger.requested_model = body["model"]
        tried = None
        if TRY in headers:
            tried, self.ledger.arm = await tried_policy(steps, headers, self.ledger.tenant, body["model"]), PLAYGROUND
        request = build_context(
            steps, headers, body, self.trace, self.ledger, self.client, large=large, native=native, instead=tried
        )
        if self._dialect is not None and (limit := self.trace.root.attributes.get(names.OUTPUT_LIMIT)) is not None:
            self._dialect.limited(limit)
        if request.features.stream and request.policy.escalate.stream.alive != "none":
            if self._dialect is not None:
                self._writer = self._dialect.stream()
            self._early_head = EarlyHead(request, self.send, self._writer)
            self._early_head.begin()
        reply = await pipeline.answer(request, steps)
        if self.client.absent:  # the client left, and the answer was made for followers
            self.reply = reply
            if reply.stream is not None:
                reply.stream.close()
            raise ClientGone
        return reply

    async def _check(self, body: dict[str, Any], native: Native | None, *, large: bool) -> None:
        """Check a translated body. Raises InvalidRequest, by the client's own path."""
        try:
            await self._bodies.check(body, large=large)
        except InvalidRequest as error:
            if error.param is None or (param := client_path(native, error.param)) == error.param:
                raise
            message = error.message.replace(error.param, param)
            raise InvalidRequest(message, code=error.code, param=param) from None

    async def _send_body(self, reply: Reply) -> None:
        self.ledger.status = 200
        headers = self.explained()
        headers += reply.extra
        self.ledger.ttft_ms = self.trace.root.seconds * 1000
        body = reply.body if self._dialect is None else self._dialect.whole(orjson.loads(reply.body))
        self._started = True
        await send_json(self.send, 200, headers, body)

    async def _send_stream(self, reply: Reply, events: AsyncGenerator[bytes]) -> None:
        self.ledger.status = 200
        headers = self.explained()
        headers += reply.extra
        send, null_usage = self.send, self._null_usage
        if self._dialect is not None:
            self._writer = self._writer or self._dialect.stream()
            events = translated(events, self._writer)
        try:
            if self._early_head is not None and await self._early_head.stopped():
                events = self._early_head.events(events, reply.extra)
            else:
                await start_events(send, headers)
            self._started = self._events_open = True
            self.ledger.ttft_ms = self.trace.root.seconds * 1000
            async with contextlib.aclosing(events):
                async for event in events:
                    sent = with_null_usage(event) if null_usage else event
                    await send({"type": "http.response.body", "body": sent, "more_body": True})
            if reply.stream is not None and reply.stream.end != "done":
                self.ledger.error = reply.stream.end
            # End the HTTP response normally: the last event was the error, and a torn connection would be a second one.
            self._events_open = False
            await send({"type": "http.response.body", "body": b""})
        except asyncio.CancelledError:
            if reply.stream is not None and reply.stream.end != "done" and not self.client.gone:
                reply.stream.end = "drain"
            raise
        finally:
            if reply.stream is not None:
                reply.stream.close()

    def explained(self) -> list[Header]:
        """See `BaseExchange.explained`. What a text completion's answer left out has its own names."""
        ledger = self.ledger
        if ledger.dropped and self._dialect is not None:
            ledger.dropped = tuple(dict.fromkeys(map(self._dialect.path_of, ledger.dropped)))
        return super().explained()

    async def fail(self, error: ApiError) -> None:
        """Tell the client of the error in its dialect: as the reply, or as an event of a stream that is open."""
        if self.client.absent:
            self.client_left()
            return
        self.client.unwatch()  # a client that leaves now must not cancel the error reply
        self.ledger.error = error.code or error.type
        if self._events_open:
            self._events_open = False
            await self.send({"type": "http.response.body", "body": self._error_event(error)})
        if self._started:
            return
        if self._early_head is not None and await self._early_head.stopped():
            self.ledger.status = 200
            await self._early_head.fail(self._error_event(error))
            return
        self.ledger.status = error.status
        before_end = partial(linger, self.receive) if isinstance(error, RequestTooLarge) else None
        self._started = True
        body = error.body() if self._dialect is None else self._dialect.error(error)
        await send_json(self.send, error.status, [*self.explained(), *error.headers], body, before_end)

    def _error_event(self, error: ApiError) -> bytes:
        """Return the event that ends a stream with an error, in the client's dialect."""
        if self._dialect is None:
            return b"data: " + error.body() + b"\n\n"
        if self._writer is None:
            self._writer = self._dialect.stream()
        return self._writer.error(orjson.loads(error.body())["error"])
