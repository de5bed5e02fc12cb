"""One entry, stored or on its way to the store: may it be served to this request, or how does the lookup end?

It may be gone, garbage, out of date, of the wrong tier, or drawn from a source that has changed since: each is a miss,
with its reason. A store that does not answer is an outcome too; nothing here raises for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Set
from typing import Any, Final

from cache.codec import CorruptEntry, decode
from cache.entry import CacheEntry, Lookup, Outcome
from cache.pending import Pending
from cache.planning.plan import NO_DEMANDS, CachePlan
from cache.scopes import tags
from cache.scopes.registry import Registry
from cache.scopes.shelf import ENTRY
from cache.store.base import Command, Store, StoreUnavailable
from cache.write import longest_ttl

Read = Callable[[str], Awaitable[bytes | None]]
"""What lies under a key of the store; raises StoreUnavailable."""
_NO_VERSIONS: Final[tags.Versions] = ()
_ABSENT: Final = Lookup("miss", reason="absent")
_OUTCOMES: Final[Mapping[str, Outcome]] = {"timeout": "timeout", "open": "open"}


class EntryReader:
    """Reads them. `clock` is the wall clock; `later` does something small off the request's path."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        pending: Pending,
        clock: Callable[[], float],
        later: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._store = store
        self._registry = registry
        self._pending = pending
        self._clock = clock
        self._later = later

    async def under(
        self, plan: CachePlan, key: str, ttl_s: float, allowed_tiers: Set[str] | None, read: Read | None = None
    ) -> CacheEntry | Lookup:
        """The entry under `key` when it may be served, else how the lookup ends.

        An answer that waits for the store goes before what is stored, unless that is a stronger tier's.
        """
        versions, stored = _NO_VERSIONS, _ABSENT
        waiting = self._pending.get(key)
        try:
            if waiting is None or waiting.contested:
                if plan.tags is None:
                    data = await (read or self._store.get)(key)
                else:
                    data, versions = await self.versions(plan, key)
                waiting = self._pending.get(key)  # one may have come meanwhile
                found = await self._servable(plan, key, self._decoded(key, data), versions, ttl_s, allowed_tiers)
                if waiting is None:
                    return found
                if isinstance(found, Lookup):
                    stored = found
                elif plan.outranks(found.tier, waiting.entry.tier):
                    return found
            elif plan.tags is not None:
                _, versions = await self.versions(plan)
        except StoreUnavailable as error:
            if error.reason == "wrong_type":
                return self._corrupt(key)
            return unanswered(error)
        found = await self._servable(plan, key, waiting.entry, versions, ttl_s, allowed_tiers)
        return found if isinstance(found, CacheEntry) or stored is _ABSENT else stored

    def _decoded(self, key: str, data: bytes | None) -> CacheEntry | Lookup:
        if data is None:
            return _ABSENT
        try:
            return decode(key, data)
        except CorruptEntry:
            return self._corrupt(key)

    async def _servable(
        self,
        plan: CachePlan,
        key: str,
        entry: CacheEntry | Lookup,
        versions: tags.Versions,
        ttl_s: float,
        allowed_tiers: Set[str] | None,
    ) -> CacheEntry | Lookup:
        """The entry if this request may have it, else why not; of a lookup that has ended, its end."""
        if isinstance(entry, Lookup):
            return entry
        now, demands = self._clock(), plan.demands
        left_s = min(entry.expires_at, entry.created_at + ttl_s) - now
        if left_s <= 0:
            return Lookup("miss", reason="expired")
        if demands is not NO_DEMANDS and (unmet := demands.unmet(now - entry.created_at, left_s, entry.similarity)):
            return Lookup("miss", reason=unmet)
        if allowed_tiers is not None and entry.tier not in allowed_tiers:
            return Lookup("miss", reason="tier")
        if entry.tags and (changed := await self._source_changed(key, entry, versions)):
            return changed
        return entry

    async def versions(self, plan: CachePlan, key: str = "") -> tuple[bytes | None, tags.Versions]:
        """What lies under `key`, if one is given, and the versions of the request's tags, in one round trip.

        A scope that has tags is listed before any model is asked: who purges a tag in this very moment must find it.
        """
        if plan.tags is None or plan.scope is None:
            return None, _NO_VERSIONS
        entering = self._registry.enter(plan.scope, longest_ttl(plan.policy))
        reading = [Command((b"GET", key.encode()))] if key else []
        try:
            replies = await self._store.ask([*entering, *reading, tags.versions_of(plan.scope.prefix, plan.tags.names)])
        except StoreUnavailable:
            self._registry.forget()
            raise
        return replies[-2] if key else None, plan.tags.seen(replies[-1])

    async def _source_changed(self, key: str, entry: CacheEntry, versions: tags.Versions) -> Lookup | None:
        """The miss that an entry is whose tags have moved since; None when none has."""
        changed = tags.moved(entry.tags, versions)
        if changed is None:
            names = [name for name, _ in entry.tags]
            try:
                (reply,) = await self._store.ask([tags.versions_of(key.partition(ENTRY)[0], names)])
            except StoreUnavailable as error:
                return unanswered(error)
            changed = tags.moved(entry.tags, tags.paired(names, reply))
        return None if changed is False else Lookup("miss", reason="tag")

    def _corrupt(self, key: str) -> Lookup:
        self._later(self._store.delete(key))
        return Lookup("miss", reason="corrupt")


def unanswered(error: StoreUnavailable) -> Lookup:
    """How a lookup ends that the store does not answer."""
    return Lookup(_OUTCOMES.get(error.reason, "error"), reason=error.reason)
