"""Whether a limit is kept, missed, or of too few requests to say, and since when it is missed."""

from __future__ import annotations

import pytest

from gateway.console.limits import SurfaceLimit, may_miss, trouble_in


@pytest.mark.parametrize(
    ("name", "held", "missed", "verdict"),
    [
        ("ttft_p95", 19, 0, "few"),  # not one of them may miss it
        ("ttft_p95", 20, 0, "kept"),
        ("ttft_p95", 20, 1, "kept"),
        ("ttft_p95", 20, 2, "few"),  # in a quarter of all cases so many do, of requests that keep it
        ("ttft_p95", 20, 4, "missed"),
        ("ttft_p95", 3, 3, "missed"),
        ("ttft_p50", 12, 9, "few"),
        ("ttft_p50", 12, 10, "missed"),
        ("goodput", 60, 5, "missed"),
        ("goodput", 99, 0, "few"),
        ("goodput", 100, 1, "kept"),
        ("total_p99", 100_000, 1_000, "kept"),
        ("total_p99", 100_000, 1_100, "missed"),
        ("deadline", 1, 1, "missed"),
    ],
)
def test_a_limit_is_missed_by_more_than_chance(name: str, held: int, missed: int, verdict: str) -> None:
    assert SurfaceLimit(name, 400.0, held, missed, may_miss(name)).verdict == verdict


def test_a_trouble_is_the_time_with_too_many_misses() -> None:
    """A miss now and then before it is none of it, and neither is the quiet after it."""
    held = [10.0] * 12
    missed = [0.0, 1, 0, 0, 0, 6, 8, 7, 0, 0, 0, 0]
    assert trouble_in(held, missed, 0.05) == (5, 7)
    assert trouble_in(held, [0.0] * 12, 0.05) is None
    assert trouble_in([0.0, 10.0], [0.0, 10.0], 0.01) == (1, 1)
