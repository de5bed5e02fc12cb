"""A stream on its way through: held, judged, committed, and then watched to its end.

hold      the first events are kept back until there are enough tokens, or long enough since the first one
judge     the tokens so far are scored; a draft that is not good enough is cancelled, the client having seen nothing
commit    what was held goes out, then every event as it comes, each in one write, all under one id, model and time
break     the upstream dies, falls silent, or goes round in circles: another goes on if it can (`continuation`)
end       the finish and [DONE]; or, when nobody goes on, an error event and no [DONE]
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.accounting.charges import charge, estimate, settle
from gateway.backends.base import BackendError, Call, Degenerate, Event, EventStream, InvalidReply, Truncated
from gateway.cascade.call import BackendCall
from gateway.cascade.continuation import Broken, Continued, GoOn
from gateway.cascade.overlap import Overlap, mend
from gateway.cascade.prefix import PrefixBuffer, hold
from gateway.cascade.watchdog import Watchdog
from gateway.chat.completions import DONE_EVENT, Assembler, Progress, Usage, strip_logprobs, wants_usage
from gateway.chat.stable_ids import StableIds
from gateway.chat.stream_text import StreamText
from gateway.errors import stream_error
from gateway.request.context import RequestContext
from gateway.telemetry import names
from gateway.telemetry.trace import Hop
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
    slot: Slot,
    hop: Hop,
    call: Call,
    takes_over: Callable[[], bool],
    go_on: GoOn | None = None,
) -> LiveStream | Rejected:
    """Opens, holds and judges one stream. Raises BackendError while nothing is committed.

    A draft that is not good enough is committed all the same when nothing `takes_over`, asked at that moment. `go_on`
    finds who goes on with the stream should it break; without, a break is its end.
    """
    held = PrefixBuffer(ctx, attempt, slot.endpoint)
    price = slot.endpoint.config.price
    try:
        source = await hold(ctx, held, attempt, slot, hop, call)
    except BaseException as stopped:
        # A draft that breaks off, or whose client leaves, has cost what it said so far.
        if held.evidence.tokens or isinstance(stopped, asyncio.CancelledError):
            charge(ctx, hop, price, held.usage or estimate(ctx, held.evidence.tokens))
        if isinstance(stopped, TimeoutError):
            raise BudgetSpent(attempt.ttft_timeout_s) from None
        raise
    try:
        verdict = await held.judge(hop)
    except BaseException:  # the client may leave while a large schema is compiled
        source.close()
        charge(ctx, hop, price, held.usage or estimate(ctx, held.evidence.tokens))
        raise
    if verdict.accepted or attempt.final or not takes_over():
        return LiveStream(ctx, attempt, slot, hop, source, held, verdict, strip=call.ask_logprobs, go_on=go_on)
    source.close()
    slot.succeeded()
    charge(ctx, hop, price, held.usage or estimate(ctx, held.evidence.tokens))
    return Rejected(verdict.reason, verdict.confidence)


class LiveStream:
    """A committed stream. `events()` is read once, by the reply; `close()` ends it however it went."""

    def __init__(
        self,
        ctx: RequestContext,
        attempt: Attempt,
        slot: Slot,
        hop: Hop,
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
        self._leg = BackendCall(ctx, slot, hop, source, begun=held.evidence.tokens > 0)
        self._first: BackendCall | None = None
        self._seam: Overlap | None = None
        self._continued_by = ""
        self._identity = StableIds((event.value for event in held.events), slot.endpoint.config.model)
        self._said = StreamText(looking=ctx.policy.escalate.when.repetition)
        self._progress = Progress()
        self._broken: BackendError | None = None
        self._watchdog = self._watch(slot)
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
                    events = await self._watchdog.during(self._leg.source.read())
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
        usage, ending = self._usage_event(), self._ending()
        # Whoever has read the end may ask again at once.
        self._leg.close(self.end)
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
        self._leg.hop.attributes[names.OUTCOME] = names.LOST
        self.close()

    def close(self) -> None:
        """Frees the endpoint and books the call; safe to call twice."""
        self._watchdog.stop()
        self._leg.close(self.end, self._broken)

    def remember(self) -> Callable[[], dict[str, Any] | None]:
        """Has the answer put together as it goes by; what gives it, whole, or None if it is not to be kept: the stream
        did not end well, is not one model's answer, or was miscounted.

        To be asked for before the first event is read.
        """
        answer = self._answer = Assembler()

        def whole() -> dict[str, Any] | None:
            sound = self.end == "done" and self._first is None and not self._leg.miscounted
            return answer.completion() if sound else None

        return whole

    def _take(self, event: Event) -> bytes:
        """Books one event; its bytes, or none when it is not the client's to see."""
        value = event.value
        choices = value["choices"]
        changed = self._strip
        if (usage := value.get("usage")) is not None:
            self._leg.count(usage)
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
            self._leg.tokens += 1
            self._progress.add(choices)
            self._said.add(choices)
            if self._said.begun:
                self._leg.began()
        if not left:
            return b""
        if self._strip:
            strip_logprobs(value)
        self._last = value
        if self._answer is not None:
            self._answer.add(value)
        return b"data: " + (orjson.dumps(value) if changed else event.data) + b"\n\n"

    async def _gone_on_with(self, broken: BackendError) -> list[Event] | None:
        """The first events of the call that goes on with this one; None when there is none, and the stream is over."""
        leg = self._leg
        whole = self._progress.finished
        self._broken = broken
        leg.close(broken.error_type, broken)
        continued: Continued | None = None
        if self._go_on is not None and self._first is None and not whole:
            number, endpoint = self._attempt.number, leg.slot.endpoint
            continued = await self._go_on(Broken(broken, self._attempt.tier, endpoint, number, self._said))
        if continued is None:
            self.end = broken.error_type
            return None
        ctx = self._ctx
        settle(ctx, continued.number)
        ctx.ledger.path = "fallback"
        self._first, self._seam, self._continued_by = leg, continued.seam, continued.tier
        self._leg = BackendCall(ctx, continued.slot, continued.hop, continued.source, begun=True, given=continued.given)
        self._broken, self._strip = None, False
        self._watchdog.stop()
        self._watchdog = self._watch(continued.slot)
        return continued.events

    def _watch(self, slot: Slot) -> Watchdog:
        return Watchdog(self._ctx.deadline, slot.endpoint.config.idle_timeout, self._give_up, self._ctx.client)

    def _ending(self) -> bytes:
        """The last write. Cost and attempts were not known when the headers went out: they go in a comment."""
        ledger = self._ctx.ledger
        dollars = ledger.cost_usd + self._leg.cost_usd()
        said = f": x-tierline-cost-usd={dollars:.8f} x-tierline-attempts={ledger.attempts}"
        if self._continued_by:
            said += f" x-tierline-continued-by={self._continued_by}"
        return said.encode() + b"\n" + DONE_EVENT

    def _usage_event(self) -> bytes:
        """The totals, last of all and once: the backend's, else, if the client wants any, our own, flagged."""
        if self._first is not None:
            counted = _added_up(self._first.used(), self._leg.used())
        elif self._leg.usage is not None:
            counted = self._leg.told
        elif self._include_usage:
            counted = _added_up(self._leg.used())
        else:
            return b""
        chunk = {**self._last, "choices": [], "usage": counted}
        if self._leg.usage is not None and self._answer is not None:
            self._answer.add(chunk)
        return b"data: " + orjson.dumps(chunk) + b"\n\n" if self._include_usage else b""

    def _give_up(self, error: BackendError) -> None:
        """The watchdog's word: the call ends now, and its slot is free, however long the client takes to read."""
        self._broken = error
        self._leg.source.close()
        self._leg.slot.failed(error)


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
