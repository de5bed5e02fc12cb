"""Keep what requests cost on disk until the store has taken it, so that no killed worker's charge is lost.

Each worker has a file in the state folder, mapped into its memory: an entry is written with no system call, and what is
written outlives the process. An entry is begun where money is reserved, follows what is charged, and is freed once the
store has added the charge to its accounts. Whoever starts next adopts the files whose lock nobody holds (`adopt`): what
was settled is written as it was, under the number of the batch that it may already have been written with; of a request
that was under way what was charged so far, else what was expected, marked as estimated.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import orjson

if TYPE_CHECKING:
    from gateway.telemetry.ledger import Ledger

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
    """The file of a worker that is no more, whose lock is ours."""

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
        """Return what is left in it, those of the oldest batches first and those of none last."""
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
