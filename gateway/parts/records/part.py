"""Write the records of finished requests to the store's stream, batch by batch in their order, each of them once.

The script that appends a record adds its charge to its accounts of money (`gateway.request.context.HeldLimits`) in the
same step, so what is counted there is what the records say. While the store takes none, records are kept, up to
`_MOST`, and tried again; what is more than that is dropped, the oldest first, but no charge is. A batch whose reply did
not come may have been written all the same. So each has a number, the script that appends it notes the latest number of
this worker, and does nothing for one that it has appended before.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cache.store.base import Command, Store, StoreUnavailable
from gateway.telemetry.ledger import ACCOUNT_PREFIX, TRACES, RecordWriter
from policies.quantities import NANO

if TYPE_CHECKING:
    from gateway.telemetry.ledger import ChargedAccounts, ChargeEntry, DecisionEncoder, Ledger

# A script gives one reply for the whole batch: reading a reply per record costs a tenth of a request's time each.
_APPEND: Final = b"""
if tonumber(redis.call('GET', KEYS[2]) or 0) >= tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[3])
for i = 3, #KEYS do
  local key, amount, life = KEYS[i], ARGV[2 * i - 2], tonumber(ARGV[2 * i - 1])
  redis.call('HINCRBY', key, 'spent', amount)
  if life > 0 and redis.call('PTTL', key) == -1 then redis.call('PEXPIRE', key, life) end
end
for i = 2 * #KEYS, #ARGV do redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'v', ARGV[i]) end
return #ARGV - 3
"""
_NUMBERS: Final = f"{{{TRACES}}}:written"
"""Prefix of the keys of the workers' latest batches, in the slot of the stream."""
_NUMBER_S: Final = 7 * 86400
"""How long the number of a worker's last batch is kept: until then what it left in its journal can be adopted."""
_MOST: Final = 2048
"""Records that are kept, about 4 kB each."""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0
_NOWHERE: Final = "unconfigured"
_REFUSED: Final = frozenset({_NOWHERE, "error", "wrong_type"})
"""Why the store does not take a batch, and never will."""


def record_writer(
    store: Store,
    keep: int,
    decisions: DecisionEncoder | None,
    dropped: Callable[[str, int], None],
    accounts: ChargedAccounts | None,
) -> StoreWriter:
    """Return what writes a worker's records."""
    return StoreWriter(store, keep, decisions, dropped, accounts)


@dataclass(slots=True)
class _WriteBatch:
    """Records and charges that are written in one step. `charges` are nanodollars by account."""

    number: int
    records: Sequence[bytes]
    charges: Counter[str]
    entries: list[ChargeEntry]


class StoreWriter(RecordWriter):
    """Write records to `store`, which retains about the latest `keep`. `dropped` counts by reason what is lost."""

    def __init__(
        self,
        store: Store,
        keep: int,
        decisions: DecisionEncoder | None,
        dropped: Callable[[str, int], None],
        accounts: ChargedAccounts | None = None,
    ) -> None:
        """Without `accounts` no record is charged to any."""
        self.keep = keep
        self._store = store
        self._decisions = decisions
        self._dropped = dropped
        self._accounts = accounts
        self._batches: deque[_WriteBatch] = deque()
        self._charges: Counter[str] = Counter()
        """Charges of the next batch."""
        self._last = 0
        self._entries: list[ChargeEntry] = []
        self.token = secrets.token_hex(8) if accounts is None else accounts.worker
        """Name of this worker in the key of its latest batch."""
        self._key = number_key(self.token)
        self._pause_s = _FIRST_PAUSE_S
        self._next_try = 0.0

    @property
    def pause_s(self) -> float | None:
        """Seconds until the next try; None if nothing is to be written."""
        if self._charges:
            return 0.0
        return max(self._next_try - time.monotonic(), 0.0) if self._batches else None

    def charge(self, ledger: Ledger) -> None:
        """Take over the charge of a finished request: the next batch has it, whatever becomes of its record."""
        amount = round(ledger.charged_usd * NANO)
        for account in ledger.accounts:
            self._charges[account] += amount
        if (entry := ledger.entry) is not None and amount:
            self._entries.append(entry)

    def add(self, records: Sequence[bytes]) -> None:
        """Take a batch over, which `write` then writes, with the charges up to now."""
        self._last += 1
        for entry in self._entries:
            entry.put_into(self._last)
        self._batches.append(_WriteBatch(self._last, records, self._charges, self._entries))
        self._charges, self._entries = Counter(), []
        self.waiting += len(records)
        while self.waiting > _MOST and len(self._batches) > 1:
            self._drop_oldest()

    async def write(self, *, now: bool = False) -> None:
        """Write all batches, unless the store is given a pause and it need not be `now`. Raises nothing."""
        if self._charges:
            self.add(())
        while self._batches and (now or time.monotonic() >= self._next_try):
            batch = self._batches[0]
            try:
                await self._append(batch)
            except StoreUnavailable as down:
                self.failing = down.reason
                if down.reason in _REFUSED:
                    self._drop(batch)
                    if not batch.charges or down.reason == _NOWHERE:  # without a store this process counts by itself
                        self._batches.popleft()
                        continue
                self._next_try = time.monotonic() + self._pause_s
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
                return
            self.failing, self._pause_s = "", _FIRST_PAUSE_S
            self._batches.popleft()
            self.waiting -= len(batch.records)
            if batch.charges and self._accounts is not None:
                self._accounts.written(batch.charges.items())
            for entry in batch.entries:
                entry.free()

    async def _append(self, batch: _WriteBatch) -> None:
        decisions = self._decisions
        remember = [] if decisions is None else decisions.commands()
        life_ms = _for_ever if self._accounts is None else self._accounts.life_ms
        append = appended(self._key, self.keep, batch.number, batch.charges, life_ms, batch.records)
        await self._store.apply([*remember, append])
        if decisions is not None:
            decisions.written()

    def _drop_oldest(self) -> None:
        """Drop the oldest records, but not their charges.

        The first batch may have been written already, so its charges stay under its number; those of any other go into
        the batch behind it, so that there are never many without records.
        """
        place = next(i for i, batch in enumerate(self._batches) if batch.records)
        self._drop(self._batches[place])
        if place:
            following = self._batches[place + 1]
            following.charges.update(self._batches[place].charges)
            following.entries += self._batches[place].entries
            for entry in following.entries:
                entry.put_into(following.number)
            del self._batches[place]

    def _drop(self, batch: _WriteBatch) -> None:
        if batch.records:
            self.waiting -= len(batch.records)
            self._dropped(f"store_{self.failing}", len(batch.records))
            batch.records = ()


def number_key(token: str) -> bytes:
    """Return the key at which a worker has the number of its latest batch."""
    return f"{_NUMBERS}:{token}".encode()


def _for_ever(_: str) -> int:
    return 0


def appended(
    key: bytes,
    keep: int,
    number: int,
    charges: Mapping[str, int],
    life_ms: Callable[[str], int],
    records: Sequence[bytes],
) -> Command:
    """Return the command that adds a batch, once, whose worker has its latest number at `key`.

    `charges` are nanodollars by account; `life_ms` is as `ChargedAccounts` has it.
    """
    accounts = [(ACCOUNT_PREFIX + name).encode() for name in charges]
    words = (b"%d" % (2 + len(accounts)), TRACES.encode(), key, *accounts)
    settings = (b"%d" % keep, b"%d" % number, b"%d" % _NUMBER_S)
    amounts = [word for name, amount in charges.items() for word in (b"%d" % amount, b"%d" % life_ms(name))]
    return Command((b"EVAL", _APPEND, *words, *settings, *amounts, *records))
