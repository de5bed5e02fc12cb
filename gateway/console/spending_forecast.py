"""Forecast what will have been spent at the end of a period, from what was spent in each hour so far.

With at least DAYS whole days of history each coming hour is taken to be like the same hour of those days: the sum of
the hours to come is the mean of the days' sums over the same hours, and the days' own differences give its interval.
With less, but at least HOURS whole hours, the mean of those hours is taken for each coming one. Both intervals are 95%
prediction intervals by Student's t: they hold if the coming time varies as the history did, independently, and know
nothing of what never happened before. With less history there is no forecast.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

DAYS: Final = 3
MOST_DAYS: Final = 7
HOURS: Final = 6
_MOST_HOURS: Final = 24
_HOUR_S: Final = 3600
_T: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""97.5% quantile of Student's t with 1 to 10 degrees of freedom."""
_Z: Final = 1.959964

Method = Literal["days", "hours"]


@dataclass(frozen=True, slots=True)
class SpendingForecast:
    """US dollars that will have been spent at `end_s` (Unix seconds), with the 95% interval; `spent` is what is so far.

    `history` is how many days or hours it rests on. `usd` and the interval are None with too little history.
    """

    end_s: float
    spent: float
    usd: float | None
    low: float | None
    high: float | None
    method: Method | None
    history: int


def forecast(
    by_hour: Mapping[int, float], first_s: float, now_s: float, end_s: float, spent: float
) -> SpendingForecast:
    """Return the forecast for the end of a period of which `spent` US dollars are spent.

    `by_hour` has the US dollars of each hour, by its number since 1970; an hour without is one without requests.
    `first_s` is the time of the first request of all: before it there is no history.
    """
    rest = max(0.0, end_s - now_s) / _HOUR_S
    current = int(now_s // _HOUR_S)
    oldest = math.ceil(first_s / _HOUR_S)
    hours = max(0, current - oldest)
    days = min(hours // 24, MOST_DAYS)
    if days >= DAYS:
        more, spread = _by_days(by_hour, current, now_s, days, rest)
        method: Method = "days"
        count = days
    elif hours >= HOURS:
        count = min(hours, _MOST_HOURS)
        known = [by_hour.get(hour, 0.0) for hour in range(current - count, current)]
        more = statistics.fmean(known) * rest
        spread = _student(count - 1) * statistics.stdev(known) * math.sqrt(rest + rest * rest / count)
        method = "hours"
    else:
        return SpendingForecast(end_s, spent, None, None, None, None, hours)
    return SpendingForecast(
        end_s, spent, spent + more, spent + max(0.0, more - spread), spent + more + spread, method, count
    )


def _by_days(by_hour: Mapping[int, float], current: int, now_s: float, days: int, rest: float) -> tuple[float, float]:
    """Return the mean of what `rest` hours cost on past days, and half of its interval.

    The hours to come are whole days, which are like the mean day, and a rest of less than a day, which is like the same
    hours of each day.
    """
    whole, part = divmod(rest, 24)
    day_sums = [_sum(by_hour, current - 24 * day, 24) for day in range(1, days + 1)]
    part_sums = [_part(by_hour, now_s / _HOUR_S - 24 * day, part) for day in range(1, days + 1)]
    mean = whole * statistics.fmean(day_sums) + statistics.fmean(part_sums)
    variance = statistics.variance(day_sums) * (whole + whole * whole / days)
    variance += statistics.variance(part_sums) * (1 + 1 / days)
    return mean, _student(days - 1) * math.sqrt(variance)


def _sum(by_hour: Mapping[int, float], first: int, hours: int) -> float:
    return math.fsum(by_hour.get(hour, 0.0) for hour in range(first, first + hours))


def _part(by_hour: Mapping[int, float], start: float, hours: float) -> float:
    """Return the US dollars of so many hours from `start`, in hours since 1970; of hours in part, their part."""
    total, at, end = 0.0, start, start + hours
    while at < end:
        hour = math.floor(at)
        until = min(end, hour + 1)
        total += by_hour.get(hour, 0.0) * (until - at)
        at = until
    return total


def _student(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t; beyond the table by the Cornish-Fisher expansion, to 0.1%."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = _Z
    first = (z**3 + z) / (4 * freedom)
    return z + first + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
