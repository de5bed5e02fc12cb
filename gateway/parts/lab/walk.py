"""Walk one request through a policy without calling anything: what would be tried, and what would the client get?

The decision is `routing.decide.decide`, the attempts are those of `routing.cascade.Cascade`, and each call of a tier,
with the answer that it would give (`Draft`), drives a `routing.attempt.AttemptMachine`: the same code that serves. Only
the clock is a variable. It starts at 0 when the decision is made, and jumps from one event to the next: a first token,
the end of a hold, the end of an answer, a time limit, a hedge that is due.

What a walk leaves out: how long the gateway itself takes, retry and hedge budgets (they depend on other requests; see
`Surroundings.may_hedge`), and a stream that breaks after the client has seen part of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from policies.errors import KeyPath
from policies.model import VERIFIERS, Verifier
from policies.value_type import value_type
from routing.attempt import AttemptMachine, AttemptStep, Commit, GiveUp, Judge, LookAgain, Reject
from routing.cascade import (
    MIN_ATTEMPT_S,
    NO_WORK,
    Attempt,
    AttemptOutcome,
    Cascade,
    Fail,
    Left,
    OutcomeKind,
    Path,
    Racing,
    Serve,
    Wait,
)
from routing.confidence.calls import NOT_OFFERED, CallRules
from routing.confidence.judge import CALIBRATED, Assessment, Evidence
from routing.decide import Decision, DecisionInput, NoTierError, asks_both, decide, priors

if TYPE_CHECKING:
    from policies.model import Escalate, Policy, Verifier
    from routing.decide import TierHealth

Fault = Literal["", "error", "too_long", "rejected"]
"""Why a call gives no answer: it fails, its context is too short, or it rejects the request as invalid."""
Refusal = Literal["", "no_tier", "unable", "deadline", "timeout", "full", "rejected", "too_long", "failed"]
"""Why the client gets an error: `STATUS` has the HTTP status of each."""
STATUS: Final[Mapping[Refusal, int]] = {
    "": 200,
    "no_tier": 502,
    "unable": 400,
    "deadline": 504,
    "timeout": 504,
    "full": 503,
    "rejected": 400,
    "too_long": 400,
    "failed": 502,
}
_KINDS: Final[Mapping[str, OutcomeKind]] = {
    "error": "retryable",
    "too_long": "too_long",
    "rejected": "caller_fault",
}
_REFUSALS: Final[Mapping[OutcomeKind, Refusal]] = {"too_long": "too_long", "caller_fault": "rejected"}
_REFUSED_TEXT: Final = "I cannot help with that."
_REPEATED: Final = "again "


@value_type
class Draft:
    """What one call of a tier would give: an answer of so many tokens, evenly spaced, or a fault.

    `confidence` is 0..1, None without any evidence; `calibrated` says that a confidence head gave it. The first token
    comes after `ttft_s` and the last one after `total_s` seconds; None takes the median that the tier's forecast has,
    or 0. `invalid` names what is wrong with it (`json`, `json_schema`, `tool_args`, `tool_calls`); `calls_tools` says
    that it calls a tool. `text` replaces the text that follows from the flags. `by` is who tells the confidence, which
    counts only if the policy asks it; None for whoever is asked first.
    """

    confidence: float | None = 1.0
    calibrated: bool = True
    tokens: int = 100
    finish: str = "stop"
    invalid: str = ""
    refusal: bool = False
    repetition: bool = False
    empty: bool = False
    calls_tools: bool = False
    text: str | None = None
    fault: Fault = ""
    ttft_s: float | None = None
    total_s: float | None = None
    by: Verifier | None = None

    @property
    def has_calls(self) -> bool:
        """Whether it calls a tool."""
        return self.calls_tools or self.invalid in ("tool_args", "tool_calls")

    def text_of(self, tokens: int, *, wants_json: bool) -> str:
        """Return the text of the first `tokens` tokens, a word each."""
        if self.text is not None:
            return self.text if tokens >= self.tokens else " ".join(self.text.split()[:tokens])
        if self.empty:
            return ""
        if self.repetition:
            return _REPEATED * tokens
        if self.refusal:
            return _REFUSED_TEXT
        if wants_json:
            return "{" if self.invalid == "json" or tokens < self.tokens else "{}"
        return "" if self.calls_tools else "An answer."


GOOD: Final = Draft()
"""An answer that every policy accepts."""


_RULES: Final = CallRules(frozenset({"tool"}))


@value_type
class TierQueue:
    """The queue before a tier's backends: the seconds that a new request waits, and how many of its surface wait."""

    wait_s: float = 0.0
    waiting: int = 0


_NO_QUEUE: Final = TierQueue()


@value_type
class Surroundings:
    """What holds around a request beside the input of its decision.

    `drafts` has for each tier the answers to its calls in order; the last one repeats, and a tier without any gives a
    good answer. `hedge_after_s` returns the seconds after which a hedge starts beside a tier's call, None for never;
    left out, that of the policy if it is a duration. `may_hedge`: whether the budget for hedging allows one now.
    `watches_drafts` are the tiers that stop poor JSON drafts early (`watch_drafts` in the config). `own_limit`: the
    client limits the output itself.
    """

    drafts: Mapping[str, Sequence[Draft]] = field(default_factory=dict)
    hedge_after_s: Callable[[str], float | None] | None = None
    may_hedge: bool = True
    queues: Mapping[str, TierQueue] = field(default_factory=dict)
    watches_drafts: frozenset[str] = frozenset()
    own_limit: bool = False


class Step(NamedTuple):
    """One thing that a rule of the policy did: the rule's key, whether it held, and what happened in a few words."""

    at: KeyPath
    held: bool
    text: str


@value_type
class Walk:
    """What the client gets.

    `refused` is why it gets an error, '' for an answer, and then `path` is the value of `x-tierline-path`. `tier` gave
    the answer; `called` are the tiers that were called, in order. `seen_of_draft` counts the tokens that the client saw
    of the first call's answer; `held` those that were judged of the last judged one before the client saw any.
    `first_token_s` and `total_s` are when the answer began and ended, in seconds after the decision. `judged` is the
    last verdict on a draft. `rule` is the source of the start rule that held, '' if none was asked.
    """

    path: Path | Literal[""] = ""
    tier: str = ""
    called: tuple[str, ...] = ()
    refused: Refusal = ""
    reason: str = ""
    decision: Decision | None = None
    rule: str = ""
    seen_of_draft: int = 0
    held: int = 0
    first_token_s: float = 0.0
    total_s: float = 0.0
    judged: Assessment | None = None
    may_store: bool = False
    draft: Draft | None = None
    steps: Sequence[Step] = ()

    @property
    def start(self) -> str:
        """The tier that is called first; '' if none is."""
        return "" if self.decision is None else self.decision.tiers[0]


class StatedConfidence:
    """A confidence head that gives the evidence's stated confidence."""

    alternatives = 0
    model = version = ""

    def p_right(self, evidence: Evidence, prior: float | None = None, by: Verifier = "logprobs") -> float | None:
        """Return the confidence that the draft states, whichever verifier is asked."""
        del prior
        return evidence.verified.get(by)


_HEAD: Final = StatedConfidence()
_NOWHERE: Final = Surroundings()


def walk(policy: Policy, given: DecisionInput, around: Surroundings = _NOWHERE) -> Walk:
    """Return what the client gets for a request with this input."""
    return Walks().walk(policy, given, around)


class Walks:
    """Walks of many requests, in which all that follows on a decision is worked out once for equal inputs.

    Each request is decided by itself. Policies, health and surroundings count as equal if they are the same objects.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._courses: dict[tuple[Any, ...], tuple[Walk, tuple[Policy, Mapping[str, TierHealth], Surroundings]]] = {}

    def walk(self, policy: Policy, given: DecisionInput, around: Surroundings = _NOWHERE) -> Walk:
        """Return what the client gets for a request with this input."""
        try:
            decision = decide(policy, given)
        except NoTierError as error:
            return Walk(refused="no_tier" if error.capable else "unable", reason=str(error))
        features, health = given.features, given.health
        # All that `_Course` reads: of a decision its tiers and whether one stands in, but not its texts.
        key = (
            id(policy), id(health), id(around), features.stream, features.wants_json, given.budget_s, given.ttft_s,
            given.clamp is None, decision.tiers, decision.fallbacks, decision.missing, decision.weaker,
            not decision.stand_in, decision.steering, asks_both(policy, given),
        )  # fmt: skip
        known = self._courses.get(key)
        if known is None:
            # The objects are kept, so that no other one gets their identity.
            known = self._courses[key] = _Course(policy, given, around, decision).run(), (policy, health, around)
        course, wanted = known[0], rule_of(policy, decision)
        rule = policy.route.start[wanted].source if wanted else ""
        return replace(course, decision=decision, rule=rule, reason=course.reason or decision.reason)


def rule_of(policy: Policy, decision: Decision) -> str:
    """Return the tier whose start rule a decision follows; '' if no rule was asked."""
    reason = decision.reason
    for tier, rule in policy.route.start.items():
        if reason.startswith(f"{tier}: {rule.source}"):
            return tier
    return ""


@dataclass(slots=True)
class _Call:
    """One attempt under way, and what has come of its answer. Times are in seconds after the decision.

    It is a `routing.attempt.Progress`.
    """

    attempt: Attempt
    draft: Draft
    ends_at: float
    """When there is something to do next."""
    machine: AttemptMachine = field(init=False)
    comes_at: float = math.inf
    """When what the machine waits for comes."""
    first_at: float = math.inf
    last_at: float = math.inf
    fails_at: float = math.inf
    tokens: int = 0
    finished: bool = False
    has_choice: bool = False
    has_other_output: bool = False
    wrong_call: str = ""
    outcome: AttemptOutcome | None = None
    saturated: bool = False
    late: bool = False

    def call_fault(self) -> str:
        """Return the call that the policy does not allow, in a few words."""
        return self.wrong_call

    def plan(self) -> None:
        """Set when there is something to do next."""
        wanted, draft = self.machine.wanted, self.draft
        self.comes_at = self.last_at if draft.fault or wanted > draft.tokens else self.at(max(1, wanted))
        self.ends_at = min(self.comes_at, self.fails_at, self.machine.until)

    def proceed(self, now: float, *, stream: bool) -> AttemptStep:
        """Tell the machine what has come by now, and return what is due."""
        machine, most = self.machine, self.draft.tokens
        self.has_choice = now >= self.first_at
        self.has_other_output = self.has_choice and self.draft.has_calls
        # By rounding, fewer tokens than those that were waited for may seem to have come.
        self.tokens = max(self.tokens_by(now), min(machine.wanted, most) if now >= self.comes_at else 0)
        # The end of a stream comes after its last token.
        self.finished = now >= self.last_at and not (stream and most >= machine.wanted)
        return machine.tokens(self, now)

    def at(self, token: int) -> float:
        """Return when its token of this number comes, from 1."""
        tokens = self.draft.tokens
        if tokens <= 1:
            return self.first_at
        return self.first_at + (self.last_at - self.first_at) * (token - 1) / (tokens - 1)

    def tokens_by(self, now: float) -> int:
        """Return how many of its tokens have come by then."""
        if now < self.first_at or not self.draft.tokens:
            return 0
        if now >= self.last_at or self.draft.tokens == 1:
            return self.draft.tokens
        per_token = (self.last_at - self.first_at) / (self.draft.tokens - 1)
        return min(self.draft.tokens, 1 + int((now - self.first_at) / per_token + 1e-9))


class _Course:
    """The walk of one request behind its decision. It reads nothing that is not in the key of `Walks`.

    (The classifier's priors are handed to heads that leave them unread.) The decision, its rule and its reason are left
    out of the result.
    """

    def __init__(self, policy: Policy, given: DecisionInput, around: Surroundings, decision: Decision) -> None:
        self.policy, self.given, self.around, self.decision = policy, given, around, decision
        self.stream = given.features.stream
        self.now = 0.0
        self.steps: list[Step] = []
        self.calls: dict[int, _Call] = {}
        self.made: dict[int, _Call] = {}
        self.count: dict[str, int] = {}
        self.over: list[_Call] = []
        self.held = 0
        self.judged: Assessment | None = None
        self.verdicts: dict[int, Assessment] = {}
        self.cascade = Cascade(
            decision,
            policy,
            given.health,
            stream=self.stream,
            priors=priors(policy, given.difficulty),
            racing=self._racing(),
        )

    def run(self) -> Walk:
        """Make the attempts until one can be served, or none can."""
        cascade, began = self.cascade, 0.0
        while True:
            if self.calls and self.stream and any(call.first_at <= self.now for call in self.calls.values()):
                cascade.began()
            step = cascade.next(self._left(), self.now - began)
            if isinstance(step, Attempt):
                self._start(step)
                if not step.role:
                    began = self.now
                    while step.alone and step.number in self.calls:
                        self.now = self.calls[step.number].ends_at
                        self._ended(step.number)
                else:
                    key = "hedge" if step.role == "hedge" else "speculate"
                    self._note(("escalate", key), True, f"{step.tier} is called too, at {_ms(self.now)}")
            elif isinstance(step, Wait):
                ends_at = min(call.ends_at for call in self.calls.values())
                due = math.inf if step.for_s is None else max(self.now + step.for_s, math.nextafter(self.now, math.inf))
                self.now = min(ends_at, due)
                for number in [number for number, call in self.calls.items() if call.ends_at <= self.now]:
                    self._ended(number)
            elif isinstance(step, Serve):
                return self._served(step.number)
            else:
                return self._failed(step)

    # --- one attempt --------------------------------------------------------------------------------------------------

    def _start(self, attempt: Attempt) -> None:
        """Begin a call, and work out when it has something to say."""
        tier, rules = attempt.tier, self.policy.escalate
        drafts = self.around.drafts.get(tier) or (GOOD,)
        made = self.count.get(tier, 0)
        draft = drafts[min(made, len(drafts) - 1)]
        call = self.calls[attempt.number] = self.made[attempt.number] = _Call(attempt, draft, self.now)
        queue, load = self.around.queues.get(tier, _NO_QUEUE), self.policy.load
        full = (
            queue.wait_s > min(load.max_wait, attempt.ttft_timeout_s if self.stream else attempt.timeout_s)
            or queue.waiting >= load.max_waiting
        )
        if queue.wait_s and full:
            call.saturated = True
            call.outcome = AttemptOutcome("retryable", f"{tier} is full: {_ms(queue.wait_s)} in line")
            return
        self.count[tier] = made + 1
        began = self.now + queue.wait_s
        call.machine = AttemptMachine(
            attempt,
            rules,
            began,
            self.given.budget_s,
            self.given.ttft_s,
            takes_over=self.cascade.takes_over,
            head=_HEAD if draft.calibrated else None,
            stream=self.stream,
            watches=tier in self.around.watches_drafts,
            queued_s=queue.wait_s,
        )
        if draft.invalid == "tool_calls" and "tool_calls" in rules.when.invalid:
            call.wrong_call = NOT_OFFERED
        ttft_s, total_s = self._latency(tier, draft, queue)
        if draft.fault:
            call.fails_at = began + ttft_s
        else:
            call.first_at, call.last_at = began + ttft_s, began + total_s
        call.plan()

    def _ended(self, number: int) -> None:
        """Tell the cascade how the call ended, unless it goes on."""
        call = self.calls[number]
        tier, fault = call.attempt.tier, call.draft.fault
        if not call.saturated and self.now >= call.fails_at:
            call.outcome = AttemptOutcome(_KINDS[fault], f"{tier}: {fault.replace('_', ' ')}")
        elif not call.saturated:
            step = call.proceed(self.now, stream=self.stream)
            if isinstance(step, Judge):
                step = self._judge(call)
            if isinstance(step, Commit | Reject):
                call.outcome = step.outcome
            elif isinstance(step, GiveUp):
                call.late = True
                call.outcome = AttemptOutcome("retryable", f"{tier}: nothing within {_ms(step.after_s)}")
        if call.outcome is None:
            call.plan()
            return
        self._limits_told(call)
        self.over.append(self.calls.pop(number))
        self.cascade.observe(call.outcome, number)

    def _judge(self, call: _Call) -> Commit | Reject | LookAgain:
        """Judge what there is of an answer."""
        draft, machine, complete = call.draft, call.machine, call.finished
        tokens = call.tokens if complete and not self.stream else min(call.tokens, max(machine.wanted, 1))
        if self.stream:
            self._hold_told(call, tokens, complete)
        evidence = self._evidence(draft, tokens, complete=complete)
        whole = self.stream or complete
        step = machine.ended(evidence, self.now) if whole else machine.looked(evidence, self.now)
        self.held, self.judged = tokens, step.verdict
        self.verdicts[call.attempt.number] = step.verdict
        self._judgement_told(evidence, draft, step.verdict)
        return step

    def _evidence(self, draft: Draft, tokens: int, *, complete: bool) -> Evidence:
        when, wants_json = self.policy.escalate.when, self.given.features.wants_json
        text, misfit = draft.text_of(tokens, wants_json=wants_json), ""
        if complete and draft.invalid == "json_schema" and "json_schema" in when.invalid and text and wants_json:
            misfit = "not what the JSON schema says"
        bad_call = draft.invalid == "tool_args"
        calls = (("{",) if bad_call else ("{}",)) if draft.has_calls else ()
        stated, by = draft.confidence, VERIFIERS if draft.by is None else (draft.by,)
        if draft.by is not None and not asked_before(self.policy.escalate, draft.by)[1]:
            stated = None
        return Evidence(
            text=text,
            verified={} if stated is None else dict.fromkeys(by, stated),
            finish_reason=draft.finish if complete else None,
            tool_arguments=calls,
            tool_names=("another" if draft.invalid == "tool_calls" else "tool",) * len(calls),
            has_other_output=bool(calls),
            refused=draft.refusal,
            wants_json=wants_json,
            own_limit=self.around.own_limit,
            complete=complete,
            misfit=misfit,
            call_rules=_RULES if "tool_calls" in when.invalid else None,
        )

    # --- what the rules did -------------------------------------------------------------------------------------------

    def _note(self, at: KeyPath, held: bool, text: str, otherwise: str = "") -> None:
        self.steps.append(Step(at, held, text if held else otherwise))

    def _judgement_told(self, evidence: Evidence, draft: Draft, verdict: Assessment) -> None:
        """Note each condition of `escalate.when` that the answer was put to."""
        when, reason, confidence = self.policy.escalate.when, verdict.reason, verdict.confidence
        # Later looks at a JSON draft leave the confidence out.
        if when.asks_for_confidence and (draft.confidence is None or confidence is not None):
            self._note(("escalate", "no_signal"), confidence is None, reason)
        if verdict.threshold is not None and confidence is not None:
            key = "confidence_below" if verdict.basis in CALIBRATED else "uncalibrated_below"
            below, values = confidence < verdict.threshold, f"{confidence:g} {{}} {verdict.threshold:g}"
            self._note(("escalate", "when", key), below, values.format("<"), values.format(">="))
        if when.refusal:
            self._note(("escalate", "when", "refusal"), reason == "refusal", reason)
        if when.repetition:
            self._note(("escalate", "when", "repetition"), reason == "repetition loop", reason)
        if not evidence.complete:
            return
        for finish in when.finish:
            held = draft.finish == finish and reason in ("cut off", "content filter")
            self._note(("escalate", "when", "finish", finish), held, reason)
        kinds = {"json": evidence.wants_json, "json_schema": evidence.wants_json and bool(evidence.text)}
        for kind in when.invalid:
            if kinds.get(kind, bool(evidence.tool_arguments)):
                held = draft.invalid == kind and not verdict.accepted
                self._note(("escalate", "when", "invalid", kind), held, reason)

    def _hold_told(self, call: _Call, tokens: int, complete: bool) -> None:
        """Note which limit ended the hold of a stream."""
        by_tokens = not complete and tokens >= self.policy.escalate.stream.hold_tokens
        self._note(("escalate", "stream", "hold_tokens"), by_tokens, f"{tokens} tokens were held")
        by_time = not complete and not by_tokens
        self._note(("escalate", "stream", "hold_max"), by_time, f"held for {_ms(self.now - call.first_at)}")

    def _limits_told(self, call: _Call) -> None:
        """Note which of the policy's time limits bound the call, and whether it ended the call."""
        slo, attempt = self.policy.slo, call.attempt
        text = "" if call.outcome is None else call.outcome.detail
        if call.saturated or self.around.queues.get(attempt.tier, _NO_QUEUE).wait_s:
            self._note(("load", "max_wait"), call.saturated, text)
        if call.saturated:
            return
        if self.stream and slo.ttft.p99 is not None:
            self._note(("slo", "ttft", "p99"), call.late, text)
        which = "p95" if slo.total.p95 is not None else "p99"
        limit = slo.total.p95 or slo.total.p99
        if limit is not None and not attempt.final and not self.stream:
            self._note(("slo", "total", which), call.late and attempt.timeout_s == limit, text)

    # --- what the client gets -----------------------------------------------------------------------------------------

    def _served(self, number: int) -> Walk:
        call, verdict = self.made[number], self.verdicts.get(number)
        self._outcome_told(accepted=verdict is None or verdict.accepted)
        return replace(
            self._walk(),
            path=self.cascade.path,
            tier=call.attempt.tier,
            seen_of_draft=call.draft.tokens if number == 1 else 0,
            first_token_s=self.now,
            total_s=max(self.now, call.last_at) if self.stream else self.now,
            may_store=self.cascade.may_store(number, clamped=self.given.clamp is not None),
            draft=call.draft,
        )

    def _failed(self, failed: Fail) -> Walk:
        self._outcome_told(accepted=False)
        refused, reason = self._refusal(failed)
        return replace(self._walk(), refused=refused, reason=reason)

    def _walk(self) -> Walk:
        called, held, now = self._called(), self.held, self.now
        return Walk(called=called, held=held, total_s=now, judged=self.judged, steps=self.steps)

    def _faults(self, *kinds: OutcomeKind) -> list[_Call]:
        """Return the calls that ended so, in that order."""
        return [call for call in self.over if call.outcome is not None and call.outcome.kind in kinds]

    def _refusal(self, failed: Fail) -> tuple[Refusal, str]:
        """Return why the client gets an error; of several faults the last one that another call may not repeat."""
        holding, too_long = self._faults("retryable", "caller_fault"), self._faults("too_long")
        faults = holding or too_long
        last = faults[-1] if faults else None
        if failed.full_s and last is None:
            return "full", f"the wait in line alone takes {_ms(failed.full_s)}"
        outcome = AttemptOutcome("retryable") if last is None or last.outcome is None else last.outcome
        if failed.timed_out:
            return "deadline", outcome.detail or "the time left is too short for any tier"
        if last is not None and (last.saturated or last.late):
            return "full" if last.saturated else "timeout", outcome.detail
        return _REFUSALS.get(outcome.kind, "failed"), outcome.detail

    def _called(self) -> tuple[str, ...]:
        return tuple([call.attempt.tier for call in self.made.values() if not call.saturated])

    def _outcome_told(self, *, accepted: bool) -> None:
        """Note whether hedges, the number of attempts and the time left had a say in what is served."""
        called = [call for call in self.made.values() if not call.saturated]
        first = next(iter(self.made.values()), None)
        hedges = self.policy.escalate.hedge is not None
        if hedges and first is not None and not any(call.attempt.role for call in self.made.values()):
            self._note(("escalate", "hedge"), False, "")
        counted = len(self.made) - len(self._faults(*NO_WORK))
        enough = counted >= self.policy.escalate.max_attempts and not accepted
        if enough or len(self.made) > 1:
            self._note(("escalate", "max_attempts"), enough, f"{len(called)} attempts were made")
        poor = [number for number, verdict in self.verdicts.items() if not verdict.accepted]
        last = self.made[poor[-1]].outcome if poor else None
        if last is not None and last.kept and not accepted and self._left().total_s < MIN_ATTEMPT_S:
            self._note(("slo", "on_miss"), True, "no time is left")
        elif poor:
            self._miss_told(self.made[max(poor)].attempt, enough=enough)

    def _miss_told(self, last: Attempt, *, enough: bool) -> None:
        """Note whether the tier above that of the last poor draft came too late."""
        stronger = self.decision.tiers
        if last.tier not in stronger[:-1]:
            return
        if enough or any(number > last.number for number in self.made):
            self._note(("slo", "on_miss"), False, "" if enough else "the next tier was in time")
            return
        above = stronger[stronger.index(last.tier) + 1]
        forecast, left = self.given.health[above].forecast, self._left()
        expected = 0.0 if forecast is None else forecast.ttft_s if self.stream else forecast.whole_s
        left_s = left.first_token_s if self.stream else left.total_s
        self._note(("slo", "on_miss"), True, f"{above} would take {_ms(expected)}, {_ms(left_s)} left")

    # --- the request's own figures ------------------------------------------------------------------------------------

    def _left(self) -> Left:
        ttft_s = self.given.ttft_s
        return Left(self.given.budget_s - self.now, None if ttft_s is None else ttft_s - self.now)

    def _latency(self, tier: str, draft: Draft, queue: TierQueue) -> tuple[float, float]:
        """Return the seconds to the first and to the last token, from when a slot is taken."""
        forecast = self.given.health[tier].forecast
        known = forecast is not None and forecast.known
        median = max(0.0, forecast.ttft_s - queue.wait_s) if known and forecast is not None else 0.0
        whole = max(0.0, forecast.whole_s - queue.wait_s) if known and forecast is not None else 0.0
        ttft_s = median if draft.ttft_s is None else draft.ttft_s
        return ttft_s, max(ttft_s, whole if draft.total_s is None else draft.total_s)

    def _racing(self) -> Racing:
        hedge, both = self.policy.escalate.hedge, asks_both(self.policy, self.given)
        if hedge is None or self.decision.steering is not None:
            return Racing(both)
        after_s, after = self.around.hedge_after_s, hedge.after
        if after_s is None:
            after_s = (lambda _: None) if isinstance(after, str) else (lambda _: after)
        return Racing(both, after_s, lambda: self.around.may_hedge)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.3g} s"


def asked_before(escalate: Escalate, basis: str) -> tuple[list[Verifier], bool]:
    """Return who is asked before the verifier that a recorded `basis` comes from, and whether it is asked itself.

    A calibrated confidence is taken for one of log-probabilities, and without evidence everybody was asked.
    """
    by = {"logprob": "logprobs", "calibrated": "logprobs"}.get(basis, basis)
    there = {"judge": escalate.judge is not None, "agreement": escalate.agreement is not None}
    asked = [kind for kind in escalate.verify if there.get(kind, True)] if escalate.when.asks_for_confidence else []
    at = next((place for place, verifier in enumerate(asked) if verifier == by), len(asked))
    return asked[:at], at < len(asked)
