"""One attempt: acquire a slot, call its endpoint, do what `routing.attempt` says is due, and return how it went.

A failed call ends here: the cascade sees an AttemptOutcome, never an exception. `gateway.cascade.streaming` sends a
stream that goes out, its held beginning first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from cache.store.connections import Deadline
from gateway.backends.base import (
    ALIVE,
    BackendError,
    BackendRequest,
    BadStatus,
    BudgetSpent,
    Completion,
    ContextExceeded,
    Event,
    LengthRefused,
    RetriesSpent,
    Truncated,
)
from gateway.cascade.answer_checks import LEAST_TOKENS, check_schemas, cut_prompt, ignored_fields
from gateway.cascade.call import MOST_LOWERED, BackendCall, backend_request, fitted, lowered
from gateway.cascade.protocols import HeldDraft
from gateway.cascade.streaming import LiveStream
from gateway.chat.completions import evidence_of, fill_in, says_more_than_text, strip_logprobs, token_entries
from gateway.chat.stream_state import StreamState
from gateway.dialects.native import client_paths
from gateway.telemetry import names
from gateway.telemetry.trace import judged_of
from gateway.tiers.slot import SlotRequest
from policies.value_type import from_fields
from routing.attempt import AttemptMachine, Commit, GiveUp, Hold, Judge, Reject
from routing.cascade import MIN_ATTEMPT_S, Attempt, AttemptOutcome, Left
from routing.confidence.calls import NOTHING_OFFERED, call_fault
from routing.confidence.judge import Assessment, Evidence

if TYPE_CHECKING:
    from gateway.backends.server_forms import Doubt
    from gateway.cascade.protocols import AnswerVerifier, BesideDraft, StreamSuccessor
    from gateway.request.context import RequestContext
    from gateway.telemetry.trace import Hop
    from gateway.tiers import Endpoint, Slot, Tier


class JsonAnswer(NamedTuple):
    """A whole answer in the client's form. `sound` is false if something in it had to be corrected.

    `evidence` is what it was judged by, None if it was not judged.
    """

    body: bytes
    value: dict[str, Any]
    sound: bool
    evidence: Evidence | None


class AttemptResult(NamedTuple):
    """The result of one attempt: its outcome, and the answer if there is one."""

    attempt: Attempt
    outcome: AttemptOutcome
    endpoint: Endpoint | None = None
    answer: JsonAnswer | LiveStream | None = None
    error: BackendError | None = None
    dropped: tuple[str, ...] = ()
    """Paths of the client's fields that the backend was not sent."""
    doubt: Doubt | None = None
    """What it was refused in words that no rule knows, if that was why."""


_json_answer: Final = from_fields(JsonAnswer)
_attempt_result: Final = from_fields(AttemptResult)
_slot_request: Final = from_fields(SlotRequest)


@dataclass(slots=True, eq=False)
class AttemptRun:
    """Make one attempt of a request, after those in `before`, beside its `rivals`: call `run()` once.

    `takes_over` returns whether a stronger tier would take over if a draft were rejected with that much time left.
    `verifier` says how sure a draft is that has no log-probabilities. `owed` returns the completion tokens that a call
    of a tier is charged if its answer is never known. `successor` continues a committed stream that breaks.
    """

    request: RequestContext
    tiers: Mapping[str, Tier]
    attempt: Attempt
    takes_over: Callable[[Left], bool]
    before: Collection[AttemptResult] = ()
    rivals: Collection[AttemptRun] = ()
    verifier: AnswerVerifier | None = None
    owed: Callable[[RequestContext, str], int] | None = None
    successor: StreamSuccessor | None = None
    lost: bool = False
    """Whether another attempt's answer was served, so that a cancellation does not mean that the client left."""
    slot: Slot | None = None
    """The attempt's slot; None until it has one."""
    _doubt: Doubt | None = None
    _lowered: bool = False
    """Whether the limit of the reply is lower than the request's own."""
    _beside: BesideDraft | None = None
    _watched: StreamState | None = None
    """The draft of a whole answer that is read as a stream; of a call made again, the last one."""
    _hop: Hop = field(init=False)
    _machine: AttemptMachine = field(init=False)

    async def run(self) -> AttemptResult:
        """Return the result. Raises only CancelledError: the client has left, or another attempt was faster."""
        request, attempt = self.request, self.attempt
        tier, stream = self.tiers[attempt.tier], request.features.stream
        verifier = self.verifier
        limit_s = attempt.ttft_timeout_s if stream else attempt.timeout_s
        hop = self._hop = request.trace.begin(
            names.ATTEMPT,
            {names.ATTEMPT_NUMBER: attempt.number, names.TIER: attempt.tier, names.TIMEOUT: limit_s * 1000},
        )
        if attempt.role:
            hop.attributes[names.HEDGE if attempt.role == "hedge" else names.SPECULATIVE] = True
        try:
            slot = self.slot = await self._acquire(tier, limit_s)
        except BackendError as error:
            hop.attributes[names.SIBLINGS] = [endpoint.shown for endpoint in tier.endpoints]
            result = self._result(AttemptOutcome("retryable", str(error)), error=error)
            hop.end(error.error_type)
            return result
        except asyncio.CancelledError:
            self._cancelled()
            raise
        beside: BesideDraft | None = None
        try:
            with BackendCall(request.ledger, slot, hop, request.features.approx_tokens, self._owes) as call:
                endpoint = slot.endpoint
                config, body = endpoint.config, request.body
                if len(tier.endpoints) > 1:
                    hop.attributes[names.SIBLINGS] = [one.shown for one in tier.endpoints if one is not endpoint]
                request.ledger.attempts += 1
                self._machine = AttemptMachine(
                    attempt,
                    request.policy.escalate,
                    time.monotonic(),
                    request.deadline,
                    request.ttft_deadline,
                    takes_over=self.takes_over,
                    head=config.head,
                    stream=stream,
                    watches=config.watch_drafts,
                    queued_s=slot.queued_s,
                    verify_s=verifier.takes_s(request.policy, endpoint) if verifier is not None and stream else 0.0,
                )
                if endpoint.lengths.known:
                    body = fitted(request, endpoint)
                    self._lowered = body is not request.body
                # The head's alternatives alone are requested: five of them double a reply's length.
                logprobs = attempt.judged and config.logprobs and not body.get("logprobs")
                asked = backend_request(
                    request,
                    hop,
                    body,
                    ask_logprobs=logprobs and "logprobs" in request.policy.escalate.verify,
                    alternatives=endpoint.alternatives or 1,
                    endpoint=endpoint,
                )
                if verifier is not None and request.policy.escalate.agreement is not None:
                    beside = verifier.beside(request, attempt, endpoint, self._machine.limit_s, self._owes)
                    self._beside = beside
                try:
                    make, changes = (self._open if stream else self._fetch), endpoint.key.changes
                    try:
                        return await make(call, asked)
                    except BadStatus as error:
                        return await self._again(make, call, asked, error, changes)
                except BackendError as error:
                    call.close(error)
                    return self._result(self._outcome_of(error, endpoint), call, error=error)
                except asyncio.CancelledError:
                    self._cancelled()
                    call.close("lost" if self.lost else "cancelled")
                    raise
        finally:
            if beside is not None:
                await beside.aclose()

    async def _acquire(self, tier: Tier, limit_s: float) -> Slot:
        """Return a slot of the tier, if possible not at an endpoint that failed or that a rival has."""
        request = self.request
        before, rivals = self.before, self.rivals
        avoided = (
            [past.endpoint for past in before if past.endpoint is not None and past.error is not None] if before else []
        )
        if self.attempt.retry and not tier.may_retry(avoided):
            raise RetriesSpent("too many retries have failed lately; another would only add to the load")
        load, affinity = request.policy.load, 0
        if tier.sticky:
            affinity = request.affinity()
        if rivals:  # read last: they may get their slots meanwhile
            avoided += [rival.slot.endpoint for rival in rivals if rival.slot is not None]
        features, wait_s = request.features, min(load.max_wait, limit_s)
        models = None if request.models is None else request.models.by_tier[tier.name]
        asked = _slot_request(
            (
                request.policy.surface,
                load.priority,
                wait_s,
                load.max_waiting,
                features.approx_tokens,
                affinity,
                features.stream,
                models,
            )
        )
        return await tier.acquire(asked, avoided)

    async def _again(
        self,
        make: Callable[[BackendCall, BackendRequest], Awaitable[AttemptResult]],
        call: BackendCall,
        asked: BackendRequest,
        error: BadStatus,
        changes: int,
    ) -> AttemptResult:
        """Make a refused call once more where its key has changed, or with a lower limit of the reply where one helps.

        `changes` says how often the key had changed before. Raises BackendError: that of the last call, or this one.
        """
        endpoint, left = call.slot.endpoint, MOST_LOWERED
        while True:
            if isinstance(error, LengthRefused):
                lower = lowered(self.request, endpoint, asked, error) if left else None
                if lower is None:
                    raise error
                asked, self._lowered, left = lower, True, left - 1
            else:
                if error.blame != "key" or changes < 0 or not await endpoint.key.renewed(changes):
                    raise error
                changes = -1
            self._machine.limit_s = max(MIN_ATTEMPT_S, self._machine.until - time.monotonic())
            try:
                return await make(call, asked)
            except BadStatus as refused:
                error = refused

    # --- a whole answer -----------------------------------------------------------------------------------------------

    async def _fetch(self, call: BackendCall, asked: BackendRequest) -> AttemptResult:
        """Fetch a whole answer and judge it. Raises BackendError."""
        request, machine, hop = self.request, self._machine, self._hop
        try:
            with Deadline(machine.limit_s):
                answer = await (self._watch(call, asked) if machine.watched else call.complete(asked))
        except TimeoutError:
            raise BudgetSpent(machine.limit_s) from None
        if isinstance(answer, Reject):
            call.close("rejected")
            return self._result(answer.outcome, call)
        # The call is settled by now: the client may leave while its schemas are checked or the samples are awaited.
        value, body = answer.value, answer.raw
        choices, rules = value["choices"], request.call_rules()
        hop.attributes[names.GEN_AI_RESPONSE_MODEL] = value.get("model")
        hop.attributes[names.GEN_AI_FINISH] = [str(choice.get("finish_reason")) for choice in choices]
        evidence: Evidence | None = None
        if self.attempt.judged:
            state = self._watched
            evidence = (
                self._evidence(state)
                if state is not None
                else evidence_of(
                    value,
                    wants_json=request.features.wants_json,
                    own_limit=request.own_limit and not self._lowered,
                    alternatives=call.slot.endpoint.alternatives,
                    tops_asked=asked.asks_alternatives,
                    call_rules=rules,
                )
            )
            if evidence.tool_arguments or evidence.wants_json:
                evidence = await check_schemas(evidence, request, hop)
            evidence = await self._verified(evidence, call.slot.endpoint)
            hop.attributes[names.TOKENS_JUDGED] = len(evidence.logprobs or ())
            step = machine.ended(evidence, time.monotonic())
            told: Sequence[Mapping[str, Any]] = ()
            if request.trace.captures:
                told = token_entries(value, tops_asked=asked.asks_alternatives) if state is None else state.told()
            self._note(step.verdict, evidence, told)
            outcome = step.outcome
        else:
            outcome = machine.ended(None, time.monotonic()).outcome
            if rules is not None and (rules is not NOTHING_OFFERED or says_more_than_text(choices[0]["message"])):
                unjudged = evidence_of(value)
                reason, calls = unjudged.finish_reason, unjudged.tool_names
                if fault := call_fault(rules, calls, unjudged.text, reason, complete=True):
                    hop.attributes[names.FAULT] = fault
                    outcome = outcome._replace(short=rules.required)
        if asked.ask_logprobs:
            strip_logprobs(value)
        if asked.ask_logprobs or not body:
            body = orjson.dumps(value)
        if (request.body.get("logprobs") or "n" in request.body) and (ignored := ignored_fields(request.body, choices)):
            call.dropped = tuple(dict.fromkeys((*call.dropped, *client_paths(request.native, ignored))))
        if request.features.approx_tokens >= LEAST_TOKENS and (cut := cut_prompt(request, call)):
            outcome = AttemptOutcome("unfit", cut, outcome.confidence, kept=True)
        return self._result(outcome, call, _json_answer((body, value, answer.sound, evidence)))

    async def _watch(self, call: BackendCall, asked: BackendRequest) -> Completion | Reject:
        """Read a whole answer as a stream; return it (without `raw`), settled as answered, or why it was cut short.

        A small model in a loop generates up to its limit, so a poor draft is cancelled as early as a stream's would be.
        """
        machine = self._machine
        state = self._watched = StreamState(
            judged=True,
            alternatives=call.slot.endpoint.alternatives,
            tops_asked=asked.asks_alternatives,
            call_rules=self.request.call_rules(),
        )
        state.collect()
        looked = False
        source = await call.open(replace(asked, held=True), state)
        while events := await source.read():
            for event in events:
                state.add(event.value)
                state.assemble(event.value)
            if state.tokens < machine.wanted or state.finished:  # a finished draft is judged as a whole
                continue
            now = time.monotonic()
            if not isinstance(machine.tokens(state, now), Judge):
                continue
            evidence = self._evidence(state)
            step = machine.looked(evidence, now)
            if not looked:
                self._note(step.verdict, evidence)
            looked = True
            if isinstance(step, Reject):
                self._hop.attributes[names.TOKENS_JUDGED] = state.tokens
                return step
        if not state.finished:
            raise Truncated("the stream ended before its answer")
        call.answered()
        completion = state.completion()
        fill_in(completion, call.slot.endpoint.config.model)
        return Completion(b"", completion)

    # --- a stream -----------------------------------------------------------------------------------------------------

    async def _open(self, call: BackendCall, asked: BackendRequest) -> AttemptResult:
        """Open a stream, hold its beginning and judge it. Raises BackendError as long as nothing is committed."""
        request, attempt, machine, endpoint = self.request, self.attempt, self._machine, call.slot.endpoint
        state = StreamState(
            judged=attempt.judged,
            alternatives=endpoint.alternatives if attempt.judged else 0,
            tops_asked=asked.asks_alternatives,
            looks_for_loops=request.policy.escalate.when.repetition,
            call_rules=request.call_rules(),
        )
        held: list[Event] = []
        try:
            async with asyncio.timeout(machine.limit_s) as limit:
                source = await call.open(self._held(asked, endpoint), state)
                while True:
                    events = await source.read()
                    if events is ALIVE:
                        continue
                    if not events:
                        raise Truncated("the stream ended before its answer")
                    for event in events:
                        state.add(event.value)
                    held += events
                    if state.tokens < machine.wanted and not state.finished and not state.has_other_output:
                        continue
                    now = time.monotonic()
                    step = machine.tokens(state, now)
                    if state.tokens and not call.has_begun:
                        call.note_first_token()
                        limit.reschedule(asyncio.get_running_loop().time() + machine.until - now)
                    if not isinstance(step, Hold):
                        break
        except TimeoutError:
            step = machine.tokens(state, max(time.monotonic(), machine.until))
        if isinstance(step, GiveUp):
            raise BudgetSpent(step.after_s)
        if isinstance(step, Judge):
            step = await self._judge_held(state, endpoint)
        if isinstance(step, Reject):
            call.close("rejected")
            return self._result(step.outcome, call)
        if not isinstance(step, Commit):
            raise AssertionError(f"a stream that is held no more is to be committed or rejected, not {step}")
        call.keep_open()
        stream = LiveStream(request, attempt, call, held, self.successor, strip=asked.ask_logprobs)
        return self._result(step.outcome, call, stream)

    async def _judge_held(self, state: StreamState, endpoint: Endpoint) -> Commit | Reject:
        self._hop.attributes[names.TOKENS_JUDGED] = state.tokens
        evidence = self._evidence(state)
        if evidence.tool_arguments or evidence.wants_json:
            evidence = await check_schemas(evidence, self.request, self._hop)
        evidence = await self._verified(evidence, endpoint)
        step = self._machine.ended(evidence, time.monotonic())
        self._note(step.verdict, evidence, state.told() if self.request.trace.captures else ())
        return step

    def _held(self, asked: BackendRequest, endpoint: Endpoint) -> BackendRequest:
        """Return a stream's request, `held` where it has tools and is no use unless log-probabilities say how sure."""
        attempt, escalate = self.attempt, self.request.policy.escalate
        if not (attempt.judged and self.request.features.has_tools and endpoint.config.logprobs):
            return asked
        by_logprobs = escalate.verify[0] == "logprobs" and escalate.no_signal == "escalate"
        if attempt.final or not attempt.ease or not by_logprobs or not escalate.when.asks_for_confidence:
            return asked
        return replace(asked, held=True)

    # --- what both share ----------------------------------------------------------------------------------------------

    async def _verified(self, evidence: Evidence, endpoint: Endpoint) -> Evidence:
        """Return the evidence with what a verifier says, if it is one of those that the policy asks first."""
        policy, verifier = self.request.policy, self.verifier
        if verifier is None or (evidence.logprobs and policy.escalate.verify[0] == "logprobs"):
            return evidence
        draft = HeldDraft(self.request, self._machine, self._hop, self._beside)
        return await verifier.verify(evidence, draft, endpoint)

    def _evidence(self, state: StreamState) -> Evidence:
        request = self.request
        wants_json, own_limit = request.features.wants_json, request.own_limit and not self._lowered
        return state.evidence(wants_json=wants_json, own_limit=own_limit, complete=state.finished)

    def _note(self, verdict: Assessment, evidence: Evidence, told: Sequence[Mapping[str, Any]] = ()) -> None:
        """Record a verdict's basis on the hop; `told` are the entries of the judged tokens, for the trace alone."""
        hop, tokens = self._hop, [str(entry.get("token", "")) for entry in told] if told else ()
        hop.judged = judged_of((evidence, time.perf_counter_ns(), verdict.threshold, tokens))
        hop.attributes[names.CONFIDENCE_BASIS] = verdict.basis
        if verdict.head:
            hop.attributes[names.CONFIDENCE_HEAD] = verdict.head

    def _result(
        self,
        outcome: AttemptOutcome,
        call: BackendCall | None = None,
        answer: JsonAnswer | LiveStream | None = None,
        error: BackendError | None = None,
    ) -> AttemptResult:
        """Return the result, and describe it on the hop."""
        attributes = self._hop.attributes
        endpoint = None if call is None else call.slot.endpoint
        dropped = () if call is None or error is not None else call.dropped
        if dropped:
            attributes[names.DROPPED] = dropped
            if names.FIELDS in attributes:
                dropped = self._clients_own(dropped)
        attributes[names.OUTCOME] = outcome.kind
        attributes[names.REASON] = outcome.detail
        if outcome.confidence is not None:
            attributes[names.CONFIDENCE] = outcome.confidence  # unrounded: replay compares it with a threshold
        if error is not None:
            # Without its traceback: the frames and the error would keep each other until collected.
            error.__traceback__ = error.__context__ = None
        return _attempt_result((self.attempt, outcome, endpoint, answer, error, dropped, self._doubt))

    def _clients_own(self, dropped: Sequence[str]) -> tuple[str, ...]:
        """Return the paths of fields that the client gave, without those that the gateway set."""
        fields = [field.partition("=")[0] for field in self._hop.attributes[names.FIELDS]]
        fields = [name for name in fields if self.request.body.get(name) is None]
        ours = {*fields, *client_paths(self.request.native, fields)}
        return tuple(path for path in dropped if path not in ours)

    def _outcome_of(self, error: BackendError, endpoint: Endpoint) -> AttemptOutcome:
        """Return the outcome of a call that gave no answer."""
        if isinstance(error, ContextExceeded):
            return AttemptOutcome("too_long", str(error))
        if isinstance(error, BadStatus):
            if error.blame == "unknown":
                if endpoint.refusals is not None:
                    self._doubt = endpoint.refusals.heard(error, self.request.tenant, self.request.body)
                known = self._doubt is not None and self._doubt.callers
                return AttemptOutcome("caller_fault" if known else "doubtful", str(error))
            # A filter that refuses the prompt is treated as one that cuts the answer.
            filters = "content_filter" in self.request.policy.escalate.when.finish
            if error.callers_fault or (error.blame == "content" and not filters):
                return AttemptOutcome("caller_fault", str(error))
            if error.cannot:
                return AttemptOutcome("refused", str(error))
        return AttemptOutcome("retryable", f"{error.error_type}: {error}")

    def _owes(self, tier: str) -> int:
        """Return the completion tokens that a call of this tier is charged whose answer is never known."""
        return 0 if self.owed is None else self.owed(self.request, tier)

    def _cancelled(self) -> None:
        self._hop.attributes[names.OUTCOME] = names.LOST if self.lost else "caller_gone"
        self._hop.end(None if self.lost else "client_gone")
