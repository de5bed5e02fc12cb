"""Share flights across workers and replicas: the producer of an answer holds a lease, the others read via the store.

    leases           the right to produce an answer: `cache.flights.leases`
    asking           a worker without the lease requests the answer on a stream that all workers read (`ASKING`)
    flight's stream  only then does the producer publish it: the part so far, then the rest (`cache.flights.stream`)

A flight that no other worker requests is never published. If the store fails, each worker produces its own answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

from cache.flights.leases import Lease, Leases
from cache.flights.single_flight import Flight, Landing
from cache.flights.stream import ASK_AGAIN_S, BATCH_S, SILENCE_S, Copy, Publisher, stream_of
from cache.store.base import Append, Store, StoreUnavailable

log = logging.getLogger("tierline.cache")

ASKING: Final = "tierline:c1:flights"
_FIRST_LOOK_S: Final = 0.05
_RETRY_S: Final = 0.5
_ASKED: Final = 1_000
_PAGE: Final = 64


class FlightExchange:
    """One worker's side of the exchange. `pack` and `unpack` convert errors to bytes and back. Start and close it."""

    def __init__(
        self, store: Store, pack: Callable[[Exception | None], bytes], unpack: Callable[[bytes], Exception]
    ) -> None:
        self.leases = Leases(store)
        self._store = store
        self._pack = pack
        self._unpack = unpack
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

        '' if there is none, or while others read the flight: without its lease they would consider it lost.
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
        copy = Copy(flight, self._unpack)
        last_id, patience_s, asked_at = "0", _FIRST_LOOK_S, -ASK_AGAIN_S
        heard_at = time.monotonic()
        while True:
            try:
                if time.monotonic() - asked_at >= ASK_AGAIN_S:
                    # Repeated: the first request may be lost, and the producer must know that this worker still reads.
                    await self._ask(b"+", ident, flight)
                    asked_at = time.monotonic()
                entries = await self._store.after(stream, last_id, _PAGE, round(patience_s * 1000))
                held = bool(entries) or await self._store.get(theirs.key) == theirs.holder
                if not held:
                    entries = await self._store.after(stream, last_id, _PAGE, 0)
            except StoreUnavailable:
                if time.monotonic() - heard_at > SILENCE_S:
                    raise
                await asyncio.sleep(BATCH_S)
                continue
            heard_at = time.monotonic()
            for entry_id, frame in entries:
                last_id = entry_id
                if (landing := copy.take(frame)) is not None:
                    return landing
            if not held and not entries:
                return Landing("lost")
            patience_s = _FIRST_LOOK_S if entries else min(2 * patience_s, ASK_AGAIN_S)

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
            publisher = self._publishing[ident] = Publisher(self._store, self._pack, flight)
            publisher.task.add_done_callback(lambda _: self._publishing.pop(ident, None))
        publisher.wanted(who)
