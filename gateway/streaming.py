"""A stream on its way through: held, judged, committed, and then watched to its end.

hold      the first events are kept back until there are enough tokens, or long enough since the first one
judge     the tokens so far are scored; a draft that is not good enough is cancelled, the client having seen nothing
commit    what was held goes out, then every event as it comes, each in one write
end       the finish and [DONE]; or, when the upstream breaks, an error event and no [DONE]
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.accounts import charge, cost, estimate
from gateway.backends.base import BackendError, Call, Event, EventStream, InvalidReply, Truncated
from gateway.blame import BudgetSpent
from gateway.completions import Assembler, Progress, Usage, strip_logprobs, usage_of, wants_usage
from gateway.context import RequestContext
from gateway.errors import envelope
from gateway.evidence import StreamEvidence
from gateway.judging import UNJUDGED, alternatives_for, judge
from gateway.schemas import held_against_schemas
from gateway.settings import Price
from gateway.telemetry import names
from gateway.telemetry.trace import Hop
from gateway.tiers import Endpoint, Slot
from gateway.watchdog import Watchdog
from routing.cascade import Attempt
from routing.confidence import Assessment

DONE_EVENT = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Rejected:
    """The held tokens were not good enough; the call is cancelled."""

    reason: str
    confidence: float | None


async def open_stream(ctx: RequestContext, attempt: Attempt, slot: Slot, hop: Hop, call: Call) -> LiveStream | Rejected:
    """Opens, holds and judges one stream. Raises BackendError while nothing is committed."""
    held = _Held(ctx, attempt, slot.endpoint)
    price = slot.endpoint.config.price
    try:
        source = await _hold(ctx, held, slot.endpoint, call, attempt.ttft_timeout_s)
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
    if verdict.accepted or attempt.final:
        slot.began()
        return LiveStream(ctx, slot, hop, source, held, verdict, strip=call.ask_logprobs)
    source.close()
    slot.succeeded()
    charge(ctx, hop, price, held.usage or estimate(ctx, held.evidence.tokens))
    return Rejected(verdict.reason, verdict.confidence)


async def _hold(ctx: RequestContext, held: _Held, endpoint: Endpoint, call: Call, ttft_timeout_s: float) -> EventStream:
    source: EventStream | None = None
    try:
        async with asyncio.timeout(ttft_timeout_s) as limit:
            source = await endpoint.backend.stream(call)
            while not held.enough:
                events = await source.read()
                if not events and not held.finished:
                    raise Truncated("the stream ended before its answer")
                first = not held.evidence.tokens
                held.add(events)
                if first and held.evidence.tokens:
                    longest = min(held.hold_max_s, ctx.budget_s())
                    limit.reschedule(asyncio.get_running_loop().time() + longest)
                if not events:
                    break
    except BaseException as stopped:
        # Time is up: with tokens in hand that is the end of the hold, without any it is a failure.
        if source is not None and isinstance(stopped, TimeoutError) and held.evidence.tokens:
            return source
        if source is not None:
            source.close()
        raise
    return source


class _Held:
    """The events kept back so far, and what they say."""

    def __init__(self, ctx: RequestContext, attempt: Attempt, endpoint: Endpoint) -> None:
        hold = ctx.policy.escalate.stream
        self._ctx = ctx
        self._attempt = attempt
        self._endpoint = endpoint
        self._tokens_wanted = hold.hold_tokens
        self.hold_max_s = hold.hold_max
        self.events: list[Event] = []
        self.evidence = StreamEvidence(alternatives=alternatives_for(endpoint) if attempt.judged else 0)
        self.usage: Usage | None = None
        self._progress = Progress()
        self._begun = False

    @property
    def finished(self) -> bool:
        return self._progress.finished

    @property
    def enough(self) -> bool:
        """Whether to stop holding: for a judged stream at so many tokens, for any other once the answer begins."""
        if not self._attempt.judged:
            return self._begun
        return self.finished or self.evidence.tokens >= self._tokens_wanted

    def add(self, events: list[Event]) -> None:
        for event in events:
            self.events.append(event)
            self.evidence.add(event.value)
            self.usage = usage_of(event.value) or self.usage
            choices = event.value["choices"]
            self._progress.add(choices)
            self._begun = self._begun or bool(choices)

    async def judge(self, hop: Hop) -> Assessment:
        if not self._attempt.judged:
            return UNJUDGED
        hop.attributes[names.TOKENS_JUDGED] = self.evidence.tokens
        evidence = self.evidence.evidence(self._ctx, complete=self.finished)
        if evidence.complete:
            evidence = await held_against_schemas(evidence, self._ctx, hop)
        return judge(self._ctx, self._attempt, self._endpoint, hop, evidence)


class LiveStream:
    """A committed stream. `events()` is read once, by the reply; `close()` ends it however it went."""

    def __init__(
        self,
        ctx: RequestContext,
        slot: Slot,
        hop: Hop,
        source: EventStream,
        held: _Held,
        verdict: Assessment,
        *,
        strip: bool,
    ) -> None:
        self._ctx = ctx
        self._slot = slot
        self._hop = hop
        self._source = source
        self._held = held
        self._strip = strip
        self._include_usage = wants_usage(ctx.body)
        self._usage: Usage | None = None
        self._usage_told: Any = None
        self._progress = Progress()
        self._tokens = 0
        self._broken: BackendError | None = None
        self._closed = False
        self._watchdog = Watchdog(ctx.deadline, slot.endpoint.config.idle_timeout, self._give_up, ctx.client.drop)
        self.verdict = verdict
        self._last: dict[str, Any] = {}
        self._answer: Assembler | None = None
        self.end = "client_cancel"
        """done, the error_type of what broke it, or client_cancel until it has ended by itself."""

    async def events(self) -> AsyncGenerator[bytes]:
        """The bytes of each event, in order, each to be sent in one write."""
        try:
            for event in self._held.events:
                if data := self._take(event):
                    yield data
            while events := await self._watchdog.during(self._source.read()):
                for event in events:
                    if data := self._take(event):
                        yield data
            if not self._progress.finished:
                raise Truncated("the stream ended before its answer")
        except BackendError as error:
            broken = self._broken or error
            # Once its answer is whole, a stream can be late, or break, without a loss; an error event is another thing.
            if not self._progress.finished or isinstance(broken, InvalidReply):
                self._broken = broken
                self.end = broken.error_type
                yield self._error_event(broken)
                return
        self._broken = None
        self.end = "done"
        if usage := self._usage_event():
            yield usage
        yield self._ending()

    def close(self) -> None:
        """Frees the endpoint and books the call; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._watchdog.stop()
        self._source.close()
        if self.end == "done":
            self._slot.succeeded()
            if not self._source.done_seen:
                self._hop.attributes[names.DONE_SYNTHESISED] = True
        elif self._broken is not None:
            self._slot.failed(self._broken)
        else:
            self._slot.free()
        charge(self._ctx, self._hop, self._price, self._used())
        self._hop.attributes[names.STREAM_END] = self.end
        self._hop.end(self._broken.error_type if self._broken else None)

    @property
    def _price(self) -> Price:
        return self._slot.endpoint.config.price

    def _used(self) -> Usage:
        return self._usage or estimate(self._ctx, self._tokens)

    def remember(self) -> Callable[[], dict[str, Any] | None]:
        """Has the answer put together as it goes by; what gives it, whole, or None if the stream did not end well.

        To be asked for before the first event is read.
        """
        answer = self._answer = Assembler()
        return lambda: answer.completion() if self.end == "done" else None

    def _take(self, event: Event) -> bytes:
        """Books one event; its bytes, or none when it is not the client's to see."""
        value = event.value
        choices = value["choices"]
        changed = self._strip
        if value.get("usage") is not None:
            if (usage := usage_of(value)) is not None:
                self._usage, self._usage_told = usage, value["usage"]
            if not choices:
                return b""
            # Some send the totals with the finish: clients want them in a chunk of their own, and only on request.
            value["usage"] = None
            changed = True
        if choices:
            self._tokens += 1
            self._progress.add(choices)
        if self._strip:
            strip_logprobs(value)
        self._last = value
        if self._answer is not None:
            self._answer.add(value)
        return b"data: " + (orjson.dumps(value) if changed else event.data) + b"\n\n"

    def _ending(self) -> bytes:
        """The last write. Cost and attempts were not known when the headers went out: they go in a comment."""
        ledger = self._ctx.ledger
        dollars = ledger.cost_usd + cost(self._price, self._used())
        return f": x-tierline-cost-usd={dollars:.8f} x-tierline-attempts={ledger.attempts}\n".encode() + DONE_EVENT

    def _usage_event(self) -> bytes:
        """The totals, last of all and once: the backend's, else, if the client wants any, our own, flagged."""
        if self._usage is not None:
            counted = self._usage_told
        elif self._include_usage:
            usage = estimate(self._ctx, self._tokens)
            counted = {
                "prompt_tokens": usage.tokens_in,
                "completion_tokens": usage.tokens_out,
                "total_tokens": usage.tokens_in + usage.tokens_out,
                "estimated": True,
            }
        else:
            return b""
        chunk = {**self._last, "choices": [], "usage": counted}
        if self._usage is not None and self._answer is not None:
            self._answer.add(chunk)
        return b"data: " + orjson.dumps(chunk) + b"\n\n" if self._include_usage else b""

    def _error_event(self, error: BackendError) -> bytes:
        message = f"The answer broke off: {error}."
        return b"data: " + envelope(message, "upstream_error", None, error.error_type) + b"\n\n"

    def _give_up(self, error: BackendError) -> None:
        """The watchdog's word: the call ends now, and its slot is free, however long the client takes to read."""
        self._broken = error
        self._source.close()
        self._slot.failed(error)
