"""The open connections of one process: at most so many, and none for long that only says it will send a request.

Each of them is at work, has said nothing yet (silent), waits for its next request (idle), or has begun one that has not
come whole (slow). A silent or idle one makes room for a newcomer, the oldest first, and is closed after a time; a slow
one has so long for the head of its request, and as long again for each 64 KiB of the body.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Final, Protocol

log = logging.getLogger("tierline.connections")

SLOW_S: Final = 10.0
IDLE_S: Final = 75.0
PROGRESS: Final = 64 << 10
"""So many bytes of a request in SLOW_S are no slow ones."""

_SWEEP_EVERY_S: Final = 0.5
_MOST_LEAVING: Final = 64
_SAY_EVERY_S: Final = 10.0


class Connection(Protocol):
    """What is asked of a connection."""

    def give_way(self) -> None:
        """Closes it: there is no room for it, or it has been idle for too long."""

    def turn_away(self, *, patient: bool) -> None:
        """Refuses it before it has asked anything. `patient` leaves its client a moment to read why."""

    def too_slow(self) -> None:
        """Refuses the request that does not come, and closes it."""


class ConnectionLimits:
    """Not thread-safe: it belongs to one event loop. Times are the loop's."""

    __slots__ = ("_idle", "_leaving", "_most", "_open", "_say_at", "_silent", "_silent_s", "_slow", "_turned_away")

    def __init__(self, most: int, silent_s: float) -> None:
        """At most `most` connections; one that says nothing is closed after `silent_s` seconds."""
        self._most = most
        self._silent_s = silent_s
        self._silent: OrderedDict[Connection, float] = OrderedDict()
        self._open: set[Connection] = set()
        self._leaving: set[Connection] = set()
        """Those that are turned away and not closed yet."""
        self._turned_away = 0
        """Since that was last said in the log."""
        self._say_at = 0.0
        self._idle: OrderedDict[Connection, float] = OrderedDict()
        self._slow: OrderedDict[Connection, float] = OrderedDict()

    def opened(self, connection: Connection, now: float, *, room: bool = True) -> None:
        """Take a newcomer in. One too many takes the place of the oldest that says nothing; without one, it is turned
        away itself.

        `room` is whether the process has descriptors left for it, however many connections there may be.
        """
        if len(self._open) >= self._most or not room:
            waiting = [next(iter(some.items())) for some in (self._silent, self._idle) if some]
            if not waiting:
                self._turn_away(connection, now, room=room)
                return
            self._dismiss(min(waiting, key=lambda item: item[1])[0])
        self._open.add(connection)
        self._silent[connection] = now

    def closed(self, connection: Connection) -> None:
        """It is gone."""
        self._open.discard(connection)
        self._leaving.discard(connection)
        self._silent.pop(connection, None)
        self._idle.pop(connection, None)
        self._slow.pop(connection, None)

    def begins(self, connection: Connection) -> None:
        """A request has begun."""
        self._silent.pop(connection, None)
        self._idle.pop(connection, None)

    def rests(self, connection: Connection, now: float) -> None:
        """Its request is answered, and no other is there."""
        if connection in self._open:
            self._idle[connection] = now
            self._idle.move_to_end(connection)

    def waits(self, connection: Connection, now: float) -> None:
        """Its request has not come whole; since now, unless it was said before."""
        self._slow.setdefault(connection, now)

    def goes_on(self, connection: Connection) -> None:
        """Its request has come whole, or has made progress, after `waits` was said of it."""
        self._slow.pop(connection, None)

    async def keep_sweeping(self) -> None:
        """Sweep twice a second, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self.sweep(loop.time())
            await asyncio.sleep(_SWEEP_EVERY_S)

    def sweep(self, now: float) -> None:
        """End what has been slow, silent or idle for too long."""
        while self._slow and now - next(iter(self._slow.values())) >= SLOW_S:
            connection, _ = self._slow.popitem(last=False)
            connection.too_slow()
        for waiting, limit_s in ((self._silent, self._silent_s), (self._idle, IDLE_S)):
            while waiting and now - next(iter(waiting.values())) >= limit_s:
                self._dismiss(next(iter(waiting)))

    def _turn_away(self, connection: Connection, now: float, *, room: bool) -> None:
        self._turned_away += 1
        if now >= self._say_at:
            why = f"none idle, limits.connections is {self._most}" if room else "no file descriptors left (ulimit -n)"
            log.warning(
                "newcomers turned away: %d; %d connections are open, %s", self._turned_away, len(self._open), why
            )
            self._turned_away, self._say_at = 0, now + _SAY_EVERY_S
        patient = room and len(self._leaving) < _MOST_LEAVING
        if patient:
            self._leaving.add(connection)
        connection.turn_away(patient=patient)

    def _dismiss(self, connection: Connection) -> None:
        # Its end is told a turn of the loop later; until then it is not to be counted, nor dismissed again.
        self.closed(connection)
        connection.give_way()
