"""Have what requests cost kept on disk, and charge what workers left that were killed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Final

from cache.store.base import Store, StoreUnavailable
from gateway.parts.access.quotas.accounts import life_ms
from gateway.parts.access.quotas.charge_journal import ChargeJournal, LeftJournal
from gateway.parts.access.quotas.leases import freed
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger, ledger_blob
from gateway.telemetry.record_writer import appended, number_key
from gateway.telemetry.trace import Trace
from policies.quantities import NANO

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.parts.access.quotas.charge_journal import LeftCharge

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
