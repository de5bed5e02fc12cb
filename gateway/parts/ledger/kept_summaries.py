"""Keep the summaries of segments in memory: each segment is summarised once, in a thread that waits for no query."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.parts.ledger.folder import segment_of
from gateway.parts.ledger.summaries import VALUES, VALUES_OF, Summary, rows_in_memory, rows_of_files, summarised

if TYPE_CHECKING:
    import duckdb

    from gateway.parts.ledger.segments import ReadSegments


@dataclass(slots=True)
class _SummaryTable:
    """What there is of one summary: the number of each summarised segment, by which its rows are found."""

    summary: Summary
    segments: dict[Path, int] = field(default_factory=dict)
    next_number: int = 0

    @property
    def table(self) -> str:
        """The table with the rows of all summarised segments; `segment` is the number of theirs."""
        return f"kept_{self.summary.name}"

    @property
    def oldest_ms(self) -> float:
        """The time before which nobody asks for it."""
        return (time.time() - self.summary.keep_s) * 1000


class KeptSummaries:
    """The summaries of the requests' segments. One thread adds and drops, while others write queries by them."""

    def __init__(self, database: duckdb.DuckDBPyConnection, segments: ReadSegments) -> None:
        self._database = database
        self._segments = segments
        self._kept: dict[str, _SummaryTable] = {}

    def add(self, summary: Summary) -> bool:
        """Summarise each segment from now on; return whether that is new."""
        if summary.name in self._kept:
            return False
        kept = _SummaryTable(summary)
        with self._database.cursor() as cursor:
            rows = summarised(summary, rows_in_memory())
            cursor.execute(f"CREATE TABLE {kept.table} AS SELECT 0 AS segment, * FROM ({rows}) LIMIT 0")
        self._kept[summary.name] = kept
        return True

    def rows(self, summary: Summary, files: Sequence[Path], from_ms: int) -> str:
        """Return the SQL of a summary: what is kept of segments that are summarised, and anew of all other rows."""
        kept = self._kept.get(summary.name, _SummaryTable(summary))
        numbers = [str(kept.segments[file]) for file in files if file in kept.segments]
        others = [file for file in files if file not in kept.segments]
        parts = [summarised(summary, rows_in_memory(from_ms))]
        if numbers:
            among = f"segment IN ({', '.join(numbers)}) AND slot_ms >= {from_ms}"
            parts.append(f"SELECT * EXCLUDE (segment) FROM {kept.table} WHERE {among}")
        if others:
            parts.append(summarised(summary, rows_of_files(self._segments, others, from_ms)))
        return " UNION ALL BY NAME ".join(parts)

    def with_values(self, files: Sequence[Path], equal: Mapping[str, str]) -> list[Path]:
        """Return the segments that may have requests with these values of columns: of some, it is known."""
        kept = self._kept[VALUES.name]
        if not (wanted := {name: value for name, value in equal.items() if name in VALUES_OF}):
            return list(files)
        numbers = dict(kept.segments)
        pairs = " OR ".join(f"(name = '{name}' AND value = ${name})" for name in wanted)
        having = f"GROUP BY segment HAVING count(DISTINCT name) = {len(wanted)}"
        with self._database.cursor() as cursor:
            rows = cursor.execute(f"SELECT segment FROM {kept.table} WHERE {pairs} {having}", wanted).fetchall()
        there = {segment for (segment,) in rows}
        return [file for file in files if numbers.get(file) is None or numbers[file] in there]

    def summarise_one(self) -> bool:
        """Summarise the newest segment that is not yet; return whether there was one. Raises duckdb.Error."""
        for kept in list(self._kept.values()):
            for file in reversed(self._segments.between(int(max(kept.oldest_ms, 0)), None)):
                if file in kept.segments:
                    continue
                number, kept.next_number = kept.next_number, kept.next_number + 1
                rows = summarised(kept.summary, rows_of_files(self._segments, [file]))
                with self._database.cursor() as cursor:
                    cursor.execute(f"INSERT INTO {kept.table} BY NAME SELECT {number} AS segment, * FROM ({rows})")
                kept.segments[file] = number
                return True
        return False

    @property
    def has_gone(self) -> bool:
        """Whether anything is kept of segments that are no more, or that are older than is asked for."""
        return any(True for _ in self._gone())

    def drop_gone(self) -> None:
        """Drop what is kept of them. A query that was written before, and is asked after, misses rows."""
        gone = list(self._gone())
        with self._database.cursor() as cursor:
            for kept, file in gone:
                cursor.execute(f"DELETE FROM {kept.table} WHERE segment = {kept.segments.pop(file)}")

    def _gone(self) -> Iterator[tuple[_SummaryTable, Path]]:
        there = set(self._segments.files)
        for kept in list(self._kept.values()):
            oldest_ms = kept.oldest_ms
            for file in list(kept.segments):
                if file not in there or segment_of(file).last[0] < oldest_ms:
                    yield kept, file
