"""The making of one flight's answer, on the task of the request that asked first.

While nobody else reads, that costs no task and no second buffer: the events of a stream go to the client as they come,
and are remembered for whoever joins later. From the first other reader on a task of the flight reads the source, and
the first request is a reader like the others. Its record carries the cost and the hops, and is closed when the flight
has landed, even if its client has left by then: what others wait for goes on without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import Any

from cache.entry import Hit
from cache.flights.single_flight import AnswerHead, Flight, Landing
from cache.write import PendingWrite
from gateway.caching.follower import Follower, is_usage
from gateway.chat.completions import wants_usage
from gateway.request.context import RequestContext
from gateway.request.disconnect import ClientGone
from gateway.request.reply import Reply, Source

log = logging.getLogger("tierline.coalescing")

Work = Callable[[RequestContext], Awaitable[Reply | Hit]]
"""Makes the answer, or finds it; raises ApiError."""


class Leader:
    """One flight's maker. `answer()` once; of a stream `events()`, and `close()` however it went.

    `began` is told when the answer is a stream, `settled` what the answer leaves for the cache, once, when the flight
    has landed; `keep` holds the tasks of flights.
    """

    def __init__(
        self,
        ctx: RequestContext,
        flight: Flight,
        *,
        began: Callable[[], None],
        settled: Callable[[PendingWrite | None], None],
        keep: Callable[[asyncio.Task[None]], None],
    ) -> None:
        self._ctx = ctx
        self._flight = flight
        self._began = began
        self._settled = settled
        self._keep = keep
        self._seat = flight.board()
        self._gone = False
        self._source: AsyncGenerator[bytes] | None = None
        self._stream: Source | None = None
        self._keeping: PendingWrite | None = None
        self._awaiting = True
        self._pump: asyncio.Task[None] | None = None
        self._pumping = False
        self._over = False
        self.end = "client_cancel"
        """As `LiveStream.end`."""

    async def answer(self, work: Work) -> Reply | Hit:
        """What the client gets. Raises ApiError, and ClientGone when the answer is for others by then."""
        ctx, flight = self._ctx, self._flight
        flight.departed = True
        ctx.client.on_left = self._left
        try:
            found = await work(_with_usage(ctx))
        except asyncio.CancelledError:
            self._land(Landing("abandoned"))
            raise
        except Exception as error:
            self._land(Landing("failed", error=error))
            if self._gone:
                raise ClientGone from None
            raise
        if isinstance(found, Hit):
            self._land(Landing("found", found=found))
            answer: Reply | Hit = found
        else:
            answer = self._begin(found)
        if self._gone:
            raise ClientGone
        return answer

    def _begin(self, reply: Reply) -> Reply:
        flight = self._flight
        flight.begin(_head(self._ctx, stream=reply.events is not None))
        self._keeping = reply.keeping
        if reply.events is None or reply.stream is None:
            flight.add(reply.body)
            self._land(Landing("done"))
            return Reply(body=reply.body, extra=reply.extra)
        self._source, self._stream = reply.events, reply.stream
        self._began()
        self._awaiting = False
        if self._is_shared():
            self._hand_over()
        flight.on_shared = self._shared
        return Reply(events=self.events(), extra=reply.extra, stream=self)

    # --- the client ---------------------------------------------------------------------------------------------------

    async def events(self) -> AsyncGenerator[bytes]:
        """The events, for this request's own client."""
        ctx, flight, seat, source = self._ctx, self._flight, self._seat, self._source
        if source is None:
            raise AssertionError("only a stream has events")
        counted = wants_usage(ctx.body)
        try:
            while self._pump is None:
                self._awaiting = True
                event = await anext(source, None)
                self._awaiting = False
                if event is None:
                    self._finish()
                    break
                flight.add(event)
                seat.take()
                if self._is_shared():
                    self._hand_over()
                if self._gone:
                    break
                if counted or not is_usage(event):
                    yield event
        finally:
            if self._pump is None:
                await source.aclose()
        if self._gone:
            raise ClientGone
        if self._pump is None:
            return
        reading = Follower(ctx, seat, follows=False, last=True)
        try:
            async for event in reading.rest():
                yield event
        finally:
            self.end = reading.end
            reading.close()

    def close(self) -> None:
        """Ends what this request has of it; safe to call twice. The flight goes on while anybody else reads it."""
        if self._pump is None and self._stream is not None:
            if self._stream.end == "client_cancel":
                self._stream.end = self.end
            self._finish()
        self._seat.leave(self.end)

    def _left(self) -> bool:
        """The client has left: whether its task goes on all the same, being the one that others wait for."""
        if not self._awaiting or self._flight.readers < 2 or self._gone:
            return False
        self._gone = True
        self._flight.on_empty = self._abandon
        self._seat.leave(self.end)
        return True

    def _abandon(self) -> None:
        client = self._ctx.client
        client.on_left = None
        client.drop()

    # --- the others ---------------------------------------------------------------------------------------------------

    def _is_shared(self) -> bool:
        return self._flight.readers > (0 if self._gone else 1)

    def _shared(self) -> None:
        """Somebody else reads. What is on its way to this task comes first."""
        if not self._awaiting and self._pump is None:
            self._hand_over()

    def _hand_over(self) -> None:
        self._pump = task = asyncio.create_task(self._pumped(), name="tierline.flight")
        self._keep(task)
        self._flight.on_empty = self._stop
        self._ctx.client.on_left = None

    def _stop(self) -> None:
        if self._stream is not None and self._pump is not None:
            self._stream.end = self._flight.left_as or self._stream.end
            self._pump.cancel()
            if not self._pumping:  # a task that has not begun ends without a word
                self._finish()

    async def _pumped(self) -> None:
        flight, source, stream = self._flight, self._source, self._stream
        if source is None or stream is None:
            raise AssertionError("only a stream is handed over")
        self._pumping = True
        try:
            async for event in source:
                flight.add(event)
                await flight.room()
        except asyncio.CancelledError:
            log.debug("everybody has left flight %s", flight.ident)
        except Exception:
            log.exception("a flight met a bug")
        finally:
            self._finish()
            await source.aclose()

    def _finish(self) -> None:
        """The stream has ended, or is ended here."""
        if self._stream is not None and not self._over:
            self._stream.close()
            self.end = end = self._stream.end
            self._land(Landing("done") if end == "done" else Landing("broken", end))

    def _land(self, landing: Landing) -> None:
        if not self._over:
            self._over = True
            self._ctx.client.on_left = None
            self._flight.land(landing)
            if self._stream is None:
                self._seat.leave()
            keeping, self._keeping = self._keeping, None
            self._settled(keeping)


def _with_usage(ctx: RequestContext) -> RequestContext:
    """The request, of a stream with its totals, which any reader may want; those who do not never see them."""
    if not ctx.features.stream or wants_usage(ctx.body):
        return ctx
    options: dict[str, Any] = {**(ctx.body.get("stream_options") or {}), "include_usage": True}
    return replace(ctx, body={**ctx.body, "stream_options": options})


def _head(ctx: RequestContext, *, stream: bool) -> AnswerHead:
    ledger = ctx.ledger
    return AnswerHead(
        ctx.request_id,
        stream,
        ledger.path,
        ledger.tier,
        ledger.backend,
        ledger.model,
        ledger.confidence,
        ledger.difficulty,
    )
