"""Labels that err: what is left aside, what a bound adds, and how soon a bound that is really broken is seen."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gateway.parts.hit_audits.control import RiskControl
from gateway.parts.hit_audits.groups import Batch, Label
from gateway.parts.hit_audits.label_errors import AS_THEY_ARE, LabelErrors

MEASURED = LabelErrors(same=600, false_alarms=2, other=1_800, found=900, by_language={"en": (800, 1_000)})


def test_shares_count_one_error_and_one_success_more() -> None:
    """A language that was not measured has the share of all; without pairs labels are taken as they are."""
    assert MEASURED.false_alarm == pytest.approx(3 / 602)
    assert MEASURED.sensitivity("en") == pytest.approx(801 / 1_002)
    assert MEASURED.sensitivity("xx") == MEASURED.sensitivity() == pytest.approx(901 / 1_802)
    assert MEASURED.stands_for("xx") == pytest.approx(1 / (0.5 - 3 / 602))
    assert (AS_THEY_ARE.false_alarm, AS_THEY_ARE.stands_for(), AS_THEY_ARE.per_hit) == (0.0, 1.0, 0.0)


@pytest.mark.parametrize("counts", [{"same": 1, "false_alarms": 2}, {"by_language": {"en": (2, 1)}}])
def test_more_errors_than_pairs_are_refused(counts: dict[str, int]) -> None:
    """A data sheet by hand may have them."""
    with pytest.raises(ValueError, match="from 0 to the number"):
        LabelErrors(**counts)


def test_as_many_labels_are_left_aside_as_false_alarms_explain() -> None:
    """By the number of hits: of 100 labels one is nothing, of five it is; three of 100 are two too many."""
    each = 10 * MEASURED.stands_for()
    lost, count = np.array([each, each, 3 * each]), np.array([1.0, 1.0, 3.0])
    hits = np.array([50.0, 1_000.0, 1_000.0])
    assert MEASURED.unexplained(lost, count, hits) == pytest.approx([each, 0.0, each])
    assert AS_THEY_ARE.unexplained(lost, count, hits) == pytest.approx(lost)


def test_the_bound_takes_expected_false_alarms_off_and_adds_what_is_not_known_of_the_shares() -> None:
    """Without measured shares it is the sum, one label more and 1.28 standard errors."""
    lost, squares, hits = np.array([200.0]), np.array([2_000.0]), np.array([10_000.0])
    assert AS_THEY_ARE.upper(lost, squares, 10.0, hits) == pytest.approx(210 + 1.28 * 2_000**0.5)
    sure = LabelErrors(600_000, 3_000, 1_800_000, 900_000)
    assert sure.upper(lost, squares, 10.0, hits) < AS_THEY_ARE.upper(lost, squares, 10.0, hits) - 90
    assert MEASURED.upper(lost, squares, 10.0, hits) > sure.upper(lost, squares, 10.0, hits)


def desk(wrong: float, seed: int, requests: int = 6_000) -> tuple[RiskControl, int | None, float, bool]:
    """Return the controller, the comparisons until the threshold rose, the lowest share of hits of a batch, and whether
    a breach was shown. Half of the requests have a candidate, so many of these are wrong, and labels err as measured.
    """
    draw, control = random.Random(seed), RiskControl(0.01, strict=0.9, errors=MEASURED)
    compared, rose, least, breached = 0, None, 1.0, False
    for _ in range(requests // 200):
        scores = [0.9 + draw.random() / 10 for _ in range(100)]
        labels = []
        for score in scores:
            if not (weight := control.weight(score, draw.random())):
                continue
            compared += score >= control.threshold
            seen = draw.random() < (0.5 if draw.random() < wrong else 0.002)
            if seen or draw.random() < 0.3:  # most that say the same are unknown
                labels.append(Label(score, seen, weight))
        control.fold(Batch(200, tuple(scores), tuple(labels)))
        breached |= control.breached
        least = min(least, sum(score >= control.threshold for score in scores) / 100)
        if rose is None and control.threshold > 0.9:
            rose = compared
    return control, rose, least, breached


def test_false_alarms_neither_raise_the_threshold_nor_show_a_breach() -> None:
    """Where no hit is wrong; at most one of twenty desks is unlucky."""
    desks = [desk(0.0, seed) for seed in range(20)]
    assert sum(rose is not None for _, rose, *_ in desks) <= 1
    assert sum(breached for *_, breached in desks) <= 1
    assert all(control.strict == 0.9 <= control.threshold for control, *_ in desks)


@pytest.mark.parametrize(("wrong", "compared"), [(1.0, 20), (0.3, 40), (0.1, 80)])
def test_a_bound_that_is_really_broken_is_seen(wrong: float, compared: int) -> None:
    """After so many comparisons of would-be hits at most in half of the desks; within 6,000 requests in all but one."""
    desks = [desk(wrong, seed) for seed in range(9)]
    rose = [after for _, after, *_ in desks if after is not None]
    assert len(rose) >= len(desks) - (wrong < 0.3) and sum(breached for *_, breached in desks) == len(rose)
    assert sorted(rose)[len(rose) // 2] <= compared
    assert all(least < 0.9 for _, after, least, _ in desks if after is not None)


def test_a_first_label_does_not_close_a_surface_of_which_nothing_is_wrong() -> None:
    """However many free labels there are of candidates below the threshold, and however heavy one of a hit is."""
    control = RiskControl(0.01, strict=0.9)
    free = (Label(0.5, False, 2.0),) * 150
    control.fold(Batch(600, (0.95,) * 200, (*free, Label(0.95, False, 24.0))))
    assert control.threshold == 0.9
    assert control.figures().error_most is None
