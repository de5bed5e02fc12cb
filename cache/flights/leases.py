"""Leases: the right to make an answer, one worker's among all that share a store.

A lease is a key beside the entry's own, `<key>:l`, with its holder's name for as long as it lives: it is renewed, and a
killed holder's is soon gone. As a rule it costs no round trip of its own: it is taken by the look into the cache that
finds nothing, and given up by the write of the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final

from cache.flights.single_flight import Flight
from cache.store.base import Claim, Store, StoreUnavailable

LEASE_S: Final = 3.0
"""How long the followers of a killed worker wait at most, before one of them takes over."""
_RENEW_S: Final = 1.0
_RELEASE_S: Final = 0.005
_BUSY_S: Final = (0.002, 0.005, 0.01, 0.02, 0.04)
ASK_AGAIN: Final = frozenset({"busy", "timeout"})
"""Reasons for which a look that has failed may be followed by a claim: in a burst it matters most who makes the answer.
"""
_NOT_ASKED: Final = frozenset({"open", "unconfigured"})


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to make an answer, held by `holder`."""

    key: str
    holder: bytes


@dataclass(frozen=True, slots=True)
class Claimed:
    """What came of a claim: the `lease`, or the name of the flight elsewhere (`theirs`); `written`: look once more."""

    lease: Lease | None
    theirs: Lease | None = None
    written: bool = False


NO_LEASE: Final = Claimed(None)
"""Nobody to ask: everybody makes its own answer."""


@dataclass(frozen=True, slots=True)
class _Held:
    flight: Flight
    lease: Lease


class Leases:
    """One worker's. Close it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[str, _Held] = {}
        self._let_go: list[tuple[str, bytes]] = []
        self._renewal: asyncio.TimerHandle | None = None
        self._chores: set[asyncio.Task[None]] = set()

    def flight_of(self, ident: str) -> Flight | None:
        """The flight of that name, if it has a lease here."""
        held = self._held.get(ident)
        return None if held is None else held.flight

    async def look(self, flight: Flight, key: str) -> bytes | Claimed:
        """What lies under `key`; where nothing does, the right to make this flight's answer, or who has it.

        Raises StoreUnavailable. After one of `ASK_AGAIN` the lease may be held: `claim` it, or `abandon` it.
        """
        lease = _lease_of(flight)
        try:
            found = await self._store.look(key, lease.key, lease.holder, LEASE_S)
        except asyncio.CancelledError:
            self._give_up(lease)  # it may have come through
            raise
        except StoreUnavailable as error:
            if error.reason not in _NOT_ASKED | ASK_AGAIN:
                self._give_up(lease)
            raise
        if found.value is not None:
            return found.value
        return NO_LEASE if found.holder is None else self._claimed(flight, lease, found.holder, written=False)

    async def claim(self, flight: Flight, written_under: str) -> Claimed:
        """Asks for the right to make this flight's answer; without a store to ask, everybody has it."""
        lease = _lease_of(flight)
        try:
            claim = await self._asked(lease, written_under)
        except StoreUnavailable:
            return NO_LEASE
        except asyncio.CancelledError:
            self._give_up(lease)
            raise
        return self._claimed(flight, lease, claim.holder, written=claim.written)

    async def _asked(self, lease: Lease, written_under: str) -> Claim:
        """The claim. In a burst every connection may be in use for a moment, and that is when it matters most."""
        for pause_s in _BUSY_S:
            try:
                return await self._store.claim(lease.key, lease.holder, LEASE_S, written_under)
            except StoreUnavailable as error:
                if error.reason != "busy":
                    raise
                await asyncio.sleep(pause_s)
        return await self._store.claim(lease.key, lease.holder, LEASE_S, written_under)

    def _claimed(self, flight: Flight, lease: Lease, holder: bytes, *, written: bool) -> Claimed:
        if holder != lease.holder:
            # Of its own flights a worker knows more than the store: this request could not join, or it has just ended.
            ours = holder.partition(b"-")[0] == lease.holder.partition(b"-")[0]
            return Claimed(None, None if ours else Lease(lease.key, holder))
        self._held[flight.ident] = _Held(flight, lease)
        if self._renewal is None:
            self._renewal = asyncio.get_running_loop().call_later(_RENEW_S, self._renew)
        return Claimed(lease, written=written)

    def key_of(self, flight: Flight) -> str:
        """The key of a flight's lease, '' if it has none: it may be deleted together with the write of its answer."""
        held = self._held.get(flight.ident)
        return "" if held is None else held.lease.key

    def gone(self, flight: Flight) -> None:
        """Hears that this was done."""
        self._held.pop(flight.ident, None)

    def abandon(self, flight: Flight) -> None:
        """Gives up what a look that failed may have taken."""
        self._give_up(_lease_of(flight))

    def release(self, flight: Flight) -> None:
        """Gives up a flight's lease, if it has one; the next request makes its own answer."""
        held = self._held.pop(flight.ident, None)
        if held is not None:
            self._give_up(held.lease)

    async def aclose(self) -> None:
        """Gives up what is still held."""
        if self._renewal is not None:
            self._renewal.cancel()
        for task in self._chores:
            task.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        self._let_go += [(held.lease.key, held.lease.holder) for held in self._held.values()]
        self._held.clear()
        await self._release_all()

    def _renew(self) -> None:
        """All of them at once, each second: those that are young too, for there are few at any moment."""
        self._renewal = None
        if self._held:
            self._renewal = asyncio.get_running_loop().call_later(_RENEW_S, self._renew)
            self._later(self._renewed([held.lease for held in self._held.values()]))

    async def _renewed(self, leases: list[Lease]) -> None:
        for lease in leases:
            await self._store.renew(lease.key, lease.holder, LEASE_S)

    def _give_up(self, lease: Lease) -> None:
        if not self._let_go:
            asyncio.get_running_loop().call_later(_RELEASE_S, self._release)
        self._let_go.append((lease.key, lease.holder))

    def _release(self) -> None:
        self._later(self._release_all())

    async def _release_all(self) -> None:
        let_go, self._let_go = self._let_go, []
        if let_go:
            with contextlib.suppress(StoreUnavailable):
                await self._store.release(let_go)

    def _later(self, chore: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(_quietly(chore), name="tierline.leases")
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)


def can_serve(theirs: Lease, deadline: float) -> bool:
    """Whether a request with this deadline, in `time.monotonic()` seconds, may join the flight elsewhere."""
    _, _, terms = theirs.holder.partition(b":")
    until, _, roomy = terms.partition(b":")
    if roomy == b"1":
        return True
    left_s = deadline - time.monotonic()
    return until.isdigit() and int(until) / 1000 >= time.time() + left_s


def _lease_of(flight: Flight) -> Lease:
    """The same at every asking: the clocks it is made from do not agree to the millisecond."""
    lease: Lease | None = flight.memo.get("lease")
    if lease is None:
        until = time.time() + flight.deadline - time.monotonic()
        holder = b"%b:%d:%d" % (flight.ident.encode(), until * 1000, flight.roomy)
        lease = flight.memo["lease"] = Lease(f"{flight.key}:l", holder)
    return lease


async def _quietly(chore: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(StoreUnavailable):
        await chore
