"""The choice of thresholds: that its claims hold as often as they say, and what it does when none can."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from gateway.parts.fit.calibration.cases import THRESHOLDS, Cases, known_starts
from gateway.parts.fit.calibration.check import check
from gateway.parts.fit.calibration.choose import (
    Setting,
    Target,
    TargetKind,
    choose,
    choose_setting,
    cost_of,
    keeps,
    quality_of,
)
from gateway.parts.fit.curves import Flags

DELTA = 0.1
DRAWS = 200
STARTS = (0.0, 0.3, 0.6)


def world(n: int, seed: int, **changes: Any) -> Cases:
    """Traffic whose small model knows what it knows: sure answers are mostly right, the large one is right in 90%.

    Difficulty and confidence tell different things, so that a start rule has something to add.
    """
    draw = np.random.default_rng(seed)
    ease, sure = draw.random(n), draw.random(n)
    right = draw.random(n) < 0.15 + 0.3 * ease + 0.5 * sure**1.5
    known = {
        "small": right.astype(float),
        "large": (draw.random(n) < 0.9).astype(float),
        "confidence": sure,
        "unfit": np.zeros(n, bool),
        "small_cost": np.full(n, 0.1),
        "large_cost": draw.uniform(0.5, 1.5, n),
        "starts": {start: ease >= start for start in STARTS},
    }
    return Cases(**(known | changes))


@cache
def traffic() -> Cases:
    """So much of it that what it says is so."""
    return world(100_000, 99)


@cache
def measured(setting: Setting, target: Target) -> tuple[bool, float]:
    """Whether a setting keeps its target on all traffic, and what it costs there."""
    table = traffic().table(setting.start, [setting.confidence_below])
    return bool(keeps(table, target)[0]), float(cost_of(table)[0])


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "level", "n"), [("quality", 0.95, 400), ("quality", 0.97, 1000), ("error", 0.05, 400), ("cost", 0.5, 400)]
)
def test_the_target_is_broken_in_delta_of_the_calibrations_at_most(kind: TargetKind, level: float, n: int) -> None:
    """Over many draws of labels, the chosen setting breaks its target on the traffic no oftener than it says.

    And it does choose: a calibration that always refused would keep every promise.
    """
    target = Target(kind, level)
    chosen = [choose_setting(world(n, seed), target, DELTA) for seed in range(DRAWS)]
    kept = [measured(setting, target)[0] for setting in chosen if setting is not None]
    violated = kept.count(False) / DRAWS
    assert violated <= DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / DRAWS)
    assert len(kept) >= 0.9 * DRAWS


@pytest.mark.long
def test_more_labels_leave_less_on_the_table() -> None:
    """With more labels the chosen setting comes nearer to the cheapest that keeps the target."""
    target = Target("quality", 0.95)
    tables = [traffic().table(start, THRESHOLDS) for start in STARTS]
    best = min(float(cost_of(table)[keeps(table, target)].min()) for table in tables)

    def mean_cost(n: int) -> float:
        chosen = [choose_setting(world(n, seed), target, DELTA) for seed in range(20)]
        return float(np.mean([1.0 if one is None else measured(one, target)[1] for one in chosen]))

    few, many = mean_cost(300), mean_cost(3000)
    assert best < many < few < 1
    assert many < best + 0.08


def test_the_curve_says_what_the_labels_say() -> None:
    """Each point has the observed shares, and bounds on their sure side; the chosen one is proven and cheapest."""
    cases = world(800, 1)
    choice = choose(cases, Target("quality", 0.95), DELTA)
    point = choice.point
    assert point is not None and point.proven and choice.n == 800
    assert point.cost == min(one.cost for one in choice.curve if one.proven)
    assert point.quality_at_least >= 0.95
    for one in choice.curve:
        table = cases.table(one.setting.start, [one.setting.confidence_below])
        assert one.kept == pytest.approx(table.kept.mean()) and one.large_calls == pytest.approx(1 - one.kept)
        assert one.quality == pytest.approx(float(quality_of(table)[0])) and one.quality_at_least <= one.quality
        assert one.error == pytest.approx(table.missed.mean()) and one.error_at_most >= one.error
        assert one.cost == pytest.approx(float(cost_of(table)[0])) and one.cost_at_most >= one.cost
    assert choose_setting(cases, Target("quality", 0.95), DELTA) == choice.setting


def test_equal_labels_give_equal_choices() -> None:
    """There is no chance in it but that of which requests were labelled."""
    first, again = (choose(world(300, 5), Target("error", 0.05), DELTA) for _ in range(2))
    assert first == again


def test_a_cost_target_buys_the_best_quality_within_it() -> None:
    """The setting costs no more than allowed, with confidence, and a proven one of better quality does not exist."""
    choice = choose(world(2000, 2), Target("cost", 0.5), DELTA)
    assert choice.point is not None and choice.point.cost_at_most <= 0.5
    assert choice.point.quality == max(point.quality for point in choice.curve if point.proven)


def test_it_refuses_and_says_how_many_labels_are_missing() -> None:
    """With so many more labels of the same kind it chooses."""
    target = Target("quality", 0.95)
    small = choose(world(60, 7), target, DELTA)
    assert small.setting is None and small.point is None and small.missing is not None
    found = [choose_setting(world(60 + 2 * small.missing, seed), target, DELTA) for seed in range(10)]
    assert sum(setting is not None for setting in found) >= 8


def test_what_more_labels_cannot_mend_is_said() -> None:
    """A small model that is never right, or costs more than the large one, keeps no target: nothing is missing."""
    hopeless = world(600, 8, small=np.zeros(600))
    choice = choose(hopeless, Target("quality", 0.99), DELTA)
    assert choice.setting is None and choice.missing is None
    dear = choose(world(300, 8, small_cost=np.full(300, 2.0)), Target("quality", 0.9), DELTA)
    assert dear.setting is None and dear.missing is None


def test_too_few_labels_do_not_speak_of_hopelessness() -> None:
    """Where not even a flawless setting could be proven, what is missing is at least what that one would take."""
    unlucky = choose(world(30, 8, small=np.zeros(30)), Target("error", 0.02), DELTA)
    assert unlucky.setting is None and unlucky.missing == 126 - 30  # 0.98 ** 126 < 0.08, four fifths of delta


def test_answers_without_evidence_go_where_the_policy_sends_them() -> None:
    """They are escalated, or served if the policy accepts them; unfit ones are escalated either way."""
    silent = np.array([np.nan, np.nan, 0.9, np.inf])
    four = {
        "small": np.ones(4),
        "large": np.ones(4),
        "confidence": silent,
        "unfit": np.array([False, True, True, False]),
        "small_cost": np.ones(4),
        "large_cost": np.ones(4),
        "starts": {None: np.ones(4, bool)},
    }
    kept = Cases(**four).table(None, [0.5]).kept[:, 0]
    assert kept.tolist() == [False, False, False, True]
    assert Cases(**four, accepts_unknown=True).table(None, [0.5]).kept[:, 0].tolist() == [True, False, False, True]


def test_what_starts_at_the_large_tier_pays_for_it_alone() -> None:
    """A request that starts cheap and escalates pays for both answers, one that starts at the large tier for one."""
    cases = world(1000, 3)
    everything = cases.table(0.6, [1.0])
    started = cases.starts[0.6]
    assert everything.cost[started, 0] == pytest.approx(0.1 + cases.large_cost[started])
    assert everything.cost[~started, 0] == pytest.approx(cases.large_cost[~started])


def test_costs_may_be_counted_in_large_calls() -> None:
    """Without prices, the cost is the share of requests that the large tier answers."""
    counted = world(1000, 4, unit="large calls", small_cost=np.zeros(1000), large_cost=np.ones(1000))
    choice = choose(counted, Target("cost", 0.6), DELTA)
    assert choice.point is not None
    assert choice.point.cost == pytest.approx(choice.point.large_calls)
    assert choice.point.cost_at_most <= 0.6 + 1e-4


def test_graded_labels_do_as_well() -> None:
    """Shares between right and wrong are bounded losses like any other."""
    graded = world(1500, 6)
    choice = choose(world(1500, 6, small=graded.small * 0.9, large=graded.large * 0.95), Target("error", 0.06), DELTA)
    assert choice.point is not None and choice.point.error_at_most <= 0.06 + 1e-4


def test_a_start_threshold_is_not_judged_by_requests_never_asked() -> None:
    """Where the small tier was not asked, only thresholds that would not ask it either are known."""
    asked = np.array([True, True, False])
    starts: list[tuple[float | None, Flags]] = [
        (0.0, np.array([True, True, True])),
        (0.5, np.array([True, False, False])),
    ]
    known, untold = known_starts(starts, asked)
    assert list(known) == [0.5] and untold == [0.0]


def test_the_check_agrees_with_delta() -> None:
    """Calibrating on halves breaks the target on all labels in delta of the rounds at most, and costs what it costs."""
    rounds: list[tuple[int, int]] = []
    found = check(world(1200, 11), Target("quality", 0.95), DELTA, 60, lambda _, done, of: rounds.append((done, of)))
    assert (found.rounds, found.n) == (60, 600) and rounds[-1] == (60, 60)
    assert found.violated <= DELTA and found.refused < 0.1
    assert found.best_cost <= found.cost < 1 and found.quality >= 0.95 and found.best_quality >= 0.95
