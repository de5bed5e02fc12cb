"""What will have been spent: by the same hours of the two weeks before, or not at all."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from gateway.parts.console.spending_forecast import DAYS, forecast

HOUR = 3600.0
DAY = 24 * HOUR
NOON = 20_000 * DAY + 12 * HOUR
MIDNIGHT = NOON + 12 * HOUR


def hours(days: int, usd: Callable[[int], float] = lambda _: 1.0) -> dict[int, float]:
    """What each hour cost over so many days until noon."""
    now = int(NOON // HOUR)
    return {hour: usd(hour) for hour in range(now - 24 * days, now)}


def shape(hour: int) -> float:
    """More by night, less at weekends."""
    return (1.0 if hour % 24 < 12 else 3.0) * (0.25 if hour // 24 % 7 >= 5 else 1.0)


def test_coming_hours_are_like_the_same_hours_of_their_weekday() -> None:
    """Exactly, where no day differs from the one a week before."""
    by_hour = hours(20, shape)
    for end in (MIDNIGHT, MIDNIGHT + 3 * DAY, MIDNIGHT + 20 * DAY + 0.5 * HOUR):
        found = forecast(by_hour, NOON - 20 * DAY, NOON, end, 12.0)
        comes = math.fsum(shape(hour) for hour in range(int(NOON // HOUR), int(end // HOUR)))
        comes += shape(int(end // HOUR)) * (end % HOUR / HOUR)
        assert found.usd == pytest.approx(12.0 + comes) and found.days == 20
        assert found.low == pytest.approx(found.usd) and found.high == pytest.approx(found.usd)


@pytest.mark.parametrize("days", [0, 1, 7, DAYS - 1])
def test_with_less_than_two_weeks_it_says_that_it_does_not_know(days: int) -> None:
    """A first day or week says neither how weekdays nor how days differ."""
    found = forecast(hours(days), NOON - days * DAY, NOON, MIDNIGHT + 10 * DAY, 5.0)
    assert (found.usd, found.low, found.high, found.spent, found.days) == (None, None, None, 5.0, days)


@pytest.mark.parametrize("rest_days", [1, 10, 25])
def test_the_interval_holds_what_comes_as_often_as_it_says(rest_days: int) -> None:
    """For days that differ by a third, and weekends that cost a quarter; and it is no wider than it must be."""
    rng, held, widths = random.Random(rest_days), 0, []
    for _ in range(300):
        level = [math.exp(rng.gauss(0, 0.3)) for _ in range(DAYS + rest_days + 3)]
        first = int(NOON // HOUR) - 24 * DAYS

        def usd(hour: int, level: list[float] = level, first: int = first) -> float:
            return shape(hour) * level[(hour - first) // 24]

        end = NOON + rest_days * DAY
        found = forecast(hours(DAYS, usd), NOON - DAYS * DAY, NOON, end, 0.0)
        comes = math.fsum(usd(hour) for hour in range(int(NOON // HOUR), int(end // HOUR)))
        assert found.low is not None and found.high is not None and found.usd is not None
        held += found.low <= comes <= found.high
        widths.append((found.high - found.low) / found.usd)
    assert 0.9 <= held / 300 <= 0.99
    assert sorted(widths)[150] < (4.0 if rest_days == 1 else 2.0)
