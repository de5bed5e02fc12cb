"""One attempt: pick an endpoint, call it, judge what comes back, and put how it went into an Outcome.

Foreign failures end here: the cascade sees Outcomes, never exceptions. Streams are held and judged in `streaming`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import orjson

from cache.store.deadline import Deadline
from gateway.accounting.charges import charge, estimate
from gateway.backends.base import BackendError, BadStatus, Call, Completion, ContextExceeded, RetriesSpent
from gateway.cascade.continuation import Successor
from gateway.cascade.early_reject import read_draft
from gateway.cascade.judge import UNJUDGED, alternatives_for, judge
from gateway.cascade.sampling import Samples, samples_for
from gateway.cascade.schema_check import held_against_schemas
from gateway.cascade.streaming import LiveStream, Rejected, open_stream
from gateway.chat.completions import strip_logprobs, usage_of
from gateway.chat.evidence import evidence_of
from gateway.off_loop import off_loop
from gateway.request.context import RequestContext
from gateway.telemetry import names
from gateway.telemetry.trace import Hop
from gateway.tiers import Endpoint, Slot, SlotRequest, Tier
from gateway.tiers.fault import BudgetSpent
from routing.cascade import Attempt, AttemptOutcome, OutcomeKind
from routing.confidence.agreement import Cosine
from routing.confidence.judge import Assessment, structural_fault

_LEAST_S: Final = 0.001


@dataclass(slots=True)
class JsonAnswer:
    """A whole answer in hand, as the client would get it. Not `sound`: something in it had to be put right."""

    body: bytes
    value: dict[str, Any]
    sound: bool = True


@dataclass(slots=True)
class AttemptResult:
    """What became of one attempt: its outcome, and the answer if there is one."""

    attempt: Attempt
    outcome: AttemptOutcome
    endpoint: Endpoint | None = None
    answer: JsonAnswer | LiveStream | None = None
    error: BackendError | None = None


class Standings(Protocol):
    """How an attempt stands among the others of its request, while it is under way."""

    lost: bool
    """Another answer has gone out: the cancellation that comes with it is not the client's leaving."""
    slot: Slot | None
    """Its place at an endpoint, once it has one."""

    def rivals(self) -> list[Endpoint]:
        """Where the other attempts of the request are now."""

    def takes_over(self) -> bool:
        """Whether a stronger tier would take over, were this attempt's draft turned down now."""


async def try_attempt(
    ctx: RequestContext,
    tiers: Mapping[str, Tier],
    attempt: Attempt,
    standing: Standings,
    before: Sequence[AttemptResult] = (),
    cosine: Cosine | None = None,
) -> AttemptResult:
    """Makes the attempt, after those `before`. Only a cancellation comes out as an exception: the client has left, or
    another answer was quicker.

    With `cosine`, the samples that a policy may ask for are compared by meaning too.
    """
    hop = ctx.trace.begin(names.ATTEMPT, _attributes(ctx, attempt))
    failed = [one.endpoint for one in before if one.endpoint is not None and one.error is not None]
    tier = tiers[attempt.tier]
    try:
        if attempt.retry and not tier.may_retry(failed):
            raise RetriesSpent("too many retries have failed lately; another would only add to the load")
        slot = await tier.acquire(await _ask(ctx, tier, attempt), [*failed, *standing.rivals()])
    except BackendError as error:
        return _ended(
            hop, AttemptResult(attempt, AttemptOutcome("retryable", str(error)), error=_without_frames(error))
        )
    except asyncio.CancelledError:
        _cancelled(hop, standing)
        raise
    attempt = _less_the_queue(attempt, slot.queued_s, hop)
    standing.slot, endpoint = slot, slot.endpoint
    _describe(hop, endpoint)
    ctx.ledger.attempts += 1
    call = call_for(ctx, attempt, endpoint, hop)
    samples = samples_for(ctx, attempt, endpoint, cosine)
    try:
        if ctx.features.stream:
            return _ended(hop, await _stream(ctx, tiers, attempt, standing, slot, hop, call))
        return _ended(hop, await _complete(ctx, attempt, standing, slot, hop, call, samples))
    except BackendError as error:
        slot.failed(error)
        if isinstance(error, BadStatus):
            hop.attributes[names.UPSTREAM_STATUS] = error.status
        return _ended(hop, AttemptResult(attempt, _outcome_of(error), endpoint, error=_without_frames(error)))
    except asyncio.CancelledError:
        if standing.lost:
            slot.lost()
        else:
            slot.free()
        _cancelled(hop, standing)
        raise
    except Exception:
        slot.free()  # a fault of ours costs this request, never the place of later ones
        raise
    finally:
        if samples is not None:
            await samples.aclose()


def _without_frames(error: BackendError) -> BackendError:
    """The error without the frames it came through: they would hold it, and it them, until the collector looks."""
    error.__traceback__ = error.__context__ = None
    return error


async def _ask(ctx: RequestContext, tier: Tier, attempt: Attempt) -> SlotRequest:
    load = ctx.policy.load
    limit = attempt.ttft_timeout_s if ctx.features.stream else attempt.timeout_s
    affinity = 0
    if tier.sticky:
        affinity = await off_loop(ctx.affinity) if ctx.large else ctx.affinity()
    return SlotRequest(
        surface=ctx.policy.surface,
        priority=load.priority,
        wait_s=min(load.max_wait, limit),
        max_waiting=load.max_waiting,
        tokens_in=ctx.features.approx_tokens,
        affinity=affinity,
        stream=ctx.features.stream,
    )


def _less_the_queue(attempt: Attempt, queued_s: float, hop: Hop) -> Attempt:
    """The attempt with what is left of its time after it has stood in line."""
    if not queued_s:
        return attempt
    hop.attributes[names.QUEUE] = round(queued_s * 1000, 2)
    return replace(
        attempt,
        timeout_s=max(_LEAST_S, attempt.timeout_s - queued_s),
        ttft_timeout_s=max(_LEAST_S, attempt.ttft_timeout_s - queued_s),
    )


def _cancelled(hop: Hop, standing: Standings) -> None:
    hop.attributes[names.OUTCOME] = names.LOST if standing.lost else "caller_gone"
    hop.end(None if standing.lost else "client_gone")


def _attributes(ctx: RequestContext, attempt: Attempt) -> dict[str, Any]:
    attributes = {
        names.ATTEMPT_NUMBER: attempt.number,
        names.TIER: attempt.tier,
        names.BUDGET_LEFT: round(ctx.budget_s() * 1000, 1),
        names.TIMEOUT: round((attempt.ttft_timeout_s if ctx.features.stream else attempt.timeout_s) * 1000, 1),
    }
    if attempt.role:
        attributes[names.HEDGE if attempt.role == "hedge" else names.SPECULATIVE] = True
    return attributes


def _describe(hop: Hop, endpoint: Endpoint) -> None:
    config = endpoint.config
    hop.attributes.update(names.of_call(config.name, config.kind, config.model))


def _ended(hop: Hop, tried: AttemptResult) -> AttemptResult:
    """Describes the outcome, and ends the hop, unless a stream goes on: that one ends it."""
    outcome = tried.outcome
    hop.attributes[names.OUTCOME] = outcome.kind
    hop.attributes[names.REASON] = outcome.detail
    if outcome.confidence is not None:
        hop.attributes[names.CONFIDENCE] = round(outcome.confidence, 4)
    if not isinstance(tried.answer, LiveStream):
        hop.end(tried.error.error_type if tried.error else None)
    return tried


def call_for(ctx: RequestContext, attempt: Attempt, endpoint: Endpoint, hop: Hop) -> Call:
    """The backend call of an attempt: log-probabilities are asked for when the answer will be judged.

    The alternatives of a token only where the backend's head looks at them: five make a reply twice as long.
    """
    asks = attempt.judged and endpoint.config.logprobs and not ctx.body.get("logprobs")
    traceparent = ctx.trace.traceparent(hop)
    alternatives = alternatives_for(endpoint) or 1
    return Call(ctx.body, ask_logprobs=asks, traceparent=traceparent, alternatives=alternatives, large=ctx.large)


async def _complete(
    ctx: RequestContext,
    attempt: Attempt,
    standing: Standings,
    slot: Slot,
    hop: Hop,
    call: Call,
    samples: Samples | None,
) -> AttemptResult:
    answered = await _in_time(ctx, attempt, standing, slot, hop, call)
    if isinstance(answered, Rejected):
        return AttemptResult(
            attempt, AttemptOutcome("low_confidence", answered.reason, answered.confidence), slot.endpoint
        )
    value = answered.value
    # Booked first: the client may leave while samples are waited for.
    charge(ctx, hop, slot.endpoint.config.price, usage_of(value) or estimate(ctx, 0))
    verdict = await _judge(ctx, attempt, slot.endpoint, value, hop, samples)
    body = answered.raw
    if call.ask_logprobs or not body:
        if call.ask_logprobs:
            strip_logprobs(value)
        body = orjson.dumps(value)
    kind: OutcomeKind = "accepted" if verdict.accepted else "low_confidence"
    outcome = AttemptOutcome(kind, verdict.reason, verdict.confidence, kept=True)
    return AttemptResult(attempt, outcome, slot.endpoint, JsonAnswer(body, value, answered.sound))


async def _in_time(
    ctx: RequestContext, attempt: Attempt, standing: Standings, slot: Slot, hop: Hop, call: Call
) -> Completion | Rejected:
    try:
        with Deadline(attempt.timeout_s):
            answered = await _answer(ctx, attempt, standing, slot, hop, call)
    except TimeoutError:
        raise BudgetSpent(attempt.timeout_s) from None
    slot.succeeded()
    return answered


async def _answer(
    ctx: RequestContext, attempt: Attempt, standing: Standings, slot: Slot, hop: Hop, call: Call
) -> Completion | Rejected:
    """The backend's whole answer; a draft that is watched may be turned down before it is whole, and has no `raw`."""
    if slot.endpoint.config.watch_drafts and attempt.judged and not attempt.final:
        drafted = await read_draft(ctx, attempt, slot, hop, call, standing.takes_over)
        return drafted if isinstance(drafted, Rejected) else Completion(b"", drafted)
    try:
        return await slot.endpoint.backend.complete(call)
    except asyncio.CancelledError:
        # The prompt has been read by then, as a rule: that costs something, though nobody will say what.
        charge(ctx, hop, slot.endpoint.config.price, estimate(ctx, 0))
        raise


async def _judge(
    ctx: RequestContext,
    attempt: Attempt,
    endpoint: Endpoint,
    value: dict[str, Any],
    hop: Hop,
    samples: Samples | None,
) -> Assessment:
    hop.attributes[names.GEN_AI_RESPONSE_MODEL] = value.get("model")
    hop.attributes[names.GEN_AI_FINISH] = [str(choice.get("finish_reason")) for choice in value["choices"]]
    if not attempt.judged:
        return UNJUDGED
    evidence = evidence_of(
        value,
        wants_json=ctx.features.wants_json,
        own_limit=ctx.own_limit,
        alternatives=alternatives_for(endpoint),
    )
    evidence = await held_against_schemas(evidence, ctx, hop)
    if samples is not None and not structural_fault(evidence, ctx.policy.escalate):
        evidence = replace(evidence, agreement=await samples.agreement(evidence.text))
    hop.attributes[names.TOKENS_JUDGED] = len(evidence.logprobs or ())
    return judge(ctx, attempt, endpoint, hop, evidence)


async def _stream(
    ctx: RequestContext,
    tiers: Mapping[str, Tier],
    attempt: Attempt,
    standing: Standings,
    slot: Slot,
    hop: Hop,
    call: Call,
) -> AttemptResult:
    opened = await open_stream(ctx, attempt, slot, hop, call, standing.takes_over, Successor(ctx, tiers))
    if isinstance(opened, Rejected):
        return AttemptResult(attempt, AttemptOutcome("low_confidence", opened.reason, opened.confidence), slot.endpoint)
    kind: OutcomeKind = "accepted" if opened.verdict.accepted else "low_confidence"
    outcome = AttemptOutcome(kind, opened.verdict.reason, opened.verdict.confidence, kept=True)
    return AttemptResult(attempt, outcome, slot.endpoint, opened)


def _outcome_of(error: BackendError) -> AttemptOutcome:
    if isinstance(error, ContextExceeded):
        return AttemptOutcome("too_long", str(error))
    if isinstance(error, BadStatus) and error.callers_fault:
        return AttemptOutcome("caller_fault", str(error))
    return AttemptOutcome("retryable", f"{error.error_type}: {error}")
