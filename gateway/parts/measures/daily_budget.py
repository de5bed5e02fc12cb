"""Keep a surface's spending on the operator's own calls under its cap for the day, over all workers at one store.

These are the judge's, audits, comparisons, shadows and summaries, which no key pays for. Where several tenants share a
deployment, one of them causes at most half of what the others leave of the cap: whoever comes first does not use up
what is judged for all of them.

The sum is one number in the store, in nanodollars, and each tenant has one too; they have no expiry, so a full store
does not evict them, and go when a later day begins. Before a call the most that it can cost is added to both, if they
then still are under their limits, in one step; afterwards what was not spent is taken off again. So the cap holds
whatever the workers do at the same time, and one that dies in between leaves the day's sums too high, never too low.

Call a model for the operator's own purposes: after the reply, in nobody's ledger, and only where there is room.

Such a call goes to a backend with room to spare, whose price is known.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cache.store.base import Command
from gateway.backends.base import BackendError, BackendRequest, TimedOut
from gateway.cascade.call import BackendCall
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Hop
from gateway.tiers.slot import SlotRequest
from routing.features import estimated_tokens, text_of

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


_BUSY: Final = 0.75
"""Share of a backend's slots that may be taken, with one more call, for it to count as quiet."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The whole answer of a model; `value` is None if there is none, and `error` then says why, as metrics do."""

    value: Mapping[str, Any] | None
    cost_usd: float
    error: str = ""

    @property
    def text(self) -> str | None:
        """The text of the first choice; None if there is none."""
        return None if self.value is None else text_of_answer(self.value)


def is_quiet(endpoint: Endpoint) -> bool:
    """Return whether a call can go out at once and leaves a quarter of the slots; an idle single slot will do."""
    if not endpoint.config.configured or endpoint.unavailable() or not endpoint.unhindered:
        return False
    return endpoint.in_flight + 1 <= max(1, int(endpoint.capacity * _BUSY))


async def call_model(endpoint: Endpoint, surface: str, request: BackendRequest, limit_s: float) -> ModelAnswer:
    """Return the answer of a backend to a request of the gateway's own, with a slot of batch priority.

    The call belongs to no request: its ledger and its hop are not recorded. Raises CancelledError only.
    """
    texts = [text_of(message.get("content"))[0] for message in request.body["messages"]]
    tokens_in = int(sum(map(estimated_tokens, texts)))
    slot = endpoint.take(SlotRequest(surface, "batch", tokens_in=tokens_in))
    with BackendCall(Ledger("own"), slot, Hop([], "own"), tokens_in) as call:
        try:
            async with asyncio.timeout(limit_s):
                value = (await call.complete(request)).value
        except BackendError as error:
            call.close(error)
            return ModelAnswer(None, call.cost_usd, error.error_type)
        except TimeoutError:
            call.close("cancelled")
            return ModelAnswer(None, call.cost_usd, TimedOut.error_type)
    return ModelAnswer(value, call.cost_usd)


def text_of_answer(completion: Mapping[str, Any]) -> str | None:
    """Return the text of a completion's first choice; None if it has none."""
    message = completion["choices"][0].get("message")
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, str) else None
