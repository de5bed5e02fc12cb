"""Reading records and feedback back from the store, newest first, in pages small enough for its short time limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import orjson

from cache.store.base import Store, StoreUnavailable
from gateway.telemetry import feedback, record
from gateway.telemetry.feedback import Feedback, Key
from gateway.telemetry.record import is_record

_PAGE: Final = 50  # about 200 kB
_TRIES: Final = 3
_PAUSE_S: Final = 0.2


async def newest(store: Store) -> AsyncIterator[bytes]:
    """Every record kept, newest first, as stored; raises StoreUnavailable."""
    async for blob in _entries(store, record.STREAM):
        if is_record(blob):
            yield blob


async def latest(store: Store, count: int) -> list[bytes]:
    """The newest `count` records, newest first."""
    found: list[bytes] = []
    if count > 0:
        async for blob in newest(store):
            found.append(blob)
            if len(found) == count:
                break
    return found


async def find(store: Store, request_id: str, tenant: str | None = None) -> bytes | None:
    """The newest record of that request id, of that tenant if one is named: an id may have been used more than once."""
    needle = orjson.dumps(request_id)
    async for blob in newest(store):
        if needle in blob:
            ledger = orjson.loads(blob)["ledger"]
            if ledger["request_id"] == request_id and tenant in (None, ledger["tenant"]):
                return blob
    return None


async def feedback_by_request(store: Store) -> dict[Key, Feedback]:
    """The last word on every request that anything was said of; raises StoreUnavailable."""
    found: dict[Key, Feedback] = {}
    async for blob in _entries(store, feedback.STREAM):
        said = feedback.decode(blob)
        if said is not None:
            found.setdefault(said.key, said)
    return found


async def _entries(store: Store, stream: str) -> AsyncIterator[bytes]:
    before: str | None = None
    while page := await _page(store, stream, before):
        for _, blob in page:
            yield blob
        before = page[-1][0]


async def _page(store: Store, stream: str, before: str | None) -> list[tuple[str, bytes]]:
    for left in range(_TRIES - 1, -1, -1):
        try:
            return await store.latest(stream, _PAGE, before)
        except StoreUnavailable:
            # Its limits are set for the request path; a person can wait for a busy machine.
            if not left:
                raise
            await asyncio.sleep(_PAUSE_S)
    raise AssertionError("unreachable")
