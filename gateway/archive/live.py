"""Query the archive while it grows: its segments, and in memory what came since, from the store's streams.

A `LiveArchive` belongs to a process that serves readers, such as the console. It never writes to the folder, so any
number of them may run beside the keeper, and it works without a keeper, on what the store still has. New entries are
visible within about half a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import duckdb
import orjson

from cache.store.base import Command, Store, StoreUnavailable
from gateway.archive.columns import REQUESTS, TABLES, Row, Table
from gateway.archive.folder import NOWHERE, Place, quoted, segments_of
from gateway.archive.follower import PAGE, READ_S, StreamFollower
from gateway.archive.query import QueryError, create_bases, create_views, hot_table, union_view
from gateway.telemetry.decisions import BASES
from gateway.telemetry.ledger import SHADOW

_log = logging.getLogger("tierline.archive")

_BLOCK_MS: Final = 1000
_RETRY_S: Final = 1.0
_GATHER_S: Final = 0.25
"""Entries that come within this time of each other are taken over together."""
_LOOK_S: Final = 2.0
"""How often the folder is looked at for new segments."""
_MOST_HOT: Final = 200_000
"""Most rows in memory. Where no keeper writes segments, older ones leave."""
_THREADS: Final = 2

Values = Mapping[str, Any]


class LiveArchive:
    """Answer SQL over the archive's views (see `gateway.archive.query`) as of now."""

    def __init__(self, folder: Path, store: Store) -> None:
        """Open the archive in `folder`, which may be missing or empty. Blocks while the hot files are read."""
        self.failing = ""
        """Why the store's streams cannot be followed now; '' if they can."""
        self._folder = folder
        self._store = store
        self._scratch = tempfile.TemporaryDirectory(prefix="tierline-live-")
        self._database = duckdb.connect(config={"threads": _THREADS})
        self._queries = ThreadPoolExecutor(_THREADS, thread_name_prefix="archive")
        self._segments: dict[str, list[Path]] = {}
        self._followers: dict[str, StreamFollower] = {}
        self._in_files: dict[str, Place] = {}
        """By table, the newest entry of its segments: what the stream brings up to there would be twice."""
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._taking = asyncio.Lock()
        """Held while rows are added, or dropped because a new segment has them."""
        for table in TABLES:
            self._followers[table.name] = StreamFollower(store, table, *self._open(table))
        create_views(self._database)
        create_bases(self._database, folder)
        self._bases = {name for (name,) in self._database.execute("SELECT id FROM bases").fetchall()}

    def start(self) -> None:
        """Follow the streams on the running event loop."""
        self._tasks = [asyncio.create_task(self._follow(table), name=f"archive.{table.name}") for table in TABLES]
        self._tasks.append(asyncio.create_task(self._watch_folder(), name="archive.segments"))

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
        self._database.close()
        self._scratch.cleanup()

    async def ask(self, sql: str, values: Values | None = None) -> list[Row]:
        """Return the rows of one query, by column. Raises QueryError."""
        return await asyncio.get_running_loop().run_in_executor(self._queries, self._ask, sql, values)

    async def newest(self, columns: str, where: str, values: Values, limit: int) -> list[Row]:
        """Return the newest requests for which a condition holds, newest first, reading no more files than it takes.

        `columns` and `where` are SQL over the columns of `requests`, but for `started`. Raises QueryError.
        """
        return await asyncio.get_running_loop().run_in_executor(
            self._queries, self._newest, columns, where, values, limit
        )

    def _newest(self, columns: str, where: str, values: Values, limit: int) -> list[Row]:
        """Look at the rows in memory, then at one segment after the other. Each is first asked for the places alone:
        the other columns are then read where those are, not everywhere."""
        found: list[Row] = []
        order = "ORDER BY entry_ms DESC, entry_seq DESC"
        for source in self._sources():
            rest = limit - len(found)
            given = f"FROM ({source}) WHERE {where}"
            named = {name: value for name, value in values.items() if f"${name}" in where}
            if not (places := self._ask(f"SELECT entry_ms, entry_seq {given} {order} LIMIT {rest}", named)):
                continue
            low, high = places[-1]["entry_ms"], places[0]["entry_ms"]
            between = f"entry_ms BETWEEN {low} AND {high}"
            found += self._ask(f"SELECT {columns} {given} AND {between} {order} LIMIT {rest}", named)
            if len(found) >= limit:
                break
        return found

    def _sources(self) -> Iterator[str]:
        """Yield the rows in memory and each segment, newest first, with all columns that there are now."""
        shape = "SELECT started AS started_s, * EXCLUDE (started) FROM requests_hot"
        yield f"{shape} WHERE arm IS DISTINCT FROM '{SHADOW}'"
        for file in reversed(self._segments[REQUESTS.name]):
            rows = f"SELECT started AS started_s, * EXCLUDE (started) FROM read_parquet({quoted(file)})"
            yield f"{shape} WHERE false UNION ALL BY NAME {rows} WHERE arm IS DISTINCT FROM '{SHADOW}'"

    async def wait_for_requests(self, timeout_s: float) -> bool:
        """Return whether a request was added within `timeout_s`."""
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
            raise QueryError(str(error)) from None

    def _open(self, table: Table) -> tuple[Place, int]:
        """Load a table's hot rows and note its segments; return the place of its newest entry and that's ordinal."""
        self._segments[table.name] = files = hot_table(self._database, self._folder, table)
        union_view(self._database, table, files)
        newest = f"SELECT entry_ms, entry_seq, ordinal FROM {table.name}_all ORDER BY entry_ms DESC, entry_seq DESC"
        row = self._database.execute(f"{newest} LIMIT 1").fetchone()
        return (NOWHERE, 0) if row is None else ((row[0], row[1]), row[2])

    async def _follow(self, table: Table) -> None:
        while True:
            try:
                taken = await self._take_page(table, _BLOCK_MS)
                self.failing = ""
                if not taken:
                    continue
                if table is REQUESTS:
                    changed, self._changed = self._changed, asyncio.Event()
                    changed.set()
                await asyncio.sleep(_GATHER_S)
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
        segments = segments_of(self._folder, table.name)
        files = [segment.path.resolve() for segment in segments]
        if files == self._segments[table.name]:
            return
        with self._database.cursor() as cursor:
            cursor.execute("BEGIN")
            if segments:
                self._in_files[table.name] = ms, number = segments[-1].last
                cursor.execute(f"DELETE FROM {table.name}_hot WHERE (entry_ms, entry_seq) <= ({ms}, {number})")
            union_view(cursor, table, files)
            cursor.execute("COMMIT")
        self._segments[table.name] = files
