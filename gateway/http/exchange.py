"""Handle one request for an answer and its reply: all steps around the pipeline."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Sequence
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from gateway import pipeline
from gateway.caller import ANYBODY
from gateway.chat.completions import wants_usage
from gateway.errors import CLIENT_GONE, ApiError, Draining, InternalError, InvalidRequest, RequestTooLarge, retry_after
from gateway.http.build_context import build_context, policy_of
from gateway.http.messages import (
    explain,
    linger,
    read_body,
    reasons,
    request_id_of,
    send_json,
    start_events,
    with_null_usage,
)
from gateway.parts.standard import missing_for
from gateway.request.body import ChatBodies
from gateway.request.context import QUIET_S, Client, ClientGone, is_sign_of_life
from gateway.request.options import TIER_PREFIX, TRY, known_headers, read_options, user_of
from gateway.seams import early_head, tried
from gateway.telemetry import names
from gateway.telemetry.ledger import PLAYGROUND, Ledger
from gateway.telemetry.trace import NO_PARENT, Trace, new_request_id, parse_parent
from policies.value_type import from_fields

if TYPE_CHECKING:
    from gateway.dialects.native import Native
    from gateway.request.body import ChatBodies
    from gateway.request.context import EarlyHead, Header, HeaderStyle, HeldLimits, LivingStream, Reply, RequestContext
    from gateway.steps import Steps
    from policies.model import Policy

log = logging.getLogger("tierline.exchange")

CHAT: Final = frozenset({"/v1/chat/completions", "/chat/completions"})
_CUT_OFF_S: Final = 0.5
_SOONEST_SIGN_S: Final = QUIET_S / 2
"""A chunk that comes sooner after the one before is no sign of life; seconds."""


class BaseExchange:
    """One request, its trace and its ledger. An endpoint implements `answer`, `fail` and, for replies, `deliver`."""

    dialect_of_limits: HeaderStyle = "openai"
    """Whose headers say how the client's limits stand."""

    def __init__(self, steps: Steps, scope: Any, receive: Any, send: Any) -> None:
        self.steps = steps
        self.receive = receive
        self.send = send
        self.headers = known_headers(scope["headers"])
        self.client = Client(getattr(receive, "__self__", None), steps.deployment.limits.stall)
        parent = parse_parent(self.headers) if b"traceparent" in self.headers else NO_PARENT
        telemetry = steps.telemetry
        follows, told_below = telemetry.follows_callers, telemetry.told_below
        self.trace = Trace(names.REQUEST, parent, telemetry.sampled_below, follows=follows, told_below=told_below)
        self.trace.route = scope.get("path", "")
        self.ledger = Ledger.begun(request_id_of(self.headers) if b"x-request-id" in self.headers else new_request_id())
        self.counted = False
        """Whether the request was counted against its owners' limits with the handshake of its connection."""
        self.caller = ANYBODY
        """Who sends the request, once `admit` knows it."""
        self.hold: HeldLimits | None = None
        """What the request holds of its owners' limits, once it is let in."""
        self.early_head: EarlyHead | None = None
        """What may send the head of a stream before its answer; None where nothing does."""
        self.reply: Reply | None = None
        """The pipeline's reply, for what is written after it; None where the pipeline gave none."""

    async def answer(self) -> Reply | None:
        """Read the request and return what `deliver` is to send; None if all is sent. Raises ApiError or ClientGone."""
        raise NotImplementedError

    def deliver(self, reply: Reply) -> Coroutine[Any, Any, None]:
        """Return the coroutine that sends the reply: no frame of its own, as a stream resumes all of them per chunk."""
        raise NotImplementedError

    async def fail(self, error: ApiError) -> None:
        """Tell the client of the error, by what was sent already: an error reply, an event, or a closed connection."""
        raise NotImplementedError

    async def run(self) -> None:
        """Answer the request, and leave the rest to `write_behind`, whatever happens."""
        steps = self.steps
        steps.gate.in_hand += 1
        try:
            self.reply = reply = await self.answer()
            if reply is not None:
                await self.deliver(reply)
        except ClientGone:
            self.client_left()
        except ApiError as error:
            await self.fail(error)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            if self.client.gone or self.client.absent:
                self.client_left()
            else:
                await self._cut_off()
        except Exception:
            log.exception("request %s met a bug", self.ledger.request_id)
            await self.fail(InternalError())
        finally:
            steps.gate.in_hand -= 1
            self.close()
            steps.write_behind.finish(self.trace, self.ledger, self.reply, self.hold)

    async def admit(self) -> None:
        """Check the load, the sender and the key, and note the caller. Raises ApiError."""
        steps, headers, ledger = self.steps, self.headers, self.ledger
        steps.gate.check()
        if steps.guard.active:
            steps.guard.check(headers)
        self.caller = caller = steps.authenticator.known(headers) or await steps.authenticator.find(headers)
        ledger.tenant, ledger.team, ledger.key = caller.tenant, caller.team, caller.key

    def body(self, limit: int, *, typed: bool | None = None) -> Coroutine[Any, Any, bytes]:
        """Read the whole body, of `limit` bytes at most; see `read_body`. Raises ApiError and ClientGone."""
        steps = self.steps
        typed = steps.guard.active if typed is None else typed
        return read_body(self.receive, self.headers, limit, steps.gate, typed=typed, caller=self.caller)

    def explained(self) -> list[Header]:
        """Return the headers that tell how the request was answered."""
        headers = explain(self.trace, self.ledger)
        if self.hold is not None:
            headers += self.hold.headers(self.dialect_of_limits)
        if self.headers.get(b"x-tierline-debug") == b"1":
            headers.append(reasons(self.trace))
        return headers

    def client_left(self) -> None:
        """Record that there is nobody to reply to."""
        self.ledger.status = CLIENT_GONE
        self.ledger.error = "client_gone"

    def close(self) -> None:
        """Record the request's times, after the last byte; an early head that waits for its first event is given up."""
        if self.early_head is not None:
            self.early_head.abandon()
        self.client.unwatch()
        ledger, root = self.ledger, self.trace.root
        root.end(ledger.error)
        ledger.total_ms = (root.end_ns - root.start_ns) / 1e6
        ledger.overhead_ms = self.trace.overhead_ms()
        retry = self.headers.get(b"x-stainless-retry-count")
        if retry is not None and retry.isdigit():
            root.attributes[names.CLIENT_RETRY] = int(retry[:3])

    async def _cut_off(self) -> None:
        """Send the client an error, within half a second, because the gateway stops before its request could end."""
        error = Draining("The gateway is stopping. Send the request again.", headers=retry_after(1))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CUT_OFF_S):
                await self.fail(error)


class ReadRequest(NamedTuple):
    """A request's body as its client wrote it (`given`) and as chat completions (`body`), which may be the same."""

    given: dict[str, Any]
    body: dict[str, Any]
    native: Native | None
    """The own form of a body that was translated."""
    large: bool


read_request: Final = from_fields(ReadRequest)


class _Layer(Protocol):
    """What lets a request in; see `gateway.steps.Admission`."""

    def enter(self, request: RequestContext) -> Awaitable[RequestContext] | None:
        """Return the request as the next layer gets it; None if it stays as it is."""


class Exchange(BaseExchange):
    """Handle one request and its reply: steps 1 to 3, `pipeline.answer`, steps 10 and 11.

    It speaks chat completions. An exchange of another API translates in `read`, `deliver`, `error_body` and
    `error_event`.
    """

    _last_s = inf
    """When the last event of a stream was sent that shows its model at work, in `time.monotonic()` seconds."""
    _longest_s = _looked_at_s = 0.0
    """The longest time between two of them, and the time from which on one is looked at."""

    def __init__(self, steps: Steps, bodies: ChatBodies, scope: Any, receive: Any, send: Any) -> None:
        super().__init__(steps, scope, receive, send)
        self._bodies = bodies
        self._started = False
        self._events_open = False
        """Whether a stream's head was sent but not its end, so that an error can only be sent as an event."""
        self._null_usage = False
        """Whether chunks get `usage: null`, as the client asked for its stream's usage."""
        self.admissions: Sequence[_Layer] = steps.admissions
        """What else lets the request in, in this order."""
        self._prepares = False
        """Whether no model is to be called: the request only makes what a later one goes on from."""

    def deliver(self, reply: Reply) -> Coroutine[Any, Any, None]:
        """Return the coroutine that sends the reply, whole or as a stream."""
        return self._send_body(reply) if reply.events is None else self._send_stream(reply, reply.events)

    async def answer(self) -> Reply | None:
        """Return the pipeline's reply to the request, once each layer has let it through; None if it needs no answer.

        1. who calls    load, sender, key                          `admit`
        2. what         the body, as chat completions              `body`, `read`
        3. how          policy, features, deadline                 `build_context`
           how much     what its sender may still send and spend   `hold`
                        what else parts ask of a chat              `admissions`
           beside it    the head of a stream that comes early      `early_head`
        """
        steps = self.steps
        await self.admit()
        read = await self.read(await self.body(steps.deployment.limits.body))
        self.ledger.requested_model, self.ledger.user = read.body["model"], user_of(self.ledger.tenant, read.given)
        request = build_context(
            steps,
            self.headers,
            read.body,
            self.trace,
            self.ledger,
            self.client,
            large=read.large,
            native=read.native,
            instead=await self._tried(read) if TRY in self.headers else None,
            caller=self.caller,
        )
        if (hold := request.hold) is not None:
            self.hold = hold
            await hold.enter_chat(request, partial(steps.authenticator.find, self.headers), counted=self.counted)
        if self._prepares:
            await self._prepare(request)
            return None
        for admission in self.admissions:
            keys = getattr(admission, "keys", None)
            if keys is not None and request.policy.content.keys().isdisjoint(keys):
                continue
            if (entering := admission.enter(request)) is not None:
                request = await entering
        if request.features.stream and request.policy.escalate.stream.alive != "none" and not self._started:
            self.early_head = early_head(request, self.send, self.living_stream())
        reply = await pipeline.answer(request, steps)
        if self.client.absent:  # the client left, and the answer was made for followers
            self.reply = reply
            if reply.stream is not None:
                reply.stream.close()
            raise ClientGone
        return reply

    async def read(self, raw: bytes) -> ReadRequest:
        """Parse and check a body, and return the request. Raises ApiError, which names a field by the client's path."""
        body, large = await self._bodies.read(raw)
        self._null_usage = "stream_options" in body and wants_usage(body)
        return read_request((body, body, None, large))

    def living_stream(self) -> LivingStream | None:
        """Return what can begin a stream before its answer, in an API that allows that; None for chat completions."""
        return None

    def error_body(self, error: ApiError) -> bytes:
        """Return the body of an error reply."""
        return error.body()

    def error_event(self, error: ApiError) -> bytes:
        """Return the event that ends a stream with an error."""
        return b"data: " + error.body() + b"\n\n"

    async def _tried(self, read: ReadRequest) -> Policy:
        """Return the policy that the header `x-tierline-try` names. Raises ApiError."""
        name = TRY.decode()
        if missing := missing_for("policies", name):
            raise InvalidRequest(missing, code="unsupported_value", param=name)
        model = read.body["model"]
        pinned = model[len(TIER_PREFIX) :] if model.startswith(TIER_PREFIX) else None
        policies = self.steps.policies
        live = policy_of(policies.current, model, read_options(self.headers), pinned, self.caller.rights)
        policy = await tried(policies, self.headers, self.caller, live)
        self.ledger.arm = PLAYGROUND
        return policy

    async def _prepare(self, request: RequestContext) -> None:
        """Answer a request that `_prepares`."""
        raise NotImplementedError

    async def _send_body(self, reply: Reply) -> None:
        self.ledger.status = 200
        headers = self.explained()
        headers += reply.extra
        self.ledger.ttft_ms = self.trace.root.seconds * 1000
        self._started = True
        await send_json(self.send, 200, headers, reply.body)

    async def _send_stream(self, reply: Reply, events: AsyncGenerator[bytes]) -> None:
        self.ledger.status = 200
        headers = self.explained()
        headers += reply.extra
        send = self.send
        try:
            if self.early_head is not None and await self.early_head.stopped():
                events = self.early_head.events(events, reply.extra)
            else:
                await start_events(send, headers)
                write = getattr(getattr(send, "__self__", None), "write_piece", None)
                if write is not None and reply.pass_on is not None:
                    reply.pass_on(lambda event: write(self._paced(event)))
            self._started = self._events_open = True
            self.ledger.ttft_ms = self.trace.root.seconds * 1000
            async with contextlib.aclosing(events):
                async for event in events:
                    await send({"type": "http.response.body", "body": self._paced(event), "more_body": True})
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

    def _paced(self, event: bytes) -> bytes:
        """Note the time since the event before; return the event as it is sent."""
        now_s = monotonic()
        if now_s - self._last_s <= self._looked_at_s:
            self._last_s = now_s
        elif not is_sign_of_life(event):
            longest_s = max(self._longest_s, now_s - self._last_s)
            self._longest_s, self._looked_at_s = longest_s, min(longest_s, _SOONEST_SIGN_S)
            self.ledger.gap_ms, self._last_s = longest_s * 1000, now_s
        return with_null_usage(event) if self._null_usage else event

    async def fail(self, error: ApiError) -> None:
        """Tell the client of the error: as the reply, or as an event of a stream that is open."""
        if self.client.absent:
            self.client_left()
            return
        self.client.unwatch()  # a client that leaves now must not cancel the error reply
        self.ledger.error, self.ledger.refused = error.code or error.type, error.refuses
        if self._events_open:
            self._events_open = False
            await self.send({"type": "http.response.body", "body": self.error_event(error)})
        if self._started:
            return
        if self.early_head is not None and await self.early_head.stopped():
            self.ledger.status = 200
            await self.early_head.fail(self.error_event(error))
            return
        self.ledger.status = error.status
        before_end = partial(linger, self.receive) if isinstance(error, RequestTooLarge) else None
        self._started = True
        headers = [*self.explained(), *error.headers]
        await send_json(self.send, error.status, headers, self.error_body(error), before_end)


class ChatCompletions:
    """Answer chat completions with one worker's steps, as a raw ASGI endpoint: a route of Starlette costs more."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._bodies = ChatBodies(steps.deployment.limits)

    def __call__(self, scope: Any, receive: Any, send: Any) -> Coroutine[Any, Any, None]:
        """Return the coroutine that answers one request; an `async def` here would cost a call for each chunk sent."""
        return Exchange(self._steps, self._bodies, scope, receive, send).run()
