"""The days (UTC) that the page Usage is of: the month that runs unless its URL names another month, or two days."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from gateway.parts.console.page import BadQuery

_MONTH: Final = re.compile(r"\d{4}-\d\d")
_MOST_BARS: Final = 62
_MOST_DAYS: Final = 3660


@dataclass(frozen=True, slots=True)
class UsageRange:
    """Whole days, the last one included. `runs` is whether it is the month that runs, which has a forecast."""

    first: date
    last: date
    runs: bool = False

    @classmethod
    def asked_for(cls, query: Mapping[str, str], now_s: float) -> UsageRange:
        """Return what `month`, or `from` and `to`, say; either of the two alone reaches to today. Raises BadQuery."""
        today = datetime.fromtimestamp(now_s, UTC).date()
        month, first, last = (query.get(name, "").strip() for name in ("month", "from", "to"))
        if month and (first or last):
            raise BadQuery("month= says both ends; leave out from= and to=")
        if not (month or first or last):
            return cls(today.replace(day=1), _end_of_month(today), runs=True)
        if month:
            start = _day(f"{month}-01" if _MONTH.fullmatch(month) else month, "month=2026-11")
            return cls(start, _end_of_month(start), runs=start == today.replace(day=1))
        ends = _day(last, "to=2026-11-30") if last else today
        begins = _day(first, "from=2026-11-01") if first else ends.replace(day=1)
        if not 0 <= (ends - begins).days < _MOST_DAYS:
            raise BadQuery("`to` is a day from `from` on, at most ten years later")
        return cls(begins, ends)

    @property
    def query(self) -> str:
        """Its part of a URL's query; '' for the month that runs, so that such a page goes on with the next."""
        return "" if self.runs else f"from={self.first}&to={self.last}"

    @property
    def words(self) -> str:
        """What it is called: a month by its name."""
        if self.first.day == 1 and self.last == _end_of_month(self.first):
            return f"{self.first:%B %Y}"
        return f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"

    @property
    def start_s(self) -> float:
        """When it begins, in Unix seconds."""
        return _unix(self.first)

    @property
    def end_s(self) -> float:
        """When its last day ends."""
        return _unix(self.last + timedelta(days=1))

    @property
    def days_a_bar(self) -> int:
        """How many days a bar of its chart is of."""
        return -(-((self.last - self.first).days + 1) // _MOST_BARS)

    @property
    def bars(self) -> int:
        """How many bars its chart has."""
        return -(-((self.last - self.first).days + 1) // self.days_a_bar)


def _day(text: str, example: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise BadQuery(f"{text!r} is no day of the calendar; write it as in {example}") from None


def _end_of_month(day: date) -> date:
    return (day.replace(day=1) + timedelta(days=32)).replace(day=1) - timedelta(days=1)


def _unix(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
