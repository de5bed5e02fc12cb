"""The beginning of a stream, held back until there is enough of it to judge."""

from __future__ import annotations

import asyncio

from gateway.backends.base import BackendRequest, BudgetSpent, Event, Truncated
from gateway.cascade.call import BackendCall
from gateway.cascade.judge import UNJUDGED, alternatives_for, check_schemas, judge
from gateway.chat.stream_state import StreamState
from gateway.request.context import RequestContext
from gateway.telemetry import names
from routing.cascade import Attempt
from routing.confidence.judge import Assessment


class PrefixBuffer:
    """Hold the first events of a stream and judge them. `state` knows what they say."""

    def __init__(self, request: RequestContext, attempt: Attempt, call: BackendCall) -> None:
        self._request = request
        self._attempt = attempt
        self._call = call
        self.events: list[Event] = []
        self.state = StreamState(
            judged=attempt.judged,
            alternatives=alternatives_for(call.slot.endpoint) if attempt.judged else 0,
            looks_for_loops=request.policy.escalate.when.repetition,
        )

    async def fill(self, backend_request: BackendRequest) -> None:
        """Open the stream and read until enough is held, or for long enough since the first token.

        Enough are the policy's `hold_tokens` where the stream is judged, and else the first choice of an answer.
        Raises BackendError.
        """
        state, attempt, rules = self.state, self._attempt, self._request.policy.escalate.stream
        try:
            async with asyncio.timeout(attempt.ttft_timeout_s) as limit:
                source = await self._call.open(backend_request, state)
                while not (state.finished or state.tokens >= rules.hold_tokens if attempt.judged else state.has_choice):
                    events = await source.read()
                    if not events:
                        if not state.finished:
                            raise Truncated("the stream ended before its answer")
                        break
                    for event in events:
                        state.add(event.value)
                    self.events += events
                    if state.tokens and not self._call.has_begun:
                        self._call.note_first_token()
                        # A stronger tier that takes over must find time for a first token of its own.
                        left_s = self._request.left().first_token_s - attempt.reserved_s
                        hold_s = min(rules.hold_max, max(0.0, left_s))
                        limit.reschedule(asyncio.get_running_loop().time() + hold_s)
        except TimeoutError:
            # With tokens in hand the time is over to hold them; without any the call has failed.
            if not state.tokens:
                raise BudgetSpent(attempt.ttft_timeout_s) from None

    async def judge(self) -> Assessment:
        """Return the verdict on what is held."""
        if not self._attempt.judged:
            return UNJUDGED
        hop, state = self._call.hop, self.state
        hop.attributes[names.TOKENS_JUDGED] = state.tokens
        evidence = state.evidence(
            wants_json=self._request.features.wants_json, own_limit=self._request.own_limit, complete=state.finished
        )
        if evidence.complete:
            evidence = await check_schemas(evidence, self._request, hop)
        return judge(self._request, self._attempt, self._call.slot.endpoint, hop, evidence)
