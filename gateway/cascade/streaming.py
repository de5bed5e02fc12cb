"""Pass a committed stream on to its client, and watch it to its end.

The beginning, which `gateway.cascade.attempt` held, goes out first, then every event as it comes, each in one write,
all under one id, model and time. If the upstream fails, falls silent or repeats itself, another call continues
it if there is a `StreamSuccessor` that has one. It ends with the finish and [DONE], or with an error event alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.accounting import settle
from gateway.backends.base import (
    ALIVE,
    BackendError,
    DeadlinePassed,
    Degenerate,
    Event,
    InvalidReply,
    TimedOut,
    Truncated,
)
from gateway.cascade.answer_checks import LEAST_TOKENS, cut_prompt, ignored_in_stream
from gateway.chat.completions import DONE_EVENT, wants_usage
from gateway.chat.stream_state import LOOP_CHECK_TOKENS
from gateway.chat.usage import Usage
from gateway.dialects.native import client_paths
from gateway.errors import stream_error
from gateway.request.context import QUIET_S, STILL_ALIVE
from gateway.telemetry import names

if TYPE_CHECKING:
    from gateway.cascade.call import BackendCall
    from gateway.cascade.protocols import StreamSuccessor
    from gateway.request.context import RequestContext
    from routing.cascade import Attempt


_LEAST_WATCH_S: Final = 0.01


class LiveStream:
    """Hold a committed stream.

    `events()` is read once, by the reply; `close()` ends the stream however the reply went.
    """

    def __init__(
        self,
        request: RequestContext,
        attempt: Attempt,
        call: BackendCall,
        held: list[Event],
        successor: StreamSuccessor | None,
        *,
        strip: bool,
    ) -> None:
        """Send `held`, the events read so far, first; `successor` may continue the stream if it breaks.

        `strip`: drop log-probabilities not requested by the client.
        """
        self._request = request
        self._attempt = attempt
        self._call = call
        self._state = call.state
        self._held = held
        self._successor = successor
        self._include_usage = wants_usage(request.body)
        self._first_call: BackendCall | None = None
        self._continued_by = ""
        self._short = False
        self._ignored: tuple[str, ...] = ()
        self._broken: BackendError | None = None
        self._state.commit((event.value for event in self._held), call.slot.endpoint.config.model, strip_logprobs=strip)
        self._watchdog = self._watch()
        self._send: Callable[[bytes], bool] | None = None
        self._flows = True
        """Whether the client reads what it is sent as fast as it comes."""
        self._heard_s = 0.0
        """When the client was last sent something, in `time.monotonic()` seconds."""
        self.on_whole: Callable[[], None] | None = None
        """Called when the answer is complete, before the last event is sent."""
        self.end = "client_cancel"
        """done, the error_type of what broke it, or client_cancel until it has ended by itself."""

    def share(self) -> None:
        """Make the stream end with its usage, because any of several readers may want it.

        Call this before the first event is read, as with `remember`.
        """
        self._include_usage = True

    def pass_on(self, send: Callable[[bytes], bool]) -> None:
        """Send text by `send` as soon as it comes, without waking who reads `events`, who gets all else.

        `send` writes an event at once, after all that `events` gave, and returns whether the client takes more.
        """
        self._send = send

    @property
    def text(self) -> str:
        """The text that the client got of the first choice so far; of a continued stream, both calls' texts."""
        first = self._first_call
        return self._state.text if first is None else first.state.text + self._state.text

    def remember(self) -> Callable[[], dict[str, Any] | None]:
        """Keep the answer while it is streamed; return a function that returns the whole of it once the stream has
        ended.

        That function returns None if the answer must not be stored: the stream did not end well, is not one model's
        answer, reported an invalid usage, answers a part of its prompt alone, or lacks a call that is required.
        """
        state = self._state
        state.collect()

        def whole() -> dict[str, Any] | None:
            sound = self.end == "done" and self._first_call is None and not (state.miscounted or self._short)
            return state.completion() if sound else None

        return whole

    async def events(self) -> AsyncGenerator[bytes]:  # noqa: PLR0912  (each call would count per chunk)
        """Yield the bytes of each event, in order, each to be sent in one write."""
        events = self._held
        while True:
            call, state, watchdog = self._call, self._state, self._watchdog
            if self._send is not None:
                call.source.offer(self._passed)
            try:
                while events:
                    for event in events:
                        if data := state.outgoing(event.value, event.data):
                            yield data
                    if len(state.unchecked) >= LOOP_CHECK_TOKENS and state.is_looping():
                        raise Degenerate("the same words over and over")
                    watchdog.since = self._heard_s = monotonic()
                    watchdog.reading = self._flows = True
                    events = await call.source.read()
                    while events is ALIVE:
                        watchdog.since = monotonic()
                        if watchdog.since - self._heard_s >= QUIET_S:
                            watchdog.reading = False
                            yield STILL_ALIVE
                            watchdog.since = self._heard_s = monotonic()
                            watchdog.reading = True
                        events = await call.source.read()
                    watchdog.since, watchdog.reading = monotonic(), False
                    for event in events:
                        state.add(event.value)
                    if state.tokens and not call.has_begun:
                        call.note_first_token()
                if not state.finished:
                    raise Truncated("the stream ended before its answer")
                break
            except BackendError as error:
                watchdog.since, watchdog.reading = monotonic(), False
                broken = self._broken or error
                continued = await self._gone_on_with(broken)
                if continued is None:
                    yield stream_error(str(broken), broken.error_type)
                    return
                events = continued
        for data in self._finish():
            yield data

    def _passed(self, event: Event) -> bool:
        """Pass a plain event on while `events` waits for it; return False, having done nothing, if it must see it."""
        state, send = self._state, self._send
        if send is None or not self._flows or not self._call.has_begun or len(state.unchecked) + 1 >= LOOP_CHECK_TOKENS:
            return False
        state.add(event.value)
        if data := state.outgoing(event.value, event.data):
            self._flows = send(data)
        self._watchdog.since = self._heard_s = monotonic()
        return True

    def lose(self) -> None:
        """Close the stream, of which nothing was sent, because another answer is served."""
        self.end = names.LOST
        self._call.hop.attributes[names.OUTCOME] = names.LOST
        self.close()

    def close(self) -> None:
        """Free the endpoint and settle the call; safe to call twice."""
        self._send = None
        self._watchdog.stop()
        self._call.close(self._broken or ("lost" if self.end == names.LOST else "cancelled"), self.end)

    async def _gone_on_with(self, broken: BackendError) -> list[Event] | None:
        """Return the first events of the call that continues the stream; None if none does, and the stream is over.

        Once the answer is complete, lateness or a break loses nothing, but an error event would make it useless: then
        there are no more events.
        """
        request, call, state = self._request, self._call, self._state
        if state.finished and not isinstance(broken, InvalidReply):
            return []
        self._broken = broken
        call.close(broken, broken.error_type)
        continued = None
        self._watchdog.stop()  # the client cannot stall while there are no events for it to read
        if self._successor is not None and self._first_call is None and not state.finished:
            continued = await self._successor.take_over(request, broken, self._attempt, call)
        if continued is None:
            self._watchdog = self._watch()  # the client has yet to read the error event
            self.end = broken.error_type
            return None
        settle(request.ledger, continued.number)
        request.ledger.path = "fallback"
        self._first_call, self._continued_by = call, continued.tier
        self._call, self._state = continued.call, continued.call.state
        self._broken = None
        self._watchdog = self._watch()
        return continued.events

    def _finish(self) -> list[bytes]:
        """Settle the call as answered; return the last events: the usage where it is wanted, and the end."""
        self._broken = None
        self.end = "done"
        state = self._state
        if (state.has_other_output or self._request.features.has_tools) and (fault := state.call_fault()):
            self._call.hop.attributes[names.FAULT] = fault
            self._short = state.requires_call
        body, ledger = self._request.body, self._request.ledger
        if self._request.features.approx_tokens >= LEAST_TOKENS and cut_prompt(self._request, self._call):
            self._short = True
        if self._short:
            ledger.path = "degraded"
        if (body.get("logprobs") or "n" in body) and (ignored := ignored_in_stream(body, state)):
            ignored = client_paths(self._request.native, ignored)
            self._ignored = tuple(path for path in ignored if path not in ledger.dropped)
            ledger.dropped = self._call.hop.attributes[names.DROPPED] = (*ledger.dropped, *self._ignored)
        # A client that has read the end may send its next request at once: free the slot and store the answer first.
        self._call.close("answered", self.end)
        if self.on_whole is not None:
            self.on_whole()
        ending = self._ending()
        if not self._include_usage:
            return [ending]
        totals = {**self._state.last, "choices": [], "usage": self._totals()}
        return [b"data: %b\n\n" % orjson.dumps(totals), ending]

    def _watch(self) -> Watchdog:
        request, idle_s = self._request, self._call.slot.endpoint.config.idle_timeout
        return Watchdog(request.deadline, idle_s, request.client.stall_s, self._give_up, self._client_stalled)

    def _give_up(self, error: BackendError) -> None:
        """End the call now, for the watchdog: its slot is freed even if the client has not read all of the events."""
        self._broken = error
        if self._state.finished:
            self._call.close("answered", "done")
        else:
            self._call.close(error, error.error_type)

    def _client_stalled(self) -> None:
        """Drop the client and end the call, which holds a slot while the client does not read."""
        self._request.client.drop()
        self.close()

    def _totals(self) -> dict[str, Any]:
        """Return the usage of the whole stream: the backend's own report, else our count, marked as estimated."""
        if self._first_call is not None:
            return _added_up(self._first_call.used(), self._call.used())
        return self._state.reported or _added_up(self._call.used())

    def _ending(self) -> bytes:
        """Return the last write. What was not known when the headers went out goes in a comment."""
        ledger = self._request.ledger
        comment = f": x-tierline-cost-usd={ledger.cost_shown} x-tierline-attempts={ledger.attempts}"
        if self._short:
            comment += f" x-tierline-path={ledger.path}"
        if self._ignored:
            comment += f" x-tierline-dropped={','.join(self._ignored)}"
        if self._continued_by:
            comment += f" x-tierline-continued-by={self._continued_by}"
        return comment.encode() + b"\n" + DONE_EVENT


def _added_up(*parts: Usage) -> dict[str, Any]:
    tokens_in, tokens_out = sum(part.tokens_in for part in parts), sum(part.tokens_out for part in parts)
    counted: dict[str, Any] = {
        "prompt_tokens": tokens_in,
        "completion_tokens": tokens_out,
        "total_tokens": tokens_in + tokens_out,
    }
    if any(part.estimated for part in parts):
        counted["estimated"] = True
    return counted


class Watchdog:
    """Watch a committed stream: end it where its backend is silent, its deadline passes, or its client does not read.

    idle       the backend sends nothing while the stream waits for it: the call ends, and the backend is to blame
    deadline   the request's time is over: the call ends, and nobody is to blame
    stall      the client does not read what it was sent: it is dropped, and the call ends

    The stream sets `reading` and `since` itself around each read, as a method call would double what the watch costs.
    The watchdog looks at them only as often as one of its limits may have run out.
    """

    def __init__(
        self,
        deadline: float,
        idle_s: float,
        stall_s: float,
        give_up: Callable[[BackendError], None],
        on_stall: Callable[[], None],
    ) -> None:
        self._deadline = deadline
        self._idle_s = idle_s
        self._give_up = give_up
        self._on_stall = on_stall
        self._stall_s = stall_s
        self._late = False
        self._overdue = 0.0
        self.reading = False
        """Whether the stream waits for its backend; otherwise it waits for its client."""
        self.since = monotonic()
        """Start of the present wait, in `time.monotonic()` seconds."""
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._wait(), self._check)

    def stop(self) -> None:
        """End the watch."""
        self._timer.cancel()
        self._give_up = self._on_stall = _nobody  # breaks the reference cycle with the stream

    def _wait(self) -> float:
        # A wait for the client may become one for the backend at any moment: the smaller limit sets the next check.
        limit = self.since + (self._idle_s if self.reading else min(self._idle_s, self._stall_s))
        if not self._late:
            limit = min(limit, self._deadline)
        return max(_LEAST_WATCH_S, limit - monotonic())

    def _check(self) -> None:
        now = monotonic()
        limit = self.since + (self._idle_s if self.reading else self._stall_s)
        if not self._late and self._deadline <= min(now, limit):
            # The client gets the error event after the events that it has yet to read.
            self._late = True
            self._give_up(DeadlinePassed("the deadline has passed"))
        elif now >= limit:
            if self._overdue == self.since:
                if self.reading:
                    self._give_up(TimedOut(f"nothing came for {self._idle_s:g} s"))
                else:
                    self._on_stall()
                return
            # An event loop that was itself held up may not have seen yet what was sent in time: look once more.
            self._overdue = self.since
        self._timer = self._loop.call_later(self._wait(), self._check)


def _nobody(*_: object) -> None:
    """Do nothing: the watch is over."""
