"""Know the segments of a table that a process reads, and write the SQL of their rows.

Files that have the same columns are read as one relation, whose columns DuckDB takes from the first of them. Reading
files by name (`union_by_name`) would have it open and match all columns of each for every query: 2 ms a file.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.parts.ledger.damage import why_damaged
from gateway.parts.ledger.folder import Segment, quoted, quoted_list, segment_of, segments_of, set_aside

if TYPE_CHECKING:
    import duckdb

    from gateway.parts.ledger.columns import Table

_log = logging.getLogger("tierline.archive")


class ReadSegments:
    """The segments of one table that can be read, the oldest first. Read by many threads, replaced by one."""

    def __init__(self, database: duckdb.DuckDBPyConnection, table: Table) -> None:
        self._database = database
        self.table = table
        self._columns: dict[Path, str] = {}
        self._whole: set[Path] = set()
        """Files of which every page has been read."""
        self.files: Sequence[Path] = ()
        self.damaged: Mapping[Path, str] = {}
        """What is left out: files, each with the reason."""

    def listed(self, folder: Path) -> list[Segment]:
        """Return the segments that there are now, without those known to be damaged."""
        return segments_of(folder.resolve(), self.table.name, self.damaged)

    def look(self, folder: Path) -> None:
        """Take the segments that there are now, and can be read, for those of the table.

        Raises FileNotFoundError if one was merged or deleted meanwhile.
        """
        self.damaged = {file: why for file, why in self.damaged.items() if file.exists()}
        for damaged in set_aside(folder.resolve(), self.table.name):
            self.leave_out(damaged.path, "the keeper of the ledger has set it aside")
        while True:
            files = [segment.path for segment in self.listed(folder)]
            columns = {file: self._columns.get(file) or self._checked(file) for file in files}
            if all(columns.values()):  # else some of them are known to be damaged now
                break
        self._columns = columns
        self.files = tuple(files)

    def check_pages(self) -> bool:
        """Read every page that was not yet, and add the files that cannot be read to `damaged`; return whether any was.

        It takes as long as reading the files does. `look` then leaves them out.
        """
        before = len(self.damaged)
        for file in [file for file in self.files if file not in self._whole]:
            with contextlib.suppress(FileNotFoundError):
                if why := why_damaged(self._database, self.table, file, whole=True):
                    self.leave_out(file, why)
            self._whole.add(file)
        return len(self.damaged) > before

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

    def _checked(self, file: Path) -> str:
        """Return a file's columns as text; '' for one that is damaged, which is left out from now on."""
        if why := why_damaged(self._database, self.table, file):
            self.leave_out(file, why)
            return ""
        with self._database.cursor() as cursor:
            return repr(cursor.execute(f"DESCRIBE SELECT * FROM read_parquet({quoted(file)})").fetchall())

    def leave_out(self, file: Path, why: str) -> None:
        """Note, and log once, that a file is damaged."""
        if file not in self.damaged:
            log_damage(file, why)
        self.damaged = {**self.damaged, file: why}


def log_damage(file: Path, why: str) -> None:
    """Log that a file is left out."""
    _log.warning("%s is damaged and is left out: %s", file, why)
