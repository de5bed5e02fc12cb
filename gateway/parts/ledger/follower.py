"""Read an archive table's stream in pages, and make rows of its entries."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from cache.store.base import Command, Store
from gateway.parts.ledger.folder import NOWHERE, Place

if TYPE_CHECKING:
    from gateway.parts.ledger.columns import Row, Table

_log = logging.getLogger("tierline.archive")

PAGE: Final = 500
"""Most entries of one page; about 2 MB."""
READ_S: Final = 5.0
"""Longest time of one exchange with the store, in seconds."""
# One script: between two commands the stream may be trimmed, and what was read would seem lost.
_READ: Final = b"""
local page = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
if #page == 0 then return {page, -1, 0} end
local info, added = redis.call('XINFO', 'STREAM', KEYS[1]), -1
for i = 1, #info, 2 do if info[i] == 'entries-added' then added = info[i + 1] end end
return {page, added, redis.call('XLEN', KEYS[1])}
"""


class StreamFollower:
    """Read one stream from a place on. `lost` counts entries that were gone before they could be read."""

    def __init__(self, store: Store, table: Table, place: Place, ordinal: int) -> None:
        """Begin after the entry at `place`, whose ordinal is `ordinal`: NOWHERE and 0 for the stream's beginning."""
        self._store = store
        self._table = table
        self._place, self._ordinal = place, ordinal
        self.lost = 0

    async def page(self, block_ms: int) -> Sequence[tuple[str, bytes]]:
        """Return the next entries; none if none came within `block_ms`. Raises StoreUnavailable."""
        last_id = "{}-{}".format(*self._place)
        if block_ms and not await self._store.after(self._table.stream, last_id, 1, block_ms):
            return ()
        words = (b"EVAL", _READ, b"1", self._table.stream.encode(), last_id.encode(), b"%d" % PAGE)
        [[page, added, length]] = await self._store.ask([Command(words)], READ_S)
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
        """Go on after this page of stream entries, which is on disk now."""
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
