"""Write a ledger of many requests: recorded ones over and over, with ids, times, tenants and amounts of their own.

Segments have as many rows as those that a keeper merges: 64 MiB where every request has hops of its own, at 380 bytes a
row. Here one in 20 has hops, as with `telemetry: {sample: 5%}`, so files are smaller; no list or figure reads hops.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb

from gateway.parts.ledger.columns import FEEDBACK, REQUESTS, Table
from gateway.parts.ledger.folder import BASES, Place, quoted, segment_copy, segment_path
from gateway.parts.ledger.query import hot_table, read_by_name, union_view
from gateway.parts.ledger.segments import ReadSegments

Say = Callable[[str], None]

RARE_ERROR: Final = "rare_failure"
"""The error that one request in `_RARE` has."""
_RARE: Final = 200_000
_SEGMENT: Final = 160_000
_HOT: Final = 10_000
"""Rows in the hot file: what a keeper holds there for up to an hour."""
_SAMPLED: Final = 20
_RATED: Final = 100
"""One request in so many has feedback."""
_UNEVEN: Final = f"exp(0.4 * sqrt(-2 * ln(u + 1e-12)) * cos({2 * math.pi} * v))"
"""By how much times and costs differ from those of the request that a row is made of: log-normal."""
_TENANT: Final = "'tenant-' || (hash(i, 7) % 50)::VARCHAR"
_REQUEST_ID: Final = "'req_' || printf('%011x', at_ms) || left(md5(i::VARCHAR), 13)"
_TRACE_ID: Final = "printf('%011x', at_ms) || left(md5('t' || i::VARCHAR), 21)"
"""As `gateway.telemetry.trace` makes them."""
_CONVERSATION: Final = "CASE WHEN conversation <> '' THEN conversation || '-' || (at_ms // 600000)::VARCHAR ELSE '' END"
"""Each is held anew every ten minutes: of 10,000,000 requests in 30 days one has three turns."""


@dataclass(frozen=True, slots=True)
class Spread:
    """So many requests, evenly from `start_ms` (Unix) on, one every `step_ms`."""

    requests: int
    start_ms: int
    step_ms: float

    def place(self, number: int) -> Place:
        """Return the place of a request's entry."""
        return math.floor(self.start_ms + number * self.step_ms), 0

    def numbered(self, first: int, last: int, every: int = 1) -> str:
        """Return the SQL of requests' numbers `i` and times `at_ms`, `last` excluded."""
        at = f"floor({self.start_ms} + range * {self.step_ms!r}::DOUBLE)::BIGINT"
        return f"SELECT range AS i, {at} AS at_ms FROM range({first}, {last}, {every})"

    def rows(self, first: int, last: int) -> str:
        """Return the SQL of the rows of `requests`, from a table `seeds` whose rows are numbered by `n`."""
        uneven = {name: f"{name} * {_UNEVEN}" for name in ("total_ms", "ttft_ms", "cost_usd", "counterfactual_usd")}
        is_rare = f"i % {_RARE} = 77"
        values = {
            **uneven,
            "entry_ms": "at_ms",
            "entry_seq": "0",
            "ordinal": "i + 1",
            "started": f"(at_ms - {uneven['total_ms']}) / 1000",
            "request_id": _REQUEST_ID,
            "trace_id": _TRACE_ID,
            "tenant": _TENANT,
            "conversation": _CONVERSATION,
            "hops": f"CASE WHEN i % {_SAMPLED} = 0 THEN hops ELSE '[]' END",
            "error": f"CASE WHEN {is_rare} THEN '{RARE_ERROR}' ELSE error END",
            "status": f"CASE WHEN {is_rare} THEN 502 ELSE status END",
        }
        given = (
            "SELECT i, at_ms, hash(i, 1) / 18446744073709551616 AS u, hash(i, 2) / 18446744073709551616 AS v, "
            f"(hash(i) % (SELECT count(*) FROM seeds))::BIGINT AS n FROM ({self.numbered(first, last)})"
        )
        replaced = ", ".join(f"{value} AS {name}" for name, value in values.items())
        made = f"SELECT * EXCLUDE (i, at_ms, u, v, n) REPLACE ({replaced}) FROM ({given}) JOIN seeds USING (n)"
        return _shaped(REQUESTS, made)

    def feedback(self) -> str:
        """Return the SQL of what clients said of some of them."""
        made = (
            f"SELECT at_ms AS entry_ms, 0 AS entry_seq, i // {_RATED} + 1 AS ordinal, {_REQUEST_ID} AS request_id, "
            f"{_TENANT} AS tenant, 'chat' AS surface, (hash(i, 3) % 2)::DOUBLE AS score, '' AS comment, "
            f"at_ms / 1000 AS given_at FROM ({self.numbered(0, self.requests, _RATED)})"
        )
        return _shaped(FEEDBACK, made)


def multiply(seeds: Path, folder: Path, spread: Spread, say: Say) -> None:
    """Write the ledger of a spread of requests, made of those of the ledger in `seeds`, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    if (seeds / BASES).exists():
        (folder / BASES).write_bytes((seeds / BASES).read_bytes())
    hot = max(spread.requests - _HOT, 0)
    with duckdb.connect() as database:
        segments = ReadSegments(database, REQUESTS)
        hot_table(database, seeds, segments)
        union_view(database, REQUESTS, read_by_name(segments.files))
        database.execute("CREATE TABLE seeds AS SELECT *, row_number() OVER () - 1 AS n FROM requests_all")
        for first in range(0, hot, _SEGMENT):
            last = min(first + _SEGMENT, hot)
            path = segment_path(folder, REQUESTS, spread.place(first), spread.place(last - 1))
            database.execute(segment_copy(spread.rows(first, last), path))
            say(f"{last:,} of {spread.requests:,} requests are written")
        tail = quoted(folder / f"{REQUESTS.name}.jsonl")
        database.execute(f"COPY ({spread.rows(hot, spread.requests)}) TO {tail} (FORMAT json)")
        path = segment_path(folder, FEEDBACK, spread.place(0), spread.place(spread.requests - 1))
        database.execute(segment_copy(spread.feedback(), path))
    (folder / f"{FEEDBACK.name}.jsonl").touch()


def _shaped(table: Table, select: str) -> str:
    """Return a query with the table's columns, in their order and of their types."""
    columns = ", ".join(f'"{name}"::{kind} AS "{name}"' for name, kind in table.columns.items())
    return f"SELECT {columns} FROM ({select})"
