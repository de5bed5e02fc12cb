"""A short sample of `python -m tests.bench.canary`; the whole takes minutes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.bench import canary


def test_a_fall_is_found_within_what_an_oracle_needs() -> None:
    """On average within 1.3 times a fixed sample that knows the fall; the whole says 0.7 times."""
    chance = np.random.default_rng(1)
    took = np.array([canary.needed(chance, 0.02, 0.07, 0.01, 0.01, 4000) for _ in range(20)])
    assert took.min() > 0
    assert took.mean() < 1.3 * canary.oracle(0.02, 0.07, 0.01, 0.01)


def test_a_collapse_is_found_within_a_minute() -> None:
    """At 100 conversations a second, of which 1% get the candidate."""
    chance = np.random.default_rng(2)
    took = np.array([canary.needed(chance, 0.02, 0.32, 0.01, 0.01, 1000) for _ in range(40)])
    assert took.min() > 0
    assert np.quantile(took, 0.95) < 57


def test_a_harmless_candidate_is_left_alone() -> None:
    """Looked at every second of a day, conversations that fail as a whole, rates that move by the hour."""
    one = canary.day(np.random.default_rng(3), pace=0.1)
    allowed = {"goodput": 0.01, "quality": 0.02, "ttft_p95": 0.05, "cost": 0.1}
    assert canary.taken_back(one, canary.SHARE, allowed, canary.ALPHA) == ""
    dearer = replace(one, cost=np.where(one.place < canary.SHARE, 2.5, 1.0) * one.cost)
    assert canary.taken_back(dearer, canary.SHARE, allowed, canary.ALPHA) == "cost"


def test_a_judge_decides_what_a_little_feedback_leaves_open() -> None:
    """Four looks at 4,000 answers, of which 0.1% are rated: too few to say that the candidate is worse."""
    took = [
        canary.back_by_quality(np.random.default_rng(4), canary.Spoken(0.4, judged, 0.001, 4000), 4, 0.02)
        for judged in (0.2, 0.0)
    ]
    assert took[0] > 0 == took[1]


def test_later_first_tokens_are_found_sooner_with_the_percentile_of_before() -> None:
    """In fewer of the candidate's requests than where the step's first hundred have to give the percentile."""
    chance = np.random.default_rng(4)
    took = np.array([canary.late_needed(chance, 0.3, 0.5, 60, 20) for _ in range(10)])
    assert took.min() > 0
    assert took[:, 0, 0].mean() < 0.9 * took[:, 1, 0].mean()
