"""Share flights across workers and replicas: the producer of an answer holds a lease, the others read via the store.

    lease            the right to produce an answer, held by one worker among all that share a store
    asking           a worker without the lease requests the answer on a stream that all workers read (`ASKING`)
    flight's stream  only then does the producer publish it: the part so far, then the rest

A lease is a key beside the entry's own, `<key>:l`, with the name of its holder and a short lifetime that the holder
renews, so a killed holder's lease soon expires. Usually it needs no round trip of its own: the cache lookup that misses
takes it, and the write of the answer releases it.

A flight that no other worker requests is never published. If the store fails, each worker produces its own answer.

Entries of a flight's stream: `h` and the head, then `e<number>:` and the joined events (each ends with a blank line and
contains none), or `b` and the body, then `z` and how it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson

from cache.flights import ASK_AGAIN, NO_LEASE, AnswerHead, Claimed, Flight, Landing, Lease, Subscription
from cache.store.base import Append, Claim, Command, Store, StoreUnavailable
from cache.store.resp import IF_HELD
from cache.write import DelayedWrites
from gateway.errors import ApiError, InternalError, PassedThrough

LEASE_S: Final = 3.0
"""Lifetime in seconds: the maximum time that a killed worker's followers wait before one of them takes over."""
_RENEW_S: Final = 1.0
_BUSY_S: Final = (0.002, 0.005, 0.01, 0.02, 0.04)
_NOT_ASKED: Final = frozenset({"open", "unconfigured"})
_WRITE_S: Final = 0.25
_AT_ONCE: Final = 100
"""Leases that one round trip prolongs."""
_PROLONG: Final = IF_HELD % b"'PEXPIRE',KEYS[1],ARGV[2]"


async def keep_leases(store: Store, leases: Sequence[Lease], ttl_s: float) -> None:
    """Restart the lifetimes of these leases, those that their holders still have."""
    life = _milliseconds(ttl_s)
    for start in range(0, len(leases), _AT_ONCE):
        some = leases[start : start + _AT_ONCE]
        words = [(b"EVAL", _PROLONG, b"1", lease.key.encode(), lease.holder, life) for lease in some]
        await store.ask(list(map(Command, words)), _WRITE_S)


async def publish_frames(store: Store, stream: str, frames: Sequence[bytes], ttl_s: float) -> None:
    """Append the frames to a stream that expires `ttl_s` seconds after the last of them."""
    name = stream.encode()
    appends = [Command((b"XADD", name, b"*", b"v", frame)) for frame in frames]
    await store.ask([*appends, Command((b"PEXPIRE", name, _milliseconds(ttl_s)))], _WRITE_S)


def _milliseconds(seconds: float) -> bytes:
    return b"%d" % max(1, round(seconds * 1000))


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
            await keep_leases(self._store, leases, LEASE_S)

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


log = logging.getLogger("tierline.cache")

ASKING: Final = "tierline:c1:flights"
_FIRST_LOOK_S: Final = 0.05
_RETRY_S: Final = 0.5
_ASKED: Final = 1_000
_PAGE: Final = 64
_ASK_AGAIN_S: Final = 1.0
"""Interval in seconds at which a reading worker repeats its request."""
_SILENCE_S: Final = 1.0
"""Maximum seconds without a reply of the store before a flight read through it is given up."""
_BATCH_S: Final = 0.02
_KEPT_S: Final = 5.0
_INTEREST_S: Final = 2.5
_BREAK: Final = b"\n\n"


class FlightExchange:
    """One worker's side of the exchange; what is not described here is as in `SharedFlights`. Start and close it."""

    can_serve = staticmethod(can_serve)

    def __init__(self, store: Store, delayed: DelayedWrites) -> None:
        self.leases = leases = Leases(store, delayed)
        self.look, self.claim, self.abandon = leases.look, leases.claim, leases.abandon
        self.forsake, self.gone = leases.release, leases.gone
        self._store = store
        self._publishing: dict[str, Publisher] = {}
        self._hearing: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start to read other workers' requests."""
        if self._store.state().status != "unconfigured":
            self._hearing = asyncio.create_task(self._hear(), name="tierline.flights")

    async def aclose(self) -> None:
        """Stop, and release the leases that are still held."""
        tasks = [*self._leaving, *(publisher.task for publisher in self._publishing.values())]
        tasks += [self._hearing] if self._hearing is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.leases.aclose()

    @property
    def works(self) -> bool:
        """Whether the store is available."""
        return self._store.state().status == "ok"

    def lease_of(self, flight: Flight) -> str:
        """Return the key of a landed flight's lease, so that the write of its answer deletes it.

        '' if it has no lease, or while other workers read the flight: without its lease they would consider it lost.
        """
        return "" if flight.ident in self._publishing else self.leases.key_of(flight)

    def release(self, flight: Flight) -> None:
        """Release a landed flight's lease, once all of the flight is published."""
        publisher = self._publishing.get(flight.ident)
        if publisher is None:
            self.leases.release(flight)
        else:
            publisher.task.add_done_callback(lambda _: self.leases.release(flight))

    # --- follower: reads another worker's flight ----------------------------------------------------------------------

    async def relay(self, flight: Flight, theirs: Lease) -> None:
        """Copy another worker's flight into `flight` until it lands. Cancel it when it has no readers left."""
        flight.remote = True
        ident = theirs.holder.partition(b":")[0]
        landing = Landing("lost")
        try:
            landing = await self._read(flight, theirs, ident)
        except StoreUnavailable as error:
            log.info("a flight of another worker was lost: %s", error)
        except asyncio.CancelledError:
            task = asyncio.create_task(self._unask(ident, flight), name="tierline.flights.leave")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
            raise
        flight.land(landing)

    async def _read(self, flight: Flight, theirs: Lease, ident: bytes) -> Landing:
        stream = stream_of(flight.key, ident.decode("latin-1"))
        copy = Copy(flight)
        last_id, patience_s, asked_at = "0", _FIRST_LOOK_S, -_ASK_AGAIN_S
        heard_at = time.monotonic()
        while True:
            try:
                if time.monotonic() - asked_at >= _ASK_AGAIN_S:
                    # Repeated because the first request may be lost, and the producer must learn that this worker still
                    # reads.
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

    async def _unask(self, ident: bytes, flight: Flight) -> None:
        with contextlib.suppress(StoreUnavailable):
            await self._ask(b"-", ident, flight)

    # --- producer: publishes its flights on request -------------------------------------------------------------------

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
            flight = self.leases.flight_of(ident)
            if flight is None:
                return
            publisher = self._publishing[ident] = Publisher(self._store, flight)
            publisher.task.add_done_callback(lambda _: self._publishing.pop(ident, None))
        publisher.wanted(who)


class Publisher:
    """Publish one flight while any other worker requests it, reading the flight like a follower."""

    def __init__(self, store: Store, flight: Flight) -> None:
        self._store = store
        self._flight = flight
        self._wanted: dict[str, float] = {}
        # Subscribe now: the flight's only other reader may leave before the task has begun. Nor does a task that is
        # cancelled before it has begun run its `finally`, so the subscription is left in a callback.
        subscription = flight.subscribe()
        self.task = asyncio.create_task(self._run(subscription), name="tierline.flights.publish")
        self.task.add_done_callback(lambda _: subscription.leave())

    def wanted(self, who: str) -> None:
        """Note that the worker `who` reads the flight, so that it is published for a while longer."""
        self._wanted[who] = time.monotonic()

    def gone(self, who: str) -> None:
        """Note that the worker `who` no longer reads the flight."""
        if self._wanted.pop(who, None) is not None and not self._wanted:
            self.task.cancel()

    async def _run(self, subscription: Subscription) -> None:
        try:
            if subscription.flight.full:
                # The first events are discarded, so tell readers at once instead of letting them wait.
                lost = self._end(Landing("lost"))
                await publish_frames(self._store, stream_of(self._flight.key, self._flight.ident), [lost], _KEPT_S)
                return
            await self._publish(subscription)
        except (StoreUnavailable, asyncio.CancelledError):
            return

    async def _publish(self, subscription: Subscription) -> None:
        flight = self._flight
        stream = stream_of(flight.key, flight.ident)
        began = False
        while self._is_wanted():
            frames: list[bytes] = []
            if not began and flight.head is not None:
                began = True
                frames.append(b"h" + orjson.dumps(flight.head))
            start, events = subscription.read, []
            while batch := subscription.take():
                events += batch
            if events and flight.head is not None:
                frames.append(b"e%d:%b" % (start, b"".join(events)) if flight.head.stream else b"b" + events[0])
            if (landing := flight.landing) is not None:
                frames.append(self._end(landing))
            if frames:
                await self._deliver(stream, frames)
            if landing is not None:
                return
            await self._news(subscription, began=began)

    async def _deliver(self, stream: str, frames: Sequence[bytes]) -> None:
        """Publish, with retries: readers recognise entries that arrive twice by their numbers."""
        until = time.monotonic() + _SILENCE_S
        while True:
            try:
                await publish_frames(self._store, stream, frames, _KEPT_S)
                return
            except StoreUnavailable:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(_BATCH_S)

    def _end(self, landing: Landing) -> bytes:
        return b"z%b:%b:%b" % (landing.end.encode(), landing.word.encode(), _packed(landing.error))

    async def _news(self, subscription: Subscription, *, began: bool) -> None:
        """Wait for events, then a moment for more of them; return at the latest when subscribers must be checked."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ASK_AGAIN_S):
                await (subscription.more() if began else subscription.begun())
        if began:
            await asyncio.sleep(_BATCH_S)

    def _is_wanted(self) -> bool:
        now = time.monotonic()
        return any(now - heard < _INTEREST_S for heard in self._wanted.values()) or not self._wanted


class Copy:
    """Fill a flight of this worker from the stream of another worker's, entry by entry."""

    def __init__(self, flight: Flight) -> None:
        self._flight = flight
        self._count = 0

    def take(self, frame: bytes) -> Landing | None:
        """Process one entry; return the landing when it arrives. A malformed entry counts as a lost flight."""
        try:
            return self._take(frame)
        except (ValueError, TypeError):
            return Landing("lost")

    def _take(self, frame: bytes) -> Landing | None:
        kind, rest = frame[:1], frame[1:]
        flight = self._flight
        if kind == b"h":
            if flight.head is None:
                head = orjson.loads(rest)
                flight.begin(AnswerHead(**{**head, "dropped": tuple(head.get("dropped", ()))}))
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
        return Landing("failed", error=_unpacked(packed)) if end == b"failed" else Landing("lost")


def stream_of(key: str, ident: str) -> str:
    """Return the name of a flight's stream."""
    return f"{key}:f:{ident}"


def _packed(error: Exception | None) -> bytes:
    """Return an error as bytes for other workers; an error other than ApiError is packed as an InternalError."""
    if error is None:
        return b""
    api_error = error if isinstance(error, ApiError) else InternalError()
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in api_error.headers]
    return orjson.dumps([api_error.status, api_error.message, api_error.type, api_error.param, api_error.code, headers])


def _unpacked(packed: bytes) -> ApiError:
    """Return the error that `_packed` made. Raises ValueError or TypeError for other bytes."""
    status, message, type_, param, code, headers = orjson.loads(packed)
    error = PassedThrough(int(status), str(message), str(type_), param, code)
    error.headers = tuple((str(name).encode("latin-1"), str(value).encode("latin-1")) for name, value in headers)
    return error
