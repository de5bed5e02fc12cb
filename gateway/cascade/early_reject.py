"""The draft of a JSON request, read as a stream: judged by its first tokens, and checked for loops as it grows.

A whole answer can be judged only when it is there, and a small model in a loop generates up to its limit. Where a
backend's config says `watch_drafts`, a poor draft is cancelled as early as a stream's would be; the client gets JSON
all the same.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.backends.base import BackendRequest, Completion, Truncated
from gateway.cascade.call import BackendCall
from gateway.cascade.judge import alternatives_for, judge
from gateway.cascade.streaming import Rejected
from gateway.chat.completions import fill_in
from gateway.chat.stream_state import StreamState
from gateway.request.context import RequestContext
from gateway.telemetry import names
from routing.cascade import Attempt
from routing.confidence.judge import structural_fault

_LOOK_EVERY = 32
"""Tokens between two looks at a draft whose beginning was good enough."""


async def read_draft(
    request: RequestContext,
    attempt: Attempt,
    call: BackendCall,
    backend_request: BackendRequest,
    takes_over: Callable[[], bool],
) -> Completion | Rejected:
    """Return the whole completion (without `raw`), booked as answered, or why it was cut short. Raises BackendError.

    It is cut short only if something `takes_over`, asked at that moment: else a poor answer is the best there will be.
    """
    endpoint, rules = call.slot.endpoint, request.policy.escalate
    state = StreamState(judged=True, alternatives=alternatives_for(endpoint))
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
    fill_in(completion, endpoint.config.model)
    return Completion(b"", completion)
