"""Judge an answer by its first tokens: the held beginning of a stream, or a JSON draft that is read as a stream.

A whole answer can be judged only when it is there, and a small model in a loop generates up to its limit. Where a
backend's config says `watch_drafts`, a poor JSON draft is cancelled as early as a stream's would be; the client gets
JSON all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.backends.base import ALIVE, BackendRequest, BudgetSpent, Completion, Event, Truncated
from gateway.cascade.judge import UNJUDGED, alternatives_for, check_schemas, judge
from gateway.chat.completions import token_texts
from gateway.chat.normalised import normalise
from gateway.chat.stream_state import StreamState
from gateway.telemetry import names
from routing.confidence.judge import Assessment, structural_fault

if TYPE_CHECKING:
    from gateway.cascade.call import BackendCall
    from gateway.request.context import RequestContext
    from routing.cascade import Attempt

_LOOK_EVERY = 32
"""Tokens between two checks of a draft whose beginning was good enough."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Reason why a draft was not good enough; its call is cancelled."""

    reason: str
    confidence: float | None


class PrefixBuffer:
    """Hold the first events of a stream and judge them; `state` gathers their tokens, text and usage."""

    def __init__(self, request: RequestContext, attempt: Attempt, call: BackendCall) -> None:
        self._request = request
        self._attempt = attempt
        self._call = call
        self.events: list[Event] = []
        self.state = StreamState(
            judged=attempt.judged,
            alternatives=alternatives_for(call.slot.endpoint) if attempt.judged else 0,
            looks_for_loops=request.policy.escalate.when.repetition,
            call_rules=request.call_rules(),
        )

    async def fill(self, backend_request: BackendRequest) -> None:
        """Open the stream and read until enough is held, or for long enough since the first token. Raises BackendError.

        Enough are the policy's `hold_tokens`, or a call that is not allowed, if the stream is judged; else the first
        choice of an answer.
        """
        state, attempt, rules = self.state, self._attempt, self._request.policy.escalate.stream
        try:
            async with asyncio.timeout(attempt.ttft_timeout_s) as limit:
                source = await self._call.open(backend_request, state)
                while not (state.finished or state.tokens >= rules.hold_tokens if attempt.judged else state.has_choice):
                    events = await source.read()
                    if events is ALIVE:
                        continue
                    if not events:
                        if not state.finished:
                            raise Truncated("the stream ended before its answer")
                        break
                    for event in events:
                        state.add(event.value)
                    self.events += events
                    if state.tokens and not self._call.has_begun:
                        self._call.note_first_token()
                        hold_s = attempt.hold_s(rules.hold_max, self._request.left())
                        limit.reschedule(asyncio.get_running_loop().time() + hold_s)
                    if state.has_other_output and attempt.judged and state.call_fault():
                        break  # no token that is yet to come makes the call right
        except TimeoutError:
            # With tokens, only the time for holding them is over; without any, the call has failed.
            if not state.tokens:
                raise BudgetSpent(attempt.ttft_timeout_s) from None

    async def judge(self) -> Assessment:
        """Return the verdict on the held beginning."""
        if not self._attempt.judged:
            return UNJUDGED
        hop, state = self._call.hop, self.state
        hop.attributes[names.TOKENS_JUDGED] = state.tokens
        evidence = state.evidence(
            wants_json=self._request.features.wants_json, own_limit=self._request.own_limit, complete=state.finished
        )
        if evidence.complete:
            evidence = await check_schemas(evidence, self._request, hop)
        tokens = token_texts(event.value for event in self.events) if self._request.trace.captures else ()
        return judge(self._request, self._attempt, self._call.slot.endpoint, hop, evidence, tokens)


async def read_draft(
    request: RequestContext,
    attempt: Attempt,
    call: BackendCall,
    backend_request: BackendRequest,
    takes_over: Callable[[], bool],
) -> Completion | Rejected:
    """Return the whole completion (without `raw`), settled as answered, or the reason why it was cut short.

    Raises BackendError. It is cut short only if `takes_over` returns True at that moment; otherwise no better answer
    can be expected.
    """
    endpoint, rules = call.slot.endpoint, request.policy.escalate
    state = StreamState(judged=True, alternatives=alternatives_for(endpoint), call_rules=request.call_rules())
    state.collect()
    next_look, begun_well = rules.stream.hold_tokens, False
    source = await call.open(backend_request, state)
    while events := await source.read():
        for event in events:
            state.add(event.value)
            state.assemble(event.value)
        if state.tokens < next_look or state.finished:  # a finished draft is judged as a whole
            continue
        next_look = state.tokens + _LOOK_EVERY
        evidence = state.evidence(wants_json=request.features.wants_json, own_limit=request.own_limit, complete=False)
        rejected: Rejected | None = None
        if not begun_well:
            begun_well = True
            verdict = judge(request, attempt, endpoint, call.hop, evidence)
            if not verdict.accepted:
                rejected = Rejected(verdict.reason, verdict.confidence)
        elif fault := structural_fault(evidence, rules):
            rejected = Rejected(fault, None)
        if rejected is not None and takes_over():
            call.hop.attributes[names.TOKENS_JUDGED] = state.tokens
            return rejected
    if not state.finished:
        raise Truncated("the stream ended before its answer")
    call.answered()
    completion = state.completion()
    normalise(completion, endpoint.config.model)
    return Completion(b"", completion)
