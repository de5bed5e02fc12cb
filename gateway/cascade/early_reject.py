"""The draft of a JSON request, read as a stream: judged by its first tokens, and looked at for loops as it grows.

A whole answer can be judged only when it is there, and a small model in a loop writes on to its limit. Where a
backend's config says `watch_drafts`, a poor draft is cancelled as early as a stream's would be; the client gets JSON
all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.backends.base import Call, Completion, Truncated
from gateway.cascade.call import BackendCall
from gateway.cascade.judge import alternatives_for, judge
from gateway.cascade.streaming import Rejected
from gateway.chat.completions import Assembler, Progress, Usage, fill_in, usage_of
from gateway.chat.evidence import StreamEvidence
from gateway.request.context import RequestContext
from gateway.telemetry import names
from routing.cascade import Attempt
from routing.confidence.judge import Assessment, Evidence, structural_fault

_LOOK_EVERY = 32
"""Tokens between two looks at a draft whose beginning was good enough."""


async def read_draft(
    ctx: RequestContext, attempt: Attempt, call: BackendCall, request: Call, takes_over: Callable[[], bool]
) -> Completion | Rejected:
    """Return the whole completion (without `raw`), booked as answered, or why it was cut short. Raises BackendError.

    It is cut short only if something `takes_over`, asked at that moment: else a poor answer is the best there will be.
    """
    endpoint = call.slot.endpoint
    source = await call.open(request)
    draft = _PartialAnswer(
        ctx, lambda evidence: judge(ctx, attempt, endpoint, call.hop, evidence), alternatives_for(endpoint)
    )
    while events := await source.read():
        for event in events:
            draft.add(event.value)
        call.tokens, call.usage = draft.evidence.tokens, draft.usage
        if (fault := draft.look()) is not None and takes_over():
            call.hop.attributes[names.TOKENS_JUDGED] = draft.evidence.tokens
            return Rejected(fault.reason, fault.confidence)
    if not draft.progress.finished:
        raise Truncated("the stream ended before its answer")
    completion = draft.answer.completion()
    call.answered()
    fill_in(completion, endpoint.config.model)
    return Completion(b"", completion)


class _PartialAnswer:
    """What has been written so far."""

    def __init__(self, ctx: RequestContext, judge_: Callable[[Evidence], Assessment], alternatives: int) -> None:
        self._ctx = ctx
        self._judge = judge_
        self._next_look = ctx.policy.escalate.stream.hold_tokens
        self._begun_well = False
        self.answer = Assembler()
        self.evidence = StreamEvidence(alternatives=alternatives)
        self.progress = Progress()
        self.usage: Usage | None = None

    def add(self, chunk: dict[str, Any]) -> None:
        self.answer.add(chunk)
        self.evidence.add(chunk)
        self.progress.add(chunk["choices"])
        self.usage = usage_of(chunk) or self.usage

    def look(self) -> Assessment | None:
        """Why the draft is not worth finishing, when there is a reason; a finished one is judged as a whole."""
        if self.evidence.tokens < self._next_look or self.progress.finished:
            return None
        self._next_look = self.evidence.tokens + _LOOK_EVERY
        evidence = self.evidence.evidence(
            wants_json=self._ctx.features.wants_json, own_limit=self._ctx.own_limit, complete=False
        )
        if not self._begun_well:
            self._begun_well = True
            verdict = self._judge(evidence)
            return None if verdict.accepted else verdict
        fault = structural_fault(evidence, self._ctx.policy.escalate)
        return Assessment(False, None, fault) if fault else None
