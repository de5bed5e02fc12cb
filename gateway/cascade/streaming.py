"""A stream on its way through: held, judged, committed, and then watched to its end.

hold      the first events are kept back until there are enough tokens, or long enough since the first one
judge     the tokens so far are scored; a draft that is not good enough is cancelled, the client having seen nothing
commit    what was held goes out, then every event as it comes, each in one write, all under one id, model and time
break     the upstream dies, falls silent, or goes round in circles: another goes on if it can (`continuation`)
end       the finish and [DONE]; or, when nobody goes on, an error event and no [DONE]
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.accounting.charges import settle
from gateway.backends.base import BackendError, Call, Degenerate, Event, EventStream, InvalidReply, Truncated
from gateway.cascade.call import BackendCall
from gateway.cascade.continuation import Broken, Continued, GoOn
from gateway.cascade.overlap import Overlap, mend
from gateway.cascade.prefix import PrefixBuffer, hold
from gateway.cascade.watchdog import Watchdog
from gateway.chat.completions import DONE_EVENT, Assembler, Progress, Usage, strip_logprobs, usage_of, wants_usage
from gateway.chat.stable_ids import StableIds
from gateway.chat.stream_text import StreamText
from gateway.errors import stream_error
from gateway.request.context import RequestContext
from gateway.telemetry import names
from gateway.tiers import Slot
from gateway.tiers.fault import BudgetSpent
from routing.cascade import Attempt
from routing.confidence.judge import Assessment


@dataclass(frozen=True, slots=True)
class Rejected:
    """The held tokens were not good enough; the call is cancelled."""

    reason: str
    confidence: float | None


async def open_stream(
    ctx: RequestContext,
    attempt: Attempt,
    call: BackendCall,
    request: Call,
    takes_over: Callable[[], bool],
    go_on: GoOn | None = None,
) -> LiveStream | Rejected:
    """Open, hold and judge one stream. Raises BackendError while nothing is committed.

    A draft that is not good enough is committed all the same when nothing `takes_over`, asked at that moment. `go_on`
    finds another call that goes on with the stream should it break; without it a break ends the stream.
    """
    held = PrefixBuffer(ctx, attempt, call.slot.endpoint)
    try:
        source = await hold(ctx, held, attempt, call, request)
    except TimeoutError:
        raise BudgetSpent(attempt.ttft_timeout_s) from None
    verdict = await held.judge(call.hop)
    if verdict.accepted or attempt.final or not takes_over():
        call.hand_over()
        return LiveStream(ctx, attempt, call, source, held, verdict, strip=request.ask_logprobs, go_on=go_on)
    call.close("rejected")
    return Rejected(verdict.reason, verdict.confidence)


class LiveStream:
    """A committed stream. `events()` is read once, by the reply; `close()` ends it however it went."""

    def __init__(
        self,
        ctx: RequestContext,
        attempt: Attempt,
        call: BackendCall,
        source: EventStream,
        held: PrefixBuffer,
        verdict: Assessment,
        *,
        strip: bool,
        go_on: GoOn | None = None,
    ) -> None:
        self._ctx = ctx
        self._attempt = attempt
        self._held = held
        self._strip = strip
        self._go_on = go_on
        self._include_usage = wants_usage(ctx.body)
        self._call = call
        self._source = source
        call.tokens, call.usage = 0, None  # counted again as the held events go out
        self._usage: dict[str, Any] = {}
        self._miscounted = False
        self._first: BackendCall | None = None
        self._seam: Overlap | None = None
        self._continued_by = ""
        self._identity = StableIds((event.value for event in held.events), call.slot.endpoint.config.model)
        self._said = StreamText(looking=ctx.policy.escalate.when.repetition)
        self._progress = Progress()
        self._broken: BackendError | None = None
        self._watchdog = self._watch(call.slot)
        self.verdict = verdict
        self._last: dict[str, Any] = {}
        self._answer: Assembler | None = None
        self.on_whole: Callable[[], None] | None = None
        """Called when the answer has come to its good end, before the last event goes out."""
        self.end = "client_cancel"
        """done, the error_type of what broke it, or client_cancel until it has ended by itself."""

    async def events(self) -> AsyncGenerator[bytes]:
        """The bytes of each event, in order, each to be sent in one write."""
        events: list[Event] | None = self._held.events
        while events is not None:
            try:
                while events:
                    for event in events:
                        if data := self._take(event):
                            yield data
                    if self._said.goes_in_circles():
                        raise Degenerate("the same words over and over")
                    events = await self._watchdog.during(self._source.read())
                if not self._progress.finished:
                    raise Truncated("the stream ended before its answer")
            except BackendError as error:
                broken = self._broken or error
                # Once its answer is whole, a stream can be late, or break, without a loss; an error event is a loss.
                if not self._progress.finished or isinstance(broken, InvalidReply):
                    events = await self._gone_on_with(broken)
                    if events is None:
                        yield error_event(broken)
                        return
                    continue
            events = None
        self._broken = None
        self.end = "done"
        usage = self._usage_event()
        # Whoever has read the end may ask again at once.
        self._call.close("answered", self.end)
        ending = self._ending()
        if self.on_whole is not None:
            self.on_whole()
        if usage:
            yield usage
        yield ending

    def share(self) -> None:
        """Have the stream end with its totals, which any of its readers may want. Call it before the first event."""
        self._include_usage = True

    def lose(self) -> None:
        """Closes it, nothing of it having been sent: another answer goes out."""
        self.end = names.LOST
        self._call.hop.attributes[names.OUTCOME] = names.LOST
        self.close()

    def close(self) -> None:
        """Frees the endpoint and books the call; safe to call twice."""
        self._watchdog.stop()
        self._call.close(self._broken or ("lost" if self.end == names.LOST else "cancelled"), self.end)

    def remember(self) -> Callable[[], dict[str, Any] | None]:
        """Has the answer put together as it goes by; what gives it, whole, or None if it is not to be kept: the stream
        did not end well, is not one model's answer, or was miscounted.

        To be asked for before the first event is read.
        """
        answer = self._answer = Assembler()

        def whole() -> dict[str, Any] | None:
            sound = self.end == "done" and self._first is None and not self._miscounted
            return answer.completion() if sound else None

        return whole

    def _take(self, event: Event) -> bytes:
        """Books one event; its bytes, or none when it is not the client's to see."""
        value = event.value
        choices = value["choices"]
        changed = self._strip
        if (usage := value.get("usage")) is not None:
            self._count(usage)
            if not choices:
                return b""
            # Some send the totals with the finish: clients want them in a chunk of their own, and only on request.
            value["usage"] = None
            changed = True
        if self._seam is not None:
            self._identity.impose_all(value)
            changed = True
        elif self._identity.impose(value):
            changed = True
        left = self._seam is None or mend(value, self._seam)
        if choices:
            self._call.tokens += 1
            self._progress.add(choices)
            self._said.add(choices)
            if self._said.begun:
                self._call.began()
        if not left:
            return b""
        if self._strip:
            strip_logprobs(value)
        self._last = value
        if self._answer is not None:
            self._answer.add(value)
        return b"data: " + (orjson.dumps(value) if changed else event.data) + b"\n\n"

    def _count(self, usage: dict[str, Any]) -> None:
        """Note the usage that the backend reports; counts that cannot be are none."""
        if (counted := usage_of({"usage": usage})) is not None:
            self._call.usage, self._usage = counted, usage
        else:
            self._miscounted = True

    async def _gone_on_with(self, broken: BackendError) -> list[Event] | None:
        """The first events of the call that goes on with this one; None when there is none, and the stream is over."""
        call = self._call
        whole = self._progress.finished
        self._broken = broken
        call.close(broken, broken.error_type)
        continued: Continued | None = None
        if self._go_on is not None and self._first is None and not whole:
            number, endpoint = self._attempt.number, call.slot.endpoint
            continued = await self._go_on(Broken(broken, self._attempt.tier, endpoint, number, self._said))
        if continued is None:
            self.end = broken.error_type
            return None
        ctx = self._ctx
        settle(ctx, continued.number)
        ctx.ledger.path = "fallback"
        self._first, self._seam, self._continued_by = call, continued.seam, continued.tier
        self._call, self._source = continued.call, continued.call.source
        self._broken, self._strip = None, False
        self._watchdog.stop()
        self._watchdog = self._watch(continued.call.slot)
        return continued.events

    def _watch(self, slot: Slot) -> Watchdog:
        return Watchdog(self._ctx.deadline, slot.endpoint.config.idle_timeout, self._give_up, self._ctx.client)

    def _ending(self) -> bytes:
        """The last write. Cost and attempts were not known when the headers went out: they go in a comment."""
        ledger = self._ctx.ledger
        said = f": x-tierline-cost-usd={ledger.cost_usd:.8f} x-tierline-attempts={ledger.attempts}"
        if self._continued_by:
            said += f" x-tierline-continued-by={self._continued_by}"
        return said.encode() + b"\n" + DONE_EVENT

    def _usage_event(self) -> bytes:
        """The totals, last of all and once: the backend's, else, if the client wants any, our own, flagged."""
        if self._first is not None:
            counted = _added_up(self._first.used(), self._call.used())
        elif self._call.usage is not None:
            counted = self._usage
        elif self._include_usage:
            counted = _added_up(self._call.used())
        else:
            return b""
        chunk = {**self._last, "choices": [], "usage": counted}
        if self._call.usage is not None and self._answer is not None:
            self._answer.add(chunk)
        return b"data: " + orjson.dumps(chunk) + b"\n\n" if self._include_usage else b""

    def _give_up(self, error: BackendError) -> None:
        """The watchdog's word: the call ends now, and its slot is free, however long the client takes to read."""
        self._broken = error
        self._call.stop(error)


def error_event(error: BackendError) -> bytes:
    """The last event of a stream that breaks off."""
    return stream_error(str(error), error.error_type)


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
