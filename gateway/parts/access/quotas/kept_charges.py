"""Have what requests cost kept on disk, and charge what workers left that were killed.

Keep what requests cost on disk until the store has taken it, so that no killed worker's charge is lost.

Each worker has a file in the state folder, mapped into its memory: an entry is written with no system call, and what is
written outlives the process. An entry is begun where money is reserved, follows what is charged, and is freed once the
store has added the charge to its accounts. Whoever starts next adopts the files whose lock nobody holds (`adopt`): what
was settled is written as it was, under the number of the batch that it may already have been written with; of a request
that was under way what was charged so far, else what was expected, marked as estimated.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import mmap
import os
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import orjson

from cache.store.base import Store, StoreUnavailable
from gateway.parts.access.quotas.accounts import life_ms
from gateway.parts.access.quotas.leases import freed
from gateway.parts.records.part import appended, number_key
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger, ledger_blob
from gateway.telemetry.trace import Trace
from policies.quantities import NANO

_PREFIX: Final = "charges-"
_SLOT: Final = 1024
_SLOTS: Final = 4096
"""Most entries: requests under way, and those whose records the store has not taken yet; 4 MiB, as far as used."""
_HEAD: Final = struct.Struct("<BqqH")
"""Of an entry: its state, nanodollars, number of the batch, length of what follows."""
_FREE: Final = 0
_BEGUN: Final = 1
"""Under way, with nothing charged yet: the amount is what is expected."""
_CHARGED: Final = 2
"""Under way: the amount is what was charged so far."""
_SETTLED: Final = 3
_FIELDS: Final = ("request_id", "tenant", "team", "key", "user", "surface", "policy", "requested_model")

_FIELDS_OF: Final = attrgetter(*_FIELDS)


class LeftCharge(NamedTuple):
    """A charge that a dead worker left. `batch` is 0 where no batch had it; `estimated`: its request was under way."""

    batch: int
    amount: int
    accounts: tuple[str, ...]
    fields: dict[str, Any]
    estimated: bool


class JournalEntry:
    """The slot of the journal that holds one request's charge until the store has its record."""

    __slots__ = ("_at", "_journal")

    def __init__(self, journal: ChargeJournal, at: int) -> None:
        self._journal = journal
        self._at = at

    def add(self, amount: int) -> None:
        """Add nanodollars that a call of the request was charged."""
        state, before, batch, length = _HEAD.unpack_from(self._journal.map, self._at)
        _HEAD.pack_into(
            self._journal.map, self._at, _CHARGED, amount + (before if state == _CHARGED else 0), batch, length
        )

    def settle(self, amount: int) -> None:
        """Note what the request cost in the end; an entry of nothing is freed."""
        if not amount:
            self.free()
            return
        _, _, batch, length = _HEAD.unpack_from(self._journal.map, self._at)
        _HEAD.pack_into(self._journal.map, self._at, _SETTLED, amount, batch, length)

    def put_into(self, batch: int) -> None:
        """Write the number of the batch of records that takes this charge to the store."""
        state, amount, _, length = _HEAD.unpack_from(self._journal.map, self._at)
        _HEAD.pack_into(self._journal.map, self._at, state, amount, batch, length)

    def free(self) -> None:
        """Forget the entry: the store has the charge, or there is none."""
        self._journal.map[self._at] = _FREE
        self._journal.places.append(self._at)


class ChargeJournal:
    """One worker's file of charges that the store does not have yet. Close it once no entry is left."""

    def __init__(self, folder: Path, token: str) -> None:
        """Make the file, readable by us alone, and lock it. Raises OSError.

        `token` names the worker: by it the store remembers its latest batch.
        """
        self.path = folder / f"{_PREFIX}{token}"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        os.truncate(self._file, _SLOT * _SLOTS)
        self.map = mmap.mmap(self._file, _SLOT * _SLOTS)
        self.places = [place * _SLOT for place in reversed(range(_SLOTS))]
        """Where free entries are; the one that was used last is used next, so that few pages are touched."""

    def begin(self, ledger: Ledger, accounts: Sequence[str], expected: int) -> JournalEntry | None:
        """Return the entry of a request that is about to be called; None if there is no room for it."""
        record = orjson.dumps((accounts, *_FIELDS_OF(ledger)))
        if not self.places or len(record) > _SLOT - _HEAD.size:
            return None
        at = self.places.pop()
        body = at + _HEAD.size
        self.map[body : body + len(record)] = record
        _HEAD.pack_into(self.map, at, _BEGUN, expected, 0, len(record))
        return JournalEntry(self, at)

    def close(self) -> None:
        """Remove the file if nothing is left in it; else leave it to whoever starts next."""
        left = _SLOTS - len(self.places)
        self.map.close()
        if not left:
            self.path.unlink(missing_ok=True)
        os.close(self._file)


class LeftJournal:
    """The journal that a dead worker has left, locked by this process so that no other adopts it."""

    def __init__(self, path: Path, file: int) -> None:
        self.token = path.name.removeprefix(_PREFIX)
        self._path = path
        self._file = file

    @classmethod
    def all_in(cls, folder: Path) -> Iterator[Self]:
        """Yield the files in a folder whose owners are dead."""
        for path in sorted(folder.glob(f"{_PREFIX}*")):
            with suppress(OSError):
                file = os.open(path, os.O_RDWR)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    os.close(file)
                else:
                    yield cls(path, file)

    def charges(self) -> list[LeftCharge]:
        """Return the charges that the store lacks, by batch, the oldest first, and those of no batch last."""
        content, found = os.pread(self._file, _SLOT * _SLOTS, 0), []
        for at in range(0, len(content) - _SLOT + 1, _SLOT):
            state, amount, batch, length = _HEAD.unpack_from(content, at)
            if state != _FREE and amount:
                accounts, *values = orjson.loads(content[at + _HEAD.size : at + _HEAD.size + length])
                fields = dict(zip(_FIELDS, values, strict=True))
                found.append(LeftCharge(batch, amount, tuple(accounts), fields, state != _SETTLED))
        return sorted(found, key=lambda batch: (not batch.batch, batch.batch))

    def remove(self) -> None:
        """Remove the file: all that it had is written."""
        self._path.unlink(missing_ok=True)
        self.leave()

    def leave(self) -> None:
        """Let go of the file, for another to adopt."""
        os.close(self._file)


_log = logging.getLogger("tierline.telemetry")

_ADOPT_S: Final = 1.0
_AFTER_ALL: Final = 1 << 52
"""Number of what a dead worker had put into no batch yet: above those of all its batches."""


class KeptCharges:
    """Keep one worker's charges on disk until the store has them, and adopt those of dead workers."""

    def __init__(self, folder: Path, store: Store, keep: int, worker: str) -> None:
        """Keep them in a folder. `keep` is how many records the store has, `worker` whose charges they are."""
        self._folder = folder
        self._store = store
        self._keep = keep
        self._worker = worker
        self._journal: ChargeJournal | None = None
        self._adopting: asyncio.Task[None] | None = None

    def start(self) -> ChargeJournal | None:
        """Return the journal, once it is open, and begin to write what dead workers left; None if it has no place."""
        try:
            self._journal = ChargeJournal(self._folder, self._worker)
        except OSError as error:
            _log.warning("no file keeps what requests cost, so a killed worker loses charges: %s", error)
            return None
        self._adopting = asyncio.create_task(self._adopt(), name="tierline.charges")
        return self._journal

    async def aclose(self) -> None:
        """Close the journal, once all records are written."""
        if self._adopting is not None:
            self._adopting.cancel()
            await asyncio.gather(self._adopting, return_exceptions=True)
        if self._journal is not None:
            self._journal.close()

    async def _adopt(self) -> None:
        while True:
            with contextlib.suppress(StoreUnavailable):
                if count := await adopt(self._folder, self._store, self._keep):
                    _log.warning("charged %d requests that workers left which were killed", count)
                return
            await asyncio.sleep(_ADOPT_S)


async def adopt(folder: Path, store: Store, keep: int) -> int:
    """Write what dead workers have left in their journals; return the number of charges. Raises StoreUnavailable.

    It may be interrupted at any point and done again: each batch has its number.
    """
    written = 0
    for journal in await asyncio.to_thread(lambda: list(LeftJournal.all_in(folder))):
        try:
            written += await _adopt_one(journal, store, keep)
        except BaseException:
            journal.leave()
            raise
        await asyncio.to_thread(journal.remove)
    return written


async def _adopt_one(journal: LeftJournal, store: Store, keep: int) -> int:
    left = await asyncio.to_thread(journal.charges)
    for number, group in groupby(left, key=lambda record: record.batch or _AFTER_ALL):
        charges: Counter[str] = Counter()
        records = []
        for record in group:
            charges.update(dict.fromkeys(record.accounts, record.amount))
            records.append(_record_of(record))
        await store.apply(
            [appended(number_key(journal.token), keep, number, charges, life_ms, records if keep else ())]
        )
    if left:
        await store.apply(freed(journal.token, {account for record in left for account in record.accounts}))
    return len(left)


def _record_of(left: LeftCharge) -> bytes:
    """Return the record of a request whose own was lost."""
    trace, usd = Trace(names.REQUEST), left.amount / NANO
    trace.root.end("worker_died")
    ledger = Ledger(
        **left.fields,
        status=500,
        error="worker_died",
        cost_usd=usd,
        charged_usd=usd,
        accounts=left.accounts,
        usage_estimated=left.estimated,
    )
    return ledger_blob(trace, ledger)
