"""Name what is counted: an account is one unit of one owner, money also of one window of the calendar.

    key:k_7fq2/requests              requests in any 60 seconds
    key:k_7fq2/tokens                prompt and completion tokens in any 60 seconds
    team:web/concurrent              requests under way
    key:k_7fq2/usd/2026-11@UTC       nanodollars in November; also 2026-11-26@..., 2026-W48@..., total

The window is a part of the name, so a counter is never set back: when a window passes, requests that begin later count
against another account, and those that began in it still pay into theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Final, Literal, NamedTuple
from urllib.parse import quote
from zoneinfo import ZoneInfo

from gateway.parts.access.quotas.terms import Budget, OwnerKind, Per, Terms

Unit = Literal["requests", "tokens", "concurrent", "usd"]
ENDLESS: Final = float("inf")
MARK: Final = "{tierline:traces}:alert:"
"""Prefix of the key that says what was told of an account."""
CLIENTS_KEPT_MS: Final = 3_600_000
"""How long a counter of money of an end user or a session stays after its window: clients choose how many there are."""
_PLAIN: Final = ":@._+-"
"""What of an owner's name stands as it is, besides letters and digits; a slash ends the name."""


class Window(NamedTuple):
    """One window of the calendar, in Unix seconds; `ends` is the first second that is not in it."""

    name: str
    begins: float
    ends: float


@dataclass(frozen=True, slots=True)
class Account:
    """One limit or budget of an owner: the unit that is counted, and how much of it is allowed."""

    kind: OwnerKind
    owner: str
    unit: Unit
    limit: int
    """Requests, tokens, requests at once or nanodollars; 0 allows nothing."""
    window: Window | None = None
    """Of money alone."""
    budget: Budget | None = None
    name: str = field(init=False)
    """Name in the store and in records."""

    def __post_init__(self) -> None:
        rest = "" if self.window is None else f"/{self.window.name}"
        object.__setattr__(self, "name", f"{self.kind}:{quote(self.owner, _PLAIN)}/{self.unit}{rest}")

    @property
    def ends(self) -> float | None:
        """When its window ends, in Unix seconds; None if it does not."""
        return None if self.window is None or self.window.ends == ENDLESS else self.window.ends


def life_ms(account: str) -> int:
    """Return how long a counter of this name lives that had no end, once it is charged; 0 for no end."""
    return CLIENTS_KEPT_MS if account.startswith(("user:", "session:")) else 0


class OwnerAccounts:
    """The accounts of one owner: made once for its terms, so that a request only reads them."""

    def __init__(self, kind: OwnerKind, owner: str, terms: Terms) -> None:
        """Name the accounts of `owner`, which must be unique of its kind in the whole store."""
        self._kind: OwnerKind = kind
        self._owner = owner
        self._budgets = terms.budgets
        limits: tuple[tuple[Unit, int | None], ...] = (
            ("requests", terms.requests_per_minute),
            ("concurrent", terms.concurrent),
            ("tokens", terms.tokens_per_minute),
        )
        self.rates = tuple(Account(kind, owner, unit, limit) for unit, limit in limits if limit is not None)
        """Requests, requests at once and tokens, those of them that are limited."""
        self._money: tuple[Account, ...] = ()
        self._begins = self._ends = 0.0

    def money(self, now: float) -> tuple[Account, ...]:
        """Return the account of each budget in its window at `now`, in Unix seconds."""
        if not self._begins <= now < self._ends:
            found = [(budget, window_of(budget, now)) for budget in self._budgets]
            self._money = tuple(
                Account(self._kind, self._owner, "usd", budget.nanodollars, window, budget) for budget, window in found
            )
            self._begins = max((window.begins for _, window in found), default=0.0)
            self._ends = min((window.ends for _, window in found), default=ENDLESS)
        return self._money


_latest: dict[tuple[Per, str], Window] = {}
"""The window that was asked for last, of each kind and zone."""


def window_of(budget: Budget, now: float) -> Window:
    """Return the window of a budget at `now`, in Unix seconds, in the budget's zone; computed once for each window."""
    window = _latest.get((budget.per, budget.zone))
    if window is None or not window.begins <= now < window.ends:
        window = _latest[budget.per, budget.zone] = _window(budget.per, budget.zone, now)
    return window


def _window(per: Per, zone_name: str, now: float) -> Window:
    if per == "total":
        return Window("total", -ENDLESS, ENDLESS)
    zone = ZoneInfo(zone_name)
    today = datetime.fromtimestamp(now, zone).date()
    first, following, name = _DAYS[per](today)
    return Window(f"{name}@{zone_name}", _midnight(first, zone), _midnight(following, zone))


def _midnight(day: date, zone: ZoneInfo) -> float:
    """Return when a day begins; where the clock skips midnight, that is when it does so."""
    return datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()


def _day(today: date) -> tuple[date, date, str]:
    return today, today + timedelta(days=1), f"{today:%Y-%m-%d}"


def _week(today: date) -> tuple[date, date, str]:
    year, week, weekday = today.isocalendar()
    monday = today - timedelta(days=weekday - 1)
    return monday, monday + timedelta(days=7), f"{year}-W{week:02d}"


def _month(today: date) -> tuple[date, date, str]:
    first = today.replace(day=1)
    return first, (first + timedelta(days=31)).replace(day=1), f"{today:%Y-%m}"


_DAYS: Final[dict[Per, Callable[[date], tuple[date, date, str]]]] = {"day": _day, "week": _week, "month": _month}
