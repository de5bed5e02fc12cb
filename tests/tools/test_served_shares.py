"""What a score serves of labelled pairs, and the lowest that serves few wrongly."""

from __future__ import annotations

import numpy as np
import pytest

from tools.served_shares import least_threshold, served_shares


@pytest.mark.parametrize(("wrong", "expected"), [(0.0, 0.8), (0.25, 0.6), (0.5, 0.4)])
def test_the_threshold_serves_no_more_wrong_pairs_than_allowed(wrong: float, expected: float) -> None:
    """It is just above the score of the first pair too many."""
    scores = np.array([0.2, 0.4, 0.6, 0.8, 0.9, 0.1])
    same = np.array([False, False, False, False, True, True])
    threshold = least_threshold(scores, same, wrong)
    assert threshold == pytest.approx(expected)
    assert np.mean(scores[~same] >= threshold) <= wrong


def test_what_a_veto_stops_needs_no_threshold() -> None:
    """A score below 0 is served at none; with nothing in the way the threshold is a half."""
    assert least_threshold(np.array([-1.0, -1.0]), np.array([False, False]), 0.0) == 0.5
    assert least_threshold(np.array([0.9]), np.array([True]), 0.0) == 0.5


def test_shares_are_counted_in_all_and_by_group() -> None:
    """Each with its interval; a share of no pairs is unknown, and one group alone is the whole."""
    served, same = np.array([True, False, True, False]), np.array([True, True, False, False])
    found = served_shares(served, same, np.array(["a", "a", "b", "b"]))
    assert (found["n"], found["served"], found["wrong"]) == (4, 0.5, 0.5)
    assert found["served_interval"][0] < 0.5 < found["served_interval"][1]
    assert found["groups"]["a"]["served"] == 0.5 and found["groups"]["a"]["wrong"] is None
    assert "groups" not in found["groups"]["a"]
