"""Ask the archive in SQL: DuckDB in memory, over the Parquet segments and the hot file.

Views: `requests` (`started` is a TIMESTAMP in UTC, and `started_s` the Unix seconds), `shadows` (requests that were
run again under a candidate, whose answers no client got; in no other view), `feedback` (the latest on each request
alone; `feedback_all` has every entry), `labels` (of two tiers' answers), `shadow_labels` (of the served answer and of
that of a candidate in shadow mode), `bases` (`id`, `basis` as JSON), and `segments` (`table`, `file`, and why it is
`damaged` and left out, else NULL). A query may read these files and nothing else: not the network, and no other file.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.commands import CommandError
from gateway.parts.ledger.columns import TABLES, Row, Table
from gateway.parts.ledger.damage import is_of_files, why_damaged
from gateway.parts.ledger.folder import BASES, ArchiveError, hot_rows, quoted, quoted_list, read_lines
from gateway.parts.ledger.segments import ReadSegments, log_damage
from gateway.telemetry.ledger import PLAYGROUND, SHADOW, UNCOUNTED

if TYPE_CHECKING:
    import duckdb

_REQUESTS = "SELECT make_timestamp((started * 1e6)::BIGINT) AS started, started AS started_s, * EXCLUDE (started)"
_FEEDBACK = (
    "CREATE VIEW feedback AS SELECT * FROM feedback_all "
    "QUALIFY row_number() OVER (PARTITION BY tenant, request_id ORDER BY entry_ms DESC, entry_seq DESC) = 1"
)
_LABELS = "CREATE VIEW labels AS SELECT * EXCLUDE (candidate) FROM labels_all WHERE coalesce(candidate, '') = ''"
_SHADOW_LABELS = (
    "CREATE VIEW shadow_labels AS SELECT entry_ms, entry_seq, ordinal, request_id, tenant, surface, policy, candidate, "
    "judged_at, conversation, CASE better WHEN 'small' THEN 'served' WHEN 'strong' THEN 'shadow' ELSE better END "
    "AS better, agreed, judge, judge_usd, small AS served, strong AS shadow, messages "
    "FROM labels_all WHERE candidate <> ''"
)

_EXPLAIN = re.compile(r"^\s*EXPLAIN\s+(ANALYZE\s+)?", re.IGNORECASE)


class QueryError(CommandError):
    """A query that DuckDB refuses. The message is DuckDB's own; a command ends with it."""


@contextlib.contextmanager
def connect(folder: Path, *, threads: int = 2, write_to: Path | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection with the archive's views. Raises ArchiveError if the folder holds no archive.

    Queries may read the segments, and write the file `write_to`; DuckDB lets them write what they may read, so a query
    that somebody typed goes through `ask_typed`. The hot files are read once, here, segments by each query.
    """
    if not any((folder / f"{table.name}.jsonl").exists() for table in TABLES):
        raise ArchiveError(
            f"{folder} holds no ledger; `tierline up` keeps one in its state folder, `tierline ledger keep` elsewhere"
        )
    import duckdb  # 0.1 s and 30 MB, for these commands alone

    with duckdb.connect(config={"threads": threads}) as database:
        tables = [ReadSegments(database, table) for table in TABLES]
        database.execute('CREATE TABLE segments ("table" VARCHAR, file VARCHAR, damaged VARCHAR)')
        for segments in tables:
            hot_table(database, folder, segments)
            union_view(database, segments.table, read_by_name(segments.files))
            for file in (*segments.files, *segments.damaged):
                row = [segments.table.name, str(file), segments.damaged.get(file)]
                database.execute("INSERT INTO segments VALUES (?, ?, ?)", row)
        create_views(database)
        create_bases(database, folder)
        allowed = [file for segments in tables for file in segments.files]
        if write_to is not None:
            allowed.append(write_to.absolute())
        database.execute(f"SET allowed_paths = {quoted_list(allowed)}")
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        yield database


def ask(database: duckdb.DuckDBPyConnection, sql: str, values: Mapping[str, Any] | None = None) -> Any:
    """Return the result of one query, to be fetched. Raises QueryError.

    Where a segment turns out to be damaged as it is read, it is left out, and the query asked again.
    """
    import duckdb

    try:
        return database.execute(sql, values)
    except duckdb.Error as error:
        if is_of_files(error) and _leave_out_damaged(database):
            return ask(database, sql, values)
        raise QueryError(str(error)) from None


def rows_of(database: duckdb.DuckDBPyConnection, sql: str, values: Mapping[str, Any] | None = None) -> list[Row]:
    """Return the rows of one query, by column. Raises QueryError."""
    rows = ask(database, sql, values)
    names = [column[0] for column in rows.description]
    return [dict(zip(names, row, strict=True)) for row in rows.fetchall()]


def ask_typed(database: duckdb.DuckDBPyConnection, sql: str) -> Any:
    """Return the result of a query that somebody typed, if it is one that reads. Raises QueryError."""
    import duckdb

    try:
        kinds = [statement.type for statement in database.extract_statements(_EXPLAIN.sub("", sql))]
    except duckdb.Error as error:
        raise QueryError(str(error)) from None
    if kinds != [duckdb.StatementType.SELECT]:
        raise QueryError(
            "only one query that reads can be asked: SELECT, FROM, WITH, DESCRIBE, SUMMARIZE or EXPLAIN (PIVOT names "
            "its values: ON surface IN ('chat', 'batch')). `tierline ledger export` writes a file"
        )
    return ask(database, sql)


def _leave_out_damaged(database: duckdb.DuckDBPyConnection) -> bool:
    """Read every page of the segments, and leave out those that are damaged; return whether any is."""
    found = False
    for table in TABLES:
        own = 'FROM segments WHERE "table" = ? AND damaged IS NULL ORDER BY file'
        files = [Path(file) for (file,) in database.execute(f"SELECT file {own}", [table.name]).fetchall()]
        damaged = {}
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # merged or deleted meanwhile
                if why := why_damaged(database, table, file, whole=True):
                    damaged[file] = why
        for file, why in damaged.items():
            log_damage(file, why)
            database.execute("UPDATE segments SET damaged = ? WHERE file = ?", [why, str(file)])
        if damaged:
            union_view(database, table, read_by_name([file for file in files if file not in damaged]))
            found = True
    return found


def export_to(
    database: duckdb.DuckDBPyConnection, file: Path, form: str, oldest: float | None, surface: str | None
) -> int:
    """Write the selected requests, each with the feedback on it, in the order in which they ended; return how many.

    `file` is new. `form` is `parquet` or `json`. `oldest` is in Unix seconds. Raises QueryError.
    """
    where = "($oldest IS NULL OR started_s >= $oldest) AND ($surface IS NULL OR r.surface = $surface)"
    select = (
        "SELECT r.*, f.score, f.comment FROM requests r LEFT JOIN feedback f USING (tenant, request_id) "
        f"WHERE {where} ORDER BY r.entry_ms, r.entry_seq"
    )
    values = {"oldest": oldest, "surface": surface}
    [[count]] = ask(database, f"COPY ({select}) TO {quoted(file.absolute())} (FORMAT {form})", values).fetchall()
    return int(count)


def hot_table(database: duckdb.DuckDBPyConnection, folder: Path, segments: ReadSegments) -> None:
    """Look at the segments of a table, and copy its hot rows into memory; it may have neither.

    While files are listed and read, the keeper may turn the hot file into a segment: then both are read again.
    """
    table = segments.table
    hot = folder / f"{table.name}.jsonl"
    while True:
        try:
            segments.look(folder)
        except FileNotFoundError:
            continue
        listed = segments.listed(folder)
        if hot.exists():
            rows = f"SELECT * FROM {hot_rows(folder, table, listed)}"
            database.execute(f"CREATE OR REPLACE TABLE {table.name}_hot AS {rows}")
            [[lines]] = database.execute(f"DELETE FROM {table.name}_hot WHERE entry_ms IS NULL").fetchall()
            if lines:
                segments.leave_out(hot, f"{lines} of its lines are no JSON")
        else:
            columns = ", ".join(f'"{name}" {kind}' for name, kind in table.columns.items())
            database.execute(f"CREATE OR REPLACE TABLE {table.name}_hot ({columns})")
        if segments.listed(folder) == listed:
            return


def read_by_name(segments: Sequence[Path]) -> list[str]:
    """Return the SQL of a relation with the rows of segments, which may have different columns; none for no segment."""
    return [f"read_parquet({quoted_list(segments)}, union_by_name = true)"] if segments else []


def union_view(database: duckdb.DuckDBPyConnection, table: Table, reads: Sequence[str]) -> None:
    """Create, or replace, the view of all rows of a table: of the relations in SQL `reads`, and of those in memory."""
    parts = [f"SELECT * FROM {rows}" for rows in (*reads, f"{table.name}_hot")]
    database.execute(f"CREATE OR REPLACE VIEW {table.name}_all AS {' UNION ALL BY NAME '.join(parts)}")


def create_views(database: duckdb.DuckDBPyConnection) -> None:
    """Create the views over the tables' rows."""
    uncounted = ", ".join(f"'{arm}'" for arm in UNCOUNTED)
    views = {"requests": f"coalesce(arm, '') NOT IN ({uncounted})", "shadows": f"arm = '{SHADOW}'"}
    views["playground"] = f"arm = '{PLAYGROUND}'"
    for name, where in views.items():
        database.execute(f"CREATE VIEW {name} AS {_REQUESTS} FROM requests_all WHERE {where}")
    database.execute(_FEEDBACK)
    database.execute(_LABELS)
    database.execute(_SHADOW_LABELS)


def create_bases(database: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """Copy the bases of decisions that the folder has into memory."""
    bases = folder / BASES
    rows = f"{read_lines(bases, {'id': 'VARCHAR', 'basis': 'JSON'})} WHERE id IS NOT NULL"
    database.execute(
        f"CREATE TABLE bases AS SELECT * FROM {rows}"
        if bases.exists()
        else "CREATE TABLE bases (id VARCHAR, basis JSON)"
    )
