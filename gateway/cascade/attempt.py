"""One attempt: acquire a slot, call its endpoint, judge what comes back, and return how it went.

A failed call ends here: the cascade sees an AttemptOutcome, never an exception. The beginning of a stream is held and
judged in `gateway.cascade.prefix`; if it goes out, `gateway.cascade.streaming` sends it and the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from cache.store.deadline import Deadline
from gateway.backends.base import BackendError, BackendRequest, BadStatus, BudgetSpent, ContextExceeded, RetriesSpent
from gateway.cascade.call import BackendCall
from gateway.cascade.continuation import Successor
from gateway.cascade.judge import UNJUDGED, alternatives_for, call_fault_of, check_schemas, judge
from gateway.cascade.prefix import PrefixBuffer, Rejected, read_draft
from gateway.cascade.sampling import Samples, samples_for
from gateway.cascade.streaming import LiveStream
from gateway.chat.completions import evidence_of, strip_logprobs, token_texts
from gateway.off_loop import off_loop
from gateway.telemetry import names
from gateway.tiers.slot import Slot, SlotRequest
from routing.cascade import Attempt, AttemptOutcome, OutcomeKind
from routing.confidence.judge import Assessment, Evidence, outcome_of_verdict, structural_fault
from routing.features import room_needed
from routing.output_limits import within

if TYPE_CHECKING:
    from gateway.request.context import RequestContext
    from gateway.telemetry.trace import Hop
    from gateway.tiers import Endpoint, Tier
    from policies.model import Policy
    from routing.confidence.agreement import Cosine

_LEAST_S: Final = 0.001


@dataclass(slots=True)
class JsonAnswer:
    """A whole answer in the client's form. `sound` is false if something in it had to be corrected.

    `evidence` is what it was judged by, None if it was not judged.
    """

    body: bytes
    value: dict[str, Any]
    verdict: Assessment
    sound: bool
    evidence: Evidence | None


@dataclass(slots=True)
class AttemptResult:
    """The result of one attempt: its outcome, and the answer if there is one."""

    attempt: Attempt
    outcome: AttemptOutcome
    endpoint: Endpoint | None = None
    answer: JsonAnswer | LiveStream | None = None
    error: BackendError | None = None
    dropped: tuple[str, ...] = ()
    """Paths of the client's fields that the backend was not sent."""


@dataclass(slots=True)
class Standing:
    """State that a running attempt shares with the other attempts of its request."""

    rivals: Callable[[], list[Endpoint]]
    """Return the endpoints at which other attempts of the request are under way."""
    takes_over: Callable[[], bool]
    """Return whether a stronger tier would take over if this attempt's draft were rejected now."""
    lost: bool = False
    """Whether another attempt's answer was served, so that a cancellation does not mean that the client left."""
    slot: Slot | None = None
    """The attempt's slot; None until it has one."""


async def try_attempt(
    request: RequestContext,
    tiers: Mapping[str, Tier],
    attempt: Attempt,
    standing: Standing,
    before: Sequence[AttemptResult] = (),
    cosine: Cosine | None = None,
) -> AttemptResult:
    """Make one attempt, after those in `before`, and return its result.

    Raises only CancelledError: the client has left, or another attempt was faster. `cosine` compares by meaning the
    samples that a policy may require.
    """
    hop = request.trace.begin(names.ATTEMPT, _attributes(request, attempt))
    tier = tiers[attempt.tier]
    failed = [result.endpoint for result in before if result.endpoint is not None and result.error is not None]
    try:
        if attempt.retry and not tier.may_retry(failed):
            raise RetriesSpent("too many retries have failed lately; another would only add to the load")
        slot = await tier.acquire(await _slot_request(request, tier, attempt), [*failed, *standing.rivals()])
    except BackendError as error:
        outcome = AttemptOutcome("retryable", str(error))
        _describe_outcome(hop, outcome)
        hop.attributes[names.SIBLINGS] = [one.shown for one in tier.endpoints]
        hop.end(error.error_type)
        return AttemptResult(attempt, outcome, error=_without_frames(error))
    except asyncio.CancelledError:
        _end_cancelled(hop, standing)
        raise
    samples: Samples | None = None
    try:
        with BackendCall(request.ledger, slot, hop, request.features.approx_tokens) as call:
            standing.slot, endpoint = slot, slot.endpoint
            if slot.queued_s:
                attempt = _less_the_queue(attempt, slot.queued_s)
            if len(tier.endpoints) > 1:
                hop.attributes[names.SIBLINGS] = [one.shown for one in tier.endpoints if one is not endpoint]
            request.ledger.attempts += 1
            backend_request = backend_request_for(request, attempt, endpoint, hop)
            if request.policy.escalate.agreement is not None:
                samples = samples_for(request, attempt, endpoint, cosine)
            try:
                answer: JsonAnswer | LiveStream | Rejected
                if request.features.stream:
                    successor = Successor(request, tiers)
                    answer = await open_stream(request, attempt, call, backend_request, standing.takes_over, successor)
                else:
                    answer = await _complete(request, attempt, standing, call, backend_request, samples)
                result = _result_of(attempt, endpoint, answer, call.dropped)
            except BackendError as error:
                call.close(error)
                result = AttemptResult(
                    attempt, _outcome_of(error, request.policy), endpoint, error=_without_frames(error)
                )
            except asyncio.CancelledError:
                _end_cancelled(hop, standing)
                call.close("lost" if standing.lost else "cancelled")
                raise
            _describe_outcome(hop, result.outcome, result.dropped)
            return result
    finally:
        if samples is not None:
            await samples.aclose()


async def _complete(
    request: RequestContext,
    attempt: Attempt,
    standing: Standing,
    call: BackendCall,
    backend_request: BackendRequest,
    samples: Samples | None,
) -> JsonAnswer | Rejected:
    """Fetch a whole answer and judge it. Raises BackendError."""
    endpoint = call.slot.endpoint
    try:
        with Deadline(attempt.timeout_s):
            if endpoint.config.watch_drafts and attempt.judged and not attempt.final:
                answer = await read_draft(request, attempt, call, backend_request, standing.takes_over)
            else:
                answer = await call.complete(backend_request)
    except TimeoutError:
        raise BudgetSpent(attempt.timeout_s) from None
    if isinstance(answer, Rejected):
        call.close("rejected")
        return answer
    # The call is settled by now: the client may leave while the samples are awaited.
    value, body = answer.value, answer.raw
    verdict, evidence = await _judge(request, attempt, endpoint, value, call.hop, samples)
    if backend_request.ask_logprobs:
        strip_logprobs(value)
    if backend_request.ask_logprobs or not body:
        body = orjson.dumps(value)
    return JsonAnswer(body, value, verdict, answer.sound, evidence)


async def open_stream(
    request: RequestContext,
    attempt: Attempt,
    call: BackendCall,
    backend_request: BackendRequest,
    takes_over: Callable[[], bool],
    successor: Successor | None,
) -> LiveStream | Rejected:
    """Open a stream, hold its beginning and judge it. Raises BackendError as long as nothing is committed.

    A poor draft is committed too if `takes_over` returns False at that moment. `successor` finds another call to
    continue the stream if it breaks; without one, a break ends the stream.
    """
    prefix = PrefixBuffer(request, attempt, call)
    await prefix.fill(backend_request)
    verdict = await prefix.judge()
    if verdict.accepted or attempt.final or not takes_over():
        call.keep_open()
        return LiveStream(
            request, attempt, call, prefix.events, verdict, strip=backend_request.ask_logprobs, successor=successor
        )
    call.close("rejected")
    return Rejected(verdict.reason, verdict.confidence)


async def _judge(
    request: RequestContext,
    attempt: Attempt,
    endpoint: Endpoint,
    value: dict[str, Any],
    hop: Hop,
    samples: Samples | None,
) -> tuple[Assessment, Evidence | None]:
    """Return the verdict on a whole answer, and the evidence if it was judged; record its basis on the hop."""
    hop.attributes[names.GEN_AI_RESPONSE_MODEL] = value.get("model")
    hop.attributes[names.GEN_AI_FINISH] = [str(choice.get("finish_reason")) for choice in value["choices"]]
    rules = request.call_rules()
    if not attempt.judged:
        if rules is not None and (fault := call_fault_of(value, rules)):
            hop.attributes[names.FAULT] = fault
        return UNJUDGED, None
    evidence = evidence_of(
        value,
        wants_json=request.features.wants_json,
        own_limit=request.own_limit,
        alternatives=alternatives_for(endpoint),
        call_rules=rules,
    )
    evidence = await check_schemas(evidence, request, hop)
    if samples is not None and not structural_fault(evidence, request.policy.escalate):
        evidence = replace(evidence, agreement=await samples.agreement(evidence.text))
    hop.attributes[names.TOKENS_JUDGED] = len(evidence.logprobs or ())
    tokens = token_texts((value,)) if request.trace.captures else ()
    return judge(request, attempt, endpoint, hop, evidence, tokens), evidence


async def _slot_request(request: RequestContext, tier: Tier, attempt: Attempt) -> SlotRequest:
    load = request.policy.load
    limit = attempt.ttft_timeout_s if request.features.stream else attempt.timeout_s
    affinity = 0
    if tier.sticky:
        affinity = await off_loop(request.affinity) if request.large else request.affinity()
    return SlotRequest(
        surface=request.policy.surface,
        priority=load.priority,
        wait_s=min(load.max_wait, limit),
        max_waiting=load.max_waiting,
        tokens_in=request.features.approx_tokens,
        affinity=affinity,
        stream=request.features.stream,
    )


def _less_the_queue(attempt: Attempt, queued_s: float) -> Attempt:
    """Return the attempt with its time limits reduced by the wait in the queue."""
    return replace(
        attempt,
        timeout_s=max(_LEAST_S, attempt.timeout_s - queued_s),
        ttft_timeout_s=max(_LEAST_S, attempt.ttft_timeout_s - queued_s),
    )


def backend_request_for(request: RequestContext, attempt: Attempt, endpoint: Endpoint, hop: Hop) -> BackendRequest:
    """Return the attempt's request to its backend, with log-probabilities if the answer will be judged.

    Alternatives of tokens are requested only if the backend's head reads them: five of them double a reply's length.
    """
    asks = attempt.judged and endpoint.config.logprobs and not request.body.get("logprobs")
    traceparent = request.trace.traceparent(hop)
    alternatives = alternatives_for(endpoint) or 1
    return BackendRequest(
        _fitted(request, endpoint),
        ask_logprobs=asks,
        traceparent=traceparent,
        tracestate=request.trace.tracestate,
        alternatives=alternatives,
        large=request.large,
        native=request.native,
    )


def _fitted(request: RequestContext, endpoint: Endpoint) -> Mapping[str, Any]:
    """Return the request's body with its token limit lowered to what the endpoint takes; note the limit if it was.

    A limit that is not the client's own is also lowered to what the prompt leaves of the endpoint's context, because
    some servers refuse a request that might exceed it.
    """
    config, body = endpoint.config, request.body
    most = config.max_output
    if config.context is not None and not request.own_limit:
        cap = request.policy.output.max_tokens
        if cap is not None and 2 * cap > config.context:
            left = max(1, config.context - room_needed({**body, "max_completion_tokens": 0, "max_tokens": 0}))
            most = left if most is None else min(most, left)
    if most is None or (fitted := within(body, most)) is body:
        return body
    request.trace.root.attributes[names.OUTPUT_LIMIT] = most
    return fitted


def _attributes(request: RequestContext, attempt: Attempt) -> dict[str, Any]:
    attributes = {
        names.ATTEMPT_NUMBER: attempt.number,
        names.TIER: attempt.tier,
        names.TIMEOUT: (attempt.ttft_timeout_s if request.features.stream else attempt.timeout_s) * 1000,
    }
    if attempt.role:
        attributes[names.HEDGE if attempt.role == "hedge" else names.SPECULATIVE] = True
    return attributes


def _describe_outcome(hop: Hop, outcome: AttemptOutcome, dropped: tuple[str, ...] = ()) -> None:
    if dropped:
        hop.attributes[names.DROPPED] = dropped
    hop.attributes[names.OUTCOME] = outcome.kind
    hop.attributes[names.REASON] = outcome.detail
    if outcome.confidence is not None:
        hop.attributes[names.CONFIDENCE] = outcome.confidence  # unrounded: replay compares it with a threshold


def _end_cancelled(hop: Hop, standing: Standing) -> None:
    hop.attributes[names.OUTCOME] = names.LOST if standing.lost else "caller_gone"
    hop.end(None if standing.lost else "client_gone")


def _without_frames(error: BackendError) -> BackendError:
    """Return the error without its traceback: the frames and the error would keep each other until collected."""
    error.__traceback__ = error.__context__ = None
    return error


def _result_of(
    attempt: Attempt, endpoint: Endpoint, answer: JsonAnswer | LiveStream | Rejected, dropped: tuple[str, ...]
) -> AttemptResult:
    if isinstance(answer, Rejected):
        outcome = AttemptOutcome(outcome_of_verdict(answer.reason), answer.reason, answer.confidence)
        return AttemptResult(attempt, outcome, endpoint, dropped=dropped)
    verdict = answer.verdict
    kind: OutcomeKind = "accepted" if verdict.accepted else outcome_of_verdict(verdict.reason)
    outcome = AttemptOutcome(kind, verdict.reason, verdict.confidence, kept=True)
    return AttemptResult(attempt, outcome, endpoint, answer, dropped=dropped)


def _outcome_of(error: BackendError, policy: Policy) -> AttemptOutcome:
    if isinstance(error, ContextExceeded):
        return AttemptOutcome("too_long", str(error))
    if isinstance(error, BadStatus):
        # A filter that refuses the prompt is treated as one that cuts the answer.
        filtered = error.blame == "content" and "content_filter" not in policy.escalate.when.finish
        if error.callers_fault or filtered:
            return AttemptOutcome("caller_fault", str(error))
    return AttemptOutcome("retryable", f"{error.error_type}: {error}")
