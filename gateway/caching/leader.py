"""Lead a flight: make the answer in the request's own task, and feed a stream to the flight in a producer task.

The leader is the first subscriber of its flight and reads it as any other request does. A body lands at once. A stream
has one producer task, which reads the backend and goes on for as long as anybody reads. The leader's record carries the
cost and the hops; it is written when the flight has landed, even if its own client has left by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cache.flights.single_flight import AnswerHead, Flight, Landing
from cache.write import PendingWrite
from gateway.caching.follower import Follower
from gateway.cascade.streaming import LiveStream
from gateway.errors import ApiError
from gateway.request.reply import AnswerEnd, Reply, Source

if TYPE_CHECKING:
    from cache.entry import Hit
    from gateway.request.context import RequestContext

log = logging.getLogger("tierline.coalescing")

OnLanded = Callable[[Flight, PendingWrite | None, AnswerEnd], None]
"""Called once with what a landed flight leaves for the store."""


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
