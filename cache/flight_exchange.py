"""Flights across workers and replicas: who makes the answer has the lease, the others read along by way of the store.

    lease     `<key>:l`, the holder's name for as long as it lives: it renews it, and a killed one's is soon gone
    asking    who does not get the lease asks for the answer on a stream that all workers hear (`ASKING`)
    stream    only then does the maker publish it, on `<key>:f:<flight>`: what came so far, then the rest in batches

A flight that nobody else asks for costs one round trip, and its stream is never written. Whatever goes wrong with the
store, each worker makes its own answer.

The stream's entries: `h` and the head, then `e<number>:` and events, joined (each ends with a blank line, and has none
within) or `b` and the body, then `z` and how it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cache.single_flight import Flight, Head, Landing, Seat
from cache.store import Append, Claim, Store, StoreUnavailable

log = logging.getLogger("tierline.cache")

ASKING: Final = "tierline:c1:flights"
LEASE_S: Final = 3.0
"""How long the followers of a killed worker wait at most, before one of them takes over."""
_RENEW_S: Final = 1.0
_KEPT_S: Final = 5.0
_BATCH_S: Final = 0.02
_FIRST_LOOK_S: Final = 0.05
_ASK_AGAIN_S: Final = 1.0
_INTEREST_S: Final = 2.5
_SILENCE_S: Final = 1.0
"""How long the store may not answer, in a burst or for good, before a flight by way of it is given up."""
_RELEASE_S: Final = 0.005
_BUSY_S: Final = (0.002, 0.005, 0.01, 0.02, 0.04)
_RETRY_S: Final = 0.5
_ASKED: Final = 1_000
_PAGE: Final = 64
_BREAK: Final = b"\n\n"


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


@dataclass(slots=True)
class _Held:
    flight: Flight
    lease: Lease
    timer: asyncio.TimerHandle


class FlightExchange:
    """One worker's part. `pack` and `unpack` take errors to bytes and back; `start` it, and close it."""

    def __init__(
        self, store: Store, pack: Callable[[Exception | None], bytes], unpack: Callable[[bytes], Exception]
    ) -> None:
        self._store = store
        self._pack = pack
        self._unpack = unpack
        self._leased: dict[str, _Held] = {}
        self._publishing: dict[str, _Publisher] = {}
        self._let_go: list[tuple[str, bytes]] = []
        self._hearing: asyncio.Task[None] | None = None
        self._chores: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begins to hear what others ask for."""
        if self._store.state().status != "unconfigured":
            self._hearing = asyncio.create_task(self._hear(), name="tierline.flights")

    async def aclose(self) -> None:
        """Stops, and gives up what is still held."""
        tasks = [*self._chores, *(publisher.task for publisher in self._publishing.values())]
        for task in [*tasks, *([self._hearing] if self._hearing else [])]:
            task.cancel()
        await asyncio.gather(*tasks, *([self._hearing] if self._hearing else []), return_exceptions=True)
        self._let_go += [(held.lease.key, held.lease.holder) for held in self._leased.values()]
        await self._release_all()

    async def claim(self, flight: Flight, written_under: str) -> Claimed:
        """Asks for the right to make this flight's answer; without a store to ask, everybody has it."""
        lease = Lease(f"{flight.key}:l", _name(flight))
        try:
            claim = await self._claim(lease, written_under)
        except StoreUnavailable:
            return Claimed(None)
        except asyncio.CancelledError:
            self._give_up(lease)  # it may have come through
            raise
        if claim.holder != lease.holder:
            # Of its own flights a worker knows more than the store: this request could not join, or it has just ended.
            ours = claim.holder.partition(b"-")[0] == lease.holder.partition(b"-")[0]
            return Claimed(None, None if ours else Lease(lease.key, claim.holder))
        timer = asyncio.get_running_loop().call_later(_RENEW_S, self._renew, flight.ident)
        self._leased[flight.ident] = _Held(flight, lease, timer)
        return Claimed(lease, written=claim.written)

    async def _claim(self, lease: Lease, written_under: str) -> Claim:
        """The claim. In a burst every connection may be in use for a moment, and that is when it matters most."""
        for pause_s in _BUSY_S:
            try:
                return await self._store.claim(lease.key, lease.holder, LEASE_S, written_under)
            except StoreUnavailable as error:
                if error.reason != "busy":
                    raise
                await asyncio.sleep(pause_s)
        return await self._store.claim(lease.key, lease.holder, LEASE_S, written_under)

    @property
    def works(self) -> bool:
        """Whether the store does."""
        return self._store.state().status == "ok"

    def release(self, flight: Flight) -> None:
        """Gives up a flight's lease, if it has one; the next request makes its own answer."""
        held = self._leased.pop(flight.ident, None)
        if held is None:
            return
        held.timer.cancel()
        self._give_up(held.lease)

    async def relay(self, flight: Flight, theirs: Lease) -> None:
        """Feeds `flight` from the flight of another worker, to its landing. To be cancelled when nobody reads it."""
        flight.remote = True
        ident = theirs.holder.partition(b":")[0]
        landing = Landing("lost")
        try:
            landing = await self._read(flight, theirs, ident)
        except StoreUnavailable as error:
            log.info("a flight of another worker was lost: %s", error)
        except asyncio.CancelledError:
            self._later(lambda: self._ask(b"-", ident, flight))
            raise
        flight.land(landing)

    # --- the follower's side ------------------------------------------------------------------------------------------

    async def _read(self, flight: Flight, theirs: Lease, ident: bytes) -> Landing:
        stream = f"{flight.key}:f:{ident.decode('latin-1')}"
        copy = _Copy(flight, self._unpack)
        last_id, patience_s, asked_at = "0", _FIRST_LOOK_S, -_ASK_AGAIN_S
        heard_at = time.monotonic()
        while True:
            try:
                if time.monotonic() - asked_at >= _ASK_AGAIN_S:
                    # It may not have heard; if it has, it learns that somebody still reads.
                    await self._ask(b"+", ident, flight)
                    asked_at = time.monotonic()
                entries = await self._store.after(stream, last_id, _PAGE, round(patience_s * 1000))
                held = bool(entries) or await self._store.get(theirs.key) == theirs.holder
                if not held:
                    entries = await self._store.after(stream, last_id, _PAGE, 0)
            except StoreUnavailable:
                if time.monotonic() - heard_at > _SILENCE_S:
                    raise
                await asyncio.sleep(_BATCH_S)
                continue
            heard_at = time.monotonic()
            for entry_id, frame in entries:
                last_id = entry_id
                if (landing := copy.take(frame)) is not None:
                    return landing
            if not held and not entries:
                return Landing("lost")
            patience_s = _FIRST_LOOK_S if entries else min(2 * patience_s, _ASK_AGAIN_S)

    async def _ask(self, what: bytes, ident: bytes, flight: Flight) -> None:
        await self._store.apply([Append(ASKING, b"%b%b %b" % (what, ident, flight.ident.encode()), _ASKED)])

    # --- the maker's side ---------------------------------------------------------------------------------------------

    async def _hear(self) -> None:
        last_id: str | None = None
        while True:
            try:
                if last_id is None:
                    newest = await self._store.latest(ASKING, 1)
                    last_id = newest[0][0] if newest else "0"
                for entry_id, asked in await self._store.after(ASKING, last_id, _PAGE, 5_000):
                    last_id = entry_id
                    self._asked(asked)
            except StoreUnavailable:
                last_id = None
                await asyncio.sleep(_RETRY_S)

    def _asked(self, asked: bytes) -> None:
        ident, _, who = asked[1:].decode("latin-1").partition(" ")
        publisher = self._publishing.get(ident)
        if asked[:1] == b"-":
            if publisher is not None:
                publisher.gone(who)
            return
        if publisher is None:
            held = self._leased.get(ident)
            if held is None:
                return
            publisher = self._publishing[ident] = _Publisher(self._store, self._pack, held.flight)
            publisher.task.add_done_callback(lambda _: self._publishing.pop(ident, None))
        publisher.wanted(who)

    def _renew(self, ident: str) -> None:
        held = self._leased.get(ident)
        if held is not None:
            lease = held.lease
            self._later(lambda: self._store.renew(lease.key, lease.holder, LEASE_S))
            held.timer = asyncio.get_running_loop().call_later(_RENEW_S, self._renew, ident)

    def _give_up(self, lease: Lease) -> None:
        if not self._let_go:
            asyncio.get_running_loop().call_later(_RELEASE_S, self._later, self._release_all)
        self._let_go.append((lease.key, lease.holder))

    async def _release_all(self) -> None:
        let_go, self._let_go = self._let_go, []
        if let_go:
            with contextlib.suppress(StoreUnavailable):
                await self._store.release(let_go)

    def _later(self, chore: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.create_task(_quietly(chore()), name="tierline.flights.chore")
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)


class _Publisher:
    """Publishes one flight while any other worker wants it; a reader of it like any other."""

    def __init__(self, store: Store, pack: Callable[[Exception | None], bytes], flight: Flight) -> None:
        self._store = store
        self._pack = pack
        self._flight = flight
        self._wanted: dict[str, float] = {}
        # The seat is taken now: whoever reads here may leave before the task has begun.
        self.task = asyncio.create_task(self._run(flight.board()), name="tierline.flights.publish")

    def wanted(self, who: str) -> None:
        """A worker's flight reads along, or still does."""
        self._wanted[who] = time.monotonic()

    def gone(self, who: str) -> None:
        """It does so no more."""
        if self._wanted.pop(who, None) is not None and not self._wanted:
            self.task.cancel()

    async def _run(self, seat: Seat) -> None:
        try:
            if seat.flight.full:
                # It is too late to begin at the beginning, and nobody shall wait for that.
                lost = self._end(Landing("lost"))
                await self._store.publish(_stream(seat.flight), [lost], _KEPT_S)
                return
            await self._publish(seat)
        except (StoreUnavailable, asyncio.CancelledError):
            return
        finally:
            seat.leave()

    async def _publish(self, seat: Seat) -> None:
        flight = self._flight
        stream = _stream(flight)
        began = False
        while self._is_wanted():
            frames: list[bytes] = []
            if not began and flight.head is not None:
                began = True
                frames.append(b"h" + orjson.dumps(flight.head))
            start, events = seat.read, []
            while batch := seat.take():
                events += batch
            if events and flight.head is not None:
                frames.append(b"e%d:%b" % (start, b"".join(events)) if flight.head.stream else b"b" + events[0])
            if (landing := flight.landing) is not None:
                frames.append(self._end(landing))
            if frames:
                await self._deliver(stream, frames)
            if landing is not None:
                return
            await self._news(seat, began=began)

    async def _deliver(self, stream: str, frames: Sequence[bytes]) -> None:
        """Publishes, if need be once more: entries that come twice are recognised by their numbers."""
        until = time.monotonic() + _SILENCE_S
        while True:
            try:
                await self._store.publish(stream, frames, _KEPT_S)
                return
            except StoreUnavailable:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(_BATCH_S)

    def _end(self, landing: Landing) -> bytes:
        return b"z%b:%b:%b" % (landing.end.encode(), landing.word.encode(), self._pack(landing.error))

    async def _news(self, seat: Seat, *, began: bool) -> None:
        """Waits for more, and then a moment for more of it, or until it is time to see whether anybody still reads."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ASK_AGAIN_S):
                await (seat.more() if began else seat.begun())
        if began:
            await asyncio.sleep(_BATCH_S)

    def _is_wanted(self) -> bool:
        now = time.monotonic()
        return any(now - heard < _INTEREST_S for heard in self._wanted.values()) or not self._wanted


class _Copy:
    """A flight's copy in another worker, fed with the stream's entries."""

    def __init__(self, flight: Flight, unpack: Callable[[bytes], Exception]) -> None:
        self._flight = flight
        self._unpack = unpack
        self._count = 0

    def take(self, frame: bytes) -> Landing | None:
        """One entry; the landing, once it is there. What makes no sense is a flight lost."""
        try:
            return self._take(frame)
        except (ValueError, TypeError):
            return Landing("lost")

    def _take(self, frame: bytes) -> Landing | None:
        kind, rest = frame[:1], frame[1:]
        flight = self._flight
        if kind == b"h":
            if flight.head is None:
                flight.begin(Head(**orjson.loads(rest)))
        elif flight.head is None and kind != b"z":
            raise ValueError("the beginning is missing")
        elif kind == b"b":
            self._add(0, [rest])
        elif kind == b"e":
            number, _, joined = rest.partition(b":")
            self._add(int(number), [event + _BREAK for event in joined.split(_BREAK)[:-1]])
        elif kind == b"z":
            return self._landing(rest)
        return None

    def _add(self, number: int, events: list[bytes]) -> None:
        if number > self._count:
            raise ValueError("a part is missing")
        for event in events[self._count - number :]:
            self._flight.add(event)
        self._count = max(self._count, number + len(events))

    def _landing(self, rest: bytes) -> Landing:
        end, word, packed = rest.split(b":", 2)
        if end == b"done" and self._flight.head is not None:
            return Landing("done")
        if end == b"broken":
            return Landing("broken", word.decode())
        return Landing("failed", error=self._unpack(packed)) if end == b"failed" else Landing("lost")


def can_serve(theirs: Lease, deadline: float) -> bool:
    """Whether a request with this deadline, in `time.monotonic()` seconds, may join the flight elsewhere."""
    _, _, terms = theirs.holder.partition(b":")
    until, _, roomy = terms.partition(b":")
    if roomy == b"1":
        return True
    left_s = deadline - time.monotonic()
    return until.isdigit() and int(until) / 1000 >= time.time() + left_s


def _name(flight: Flight) -> bytes:
    until = time.time() + flight.deadline - time.monotonic()
    return b"%b:%d:%d" % (flight.ident.encode(), until * 1000, flight.roomy)


def _stream(flight: Flight) -> str:
    return f"{flight.key}:f:{flight.ident}"


async def _quietly(chore: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(StoreUnavailable):
        await chore
