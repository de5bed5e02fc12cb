"""Administer a cache: list its scopes, show an entry, purge a surface, a tag or an entry.

It uses the store alone, so a command can do it as well as a gateway. Nothing here is on the path of a request. When a
purge returns, no worker serves what it names to a request that arrives afterwards:

    surface   its generation is raised; after one second no worker reads the old keys, and their memory is freed
    tag       its version in each scope changes: every entry with the tag is a miss at once
    entry     it is deleted with every copy that a semantic hit made of it; an index drops it at the next lookup. It can
              be put back for a while, where that was wanted

Requests that arrive afterwards are cached as usual.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import struct
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import orjson

from cache.entry import CacheEntry, CorruptEntry, decode, id_of
from cache.scopes import tags
from cache.scopes.scope import (
    ENTRY,
    GENERATIONS,
    LISTED,
    SCHEMA,
    SEEN_S,
    Caps,
    Scope,
    drop,
    generation_of,
    generations_in,
    keys_of,
    prefix_of,
    put,
    read_generations,
)
from cache.store.base import Command, Store, StoreUnavailable

_LIMIT_S: Final = 2.0
_AT_ONCE: Final = 500
_TIDY_S: Final = 3_600.0
UNDO_S: Final = 900
"""How long a deleted entry can be put back, in seconds."""
_ASIDE: Final = f"tierline:{SCHEMA}:undo:"
_MOST_ASIDE: Final = 32
"""Most entries that are kept for that, the entry itself first: a copy is as large as it is."""
_MOST_ASIDE_BYTES: Final = 8 << 20
_NO_CAPS: Final = Caps(1 << 40, 1 << 50)
"""What is put back displaces nothing; the next write brings the scope back within its limits."""

_LENGTH: Final = struct.Struct(">I")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listed:
    """A registered scope; `until` is in seconds since 1970."""

    scope: Scope
    until: float


@dataclass(frozen=True, slots=True)
class Placed:
    """One entry as the size hash records it: its digest, its bytes, and the original's digest if it is a copy."""

    digest: str
    bytes: int
    origin: str


@dataclass(frozen=True, slots=True)
class ScopeStats:
    """The size of one scope. `current` is False for a scope of an older generation, left behind by a purge."""

    scope: Scope
    entries: int
    bytes: int
    current: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A stored entry with its scope. `key` is its key in the store, `copies` are digests of other keys to it."""

    scope: Scope
    key: str
    bytes: int
    entry: CacheEntry
    copies: tuple[str, ...]

    @property
    def id(self) -> str:
        """The entry's id in headers and traces."""
        return id_of(self.key)


@dataclass(frozen=True, slots=True)
class Purged:
    """The reach of a purge: the number of scopes, and the entries and bytes that it freed at once."""

    scopes: int
    entries: int = 0
    bytes: int = 0


class Administration:
    """List, show and purge entries. Every method raises StoreUnavailable. `clock` is the wall clock in seconds.

    `seen_s`: seconds after which every worker has either read a purge or stopped using the cache.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.time, *, seen_s: float = SEEN_S) -> None:
        self._store = store
        self._clock = clock
        self._seen_s = seen_s

    async def scopes(self, surface: str | None = None, owners: Collection[str] | None = None) -> list[Listed]:
        """Return the scopes that may hold entries, limited to this surface and these owners if given."""
        (reply,) = await self._ask(_read_scopes())
        return [
            listed
            for listed in _scopes_in(reply)
            if surface in (None, listed.scope.surface) and (owners is None or _covers(owners, listed.scope.owner))
        ]

    async def stats(self) -> list[ScopeStats]:
        """Return each scope's size, by surface and owner. Expired entries count until the scope is next written to."""
        listed = await self.scopes()
        (reply,) = await self._ask(read_generations())
        raised = generations_in(reply)
        stats = []
        for some in _batches(listed, _AT_ONCE):
            replies = await self._ask(*(command for entry in some for command in _measured(entry.scope.prefix)))
            for listed_scope, count, size in zip(some, replies[::2], replies[1::2], strict=True):
                scope, entries = listed_scope.scope, max(0, int(count) - 1)
                if entries:
                    stats.append(ScopeStats(scope, entries, int(size or 0), _is_current(scope, raised)))
        return stats

    async def find(self, entry_id: str, within: Sequence[Listed] | None = None) -> Found | None:
        """Return the entry whose id starts with `entry_id`, 12 or more hex digits; None if these scopes have none."""
        for listed_scope in await self.scopes() if within is None else within:
            match: Placed | None = None
            copies = []
            async for placed in self._placed(listed_scope.scope):
                if placed.digest.startswith(entry_id):
                    match = placed
                elif placed.origin and placed.origin.startswith(entry_id):
                    copies.append(placed.digest)
            if match is not None and (read := await self._read(listed_scope.scope, match, tuple(copies))):
                return read
        return None

    async def remove(
        self,
        entry_id: str,
        within: Sequence[Listed] | None = None,
        created_at: float | None = None,
        *,
        undo: str = "",
    ) -> Found | None:
        """Delete an entry with its copies and, if it is a copy itself, the original; return it, or None.

        If `created_at` is given, an entry of another time of creation is a different answer and stays. With a name in
        `undo`, what is deleted can be put back under that name for UNDO_S seconds.
        """
        entry = await self.find(entry_id, within)
        if entry is None or created_at not in (None, entry.entry.created_at):
            if undo:  # what else was done about it can be undone all the same
                ttl_ms = b"%d" % (UNDO_S * 1000)
                await self._ask(Command((b"SET", f"{_ASIDE}{undo}".encode(), b"", b"NX", b"PX", ttl_ms)))
            return None
        digests = [entry.key.rpartition(ENTRY)[2], *entry.copies]
        if origin := entry.entry.origin:
            digests += [
                placed.digest
                async for placed in self._placed(entry.scope)
                if origin in (placed.digest, placed.origin) and placed.digest not in digests
            ]
        if undo:
            await self._set_aside(entry.scope, digests, origin or digests[0], undo)
        await self._ask(drop(entry.scope.prefix, digests, self._clock()))
        # Copies that were written since they were listed; from now on none is.
        late = [each.digest async for each in self._placed(entry.scope) if each.origin in digests]
        if late:
            await self._ask(drop(entry.scope.prefix, late, self._clock()))
        return entry

    async def put_back(self, undo: str) -> int | None:
        """Store again what was deleted under that name; return how many entries, None if it is kept no more.

        Answers that were stored since are newer and stay, and so do the indexes: one that has dropped the entry finds
        it no more by meaning.
        """
        key_of_it = f"{_ASIDE}{undo}".encode()
        (data,) = await self._ask(Command((b"GET", key_of_it)))
        if not isinstance(data, bytes):
            return None
        kept, back = list(_unpacked(data)), set[str]()
        gone = {key.rpartition(ENTRY)[2] for key, _ in kept}
        for key, value in kept:
            with contextlib.suppress(CorruptEntry):
                entry = decode(key, value)
                (there,) = await self._ask(Command((b"EXISTS", key.encode())))
                left_s, origin = entry.expires_at - self._clock(), entry.origin
                if there or left_s <= 0 or origin in gone - back:  # a copy of what has a newer answer is no use
                    continue
                prefix, _, digest = key.rpartition(ENTRY)
                written = put(key, value, left_s, entry.created_at, _NO_CAPS, origin)
                await self._ask(_allow(prefix, digest), written)
                back.add(digest)
        await self._ask(Command((b"DEL", key_of_it)))
        return len(back)

    async def can_put_back(self, undo: str) -> bool:
        """Return whether what was deleted under that name is still kept."""
        (there,) = await self._ask(Command((b"EXISTS", f"{_ASIDE}{undo}".encode())))
        return bool(there)

    async def _set_aside(self, scope: Scope, digests: Sequence[str], origin: str, undo: str) -> None:
        # The original comes first: a copy is not written without it.
        ordered = sorted(digests, key=lambda digest: digest != origin)[:_MOST_ASIDE]
        kept: list[tuple[str, bytes]] = []
        for digest in ordered:
            key = f"{scope.prefix}{ENTRY}{digest}"
            (value,) = await self._ask(Command((b"GET", key.encode())))
            if isinstance(value, bytes) and sum(len(blob) for _, blob in kept) + len(value) <= _MOST_ASIDE_BYTES:
                kept.append((key, value))
        ttl_ms = b"%d" % (UNDO_S * 1000)
        await self._ask(Command((b"SET", f"{_ASIDE}{undo}".encode(), _packed(kept), b"PX", ttl_ms)))

    async def remove_wrong(
        self, entry_id: str, surface: str, owners: Collection[str], created_at: float | None = None, *, undo: str = ""
    ) -> Found | None:
        """Delete an entry that was wrongly served to these owners of answers on a surface, as `remove` does."""
        return await self.remove(entry_id, await self.scopes(surface, owners), created_at, undo=undo)

    async def purge_surface(self, surface: str, owner: str | None = None) -> Purged:
        """Make every entry of a surface unreachable, for one owner or for all, and free their memory; takes a second.

        Answers in progress are purged too, except those whose worker has read the purge before it stores them.
        """
        await self._ask(_raise_generation(surface, owner))
        await asyncio.sleep(self._seen_s)
        (reply,) = await self._ask(read_generations())
        raised = generations_in(reply)
        listed = await self.scopes(surface, None if owner is None else {owner})
        reached, entries, size = [entry for entry in listed if not _is_current(entry.scope, raised)], 0, 0
        for listed_scope in reached:
            placed = [each async for each in self._placed(listed_scope.scope)]
            for some in _batches(placed, _AT_ONCE):
                await self._ask(drop(listed_scope.scope.prefix, [each.digest for each in some]))
            entries += len(placed)
            size += sum(each.bytes for each in placed)
        return Purged(len(reached), entries, size)

    async def purge_tag(self, tag: str, surface: str | None = None, owner: str | None = None) -> Purged:
        """Make every entry with the tag a miss, including those being written. Their memory is freed later."""
        reached = await self.scopes(surface, None if owner is None else {owner})
        for some in _batches(reached, _AT_ONCE):
            await self._ask(*(_tag_purged(listed_scope.scope.prefix, tag) for listed_scope in some))
        return Purged(len(reached))

    async def tidy(self) -> None:
        """Remove scopes that cannot hold entries any more from the list, and their tags from the store."""
        now = self._clock()
        for some in _batches([entry.scope for entry in await self.scopes() if entry.until < now], _AT_ONCE):
            gone = (Command((b"DEL", tags.table_of(scope.prefix).encode())) for scope in some)
            await self._ask(*gone, *map(_unlisted, some))

    async def _placed(self, scope: Scope) -> AsyncIterator[Placed]:
        cursor = b"0"
        while True:
            (reply,) = await self._ask(_page(scope.prefix, cursor))
            cursor, placed = _paged(reply)
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


def _packed(entries: Sequence[tuple[str, bytes]]) -> bytes:
    """Return keys and values as bytes, each with its length before it."""
    return b"".join(_LENGTH.pack(len(part)) + part for key, value in entries for part in (key.encode(), value))


def _unpacked(data: bytes) -> Iterator[tuple[str, bytes]]:
    parts, at = [], 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + length
        parts.append(data[at - length : at])
    for key, value in zip(parts[::2], parts[1::2], strict=True):
        yield key.decode(), value


def _is_current(scope: Scope, raised: Mapping[str, int]) -> bool:
    """Return whether the scope is of the present generation."""
    return scope.generation == generation_of(raised, scope.owner, scope.surface)


def _batches(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


class Tidying:
    """Tidy the list of scopes about once an hour, in one worker or several: they come at different times."""

    def __init__(self, store: Store) -> None:
        self._administration = Administration(store)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start it; the event loop runs."""
        self._task = asyncio.create_task(self._run(), name="cache-tidy")

    async def aclose(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_TIDY_S * random.uniform(0.5, 1.5))  # noqa: S311  (not all workers at once)
            with contextlib.suppress(StoreUnavailable):
                await self._administration.tidy()


def _covers(owners: Collection[str], owner: str) -> bool:
    """Return whether an owner is one of these, or a team within a tenant that is."""
    return owner in owners or owner.partition("/")[0] in owners


def _raise_generation(surface: str, owner: str | None) -> Command:
    """Return the command that raises a surface's generation, for one owner or, with None, for everybody."""
    field = surface if owner is None else f"{surface} {owner}"
    return Command((b"HINCRBY", GENERATIONS.encode(), field.encode(), b"1"))


def _read_scopes() -> Command:
    """Return the command that reads all scopes; `_scopes_in` reads the reply."""
    return Command((b"HGETALL", LISTED.encode()))


def _scopes_in(reply: object) -> list[Listed]:
    """Return the scopes in a reply to `_read_scopes`, by surface and owner, the latest generation first."""
    if not isinstance(reply, list):
        return []
    listed = []
    for digest, value in zip(reply[::2], reply[1::2], strict=False):
        with contextlib.suppress(ValueError, TypeError):  # malformed
            *words, until = orjson.loads(value)
            listed.append(Listed(Scope(prefix_of(digest.decode()), *words), until))
    return sorted(listed, key=lambda row: (row.scope.surface, row.scope.owner, -row.scope.generation, -row.until))


def _unlisted(scope: Scope) -> Command:
    """Return the command that removes a scope from the list."""
    return Command((b"HDEL", LISTED.encode(), scope.digest.encode()))


def _measured(prefix: str) -> tuple[Command, Command]:
    """Return the commands that read the number of entries (plus 1) and of bytes in a scope."""
    sizes, _ = keys_of(prefix)
    return Command((b"HLEN", sizes)), Command((b"HGET", sizes, b""))


def _page(prefix: str, cursor: bytes = b"0") -> Command:
    """Return the command that reads a page of a scope's entries; `_paged` reads the reply."""
    return Command((b"HSCAN", keys_of(prefix)[0], cursor, b"COUNT", b"1000"))


def _paged(reply: object) -> tuple[bytes, list[Placed]]:
    """Return the cursor of the next page (b"0" after the last), and the entries of this one."""
    if not isinstance(reply, list) or len(reply) != 2:
        return b"0", []
    cursor, fields = reply
    entries = []
    for name, value in zip(fields[::2], fields[1::2], strict=False):
        size, _, origin = value.partition(b" ")
        if name and size.isdigit():
            entries.append(Placed(name.decode(), int(size), origin.decode()))
    return cursor, entries


def _allow(prefix: str, digest: str) -> Command:
    """Return the command that lets an entry be written again that was deleted for good."""
    return Command((b"ZREM", keys_of(prefix)[0] + b":gone", digest.encode()))


def _tag_purged(prefix: str, name: str) -> Command:
    """Return the command that gives a tag a new random version."""
    return Command((b"HSET", tags.table_of(prefix).encode(), name.encode(), secrets.token_hex(8).encode()))
