"""Reading records back from the store, newest first, in pages small enough for its short time limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import orjson

from cache.store import Store, StoreUnavailable
from gateway.telemetry.record import STREAM, is_record

_PAGE: Final = 50  # about 150 kB
_TRIES: Final = 3
_PAUSE_S: Final = 0.2


async def newest(store: Store) -> AsyncIterator[bytes]:
    """Every record kept, newest first, as stored; raises StoreUnavailable."""
    before: str | None = None
    while page := await _page(store, before):
        for _, blob in page:
            if is_record(blob):
                yield blob
        before = page[-1][0]


async def latest(store: Store, count: int) -> list[bytes]:
    """The newest `count` records, newest first."""
    found: list[bytes] = []
    if count > 0:
        async for blob in newest(store):
            found.append(blob)
            if len(found) == count:
                break
    return found


async def find(store: Store, request_id: str) -> bytes | None:
    """The newest record of that request id; a client may have used one id more than once."""
    needle = orjson.dumps(request_id)
    async for blob in newest(store):
        if needle in blob and orjson.loads(blob)["ledger"]["request_id"] == request_id:
            return blob
    return None


async def _page(store: Store, before: str | None) -> list[tuple[str, bytes]]:
    for left in range(_TRIES - 1, -1, -1):
        try:
            return await store.latest(STREAM, _PAGE, before)
        except StoreUnavailable:
            # Its limits are set for the request path; a person can wait for a busy machine.
            if not left:
                raise
            await asyncio.sleep(_PAUSE_S)
    raise AssertionError("unreachable")
