"""Equal requests at the same moment, one answer: how requests join a flight (`cache.single_flight`) and read it.

The cascade runs in a task of the flight, on the context of whoever asked first; that request is then one reader of
several. Its record carries the cost and the hops, and is closed when the flight has landed, even if its client has left
by then. The others have a hop `cache.follow`, no attempts and no cost; a deadline or a departure is each one's own.

A request that the flight fails for reasons that need not be its own tries again: one of those leads anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import orjson

from cache.answers import why_not_kept
from cache.entry import Hit, Lookup
from cache.flight_exchange import FlightExchange, can_serve
from cache.keeping import Keep
from cache.lookup import Cache
from cache.plan import NO_DEMANDS, CachePlan
from cache.single_flight import Flight, Flights, Head, Landing
from cache.store import Store
from gateway.afterwards import Afterwards, Keeping
from gateway.client import Client
from gateway.context import RequestContext
from gateway.errors import ApiError, InternalError, PassedThrough
from gateway.following import Reading, late
from gateway.reply import Reply
from gateway.telemetry import names

log = logging.getLogger("tierline.coalescing")

Work = Callable[[RequestContext], Awaitable[Reply | Hit]]
"""Makes the answer, or finds it; raises ApiError."""

_MOST_FLIGHTS: Final = 3
_LEAST_S: Final = 0.05
_LINGER_S: Final = 1.0
"""How long a landed flight waits for its answer to be kept, at most: until then it answers who comes."""


class Coalescing:
    """One worker's flights, and its part in those of others. `start` it on the event loop, and close it."""

    def __init__(self, store: Store, cache: Cache, afterwards: Afterwards) -> None:
        self._cache = cache
        self._afterwards = afterwards
        self._exchange = FlightExchange(store, pack, unpack)
        self._flights = Flights()
        self._looking: dict[str, list[asyncio.Future[Lookup | None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begins to hear what other workers ask for."""
        self._exchange.start()

    async def aclose(self) -> None:
        """Ends every flight."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._exchange.aclose()

    def key(self, ctx: RequestContext, plan: CachePlan) -> str:
        """What equal requests share; '' for one that shares no answer. Tiers of one's own choice are part of it."""
        policy = plan.policy
        if plan.keys is None or policy.exact is None or not (policy.coalesce and plan.read and plan.write):
            return ""
        key, clamp = plan.keys.key, ctx.clamp
        if clamp is not None:
            key = f"{key}:{clamp.min_tier or ''}-{clamp.max_tier or ''}"
        # An answer goes when the source of one of its tags does, so equal requests have equal tags.
        return key if plan.tags is None else f"{key}:{'-'.join(name.encode().hex() for name in plan.tags.names)}"

    async def looked_up(self, key: str, plan: CachePlan, look: Callable[[], Awaitable[Lookup]]) -> Lookup:
        """What is stored under this key. Of those who ask at the same moment one looks: a burst would exhaust the
        store's connections.
        """
        if not key or plan.tags is not None or plan.demands is not NO_DEMANDS:
            return await look()
        others = self._looking.get(key)
        if others is not None:
            found: asyncio.Future[Lookup | None] = asyncio.get_running_loop().create_future()
            others.append(found)
            return await found or await look()
        others = self._looking[key] = []
        lookup: Lookup | None = None
        try:
            lookup = await look()
            return lookup
        finally:
            del self._looking[key]
            for other in others:
                if not other.done():
                    other.set_result(lookup)

    def under_way(self, key: str, ctx: RequestContext) -> bool:
        """Whether there is a flight that this request can join."""
        return self._flights.joinable(key, ctx.deadline) is not None

    async def answer(self, ctx: RequestContext, plan: CachePlan, key: str, work: Work) -> Reply | Hit:
        """This request's answer, made by its own work or shared; raises ApiError."""
        ctx.client.watch()
        for left in reversed(range(_MOST_FLIGHTS)):
            flight = self._flights.joinable(key, ctx.deadline)
            leads = flight is None
            if flight is None:
                flight = self._launch(ctx, key)
            seat = flight.board(ctx.deadline)
            if leads:
                # Who has lost an answer once does not wait for another worker again.
                self._begin(flight, ctx, plan, work, relays=left == _MOST_FLIGHTS - 1)
            found = await Reading(ctx, seat, leads=leads, last=left < _MOST_FLIGHTS - 1).answer()
            if found is not None:
                return found
            if ctx.budget_s() < _LEAST_S:
                raise late()
        return await work(ctx)

    def _launch(self, ctx: RequestContext, key: str) -> Flight:
        wish = ctx.wishes.deadline_s
        roomy = wish is None or wish >= ctx.policy.slo.deadline
        return self._flights.launch(key, ctx.deadline, roomy=roomy)

    def _begin(self, flight: Flight, ctx: RequestContext, plan: CachePlan, work: Work, *, relays: bool) -> None:
        client = _Passengers()
        flying = self._fly(flight, ctx, plan, work, client, relays=relays)
        task = asyncio.create_task(flying, name="tierline.flight")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def end() -> None:
            self._flights.forget(flight)
            client.gone = True
            task.cancel()

        flight.on_empty = end

    async def _fly(
        self, flight: Flight, ctx: RequestContext, plan: CachePlan, work: Work, client: _Passengers, *, relays: bool
    ) -> None:
        """The whole flight: the claim, the work or what another worker makes of it, the landing."""
        keeping: Keeping | None = None
        leads = False
        try:
            claimed = await self._exchange.claim(flight, _written_under(plan))
            if relays and claimed.theirs is not None and can_serve(claimed.theirs, flight.deadline):
                flight.memo["hop"] = ctx.trace.begin(names.CACHE_FOLLOW)
                await self._exchange.relay(flight, claimed.theirs)
                return
            if claimed.written and (hit := (await self._cache.exact(plan, _tiers(ctx))).hit):
                flight.land(Landing("found", found=hit))
                return
            leads = flight.departed = True
            self._afterwards.postpone(ctx.trace)
            keeping = await self._lead(flight, ctx, work, client)
        except asyncio.CancelledError:
            flight.land(Landing("abandoned"))
        except Exception as error:  # noqa: BLE001  (the first reader raises it again, in its own request)
            flight.land(Landing("failed", error=error))
        finally:
            flight.land(Landing("lost"))
            self._settle(flight, ctx, keeping, leads=leads)

    async def _lead(self, flight: Flight, ctx: RequestContext, work: Work, client: _Passengers) -> Keeping | None:
        """Makes the answer; what it leaves for the cache."""
        aboard = replace(ctx, client=client, deadline=flight.deadline, body=_with_usage(ctx))
        reply = await work(aboard)
        if isinstance(reply, Hit):
            flight.land(Landing("found", found=reply))
            return None
        flight.begin(_head(ctx, stream=reply.events is not None))
        if reply.events is None or reply.stream is None:
            flight.add(reply.body)
            flight.land(Landing("done"))
            return reply.keeping
        stream = reply.stream
        try:
            async with contextlib.aclosing(reply.events) as events:
                async for event in events:
                    flight.add(event)
                    await flight.room()
        except asyncio.CancelledError:
            stream.end = flight.left_as or stream.end
            raise
        finally:
            stream.close()
        flight.land(Landing("done") if stream.end == "done" else Landing("broken", stream.end))
        return reply.keeping

    def _settle(self, flight: Flight, ctx: RequestContext, keeping: Keeping | None, *, leads: bool) -> None:
        """Closes the books of a landed flight, and lets it go: at once, or, where others may come for its answer before
        that is in the cache, when it is there.
        """
        kept: Callable[[], None] | None = None
        if keeping is not None and self._exchange.works:
            keeping, worth_it = _settled(keeping)
            if worth_it:
                timer = asyncio.get_running_loop().call_later(_LINGER_S, self._let_go, flight)
                kept = partial(self._let_go, flight, timer)
        if kept is None:
            self._let_go(flight)
        if leads:
            self._afterwards.conclude(ctx.trace, keeping, kept)

    def _let_go(self, flight: Flight, timer: asyncio.TimerHandle | None = None) -> None:
        if timer is not None:
            timer.cancel()
        self._flights.forget(flight)
        self._exchange.release(flight)


class _Passengers(Client):
    """Stands for all readers of a flight. Each is watched on its own; they are gone when the last has left."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_nobody)

    def watch(self) -> None:
        """Nothing to watch."""

    def drop(self) -> None:
        """Each reader drops its own client."""


async def _nobody() -> Any:
    raise AssertionError("a flight has no connection")


def _written_under(plan: CachePlan) -> str:
    if plan.keys is None:
        raise AssertionError("a request without keys joins no flight")
    return plan.keys.key


def _tiers(ctx: RequestContext) -> frozenset[str] | None:
    return None if ctx.clamp is None else frozenset(ctx.clamp.of(ctx.policy.tiers))


def _with_usage(ctx: RequestContext) -> dict[str, Any]:
    """The body with the totals asked for, which any reader may want; those who do not never see them."""
    body = dict(ctx.body)
    if ctx.features.stream:
        body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
    return body


def _head(ctx: RequestContext, *, stream: bool) -> Head:
    ledger = ctx.ledger
    return Head(
        ctx.request_id,
        stream,
        ledger.path,
        ledger.tier,
        ledger.backend,
        ledger.model,
        ledger.confidence,
        ledger.difficulty,
    )


def _settled(keeping: Keeping) -> tuple[Keeping | None, bool]:
    """What is to be kept, put together, and whether the cache will take it."""
    try:
        keep = keeping()
        return lambda: keep, keep is not None and not _refused(keep)
    except Exception:  # an answer is a stranger's JSON
        log.exception("an answer could not be prepared for the cache")
        return None, False


def _refused(keep: Keep) -> str:
    plan = keep.plan
    choices, calls = plan.body.get("n") or 1, plan.policy.store_tool_calls
    return keep.fault or why_not_kept(keep.answer.completion, choices, tool_calls=calls)


def pack(error: Exception | None) -> bytes:
    """An error for other workers; of one that is no ApiError they learn only that there was one."""
    if error is None:
        return b""
    known = error if isinstance(error, ApiError) else InternalError()
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in known.headers]
    return orjson.dumps([known.status, known.message, known.type, known.param, known.code, headers])


def unpack(packed: bytes) -> ApiError:
    """The error again; ValueError or TypeError for what is none."""
    status, message, type_, param, code, headers = orjson.loads(packed)
    error = PassedThrough(int(status), str(message), str(type_), param, code)
    error.headers = tuple((str(name).encode("latin-1"), str(value).encode("latin-1")) for name, value in headers)
    return error
