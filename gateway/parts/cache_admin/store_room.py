"""Divide the store's memory among the tenants, and tell when the store evicts keys all the same.

Of a store with a limit of memory, half is for the tenants' stored answers and vectors and a quarter for what parts keep
for them, such as responses; the last quarter is for what has no quota: records, policies, thresholds, leases. Tenants
have equal parts, and none has more than a quarter of the memory for either kind. The config's quotas are cut down to
that, so what tenants store does not make the store evict anything. Evictions that happen nevertheless (others use the
store too, or records are large) are told in `/readyz`, a gauge and the log, and so is a server that is too old.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from cache.scopes.scope import Caps
from cache.store.base import NoStore, Store, StoreMemory, StoreUnavailable
from gateway.config.sections import asked_quotas
from policies.quantities import byte_size
from policies.sections import all_added

if TYPE_CHECKING:
    from gateway.config.schema import Deployment, StoreQuota
    from policies.loader import PolicySet

log = logging.getLogger("tierline.store")

QUOTAS: Final = frozenset({"entries", "bytes"})
"""The config's keys that are cut down; those that it does not set are so without a warning."""
_NEWEST: Final = "zmscore"
"""The newest command that cannot be done without: Redis has it from 6.2 on."""
_EVERY_S: Final = 5.0
_TOLD_S: Final = 300.0
"""How long `/readyz` tells of an eviction."""
_LOGGED_S: Final = 60.0
_ENTRY_BYTES: Final = 2048
"""One entry more for each of these bytes: an entry takes some 450 of the store's beside its value."""
_TOO_OLD: Final = "store: older than Redis 6.2, without which kept responses and conversations are not read: update it"
_VALUES: Final = 5 / 8
"""Share of a quota that values may take; the allocator rounds each up by as much as a quarter."""


class DividedStore:
    """The quotas in force, and the store's evictions. Start and close it on the worker's event loop."""

    def __init__(
        self,
        store: Store,
        deployment: Deployment,
        policies: Callable[[], PolicySet],
        quotas: Mapping[str, Caps],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take what divides the memory: the deployment's tenants and the surfaces of the `policies` in force.

        `quotas` by section of the config are changed: `cache`, of each scope of stored answers and of vectors, and of
        what else is kept for each tenant.
        """
        self._store = store
        self._deployment = deployment
        self._policies = policies
        self._clock = clock
        self.quotas = quotas
        self.memory: StoreMemory | None = None
        """What the store said last; None where that is not known."""
        self._fitted: tuple[int, PolicySet] | None = None
        """What the quotas were last cut down for."""
        self._too_old: bool | None = None
        """Whether the server lacks what cannot be done without; None until it says so. An update is noticed."""
        self._seen: deque[tuple[float, int]] = deque()
        """Evictions of the last minutes: when they were seen, and how many keys."""
        self._logged_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Ask the store once, so that quotas hold from the first request on, and go on asking every five seconds."""
        if not isinstance(self._store, NoStore):
            await self.refresh()
            self._task = asyncio.create_task(self._run(), name="tierline.store.room")

    async def aclose(self) -> None:
        """Stop asking the store how full it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.refresh()

    async def refresh(self) -> None:
        """Ask the store for its memory and act on it. Where it does not say, what it said before holds."""
        if self._too_old is not False:
            with contextlib.suppress(StoreUnavailable):
                too_old = _NEWEST not in await self._store.commands((_NEWEST,))
                if too_old and not self._too_old:
                    log.warning("%s", _TOO_OLD)
                self._too_old = too_old
        with contextlib.suppress(StoreUnavailable):
            memory = await self._store.memory()
            before, self.memory = self.memory, memory
            self._fit(memory.limit)
            if before is not None and memory.evicted > before.evicted:
                self._evicted(memory.evicted - before.evicted)

    def _fit(self, limit: int) -> None:
        """Cut the quotas down to what the store has room for, and log those that change."""
        config, policies = self._deployment, self._policies()
        if self._fitted == (limit, policies):
            return
        self._fitted = limit, policies
        fitted = fitted_quotas(config, policies, limit)
        for name, asked in asked_quotas(config).items():
            caps, now = self.quotas[name], fitted[name]
            if now != caps:
                caps.entries, caps.bytes = now.entries, now.bytes
                level = logging.WARNING if asked.model_fields_set & QUOTAS else logging.INFO
                log.log(level, "%s: %s", name, cut_down(asked, now, limit) or "the config's quota is in force")

    def _evicted(self, count: int) -> None:
        now = self._clock()
        self._seen.append((now, count))
        if now - self._logged_at >= _LOGGED_S:
            self._logged_at = now
            told = self._recent(now)
            log.warning("%s (%d keys in the last five minutes)", told, sum(number for _, number in self._seen))

    def _recent(self, now: float) -> str:
        """Return what is said of evictions in the last five minutes; '' if there were none.

        The text stays the same while they go on: the console says since when it is so.
        """
        while self._seen and now - self._seen[0][0] > _TOLD_S:
            self._seen.popleft()
        if not self._seen or self.memory is None:
            return ""
        return (
            f"store: evicts what was stored, as its {byte_size(self.memory.limit)} are full ({self.memory.policy}); "
            f"give it more memory, or lower {' and '.join(f'{name}.bytes' for name in self.quotas)}"
        )

    def degraded(self) -> list[str]:
        """Return what is wrong with the store's version and memory, for `/readyz`."""
        lines = [_TOO_OLD] if self._too_old else []
        lines += [line] if (line := self._recent(self._clock())) else []
        if self.memory is not None and self.memory.limit and self.memory.policy.startswith("allkeys"):
            lines.append(
                f"store: may evict anything when it is full ({self.memory.policy}), policies, records and kept "
                "responses too: set its maxmemory-policy to volatile-lfu"
            )
        return lines

    def evicted(self) -> int:
        """Return how many keys the store has evicted since it started; 0 where that is not known."""
        return self.memory.evicted if self.memory is not None else 0


def fitted_quotas(deployment: Deployment, policies: PolicySet, limit: int) -> dict[str, Caps]:
    """Return these quotas in a store of `limit` bytes, of which a quarter is for what else each tenant has.

    Without a limit (0) they are the config's. Each surface of a tenant has a scope for its answers, further ones that
    parts have, and those of a candidate policy; a team is one more owner of scopes.
    """
    tenants = max(1, len(deployment.tenant_names))
    owners = tenants + len(set(deployment.team_of.values()))
    more = sum(part.scopes(policy) for policy in policies.by_surface.values() for part in all_added())
    scopes = max(1, len(policies.by_surface) + more + len(policies.rolling))
    quotas = asked_quotas(deployment)
    of_cache, others = min(limit // 4, limit // 2 // owners) // scopes, max(1, len(quotas) - 1)
    rooms = {name: of_cache if name == "cache" else limit // 4 // tenants // others for name in quotas}
    return {name: _within(asked, rooms[name], limit) for name, asked in quotas.items()}


def _within(asked: StoreQuota, room: int, limit: int) -> Caps:
    if not limit:
        return Caps(asked.entries, asked.bytes)
    return Caps(max(1, min(asked.entries, room // _ENTRY_BYTES)), max(1, min(asked.bytes, int(room * _VALUES))))


def cut_down(asked: StoreQuota, caps: Caps, limit: int) -> str:
    """Return how a quota of the config is cut down by a store of `limit` bytes, in words; '' if it is not."""
    if (asked.entries, asked.bytes) == (caps.entries, caps.bytes):
        return ""
    return (
        f"{asked.entries} entries and {byte_size(asked.bytes)} are cut down to {caps.entries} and "
        f"{byte_size(caps.bytes)}, a tenant's part of the store's {byte_size(limit)}"
    )


def cut_down_quotas(deployment: Deployment, policies: PolicySet) -> Iterator[tuple[str, str]]:
    """Yield the quotas of the config that the embedded store has no room for, with what is in force instead.

    Another store says how much memory it has when the gateway starts, which logs the same. The defaults are not told.
    """
    if deployment.store.url is not None:
        return
    limit = deployment.store.memory
    fitted, quotas = fitted_quotas(deployment, policies, limit), asked_quotas(deployment)
    for name, asked in quotas.items():
        caps = fitted[name]
        if asked.model_fields_set & QUOTAS and (doubt := cut_down(asked, caps, limit)):
            yield name, doubt
