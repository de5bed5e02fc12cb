"""Read records and other streams of the store, newest first, in pages that fit the store's short time limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import orjson

from cache.store.base import Store, StoreUnavailable
from gateway.telemetry.ledger import ADJUSTMENT, TRACES, is_record

_PAGE: Final = 50  # about 200 kB
_TRIES: Final = 3
_ADJUSTS: Final = b'"arm":"%s"' % ADJUSTMENT.encode()
"""What records have that are of no request, but of what an operator did to an account; in no text: there quotes are
escaped."""
_PAUSE_S: Final = 0.2


async def newest(store: Store) -> AsyncIterator[bytes]:
    """Yield every stored record, newest first, encoded as stored. Raises StoreUnavailable."""
    async for _, blob in newest_entries(store):
        yield blob


async def newest_entries(store: Store) -> AsyncIterator[tuple[str, bytes]]:
    """Yield every stored record with its place in the stream, newest first. Raises StoreUnavailable."""
    async for entry_id, blob in entries(store, TRACES):
        if is_record(blob) and _ADJUSTS not in blob:
            yield entry_id, blob


async def latest(store: Store, count: int) -> list[bytes]:
    """Return the newest `count` records, newest first. Raises StoreUnavailable."""
    records: list[bytes] = []
    if count > 0:
        async for blob in newest(store):
            records.append(blob)
            if len(records) == count:
                break
    return records


async def find(store: Store, request_id: str, wanted: Callable[[Any], bool] = lambda _: True) -> bytes | None:
    """Return the newest record of a request id whose ledger is `wanted`; None if there is none.

    A request id may occur more than once. Raises StoreUnavailable.
    """
    needle = orjson.dumps(request_id)
    async for blob in newest(store):
        if needle in blob:
            ledger = orjson.loads(blob)["ledger"]
            if ledger["request_id"] == request_id and wanted(ledger):
                return blob
    return None


async def entries(store: Store, stream: str) -> AsyncIterator[tuple[str, bytes]]:
    """Yield the entries of a stream with their places, newest first. Raises StoreUnavailable."""
    before: str | None = None
    while page := await _page(store, stream, before):
        for entry in page:
            yield entry
        before = page[-1][0]


async def _page(store: Store, stream: str, before: str | None) -> list[tuple[str, bytes]]:
    for left in range(_TRIES - 1, -1, -1):
        try:
            return await store.latest(stream, _PAGE, before)
        except StoreUnavailable:
            # The store's time limits are set for the request path; a reader here can wait longer, so try again.
            if not left:
                raise
            await asyncio.sleep(_PAUSE_S)
    raise AssertionError("unreachable")
