"""What people do with a cache: look what is there, show an entry, purge a surface, a tag or an entry.

It works on the store alone, so a command does it as well as a gateway. Nothing here is on the path of a request. When
a purge returns, no worker gives what it names to a request that comes from then on:

    surface   one number is raised; when a second is over no worker asks for the old keys, and their room is freed
    tag       each scope's version of it moves: at once every entry drawn from it is a miss
    entry     it goes, and with it every copy that a semantic hit made of it; an index forgets it at the next lookup

What is asked for from then on is kept as ever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from cache.codec import CorruptEntry, decode
from cache.entry import CacheEntry
from cache.scopes import generations, registry, shelf, tags
from cache.scopes.registry import Listed
from cache.scopes.scope import Scope
from cache.scopes.shelf import ENTRY, Placed
from cache.store.base import Command, Store

ID_CHARS: Final = 12
_LIMIT_S: Final = 2.0
_AT_ONCE: Final = 500

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ScopeStats:
    """What one scope holds. `current` is False for one that a purge has left behind."""

    scope: Scope
    entries: int
    bytes: int
    current: bool


@dataclass(frozen=True, slots=True)
class Found:
    """An entry and where it lies. `key` is its key in the store, `copies` are other keys that its answer is under."""

    scope: Scope
    key: str
    bytes: int
    entry: CacheEntry
    copies: tuple[str, ...]

    @property
    def id(self) -> str:
        """As it is in headers and traces."""
        return id_of(self.key)


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge reached: so many scopes, and the entries and bytes that it freed at once."""

    scopes: int
    entries: int = 0
    bytes: int = 0


class Administration:
    """See the module's docstring. Every method raises StoreUnavailable. `clock` is the wall clock, in seconds.

    `seen_s`: after how long every worker has seen a purge, or takes no part in the cache.
    """

    def __init__(
        self, store: Store, clock: Callable[[], float] = time.time, *, seen_s: float = generations.SEEN_S
    ) -> None:
        self._store = store
        self._clock = clock
        self._seen_s = seen_s

    async def scopes(self, surface: str | None = None, owners: Collection[str] | None = None) -> list[Listed]:
        """The scopes that may hold something, of this surface and these owners where they are named."""
        (reply,) = await self._ask(registry.read())
        return [
            one
            for one in registry.parsed(reply)
            if surface in (None, one.scope.surface) and (owners is None or one.scope.owner in owners)
        ]

    async def stats(self) -> list[ScopeStats]:
        """What each scope holds, by surface and owner. Expired entries count until the scope is next written to."""
        listed = await self.scopes()
        (reply,) = await self._ask(generations.read())
        raised = generations.parsed(reply)
        found = []
        for some in _batches(listed, _AT_ONCE):
            replies = await self._ask(*(command for one in some for command in shelf.measured(one.scope.prefix)))
            for one, count, size in zip(some, replies[::2], replies[1::2], strict=True):
                scope, entries = one.scope, max(0, int(count) - 1)
                if entries:
                    found.append(ScopeStats(scope, entries, int(size or 0), _is_current(scope, raised)))
        return found

    async def find(self, entry_id: str, within: Sequence[Listed] | None = None) -> Found | None:
        """The entry whose id begins so, 12 or more hex digits, in any scope or in these; None where there is none."""
        for one in await self.scopes() if within is None else within:
            found: Placed | None = None
            copies = []
            async for placed in self._placed(one.scope):
                if placed.digest.startswith(entry_id):
                    found = placed
                elif placed.origin and placed.origin.startswith(entry_id):
                    copies.append(placed.digest)
            if found is not None and (read := await self._read(one.scope, found, tuple(copies))):
                return read
        return None

    async def remove(
        self, entry_id: str, within: Sequence[Listed] | None = None, created_at: float | None = None
    ) -> Found | None:
        """Removes an entry with its copies, and where it is a copy itself, what it was copied from; what it was.

        Where `created_at` says which answer is meant, another one that has taken its place stays.
        """
        found = await self.find(entry_id, within)
        if found is None or created_at not in (None, found.entry.created_at):
            return None
        digests = [found.key.rpartition(ENTRY)[2], *found.copies]
        if origin := found.entry.origin:
            digests += [
                placed.digest
                async for placed in self._placed(found.scope)
                if origin in (placed.digest, placed.origin) and placed.digest not in digests
            ]
        await self._ask(shelf.drop(found.scope.prefix, digests))
        return found

    async def purge_surface(self, surface: str, owner: str | None = None) -> Purged:
        """Makes every entry of a surface unreachable, for one owner or for all, and frees their room; takes a second.

        An answer that is being made goes too; one that a worker keeps when it has seen the purge stays.
        """
        await self._ask(generations.raised(surface, owner))
        await asyncio.sleep(self._seen_s)
        (reply,) = await self._ask(generations.read())
        raised = generations.parsed(reply)
        listed = await self.scopes(surface, None if owner is None else {owner})
        reached, entries, size = [one for one in listed if not _is_current(one.scope, raised)], 0, 0
        for one in reached:
            placed = [each async for each in self._placed(one.scope)]
            for some in _batches(placed, _AT_ONCE):
                await self._ask(shelf.drop(one.scope.prefix, [each.digest for each in some]))
            entries += len(placed)
            size += sum(each.bytes for each in placed)
        return Purged(len(reached), entries, size)

    async def purge_tag(self, tag: str, surface: str | None = None, owner: str | None = None) -> Purged:
        """Makes every entry drawn from a source a miss, those being written now too. Their room is freed in time."""
        reached = await self.scopes(surface, None if owner is None else {owner})
        for some in _batches(reached, _AT_ONCE):
            await self._ask(*(tags.purged(one.scope.prefix, tag) for one in some))
        return Purged(len(reached))

    async def tidy(self) -> None:
        """Takes scopes off the list that can hold nothing any more, and their tags out of the store."""
        now = self._clock()
        for some in _batches([one.scope for one in await self.scopes() if one.until < now], _AT_ONCE):
            gone = (Command((b"DEL", tags.table_of(scope.prefix).encode())) for scope in some)
            await self._ask(*gone, *map(registry.struck, some))

    async def _placed(self, scope: Scope) -> AsyncIterator[Placed]:
        cursor = b"0"
        while True:
            (reply,) = await self._ask(shelf.page(scope.prefix, cursor))
            cursor, placed = shelf.paged(reply)
            for each in placed:
                yield each
            if cursor == b"0":
                return

    async def _read(self, scope: Scope, placed: Placed, copies: tuple[str, ...]) -> Found | None:
        key = f"{scope.prefix}{ENTRY}{placed.digest}"
        (data,) = await self._ask(Command((b"GET", key.encode())))
        if not isinstance(data, bytes):
            return None
        try:
            return Found(scope, key, placed.bytes, decode(key, data), copies)
        except CorruptEntry:
            return None

    async def _ask(self, *commands: Command) -> list[Any]:
        return await self._store.ask(commands, _LIMIT_S) if commands else []


def id_of(key: str) -> str:
    """The id of the entry under a key, as it is in headers and traces."""
    return key.rpartition(":")[2][:ID_CHARS]


def _is_current(scope: Scope, raised: Mapping[str, int]) -> bool:
    """Whether no purge has left the scope behind."""
    return scope.generation == generations.of(raised, scope.owner, scope.surface)


def _batches(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
