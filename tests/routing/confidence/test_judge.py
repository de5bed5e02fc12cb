"""Was the answer good enough? Log-probabilities and structure, against a policy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from policies.model import UNCALIBRATED_BELOW, Escalate
from routing.confidence.judge import Evidence, assess, is_loop, mean_confidence

STRICT = Escalate.model_validate(
    {
        "when": {
            "confidence_below": 0.4,
            "uncalibrated_below": 0.62,
            "invalid": ["json", "tool_args"],
            "finish": ["length", "content_filter"],
        }
    }
)
SURE = [-0.05] * 8


@dataclass(frozen=True)
class Head:
    """A head that is as sure as it is told, and adds half of the prior; None without log-probabilities."""

    p: float | None
    version: str = "0123456789ab"
    alternatives: int = 0

    def p_right(self, evidence: Evidence, prior: float | None = None, by: str = "logprobs") -> float | None:
        return None if self.p is None or not evidence.logprobs else self.p + (prior or 0) / 2


def test_confidence_is_the_geometric_mean_of_token_probabilities() -> None:
    """exp of the mean log-probability; none without tokens."""
    assert mean_confidence([math.log(0.5), math.log(0.125)]) == pytest.approx(0.25)
    assert mean_confidence([]) is None
    assert mean_confidence(None) is None


def test_a_confident_answer_is_accepted_and_a_doubtful_one_is_not() -> None:
    """The threshold is the policy's, and the reason names both numbers."""
    assert assess(Evidence("Paris.", SURE), STRICT).accepted
    doubtful = assess(Evidence("Paris.", [-0.9] * 8), STRICT)
    assert not doubtful.accepted
    assert doubtful.reason == "confidence 0.407 < 0.62 (logprob)"


def test_the_first_verifier_with_a_word_decides() -> None:
    """In the policy's order; one that is not named is not read, whatever it says."""
    said = Evidence("Paris.", SURE, verified={"judge": 0.2, "scorer": 0.5})
    for order, basis, confidence in (
        (["judge", "logprobs"], "judge", 0.2),
        (["scorer", "judge"], "scorer", 0.5),
        (["agreement", "logprobs", "judge"], "logprob", mean_confidence(SURE)),
        (["agreement"], "none", None),
    ):
        verdict = assess(said, STRICT.model_copy(update={"verify": tuple(order)}))
        assert (verdict.basis, verdict.confidence) == (basis, confidence)


def test_the_scorers_word_is_a_probability_and_a_judges_is_not() -> None:
    """So the one is held against confidence_below, the other against uncalibrated_below until a head reads it."""
    assert assess(Evidence("Paris.", verified={"scorer": 0.5}), STRICT).threshold == 0.4
    assert assess(Evidence("Paris.", verified={"judge": 0.5}), STRICT).threshold == 0.62


def test_a_head_decides_by_the_threshold_for_probabilities() -> None:
    """What a head says is held against confidence_below, and the verdict tells its basis, threshold and version."""
    doubted = Evidence("Paris.", [-0.9] * 8)
    verdict = assess(doubted, STRICT, Head(0.45))
    assert verdict.accepted
    assert (verdict.basis, verdict.threshold, verdict.head) == ("calibrated", 0.4, "0123456789ab")
    assert verdict.reason == "confidence 0.450 >= 0.4 (calibrated by 0123456789ab)"
    assert not assess(Evidence("Paris.", SURE), STRICT, Head(0.3)).accepted
    assert assess(Evidence("Paris.", SURE), STRICT, Head(0.3), prior=0.5).accepted


def test_a_head_without_an_opinion_leaves_it_to_the_tokens() -> None:
    """Then the raw score is held against uncalibrated_below, and no head is named."""
    verdict = assess(Evidence("Paris.", [-0.4] * 8), STRICT, Head(None))
    assert verdict.accepted
    assert (verdict.basis, verdict.threshold, verdict.head) == ("logprob", 0.62, "")


def test_without_a_threshold_of_its_own_a_raw_score_meets_a_conservative_one() -> None:
    """A policy that says only confidence_below, of a backend without a head, lets little through."""
    rules = Escalate.model_validate({"when": {"confidence_below": 0.3}})
    assert not assess(Evidence("Paris.", [-0.4] * 8), rules).accepted
    assert assess(Evidence("Paris.", SURE), rules).threshold == UNCALIBRATED_BELOW
    assert assess(Evidence("Paris.", [-9.0]), Escalate()).accepted


def test_agreement_is_evidence_where_there_are_no_log_probabilities() -> None:
    """It is a raw score like theirs, and theirs comes first."""
    assert assess(Evidence("Paris.", verified={"agreement": 1.0}), STRICT).accepted
    doubted = assess(Evidence("Paris.", verified={"agreement": 0.25}), STRICT)
    assert doubted.reason == "confidence 0.250 < 0.62 (agreement)"
    assert assess(Evidence("Paris.", SURE, verified={"agreement": 0.25}), STRICT).basis == "logprob"


def test_what_breaks_its_schema_is_rejected() -> None:
    """However sure the tokens are, and the confidence is told all the same."""
    verdict = assess(Evidence("{}", SURE, misfit="not what the JSON schema says"), STRICT)
    assert (verdict.accepted, verdict.reason, verdict.basis) == (False, "not what the JSON schema says", "logprob")


def test_no_evidence_is_a_state_that_the_policy_decides() -> None:
    """Without log-probabilities an answer escalates or is accepted as the policy says, and has no confidence."""
    assert assess(Evidence("Paris."), STRICT) == assess(Evidence("Paris.", []), STRICT)
    assert not assess(Evidence("Paris."), STRICT).accepted
    lenient = STRICT.model_copy(update={"no_signal": "accept"})
    verdict = assess(Evidence("Paris."), lenient)
    assert verdict.accepted
    assert verdict.confidence is None


@pytest.mark.parametrize(
    ("fault", "evidence"),
    [
        ("empty", {"text": "  \n"}),
        ("cut off", {"text": "It was a dark and", "finish_reason": "length"}),
        ("content filter", {"text": "It was", "finish_reason": "content_filter"}),
        ("refusal", {"text": "I'm sorry, but I can't help with that."}),
        ("refusal", {"text": "No.", "refused": True}),
        ("invalid JSON", {"text": '{"a": 1', "wants_json": True}),
        ("invalid tool arguments", {"text": "", "has_other_output": True, "tool_arguments": ['{"a":']}),
        ("repetition loop", {"text": "La femme au martyre, " * 6}),
    ],
)
def test_a_structural_fault_rejects_however_sure_the_tokens_are(fault: str, evidence: dict[str, Any]) -> None:
    """What is visibly broken is not served, whatever its log-probabilities."""
    verdict = assess(Evidence(**{"logprobs": SURE, "finish_reason": "stop", **evidence}), STRICT)
    assert not verdict.accepted
    assert verdict.reason == fault


def test_the_callers_own_limit_is_no_fault() -> None:
    """An answer that stops where the client asked it to stop is whole."""
    cut = Evidence("one two", SURE, finish_reason="length", own_limit=True)
    assert assess(cut, STRICT).accepted


def test_a_tool_call_is_no_broken_json() -> None:
    """Where JSON was asked for and a tool was called instead, there is no text to be JSON."""
    called = Evidence("", SURE, wants_json=True, has_other_output=True, tool_arguments=["{}"])
    assert assess(called, STRICT).accepted


def test_first_tokens_are_not_judged_as_a_whole() -> None:
    """The beginning of a JSON answer is not yet JSON, and an empty beginning is not an empty answer."""
    assert assess(Evidence('{"a": ', SURE, wants_json=True, complete=False), STRICT).accepted
    assert assess(Evidence("", SURE, complete=False), STRICT).accepted


@pytest.mark.parametrize(
    "text",
    [
        "no " * 12,
        "start of it, " + "the same few words " * 4,
        "Il Coriobella, il Coriobella, " + "il Coriobella, " * 6,
    ],
)
def test_loops_are_seen(text: str) -> None:
    """Runs of words said over and over, at the end of the text."""
    assert is_loop(text)


@pytest.mark.parametrize(
    "text",
    [
        "very very very good",
        "1. Wash the rice. 2. Wash the beans. 3. Wash the pan. 4. Cook the rice. 5. Cook the beans. 6. Serve it all.",
        "A rose is a rose is a rose.",
        "",
    ],
)
def test_emphasis_lists_and_poetry_are_no_loops(text: str) -> None:
    """Honest repetition passes."""
    assert not is_loop(text)
