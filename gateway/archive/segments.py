"""Know the segments of a table that a process reads, and write the SQL of their rows.

Files that have the same columns are read as one relation, whose columns DuckDB takes from the first of them. Reading
files by name (`union_by_name`) would have it open and match all columns of each for every query: 2 ms a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.archive.folder import quoted, quoted_list, segment_of

if TYPE_CHECKING:
    import duckdb


class ReadSegments:
    """The segments of one table, the oldest first. Read by many threads, replaced by one."""

    def __init__(self, database: duckdb.DuckDBPyConnection) -> None:
        self._database = database
        self._columns: dict[Path, str] = {}
        self.files: Sequence[Path] = ()

    def replace(self, files: Sequence[Path]) -> None:
        """Take these segments for those that there are. Raises duckdb.Error for a file that cannot be read."""
        known = self._columns
        self._columns = {file: known.get(file) or self._columns_of(file) for file in files}
        self.files = tuple(files)

    def between(self, first_ms: int | None, last_ms: int | None) -> list[Path]:
        """Return the segments that have entries between two times, both included; None is no bound."""
        return [
            file
            for file in self.files
            if (first_ms is None or segment_of(file).last[0] >= first_ms)
            and (last_ms is None or segment_of(file).first[0] <= last_ms)
        ]

    def reads(self, files: Sequence[Path]) -> list[str]:
        """Return the SQL of relations that together have the rows of these segments; each has other columns."""
        groups: dict[str, list[Path]] = {}
        for file in files:
            groups.setdefault(self._columns.get(file, str(file)), []).append(file)
        return [f"read_parquet({quoted_list(group)})" for group in groups.values()]

    def _columns_of(self, file: Path) -> str:
        with self._database.cursor() as cursor:
            return repr(cursor.execute(f"DESCRIBE SELECT * FROM read_parquet({quoted(file)})").fetchall())
