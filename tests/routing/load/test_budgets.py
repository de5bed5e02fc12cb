"""Budgets for retries and for extra spend."""

from __future__ import annotations

import random

import pytest

from routing.load.limits import RetryBudget, SpendBudget


def test_a_retry_towards_a_healthy_backend_is_free() -> None:
    """It will most likely answer, so it multiplies nothing."""
    budget = RetryBudget()
    assert all(budget.may_retry(True, i / 1000) for i in range(1000))


def test_three_retries_in_ten_seconds_are_allowed_however_few_requests_there_are() -> None:
    """A service with one request a second must be able to retry at all."""
    budget = RetryBudget()
    budget.request(100)
    assert [budget.may_retry(False, 100) for _ in range(4)] == [True, True, True, False]
    assert not budget.may_retry(False, 109.9)
    assert budget.may_retry(False, 110.1)


def test_retries_stay_under_a_tenth_of_the_requests_of_the_last_ten_seconds() -> None:
    """With 500 requests in the window, the 51st is refused."""
    budget = RetryBudget()
    for i in range(500):
        budget.request(100 + i / 100)
    allowed = 0
    while budget.may_retry(False, 105):
        allowed += 1
        budget.retry_failed(105)
    assert allowed == 50


def test_requests_of_more_than_ten_seconds_ago_allow_nothing() -> None:
    """A busy minute does not pay for retries after it."""
    budget = RetryBudget()
    for i in range(1000):
        budget.request(i / 100)
    assert sum(budget.may_retry(False, 25) for _ in range(100)) == 3


def test_those_on_their_way_count_before_they_fail() -> None:
    """At the start of an outage a hundred calls fail at once; only the budget's worth of them retries."""
    budget = RetryBudget()
    for _ in range(100):
        budget.request(5)
    assert sum(budget.may_retry(False, 5) for _ in range(100)) == 10


def test_a_free_retry_that_fails_counts() -> None:
    """That a backend looked healthy does not make its failures cheaper."""
    budget = RetryBudget()
    for _ in range(3):
        budget.retry_failed(1)
    assert not budget.may_retry(False, 1)


def test_a_retry_that_succeeds_is_given_back() -> None:
    """Retries that work are not what the budget is there for."""
    budget = RetryBudget()
    for _ in range(20):
        assert budget.may_retry(False, 1)
        budget.retry_succeeded(1)


@pytest.mark.parametrize("seed", range(5))
def test_in_a_full_outage_attempts_stay_within_1_1_per_request(seed: int) -> None:
    """Every call fails after up to two seconds, every failed request asks for another; three retries are the floor."""
    chance, budget = random.Random(seed), RetryBudget()
    events: list[tuple[float, bool]] = [(i / 200, False) for i in range(200 * 60)]
    attempts, failing = len(events), []
    for now, _ in events:
        budget.request(now)
        failing.append((now + chance.uniform(0, 2), False))
    pending = sorted(failing)
    while pending:
        now, was_retry = pending.pop(0)
        if was_retry:
            budget.retry_failed(now)
        elif budget.may_retry(False, now):
            attempts += 1
            pending.append((now + chance.uniform(0, 2), True))
            pending.sort()
    assert attempts <= 1.11 * len(events)


def test_extra_spend_stays_within_its_share() -> None:
    """Whatever asks, and however often, 3% of the cost of the requests is what goes out, but for the last call."""
    chance, budget = random.Random(1), SpendBudget(0.03)
    cost = extra = 0.0
    for _ in range(10_000):
        spent = chance.expovariate(1000)
        budget.earn(spent)
        cost += spent
        if budget.may_spend():
            hedge = chance.expovariate(1000)
            budget.spend(hedge)
            extra += hedge
    assert 0.029 * cost <= extra <= 0.03 * cost + 0.02


def test_a_negative_balance_waits_until_it_is_earned_back() -> None:
    """One dear call takes many requests to pay for."""
    budget = SpendBudget(0.1)
    budget.spend(1.0)
    assert not budget.may_spend()
    for _ in range(11):
        budget.earn(1.0)
    assert budget.may_spend()


def test_a_quiet_night_pays_for_no_storm() -> None:
    """The bucket holds what a thousand requests earn."""
    budget = SpendBudget(0.03)
    for _ in range(100_000):
        budget.earn(0.01)
    assert budget.balance_usd == pytest.approx(0.3)


def test_where_calls_cost_nothing_nothing_is_capped() -> None:
    """Two local tiers may race as they like."""
    budget = SpendBudget(0.03)
    for _ in range(100):
        budget.earn(0.0)
        assert budget.may_spend()
        budget.spend(0.0)


def test_no_share_is_no_extra_call() -> None:
    """Not even the first one."""
    assert not SpendBudget(0.0).may_spend()
