"""Read one entry, stored or pending, and decide whether it may be served to this request.

An entry that is absent, corrupt, expired, of a disallowed tier, or drawn from a source that has changed is a miss with
a reason. A store that does not answer is an outcome too: nothing here raises for it.

A pending answer is finished but not stored yet. Its producer adds it before its last byte is sent, and removes it when
the write has succeeded or failed: an answer that the store rejected is not served again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, KeysView, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cache.entry import NO_DEMANDS, CacheEntry, CorruptEntry, Lookup, Outcome, decode
from cache.planning.plan import CachePlan
from cache.scopes import tags
from cache.scopes.scope import ENTRY
from cache.store.base import Command, Store, StoreUnavailable
from cache.write import PendingWrite, WritePlanner, longest_ttl

if TYPE_CHECKING:
    from cache.scopes.scope import Registry

log = logging.getLogger("tierline.cache")

MOST: Final = 4_096
LONGEST_S: Final = 2.0
"""Maximum time in seconds that an answer is served from here; a write takes a few hundredths of a second."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """An answer that is not in the store yet. `contested`: one of a stronger tier may be there, and has priority."""

    entry: CacheEntry
    contested: bool


class Pending:
    """One worker's pending answers by key. `clock` is monotonic, in seconds; above `most` the oldest are dropped."""

    def __init__(
        self, store: Store, keeper: WritePlanner, *, clock: Callable[[], float] = time.monotonic, most: int = MOST
    ) -> None:
        self._stored = store.state().status != "unconfigured"
        self._keeper = keeper
        self._clock = clock
        self._most = most
        self._added: dict[str, tuple[PendingWrite, float]] = {}
        self.keys: KeysView[str] = self._added.keys()
        """The keys under which answers are pending, also those that `get` will find unusable."""

    def __len__(self) -> int:
        return len(self._added)

    def add(self, keeping: PendingWrite) -> None:
        """Add a finished answer that is about to be stored."""
        keys = keeping.plan.keys
        if keys is None or keeping.plan.policy.exact is None or not self._stored:
            return
        self._added.pop(keys.key, None)  # moves the key to the end of the insertion order
        self._added[keys.key] = (keeping, self._clock() + LONGEST_S)
        if len(self._added) > self._most:
            del self._added[next(iter(self._added))]

    def done(self, keeping: PendingWrite) -> None:
        """Remove an answer that was stored or has failed. A later one under the same key stays."""
        keys = keeping.plan.keys
        if keys is not None and (added := self._added.get(keys.key)) is not None and added[0] is keeping:
            del self._added[keys.key]

    def get(self, key: str) -> Waiting | None:
        """Return the answer pending under this key; None if there is none, or it may not be cached."""
        added = self._added.get(key)
        if added is None:
            return None
        keeping, until = added
        if self._clock() < until:
            try:
                keep = keeping.keep()
                entry = None if keep is None else self._keeper.entry(keep)
            except Exception:
                # The answer is unvalidated JSON from a backend; the write itself reports what is wrong with it.
                log.debug("a pending answer could not be converted to a cache entry", exc_info=True)
            else:
                if keep is not None and isinstance(entry, CacheEntry):
                    return Waiting(entry, keep.contested)
        self.done(keeping)
        return None


Read = Callable[[str], Awaitable[bytes | None]]
"""Returns the value of a key in the store, or None. Raises StoreUnavailable."""
_NO_VERSIONS: Final[tags.Versions] = ()
_ABSENT: Final = Lookup("miss", reason="absent")
_OUTCOMES: Final[Mapping[str, Outcome]] = {"timeout": "timeout", "open": "open"}


class EntryReader:
    """Read entries. `clock` is the wall clock in seconds; `later` runs a small task off the request's path."""

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
        """Return the entry under `key` if it may be served, else the lookup's result.

        A pending answer takes precedence over the stored one, unless the stored one is of a stronger tier.
        """
        versions, stored = _NO_VERSIONS, _ABSENT
        pending = self._pending
        waiting = pending.get(key) if key in pending.keys else None
        try:
            if waiting is None or waiting.contested:
                if plan.tags is None:
                    data = await (read or self._store.get)(key)
                else:
                    data, versions = await self.versions(plan, key)
                waiting = pending.get(key) if key in pending.keys else None  # one may have been added meanwhile
                result: CacheEntry | Lookup = _ABSENT
                if data is not None:
                    try:
                        entry = decode(key, data)
                    except CorruptEntry:
                        result = self._corrupt(key)
                    else:
                        result = await self._servable(plan, key, entry, versions, ttl_s, allowed_tiers)
                if waiting is None:
                    return result
                if isinstance(result, Lookup):
                    stored = result
                elif plan.outranks(result.tier, waiting.entry.tier):
                    return result
            elif plan.tags is not None:
                _, versions = await self.versions(plan)
        except StoreUnavailable as error:
            if error.reason == "wrong_type":
                return self._corrupt(key)
            return unanswered(error)
        result = await self._servable(plan, key, waiting.entry, versions, ttl_s, allowed_tiers)
        return result if isinstance(result, CacheEntry) or stored is _ABSENT else stored

    async def _servable(
        self,
        plan: CachePlan,
        key: str,
        entry: CacheEntry,
        versions: tags.Versions,
        ttl_s: float,
        allowed_tiers: Set[str] | None,
    ) -> CacheEntry | Lookup:
        """Return the entry if this request may have it, else a miss with the reason."""
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
        """Return the value of `key`, if one is given, and the versions of the request's tags, in one round trip.

        A scope with tags is registered before any model is called, so that a concurrent tag purge includes it.
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
        """Return a miss if a tag of the entry was purged after it was made (or the store fails); None if none was."""
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
    """Return the lookup's result where the store could not be asked, with the error's reason."""
    return Lookup(_OUTCOMES.get(error.reason, "error"), reason=error.reason)
