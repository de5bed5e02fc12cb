"""Read the audit trail, append what no other script appends, and say whether its streams are whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from cache.store.base import Command, Store, StoreUnavailable, fields_in
from gateway.parts.access.audit.entries import APPEND, REST, STREAMS, StoredEntry, TrailEntry

_LIMIT_S: Final = 1.0
_PAGE: Final = 500
MOST_LOOKED_AT: Final = 20_000
"""Entries that are read for one page: about a second."""
_APPEND: Final = APPEND + b"audit(KEYS[1], ARGV[1], ARGV[2])"


CURSOR: Final = r"(\d{1,15}-\d{1,15}@\d)?"
"""What a `cursor` of an entry is like."""


@dataclass(frozen=True, slots=True)
class TrailFilter:
    """Which entries of the trail are wanted: '' and 0 stand for any. `subject` may be the beginning of one."""

    kind: str = ""
    by: str = ""
    subject: str = ""
    since: float = 0.0
    """Unix seconds."""

    def takes(self, entry: TrailEntry) -> bool:
        """Return whether an entry meets all conditions."""
        return (
            self.kind in ("", entry.kind)
            and self.by in ("", entry.by)
            and entry.subject.startswith(self.subject)
            and entry.at >= self.since
        )


@dataclass(frozen=True, slots=True)
class StreamCheck:
    """Whether one stream is whole. `head` is the hash of its newest entry: noted elsewhere, it is proof of all before.

    `older` entries were written by a version that did not chain them.
    """

    stream: str
    entries: int
    head: str
    older: int = 0
    problems: tuple[str, ...] = ()


class _Noted(NamedTuple):
    """The newest entry of a stream and how many there were, as the script that appended it has noted."""

    id: bytes
    chain: str
    number: int

    @property
    def place(self) -> tuple[int, int]:
        """See `StoredEntry.place`."""
        at, _, number = self.id.partition(b"-")
        return int(at), int(number)


class AuditTrail:
    """Operations on the trail. Each raises StoreUnavailable."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def append(self, entry: TrailEntry) -> None:
        """Append what happened besides any change in the store, such as that somebody signed in."""
        await self._ask(b"EVAL", _APPEND, b"1", REST.encode(), entry.change(), entry.how.encode())

    async def newest(self, wanted: TrailFilter = TrailFilter(), before: str = "") -> AsyncIterator[TrailEntry]:
        """Yield the entries of all streams, newest first; with `before`, the `cursor` of one, those that follow it."""
        last, _, place = before.partition("@")
        pages: dict[str, list[StoredEntry]] = {}
        for number, stream in enumerate(STREAMS):
            # Entries of one moment stand in the order of their streams.
            end = f"({last}" if last and number <= int(place or 0) else last
            pages[stream] = await self._page(stream, end)
        while any(pages.values()):
            stream = max((name for name in STREAMS if pages[name]), key=lambda name: pages[name][-1].place)
            stored = pages[stream].pop()
            # The time of a change is its author's clock, the place the store's: an hour lets them differ.
            if stored.place[0] / 1000 < wanted.since - 3600:
                return
            if wanted.takes(entry := _read(stored)):
                yield entry
            if not pages[stream]:
                pages[stream] = await self._page(stream, f"({stored.id.decode()}")

    async def page(
        self, wanted: TrailFilter, before: str, most: int, readable: Callable[[TrailEntry], bool] = lambda _: True
    ) -> dict[str, Any]:
        """Return `entries`, at most so many, as JSON values, and the cursor of those that are `older`; '' for none.

        At most MOST_LOOKED_AT entries are read for it, so there may be few, or none, before the older ones. Of those
        that are not `readable` it is told who changed what and when, and not what it was and is.
        """
        entries: list[TrailEntry] = []
        looked, older = 0, ""
        async for entry in self.newest(TrailFilter(since=wanted.since), before):
            if wanted.takes(entry):
                if len(entries) == most:
                    older = entries[-1].cursor
                    break
                entries.append(entry)
            looked += 1
            if looked == MOST_LOOKED_AT:
                older = entry.cursor
                break
        return {"entries": [entry.shown(whole=readable(entry)) for entry in entries], "older": older}

    async def ends(self) -> dict[str, bytes]:
        """Return the id of the newest entry of each stream."""
        pages = {stream: await self._page(stream, "", 1) for stream in STREAMS}
        return {stream: page[-1].id if page else b"0-0" for stream, page in pages.items()}

    async def follow(
        self, wanted: TrailFilter, after: dict[str, bytes], every_s: float = 0.5
    ) -> AsyncIterator[TrailEntry]:
        """Yield the entries that are appended `after` these ids of streams, oldest first, until cancelled."""
        while True:
            new: list[StoredEntry] = []
            for stream in STREAMS:
                page = await self._from(stream, after[stream])
                after[stream] = page[-1].id if page else after[stream]
                new += page
            for stored in sorted(new, key=lambda entry: entry.place):
                if wanted.takes(entry := _read(stored)):
                    yield entry
            await asyncio.sleep(every_s)

    async def stored(self) -> AsyncIterator[StoredEntry]:
        """Yield every entry as it stands, one stream after the other, oldest first."""
        for stream in STREAMS:
            after = b"-"
            while page := await self._from(stream, after):
                for entry in page:
                    yield entry
                after = page[-1].id

    async def checked(self) -> list[StreamCheck]:
        """Check the chain of hashes of each stream that has or had entries, and return what is broken."""
        found: dict[str, list[StoredEntry]] = {stream: [] for stream in STREAMS}
        broken: dict[str, list[str]] = {stream: [] for stream in STREAMS}
        entries, older = dict.fromkeys(STREAMS, 0), dict.fromkeys(STREAMS, 0)
        async for entry in self.stored():
            last = found[entry.stream]
            if entry.before is None and entries[entry.stream] == older[entry.stream]:
                older[entry.stream] += 1
            elif entry.before is None:
                broken[entry.stream].append(
                    f"entry {entry.id.decode()} has no hash: an older version or other hands wrote it"
                )
            elif entry.before != (last[0].chain if last else ""):
                what = "was altered, or one after it was removed" if last else "is the first, but others came before it"
                broken[entry.stream].append(f"entry {(last or [entry])[0].id.decode()} {what}")
            entries[entry.stream] += 1
            found[entry.stream] = [entry]
        checks = []
        for stream in STREAMS:
            newest, noted = await self._newest_id(stream), await self._noted(stream)
            last, problems = found[stream], broken[stream]
            if newest is not None and newest != (last[0].id if last else b"0-0"):
                problems.append(f"its newest entries were removed, the last of them {newest.decode()}")
            elif noted is not None and (not last or last[0].place < noted.place):
                problems.append(f"its newest entries were removed, the last of them {noted.id.decode()}")
            elif noted is not None and last[0].id == noted.id and last[0].chain != noted.chain:
                problems.append(f"entry {noted.id.decode()} was altered")
            if noted is not None and entries[stream] < noted.number:
                problems.append(f"{noted.number - entries[stream]} of {noted.number} entries were removed")
            if newest is not None or noted is not None:
                head = last[0].chain if last else ""
                checks.append(StreamCheck(stream, entries[stream], head, older[stream], tuple(problems)))
        return checks

    async def _noted(self, stream: str) -> _Noted | None:
        """Return what is noted beside a stream; None where no entry was appended since versions note that."""
        values = await self._ask(b"HMGET", f"{stream}:head".encode(), b"id", b"chain", b"count")
        return None if None in values else _Noted(values[0], values[1].decode(), int(values[2]))

    async def _newest_id(self, stream: str) -> bytes | None:
        """Return the id of the newest entry that the stream ever had; None for no stream."""
        if not await self._ask(b"EXISTS", stream.encode()):
            return None
        facts = fields_in(await self._ask(b"XINFO", b"STREAM", stream.encode()))
        return bytes(facts[b"last-generated-id"])

    async def _page(self, stream: str, end: str, most: int = _PAGE) -> list[StoredEntry]:
        """Return the entries that end with an id, or the newest for '', oldest first."""
        reply = await self._ask(b"XREVRANGE", stream.encode(), (end or "+").encode(), b"-", b"COUNT", b"%d" % most)
        return [StoredEntry(stream, name, fields) for name, fields in reversed(reply)]

    async def _from(self, stream: str, after: bytes) -> list[StoredEntry]:
        start = after if after == b"-" else b"(" + after
        reply = await self._ask(b"XRANGE", stream.encode(), start, b"+", b"COUNT", b"%d" % _PAGE)
        return [StoredEntry(stream, name, fields) for name, fields in reply]

    async def _ask(self, *words: bytes) -> Any:
        (reply,) = await self._store.ask([Command(words)], _LIMIT_S)
        return reply


def _read(stored: StoredEntry) -> TrailEntry:
    try:
        return stored.read()
    except (ValueError, KeyError, TypeError) as error:
        place = f"{stored.stream} {stored.id.decode()}"
        raise StoreUnavailable("error", f"entry {place} of the audit trail cannot be read: {error}") from None
