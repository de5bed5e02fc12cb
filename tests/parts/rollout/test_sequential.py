"""The tests behind the guards: right about variances, rarely wrong however often one looks, and quick."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from gateway.parts.rollout.sequential import (
    Sums,
    design_effect,
    log_capital,
    mixture_radius,
    most_correlated,
    ratio_difference,
    split_capital,
)

ALPHA = 0.05
Array = np.ndarray


def running(values: Array) -> Sums:
    """Return the sums after each of these values, each of a unit of its own."""
    n, s = np.arange(1.0, len(values) + 1), np.cumsum(values)
    return Sums(n, n, s, n, s, np.cumsum(values**2))


def test_sums_give_the_variance_between_units() -> None:
    """As computed from the units at the end, in whatever order their requests came."""
    chance = np.random.default_rng(1)
    units = chance.integers(0, 40, 600)
    values = (chance.random(600) < 0.1 + 0.02 * (units % 30)).astype(float)
    sums, known = Sums(), dict.fromkeys(range(40), (0.0, 0.0))
    for unit, value in zip(units, values, strict=True):
        sums.add(*known[unit], float(value))
        known[unit] = known[unit][0] + 1, known[unit][1] + value
    n, s = np.array([known[unit] for unit in range(40)]).T
    assert (sums.units, sums.n, sums.s) == (40, 600, values.sum())
    assert sums.mean == pytest.approx(values.mean())
    assert sums.variance() == pytest.approx(((s - values.mean() * n) ** 2).sum() * 40 / 39 / 600**2)


def test_requests_that_resemble_each_other_count_for_less() -> None:
    """The design effect of conversations that fail as a whole is about their length; of single requests, 1."""
    chance = np.random.default_rng(2)
    whole, apart = Sums(), Sums()
    for _ in range(3000):
        bad = float(chance.random() < 0.1)
        for turn in range(10):
            whole.add(turn, turn * bad, bad)
            apart.add(0, 0, float(chance.random() < 0.1))
    assert design_effect(whole, 1.0) == pytest.approx(10, rel=0.15)
    assert design_effect(apart, 10.0) == pytest.approx(1, rel=0.1)
    assert most_correlated(whole) == 10
    nothing = Sums()
    assert design_effect(nothing, 7.0) == 7


@pytest.mark.parametrize("difference", [0.0, 0.01])
def test_a_candidate_at_the_border_is_rarely_refuted(difference: float) -> None:
    """Looked at after every fourth of 5,000 requests, no more often than alpha; `tests.bench.canary` has the whole."""
    chance = np.random.default_rng(3)
    wrong = 0
    for _ in range(80):
        control = running((chance.random(15_000) < 0.02).astype(float)).take(np.arange(11, 15_000, 12))
        candidate = running((chance.random(5_000) < 0.02 + difference).astype(float)).take(np.arange(3, 5_000, 4))
        wrong += bool((log_capital(candidate, control, difference, worse=True) > -math.log(ALPHA)).any())
    assert wrong <= 9  # 4 expected at most; more than 9 in 1% of cases


def test_a_fall_is_found_sooner_than_by_a_test_that_knows_it() -> None:
    """Goodput 98% to 93% where 1% is allowed, against a fixed sample for that very fall with 5% of each error."""
    chance = np.random.default_rng(4)
    z = NormalDist().inv_cdf(1 - ALPHA)
    oracle = ((z * math.sqrt(0.03 * 0.97) + z * math.sqrt(0.07 * 0.93)) / 0.04) ** 2
    took = []
    for _ in range(60):
        candidate = running((chance.random(4_000) < 0.07).astype(float))
        control = running((chance.random(40_000) < 0.02).astype(float)).take(np.arange(9, 40_000, 10))
        took.append(np.argmax(log_capital(candidate, control, 0.01, worse=True) > -math.log(ALPHA)) + 1)
    assert np.mean(took) < 1.3 * oracle  # the control here is ten times the candidate, not infinite
    assert min(took) > 0


def test_within_is_not_said_of_what_is_worse() -> None:
    """A candidate as good as the control is shown to be within 1%; one that is 1.5% worse is not."""
    chance = np.random.default_rng(5)
    control = running((chance.random(300_000) < 0.02).astype(float)).take(np.arange(29, 300_000, 30))
    for rate, within in ((0.02, True), (0.035, False)):
        candidate = running((chance.random(10_000) < rate).astype(float))
        logs = log_capital(candidate, control, 0.01, worse=False)
        assert bool((logs > -math.log(ALPHA)).any()) == within


def test_a_mean_without_a_bound_stays_within_its_radius() -> None:
    """Costs that differ a hundredfold: the difference is outside its radius at some time in few of 100 runs."""
    chance = np.random.default_rng(6)
    outside = 0
    for _ in range(100):
        candidate, control = (
            running(chance.lognormal(0, 1.2, size)).take(np.arange(every - 1, size, every))
            for size, every in ((3000, 1), (30_000, 10))
        )
        estimate, variance = ratio_difference(candidate, control, 1.0)
        outside += bool((np.abs(estimate) > mixture_radius(variance, 0.3, ALPHA))[30:].any())
    assert outside <= 11


def test_a_split_is_even_until_it_is_not() -> None:
    """5% stays 5%; 4% is noticed within some thousand units."""
    chance = np.random.default_rng(7)
    bar = -math.log(0.001)
    n = np.arange(10.0, 100_001, 10)
    for share, uneven in ((0.05, False), (0.04, True)):
        candidate = np.cumsum(chance.random(100_000) < share)[9::10]
        found = split_capital(candidate, n - candidate, 0.05) > bar
        assert bool(found.any()) == uneven
    assert 100 < np.argmax(found) < 4000
