"""The hold: the first tokens of a stream, kept back until there are enough of them to judge."""

from __future__ import annotations

import asyncio

from gateway.backends.base import Call, Event, EventStream, Truncated
from gateway.cascade.call import BackendCall
from gateway.cascade.judge import UNJUDGED, alternatives_for, judge
from gateway.cascade.schema_check import held_against_schemas
from gateway.chat.completions import Progress, Usage, usage_of
from gateway.chat.evidence import StreamEvidence
from gateway.request.context import RequestContext
from gateway.telemetry import names
from gateway.telemetry.trace import Hop
from gateway.tiers import Endpoint
from routing.cascade import Attempt
from routing.confidence.judge import Assessment


async def hold(
    ctx: RequestContext, held: PrefixBuffer, attempt: Attempt, call: BackendCall, request: Call
) -> EventStream:
    """Open the stream and return it once enough of it is held.

    Raises BackendError, and TimeoutError when no token came in time.
    """
    try:
        async with asyncio.timeout(attempt.ttft_timeout_s) as limit:
            source = await call.open(request)
            while not held.enough:
                events = await source.read()
                if not events and not held.finished:
                    raise Truncated("the stream ended before its answer")
                first = not held.evidence.tokens
                held.add(events)
                call.tokens, call.usage = held.evidence.tokens, held.usage
                if first and held.evidence.tokens:
                    call.began()
                    # What takes over must find time for a first token of its own.
                    left_s = ctx.left().first_token_s - attempt.reserved_s
                    longest = min(held.hold_max_s, max(0.0, left_s))
                    limit.reschedule(asyncio.get_running_loop().time() + longest)
                if not events:
                    break
    except TimeoutError:
        if not held.evidence.tokens:
            raise
    return call.source


class PrefixBuffer:
    """The events kept back so far, and what they say."""

    def __init__(self, ctx: RequestContext, attempt: Attempt, endpoint: Endpoint) -> None:
        rules = ctx.policy.escalate.stream
        self._ctx = ctx
        self._attempt = attempt
        self._endpoint = endpoint
        self._tokens_wanted = rules.hold_tokens
        self.hold_max_s = rules.hold_max
        self.events: list[Event] = []
        self.evidence = StreamEvidence(alternatives=alternatives_for(endpoint) if attempt.judged else 0)
        self.usage: Usage | None = None
        self._progress = Progress()
        self._begun = False

    @property
    def finished(self) -> bool:
        """Whether the whole answer is here."""
        return self._progress.finished

    @property
    def enough(self) -> bool:
        """Whether to stop holding: for a judged stream at so many tokens, for any other once the answer begins."""
        if not self._attempt.judged:
            return self._begun
        return self.finished or self.evidence.tokens >= self._tokens_wanted

    def add(self, events: list[Event]) -> None:
        """Takes what was read."""
        for event in events:
            self.events.append(event)
            self.evidence.add(event.value)
            self.usage = usage_of(event.value) or self.usage
            choices = event.value["choices"]
            self._progress.add(choices)
            self._begun = self._begun or bool(choices)

    async def judge(self, hop: Hop) -> Assessment:
        """The verdict on what is held."""
        if not self._attempt.judged:
            return UNJUDGED
        hop.attributes[names.TOKENS_JUDGED] = self.evidence.tokens
        evidence = self.evidence.evidence(
            wants_json=self._ctx.features.wants_json, own_limit=self._ctx.own_limit, complete=self.finished
        )
        if evidence.complete:
            evidence = await held_against_schemas(evidence, self._ctx, hop)
        return judge(self._ctx, self._attempt, self._endpoint, hop, evidence)
