"""What latency is without congestion."""

from __future__ import annotations

import pytest

from gateway.tiers.baseline import Baseline


def feed(baseline: Baseline, seconds: float, since: float, lasting: float, tokens_in: int = 100) -> float | None:
    """Ten calls a second; the last ratio."""
    ratio = None
    for step in range(int(lasting * 10)):
        ratio = baseline.ratio(tokens_in, seconds, since + step / 10)
    return ratio


def test_congestion_is_held_against_the_best_there_was() -> None:
    """Five times as long as in its best ten seconds is about five times, however long ago those were."""
    baseline = Baseline()
    assert feed(baseline, 1.0, 0.0, 9.0) is None
    assert feed(baseline, 1.0, 9.0, 21.0) == pytest.approx(1.0, abs=0.05)
    assert feed(baseline, 5.0, 30.0, 60.0) == pytest.approx(5.0, rel=0.15)


def test_a_backend_that_is_slower_for_good_is_forgiven() -> None:
    """Over some minutes the baseline rises to what has become normal."""
    baseline = Baseline()
    feed(baseline, 1.0, 0.0, 30.0)
    assert feed(baseline, 2.0, 30.0, 600.0) == pytest.approx(1.0, abs=0.05)


def test_long_prompts_are_held_against_long_prompts() -> None:
    """A prompt that takes long to read is no congestion."""
    baseline = Baseline()
    feed(baseline, 0.2, 0.0, 30.0, tokens_in=100)
    assert feed(baseline, 2.0, 30.0, 30.0, tokens_in=30_000) == pytest.approx(1.0, abs=0.05)


def test_milliseconds_are_no_congestion() -> None:
    """Ten milliseconds on top of five are noise of our own, not twice the load."""
    baseline = Baseline()
    feed(baseline, 0.005, 0.0, 30.0)
    assert (feed(baseline, 0.015, 30.0, 5.0) or 9) < 1
