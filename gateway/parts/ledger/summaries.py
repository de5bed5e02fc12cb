"""Say what many requests come to, once for each file of them: figures over days then read few rows.

A `Summary` is SQL over the rows of one segment. Segments never change, so a `LiveArchive` asks it of each of them once,
keeps the result in memory, and asks it anew of the newest rows alone. What a page reads of a summary is therefore the
same as if all rows were read now.

A `LogBins` is a summary's column of durations, by bins whose width grows with the value: quantiles that are read
from it are those of the values themselves, with an error of at most half a bin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from gateway.parts.ledger.segments import ReadSegments
from gateway.telemetry.ledger import ADJUSTMENT, SHADOW, UNCOUNTED


@dataclass(frozen=True, slots=True)
class Summary:
    """One summary, in queries the relation `name`.

    `select` is SQL over a relation `rows`, which has the columns of the view `requests`, but for `started`. A row of it
    is of requests whose entries came within `slot` milliseconds from the time in its column `slot_ms` on. A slot that
    lies in two segments has its rows twice, so queries add up.
    """

    name: str
    select: str
    slot: int
    keep_s: float = math.inf
    """How far back it is asked for, in seconds: older segments are not summarised in advance."""
    figures: bool = True
    """Whether it has the requests alone that figures count; else those of the playground, which lists show, too."""


class SummarisedRecords(Protocol):
    """Records that queries ask, with summaries of them."""

    def keep(self, summary: Summary) -> None:
        """Compute this summary for each segment of the archive before a query asks for it."""

    async def ask(
        self,
        sql: str,
        values: Mapping[str, Any] | None = None,
        *,
        from_ms: int | None = None,
        summaries: Sequence[Summary] = (),
    ) -> list[dict[str, Any]]:
        """Return the rows of a query, of requests from a time on where it is given. Raises QueryError."""


_SHOWN: Final = f"coalesce(arm, '') NOT IN ('{SHADOW}', '{ADJUSTMENT}')"


def rows_of_files(segments: ReadSegments, files: Sequence[Path], from_ms: int | None = None) -> str:
    """Return the SQL of the requests in some segments, without shadows and adjustments, from an entry's time on."""
    bound = "" if from_ms is None else f" AND entry_ms >= {from_ms}"
    shape = "SELECT started AS started_s, * EXCLUDE (started) FROM"
    # A table without rows: files of an older version lack columns that queries name.
    parts = [f"{shape} requests_hot WHERE false"]
    parts += [f"{shape} {read} WHERE {_SHOWN}{bound}" for read in segments.reads(files)]
    return " UNION ALL BY NAME ".join(parts)


def rows_in_memory(from_ms: int | None = None) -> str:
    """Return the SQL of the requests in no segment, without shadows and adjustments, from an entry's time on."""
    bound = "" if from_ms is None else f" AND entry_ms >= {from_ms}"
    shape = "SELECT started AS started_s, * EXCLUDE (started) FROM requests_hot"
    return f"{shape} WHERE {_SHOWN}{bound}"


ENDED: Final = (
    "coalesce(ended, CASE WHEN status >= 500 THEN 'failed' WHEN status = 499 THEN 'left' WHEN status >= 400 "
    "THEN 'refused' WHEN good THEN 'good' WHEN NOT good THEN 'late' END)"
)
"""SQL of how a request ended (`gateway.telemetry.ledger`); older records say it less exactly."""
HELD_ENDS: Final = "('good', 'late', 'poor', 'failed')"
"""SQL list of the endings that goodput is a share of."""


def counted_rows(rows: str) -> str:
    """Return the SQL of those rows that figures count, as the view `requests` has them."""
    uncounted = ", ".join(f"'{arm}'" for arm in UNCOUNTED)
    return f"SELECT * FROM ({rows}) WHERE coalesce(arm, '') NOT IN ({uncounted})"


def summarised(summary: Summary, rows: str) -> str:
    """Return the SQL of a summary of rows that are an SQL text themselves."""
    given = counted_rows(rows) if summary.figures else rows
    return f"SELECT * FROM (WITH rows AS NOT MATERIALIZED ({given}) {summary.select})"


@dataclass(frozen=True, slots=True)
class LogBins:
    """Count positive values in bins, each `growth` times as wide as the one before, to read quantiles from them.

    A quantile is the middle of its bin, so it is wrong by half a bin at most (`error`).
    """

    growth: float

    @property
    def error(self) -> float:
        """The greatest relative error of a quantile."""
        return math.sqrt(self.growth) - 1

    def bin(self, column: str) -> str:
        """Return the SQL of the bin of a value; all below a hundredth are in one."""
        return f"floor(ln(greatest({column}, 0.01)) / {math.log(self.growth)!r})::SMALLINT"

    def value(self, number: int | str) -> str:
        """Return the SQL of the value in the middle of a bin, by the geometric mean."""
        return f"pow({self.growth!r}, ({number}) + 0.5)"

    def quantiles(self, source: str, by: Sequence[Sequence[str]], levels: Sequence[float]) -> str:
        """Return the SQL of quantiles, a list in the order of `levels` (0 to 1), of each group of `source`'s rows.

        `source` is SQL of rows with a `bin`, its count `n` and the columns to group by. Each item of `by` names the
        columns of one grouping, as GROUPING SETS do; columns that it does not name are NULL in its rows.
        """
        columns = ", ".join(dict.fromkeys(name for names in by for name in names))
        sets = ", ".join(f"({', '.join((*names, 'bin'))})" for names in by)
        counted = f"SELECT {columns}, bin, sum(n) AS n FROM ({source}) GROUP BY GROUPING SETS ({sets})"
        up_to = f"sum(n) OVER (PARTITION BY {columns} ORDER BY bin"
        all_of = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"  # in the same order: sorted once
        ranked = f"SELECT {columns}, bin, {up_to}) AS below, {up_to} {all_of}) AS total FROM ({counted})"
        chosen = [self.value(f"min(bin) FILTER (below >= {level} * total)") for level in levels]
        return f"SELECT {columns}, [{', '.join(chosen)}] AS quantiles FROM ({ranked}) GROUP BY {columns}"


VALUES_OF: Final = (
    "surface",
    "path",
    "tier",
    "backend",
    "model",
    "policy",
    "tenant",
    "team",
    "key",
    "kind",
    "arm",
    "error",
)
"""Columns of which it is known what values the requests of a segment have."""
VALUES: Final = Summary(
    "value_sets",
    f"SELECT 0::BIGINT AS slot_ms, name, value FROM (UNPIVOT (SELECT {', '.join(VALUES_OF)} FROM rows) "
    f"ON {', '.join(VALUES_OF)} INTO NAME name VALUE value) GROUP BY name, value",
    1,
    figures=False,
)
LATENCY: Final = LogBins(1.04)
"""Bins for milliseconds, each 4% wide: quantiles are within 2%."""
