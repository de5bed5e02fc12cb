"""Steer requests whose budget runs out: how much of it is spent, where the ladder is capped, and how long batch waits.

`parts.access.policy` has the rules; here are the figures that they go by. What tiers are worth the keeper of the ledger
leaves in the store every few minutes (`gateway.parts.ledger.tier_worth`); a worker reads it twice a minute.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from cache.store.base import Command, Store, StoreUnavailable
from gateway.accounting import cost
from gateway.chat.usage import Usage
from gateway.parts.access.policy import SpendingSections
from gateway.telemetry import names
from gateway.telemetry.ledger import TIER_WORTH

if TYPE_CHECKING:
    from gateway.request.context import RequestContext
    from gateway.tiers import Tier
    from policies.model import Policy

_READ_EVERY_S: Final = 30.0
_LIMIT_S: Final = 1.0
_LOOK_S: Final = 0.25
"""How often a request that is held back looks whether its budget is below the share again, in seconds."""
_log = logging.getLogger("tierline")


class BudgetsHeld(Protocol):
    """What `turn` needs of a request's limits: ask the store what is spent, and whether that is near a budget's end."""

    async def look(self, *, anew: bool = False) -> None: ...

    def is_tight(self, policy: Policy) -> bool: ...


async def turn(request: RequestContext, hold: BudgetsHeld, waiting: dict[str, int]) -> None:
    """Wait until it is known how much of the request's budgets is spent, and while its policy holds it back.

    `waiting` counts the requests that this worker holds back, by surface: beyond the policy's `load.max_waiting` none
    is, so that they do not take the room of others.
    """
    await hold.look()
    policy, surface = request.policy, request.policy.surface
    held_back_s = policy.held_back_s if isinstance(policy, SpendingSections) else 0.0  # sooner than policy.of
    wait_s = min(held_back_s, request.budget_s() / 2)
    if not held_back_s or waiting.get(surface, 0) >= policy.load.max_waiting or not hold.is_tight(policy):
        return
    request.client.watch()
    hop = request.trace.begin(names.BUDGET_WAIT)
    until = time.monotonic() + wait_s
    waiting[surface] = waiting.get(surface, 0) + 1
    try:
        while (left_s := until - time.monotonic()) > 0 and hold.is_tight(policy):
            await asyncio.sleep(min(_LOOK_S, left_s))
            await hold.look(anew=True)
    finally:
        waiting[surface] -= 1
        hop.attributes[names.OUTCOME] = "held_back"
        hop.end()


class MeasuredCaps:
    """Know, for each surface, the tier above which further dollars gain the least quality, as measured."""

    def __init__(self, store: Store, tiers: Mapping[str, Tier]) -> None:
        self._store = store
        self._tiers = tiers
        self._worth: Mapping[str, Any] = {}
        self._caps: dict[tuple[str, tuple[str, ...]], str] = {}
        self._reading: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Read what the store says from now on; do nothing if no store is configured."""
        if self._store.state().status != "unconfigured":
            self._reading = asyncio.create_task(self._read(), name="tierline.tier-worth")

    async def aclose(self) -> None:
        """Stop reading what the budgets have spent."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def refresh(self) -> None:
        """Read the measured worth of tiers from the store, once. Raises StoreUnavailable."""
        [flat] = await self._store.ask([Command((b"HGETALL", TIER_WORTH.encode()))], _LIMIT_S)
        worth = {}
        for surface, blob in zip(flat[::2], flat[1::2], strict=True):
            try:
                worth[surface.decode()] = orjson.loads(blob)
            except ValueError:
                _log.warning("what tiers of %r are worth cannot be read", surface)
        self._worth = worth
        self._caps.clear()

    def cap_of(self, policy: Policy) -> str:
        """Return the measured cap of a policy's ladder; empty where it is not known."""
        key = policy.surface, policy.ladder
        cap = self._caps.get(key)
        if cap is None:
            cap = self._caps[key] = self._measured(policy)
        return cap

    def _measured(self, policy: Policy) -> str:
        worth = self._worth.get(policy.surface)
        if worth is None:
            return ""
        usage = Usage(round(worth["tokens_in"]), round(worth["tokens_out"]))
        usd = {name: cost(self._tiers[name].price, usage) for name in policy.ladder}
        quality = {name: value for name, (value, _, _) in worth["tiers"].items()}
        return measured_cap(policy.ladder, quality, {name: mean for name, mean in usd.items() if mean is not None})

    async def _read(self) -> None:
        while True:
            try:
                await self.refresh()
            except StoreUnavailable as error:
                _log.info("what tiers are worth stays as it was: %s", error)
            await asyncio.sleep(_READ_EVERY_S)


def measured_cap(ladder: Sequence[str], quality: Mapping[str, float], usd: Mapping[str, float]) -> str:
    """Return the tier from which the strongest of the ladder gains least for each dollar that it costs more.

    `quality` is that of the tiers' answers, 0..1, `usd` what a tier's call costs. A tier of which either is missing is
    left out. The strongest itself where no weaker one costs less; empty where it is missing, or all others are.
    """
    known = [name for name in ladder if name in quality and name in usd]
    if len(known) < 2 or known[-1] != ladder[-1]:
        return ""
    strongest = known.pop()
    gained = {
        name: (quality[strongest] - quality[name]) / (usd[strongest] - usd[name])
        for name in known
        if usd[name] < usd[strongest]
    }
    return min(gained, key=gained.__getitem__) if gained else strongest
