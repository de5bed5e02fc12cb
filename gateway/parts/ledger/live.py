"""Query the archive while it grows: its segments, and in memory what came since, from the store's streams.

A `LiveArchive` belongs to a process that serves readers, such as the console. It never writes to the folder, so any
number of them may run beside the keeper, and it works without a keeper, on what the store still has. New entries are
visible within about half a second, where many come at once within 0.8 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import duckdb
import orjson

from cache.store.base import Command, Store, StoreUnavailable
from gateway.parts.ledger.columns import REQUESTS, TABLES, Row, Table
from gateway.parts.ledger.damage import is_of_files
from gateway.parts.ledger.folder import NOWHERE, Place, quoted, segment_of
from gateway.parts.ledger.follower import PAGE, READ_S, StreamFollower
from gateway.parts.ledger.kept_summaries import KeptSummaries
from gateway.parts.ledger.query import QueryError, create_bases, create_views, hot_table, union_view
from gateway.parts.ledger.segments import ReadSegments
from gateway.parts.ledger.summaries import VALUES, Summary, counted_rows, rows_in_memory, rows_of_files
from gateway.parts.recorder.decision_record import BASES

_log = logging.getLogger("tierline.archive")

_BLOCK_MS: Final = 1000
_RETRY_S: Final = 1.0
_GATHER_S: Final = 0.25
_GATHER_MANY_S: Final = 0.6
_MANY: Final = 50
"""Entries that come within this time of each other are taken over together; the longer time holds after so many at
once, as taking over costs 14 ms of CPU however few there are."""
_LOOK_S: Final = 2.0
"""How often the folder is looked at for new segments."""
_MOST_HOT: Final = 200_000
"""Most rows in memory. Where no keeper writes segments, older ones leave."""
_THREADS: Final = 2
_SETTLED_S: Final = 3 * _LOOK_S
"""By when a query that met a change of segments has its rows."""
_FEW: Final = 100
"""Most rows whose times are named one by one, by which files are read at these places alone."""
_SETTLE_S: Final = 0.02
_ABOUT_MS: Final = 1000

Values = Mapping[str, Any]


class UnreadableSegments(QueryError):
    """A segment is no longer there, as the keeper has merged or deleted it, or it may be damaged."""


class LiveArchive:
    """Answer SQL over the archive's views (see `gateway.parts.ledger.query`) as of now."""

    def __init__(self, folder: Path, store: Store) -> None:
        """Open the archive in `folder`, which may be missing or empty. Blocks while the hot files are read."""
        self.failing = ""
        """Why the store's streams cannot be followed now; '' if they can."""
        self._folder = folder
        self._store = store
        self._scratch = tempfile.TemporaryDirectory(prefix="tierline-live-")
        self._database = duckdb.connect(config={"threads": _THREADS})
        self._database.execute("SET GLOBAL parquet_metadata_cache = true")
        self._queries = ThreadPoolExecutor(_THREADS, thread_name_prefix="archive")
        self._summarising = ThreadPoolExecutor(1, thread_name_prefix="archive.summaries")
        self._to_summarise = asyncio.Event()
        self._version = 0
        """Odd while segments are taken over or forgotten, and another number afterwards; `_taking` guards it."""
        self._segments = {table.name: ReadSegments(self._database, table) for table in TABLES}
        self._checking = threading.Lock()
        self._followers: dict[str, StreamFollower] = {}
        self._in_files: dict[str, Place] = {}
        """By table, the newest entry of its segments: what the stream brings up to there would be twice."""
        self._tasks: list[asyncio.Task[None]] = []
        self.added = 0
        """How often requests were added since the start."""
        self._changed = asyncio.Event()
        self._taking = asyncio.Lock()
        """Held while rows are added, or dropped because a new segment has them."""
        for table in TABLES:
            self._followers[table.name] = StreamFollower(store, table, *self._open(table))
        create_views(self._database)
        create_bases(self._database, folder)
        self._summaries = KeptSummaries(self._database, self._segments[REQUESTS.name])
        self.keep(VALUES)
        self._bases = {name for (name,) in self._database.execute("SELECT id FROM bases").fetchall()}

    @property
    def damaged(self) -> dict[Path, str]:
        """The files of the ledger that cannot be read and are left out, each with the reason."""
        return {file: why for segment in self._segments.values() for file, why in segment.damaged.items()}

    def start(self) -> None:
        """Follow the streams on the running event loop."""
        self._tasks = [asyncio.create_task(self._follow(table), name=f"archive.{table.name}") for table in TABLES]
        self._tasks.append(asyncio.create_task(self._watch_folder(), name="archive.segments"))
        self._tasks.append(asyncio.create_task(self._summarise(), name="archive.summaries"))

    async def catch_up(self) -> None:
        """Take over what the streams hold now; call it before `start`, or instead. Raises StoreUnavailable."""
        for table in TABLES:
            while await self._take_page(table, 0) == PAGE:
                pass

    async def aclose(self) -> None:
        """Stop following, and close the database once its queries are done."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._queries.shutdown)
        await asyncio.to_thread(self._summarising.shutdown)
        self._database.close()
        self._scratch.cleanup()

    def keep(self, summary: Summary) -> None:
        """Summarise each segment in advance, those of now and those to come."""
        if self._summaries.add(summary):
            self._to_summarise.set()

    async def ask(
        self,
        sql: str,
        values: Values | None = None,
        *,
        from_ms: int | None = None,
        summaries: Sequence[Summary] = (),
    ) -> list[Row]:
        """Return the rows of one query, by column. Raises QueryError.

        With `from_ms`, the view `requests` has requests alone whose entries are of that time or later, and older files
        are not read: it then lacks `started`. So have `summaries`, relations by their names; the time must be one at
        which slots of them begin. Such a query cannot begin with WITH.
        """

        def run() -> list[Row]:
            return self._ask(self._related(sql, from_ms, summaries), values)

        return await asyncio.get_running_loop().run_in_executor(self._queries, self._consistently, run)

    def _related(self, sql: str, from_ms: int | None, summaries: Sequence[Summary]) -> str:
        """Return a query with the relations that it reads, as of now."""
        if from_ms is None:
            return sql
        segments = self._segments[REQUESTS.name]
        files = segments.between(from_ms, None)
        parts = []
        for summary in summaries:
            if from_ms % summary.slot:
                raise ValueError(f"{summary.name} has no slot that begins at {from_ms}")
            parts.append(f"{summary.name} AS NOT MATERIALIZED ({self._summaries.rows(summary, files, from_ms)})")
        if "FROM requests" in sql:
            rows = rows_in_memory(from_ms)
            if files:
                rows += f" UNION ALL BY NAME {rows_of_files(segments, files, from_ms)}"
            parts.append(f"requests AS NOT MATERIALIZED ({counted_rows(rows)})")
        return f"WITH {', '.join(parts)} {sql}"

    def _consistently(self, run: Callable[[], list[Row]]) -> list[Row]:
        """Return what a query finds while no segment is taken over: it would miss rows, or find them twice.

        If a file is gone, which the keeper has merged into another, or is damaged, it waits until the folder has been
        looked at.
        """
        deadline = time.monotonic() + _SETTLED_S
        while True:
            version = self._version
            try:
                rows = run()
            except UnreadableSegments:
                if self._check_pages():
                    deadline = time.monotonic() + _SETTLED_S
                elif time.monotonic() > deadline:
                    raise
                rows, version = [], -1
            if version == self._version and version % 2 == 0:
                return rows
            if time.monotonic() > deadline:
                return rows
            time.sleep(_SETTLE_S)

    def _check_pages(self) -> bool:
        """Look for damaged segments; return whether any was found, which `_take_over` then leaves out."""
        with self._checking:
            return any(segments.check_pages() for segments in self._segments.values())

    async def newest(
        self,
        columns: str,
        where: str,
        values: Values,
        limit: int,
        *,
        between_ms: tuple[int | None, int | None] = (None, None),
        equal: Mapping[str, str] | None = None,
    ) -> list[Row]:
        """Return the newest requests for which a condition holds, newest first, reading no more files than it takes.

        Those of the playground are among them, as somebody will look for them; figures ask the view `requests`.

        `columns` and `where` are SQL over the columns of `requests`, but for `started`. What else is known of the
        requests spares files: the times between which their entries lie, and values that columns of `VALUES_OF` have.
        Raises QueryError.
        """
        named = {name: value for name, value in values.items() if f"${name}" in where}

        def run() -> list[Row]:
            return self._newest(columns, where, named, limit, self._sources(between_ms, equal or {}))

        return await asyncio.get_running_loop().run_in_executor(self._queries, self._consistently, run)

    async def by_id(self, columns: str, request_id: str, at_ms: int | None = None) -> list[Row]:
        """Return the newest request of an id, none if there is none. Raises QueryError.

        Records of `at_ms`, or else of about then, are looked at, if it is given, which tells two tenants' equal ids
        apart. Without it, those of the time that the id tells come first, and then all, as a client may have chosen it.
        """
        ways: list[tuple[int, int] | None] = [recorded_between(request_id), None]
        if at_ms is not None:
            ways = [(at_ms, at_ms), (at_ms - _ABOUT_MS, at_ms + _ABOUT_MS)]
        for way in dict.fromkeys(ways):
            where, values = "request_id = $id", {"id": request_id}
            if way is not None:
                where += f" AND entry_ms BETWEEN {way[0]} AND {way[1]}"
            if rows := await self.newest(columns, where, values, 1, between_ms=way or (None, None)):
                return rows
        return []

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a connection of its own to the views, for one caller's thread at a time."""
        return self._database.cursor()

    def _newest(self, columns: str, where: str, values: Values, limit: int, sources: Iterator[str]) -> list[Row]:
        """Ask one source after the other, the newest first, until there are enough rows. Each is first asked for the
        places alone: the other columns are then read of those, not of all rows that have to be looked at."""
        found: list[Row] = []
        order = "ORDER BY entry_ms DESC, entry_seq DESC"
        for source in sources:
            rest = limit - len(found)
            given = f"FROM ({source}) WHERE {where}"
            if not (places := self._ask(f"SELECT entry_ms, entry_seq {given} {order} LIMIT {rest}", values)):
                continue
            times = sorted({place["entry_ms"] for place in places})
            among = f"entry_ms BETWEEN {times[0]} AND {times[-1]}"
            if len(times) <= _FEW:
                among += f" AND entry_ms IN ({', '.join(map(str, times))})"
            found += self._ask(f"SELECT {columns} {given} AND {among} {order} LIMIT {rest}", values)
            if len(found) >= limit:
                break
        return found

    def _sources(self, between_ms: tuple[int | None, int | None], equal: Mapping[str, str]) -> Iterator[str]:
        """Yield the rows in memory and then those of segments, newest first and ever more at once: most lists are
        full after a few, and where nothing fits, one query of many files is faster than one of each."""
        oldest, newest = between_ms
        yield rows_in_memory(oldest)
        segments = self._segments[REQUESTS.name]
        files = self._summaries.with_values(segments.between(oldest, newest), equal)
        size = 1
        while files:
            some, files = files[-size:], files[:-size]
            yield rows_of_files(segments, some, oldest)
            size *= 2

    async def wait_for_requests(self, added: int, timeout_s: float) -> bool:
        """Return whether requests were added more than `added` times, at the latest within `timeout_s`."""
        if self.added > added:
            return True
        changed = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    def _ask(self, sql: str, values: Values | None) -> list[Row]:
        try:
            with self._database.cursor() as cursor:
                result = cursor.execute(sql, values)
                columns = [column[0] for column in result.description or ()]
                return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]
        except duckdb.Error as error:
            raise (UnreadableSegments if is_of_files(error) else QueryError)(str(error)) from None

    def _open(self, table: Table) -> tuple[Place, int]:
        """Load a table's hot rows and note its segments; return the place of its newest entry and that's ordinal."""
        segments = self._segments[table.name]
        newest = f"SELECT entry_ms, entry_seq, ordinal FROM {table.name}_all ORDER BY entry_ms DESC, entry_seq DESC"
        while True:
            hot_table(self._database, self._folder, segments)
            union_view(self._database, table, segments.reads(segments.files))
            try:
                row = self._database.execute(f"{newest} LIMIT 1").fetchone()
            except duckdb.Error as error:
                if is_of_files(error) and segments.check_pages():
                    continue
                raise
            return (NOWHERE, 0) if row is None else ((row[0], row[1]), row[2])

    async def _follow(self, table: Table) -> None:
        while True:
            try:
                taken = await self._take_page(table, _BLOCK_MS)
                self.failing = ""
                if not taken:
                    continue
                if table is REQUESTS:
                    self.added += 1
                    changed, self._changed = self._changed, asyncio.Event()
                    changed.set()
                await asyncio.sleep(_GATHER_S if taken < _MANY else _GATHER_MANY_S)
            except StoreUnavailable as down:
                self.failing = f"the store does not answer ({down})"
                await asyncio.sleep(_RETRY_S)
            except duckdb.Error:
                _log.exception("%s: a page could not be taken over; trying on", table.name)
                await asyncio.sleep(_RETRY_S)

    async def _take_page(self, table: Table, block_ms: int) -> int:
        """Take over a page of a table's stream; return its length, 0 if nothing came within `block_ms`."""
        follower = self._followers[table.name]
        page = await follower.page(block_ms)
        rows = follower.rows(page)
        if table is REQUESTS:
            await self._add_bases({row["basis"] for row in rows if row["basis"]})
        async with self._taking:
            newest = self._in_files.get(table.name, NOWHERE)
            new = [row for row in rows if (row["entry_ms"], row["entry_seq"]) > newest]
            if new:
                await asyncio.to_thread(self._add, table, new)
        if page:
            follower.done(page)
        return len(page)

    async def _add_bases(self, named: set[str]) -> None:
        """Add the bases of decisions that rows name, from the store's hash."""
        new = sorted(named - self._bases)
        if not new:
            return
        words = (b"HMGET", BASES.encode(), *(name.encode() for name in new))
        [blobs] = await self._store.ask([Command(words)], READ_S)
        found = [(name, blob.decode()) for name, blob in zip(new, blobs, strict=True) if blob is not None]
        if found:
            with self._database.cursor() as cursor:
                cursor.executemany("INSERT INTO bases VALUES (?, ?)", found)
        self._bases |= {name for name, _ in found}

    def _add(self, table: Table, rows: Sequence[Row]) -> None:
        """Add rows to the hot table: through a file, which DuckDB reads much faster than it takes single values."""
        file = Path(self._scratch.name) / f"{table.name}.jsonl"
        file.write_bytes(b"".join([orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows]))
        columns = ", ".join(f"'{name}': '{kind}'" for name, kind in table.columns.items())
        read = f"read_json({quoted(file)}, format = 'newline_delimited', columns = {{{columns}}}, "
        with self._database.cursor() as cursor:
            cursor.execute(f"INSERT INTO {table.name}_hot SELECT * FROM {read} maximum_object_size = 33554432)")
            [[count]] = cursor.execute(f"SELECT count(*) FROM {table.name}_hot").fetchall()
            if count > _MOST_HOT * 1.1:
                cursor.execute(
                    f"DELETE FROM {table.name}_hot WHERE (entry_ms, entry_seq) <= (SELECT (entry_ms, entry_seq) "
                    f"FROM {table.name}_hot ORDER BY entry_ms DESC, entry_seq DESC LIMIT 1 OFFSET {_MOST_HOT})"
                )

    async def _watch_folder(self) -> None:
        """Take segments over that the keeper wrote, merged or deleted, and drop the rows in memory that they hold."""
        while True:
            await asyncio.sleep(_LOOK_S)
            with contextlib.suppress(OSError, duckdb.Error):  # the keeper deletes merged segments meanwhile: look again
                for table in TABLES:
                    async with self._taking:
                        await asyncio.to_thread(self._take_over, table)

    def _take_over(self, table: Table) -> None:
        read = self._segments[table.name]
        if [segment.path for segment in read.listed(self._folder)] == list(read.files):
            return
        with self._changing():
            self._replace_segments(table, read)
        self._to_summarise.set()

    def _replace_segments(self, table: Table, read: ReadSegments) -> None:
        before = read.files
        read.look(self._folder)
        try:
            with self._database.cursor() as cursor:
                cursor.execute("BEGIN")
                if read.files:
                    self._in_files[table.name] = ms, number = segment_of(read.files[-1]).last
                    cursor.execute(f"DELETE FROM {table.name}_hot WHERE (entry_ms, entry_seq) <= ({ms}, {number})")
                union_view(cursor, table, read.reads(read.files))
                cursor.execute("COMMIT")
        except duckdb.Error:
            read.files = before
            raise

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Have queries that run meanwhile asked again."""
        self._version += 1
        try:
            yield
        finally:
            self._version += 1

    async def _summarise(self) -> None:
        """Summarise segments, the newest first, in a thread that waits for no query."""
        while True:
            await self._to_summarise.wait()
            self._to_summarise.clear()
            try:
                while await asyncio.get_running_loop().run_in_executor(
                    self._summarising, self._summaries.summarise_one
                ):
                    pass
                async with self._taking:
                    await asyncio.to_thread(self._drop_summaries)
            except duckdb.Error as error:
                found = is_of_files(error) and await asyncio.to_thread(self._check_pages)
                if found or isinstance(error, duckdb.IOException):
                    # Merged, deleted or left out meanwhile: what came instead is summarised next.
                    await asyncio.sleep(_LOOK_S)
                    self._to_summarise.set()
                    continue
                _log.exception("a segment could not be summarised; its rows are read instead")
                await asyncio.sleep(_RETRY_S)

    def _drop_summaries(self) -> None:
        if self._summaries.has_gone:
            with self._changing():
                self._summaries.drop_gone()


_TIME_DIGITS: Final = 11
_FEWEST_DIGITS: Final = 8
_LONGEST_MS: Final = 3_600_000
_CLOCKS_MS: Final = 60_000
"""How much earlier the store's clock may be, by which records are placed."""


def recorded_between(beginning: str) -> tuple[int, int] | None:
    """Return the Unix milliseconds between which the record of an id with this beginning was written.

    None for what is not the beginning of one of our ids, or less than the first eight digits of it (4 s). A client may
    choose an id that looks like ours, and a request may take hours: what is not found then may yet be elsewhere.
    """
    digits = beginning.removeprefix("req_")[:_TIME_DIGITS]
    if len(digits) < _FEWEST_DIGITS or any(digit not in "0123456789abcdef" for digit in digits):
        return None
    first, last = (int(digits.ljust(_TIME_DIGITS, end), 16) for end in "0f")
    return first - _CLOCKS_MS, last + _LONGEST_MS
