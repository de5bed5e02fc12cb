"""Tell which Parquet files of the archive cannot be read, and why: readers leave those out, name and count them.

A file may be cut off, empty, overwritten, or another program's. Its footer tells most of that in a millisecond; a page
damaged in the middle shows only when its columns are read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

    from gateway.parts.ledger.columns import Table

_PLACE: Final = ("entry_ms", "entry_seq", "ordinal")
"""Columns that every version has written."""


def why_damaged(database: duckdb.DuckDBPyConnection, table: Table, file: Path, *, whole: bool = False) -> str:
    """Return why a file cannot be read as a segment of a table, '' if it can; with `whole` all of its pages are read.

    Raises FileNotFoundError for one that is gone.
    """
    import duckdb

    quoted = str(file).replace("'", "''")
    read = f"read_parquet('{quoted}')"
    nothing = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in table.columns.items())
    try:
        with database.cursor() as cursor:
            own = {row[0]: row[1] for row in cursor.execute(f"DESCRIBE SELECT * FROM {read}").fetchall()}
            if missing := [name for name in _PLACE if own.get(name) != "BIGINT"]:
                return f"it is no file of the ledger: it has no column {missing[0]}"
            joined = f"DESCRIBE (SELECT {nothing}) UNION ALL BY NAME SELECT * FROM {read}"
            for name, kind, *_ in cursor.execute(joined).fetchall():
                if name in table.columns and _family(kind) != _family(table.columns[name]):
                    return f"it is no file of the ledger: {name} is {own[name]}"
            if whole:
                cursor.execute(f"SELECT max(hash(COLUMNS(*))) FROM {read}").fetchall()
    except duckdb.Error as error:
        if not file.exists():
            raise FileNotFoundError(file) from None
        if not is_of_files(error):
            raise
        return str(error).partition("\n")[0]
    return ""


def is_of_files(error: Exception) -> bool:
    """Return whether DuckDB's error may come from a damaged file; else it is the query's."""
    import duckdb

    kinds = (duckdb.IOException, duckdb.InvalidInputException, duckdb.SerializationException, duckdb.InternalException)
    return isinstance(error, kinds) or type(error) is duckdb.Error


def _family(kind: str) -> str:
    """Return a type without its fields, which differ between versions: STRUCT, STRUCT[], MAP or a scalar's name."""
    return re.sub(r"\(.*\)", "", kind)
