"""Keep a surface's spending on the operator's own calls under its cap for the day, over all workers at one store.

These are the judge's, audits, comparisons, shadows and summaries, which no key pays for. Where several tenants share a
deployment, one of them causes at most half of what the others leave of the cap: whoever comes first does not use up
what is judged for all of them.

The sum is one number in the store, in nanodollars, and each tenant has one too; they have no expiry, so a full store
does not evict them, and go when a later day begins. Before a call the most that it can cost is added to both, if they
then still are under their limits, in one step; afterwards what was not spent is taken off again. So the cap holds
whatever the workers do at the same time, and one that dies in between leaves the day's sums too high, never too low.
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
    from gateway.tiers import Endpoint

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
    of_tenant: str = ""
    """The field of its tenant's sum; empty where there is one tenant alone."""


class DailyBudget:
    """Reserve money for comparisons. Every method raises StoreUnavailable."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        """Count in this store; `clock` gives Unix seconds."""
        self._store = store
        self._clock = clock

    @staticmethod
    def among_others(tenant: str, endpoint: Endpoint) -> str:
        """Return the tenant whose share of the operator's calls at `endpoint` is held; '' if no others can use it."""
        return "" if tenant in endpoint.unshared else tenant

    async def reserve(self, purpose: str, dollars: float, cap: float, tenant: str = "") -> Reservation | None:
        """Return the reservation; None if the day's sum of that purpose would exceed the cap. 0 needs no store.

        `tenant` is one of several (see `among_others`), whose share is held too; '' for the only one.
        """
        if not dollars:
            return Reservation("", 0.0)
        field, of_tenant = self._field(purpose), self._field(purpose, tenant) if tenant else ""
        amount, most = math.ceil(dollars * _PER_DOLLAR), math.floor(cap * _PER_DOLLAR)
        fields = (field.encode(), self._day(-1).encode(), of_tenant.encode())
        [granted] = await self._store.ask(
            [Command((b"EVAL", _RESERVE, b"1", _SPENT, b"%d" % amount, b"%d" % most, *fields))], _LIMIT_S
        )
        return Reservation(field, amount / _PER_DOLLAR, of_tenant) if granted else None

    async def settle(self, reserved: Reservation, spent: float) -> None:
        """Replace a reservation by what was spent, in US dollars."""
        change = math.ceil(spent * _PER_DOLLAR) - round(reserved.dollars * _PER_DOLLAR)
        commands = [
            Command((b"HINCRBY", _SPENT, field.encode(), b"%d" % change))
            for field in (reserved.field, reserved.of_tenant)
            if field
        ]
        if commands:
            await self._store.ask(commands, _LIMIT_S)

    async def spent(self, purpose: str, tenant: str = "") -> float:
        """Return today's sum in US dollars, reservations included; of one of several tenants if one is given."""
        [amount] = await self._store.ask([Command((b"HGET", _SPENT, self._field(purpose, tenant).encode()))], _LIMIT_S)
        return int(amount or 0) / _PER_DOLLAR

    def _field(self, purpose: str, tenant: str = "") -> str:
        return f"{self._day()}:{purpose}@{tenant}" if tenant else f"{self._day()}:{purpose}"

    def _day(self, later: int = 0) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self._clock() + later * 86400))
