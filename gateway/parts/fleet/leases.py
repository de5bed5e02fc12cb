"""Manage leases: the right to produce an answer, held by one worker among all that share a store.

A lease is a key beside the entry's own, `<key>:l`, with the name of its holder and a short lifetime that the holder
renews, so a killed holder's lease soon expires. Usually it needs no round trip of its own: the cache lookup that misses
takes it, and the write of the answer releases it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from cache.flights import ASK_AGAIN, NO_LEASE, Claimed, Lease
from cache.store.base import Claim, Store, StoreUnavailable
from cache.write import DelayedWrites

if TYPE_CHECKING:
    from cache.flights import Flight

LEASE_S: Final = 3.0
"""Lifetime in seconds: the maximum time that a killed worker's followers wait before one of them takes over."""
_RENEW_S: Final = 1.0
_BUSY_S: Final = (0.002, 0.005, 0.01, 0.02, 0.04)
_NOT_ASKED: Final = frozenset({"open", "unconfigured"})


class _Held(NamedTuple):
    flight: Flight
    lease: Lease


class Leases:
    """The leases of one worker. Close it after use."""

    def __init__(self, store: Store, delayed: DelayedWrites) -> None:
        """Release leases after the writes in `delayed`: what was written under a lease is found once it is gone."""
        self._store = store
        self._delayed = delayed
        self._held: dict[str, _Held] = {}
        self._renewal: asyncio.TimerHandle | None = None
        self._chores: set[asyncio.Task[None]] = set()

    @property
    def held(self) -> int:
        """Number of leases that this worker holds."""
        return len(self._held)

    def flight_of(self, ident: str) -> Flight | None:
        """Return the flight of that name if it has a lease here."""
        held = self._held.get(ident)
        return None if held is None else held.flight

    async def look(self, flight: Flight, key: str) -> bytes | Claimed:
        """Return the value of `key`; without one, the right to produce this flight's answer, or its holder.

        Raises StoreUnavailable. After one of the reasons in `ASK_AGAIN` the lease may be held: `claim` or `abandon` it.
        """
        lease = _lease_of(flight)
        try:
            seen = await self._store.look(key, lease.key, lease.holder, LEASE_S)
        except asyncio.CancelledError:
            self._give_up(lease)  # the command may have been executed
            raise
        except StoreUnavailable as error:
            if error.reason not in _NOT_ASKED | ASK_AGAIN:
                self._give_up(lease)
            raise
        if seen.value is not None:
            return seen.value
        return NO_LEASE if seen.holder is None else self._claimed(flight, lease, seen.holder, written=False)

    async def claim(self, flight: Flight, written_under: str) -> Claimed:
        """Claim the right to produce this flight's answer; without an available store, the claim always succeeds."""
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
        """Send the claim, and retry while all connections are in use, which happens in the bursts that need it most."""
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
            # A holder in this worker is no flight to relay: it was not joinable or has just ended.
            ours = holder.partition(b"-")[0] == lease.holder.partition(b"-")[0]
            return Claimed(None, None if ours else Lease(lease.key, holder))
        self._held[flight.ident] = _Held(flight, lease)
        if self._renewal is None:
            self._renewal = asyncio.get_running_loop().call_later(_RENEW_S, self._renew)
        return Claimed(lease, written=written)

    def key_of(self, flight: Flight) -> str:
        """Return the key of a flight's lease, '' if it has none: the write of its answer may delete it."""
        held = self._held.get(flight.ident)
        return "" if held is None else held.lease.key

    def gone(self, flight: Flight) -> None:
        """Record that the lease was deleted in the store."""
        self._held.pop(flight.ident, None)

    def abandon(self, flight: Flight) -> None:
        """Release the lease that a failed look may have taken."""
        self._give_up(_lease_of(flight))

    def release(self, flight: Flight) -> None:
        """Release a flight's lease, if it has one; the next request then produces its own answer."""
        held = self._held.pop(flight.ident, None)
        if held is not None:
            self._give_up(held.lease)

    async def aclose(self) -> None:
        """Release all leases that are still held."""
        if self._renewal is not None:
            self._renewal.cancel()
        for task in self._chores:
            task.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        for held in self._held.values():
            self._give_up(held.lease)
        self._held.clear()
        await self._delayed.aclose()

    def _renew(self) -> None:
        """Renew all leases each second, new ones too: there are few at any moment."""
        self._renewal = None
        if self._held:
            self._renewal = asyncio.get_running_loop().call_later(_RENEW_S, self._renew)
            leases = [held.lease for held in self._held.values()]
            task = asyncio.create_task(self._renewed(leases), name="tierline.leases")
            self._chores.add(task)
            task.add_done_callback(self._chores.discard)

    async def _renewed(self, leases: list[Lease]) -> None:
        with contextlib.suppress(StoreUnavailable):
            for lease in leases:
                await self._store.renew(lease.key, lease.holder, LEASE_S)

    def _give_up(self, lease: Lease) -> None:
        self._delayed.release(lease.key, lease.holder)


def can_serve(theirs: Lease, deadline: float) -> bool:
    """Return whether a request with this deadline, in `time.monotonic()` seconds, may join another worker's flight."""
    _, _, terms = theirs.holder.partition(b":")
    until, _, full_deadline = terms.partition(b":")
    if full_deadline == b"1":
        return True
    left_s = deadline - time.monotonic()
    return until.isdigit() and int(until) / 1000 >= time.time() + left_s


def _lease_of(flight: Flight) -> Lease:
    """Return a flight's lease, computed once: the two clocks behind it differ by milliseconds between calls."""
    lease: Lease | None = flight.memo.get("lease")
    if lease is None:
        until = time.time() + flight.deadline - time.monotonic()
        holder = b"%b:%d:%d" % (flight.ident.encode(), until * 1000, flight.full_deadline)
        lease = flight.memo["lease"] = Lease(f"{flight.key}:l", holder)
    return lease
