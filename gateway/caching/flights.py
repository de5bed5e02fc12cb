"""Follow a flight, or lead it: the requests of one worker that share an answer.

A follower reads a flight for one client, at its own pace and within its own deadline. Each client gets the form that it
requested, whichever the flight has: events of a stream or one body, with usage or without. The ids in it are the same
for all.

A leader makes the answer in the request's own task. It is the first subscriber of its flight and reads it as any other
request does. A body lands at once. A stream has one producer task, which reads the backend and feeds the flight for as
long as anybody reads. The leader's record carries the cost and the hops; it is written when the flight has landed, even
if its own client has left by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import orjson

from cache.entry import Hit
from cache.flights import AnswerHead, Flight, Landing
from cache.write import PendingWrite
from gateway.accounting import replayed, settle
from gateway.backends.base import DeadlinePassed, Truncated
from gateway.caching.lookups import StallWatch, hit_attributes
from gateway.cascade.streaming import LiveStream
from gateway.chat.completions import DONE_EVENT, assemble, chunks_of, completion_text, wants_usage
from gateway.errors import ApiError, InternalError, UpstreamTimeout, stream_error
from gateway.request.context import AnswerEnd, Reply, Source, is_error_event
from gateway.telemetry import names

if TYPE_CHECKING:
    from cache.flights import Subscription
    from gateway.request.context import RequestContext
    from gateway.telemetry.trace import Hop


log = logging.getLogger("tierline.coalescing")

OnLanded = Callable[[Flight, PendingWrite | None, AnswerEnd], None]
"""Called once with what a landed flight leaves for the store."""

_COALESCED: Final = ((b"x-tierline-coalesced", b"1"),)
_LAST: Final = b": x-tierline-"
_ATTEMPTS: Final = b" x-tierline-attempts="
_DEGRADED: Final = b" x-tierline-path=degraded"
_OWN_LAST: Final = b": x-tierline-cost-usd=0 x-tierline-attempts=0"
_OVERLOADED: Final = 503
_MOST_CAPTURED: Final = 8192
"""Events of a stream that are kept for the trace: more than the characters of an answer that are recorded need."""
_GRACE_S: Final = 0.25
"""Seconds after the deadline that the leader has to end the answer with its own error, before its readers do."""


def deadline_passed() -> ApiError:
    """Return the error of a request whose own deadline passed before the answer began."""
    return UpstreamTimeout("The deadline passed before an answer was there.", code="deadline_exceeded")


class Follower:
    """Read one flight for one request. `follows`: another request makes the answer; otherwise this one does.

    `last`: the request joins no further flight, so a failure of this one is its result.
    """

    def __init__(self, request: RequestContext, subscription: Subscription, *, follows: bool, last: bool) -> None:
        self._request = request
        self._subscription = subscription
        self._flight = subscription.flight
        self._last = last
        self._hop: Hop | None = request.trace.begin(names.CACHE_FOLLOW) if follows else None
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(max(0.0, request.budget_s()), self._late)
        self._stall: StallWatch | None = None
        self._captured: list[bytes] | None = None
        """Events of the stream for the trace, only where texts are captured and another request makes them."""
        self.end = "client_cancel"
        """`done`, the error_type that ended it, or `client_cancel` while it has not ended."""

    async def answer(self) -> Reply | Hit | None:
        """Return the client's reply; None if the request must be made anew. Raises ApiError."""
        try:
            if not await self._subscription.begun():
                return self._without_beginning(self._flight.landing)
            head = self._flight.head
            if head is None:
                raise AssertionError("a flight that has begun has a head")
            self._describe(head)
            if self._request.features.stream:
                return self._stream(head)
            return await self._body(head)
        except BaseException:
            self.close()
            raise

    def rest(self) -> AsyncGenerator[bytes]:
        """Return the events that the subscription has not taken yet."""
        self._stall = stall = StallWatch(self._request.client)
        return self._events(stall)

    def close(self) -> None:
        """Stop reading; safe to call twice. The flight continues while it has other readers."""
        self._deadline.cancel()
        if self._stall is not None:
            self._stall.stop()
        if self._hop is not None:
            self._hop.attributes.setdefault(names.CACHE_OUTCOME, self.end)
            self._hop.end()
        self._subscription.leave(self.end)

    # --- before the answer begins -------------------------------------------------------------------------------------

    def _describe(self, head: AnswerHead) -> None:
        ledger = self._request.ledger
        ledger.path, ledger.tier, ledger.backend, ledger.model = head.path, head.tier, head.backend, head.model
        ledger.confidence, ledger.difficulty = head.confidence, head.difficulty
        ledger.dropped = head.dropped
        settle(self._request.ledger, None)
        if self._hop is not None:
            self._hop.attributes[names.FOLLOWED] = head.request_id
            if self._request.trace.captures:
                self._captured, self._request.trace.answer = [], self._text

    def _without_beginning(self, landing: Landing | None) -> Hit | None:
        """Return the hit that ended a flight without an answer; None to try again. Raises ApiError."""
        self.end = DeadlinePassed.error_type if landing is None else landing.end
        hit = landing.found if landing is not None and isinstance(landing.found, Hit) else None
        if hit is not None and self._hop is not None:
            self._hop.attributes.update(hit_attributes(hit))
        self.close()
        if landing is None:
            raise deadline_passed()
        if hit is not None:
            return hit
        error = landing.error
        if error is None:
            return None
        if not isinstance(error, ApiError):
            raise InternalError
        if self._last or _meets_all(error):
            raise error.with_traceback(None)
        return None

    def _late(self) -> None:
        flight = self._flight
        if flight.started and flight.deadline <= self._request.deadline and self._request.budget_s() > -_GRACE_S:
            # The leader has the same deadline, and its error in the answer is preferred.
            self._deadline = asyncio.get_running_loop().call_later(_GRACE_S, self._late)
        else:
            self._subscription.nudge()

    def _text(self) -> str:
        """Return the text that was passed on, for the trace of a request that follows another."""
        events = self._captured or ()
        if events and events[0].startswith(b"{"):  # a body, not events
            return completion_text(orjson.loads(events[0]))
        chunks = [orjson.loads(event[6:]) for event in events if event.startswith(b"data: {")]
        told = [chunk for chunk in chunks if chunk.get("choices")]  # neither the usage nor an error
        return completion_text(assemble(told)) if told else ""

    # --- one body -----------------------------------------------------------------------------------------------------

    async def _body(self, head: AnswerHead) -> Reply | None:
        landing = await self._subscription.landed()
        flight = self._flight
        if landing is None:
            self.end = DeadlinePassed.error_type
            self.close()
            raise deadline_passed()
        if landing.end != "done":
            self.end = landing.end
            self.close()
            return None
        body: bytes | None = flight.memo.get("body")
        if body is None:
            body = flight.memo["body"] = _assembled(flight.events()) if head.stream else flight.events()[0]
        self.end = "done"
        self.close()
        if self._captured is not None:
            self._captured.append(body)
        replayed(self._request.ledger, body)
        return Reply(body=body, extra=_COALESCED)

    # --- events -------------------------------------------------------------------------------------------------------

    def _stream(self, head: AnswerHead) -> Reply:
        if head.stream:
            return Reply(events=self.rest(), extra=_COALESCED, stream=self)
        self._stall = stall = StallWatch(self._request.client)
        return Reply(events=self._replayed(stall), extra=_COALESCED, stream=self)

    async def _events(self, stall: StallWatch) -> AsyncGenerator[bytes]:
        subscription, follows, counted = self._subscription, self._hop is not None, wants_usage(self._request.body)
        event = b""
        while await subscription.more():
            for event in subscription.take():
                if is_usage(event):
                    if follows:
                        replayed(self._request.ledger, event)
                    if not counted:
                        continue
                if (captured := self._captured) is not None and len(captured) < _MOST_CAPTURED:
                    captured.append(event)
                stall.since = time.monotonic()
                yield self._own_last(event) if follows and event.startswith(_LAST) else event
                stall.since = 0.0
        landing = self._flight.landing
        if landing is not None and (landing.end == "done" or is_error_event(event)):
            self.end = landing.word or "done"
            return
        yield self._cut_short(landing)  # the flight has no error event of its own

    def _own_last(self, event: bytes) -> bytes:
        """Return the last write with the cost and the attempts of a follower, 0, in place of the leader's."""
        comment, _, rest = event.partition(b"\n")
        _, space, late = comment.partition(_ATTEMPTS)[2].partition(b" ")
        if _DEGRADED in comment:
            self._request.ledger.path = "degraded"
        return _OWN_LAST + space + late + b"\n" + rest

    async def _replayed(self, stall: StallWatch) -> AsyncGenerator[bytes]:
        """Yield the events of an answer that comes as one body."""
        flight, request = self._flight, self._request
        landing = await self._subscription.landed()
        if landing is None or landing.end != "done":
            yield self._cut_short(landing)
            return
        body = flight.events()[0]
        replayed(request.ledger, body)
        if self._captured is not None:
            self._captured.append(body)
        chunks: list[bytes] | None = flight.memo.get("chunks")
        if chunks is None:
            made = (b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks_of(orjson.loads(body)))
            chunks = flight.memo["chunks"] = list(made)
        counted = wants_usage(request.body)
        for chunk in chunks:
            if counted or not is_usage(chunk):
                stall.since = time.monotonic()
                yield chunk
                stall.since = 0.0
        self.end = "done"
        stall.since = time.monotonic()
        yield _OWN_LAST + b"\n" + DONE_EVENT

    def _cut_short(self, landing: Landing | None) -> bytes:
        """Return the error event that ends this client's stream: its deadline has passed, or the answer was lost."""
        why, self.end = "whoever made it is gone", Truncated.error_type
        if landing is None:
            why, self.end = "the deadline has passed", DeadlinePassed.error_type
        return stream_error(why, self.end)


def _meets_all(error: ApiError) -> bool:
    """Return whether equal requests would fail in the same way: the caller's fault, or all backends ask for a pause."""
    return error.status < 500 or error.status == _OVERLOADED


def is_usage(event: bytes) -> bool:
    """Return whether an event is the chunk with the usage.

    No string in JSON can hold these bytes: its quotes would be escaped.
    """
    return b'"choices":[]' in event and b'"usage":{' in event


def _assembled(events: list[bytes]) -> bytes:
    chunks: list[Any] = [orjson.loads(event[6:]) for event in events if event.startswith(b"data: {")]
    return orjson.dumps(assemble(chunks))


class Sharing:
    """How a request shares its answer: it has a `reply` made elsewhere, leads a flight (`Leader`), or is alone."""

    __slots__ = ("reply",)

    def __init__(self, reply: Reply | None = None) -> None:
        self.reply = reply

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the flight, if there is one and no reply was published."""

    def publish(self, reply: Reply, hit: Hit | None = None) -> Reply:
        """Publish the reply to the flight, if any, and return the reply for this request's own client.

        `hit` is the stored answer that the reply replays, if any; each follower replays it separately.
        """
        return reply


class Leader(Sharing):
    """Lead a flight: make its answer within a `with` block, which ends by `publish` or by an exception."""

    __slots__ = ("_end", "_flight", "_keep", "_on_landed", "_request", "_subscription")

    def __init__(
        self, request: RequestContext, flight: Flight, on_landed: OnLanded, keep: Callable[[asyncio.Task[None]], None]
    ) -> None:
        """Lead this flight; `keep` keeps a reference to the producer task."""
        super().__init__()
        self._request = request
        self._flight = flight
        self._on_landed = on_landed
        self._keep = keep
        self._end = AnswerEnd()
        self._subscription = flight.subscribe()
        flight.started = True
        request.client.on_left = self._client_left

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """If the block failed, land the flight without an answer."""
        self._request.client.on_left = None
        if isinstance(error, ApiError) and error.of_owner:
            self._land(Landing("lost"))
        elif isinstance(error, Exception):
            self._land(Landing("failed", error=error))
        elif error is not None:
            self._land(Landing("abandoned"))

    def publish(self, reply: Reply, hit: Hit | None = None) -> Reply:
        """See `Sharing`. The client's stream is read from the flight, as by every follower."""
        flight, request = self._flight, self._request
        request.client.on_left = None
        if hit is not None:
            self._land(Landing("found", found=hit))
            return reply
        flight.begin(_head(request, stream=reply.events is not None))
        if reply.events is None or reply.stream is None:
            flight.add(reply.body)
            self._land(Landing("done"), reply.write)
            return Reply(body=reply.body, extra=reply.extra, shared_end=self._end)
        if isinstance(reply.stream, LiveStream):
            reply.stream.share()
        self._produce(reply.events, reply.stream, reply.write)
        own = Follower(request, self._subscription, follows=False, last=True)
        return Reply(events=own.rest(), extra=reply.extra, stream=own, shared_end=self._end)

    def _produce(self, events: AsyncGenerator[bytes], stream: Source, write: PendingWrite | None) -> None:
        """Start the producer task. It ends with the stream, or when the last subscriber leaves."""
        flight = self._flight

        def finish(_: object = None) -> None:
            stream.close()
            self._land(Landing("done") if stream.end == "done" else Landing("broken", stream.end), write)

        async def produce() -> None:
            try:
                async with contextlib.aclosing(events):
                    async for event in events:
                        flight.add(event)
                        await flight.room()
            except asyncio.CancelledError:
                log.debug("the last reader has left flight %s", flight.ident)
            except Exception:
                log.exception("a flight met a bug")
            finally:
                finish()

        def stop() -> None:
            stream.end = flight.left_as or stream.end
            task.cancel()

        task = asyncio.create_task(produce(), name="tierline.flight")
        task.add_done_callback(finish)  # a task that is cancelled before its first step runs none of its code
        self._keep(task)
        flight.on_empty = stop
        if not flight.readers:
            stop()

    def _client_left(self) -> bool:
        """Stop reading, because the client has disconnected; return whether others still read the flight."""
        if self._flight.readers < 2:
            return False
        self._flight.on_empty = self._abandon
        self._subscription.leave("client_cancel")
        return True

    def _abandon(self) -> None:
        """Cancel this task: the last of the other readers has left too."""
        client = self._request.client
        client.on_left = None
        client.drop()

    def _land(self, landing: Landing, write: PendingWrite | None = None) -> None:
        if self._end.over:
            return
        self._flight.land(landing)
        if self._flight.head is None or not self._flight.head.stream:
            self._subscription.leave()
        self._on_landed(self._flight, write, self._end)


def _head(request: RequestContext, *, stream: bool) -> AnswerHead:
    ledger = request.ledger
    return AnswerHead(
        request.request_id,
        stream,
        ledger.path,
        ledger.tier,
        ledger.backend,
        ledger.model,
        ledger.confidence,
        ledger.difficulty,
        ledger.dropped,
    )
