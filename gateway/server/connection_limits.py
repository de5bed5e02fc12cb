"""Limit the open connections of one process, and close those that are idle or too slow.

A connection is busy with a request, silent (has sent nothing yet), idle (between two requests) or slow (its request has
not arrived completely). At the limit, a new connection replaces the silent or idle one that has waited the longest.
Silent and idle ones are closed after a time; a slow one has 10 s for the head of its request, and 10 s for each 64 KiB
of its body.
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
"""Bytes of a request body that must arrive within SLOW_S seconds."""

_SWEEP_EVERY_S: Final = 0.5
_MOST_LEAVING: Final = 64
_SAY_EVERY_S: Final = 10.0


class Connection(Protocol):
    """Methods of a connection that ConnectionLimits calls."""

    def give_way(self) -> None:
        """Close the connection: it was idle or silent, and too long so or in the way of a new one."""

    def turn_away(self, *, patient: bool) -> None:
        """Reject the connection before its first request; `patient` leaves its client a moment to read why."""

    def too_slow(self) -> None:
        """Reject the request that did not arrive in time, and close the connection."""


class ConnectionLimits:
    """Track the open connections and close those beyond the limits. Times are seconds of the event loop's clock.

    Not thread-safe: use it from one event loop.
    """

    __slots__ = ("_idle", "_leaving", "_most", "_open", "_say_at", "_silent", "_silent_s", "_slow", "_turned_away")

    def __init__(self, most: int, silent_s: float) -> None:
        """Allow `most` connections; close one that has sent nothing after `silent_s` seconds."""
        self._most = most
        self._silent_s = silent_s
        self._silent: OrderedDict[Connection, float] = OrderedDict()
        self._open: set[Connection] = set()
        self._leaving: set[Connection] = set()
        """Rejected connections that are not closed yet."""
        self._turned_away = 0
        """Number of connections rejected since the last log line about them."""
        self._say_at = 0.0
        self._idle: OrderedDict[Connection, float] = OrderedDict()
        self._slow: OrderedDict[Connection, float] = OrderedDict()

    def opened(self, connection: Connection, now: float, *, room: bool = True) -> None:
        """Add a new connection. At the limit it replaces the silent or idle one that has waited the longest.

        If there is none of these, the new one is rejected. `room` says whether the process has file descriptors left
        for it; without, it is treated as at the limit.
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
        """Remove a connection that was closed."""
        self._open.discard(connection)
        self._leaving.discard(connection)
        self._silent.pop(connection, None)
        self._idle.pop(connection, None)
        self._slow.pop(connection, None)

    def begins(self, connection: Connection) -> None:
        """Record that a request has begun on the connection."""
        self._silent.pop(connection, None)
        self._idle.pop(connection, None)

    def rests(self, connection: Connection, now: float) -> None:
        """Record that the connection's request was answered and no other has begun: it is idle since `now`."""
        if connection in self._open:
            self._idle[connection] = now
            self._idle.move_to_end(connection)

    def waits(self, connection: Connection, now: float) -> None:
        """Record that the rest of the connection's request is awaited, from `now` unless recorded earlier."""
        self._slow.setdefault(connection, now)

    def goes_on(self, connection: Connection) -> None:
        """Record that, after `waits`, the request arrived completely or made enough progress."""
        self._slow.pop(connection, None)

    async def keep_sweeping(self) -> None:
        """Sweep twice a second, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self.sweep(loop.time())
            await asyncio.sleep(_SWEEP_EVERY_S)

    def sweep(self, now: float) -> None:
        """Close what has been slow, silent or idle for too long.."""
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
                "connections rejected: %d; %d connections are open, %s", self._turned_away, len(self._open), why
            )
            self._turned_away, self._say_at = 0, now + _SAY_EVERY_S
        patient = room and len(self._leaving) < _MOST_LEAVING
        if patient:
            self._leaving.add(connection)
        connection.turn_away(patient=patient)

    def _dismiss(self, connection: Connection) -> None:
        # connection_lost comes in a later turn of the loop; until then it must not be counted or dismissed again.
        self.closed(connection)
        connection.give_way()
