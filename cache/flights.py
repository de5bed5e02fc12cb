"""Single flight: concurrent equal requests share one answer. No I/O here.

flight         an answer under way: what came so far, and how it ended
subscription   one reader's place in it. Each reads at its own pace, and leaves when it likes
landing        how the flight ended. When the last reader leaves before that, the answer is cancelled

The request that asks first launches the flight and is a reader like the others. A stream is fed by a task of its own
(`gateway.caching.flights`); when another worker makes the answer, by what carries it over from there.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol

MOST_BYTES: Final = 1 << 20
"""Size above which a flight accepts no further readers, and discards the events that all its readers have read."""
_AHEAD_BYTES: Final = 64 << 10
"""Maximum bytes that the producer may be ahead of the fastest reader: a single slow client slows it as usual."""
_BATCH: Final = 32

End = Literal["done", "broken", "failed", "found", "lost", "abandoned"]
WORKER: Final = secrets.token_hex(6)
"""Prefix of the names of this process's flights."""
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Facts about an answer when it begins. `stream`: it consists of stream events, not of one body."""

    request_id: str
    stream: bool
    path: str
    tier: str
    backend: str
    model: str
    confidence: float | None = None
    difficulty: float | None = None
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Landing:
    """How a flight ended.

    done        the whole answer is available              broken     it began and broke off; `word` is the reason
    failed      there is none, because of `error`          found      it was cached already: `found`
    lost        its producer is gone; try again            abandoned  all readers had left
    """

    end: End
    word: str = ""
    error: Exception | None = None
    found: Any = None


class Flight:
    """One answer and its readers. `deadline` is in `time.monotonic()` seconds.

    `full_deadline`: it has the surface's full deadline, not a client's shorter one, so any request may join.
    `first_due`: time, on the same clock, until which its producer tries to have a first token; None if no client
    requested one.
    """

    def __init__(
        self,
        key: str,
        deadline: float,
        *,
        full_deadline: bool,
        first_due: float | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.key = key
        self.ident = f"{WORKER}-{next(_numbers)}"
        """Its name, unique among all workers."""
        self.deadline = deadline
        self.full_deadline = full_deadline
        self.first_due = first_due
        self.head: AnswerHead | None = None
        self.landing: Landing | None = None
        self.started = False
        """Whether the flight has started, so that its deadline is fixed."""
        self.remote = False
        """Whether another worker produces the answer."""
        self.left_as = ""
        """The reason given by the last reader that left before its end."""
        self.on_empty: Callable[[], None] = _nothing
        """Called once, when the last reader leaves before the landing."""
        self.memo: dict[str, Any] = {}
        """Values computed from the whole answer once for all readers."""
        self._most_bytes = most_bytes
        self._events: list[bytes] = []
        self._base = 0  # number of the first event that is still stored
        self._bytes = 0
        self._subscriptions: set[Subscription] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._room: asyncio.Future[None] | None = None
        self._furthest = 0  # number of the first event that no reader has taken yet
        self._ahead = 0  # bytes from that event on
        self._paced = True

    @property
    def full(self) -> bool:
        """Whether the first events may have been discarded."""
        return self._bytes > self._most_bytes

    @property
    def readers(self) -> int:
        return len(self._subscriptions)

    def takes(self, deadline: float, first_due: float | None = None) -> bool:
        """Return whether a request may join.

        It must not be cut off earlier than it would be alone; and if it requires its first token by some time, the
        flight's producer must aim for that time or an earlier one.
        """
        if self.full or (self.landing is not None and self.landing.end != "done"):
            return False
        if first_due is not None and self.head is None and (self.first_due is None or first_due < self.first_due):
            return False
        return not self.started or self.full_deadline or deadline <= self.deadline

    def subscribe(self, deadline: float = 0.0) -> Subscription:
        """Add a reader at the answer's beginning."""
        if not self.started:
            self.deadline = max(self.deadline, deadline)
        subscription = Subscription(self)
        self._subscriptions.add(subscription)
        return subscription

    # --- producer -------------------------------------------------------------------------------------------------

    def begin(self, head: AnswerHead) -> None:
        """Begin the answer."""
        self.head = head
        if self._waiting:
            self._wake()

    def add(self, event: bytes) -> None:
        """Append the next part: one event, or the body."""
        size = len(event)
        self._events.append(event)
        self._bytes += size
        self._ahead += size
        if self._bytes > self._most_bytes and len(self._events) >= 2 * _BATCH:
            self._forget()
        if self._waiting:
            self._wake()

    async def room(self) -> None:
        """Wait while even the fastest reader is far behind."""
        while self._paced and self._ahead > _AHEAD_BYTES and self.landing is None:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def land(self, landing: Landing) -> None:
        """End the flight; further calls have no effect."""
        if self.landing is None:
            self.landing = landing
            self.on_empty = _nothing
            if self._waiting:
                self._wake()

    # --- readers --------------------------------------------------------------------------------------------------

    def events(self) -> list[bytes]:
        """Return all events; only for a reader that has taken none yet, which keeps them from being discarded."""
        return self._events

    def _forget(self) -> None:
        passed = min((subscription.read for subscription in self._subscriptions), default=self._base) - self._base
        del self._events[:passed]
        self._base += passed

    def _after(self, number: int) -> list[bytes]:
        start = number - self._base
        events = self._events[start : start + _BATCH]
        if (new := number + len(events) - self._furthest) > 0:
            self._furthest += new
            self._ahead -= sum(map(len, events[-new:]))
            if self._room is not None and not self._room.done():
                self._room.set_result(None)
        return events

    def _count(self) -> int:
        return self._base + len(self._events)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _unpace(self) -> None:
        """Stop slowing the producer: a reader waits for the whole answer."""
        self._paced = False
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _leave(self, subscription: Subscription, word: str) -> None:
        if subscription not in self._subscriptions:
            return
        self._subscriptions.discard(subscription)
        if self._subscriptions and subscription.read >= self._furthest:
            self._unpace()  # it was the fastest reader; slower ones must not slow the producer for later readers
        if not self._subscriptions and self.landing is None:
            self.left_as = word
            self.on_empty()


class Subscription:
    """One reader's position in a flight. Its owner must call `leave`, however it ends."""

    __slots__ = ("_future", "_nudged", "flight", "read")

    def __init__(self, flight: Flight) -> None:
        self.flight = flight
        self.read = 0
        """Number of events taken."""
        self._future: asyncio.Future[None] | None = None
        self._nudged = False

    async def begun(self) -> bool:
        """Wait for the answer's beginning; False when the flight has landed without one, or after a `nudge`."""
        flight = self.flight
        while flight.head is None and flight.landing is None and not self._nudged:
            await self._change()
        return flight.head is not None and not self._nudged

    def take(self) -> list[bytes]:
        """Return the next events, a few at most; empty when all so far have been taken."""
        events = self.flight._after(self.read)
        self.read += len(events)
        return events

    async def more(self) -> bool:
        """Wait for more events; False when there will be none, or after a `nudge` of a flight still under way.

        A landed flight is read to its end even after a `nudge`: its last event says how it ended.
        """
        flight = self.flight
        while self.read >= flight._count():
            if flight.landing is not None or self._nudged:
                return False
            await self._change()
        return flight.landing is not None or not self._nudged

    async def landed(self) -> Landing | None:
        """Wait for the end, while the flight stores all events; None after a `nudge`."""
        self.flight._unpace()
        while self.flight.landing is None and not self._nudged:
            await self._change()
        return self.flight.landing

    def nudge(self) -> None:
        """Stop this reader's waiting: its own time is up."""
        self._nudged = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def leave(self, word: str = "") -> None:
        """Stop reading; safe to call twice. `word` is the reason to record if this was the last reader."""
        self.flight._leave(self, word)

    async def _change(self) -> None:
        self._future = asyncio.get_running_loop().create_future()
        self.flight._waiting.append(self._future)
        await self._future


class Flights:
    """The flights of one worker, by key."""

    def __init__(self) -> None:
        self._under_way: dict[str, Flight] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def joinable(self, key: str, deadline: float, first_due: float | None = None) -> Flight | None:
        """Return the flight that a request with this key and these times can join; None without one."""
        flight = self._under_way.get(key)
        return flight if flight is not None and flight.takes(deadline, first_due) else None

    def launch(self, flight: Flight) -> None:
        """Register a flight for later requests, in place of one with its key that they could not join."""
        self._under_way[flight.key] = flight

    def forget(self, flight: Flight) -> None:
        """Unregister a flight, so that no other request joins it."""
        if self._under_way.get(flight.key) is flight:
            del self._under_way[flight.key]


def _nothing() -> None:
    pass


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
        """Note that the store has deleted the flight's lease, so that it need not be released."""

    def release(self, flight: Flight) -> None:
        """Release a landed flight's lease, if it has one, once other workers have read all of the flight."""
