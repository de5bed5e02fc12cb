"""The cascade, driven by hand: what it tries, in which order, and what goes out."""

from __future__ import annotations

from typing import Any

import pytest

from policies.model import Policy
from routing.cascade import Attempt, Cascade, Fail, Outcome, Serve
from routing.decide import Decision, TierHealth

ACCEPTED = Outcome("accepted", kept=True)
RETRYABLE = Outcome("retryable", "upstream_unreachable")


def policy(**changes: Any) -> Policy:
    rules: dict[str, Any] = {
        "surface": "chat",
        "version": "0123456789",
        "slo": {"deadline": "10s", "ttft": {"p99": "900ms"}},
        "tiers": ["local", "hosted"],
        "route": {"start": {"local": "otherwise"}},
    }
    return Policy.model_validate({**rules, **changes})


def cascade(
    *tiers: str,
    fallbacks: tuple[str, ...] = (),
    stand_in: str = "",
    weaker: bool = False,
    missing: tuple[str, ...] = (),
    endpoints: int = 1,
    **changes: Any,
) -> Cascade:
    names = (*tiers, *fallbacks)
    health = {name: TierHealth(name, frozenset(), endpoints) for name in names}
    decision = Decision(tiers, fallbacks, "test", stand_in, weaker, missing)
    return Cascade(decision, policy(**changes), health)


def attempt(run: Cascade, budget_s: float = 10.0) -> Attempt:
    step = run.next(budget_s)
    assert isinstance(step, Attempt)
    return step


def low(confidence: float, *, kept: bool = True) -> Outcome:
    return Outcome("low_confidence", "confidence", confidence, kept=kept)


def test_an_accepted_answer_goes_out() -> None:
    """The first tier's good answer is served, by the direct path."""
    run = cascade("local", "hosted")
    first = attempt(run)
    assert (first.tier, first.judged, first.final) == ("local", True, False)
    run.observe(ACCEPTED)
    assert run.next(5) == Serve(1)
    assert run.path == "direct"


def test_an_attempt_carries_what_the_classifier_thought_of_its_tier() -> None:
    """The prior of the tier that is asked; none where the classifier says nothing of it."""
    decision = Decision(("local", "hosted"), (), "test")
    health = {name: TierHealth(name, frozenset(), 1) for name in ("local", "hosted")}
    run = Cascade(decision, policy(), health, priors={"local": 0.3})
    assert attempt(run).prior == 0.3
    run.observe(low(0.3))
    assert attempt(run).prior is None


def test_low_confidence_escalates_to_the_next_tier() -> None:
    """A draft that is not good enough hands over to the stronger tier, whose answer is not judged."""
    run = cascade("local", "hosted")
    assert not attempt(run).final
    run.observe(low(0.3))
    second = attempt(run)
    assert (second.tier, second.judged, second.final) == ("hosted", False, True)
    run.observe(ACCEPTED)
    assert run.next(5) == Serve(2)
    assert run.path == "escalated"


def test_the_best_draft_is_served_when_the_stronger_tier_fails() -> None:
    """With a whole draft in hand, an outage above costs quality and not the answer."""
    run = cascade("local", "hosted")
    attempt(run)
    run.observe(low(0.3))
    attempt(run)
    run.observe(RETRYABLE)
    assert run.next(5) == Serve(1)
    assert run.path == "degraded"


def test_a_dropped_stream_draft_is_asked_for_again() -> None:
    """A rejected stream is gone, so when the stronger tier fails its tier answers once more, unjudged."""
    run = cascade("local", "hosted")
    attempt(run)
    run.observe(low(0.3, kept=False))
    attempt(run)
    run.observe(RETRYABLE)
    third = attempt(run)
    assert (third.tier, third.final) == ("local", True)
    run.observe(ACCEPTED)
    assert run.next(5) == Serve(3)
    assert run.path == "degraded"


def test_a_failed_tier_is_followed_by_the_next() -> None:
    """A tier that fails is passed over; the answer says that it is a fallback."""
    run = cascade("local", "hosted")
    attempt(run)
    run.observe(RETRYABLE)
    assert attempt(run).tier == "hosted"
    run.observe(ACCEPTED)
    assert run.next(5) == Serve(2)
    assert run.path == "fallback"


def test_every_endpoint_of_a_tier_is_tried_before_the_next_tier() -> None:
    """Within a tier another endpoint comes first."""
    run = cascade("local", "hosted", endpoints=2)
    seen = []
    for _ in range(3):
        seen.append(attempt(run).tier)
        run.observe(RETRYABLE)
    assert seen == ["local", "local", "hosted"]


def test_weaker_tiers_answer_when_all_stronger_ones_fail() -> None:
    """A hard question whose tier is down is still answered, and says by whom."""
    run = cascade("hosted", fallbacks=("local",))
    attempt(run)
    run.observe(RETRYABLE)
    assert attempt(run).tier == "local"
    run.observe(ACCEPTED)
    assert run.next(5) == Serve(2)
    assert run.path == "fallback"


def test_nothing_is_tried_after_the_callers_own_fault() -> None:
    """What the backend refuses as the caller's mistake is not asked of another tier."""
    run = cascade("local", "hosted")
    attempt(run)
    fault = Outcome("caller_fault", "status 400")
    run.observe(fault)
    assert run.next(5) == Fail()


def test_three_attempts_are_the_most() -> None:
    """However many tiers and endpoints there are, the fourth call is never made."""
    run = cascade("local", "hosted", endpoints=9)
    for _ in range(3):
        attempt(run)
        run.observe(RETRYABLE)
    assert run.next(5) == Fail()


def test_no_attempt_starts_without_budget() -> None:
    """Past the deadline the best answer in hand goes out, or the request has timed out."""
    run = cascade("local", "hosted")
    assert run.next(0.0) == Fail(timed_out=True)
    run = cascade("local", "hosted")
    attempt(run)
    run.observe(low(0.3))
    assert run.next(0.0) == Serve(1)


def test_on_miss_fail_serves_no_draft_after_the_deadline() -> None:
    """A surface that would rather fail than serve a poor answer fails."""
    run = cascade("local", "hosted", slo={"deadline": "10s", "on_miss": "fail"})
    attempt(run)
    run.observe(low(0.3))
    assert run.next(0.0) == Fail(timed_out=True)


def test_a_judged_attempt_leaves_budget_for_the_tier_above() -> None:
    """The first tier gets half of what is left, and the surface's own p99 for its first token; the last gets it all."""
    run = cascade("local", "hosted")
    first = attempt(run, 10.0)
    assert first.timeout_s == pytest.approx(5.0)
    assert first.ttft_timeout_s == pytest.approx(0.9)
    run.observe(low(0.1))
    last = attempt(run, 6.0)
    assert (last.timeout_s, last.ttft_timeout_s) == (6.0, 6.0)


def test_of_several_drafts_the_most_confident_goes_out() -> None:
    """Three tiers, three doubtful drafts: the best of them is served."""
    tiers = {"tiers": ["a", "b", "c"], "route": {"start": {"a": "otherwise"}}}
    run = cascade("a", "b", "c", **tiers)
    for outcome in (low(0.4), low(0.5), RETRYABLE):
        attempt(run)
        run.observe(outcome)
    assert run.next(5) == Serve(2)


def test_an_unconfigured_wanted_tier_is_said() -> None:
    """When the tier that was wanted cannot answer, the path says degraded whoever does."""
    run = cascade("local", stand_in="hosted is unconfigured", weaker=True)
    attempt(run)
    run.observe(ACCEPTED)
    run.next(5)
    assert run.path == "degraded"


def test_a_stronger_stand_in_is_a_fallback() -> None:
    """When the tier that was wanted rests and a stronger one answers, nothing is lost but money: not degraded."""
    run = cascade("hosted", stand_in="local is failing")
    attempt(run)
    run.observe(ACCEPTED)
    run.next(5)
    assert run.path == "fallback"


def test_another_endpoint_of_the_tier_is_no_fallback() -> None:
    """A retry within the tier gives what the policy wanted."""
    run = cascade("local", "hosted", endpoints=2)
    attempt(run)
    run.observe(RETRYABLE)
    attempt(run)
    run.observe(ACCEPTED)
    run.next(5)
    assert run.path == "direct"


@pytest.mark.parametrize("kept", [True, False])
def test_a_draft_in_hand_outlives_the_next_tiers_refusal(kept: bool) -> None:
    """A field that only the stronger tier refuses must not turn an answer into an error: the draft goes out."""
    run = cascade("local", "hosted")
    attempt(run)
    run.observe(low(0.3, kept=kept))
    attempt(run)
    run.observe(Outcome("caller_fault", "status 400"))
    if kept:
        assert run.next(5) == Serve(1)
    else:
        assert attempt(run).tier == "local"
        run.observe(ACCEPTED)
        assert run.next(5) == Serve(3)
    assert run.path == "degraded"


def test_an_answer_that_would_have_escalated_says_so() -> None:
    """With the stronger tier out of reach a poor answer still goes out, judged and marked as degraded."""
    run = cascade("local", missing=("hosted",))
    only = attempt(run)
    assert (only.judged, only.final) == (True, True)
    run.observe(low(0.3))
    assert run.next(5) == Serve(1)
    assert run.path == "degraded"


def test_a_good_answer_is_direct_even_with_the_stronger_tier_missing() -> None:
    """Nothing was lost, so nothing is said."""
    run = cascade("local", missing=("hosted",))
    attempt(run)
    run.observe(ACCEPTED)
    assert run.next(5) == Serve(1)
    assert run.path == "direct"


def test_a_draft_has_no_longer_than_nearly_all_answers() -> None:
    """With a p95 for whole answers, a judged attempt is given up after it, and the next tier takes over."""
    run = cascade("local", "hosted", slo={"deadline": "60s", "total": {"p95": "6s", "p99": "45s"}})
    assert attempt(run, 60.0).timeout_s == pytest.approx(6.0)
    run.observe(RETRYABLE)
    assert attempt(run, 54.0).timeout_s == pytest.approx(54.0)
