"""Step 5: let simultaneous equal requests share one answer, in this worker and among all workers.

A request goes through here in two parts, both methods of its `CoalescedRequest`:

    look_up    look for a stored answer. Where there is none, the same round trip to the store takes the lease: the
               right, held by one worker at a time, to make this answer
    enter      join the flight of an equal request in this worker (`gateway.caching.flights`), or launch a flight. A
               launched flight is led by this request (`gateway.caching.flights`), or relays the answer of the worker
               that holds the lease (`cache.flights`)

A follower's trace has a hop `cache.follow`, no attempts and no cost; its deadline is its own. When a flight fails for
reasons that may not concern a follower, such as a leader that left, the follower tries again and may lead itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from cache.entry import NO_DEMANDS, Hit, Lookup
from cache.flights import ASK_AGAIN, NO_LEASE, Claimed, Flight, Flights, Landing, Lease, SharedFlights
from cache.planning.plan import CachePlan
from cache.store.base import StoreUnavailable
from gateway.caching.flights import Follower, Leader, Sharing, deadline_passed
from gateway.caching.lookups import end_lookup, replay_hit
from gateway.telemetry import names

if TYPE_CHECKING:
    from cache.read import Read
    from cache.response_cache import ResponseCache
    from cache.write import PendingWrite
    from gateway.request.context import AnswerEnd, RequestContext

log = logging.getLogger("tierline.coalescing")

_MOST_FLIGHTS: Final = 3
"""Most flights that a request joins or launches; after that it makes its own answer, unshared."""
_LEAST_S: Final = 0.05
"""Seconds that must be left before the deadline to try another flight."""
_RECENT_KEYS: Final = 8_192
_ALONE: Final = Sharing()
"""How a request replies that shares its answer with no other."""


class Coalescer:
    """Share answers among equal requests of this worker, and of others by `shared`. Start it on the event loop."""

    def __init__(self, cache: ResponseCache, shared: SharedFlights | None) -> None:
        self.cache = cache
        self.shared = shared
        self.flights = Flights()
        self.lookups: dict[str, list[asyncio.Future[Lookup | None]]] = {}
        """Equal requests that wait for another's lookup, by flight key. They get its result, or None if it failed."""
        self.recent = RecentKeys()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start to serve this worker's flights to other workers."""
        if self.shared is not None:
            self.shared.start()

    async def aclose(self) -> None:
        """End every flight."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.shared is not None:
            await self.shared.aclose()

    def accept(self, request: RequestContext, plan: CachePlan) -> CoalescedRequest | None:
        """Return the request prepared for sharing its answer with equal requests; None if it must not share."""
        policy = plan.policy
        if plan.keys is None or policy.exact is None or not (policy.coalesce and plan.read and plan.write):
            return None
        if request.options.cache.only_if_cached:
            return None
        # The deadline is part of the key, so that no request waits for a flight whose policy allows it less time. Other
        # differences between policies that share cache keys do not matter. The client's choice of tiers does.
        flight_key, clamp = f"{plan.keys.key}:{request.policy.slo.deadline:g}", request.clamp
        if clamp is not None:
            flight_key = f"{flight_key}:{clamp.min_tier or ''}-{clamp.max_tier or ''}"
            if request.models is not None and request.models.partly:
                flight_key += f":{request.models.text}"
        if request.hold is not None and request.hold.is_tight(request.policy):
            flight_key += ":steered"  # nobody else gets the answer of a tier that this budget chose
        return CoalescedRequest(self, request, plan, flight_key, plan.keys.key)

    async def enter(self, coalesced: CoalescedRequest | None) -> Sharing:
        """Return how the request shares its answer: see `CoalescedRequest.enter`. Raises ApiError."""
        return _ALONE if coalesced is None else await coalesced.enter()

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep a reference to a task of a flight until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def landed(self, flight: Flight, write: PendingWrite | None, end: AnswerEnd) -> None:
        """Close a landed flight. Equal requests of this worker now find its answer in `ResponseCache.pending`; other
        workers read the flight, by its lease, until the answer is in the cache.
        """
        self.flights.forget(flight)
        if self.shared is None:
            end.end(write)
        elif write is not None and self.shared.works:
            end.end(write, _LandedFlight(self.shared, flight))
        else:
            self.shared.release(flight)
            end.end(write)

    def end(self, flight: Flight, landing: Landing) -> None:
        """Land a flight, release its lease, and stop requests of all workers from joining it."""
        flight.land(landing)
        self.flights.forget(flight)
        if self.shared is not None:
            self.shared.release(flight)


class CoalescedRequest:
    """One request that shares its lookup and its answer with equal requests.

    A lease is taken in the name of a flight, so a lookup that may take it creates the flight (`_flight`), even if this
    request does not launch it later. `_claimed` is the store's reply about the lease; None if the store was not asked,
    or must be asked again.
    """

    __slots__ = (
        "_cache_key",
        "_claimed",
        "_coalescer",
        "_first_due",
        "_flight",
        "_flight_key",
        "_lease_uncertain",
        "_plan",
        "_request",
    )

    def __init__(
        self, coalescer: Coalescer, request: RequestContext, plan: CachePlan, flight_key: str, cache_key: str
    ) -> None:
        """Prepare a request. Requests with equal `flight_key` may share a flight; `cache_key` is the answer's key."""
        self._coalescer = coalescer
        self._request = request
        self._plan = plan
        self._flight_key = flight_key
        self._cache_key = cache_key
        # The policy's own limit on the first token is the same for all equal requests; only a client's is compared.
        self._first_due = request.ttft_deadline if request.options.ttft_s is not None else None
        self._flight: Flight | None = None
        self._claimed: Claimed | None = None
        self._lease_uncertain = False
        """Whether the lookup timed out, so that the store may have given the lease."""

    @property
    def can_join(self) -> bool:
        """Whether this request can join a flight without a lookup.

        A request with tags needs the lookup: it reads the versions of its tags, which are part of its flight key.
        """
        if self._plan.tags is not None:
            return False
        due = self._request.deadline, self._first_due
        return self._coalescer.flights.joinable(self._flight_key, *due) is not None

    # --- the lookup ---------------------------------------------------------------------------------------------------

    async def look_up(self, look: Callable[[Read | None], Awaitable[Lookup]]) -> Lookup:
        """Return the stored answer, using `look`, which reads the store by the function passed to it.

        Simultaneous equal requests share one lookup: a burst would use up the store's connections. The lookup reads
        with `_read`, which takes the lease if nothing is stored; where an answer is expected it uses the cache's own
        read, which is cheaper.
        """
        shared, lookups, key = self._coalescer.shared, self._coalescer.lookups, self._flight_key
        read = None if shared is None else partial(self._read, shared)
        waiting: list[asyncio.Future[Lookup | None]] | None = None
        lookup: Lookup | None = None
        try:
            if self._plan.tags is not None or self._plan.demands is not NO_DEMANDS:
                # With other tags or requirements, the same entry may be a hit for one request and a miss for another.
                lookup = await look(read)
            elif key in lookups:
                other: asyncio.Future[Lookup | None] = asyncio.get_running_loop().create_future()
                lookups[key].append(other)
                lookup = await other or await look(read)
            else:
                waiting, recent = [], self._coalescer.recent
                lookups[key] = waiting
                lookup = await look(None if self._cache_key in recent.keys else read)
                recent.note(self._cache_key, found=lookup.hit is not None)
            return lookup
        finally:
            if waiting is not None:
                del lookups[key]
                for other in waiting:
                    if not other.done():
                        other.set_result(lookup)
            # An answer whose write is still pending in this worker may be a hit though the store returned the lease.
            if self._flight is not None and (lookup is None or lookup.hit is not None):
                self._give_lease_up()

    async def _read(self, shared: SharedFlights, cache_key: str) -> bytes | None:
        """Return the store's value for a key; if there is none, take the lease in the same round trip."""
        self._flight = flight = self._new_flight()
        try:
            found = await shared.look(flight, cache_key)
        except StoreUnavailable as error:
            self._claimed = None if error.reason in ASK_AGAIN else NO_LEASE
            self._lease_uncertain = error.reason == "timeout"
            raise
        if isinstance(found, bytes):
            return found
        self._claimed = found
        return None

    def _give_lease_up(self) -> None:
        """Release the lease that the lookup has taken, or may have taken, because this request makes no answer."""
        shared = self._coalescer.shared
        if self._flight is not None and shared is not None:
            if self._lease_uncertain:
                shared.abandon(self._flight)
            else:
                shared.forsake(self._flight)
        self._forget_lookup()

    def _forget_lookup(self) -> None:
        self._flight = self._claimed = None
        self._lease_uncertain = False

    # --- the flight ---------------------------------------------------------------------------------------------------

    async def enter(self) -> Sharing:
        """Follow a flight to its reply, or return as the leader of a new one. Raises ApiError."""
        if (tags := self._plan.tags) is not None:
            # A purged tag gets a new version, so no request joins an answer that was begun before the purge. Requests
            # whose lookup could not read the versions ("?") share among themselves.
            versions = tags.versions or [(name, "?") for name in tags.names]
            self._flight_key += "".join(f":{name.encode().hex()}.{version}" for name, version in versions)
        for tried in range(_MOST_FLIGHTS):
            flight = self._coalescer.flights.joinable(self._flight_key, self._request.deadline, self._first_due)
            if flight is not None:
                self._give_lease_up()
                sharing = await self._follow(flight, last=tried > 0)
            else:
                # A request whose flight was lost does not wait for another worker again.
                sharing = await self._launch(may_relay=tried == 0)
            if sharing is not None:
                return sharing
            if self._request.budget_s() < _LEAST_S:
                raise deadline_passed()
        return _ALONE

    async def _follow(self, flight: Flight, *, last: bool) -> Sharing | None:
        """Return the reply from the flight; None if the request must try again. Raises ApiError."""
        request = self._request
        request.client.watch()
        result = await Follower(request, flight.subscribe(request.deadline), follows=True, last=last).answer()
        if isinstance(result, Hit):
            return Sharing(replay_hit(request, result))
        return None if result is None else Sharing(result)

    async def _launch(self, *, may_relay: bool) -> Sharing | None:
        """Launch a flight and return a reply, or lead. Raises ApiError.

        If another worker has the lease and `may_relay`, relay its answer and follow, returning None if that answer is
        lost. If the answer was written since the lookup, replay it. Otherwise lead the flight.
        """
        request, coalescer, shared = self._request, self._coalescer, self._coalescer.shared
        flight, claimed = self._flight or self._new_flight(), self._claimed
        self._forget_lookup()
        coalescer.flights.launch(flight)
        hit: Hit | None = None
        try:
            if claimed is None:
                claimed = NO_LEASE if shared is None else await shared.claim(flight, self._cache_key)
            theirs = claimed.theirs if may_relay and self._first_due is None else None
            if shared is None or (theirs is not None and not shared.can_serve(theirs, flight.deadline)):
                theirs = None
            if theirs is None and (claimed.written or self._cache_key in coalescer.cache.pending.keys):
                hop = request.trace.begin(names.CACHE_EXACT)
                hit = end_lookup(hop, await coalescer.cache.exact(self._plan, request.allowed_tiers()))
        except BaseException:
            coalescer.end(flight, Landing("abandoned"))
            raise
        if theirs is not None and shared is not None:
            self._start_relay(shared, flight, theirs)
            return await self._follow(flight, last=False)
        if hit is not None:
            coalescer.end(flight, Landing("found", found=hit))
            return Sharing(replay_hit(request, hit))
        return Leader(request, flight, coalescer.landed, coalescer.keep)

    def _start_relay(self, shared: SharedFlights, flight: Flight, theirs: Lease) -> None:
        """Start the task that copies the lease holder's flight; it ends with the flight's last reader."""
        task = asyncio.create_task(self._relay(shared, flight, theirs), name="tierline.flight")
        self._coalescer.keep(task)

        def stop() -> None:
            self._coalescer.flights.forget(flight)
            task.cancel()

        flight.on_empty = stop

    async def _relay(self, shared: SharedFlights, flight: Flight, theirs: Lease) -> None:
        try:
            await shared.relay(flight, theirs)
        except asyncio.CancelledError:
            flight.land(Landing("abandoned"))
        except Exception:
            log.exception("a flight of another worker met a bug")
        finally:
            self._coalescer.end(flight, Landing("lost"))  # no effect on a flight that has landed

    def _new_flight(self) -> Flight:
        request = self._request
        limit_s = request.options.deadline_s
        full_deadline = limit_s is None or limit_s >= request.policy.slo.deadline
        return Flight(self._flight_key, request.deadline, full_deadline=full_deadline, first_due=request.ttft_deadline)


class RecentKeys:
    """Hold the latest few thousand keys for which an answer was found.

    Such an answer is probably still stored, and then a plain GET costs a fifth less than a read that may take the
    lease. For other keys probably nothing is stored, and then that read saves a round trip.
    """

    __slots__ = ("_most", "keys")

    def __init__(self, most: int = _RECENT_KEYS) -> None:
        self._most = most
        self.keys: dict[str, None] = {}

    def note(self, key: str, *, found: bool) -> None:
        """Record whether a lookup found an answer under a key."""
        if not found:
            self.keys.pop(key, None)
        elif key not in self.keys:
            self.keys[key] = None
            if len(self.keys) > self._most:
                del self.keys[next(iter(self.keys))]


class _LandedFlight:
    """Release a flight once its answer is in the cache; until then other workers read the answer from the flight."""

    __slots__ = ("_flight", "_shared", "lease")

    def __init__(self, shared: SharedFlights, flight: Flight) -> None:
        self._shared = shared
        self._flight = flight
        self.lease = shared.lease_of(flight)

    def stored(self, *, written: bool) -> None:
        """See `SharedAnswer`."""
        if written and self.lease:
            self._shared.gone(self._flight)
        self._shared.release(self._flight)
