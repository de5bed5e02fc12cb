"""Keep copies of what is spent of budgets, and give them back to a store that has lost its data.

A worker remembers what the store said last of each account of money that it used, and keeps that in a file of the
state folder, which the workers of a host share and the next start reads. The store has a generation, a name that
whoever looks first makes up, and a number that rises with every look. Another name says that the store was emptied, and
a number that has fallen that it goes on from an older state: then no counter may be below its copy. A counter that is
lower while neither is so was reset by an operator, or topped up.

A worker looks every second, and at once when a counter has fallen: what others charged in the last second before the
loss, or before the first look after it, may be missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from cache.store.base import Command, Store, StoreUnavailable
from gateway.off_loop import off_loop
from gateway.telemetry.ledger import ACCOUNT_PREFIX

log = logging.getLogger("tierline.quotas")

_GENERATION: Final = b"{tierline:traces}:quotas:generation"
_IN_USE: Final = b"{tierline:traces}:quotas"
_LOOK: Final = b"""
redis.call('HSETNX', KEYS[1], 'name', ARGV[1])
return {redis.call('HGET', KEYS[1], 'name'), redis.call('HINCRBY', KEYS[1], 'looks', 1)}
"""
_GIVE_BACK: Final = b"""
for i = 2, #KEYS do
  local spent, may_go = tonumber(ARGV[2 * i - 3]), ARGV[2 * i - 2]
  if tonumber(redis.call('HGET', KEYS[i], 'spent') or 0) < spent then
    redis.call('HSET', KEYS[i], 'spent', ARGV[2 * i - 3])
    redis.call('ZADD', KEYS[1], 'NX', may_go, KEYS[i])
  end
end
"""
_EVERY_S: Final = 1.0
_KEPT_EVERY: Final = 5
"""Looks after which the copies are written to the file, if they have changed."""
_LIMIT_S: Final = 0.5
_MOST: Final = 50_000
_AT_ONCE: Final = 200
_TOLD_S: Final = 300.0


class SpentCopy(NamedTuple):
    """What was spent of one account, in nanodollars, when the store was last asked."""

    spent: int
    may_go: float
    """When the counter may go, in Unix milliseconds; infinite for never."""
    at: float
    """When the store said so, in Unix seconds."""


class Generation(NamedTuple):
    """The identity of the data in a store, and how often it was looked at; see the module's docstring."""

    name: str
    """'' before the first look."""
    looks: int

    def was_lost(self, now: Generation) -> bool:
        """Return whether data was lost between this look at the store and the look `now`.

        It was where the store has another name by now, as one that began empty has, or counts no more looks than
        before, as one restored from an older copy does. Before the first look nothing can be told: False.
        """
        return bool(self.name) and (now.name != self.name or now.looks <= self.looks)


class SpentCopies:
    """Copies, on this worker's disk, of what is spent of its accounts, in case the store loses them.

    Start and close it on the worker's event loop.
    """

    def __init__(
        self,
        store: Store,
        file: Path,
        write: Callable[[Path, bytes], None],
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Take the store, the file of the copies, and what writes a file whole."""
        self._store = store
        self._file = file
        self._write_file = write
        self._clock = wall_clock
        self._spent: dict[str, SpentCopy] = {}
        """By account, the one that was heard of last at the end."""
        self._seen = Generation("", 0)
        self._look = Command((b"EVAL", _LOOK, b"1", _GENERATION, secrets.token_hex(8).encode()))
        self._changed = False
        self._lost_at = float("-inf")
        self._looking = asyncio.Lock()
        self._first = asyncio.Event()
        """Set once there is a copy."""
        self._task: asyncio.Task[None] | None = None

    @staticmethod
    def file_in(state: Path, store_url: str) -> Path:
        """Return the file of the copies in the state folder: each store has its own."""
        return state / f"spent-{hashlib.sha256(store_url.encode()).hexdigest()[:12]}.json"

    async def start(self) -> None:
        """Read the file, and look at the store from now on."""
        self._seen, self._spent = await off_loop(self._read)
        if self._spent:
            self._first.set()
        self._task = asyncio.create_task(self._run(), name="tierline.quotas.copies")

    async def aclose(self) -> None:
        """Write the file, and stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._changed:
            await off_loop(self._write)

    def notes(self) -> list[str]:
        """Return what `/readyz` says of a loss in the last five minutes."""
        if self._clock() - self._lost_at > _TOLD_S:
            return []
        return ["the store had lost its data; what is spent was brought back from the copies of the gateways"]

    async def compared(self, said: Mapping[str, tuple[int, int, int]]) -> dict[str, int]:
        """Copy the counters of accounts from the store; return those that it had lost, in nanodollars by account.

        `said` has three numbers for each account: what the store says is spent, what this worker knows to be spent
        (with records that were written since), and when the counter may be dropped, in Unix milliseconds, 0 for never.
        """
        if not self._seen.name:
            with contextlib.suppress(StoreUnavailable):
                await self.look()
        back: dict[str, int] = {}
        for name, (spent, known, _) in said.items():
            if name in self._spent and self._spent[name].spent < known:
                self._spent[name] = self._spent[name]._replace(spent=known)
            if name in self._spent and spent < self._spent[name].spent:
                back[name] = self._spent[name].spent
        if back:
            try:
                back = back if await self.look() else {}
            except StoreUnavailable:
                back = {}
        now = self._clock()
        for name, (spent, _, may_go) in said.items():
            self._spent.pop(name, None)
            self._spent[name] = SpentCopy(back.get(name, spent), may_go or float("inf"), now)
            self._changed = True
            self._first.set()
        while len(self._spent) > _MOST:
            del self._spent[next(iter(self._spent))]
        return back

    async def look(self) -> bool:
        """Give the store its counters back if it has lost its data; return whether it had. Raises StoreUnavailable."""
        async with self._looking:
            ((name, looks),) = await self._store.ask([self._look], _LIMIT_S)
            seen = Generation(name.decode(), looks)
            if not self._seen.was_lost(seen):
                self._seen = seen
                return False
            now = self._clock()
            copies = [(name, spent, may_go) for name, (spent, may_go, _) in self._spent.items() if may_go > 1000 * now]
            for start in range(0, len(copies), _AT_ONCE):
                some = copies[start : start + _AT_ONCE]
                keys = (_IN_USE, *(f"{ACCOUNT_PREFIX}{name}".encode() for name, _, _ in some))
                words = [
                    word
                    for _, spent, may_go in some
                    for word in (b"%d" % spent, b"+inf" if may_go == float("inf") else b"%d" % may_go)
                ]
                await self._store.ask([Command((b"EVAL", _GIVE_BACK, b"%d" % len(keys), *keys, *words))], _LIMIT_S)
            self._seen, self._lost_at = seen, now
            log.warning("the store had lost its data; %d counters of budgets were given back to it", len(copies))
            return True

    async def _run(self) -> None:
        looks = 0
        await self._first.wait()
        while True:
            try:
                await self.look()
            except StoreUnavailable:
                pass
            except Exception:
                log.exception("the store's counters of budgets could not be compared with their copies")
            looks += 1
            if self._changed and looks % _KEPT_EVERY == 0:
                self._changed = False
                await off_loop(self._write)
            await asyncio.sleep(_EVERY_S)

    def _read(self) -> tuple[Generation, dict[str, SpentCopy]]:
        """Return the generation and the copies in the file; of a file that cannot be read, none."""
        if not self._file.exists():
            return Generation("", 0), {}
        try:
            seen, copies = orjson.loads(self._file.read_bytes())
            if isinstance(seen, int):  # as earlier versions wrote it
                seen = ("", 0)
            return Generation(str(seen[0]), int(seen[1])), {
                str(name): SpentCopy(int(spent), float("inf") if may_go is None else float(may_go), float(at))
                for name, (spent, may_go, at) in copies.items()
            }
        except (OSError, ValueError, TypeError, AttributeError, LookupError) as error:
            log.warning("the copies of budgets in %s cannot be read (%s)", self._file, error)
            return Generation("", 0), {}

    def _write(self) -> None:
        """Write the copies with those of other workers, the later one of each account."""
        seen, copies = self._read()
        if self._seen.name and (seen.name != self._seen.name or seen.looks < self._seen.looks):
            seen = self._seen
        for name, copy in list(self._spent.items()):
            if name not in copies or copies[name].at <= copy.at:
                copies[name] = copy
        now = 1000 * self._clock()
        kept = {
            name: (spent, None if may_go == float("inf") else may_go, at)
            for name, (spent, may_go, at) in copies.items()
            if may_go > now
        }
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._write_file(self._file, orjson.dumps([list(seen), kept]))
        except OSError as error:
            log.warning("the copies of budgets cannot be written to %s (%s)", self._file, error)
