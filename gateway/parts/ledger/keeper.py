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

import orjson

from cache.store.base import Command, Store, StoreUnavailable
from gateway.parts.ledger.columns import REQUESTS, TABLES
from gateway.parts.ledger.folder import ArchiveError, TableFiles, add_bases, known_bases
from gateway.parts.ledger.follower import READ_S, StreamFollower
from gateway.parts.ledger.query import QueryError
from gateway.parts.ledger.tier_worth import tier_worth
from gateway.parts.recorder.decision_record import BASES
from gateway.telemetry.ledger import TIER_WORTH

if TYPE_CHECKING:
    from gateway.parts.ledger.config import LedgerConfig

_log = logging.getLogger("tierline.archive")

_BLOCK_MS: Final = 1000
_RETRY_S: Final = 1.0
_MERGE: Final = 16
_TIDY_S: Final = 60.0
_WORTH_S: Final = 300.0
"""How often it is worked out what tiers are worth."""
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
        """Return the rotation that the config's `ledger` section asks for."""
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
                group.create_task(self._tell_worth(), name="tierline.archive.tier-worth")
                for files in tables:
                    group.create_task(self._follow(files), name=f"tierline.archive.{files.table.name}")

    async def catch_up(self) -> None:
        """Write what the streams hold now, and return. Raises ArchiveError, StoreUnavailable and OSError."""
        for table in TABLES:
            with contextlib.closing(TableFiles(self._folder, table)) as files:
                follower = StreamFollower(self._store, files.table, *files.last)
                self._tell_damage(files, set())
                while await self._write_page(follower, files, block_ms=0):
                    pass

    async def tell_worth(self) -> None:
        """Leave in the store what the surfaces' tiers are worth. Raises ArchiveError, QueryError, StoreUnavailable."""
        worth = await asyncio.to_thread(tier_worth, self._folder)
        if worth:
            pairs = [part for name, figures in worth.items() for part in (name.encode(), orjson.dumps(figures))]
            await self._store.ask([Command((b"HSET", TIER_WORTH.encode(), *pairs))], READ_S)

    async def _tell_worth(self) -> None:
        while True:
            await asyncio.sleep(_WORTH_S)
            try:
                await self.tell_worth()
            except (ArchiveError, QueryError, StoreUnavailable, OSError) as error:
                self._say(f"what tiers are worth is not known anew: {error}")

    async def _follow(self, files: TableFiles) -> None:
        follower = StreamFollower(self._store, files.table, *files.last)
        name, failing, tidied = files.table.name, "", 0.0
        told: set[Path] = set()
        while True:
            self._tell_damage(files, told)
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

    async def _write_page(self, follower: StreamFollower, files: TableFiles, *, block_ms: int) -> bool:
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
        [blobs] = await self._store.ask([Command(words)], READ_S)
        found = {name: blob for name, blob in zip(new, blobs, strict=True) if blob is not None}
        add_bases(self._folder, found)
        self._bases |= found.keys()

    def _tell_damage(self, files: TableFiles, told: set[Path]) -> None:
        """Say what of a table cannot be read, each file once."""
        for file, why in files.damaged.items():
            if file not in told:
                told.add(file)
                self._say(f"{files.table.name}: {file} is damaged and was set aside: {why}")

    def _tidy(self, files: TableFiles) -> None:
        rotation, now = self._rotation, time.time()
        if files.hot_bytes >= rotation.hot_bytes or now - files.hot_since >= rotation.after_s:
            segment = files.rotate()
            self._say(f"{files.table.name}: wrote {segment.path.name} ({segment.path.stat().st_size >> 10} KiB)")
            if merged := files.merge(_MERGE, rotation.segment_bytes):
                self._say(f"{files.table.name}: merged small segments into {merged.path.name}")
        if dropped := files.drop_before(now - rotation.keep_s):
            self._say(f"{files.table.name}: deleted {dropped} segments, older than {rotation.keep_s / 86400:g} days")
