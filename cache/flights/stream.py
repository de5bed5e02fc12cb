"""Carry one worker's flight to others on a stream: its publisher writes it, and a copy of the flight is read from it.

Entries: `h` and the head, then `e<number>:` and the joined events (each ends with a blank line and contains none), or
`b` and the body, then `z` and how it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Final

import orjson

from cache.flights.single_flight import AnswerHead, Flight, Landing, Subscription
from cache.store.base import Store, StoreUnavailable

ASK_AGAIN_S: Final = 1.0
"""Interval in seconds at which a reading worker repeats its request."""
SILENCE_S: Final = 1.0
"""Maximum seconds without a reply of the store before a flight read through it is given up."""
BATCH_S: Final = 0.02
_KEPT_S: Final = 5.0
_INTEREST_S: Final = 2.5
_BREAK: Final = b"\n\n"


class Publisher:
    """Publishes one flight while any other worker requests it; itself a reader of the flight."""

    def __init__(self, store: Store, pack: Callable[[Exception | None], bytes], flight: Flight) -> None:
        self._store = store
        self._pack = pack
        self._flight = flight
        self._wanted: dict[str, float] = {}
        # Subscribe now: the flight's only other reader may leave before the task has begun.
        self.task = asyncio.create_task(self._run(flight.subscribe()), name="tierline.flights.publish")

    def wanted(self, who: str) -> None:
        """Add a subscriber, or note that it still reads."""
        self._wanted[who] = time.monotonic()

    def gone(self, who: str) -> None:
        """Remove a subscriber."""
        if self._wanted.pop(who, None) is not None and not self._wanted:
            self.task.cancel()

    async def _run(self, subscription: Subscription) -> None:
        try:
            if subscription.flight.full:
                # The first events are discarded, so readers are told at once instead of waiting.
                lost = self._end(Landing("lost"))
                await self._store.publish(stream_of(self._flight.key, self._flight.ident), [lost], _KEPT_S)
                return
            await self._publish(subscription)
        except (StoreUnavailable, asyncio.CancelledError):
            return
        finally:
            subscription.leave()

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
        """Publish, with retries: entries that arrive twice are recognised by their numbers."""
        until = time.monotonic() + SILENCE_S
        while True:
            try:
                await self._store.publish(stream, frames, _KEPT_S)
                return
            except StoreUnavailable:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(BATCH_S)

    def _end(self, landing: Landing) -> bytes:
        return b"z%b:%b:%b" % (landing.end.encode(), landing.word.encode(), self._pack(landing.error))

    async def _news(self, subscription: Subscription, *, began: bool) -> None:
        """Wait for events, then a moment for more of them; return at the latest when subscribers must be checked."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_AGAIN_S):
                await (subscription.more() if began else subscription.begun())
        if began:
            await asyncio.sleep(BATCH_S)

    def _is_wanted(self) -> bool:
        now = time.monotonic()
        return any(now - heard < _INTEREST_S for heard in self._wanted.values()) or not self._wanted


class Copy:
    """A copy of another worker's flight, fed with the stream's entries."""

    def __init__(self, flight: Flight, unpack: Callable[[bytes], Exception]) -> None:
        self._flight = flight
        self._unpack = unpack
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
                flight.begin(AnswerHead(**orjson.loads(rest)))
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


def stream_of(key: str, ident: str) -> str:
    """Return the name of a flight's stream."""
    return f"{key}:f:{ident}"
