"""Keep a surface's spending on comparisons under its cap for the day, over all workers at one store.

The sum is one number in the store, in nanodollars; it has no expiry, so a full store does not evict it, and goes when a
later day begins. Before a comparison the most that it can cost is added, if the sum then still is under the cap, in one
step; afterwards what was not spent is taken off again. So the cap holds whatever the workers do at the same time, and
one that dies in between leaves the day's sum too high, never too low.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cache.store.base import Command

if TYPE_CHECKING:
    from cache.store.base import Store

_SPENT: Final = b"tierline:learn:spent"
"""Key of the hash of sums, by day and purpose."""
_PER_DOLLAR: Final = 1_000_000_000
_LIMIT_S: Final = 1.0
_RESERVE: Final = Path(__file__).with_name("reserve.lua").read_bytes()


@dataclass(frozen=True, slots=True)
class Reservation:
    """An amount in US dollars that was added to the sum in `field`; an empty field for an amount of 0."""

    field: str
    dollars: float


class DailyBudget:
    """Reserve money for comparisons. Every method raises StoreUnavailable."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        """Count in this store; `clock` gives Unix seconds."""
        self._store = store
        self._clock = clock

    async def reserve(self, purpose: str, dollars: float, cap: float) -> Reservation | None:
        """Return the reservation; None if the day's sum of that purpose would exceed the cap. 0 needs no store."""
        if not dollars:
            return Reservation("", 0.0)
        field, yesterday = self._field(purpose), self._day(-1)
        amount, most = math.ceil(dollars * _PER_DOLLAR), math.floor(cap * _PER_DOLLAR)
        words = (b"EVAL", _RESERVE, b"1", _SPENT, b"%d" % amount, b"%d" % most, field.encode(), yesterday.encode())
        [granted] = await self._store.ask([Command(words)], _LIMIT_S)
        return Reservation(field, amount / _PER_DOLLAR) if granted else None

    async def settle(self, reserved: Reservation, spent: float) -> None:
        """Replace a reservation by what was spent, in US dollars."""
        if reserved.field:
            change = math.ceil(spent * _PER_DOLLAR) - round(reserved.dollars * _PER_DOLLAR)
            await self._store.ask([Command((b"HINCRBY", _SPENT, reserved.field.encode(), b"%d" % change))], _LIMIT_S)

    async def spent(self, purpose: str) -> float:
        """Return today's sum in US dollars, reservations included."""
        [amount] = await self._store.ask([Command((b"HGET", _SPENT, self._field(purpose).encode()))], _LIMIT_S)
        return int(amount or 0) / _PER_DOLLAR

    def _field(self, purpose: str) -> str:
        return f"{self._day()}:{purpose}"

    def _day(self, later: int = 0) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self._clock() + later * 86400))
