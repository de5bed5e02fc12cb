"""The rules of one attempt: what is due after what has come, and when."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.model import Escalate
from routing.attempt import (
    LOOK_EVERY,
    UNJUDGED,
    AttemptMachine,
    Commit,
    GiveUp,
    Hold,
    Judge,
    LookAgain,
    Reject,
)
from routing.cascade import Attempt, AttemptOutcome, Left
from routing.confidence.judge import Evidence

BEGAN = 100.0
RULES: dict[str, Any] = {
    "when": {"confidence_below": 0.6, "uncalibrated_below": 0.6, "repetition": True, "finish": ["length"]},
    "stream": {"hold_tokens": 8, "hold_max": "250ms"},
}
GOOD = Evidence("An answer.", verified={"agreement": 0.9}, complete=False)
POOR = Evidence("An answer.", verified={"agreement": 0.4}, complete=False)
LOOP = Evidence("again " * 40, verified={"agreement": 0.9}, complete=False)


class Come:
    """What has come of an answer."""

    def __init__(self, tokens: int = 0, *, finished: bool = False, fault: str | None = None) -> None:
        self.tokens, self.finished, self.has_choice = tokens, finished, tokens > 0 or finished
        self.has_other_output, self._fault = fault is not None, fault or ""

    def call_fault(self) -> str:
        """The call that is not allowed."""
        return self._fault


def machine(
    *,
    judged: bool = True,
    final: bool = False,
    reserved_s: float = 0.0,
    first_due: float | None = None,
    stream: bool = True,
    watches: bool = False,
    queued_s: float = 0.0,
    verify_s: float = 0.0,
    takes_over: Any = lambda _: True,
) -> AttemptMachine:
    """One that begins at BEGAN, with 4 s for a first token, 5 s for a whole answer and 10 s until the deadline."""
    attempt = Attempt(1, "a", 5.0, 4.0, judged=judged, final=final, reserved_s=reserved_s)
    escalate = Escalate.model_validate(RULES)
    options: dict[str, Any] = {"stream": stream, "watches": watches, "queued_s": queued_s, "takes_over": takes_over}
    options["verify_s"] = verify_s
    return AttemptMachine(attempt, escalate, BEGAN, BEGAN + 10.0, first_due, **options)


def held(tokens: int = 1, **options: Any) -> AttemptMachine:
    """One whose stream's first token came after one second."""
    made = machine(**options)
    made.first_token(BEGAN + 1.0)
    made.tokens(Come(tokens), BEGAN + 1.0)
    return made


def test_what_is_not_judged_goes_out_with_its_first_choice() -> None:
    """A role without a word is enough, and nothing but the time limit stops the wait for it."""
    one = machine(judged=False)
    assert one.due() == Hold(BEGAN + 4.0, 0)
    assert one.tokens(Come(), BEGAN + 3.9) == Hold(BEGAN + 4.0, 0)
    assert one.tokens(Come(finished=True), BEGAN + 3.9) == Commit(
        UNJUDGED, AttemptOutcome("accepted", UNJUDGED.reason, None, kept=True)
    )


@pytest.mark.parametrize(
    ("come", "at"),
    [
        (Come(8), 1.1),
        (Come(5, finished=True), 1.1),
        (Come(5, fault="call of a tool that was not offered"), 1.1),
        (Come(5), 1.25),
    ],
    ids=["enough tokens", "the end", "a call that cannot be", "hold_max"],
)
def test_a_hold_ends(come: Come, at: float) -> None:
    """By tokens, with the answer, by a call that no further token makes right, or by time."""
    one = held()
    assert one.tokens(Come(5), BEGAN + 1.1) == Hold(BEGAN + 1.25, 8)
    assert one.tokens(Come(5, fault=""), BEGAN + 1.1) == Hold(BEGAN + 1.25, 8), "a call that is allowed"
    assert one.tokens(come, BEGAN + at) == one.due() == Judge()


def test_a_draft_is_judged_early_enough_for_its_verifier() -> None:
    """The hold ends when it would have, and what has come by then has been verified."""
    one = held(verify_s=0.1)
    assert one.due() == Hold(BEGAN + 1.15, 8)
    assert one.hold_ends == BEGAN + 1.25
    assert one.tokens(Come(5), BEGAN + 1.15) == Judge()
    assert held(verify_s=9.0).tokens(Come(1), BEGAN + 1.0) == Judge(), "at once, where it takes longer than the hold"


@pytest.mark.parametrize(
    ("options", "takes_s", "at", "why"),
    [
        ({}, 0.1, 1.1, ""),
        ({}, 0.1, 1.2, "100 ms would be too late"),
        ({"stream": False}, 5.0, 3.0, ""),
        ({"stream": False}, 5.0, 6.0, "5000 ms would be too late"),
        ({"final": True}, 0.0, 1.0, "nothing stronger follows"),
        ({"takes_over": lambda left: left.total_s > 8.95}, 0.1, 1.0, "no stronger tier would answer in time after it"),
    ],
)
def test_a_verifier_is_asked_only_where_its_word_can_count(
    options: dict[str, Any], takes_s: float, at: float, why: str
) -> None:
    """Within the hold of a stream, before the deadline, and while another tier could still take over."""
    one = machine(**options) if options.get("stream") is False else held(**options)
    assert one.why_not_ask(takes_s, BEGAN + at) == why


def test_a_watched_draft_without_evidence_goes_on() -> None:
    """What a verifier says of the whole answer may still speak for it."""
    one = machine(stream=False, watches=True)
    assert one.tokens(Come(8), BEGAN + 1.0) == Judge()
    step = one.looked(Evidence("The capital", complete=False), BEGAN + 1.0)
    assert (type(step), step.verdict.reason) == (LookAgain, "goes on")


def test_a_call_that_cannot_be_needs_no_token_before_it() -> None:
    """Nothing is gained by a hold then."""
    assert machine().tokens(Come(0, fault="several calls"), BEGAN + 0.1) == Judge()


@pytest.mark.parametrize(
    ("first_due", "reserved_s", "until"),
    [(1.1, 0.0, 1.1), (1.2, 0.08, 1.11), (1.05, 0.5, 1.0), (9.0, 0.5, 1.25), (None, 0.0, 1.25), (None, 8.99, 1.0)],
)
def test_a_hold_leaves_the_next_tier_its_time(first_due: float | None, reserved_s: float, until: float) -> None:
    """What it needs to its first token, and 10 ms for the verdict; a tier of which nothing is known needs none."""
    one = machine(first_due=None if first_due is None else BEGAN + first_due, reserved_s=reserved_s)
    assert one.first_token(BEGAN + 1.0) == Hold(pytest.approx(BEGAN + until), 8)  # type: ignore[arg-type]
    assert one.first_token(BEGAN + 1.1) == one.due(), "the first token comes once"


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_is_given_up_at_its_time_limit(stream: bool) -> None:
    """A stream that has no token by then, and a whole answer that is not whole; time in the queue is part of it."""
    limit_s = 3.5 if stream else 4.5
    one = machine(stream=stream, queued_s=0.5)
    assert one.limit_s == limit_s
    come = Come(0 if stream else 500)
    assert isinstance(one.tokens(come, BEGAN + limit_s - 0.1), Hold)
    assert one.tokens(come, BEGAN + limit_s) == GiveUp(limit_s)
    assert one.tokens(Come(9, finished=True), BEGAN + limit_s) == GiveUp(limit_s), "it is over"


def test_a_long_queue_leaves_a_millisecond() -> None:
    """A call that got its slot is made."""
    assert machine(queued_s=60.0).limit_s == 0.001


@pytest.mark.parametrize("takes_over", [True, False])
@pytest.mark.parametrize("final", [True, False])
def test_a_poor_beginning_is_rejected_where_another_tier_takes_over(takes_over: bool, final: bool) -> None:
    """Otherwise it goes out: a doubtful answer is better than none."""
    asked: list[Left] = []
    one = held(8, final=final, first_due=BEGAN + 3.0, takes_over=lambda left: asked.append(left) or takes_over)
    step = one.ended(POOR, BEGAN + 2.0)
    assert step.verdict.reason == "confidence 0.400 < 0.6 (agreement)"
    assert isinstance(step, Reject if takes_over and not final else Commit)
    assert step.outcome == AttemptOutcome("low_confidence", step.verdict.reason, 0.4, kept=isinstance(step, Commit))
    assert asked == ([] if final else [Left(8.0, 1.0)])
    assert one.due() is step


def test_a_good_beginning_goes_out() -> None:
    """Whatever could take over."""
    step = held(8).ended(GOOD, BEGAN + 2.0)
    assert isinstance(step, Commit)
    assert step.outcome == AttemptOutcome("accepted", step.verdict.reason, 0.9, kept=True)


@pytest.mark.parametrize("evidence", [POOR, LOOP])
def test_a_poor_whole_answer_is_kept(evidence: Evidence) -> None:
    """It may be the best there is: the cascade decides by its outcome."""
    one = machine(stream=False)
    assert one.due() == Hold(BEGAN + 5.0, one.wanted) and one.wanted > 1e9
    assert one.tokens(Come(500, finished=True), BEGAN + 2.0) == Judge()
    step = one.ended(evidence, BEGAN + 2.0)
    assert isinstance(step, Commit)
    assert step.outcome.kept
    assert step.outcome.kind == ("low_confidence" if evidence is POOR else "unfit")


def test_a_watched_draft_is_looked_at_again() -> None:
    """After the hold's tokens as a stream is, then for structural faults alone, and as a whole at its end."""
    one = machine(stream=False, watches=True)
    assert one.watched and one.due() == Hold(BEGAN + 5.0, 8)
    assert one.tokens(Come(9), BEGAN + 1.0) == Judge()
    assert one.looked(GOOD, BEGAN + 1.0) == LookAgain(BEGAN + 5.0, 9 + LOOK_EVERY, one.due().verdict)  # type: ignore[union-attr]
    assert isinstance(one.tokens(Come(8 + LOOK_EVERY), BEGAN + 2.0), LookAgain)
    assert one.tokens(Come(9 + LOOK_EVERY), BEGAN + 2.0) == Judge()
    assert isinstance(one.looked(POOR, BEGAN + 2.0), LookAgain), "confidence is not looked at again"
    assert one.tokens(Come(99 + LOOK_EVERY), BEGAN + 3.0) == Judge()
    rejected = one.looked(LOOP, BEGAN + 3.0)
    assert isinstance(rejected, Reject)
    assert rejected.outcome == AttemptOutcome("unfit", "repetition loop")


def test_a_poor_watched_draft_goes_on_where_nothing_takes_over() -> None:
    """It is asked again at every look, because time passes."""
    one = machine(stream=False, watches=True, takes_over=lambda left: left.total_s < 8)
    one.tokens(Come(8), BEGAN + 1.0)
    assert isinstance(one.looked(POOR, BEGAN + 1.0), LookAgain)
    one.tokens(Come(80), BEGAN + 3.0)
    assert isinstance(one.looked(LOOP, BEGAN + 3.0), Reject)


@pytest.mark.parametrize(
    ("judged", "final", "stream"), [(False, False, False), (True, True, False), (True, False, True)]
)
def test_only_a_whole_answer_that_could_be_replaced_is_watched(judged: bool, final: bool, stream: bool) -> None:
    """A stream is held anyway."""
    assert not machine(judged=judged, final=final, stream=stream, watches=True).watched


@given(
    st.lists(st.tuples(st.integers(0, 6), st.floats(0.0, 0.2), st.booleans()), max_size=40),
    st.floats(0.0, 2.0),
    st.one_of(st.none(), st.floats(0.0, 6.0)),
    st.booleans(),
    st.sampled_from(["stream", "whole", "watched"]),
)
def test_an_attempt_is_over_by_its_time_limit_and_stays_over(
    reads: list[tuple[int, float, bool]], reserved_s: float, first_due: float | None, judged: bool, way: str
) -> None:
    """However its tokens come; what is due is what the last event returned; and no hold is longer than `hold_max`."""
    due = None if first_due is None else BEGAN + first_due
    one = machine(judged=judged, reserved_s=reserved_s, first_due=due, stream=way == "stream", watches=way == "watched")
    now, tokens, first_at = BEGAN, 0, math.inf
    for more, wait_s, finished in [*reads, (0, 9.0, False)]:
        now, tokens = now + wait_s, tokens + more
        if tokens and first_at == math.inf:
            first_at = now
            one.first_token(now)
        step = one.tokens(Come(tokens, finished=finished), now)
        assert step == one.due()
        if not isinstance(step, Hold | LookAgain):
            break
        assert now < step.until <= BEGAN + (5.0 if way != "stream" else 4.0) + (0.25 if tokens else 0.0)
        assert way != "stream" or not judged or not tokens or step.until <= first_at + 0.25
    assert isinstance(step, Judge | GiveUp if judged else Commit | GiveUp)
    assert one.tokens(Come(500, finished=True), now + 9.0) == step
