"""Handle one request for an answer and its reply, in the client's dialect: all steps around the pipeline."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from gateway.chat.completions import wants_usage
from gateway.errors import ApiError, Draining, InternalError, RequestTooLarge, retry_after
from gateway.http.build_context import build_context
from gateway.http.early_head import EarlyHead
from gateway.http.messages import (
    explain,
    linger,
    overhead_ms,
    read_body,
    reasons,
    request_id_of,
    send_json,
    start_events,
    with_null_usage,
)
from gateway.http.translated_events import translated
from gateway.pipeline import answer
from gateway.request.context import Client, ClientGone
from gateway.request.options import known_headers
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace, parse_traceparent

if TYPE_CHECKING:
    from gateway.dialects.client import ClientDialect, StreamWriter
    from gateway.request.body import ChatBodies
    from gateway.request.reply import Header, Reply
    from gateway.steps import Steps

log = logging.getLogger("tierline.chat")

CLIENT_GONE = 499
_CUT_OFF_S = 0.5


class Exchange:
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
        self._steps = steps
        self._bodies = bodies
        self._receive = receive
        self._send = send
        self._dialect = dialect
        self._writer: StreamWriter | None = None
        """Writes the stream of a client that does not speak chat completions."""
        self._headers = known_headers(scope["headers"])
        self._reply: Reply | None = None
        self._started = False
        self._events_open = False
        """Whether a stream's head was sent but not its end, so that an error can only be sent as an event."""
        self._null_usage = False
        """Whether chunks get `usage: null`, as the client asked for its stream's usage."""
        self._client = Client(getattr(receive, "__self__", None), steps.deployment.limits.stall)
        self._early_head: EarlyHead | None = None
        trace_id, parent_id = parse_traceparent(self._headers.get(b"traceparent")) or (0, 0)
        self.trace = Trace(names.REQUEST, trace_id, parent_id)
        self.ledger = Ledger(request_id_of(self._headers))

    async def run(self) -> None:
        """Read the request, answer it, send the reply, and leave the rest to `write_behind`, whatever happens."""
        steps = self._steps
        steps.gate.enter()
        steps.metrics.request_started()
        try:
            self._reply = reply = await self._answer()
            if reply.events is None:
                await self._send_body(reply)
            else:
                await self._send_stream(reply, reply.events)
        except ClientGone:
            self._client_left()
        except ApiError as error:
            await self._fail(error)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            if self._client.gone or self._client.absent:
                self._client_left()
            else:
                await self._cut_off()
        except Exception:
            log.exception("request %s met a bug", self.ledger.request_id)
            await self._fail(InternalError())
        finally:
            steps.metrics.request_ended()
            steps.gate.leave()
            self._close()
            steps.write_behind.finish(self.trace, self.ledger, self._reply)

    def _close(self) -> None:
        """Record the request's times, after the last byte."""
        self._client.unwatch()
        if self._early_head is not None:
            self._early_head.abandon()
        ledger, root = self.ledger, self.trace.root
        root.end(ledger.error)
        ledger.total_ms = root.seconds * 1000
        ledger.overhead_ms = overhead_ms(self.trace)
        retry = self._headers.get(b"x-stainless-retry-count")
        if retry is not None and retry.isdigit():
            root.attributes[names.CLIENT_RETRY] = int(retry[:3])

    async def _answer(self) -> Reply:
        steps, headers = self._steps, self._headers
        steps.gate.check()
        steps.guard.check(headers)
        self.ledger.tenant = steps.tenants.of(headers)
        raw = await read_body(self._receive, headers, steps.deployment.limits.body, typed=steps.guard.active)
        if self._dialect is None:
            body, large = await self._bodies.read(raw)
            self._null_usage = wants_usage(body)
        else:
            given, large = await self._bodies.read_object(raw)
            body = await self._dialect.read(given, self.ledger.tenant)
            self._bodies.check(body)
        self.ledger.requested_model = body["model"]
        request = build_context(steps, headers, body, self.trace, self.ledger, self._client, large=large)
        if request.features.stream and request.policy.escalate.stream.alive != "none":
            self._early_head = EarlyHead(request, self._send, in_chat=self._dialect is None)
            self._early_head.begin()
        reply = await answer(request, steps)
        if self._client.absent:  # the client left, and the answer was made for followers
            self._reply = reply
            if reply.stream is not None:
                reply.stream.close()
            raise ClientGone
        return reply

    async def _send_body(self, reply: Reply) -> None:
        self.ledger.status = 200
        headers = self._explained()
        headers += reply.extra
        self.ledger.ttft_ms = self.trace.root.seconds * 1000
        body = reply.body if self._dialect is None else self._dialect.whole(orjson.loads(reply.body))
        self._started = True
        await send_json(self._send, 200, headers, body)

    async def _send_stream(self, reply: Reply, events: AsyncGenerator[bytes]) -> None:
        self.ledger.status = 200
        headers = self._explained()
        headers += reply.extra
        send, null_usage = self._send, self._null_usage
        if self._dialect is not None:
            self._writer = self._dialect.stream()
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
            if reply.stream is not None and reply.stream.end != "done" and not self._client.gone:
                reply.stream.end = "drain"
            raise
        finally:
            if reply.stream is not None:
                reply.stream.close()

    def _explained(self) -> list[Header]:
        headers = explain(self.trace, self.ledger)
        if self._headers.get(b"x-tierline-debug") == b"1":
            headers.append(reasons(self.trace))
        return headers

    async def _fail(self, error: ApiError) -> None:
        if self._client.absent:
            self._client_left()
            return
        self._client.unwatch()  # a client that leaves now must not cancel the error reply
        self.ledger.error = error.code or error.type
        if self._events_open:
            self._events_open = False
            await self._send({"type": "http.response.body", "body": self._error_event(error)})
        if self._started:
            return
        if self._early_head is not None and await self._early_head.stopped():
            self.ledger.status = 200
            await self._early_head.fail(self._error_event(error))
            return
        self.ledger.status = error.status
        before_end = partial(linger, self._receive) if isinstance(error, RequestTooLarge) else None
        self._started = True
        body = error.body() if self._dialect is None else self._dialect.error(error)
        await send_json(self._send, error.status, [*self._explained(), *error.headers], body, before_end)

    def _error_event(self, error: ApiError) -> bytes:
        """Return the event that ends a stream with an error, in the client's dialect."""
        if self._dialect is None:
            return b"data: " + error.body() + b"\n\n"
        if self._writer is None:  # nothing but comments was sent yet
            self._writer = self._dialect.stream()
        return self._writer.error(orjson.loads(error.body())["error"])

    async def _cut_off(self) -> None:
        """Send the client an error, within half a second, because the gateway stops before its request could end."""
        error = Draining("The gateway is stopping. Send the request again.", headers=retry_after(1))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CUT_OFF_S):
                await self._fail(error)

    def _client_left(self) -> None:
        self.ledger.status = CLIENT_GONE
        self.ledger.error = "client_gone"
