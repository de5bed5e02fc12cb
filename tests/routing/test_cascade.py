"""The cascade, driven by hand: what it tries, in which order, and what goes out."""

from __future__ import annotations

from typing import Any

import pytest

from policies.model import Policy
from routing.cascade import Attempt, AttemptOutcome, Cascade, Fail, Left, Racing, Serve, Wait
from routing.decide import Decision, TierHealth
from routing.load.latency import Forecast

ACCEPTED = AttemptOutcome("accepted", kept=True)
RETRYABLE = AttemptOutcome("retryable", "upstream_unreachable")


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


def racing(run_policy: dict[str, Any] | None = None, *, endpoints: int = 1, **more: Any) -> Cascade:
    """A cascade of two tiers, beside whose first attempt something may run."""
    health = {name: TierHealth(name, frozenset(), endpoints) for name in ("local", "hosted")}
    rules = policy(**(run_policy or {}))
    return Cascade(Decision(("local", "hosted"), (), "test"), rules, health, stream=True, racing=Racing(**more))


def forecasting(
    forecasts: dict[str, Forecast], *tiers: str, stream: bool = True, fallbacks: tuple[str, ...] = (), **changes: Any
) -> Cascade:
    """A cascade that knows how long its tiers would take."""
    names = (*tiers, *fallbacks)
    health = {name: TierHealth(name, frozenset(), 1, forecast=forecasts.get(name)) for name in names}
    return Cascade(Decision(tiers, fallbacks, "test"), policy(**changes), health, stream=stream)


def forecast(ttft_s: float, whole_s: float = 0.0, least_s: float = 0.0) -> Forecast:
    return Forecast(ttft_s, 2 * ttft_s, whole_s, 0.0, known=True, least_s=least_s)


def attempt(run: Cascade, budget_s: float = 10.0) -> Attempt:
    step = run.next(Left(budget_s))
    assert isinstance(step, Attempt)
    return step


def low(confidence: float, *, kept: bool = True) -> AttemptOutcome:
    return AttemptOutcome("low_confidence", "confidence", confidence, kept=kept)


def test_an_accepted_answer_goes_out() -> None:
    """The first tier's good answer is served, by the direct path."""
    run = cascade("local", "hosted")
    first = attempt(run)
    assert (first.tier, first.judged, first.final) == ("local", True, False)
    run.observe(ACCEPTED)
    assert run.next(Left(5)) == Serve(1)
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
    assert run.next(Left(5)) == Serve(2)
    assert run.path == "escalated"


def test_the_best_draft_is_served_when_the_stronger_tier_fails() -> None:
    """With a whole draft in hand, an outage above costs quality and not the answer."""
    run = cascade("local", "hosted")
    attempt(run)
    run.observe(low(0.3))
    attempt(run)
    run.observe(RETRYABLE)
    assert run.next(Left(5)) == Serve(1)
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
    assert run.next(Left(5)) == Serve(3)
    assert run.path == "degraded"


def test_a_failed_tier_is_followed_by_the_next() -> None:
    """A tier that fails is passed over; the answer says that it is a fallback."""
    run = cascade("local", "hosted")
    attempt(run)
    run.observe(RETRYABLE)
    assert attempt(run).tier == "hosted"
    run.observe(ACCEPTED)
    assert run.next(Left(5)) == Serve(2)
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
    assert run.next(Left(5)) == Serve(2)
    assert run.path == "fallback"


def test_nothing_is_tried_after_the_callers_own_fault() -> None:
    """What the backend refuses as the caller's mistake is not asked of another tier."""
    run = cascade("local", "hosted")
    attempt(run)
    fault = AttemptOutcome("caller_fault", "status 400")
    run.observe(fault)
    assert run.next(Left(5)) == Fail()


def test_three_attempts_are_the_most() -> None:
    """However many tiers and endpoints there are, the fourth call is never made."""
    run = cascade("local", "hosted", endpoints=9)
    for _ in range(3):
        attempt(run)
        run.observe(RETRYABLE)
    assert run.next(Left(5)) == Fail()


def test_no_attempt_starts_without_budget() -> None:
    """Past the deadline the best answer in hand goes out, or the request has timed out."""
    run = cascade("local", "hosted")
    assert run.next(Left(0.0)) == Fail(timed_out=True)
    run = cascade("local", "hosted")
    attempt(run)
    run.observe(low(0.3))
    assert run.next(Left(0.0)) == Serve(1)


def test_on_miss_fail_serves_no_draft_after_the_deadline() -> None:
    """A surface that would rather fail than serve a poor answer fails."""
    run = cascade("local", "hosted", slo={"deadline": "10s", "on_miss": "fail"})
    attempt(run)
    run.observe(low(0.3))
    assert run.next(Left(0.0)) == Fail(timed_out=True)


def test_a_judged_attempt_leaves_budget_for_the_tier_above() -> None:
    """The first tier gets half of what is left, and what there is for a first token; the last one gets it all."""
    run = cascade("local", "hosted")
    first = run.next(Left(10.0, 0.9))
    assert isinstance(first, Attempt)
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
    assert run.next(Left(5)) == Serve(2)


def test_an_unconfigured_wanted_tier_is_said() -> None:
    """When the tier that was wanted cannot answer, the path says degraded whoever does."""
    run = cascade("local", stand_in="hosted is unconfigured", weaker=True)
    attempt(run)
    run.observe(ACCEPTED)
    run.next(Left(5))
    assert run.path == "degraded"


def test_a_stronger_stand_in_is_a_fallback() -> None:
    """When the tier that was wanted rests and a stronger one answers, nothing is lost but money: not degraded."""
    run = cascade("hosted", stand_in="local is failing")
    attempt(run)
    run.observe(ACCEPTED)
    run.next(Left(5))
    assert run.path == "fallback"


def test_another_endpoint_of_the_tier_is_no_fallback() -> None:
    """A retry within the tier gives what the policy wanted."""
    run = cascade("local", "hosted", endpoints=2)
    attempt(run)
    run.observe(RETRYABLE)
    attempt(run)
    run.observe(ACCEPTED)
    run.next(Left(5))
    assert run.path == "direct"


@pytest.mark.parametrize("kept", [True, False])
def test_a_draft_in_hand_outlives_the_next_tiers_refusal(kept: bool) -> None:
    """A field that only the stronger tier refuses must not turn an answer into an error: the draft goes out."""
    run = cascade("local", "hosted")
    attempt(run)
    run.observe(low(0.3, kept=kept))
    attempt(run)
    run.observe(AttemptOutcome("caller_fault", "status 400"))
    if kept:
        assert run.next(Left(5)) == Serve(1)
    else:
        assert attempt(run).tier == "local"
        run.observe(ACCEPTED)
        assert run.next(Left(5)) == Serve(3)
    assert run.path == "degraded"


def test_an_answer_that_would_have_escalated_says_so() -> None:
    """With the stronger tier out of reach a poor answer still goes out, judged and marked as degraded."""
    run = cascade("local", missing=("hosted",))
    only = attempt(run)
    assert (only.judged, only.final) == (True, True)
    run.observe(low(0.3))
    assert run.next(Left(5)) == Serve(1)
    assert run.path == "degraded"


def test_a_good_answer_is_direct_even_with_the_stronger_tier_missing() -> None:
    """Nothing was lost, so nothing is said."""
    run = cascade("local", missing=("hosted",))
    attempt(run)
    run.observe(ACCEPTED)
    assert run.next(Left(5)) == Serve(1)
    assert run.path == "direct"


def test_a_draft_has_no_longer_than_nearly_all_answers() -> None:
    """With a p95 for whole answers, a judged attempt is given up after it, and the next tier takes over."""
    run = cascade("local", "hosted", slo={"deadline": "60s", "total": {"p95": "6s", "p99": "45s"}})
    assert attempt(run, 60.0).timeout_s == pytest.approx(6.0)
    run.observe(RETRYABLE)
    assert attempt(run, 54.0).timeout_s == pytest.approx(54.0)


def test_the_next_tiers_first_token_is_kept_free_of_the_drafts() -> None:
    """Of the time to the first token the draft gets what the tier above is not expected to need."""
    run = forecasting({"hosted": forecast(0.5)}, "local", "hosted")
    first = run.next(Left(10.0, 0.9))
    assert isinstance(first, Attempt)
    assert first.ttft_timeout_s == pytest.approx(0.4)


@pytest.mark.parametrize("on_miss", ["serve_best", "fail"])
def test_a_tier_that_would_come_too_late_does_not_take_over(on_miss: str) -> None:
    """The draft in hand goes out, as degraded, or the request fails, as its surface says."""
    run = forecasting({"hosted": forecast(0.5)}, "local", "hosted", slo={"deadline": "10s", "on_miss": on_miss})
    run.next(Left(10.0, 0.9))
    assert run.takes_over(Left(9.4, 0.6))
    assert not run.takes_over(Left(9.2, 0.4))
    run.observe(low(0.3))
    assert run.next(Left(9.2, 0.4)) == (Serve(1) if on_miss == "serve_best" else Fail(timed_out=True))
    assert on_miss == "fail" or run.path == "degraded"


def test_a_whole_answer_is_held_against_the_deadline() -> None:
    """For JSON it is the expected time of the whole answer that must fit."""
    run = forecasting({"hosted": forecast(0.1, whole_s=3.0)}, "local", "hosted", stream=False)
    attempt(run)
    run.observe(low(0.3))
    assert attempt(run, 4.0).tier == "hosted"
    run = forecasting({"hosted": forecast(0.1, whole_s=3.0)}, "local", "hosted", stream=False)
    attempt(run)
    run.observe(low(0.3))
    assert run.next(Left(2.0)) == Serve(1)


def test_no_call_begins_that_cannot_be_in_time() -> None:
    """A tier that has hardly ever answered so fast is not asked: another is, or the request fails at once."""
    slow = {"hosted": forecast(1.0, least_s=0.8)}
    run = forecasting(slow, "hosted", fallbacks=("local",))
    assert attempt(run, 0.5).tier == "local"
    assert forecasting(slow, "hosted").next(Left(0.5)) == Fail(timed_out=True)
    assert attempt(forecasting(slow, "hosted"), 0.9).tier == "hosted"


def test_nothing_runs_beside_an_attempt_unless_it_may() -> None:
    """Without hedging or speculation the driver need not watch the clock."""
    assert attempt(cascade("local", "hosted")).alone
    assert attempt(racing(after_s=lambda tier: None)).alone
    assert not attempt(racing(after_s=lambda tier: 0.1)).alone


def test_a_slow_first_tier_is_hedged_by_the_next() -> None:
    """Once its time is over the next tier is asked too; the first answer that is good enough goes out."""
    run = racing(after_s={"local": 0.2}.get)
    attempt(run)
    assert run.next(Left(9.9), waited_s=0.05) == Wait(pytest.approx(0.15))
    hedge = run.next(Left(9.8), waited_s=0.2)
    assert isinstance(hedge, Attempt)
    assert (hedge.number, hedge.tier, hedge.role, hedge.retry) == (2, "hosted", "hedge", False)
    assert run.next(Left(9.7), waited_s=0.3) == Wait()
    run.observe(ACCEPTED, 2)
    assert run.next(Left(9.6), waited_s=0.4) == Serve(2)
    assert run.path == "hedged"


def test_the_first_attempt_may_still_win() -> None:
    """A hedge that was not needed leaves no mark on the path."""
    run = racing(after_s=lambda tier: 0.2)
    attempt(run)
    run.next(Left(9.8), waited_s=0.2)
    run.observe(ACCEPTED, 1)
    assert run.next(Left(9.8)) == Serve(1)
    assert run.path == "direct"


def test_another_endpoint_of_the_tier_hedges_first() -> None:
    """It is as good and no dearer than the next tier."""
    run = racing(endpoints=2, after_s=lambda tier: 0.2)
    attempt(run)
    hedge = run.next(Left(9.8), waited_s=0.2)
    assert isinstance(hedge, Attempt)
    assert (hedge.tier, hedge.role) == ("local", "hedge")


def test_no_hedge_without_money() -> None:
    """The surface's share is asked for at the moment, and its time comes once."""
    run = racing(after_s=lambda tier: 0.2, may_spend=lambda: False)
    attempt(run)
    assert run.next(Left(9.8), waited_s=0.2) == Wait()
    assert run.next(Left(9.7), waited_s=0.3) == Wait()


def test_a_failed_hedge_changes_nothing() -> None:
    """The first attempt goes on, and its answer is as direct as it would have been."""
    run = racing(after_s=lambda tier: 0.2)
    attempt(run)
    run.next(Left(9.8), waited_s=0.2)
    run.observe(RETRYABLE, 2)
    assert run.next(Left(9.7), waited_s=0.3) == Wait()
    run.observe(ACCEPTED, 1)
    assert run.next(Left(9.6)) == Serve(1)
    assert run.path == "direct"


def test_a_hedge_carries_on_when_the_first_attempt_fails() -> None:
    """Nothing new is begun: the next tier is already at it."""
    run = racing(after_s=lambda tier: 0.2)
    attempt(run)
    run.next(Left(9.8), waited_s=0.2)
    run.observe(RETRYABLE, 1)
    assert run.next(Left(9.7), waited_s=0.3) == Wait()
    run.observe(ACCEPTED, 2)
    assert run.next(Left(9.6)) == Serve(2)


def test_speculation_asks_both_tiers_at_once() -> None:
    """A poor draft then costs no time: the stronger tier has been at it from the start."""
    run = racing(both=True)
    attempt(run)
    second = run.next(Left(10.0))
    assert isinstance(second, Attempt)
    assert (second.tier, second.role, second.final) == ("hosted", "speculative", True)
    assert run.takes_over(Left(9.9))
    run.observe(low(0.3, kept=False), 1)
    assert run.next(Left(9.9)) == Wait()
    run.observe(ACCEPTED, 2)
    assert run.next(Left(9.8)) == Serve(2)
    assert run.path == "escalated"


def test_a_retry_is_known_as_one() -> None:
    """An attempt after a failure is a retry, which a budget may refuse; one after a poor draft is not."""
    run = cascade("local", "hosted")
    assert not attempt(run).retry
    run.observe(RETRYABLE)
    assert attempt(run).retry
    run = cascade("local", "hosted")
    attempt(run)
    run.observe(low(0.3))
    assert not attempt(run).retry


def test_a_first_token_that_is_held_ends_the_wait_for_a_hedge() -> None:
    """The backend has shown that it is not slow; what its draft is worth is another question."""
    run = racing(after_s=lambda tier: 0.2)
    attempt(run)
    run.began()
    assert run.next(Left(9.8), waited_s=0.3) == Wait()


def test_a_line_that_takes_too_long_is_told_from_a_backend_that_does() -> None:
    """Without its line the tier would be in time: that is overload, and says how long it would take."""
    full = Forecast(5.1, 5.2, 5.1, queue_s=5.0, known=True, least_s=5.05)
    assert forecasting({"hosted": full}, "hosted").next(Left(2.0)) == Fail(full_s=5.0)
    slow = Forecast(5.1, 5.2, 5.1, queue_s=1.0, known=True, least_s=5.05)
    assert forecasting({"hosted": slow}, "hosted").next(Left(2.0)) == Fail(timed_out=True)


TOO_LONG = AttemptOutcome("too_long", "status 400")


def test_a_tier_that_cannot_hold_the_request_is_left() -> None:
    """The next one takes over, as an escalation, whatever else the tier's endpoints are; nothing is left after all."""
    run = cascade("local", "hosted", endpoints=3)
    attempt(run)
    run.observe(TOO_LONG)
    second = attempt(run)
    assert (second.tier, second.retry) == ("hosted", False)
    run.observe(ACCEPTED)
    assert (run.next(Left(5)), run.path) == (Serve(2), "escalated")
    run = cascade("local", "hosted")
    for _ in range(2):
        attempt(run)
        run.observe(TOO_LONG)
    assert run.next(Left(5)) == Fail()


def test_a_request_that_was_too_long_has_used_up_no_attempt() -> None:
    """A policy of one attempt still gets its one answer."""
    run = cascade("local", "middle", "hosted", escalate={"max_attempts": 1})
    for tier in ("local", "middle"):
        assert attempt(run).tier == tier
        run.observe(TOO_LONG)
    assert attempt(run).tier == "hosted"
    run.observe(RETRYABLE)
    assert run.next(Left(5)) == Fail()


def test_a_draft_in_hand_goes_out_where_the_next_tier_cannot_hold_it() -> None:
    """The best answer so far is served, as degraded; a weaker tier that takes over is a fallback."""
    run = cascade("local", "hosted")
    attempt(run)
    run.observe(low(0.4))
    attempt(run)
    run.observe(TOO_LONG)
    assert (run.next(Left(5)), run.path) == (Serve(1), "degraded")
    run = cascade("hosted", fallbacks=("local",))
    attempt(run)
    run.observe(TOO_LONG)
    assert attempt(run).tier == "local"
    run.observe(ACCEPTED)
    assert (run.next(Left(5)), run.path) == (Serve(2), "fallback")
