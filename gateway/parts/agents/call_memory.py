"""Keep the reasoning of tool calls for an hour, in this worker and in the store.

See `gateway.parts.servers.call_reasoning`.

A worker finds what it answered itself without a round trip. Of all other calls it asks the store once, in one round
trip, and a store that is slow or away leaves the reasoning out. Keys are hashes of the space, which holds the tenant,
and of the call's id; the value repeats both, and another's is no value.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import orjson

from cache.store.base import Command, Store, StoreUnavailable, Write
from gateway.backends.server_forms import Note
from gateway.caching.batches import BatchTask

log = logging.getLogger("tierline.call_memory")

TTL_S: Final = 3600.0
_ASKED_AGAIN_S: Final = 60.0
"""How long a call that the store does not know is not asked for again."""
_LARGEST: Final = 64 << 10
"""Bytes of a note, and of all that this worker holds; larger ones are not kept."""
_MOST_BYTES: Final = 16 << 20
_MOST_WAITING: Final = 1024
_OVERHEAD: Final = 300
_LINGER_S: Final = 0.003
_READ_S: Final = 0.05


class _HeldNote(NamedTuple):
    note: Note | None
    size: int
    until: float


class KeptCalls(BatchTask[Write]):
    """Keep the reasoning before tool calls in the store: see `gateway.backends.server_forms.CallMemory`."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("tierline.call_memory", _LINGER_S)
        self._store = store
        self._clock = clock
        self._held: dict[str, _HeldNote] = {}
        self._bytes = 0

    def keep(self, space: str, call_id: str, note: Note | None) -> None:
        """See `CallMemory.keep`. Nothing is written for an answer without reasoning."""
        key = _key(space, call_id)
        if note is None:
            self._hold(key, None, 0, TTL_S)
            return
        value = orjson.dumps([space, call_id, note])
        if len(value) > _LARGEST:
            log.info("reasoning of %d bytes before a tool call is not kept", len(value))
            return
        self._hold(key, note, len(value), TTL_S)
        if len(self._queue) < _MOST_WAITING:
            self._add(Write(key, value, TTL_S))

    async def find(self, space: str, call_ids: Sequence[str]) -> Mapping[str, Note]:
        """See `CallMemory.find`."""
        now = self._clock()
        found: dict[str, Note] = {}
        asked: dict[str, str] = {}
        for call_id in call_ids:
            key = _key(space, call_id)
            held = self._held.get(key)
            if held is None or held.until < now:
                asked[call_id] = key
            elif held.note is not None:
                found[call_id] = held.note
        if asked:
            with contextlib.suppress(StoreUnavailable):
                reads = [Command((b"GET", key.encode())) for key in asked.values()]
                values = await self._store.ask(reads, _READ_S)
                for (call_id, key), value in zip(asked.items(), values, strict=True):
                    note = _note_in(value, space, call_id)
                    self._hold(key, note, len(value or b""), _ASKED_AGAIN_S)
                    if note is not None:
                        found[call_id] = note
        return found

    def _hold(self, key: str, note: Note | None, size: int, for_s: float) -> None:
        if (before := self._held.pop(key, None)) is not None:
            self._bytes -= before.size
        self._held[key] = _HeldNote(note, size + _OVERHEAD, self._clock() + for_s)
        self._bytes += size + _OVERHEAD
        while self._bytes > _MOST_BYTES:
            self._bytes -= self._held.pop(next(iter(self._held))).size

    async def _finish(self, batch: list[Write]) -> None:
        with contextlib.suppress(StoreUnavailable):  # other workers do without
            await self._store.apply(batch)


def _key(space: str, call_id: str) -> str:
    return (
        f"tierline:calls1:{blake2b(f'{space}:{call_id}'.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"
    )


def _note_in(value: object, space: str, call_id: str) -> Note | None:
    """Return the note in a stored value; None if it is damaged, or another's."""
    if not isinstance(value, bytes):
        return None
    try:
        stored = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(stored, list) or len(stored) != 3 or stored[:2] != [space, call_id]:
        return None
    note = stored[2]
    fits = isinstance(note, dict) and isinstance(note.get("message"), dict) and isinstance(note.get("calls"), dict)
    return note if fits else None
