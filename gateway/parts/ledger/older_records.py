"""Read recorded requests from the ledger's files, newest first: where the store's records end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.cli.commands import CommandError
from gateway.parts.ledger.columns import LEDGER, TABLES
from gateway.telemetry.ledger import ADJUSTMENT

Place = tuple[int, int]
"""Where a record stands in the store's stream: milliseconds, and its number within those."""

_PAGE: Final = 1000


def has_files(folder: Path) -> bool:
    """Return whether there is a ledger in these files."""
    return any((folder / f"{table.name}.jsonl").exists() for table in TABLES)


def older_records(folder: Path, before: Place) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield each record that stands before a place, with its own. Raises CommandError."""
    yield from _in_files(folder, before, "TRUE")


def kept_record(folder: Path, request_id: str) -> dict[str, Any] | None:
    """Return the newest record of a request id; None if there is none. Raises CommandError."""
    newest = (1 << 62, 0)
    return next((record for _, record in _in_files(folder, newest, "request_id = $id", id=request_id)), None)


def _in_files(folder: Path, place: Place, where: str, **values: Any) -> Iterator[tuple[Place, dict[str, Any]]]:
    if not has_files(folder):
        return
    # Slow to import and 30 MB, and needed only where the store has too little.
    from gateway.parts.ledger.query import QueryError, ask, connect, rows_of

    with connect(folder) as database:
        while True:
            own = f"({where}) AND arm IS DISTINCT FROM '{ADJUSTMENT}'"
            bound = f"{own} AND (entry_ms, entry_seq) < ({place[0]}, {place[1]})"
            # The places alone first: the other columns are then read of those, not of all rows that are looked at.
            order = "ORDER BY entry_ms DESC, entry_seq DESC"
            sql = f"SELECT entry_ms, entry_seq FROM requests_all WHERE {bound} {order} LIMIT {_PAGE}"
            try:
                places = ask(database, sql, values or None).fetchall()
            except QueryError as error:
                raise CommandError(str(error)) from None
            if not places:
                return
            among = f"{bound} AND entry_ms BETWEEN {places[-1][0]} AND {places[0][0]} {order} LIMIT {len(places)}"
            for row in rows_of(database, f"SELECT * FROM requests_all WHERE {among}", values or None):
                yield (row["entry_ms"], row["entry_seq"]), _record(row)
            place = places[-1]


def _record(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "trace_id": row["trace_id"],
        "parent_id": row["parent_id"],
        "started": row["started"],
        "ledger": {name: row.get(name) for name in LEDGER},
        "hops": orjson.loads(row["hops"]),
    }
