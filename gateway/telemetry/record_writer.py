"""Write the records of finished requests to the store's stream, batch by batch in their order, each of them once.

While the store takes none, they are kept, up to `_MOST`, and tried again; what is more than that is dropped, the oldest
first. A batch whose reply did not come may have been written all the same. So each has a number, the script that
appends it notes the latest number of this worker, and does nothing for one that it has appended before.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from cache.store.base import Command, Store, StoreUnavailable
from gateway.telemetry.decisions import BASES
from gateway.telemetry.ledger import TRACES

if TYPE_CHECKING:
    from gateway.telemetry.decisions import DecisionRecorder

# A script gives one reply for the whole batch: reading a reply per record costs a tenth of a request's time each.
_APPEND: Final = b"""
if tonumber(redis.call('GET', KEYS[2]) or 0) >= tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[3])
for i = 4, #ARGV do redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'v', ARGV[i]) end
return #ARGV - 3
"""
_NUMBERS: Final = f"{{{TRACES}}}:written"
"""Prefix of the keys of the workers' latest batches, in the slot of the stream."""
_NUMBER_S: Final = 3600
_MOST: Final = 2048
"""Records that are kept, about 4 kB each."""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0
_REFUSED: Final = frozenset({"unconfigured", "error", "wrong_type"})
"""Why the store does not take a batch, and never will."""


class RecordWriter:
    """Write records to `store`, which retains about the latest `keep`. `dropped` counts by reason what is lost."""

    def __init__(
        self, store: Store, keep: int, decisions: DecisionRecorder, dropped: Callable[[str, int], None]
    ) -> None:
        self.failing = ""
        """Reason why the store did not take the last batch; '' if it did."""
        self.waiting = 0
        """Records that are still to be written."""
        self._store = store
        self._keep = keep
        self._decisions = decisions
        self._dropped = dropped
        self._batches: deque[tuple[int, Sequence[bytes]]] = deque()
        self._last = 0
        self._key = f"{_NUMBERS}:{secrets.token_hex(8)}".encode()
        self._pause_s = _FIRST_PAUSE_S
        self._next_try = 0.0

    @property
    def pause_s(self) -> float | None:
        """Seconds until the next try; None if nothing is to be written."""
        return max(self._next_try - time.monotonic(), 0.0) if self._batches else None

    def add(self, records: Sequence[bytes]) -> None:
        """Take a batch over, which `write` then writes."""
        self._last += 1
        self._batches.append((self._last, records))
        self.waiting += len(records)
        while self.waiting > _MOST and len(self._batches) > 1:
            self._drop_oldest()

    async def write(self, *, now: bool = False) -> None:
        """Write all batches, unless the store is given a pause and it need not be `now`. Raises nothing."""
        while self._batches and (now or time.monotonic() >= self._next_try):
            number, records = self._batches[0]
            try:
                await self._append(number, records)
            except StoreUnavailable as down:
                self.failing = down.reason
                if down.reason in _REFUSED:
                    self._drop_oldest()
                    continue
                self._next_try = time.monotonic() + self._pause_s
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
                return
            self.failing, self._pause_s = "", _FIRST_PAUSE_S
            if self._batches and self._batches[0][0] == number:  # else it was dropped meanwhile
                self._batches.popleft()
                self.waiting -= len(records)

    async def _append(self, number: int, records: Sequence[bytes]) -> None:
        bases = [word for name, blob in self._decisions.due.items() for word in (name.encode(), blob)]
        remember = [Command((b"HSET", BASES.encode(), *bases))] if bases else []
        settings = (b"%d" % self._keep, b"%d" % number, b"%d" % _NUMBER_S)
        append = Command((b"EVAL", _APPEND, b"2", TRACES.encode(), self._key, *settings, *records))
        await self._store.apply([*remember, append])
        self._decisions.written()

    def _drop_oldest(self) -> None:
        _, records = self._batches.popleft()
        self.waiting -= len(records)
        self._dropped(f"store_{self.failing}", len(records))
