"""Follow the store's streams and keep their entries in files.

A page is read, written, and only then counted as done; so a keeper that is killed reads its last page again from the
place that the files name. Entries that the store dropped before they were read are counted by their ordinals: the
stream counts all entries ever added, and knows how many it still has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cache.store.base import Command, Store, StoreUnavailable
from gateway.archive.columns import REQUESTS, TABLES, Row
from gateway.archive.folder import NOWHERE, Place, TableFiles, add_bases, known_bases
from gateway.telemetry.decisions import BASES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.config.schema import LedgerConfig

_log = logging.getLogger("tierline.archive")

_PAGE: Final = 500  # about 2 MB
_BLOCK_MS: Final = 1000
_RETRY_S: Final = 1.0
_MERGE: Final = 16
_TIDY_S: Final = 60.0
_READ_S: Final = 5.0
# One script: between two commands the stream may be trimmed, and what was read would seem lost.
_READ: Final = b"""
local page = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
if #page == 0 then return {page, -1, 0} end
local info, added = redis.call('XINFO', 'STREAM', KEYS[1]), -1
for i = 1, #info, 2 do if info[i] == 'entries-added' then added = info[i + 1] end end
return {page, added, redis.call('XLEN', KEYS[1])}
"""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Rotation:
    """When the hot file becomes a segment, and how long segments stay. Times are in seconds."""

    after_s: float = 3600.0
    hot_bytes: int = 64 << 20
    keep_s: float = 30 * 86400.0
    segment_bytes: int = 64 << 20
    """Segments are merged up to this size."""

    @classmethod
    def of(cls, config: LedgerConfig) -> Rotation:
        """Return what a deployment's config asks for."""
        return cls(config.rotate_after, config.rotate_size, config.keep)


class Keeper:
    """Keep every table of one store in one folder. `run` follows until it is cancelled.

    Files are written on the event loop: this process serves nobody, and a write that a signal interrupts halfway would
    have to be told from one that is still under way.
    """

    def __init__(self, store: Store, folder: Path, rotation: Rotation, say: Say) -> None:
        self._store = store
        self._folder = folder
        self._rotation = rotation
        self._say = say
        self._bases: set[str] | None = None

    async def run(self) -> None:
        """Follow all streams. Raises ArchiveError for a damaged folder."""
        with contextlib.ExitStack() as opened:
            tables = [opened.enter_context(contextlib.closing(TableFiles(self._folder, table))) for table in TABLES]
            async with asyncio.TaskGroup() as group:
                for files in tables:
                    group.create_task(self._follow(files), name=f"tierline.archive.{files.table.name}")

    async def catch_up(self) -> None:
        """Write what the streams hold now, and return. Raises ArchiveError, StoreUnavailable and OSError."""
        for table in TABLES:
            with contextlib.closing(TableFiles(self._folder, table)) as files:
                follower = _Follower(self._store, files)
                while await self._write_page(follower, files, block_ms=0):
                    pass

    async def _follow(self, files: TableFiles) -> None:
        follower = _Follower(self._store, files)
        name, failing, tidied = files.table.name, "", 0.0
        while True:
            try:
                await self._write_page(follower, files, block_ms=_BLOCK_MS)
                if files.hot_bytes >= self._rotation.hot_bytes or time.monotonic() - tidied >= _TIDY_S:
                    self._tidy(files)
                    tidied = time.monotonic()
                if failing:
                    self._say(f"{name}: goes on")
                failing = ""
            except (StoreUnavailable, OSError) as error:
                # The place in the stream stays, so nothing is lost while the store has it.
                reason = f"the store does not answer ({error})" if isinstance(error, StoreUnavailable) else str(error)
                if reason != failing:
                    self._say(f"{name}: {reason}; trying on")
                failing = reason
                await asyncio.sleep(_RETRY_S)

    async def _write_page(self, follower: _Follower, files: TableFiles, *, block_ms: int) -> bool:
        """Read and write one page; return whether there was one."""
        page = await follower.page(block_ms)
        if follower.lost:
            self._say(
                f"{files.table.name}: {follower.lost} entries had left the store before they were read; "
                "raise telemetry.keep, or keep the ledger without a break"
            )
            follower.lost = 0
        if not page:
            return False
        rows = follower.rows(page)
        if files.table is REQUESTS:
            await self._keep_bases({row["basis"] for row in rows if row["basis"]})
        if rows:
            files.append(rows)
        follower.done(page)
        return True

    async def _keep_bases(self, named: set[str]) -> None:
        """Write the bases that rows name and the folder lacks, before the rows."""
        if self._bases is None:
            self._bases = known_bases(self._folder)
        new = sorted(named - self._bases)
        if not new:
            return
        words = (b"HMGET", BASES.encode(), *(name.encode() for name in new))
        [blobs] = await self._store.ask([Command(words)], _READ_S)
        found = {name: blob for name, blob in zip(new, blobs, strict=True) if blob is not None}
        add_bases(self._folder, found)
        self._bases |= found.keys()

    def _tidy(self, files: TableFiles) -> None:
        rotation, now = self._rotation, time.time()
        if files.hot_bytes >= rotation.hot_bytes or now - files.hot_since >= rotation.after_s:
            segment = files.rotate()
            self._say(f"{files.table.name}: wrote {segment.path.name} ({segment.path.stat().st_size >> 10} KiB)")
            if merged := files.merge(_MERGE, rotation.segment_bytes):
                self._say(f"{files.table.name}: merged small segments into {merged.path.name}")
        if dropped := files.drop_before(now - rotation.keep_s):
            self._say(f"{files.table.name}: deleted {dropped} segments, older than {rotation.keep_s / 86400:g} days")


class _Follower:
    """Read one stream from where its files end. `lost` counts entries that were gone before they could be read."""

    def __init__(self, store: Store, files: TableFiles) -> None:
        self._store = store
        self._table = files.table
        self._place, self._ordinal = files.last
        self.lost = 0

    async def page(self, block_ms: int) -> Sequence[tuple[str, bytes]]:
        """Return the next entries; none if none came within `block_ms`. Raises StoreUnavailable."""
        last_id = "{}-{}".format(*self._place)
        if block_ms and not await self._store.after(self._table.stream, last_id, 1, block_ms):
            return ()
        words = (b"EVAL", _READ, b"1", self._table.stream.encode(), last_id.encode(), b"%d" % _PAGE)
        [[page, added, length]] = await self._store.ask([Command(words)], _READ_S)
        if page and added >= 0:  # before Redis 7 nothing counts the entries
            self._count_lost(added, added - length)
        return [(name.decode(), fields[1]) for name, fields in page]

    def rows(self, page: Sequence[tuple[str, bytes]]) -> list[Row]:
        """Return the rows of a page. An entry of another version of Tierline is left out, and logged."""
        rows: list[Row] = []
        for number, (name, blob) in enumerate(page, self._ordinal + 1):
            ms, sequence = _parsed(name)
            try:
                row = self._table.read(blob)
            except (ValueError, KeyError, TypeError) as error:
                _log.warning("%s %s is not a record: %s", self._table.stream, name, error)
                continue
            if row is None:
                _log.warning("%s %s was written by another version and is left out", self._table.stream, name)
                continue
            rows.append({"entry_ms": ms, "entry_seq": sequence, "ordinal": number, **row})
        return rows

    def done(self, page: Sequence[tuple[str, bytes]]) -> None:
        """Note that the page is on disk."""
        self._place = _parsed(page[-1][0])
        self._ordinal += len(page)

    def _count_lost(self, added: int, gone: int) -> None:
        """Count the entries that left the stream unread, of `added` in all and `gone` by now."""
        if self._place == NOWHERE or added < self._ordinal:  # the first look, or another stream of the same name
            self._ordinal = gone
        elif gone > self._ordinal:
            self.lost += gone - self._ordinal
            self._ordinal = gone


def _parsed(name: str) -> Place:
    ms, _, number = name.partition("-")
    return int(ms), int(number or 0)
