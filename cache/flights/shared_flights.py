"""Define how a worker shares its flights with the others that use its store, and what it learns of theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from cache.flights.single_flight import Flight

ASK_AGAIN: Final = frozenset({"busy", "timeout"})
"""Reasons for a failed lookup after which claiming is still worthwhile: in a burst, one producer matters most."""


class Lease(NamedTuple):
    """The right to produce an answer, held by `holder`."""

    key: str
    holder: bytes


class Claimed(NamedTuple):
    """The result of a claim: the `lease`, or another worker's (`theirs`); `written`: the answer exists, look again."""

    lease: Lease | None
    theirs: Lease | None = None
    written: bool = False


NO_LEASE: Final = Claimed(None)
"""The claim made without a store: every worker produces its own answer."""


class SharedFlights(Protocol):
    """One worker's side of sharing flights. A lease is the right to produce an answer, of one worker at a time."""

    @property
    def works(self) -> bool:
        """Whether the store is available."""

    def start(self) -> None:
        """Start to serve this worker's flights to other workers."""

    async def aclose(self) -> None:
        """Stop, and release the leases that are still held."""

    async def look(self, flight: Flight, key: str) -> bytes | Claimed:
        """Return the value of `key`; without one, the right to produce this flight's answer, or its holder.

        Raises StoreUnavailable. After one of the reasons in `ASK_AGAIN` the lease may be held: `claim` or `abandon` it.
        """

    async def claim(self, flight: Flight, written_under: str) -> Claimed:
        """Claim the right to produce this flight's answer; without an available store, the claim always succeeds."""

    def abandon(self, flight: Flight) -> None:
        """Release the lease that a failed look may have taken."""

    def forsake(self, flight: Flight) -> None:
        """Release the lease of a flight that was not launched, if it has one."""

    def can_serve(self, theirs: Lease, deadline: float) -> bool:
        """Return whether a request with this deadline, in `time.monotonic()` seconds, may join another's flight."""

    async def relay(self, flight: Flight, theirs: Lease) -> None:
        """Copy another worker's flight into `flight` until it lands. Cancel it when it has no readers left."""

    def lease_of(self, flight: Flight) -> str:
        """Return the key of a landed flight's lease, which the write of its answer may delete; '' for none."""

    def gone(self, flight: Flight) -> None:
        """Record that the lease was deleted in the store."""

    def release(self, flight: Flight) -> None:
        """Release a landed flight's lease, if it has one, once other workers have read all of the flight."""
