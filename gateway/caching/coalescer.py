"""Step 5: give equal requests of the same moment one answer. The first leads a flight, the others join it.

The first of them makes the answer (`gateway.caching.leader`), the others read along (`gateway.caching.follower`), in
this worker or in another (`cache.flights.exchange`). Followers have a hop `cache.follow`, no attempts and no cost; a
deadline or a departure is each one's own.

A request that the flight fails for reasons that need not be its own tries again: one of those leads anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import orjson

from cache.entry import Hit, Lookup
from cache.flights.exchange import FlightExchange
from cache.flights.leases import ASK_AGAIN, NO_LEASE, Claimed, Lease, can_serve
from cache.flights.single_flight import Flight, Flights, Landing
from cache.planning.plan import NO_DEMANDS, CachePlan
from cache.store.base import Store, StoreUnavailable
from gateway.caching.follower import Follower, late
from gateway.caching.leader import Entered, Leader
from gateway.caching.replay import replay
from gateway.errors import ApiError, InternalError, PassedThrough

if TYPE_CHECKING:
    from cache.read import Read
    from cache.response_cache import ResponseCache
    from cache.write import PendingWrite
    from gateway.request.context import RequestContext
    from gateway.request.reply import AnswerEnd

log = logging.getLogger("tierline.coalescing")

_MOST_FLIGHTS: Final = 3
_LEAST_S: Final = 0.05
_RECENT_KEYS: Final = 8_192
_ALONE: Final = Entered()
"""A request that shares its answer with no other."""


class Coalescer:
    """Share answers among equal requests of this and other workers. `start` it on the event loop, and close it."""

    def __init__(self, store: Store, cache: ResponseCache) -> None:
        self.cache = cache
        self.exchange = FlightExchange(store, pack, unpack)
        self.flights = Flights()
        self.looking: dict[str, list[asyncio.Future[Lookup | None]]] = {}
        self.known = RecentKeys()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start to listen to what other workers ask for."""
        self.exchange.start()

    async def aclose(self) -> None:
        """End every flight."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.exchange.aclose()

    def turn(self, request: RequestContext, plan: CachePlan) -> Turn | None:
        """Return the request's place among its equals; None for a request that shares no answer."""
        policy = plan.policy
        if plan.keys is None or policy.exact is None or not (policy.coalesce and plan.read and plan.write):
            return None
        if request.options.cache.only_if_cached:
            return None
        # Policies that differ in nothing that makes an answer share it; one that allows more time waits for no flight
        # that has less. Tiers of one's own choice are part of what is asked for.
        key, clamp = f"{plan.keys.key}:{request.policy.slo.deadline:g}", request.clamp
        if clamp is not None:
            key = f"{key}:{clamp.min_tier or ''}-{clamp.max_tier or ''}"
        return Turn(self, request, plan, key, plan.keys.key)

    async def enter(self, turn: Turn | None) -> Entered:
        """Lead a flight, or read one to the reply. Without a turn the request shares nothing. Raises ApiError."""
        return _ALONE if turn is None else await turn.enter()

    def hold(self, task: asyncio.Task[None]) -> None:
        """Keep a reference to a task of a flight until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def landed(self, flight: Flight, write: PendingWrite | None, end: AnswerEnd) -> None:
        """Close a landed flight. Equal requests of this worker now find its answer in `ResponseCache.pending`; other
        workers read the flight, by its lease, until the answer is in the cache.
        """
        self.flights.forget(flight)
        if write is not None and self.exchange.works:
            end.end(write, _LandedFlight(self.exchange, flight))
        else:
            self.exchange.release(flight)
            end.end(write)

    def let_go(self, flight: Flight) -> None:
        """Let no further request join this flight, here or elsewhere."""
        self.flights.forget(flight)
        self.exchange.release(flight)


class Turn:
    """Take one request through the lookup, which its equals share, and then into a flight, as leader or follower."""

    __slots__ = ("_claimed", "_entry", "_first_due", "_flight", "_host", "_key", "_plan", "_request", "_unsure")

    def __init__(self, host: Coalescer, request: RequestContext, plan: CachePlan, key: str, entry: str) -> None:
        """`key` is what equal requests share, `entry` the key of the answer in the cache."""
        self._host = host
        self._request = request
        self._plan = plan
        self._key = key
        self._entry = entry
        # What the policy wants of every first token holds for whoever asked first, too: only a wish is its own.
        self._first_due = request.ttft_deadline if request.options.ttft_s is not None else None
        self._flight: Flight | None = None
        self._claimed: Claimed | None = None
        self._unsure = False  # whether a look that was too late has taken the lease

    @property
    def joins(self) -> bool:
        """Whether there is a flight that this request can join without a look into the cache.

        One with tags has to look: it shares no answer that was begun before one of its sources changed.
        """
        return self._plan.tags is None and self._joinable() is not None

    async def look_up(self, look: Callable[[Read | None], Awaitable[Lookup]]) -> Lookup:
        """Return what is stored. Where nothing is, the same round trip has asked for the right to make the answer,
        unless an answer was expected there.

        Of those who ask at the same moment one looks: a burst would exhaust the store's connections.
        """
        lookup = await self._shared_look(look)
        if lookup.hit is not None:
            self._give_claim_up()  # a pending answer may be the hit though the store had none
        return lookup

    async def _shared_look(self, look: Callable[[Read | None], Awaitable[Lookup]]) -> Lookup:
        if self._plan.tags is not None or self._plan.demands is not NO_DEMANDS:
            return await look(self._read)
        looking = self._host.looking
        others = looking.get(self._key)
        if others is not None:
            shared: asyncio.Future[Lookup | None] = asyncio.get_running_loop().create_future()
            others.append(shared)
            return await shared or await look(self._read)
        others = looking[self._key] = []
        lookup: Lookup | None = None
        known = self._host.known
        try:
            lookup = await look(None if self._entry in known else self._read)
            known.found(self._entry, there=lookup.hit is not None)
            return lookup
        finally:
            del looking[self._key]
            for other in others:
                if not other.done():
                    other.set_result(lookup)

    async def enter(self) -> Entered:
        """Lead a flight, or read one to the reply. Raises ApiError."""
        request = self._request
        if (tags := self._plan.tags) is not None:
            # An answer goes when the source of one of its tags does, so equal requests have equal tags as they are now.
            # Those to whom the store has not told how they are ("?") share among themselves.
            versions = tags.versions or [(name, "?") for name in tags.names]
            self._key += "".join(f":{name.encode().hex()}.{version}" for name, version in versions)
        for tried in range(_MOST_FLIGHTS):
            flight = self._joinable()
            if flight is None:
                # A request that has lost an answer once does not wait for another worker again.
                entered = await self._lead(relays=tried == 0)
            else:
                self._give_claim_up()
                entered = await self._follow(flight, last=tried > 0)
            if entered is not None:
                return entered
            if request.budget_s() < _LEAST_S:
                raise late()
        return Entered()

    def _give_claim_up(self) -> None:
        """Release the lease that the look has taken, or may have taken: this request makes no answer."""
        flight = self._flight
        if flight is not None:
            if self._unsure:
                self._host.exchange.leases.abandon(flight)
            else:
                self._host.exchange.leases.release(flight)
        self._flight = self._claimed = None
        self._unsure = False

    def _joinable(self) -> Flight | None:
        return self._host.flights.joinable(self._key, self._request.deadline, self._first_due)

    async def _follow(self, flight: Flight, *, last: bool) -> Entered | None:
        self._request.client.watch()
        result = await Follower(
            self._request, flight.subscribe(self._request.deadline), follows=True, last=last
        ).answer()
        if isinstance(result, Hit):
            return Entered(replay(self._request, result))
        return None if result is None else Entered(result)

    async def _read(self, key: str) -> bytes | None:
        """Return what the store has under a key; where it has nothing, the same round trip asks for the lease."""
        self._flight = flight = self._new()
        try:
            found = await self._host.exchange.leases.look(flight, key)
        except StoreUnavailable as error:
            self._claimed = None if error.reason in ASK_AGAIN else NO_LEASE
            self._unsure = error.reason == "timeout"
            raise
        if isinstance(found, bytes):
            return found
        self._claimed = found
        return None

    async def _lead(self, *, relays: bool) -> Entered | None:
        """Launch a flight, to be led by this request or, if it `relays`, fed by another worker."""
        request, host = self._request, self._host
        flight, claimed = self._flight or self._new(), self._claimed
        self._flight = self._claimed = None
        self._unsure = False
        host.flights.launch(flight)
        if claimed is None:
            claimed = await self._claim(flight)
        theirs = claimed.theirs if relays and self._first_due is None else None
        if theirs is not None and can_serve(theirs, flight.deadline):
            self._relay(flight, theirs)
            return await self._follow(flight, last=False)
        if (claimed.written or self._entry in host.cache.pending) and (hit := (await self._written(flight)).hit):
            return Entered(replay(request, hit))
        return Leader(request, flight, host.landed, host.hold)

    async def _claim(self, flight: Flight) -> Claimed:
        try:
            return await self._host.exchange.leases.claim(flight, self._entry)
        except BaseException:
            self._end(flight, Landing("abandoned"))
            raise

    async def _written(self, flight: Flight) -> Lookup:
        """Return what was written, or is about to be, since the look."""
        try:
            found = await self._host.cache.exact(self._plan, self._request.allowed_tiers())
        except BaseException:
            self._end(flight, Landing("abandoned"))
            raise
        if found.hit is not None:
            self._end(flight, Landing("found", found=found.hit))
        return found

    def _relay(self, flight: Flight, theirs: Lease) -> None:
        task = asyncio.create_task(self._relayed(flight, theirs), name="tierline.flight")
        self._host.hold(task)

        def end() -> None:
            self._host.flights.forget(flight)
            task.cancel()

        flight.on_empty = end

    async def _relayed(self, flight: Flight, theirs: Lease) -> None:
        try:
            await self._host.exchange.relay(flight, theirs)
        except asyncio.CancelledError:
            flight.land(Landing("abandoned"))
        except Exception:
            log.exception("a flight of another worker met a bug")
        finally:
            self._end(flight, Landing("lost"))

    def _end(self, flight: Flight, landing: Landing) -> None:
        flight.land(landing)
        self._host.let_go(flight)

    def _new(self) -> Flight:
        request = self._request
        wish = request.options.deadline_s
        roomy = wish is None or wish >= request.policy.slo.deadline
        return Flight(self._key, request.deadline, roomy=roomy, first_due=request.ttft_deadline)


class RecentKeys:
    """Hold the latest few thousand keys under which an answer was found.

    What was there a while ago is likely there still, and a bare GET costs a fifth less than a look that would take the
    right to make the answer; what is new is likely absent, and then the look saves a round trip.
    """

    __slots__ = ("_keys", "_most")

    def __init__(self, most: int = _RECENT_KEYS) -> None:
        self._most = most
        self._keys: dict[str, None] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def found(self, key: str, *, there: bool) -> None:
        """Note whether a lookup found an answer under a key."""
        if not there:
            self._keys.pop(key, None)
        elif key not in self._keys:
            self._keys[key] = None
            if len(self._keys) > self._most:
                del self._keys[next(iter(self._keys))]


class _LandedFlight:
    """Release a flight once its answer is in the cache; until then other workers read the answer from the flight."""

    __slots__ = ("_exchange", "_flight", "lease")

    def __init__(self, exchange: FlightExchange, flight: Flight) -> None:
        self._exchange = exchange
        self._flight = flight
        self.lease = exchange.lease_of(flight)

    def stored(self, *, written: bool) -> None:
        """See `SharedAnswer`."""
        if written and self.lease:
            self._exchange.leases.gone(self._flight)
        self._exchange.release(self._flight)


def pack(error: Exception | None) -> bytes:
    """Return an error as bytes for other workers; one that is no ApiError becomes an InternalError."""
    if error is None:
        return b""
    known = error if isinstance(error, ApiError) else InternalError()
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in known.headers]
    return orjson.dumps([known.status, known.message, known.type, known.param, known.code, headers])


def unpack(packed: bytes) -> ApiError:
    """Return the error that `pack` packed. Raises ValueError or TypeError for other bytes."""
    status, message, type_, param, code, headers = orjson.loads(packed)
    error = PassedThrough(int(status), str(message), str(type_), param, code)
    error.headers = tuple((str(name).encode("latin-1"), str(value).encode("latin-1")) for name, value in headers)
    return error
