"""Keep a surface's spending on comparisons under its cap for the day, over all workers at one store.

The sum is one number in the store, in nanodollars. Before a comparison the most that it can cost is added, if the sum
then still is under the cap, in one step; afterwards what was not spent is taken off again. So the cap holds whatever
the workers do at the same time, and one that dies in between leaves the day's sum too high, never too low.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cache.store.base import Command

if TYPE_CHECKING:
    from cache.store.base import Store

_KEY: Final = "tierline:learn:spent:{}:{}"
_PER_DOLLAR: Final = 1_000_000_000
_KEPT_S: Final = 2 * 86400
_LIMIT_S: Final = 1.0
_RESERVE: Final = b"""
local spent = tonumber(redis.call('GET', KEYS[1]) or '0')
if spent + tonumber(ARGV[1]) > tonumber(ARGV[2]) then return 0 end
redis.call('INCRBY', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""


@dataclass(frozen=True, slots=True)
class Reservation:
    """An amount in US dollars that was added to the sum under `key`; an empty key for an amount of 0."""

    key: str
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
        key = _KEY.format(purpose, time.strftime("%Y-%m-%d", time.gmtime(self._clock())))
        amount, most = math.ceil(dollars * _PER_DOLLAR), math.floor(cap * _PER_DOLLAR)
        words = (b"EVAL", _RESERVE, b"1", key.encode(), b"%d" % amount, b"%d" % most, b"%d" % _KEPT_S)
        [granted] = await self._store.ask([Command(words)], _LIMIT_S)
        return Reservation(key, amount / _PER_DOLLAR) if granted else None

    async def settle(self, reserved: Reservation, spent: float) -> None:
        """Replace a reservation by what was spent, in US dollars."""
        if reserved.key:
            change = math.ceil(spent * _PER_DOLLAR) - round(reserved.dollars * _PER_DOLLAR)
            await self._store.ask([Command((b"INCRBY", reserved.key.encode(), b"%d" % change))], _LIMIT_S)

    async def spent(self, purpose: str) -> float:
        """Return today's sum in US dollars, reservations included."""
        key = _KEY.format(purpose, time.strftime("%Y-%m-%d", time.gmtime(self._clock())))
        [amount] = await self._store.ask([Command((b"GET", key.encode()))], _LIMIT_S)
        return int(amount or 0) / _PER_DOLLAR
