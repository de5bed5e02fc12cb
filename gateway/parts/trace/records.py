"""Read recorded requests newest first: those that the store still has, then older ones from the ledger's files."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from gateway.parts.measures import reader
from gateway.seams import has_files, kept_record, older_records
from policies.quantities import period

if TYPE_CHECKING:
    from cache.store.base import Store

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
    for (ms, number), record in older_records(folder, place):
        yield f"{ms}-{number}", orjson.dumps(record)


async def find_record(store: Store, folder: Path, request_id: str) -> bytes | None:
    """Return the newest record of a request id; None if there is none. Raises StoreUnavailable, CommandError."""
    if (blob := await reader.find(store, request_id)) is not None:
        return blob
    record = kept_record(folder, request_id)
    return None if record is None else orjson.dumps(record)


def say_coverage(folder: Path, covered_s: float, asked_s: float) -> None:
    """Say on stderr that the records at hand begin later than what was asked for."""
    if asked_s - covered_s > max(60.0, 0.02 * asked_s) and not has_files(folder):
        sys.stderr.write(
            f"tierline: covers {period(covered_s)} of {period(asked_s)}: the store keeps the newest records alone "
            f"(`telemetry.keep`), and {folder} has no files of the ledger\n"
        )
