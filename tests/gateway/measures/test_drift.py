"""Whether an input is distributed as it was: the index, what chance brings about, and its words."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.measures.drift import FEWEST, drift, input_drift, merged


def counted(values: np.ndarray) -> dict[str, float]:
    names, counts = np.unique(np.floor(values * 10).clip(0, 9).astype(int), return_counts=True)
    return {str(name): float(count) for name, count in zip(names, counts, strict=True)}


def test_chance_alone_is_stable_nineteen_times_in_twenty() -> None:
    chance = np.random.default_rng(3)
    found = [drift(counted(chance.random(300)), counted(chance.random(200))) for _ in range(400)]
    within = sum(one.psi <= one.noise for one in found) / len(found)
    assert 0.92 < within < 0.98
    assert sum(one.state == "stable" for one in found) / len(found) > within - 0.01


def test_a_change_is_moved_or_drifted() -> None:
    chance = np.random.default_rng(3)
    before = counted(chance.random(20_000))
    assert drift(before, counted(chance.random(20_000) ** 1.5)).state == "moved"
    far = drift(before, counted(chance.random(20_000) ** 3))
    assert far.state == "drifted" and far.psi > 0.25
    assert sum(now for _, _, now in far.bins) == pytest.approx(1)


def test_a_bin_that_one_side_lacks_is_far_and_not_infinitely_so() -> None:
    found = drift({"chat": 500, "code": 500}, {"chat": 500, "math": 500})
    assert found.state == "drifted" and np.isfinite(found.psi)
    assert found.bins[1:] == (("code", 0.5, 0.0), ("math", 0.0, 0.5))


def test_known_shares_are_no_sample() -> None:
    """Against a known distribution only the new side has noise."""
    now = {str(place): 100.0 for place in range(10)}
    known = drift(dict.fromkeys(now, 0.1), now, exact=True)
    assert known.psi == pytest.approx(0) and known.noise == pytest.approx(16.92 / 1000, rel=0.01)
    assert drift(now, now).noise == pytest.approx(2 * 16.92 / 1000, rel=0.01)


def test_neighbouring_bins_are_merged_into_about_ten() -> None:
    fine = [(f"{2**place}", float(count), 1.0) for place, count in enumerate([1, 2, 30, 30, 30, 3, 2, 1, 1])]
    before, now = merged(fine)
    assert list(before) == ["1 to 4", "8", "16", "32 to 256"]
    assert sum(before.values()) == 100 and sum(now.values()) == 9 and min(list(before.values())[:-1]) >= 10


def test_too_few_requests_say_how_many_are_missing() -> None:
    few = input_drift("kind", {"chat": 500.0}, {"chat": 30.0})
    assert few["psi"] is None and few["state"] == "unknown" and few["missing"] == {"before": 0, "now": FEWEST - 30}
    assert input_drift("kind", {"chat": 500.0}, {"chat": 500.0})["state"] == "stable"
