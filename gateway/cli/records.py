"""Read recorded requests newest first: those that the store still has, then older ones from the ledger's files."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.cli.commands import CommandError
from gateway.parts import standard
from gateway.telemetry import reader
from gateway.telemetry.ledger import ADJUSTMENT
from policies.quantities import period

if TYPE_CHECKING:
    from cache.store.base import Store

_PAGE: Final = 1000
_NEWEST: Final = (1 << 62, 0)


async def newest_records(store: Store, folder: Path) -> AsyncIterator[tuple[str, bytes]]:
    """Yield every record with its place in the store's stream, newest first. Raises StoreUnavailable, CommandError.

    `folder` is that of the ledger's files, which may not exist.
    """
    place = _NEWEST
    async for entry_id, blob in reader.newest_entries(store):
        yield entry_id, blob
        written, _, sequence = entry_id.partition("-")
        place = int(written), int(sequence)
    for (ms, number), record in _in_files(folder, f"(entry_ms, entry_seq) < ({place[0]}, {place[1]})"):
        yield f"{ms}-{number}", orjson.dumps(record)


async def find_record(store: Store, folder: Path, request_id: str) -> bytes | None:
    """Return the newest record of a request id; None if there is none. Raises StoreUnavailable, CommandError."""
    if (blob := await reader.find(store, request_id)) is not None:
        return blob
    return next((orjson.dumps(record) for _, record in _in_files(folder, "request_id = $id", id=request_id)), None)


def say_coverage(folder: Path, covered_s: float, asked_s: float) -> None:
    """Say on stderr that the records at hand begin later than what was asked for."""
    if asked_s - covered_s > max(60.0, 0.02 * asked_s) and not has_files(folder):
        sys.stderr.write(
            f"tierline: covers {period(covered_s)} of {period(asked_s)}: the store keeps the newest records alone "
            f"(`telemetry.keep`), and {folder} has no files of the ledger\n"
        )


def has_files(folder: Path) -> bool:
    """Return whether there is a ledger in files, and the part that reads it."""
    if standard.part_missing_for("ledger") is not None:
        return False
    from gateway.parts.ledger.columns import TABLES

    return any((folder / f"{table.name}.jsonl").exists() for table in TABLES)


def _in_files(folder: Path, where: str, **values: Any) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    if not has_files(folder):
        return
    # Slow to import and 30 MB, and needed only where the store has too little.
    from gateway.parts.ledger.query import QueryError, ask, connect, rows_of

    with connect(folder) as database:
        place = _NEWEST
        while True:
            own = f"({where}) AND arm IS DISTINCT FROM '{ADJUSTMENT}'"
            bound = f"{own} AND (entry_ms, entry_seq) < ({place[0]}, {place[1]})"
            # The places alone first: the other columns are then read of those, not of all rows that are looked at.
            order = "ORDER BY entry_ms DESC, entry_seq DESC"
            sql = f"SELECT entry_ms, entry_seq FROM requests_all WHERE {bound} {order} LIMIT {_PAGE}"  # noqa: S608
            try:
                places = ask(database, sql, values or None).fetchall()
            except QueryError as error:
                raise CommandError(str(error)) from None
            if not places:
                return
            among = f"{bound} AND entry_ms BETWEEN {places[-1][0]} AND {places[0][0]} {order} LIMIT {len(places)}"
            for row in rows_of(database, f"SELECT * FROM requests_all WHERE {among}", values or None):  # noqa: S608
                yield (row["entry_ms"], row["entry_seq"]), _record(row)
            place = places[-1]


def _record(row: dict[str, Any]) -> dict[str, Any]:
    from gateway.parts.ledger.columns import LEDGER

    return {
        "trace_id": row["trace_id"],
        "parent_id": row["parent_id"],
        "started": row["started"],
        "ledger": {name: row.get(name) for name in LEDGER},
        "hops": orjson.loads(row["hops"]),
    }
