"""Keep a copy of the keys that were used on disk, so that they are known while the store is down or has lost them.

One SQLite file in the state folder, readable by its owner alone, is shared by the workers of a host. It holds digests
and records, never a key. All that touches it runs in one thread of the worker, in the order of the calls; where it
cannot be read or written, that is logged once, and the worker goes on without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from gateway.parts.access.keys.records import KeyRecord, OwnerRecord, key_from, owner_from, to_json
from gateway.parts.access.keys.registry import FoundKey

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")
log = logging.getLogger("tierline.keys")

_MOST: Final = 100_000
"""Most keys that are kept; those that were looked up longest ago go first."""
_TABLES: Final = """
PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA cache_size = -512;
CREATE TABLE IF NOT EXISTS keys (digest TEXT PRIMARY KEY, record BLOB, revision INTEGER, used REAL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_use ON keys (used);
CREATE TABLE IF NOT EXISTS owners (name TEXT PRIMARY KEY, record BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reached (one INTEGER PRIMARY KEY, revision INTEGER);
"""
_PAGE: Final = "SELECT record FROM keys WHERE digest > ? ORDER BY digest LIMIT 500"
_OWNERS: Final = "SELECT record FROM owners"
_KEEP: Final = """INSERT INTO keys VALUES (?, ?, ?, ?) ON CONFLICT (digest) DO UPDATE
SET record = excluded.record, revision = excluded.revision, used = excluded.used WHERE excluded.revision >= revision"""


def copy_file(state: Path, store_url: str) -> Path:
    """Return the file of the copy in the state folder: each store has its own."""
    return state / f"keys-{hashlib.sha256(store_url.encode()).hexdigest()[:12]}.sqlite3"


class KeptKeys:
    """The copy of the store's keys in one file, which is created when the first key is kept."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(1, "tierline-keys")
        self._opened: sqlite3.Connection | None = None
        self._failed = False

    async def find(self, digest: str) -> FoundKey | None:
        """Return the key of a digest with its owners; None if it is not kept."""
        return await self._do(lambda rows: _found(rows, digest), None)

    async def keep(self, found: Sequence[FoundKey]) -> None:
        """Keep keys that were looked up, with their owners."""
        keys = [(key.record.digest, to_json(key.record), key.record.revision, time.time()) for key in found]
        owners = {f"{one.kind}:{one.name}": one for key in found for one in (key.team, key.tenant) if one is not None}

        def write(rows: sqlite3.Connection) -> None:
            rows.executemany(_KEEP, keys)
            _put_owners(rows, owners.items())
            last = rows.execute("SELECT used FROM keys ORDER BY used DESC LIMIT 1 OFFSET ?", (_MOST,)).fetchone()
            if last is not None:
                rows.execute("DELETE FROM keys WHERE used <= ?", last)

        await self._do(write, None, creates=True)

    async def change(
        self,
        keys: Iterable[tuple[str, KeyRecord | None]],
        owners: Iterable[tuple[str, OwnerRecord | None]],
        revision: int | None = None,
    ) -> None:
        """Take over changes of what is kept, None for what is gone; the copy has reached `revision` then."""
        changed, terms = list(keys), list(owners)

        def write(rows: sqlite3.Connection) -> None:
            for digest, record in changed:
                if record is None:
                    rows.execute("DELETE FROM keys WHERE digest = ?", (digest,))
                else:
                    rows.execute(
                        "UPDATE keys SET record = ?, revision = ? WHERE digest = ?",
                        (to_json(record), record.revision, digest),
                    )
            _put_owners(rows, terms)
            if revision is not None:
                rows.execute("INSERT OR REPLACE INTO reached VALUES (1, ?)", (revision,))

        await self._do(write, None)

    async def reached(self) -> int:
        """Return the registry's revision up to which the copy has all changes; 0 for a new one."""
        return await self._do(lambda rows: (rows.execute("SELECT revision FROM reached").fetchone() or (0,))[0], 0)

    async def pages(self) -> AsyncIterator[list[KeyRecord]]:
        """Yield all keys that are kept, some at a time."""
        after, none = "", list[KeyRecord]()
        while keys := await self._do(partial(_page, after), none):
            yield keys
            after = keys[-1].digest

    async def owners(self) -> list[OwnerRecord]:
        """Return all teams and tenants that are kept."""
        return await self._do(lambda rows: [owner_from(blob) for (blob,) in rows.execute(_OWNERS)], [])

    async def aclose(self) -> None:
        """Close the file."""
        if self._opened is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._opened.close)
        self._thread.shutdown(wait=False)

    async def _do(self, work: Callable[[sqlite3.Connection], T], without: T, *, creates: bool = False) -> T:
        """Return what `work` returns, in the thread; `without` where the file fails, or is not there."""
        done = partial(self._done, work, without, creates=creates)
        return await asyncio.get_running_loop().run_in_executor(self._thread, done)

    def _done(self, work: Callable[[sqlite3.Connection], T], without: T, *, creates: bool) -> T:
        if self._opened is None and not creates and not self._file.exists():
            return without
        import sqlite3  # gateways without keys do not need it

        try:
            with self._open() as rows:
                return work(rows)
        except (sqlite3.Error, OSError, ValueError, KeyError, TypeError) as error:
            if not self._failed:
                log.warning("keys: the copy in %s cannot be used (%s); the store alone knows keys", self._file, error)
            self._failed = True
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                with contextlib.suppress(OSError):  # it is no database any more: the next call makes a new one
                    self._file.unlink()
                self._opened = None
            return without

    def _open(self) -> sqlite3.Connection:
        import sqlite3

        if self._opened is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._file, os.O_CREAT | os.O_RDWR, 0o600))
            opened = sqlite3.connect(self._file, timeout=5.0, check_same_thread=False)
            opened.executescript(_TABLES)
            self._opened = opened
        return self._opened


def _found(rows: sqlite3.Connection, digest: str) -> FoundKey | None:
    row = rows.execute("SELECT record FROM keys WHERE digest = ?", (digest,)).fetchone()
    if row is None:
        return None
    record = key_from(row[0])
    owners = []
    for name in (f"team:{record.tenant}/{record.team}", f"team:{record.team}", f"tenant:{record.tenant}"):
        kept = rows.execute("SELECT record FROM owners WHERE name = ?", (name,)).fetchone()
        owners.append(None if kept is None else owner_from(kept[0]))
    own, any_, tenant = owners
    return FoundKey(record, own or any_, tenant)


def _page(after: str, rows: sqlite3.Connection) -> list[KeyRecord]:
    return [key_from(blob) for (blob,) in rows.execute(_PAGE, (after,))]


def _put_owners(rows: sqlite3.Connection, owners: Iterable[tuple[str, OwnerRecord | None]]) -> None:
    for name, owner in owners:
        if owner is None:
            rows.execute("DELETE FROM owners WHERE name = ?", (name,))
        else:
            rows.execute("INSERT OR REPLACE INTO owners VALUES (?, ?)", (name, to_json(owner)))
