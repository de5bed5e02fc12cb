"""Limit the open connections of one process, and close those that are idle or too slow.

    silent     has sent nothing yet: closed after `limits.silent`
    idle       between two requests: closed after 75 s
    unfinished the head of its request has not arrived completely: refused after 10 s
    slow       the same of its body: refused after 10 s for each 64 KiB
    resting    a WebSocket that waits for its client's next message; it closes itself in time
    busy       any other: its request is answered

At the limit, a new connection replaces the silent or idle one that has waited the longest, else the oldest unfinished
one, else the WebSocket that rests the longest. Where all are busy it takes a place that is kept back: of those of the
admin port, or of those for probes, where it is refused after its head unless it is a probe. Unfinished heads have a
room of their own, in which the oldest makes room, so that they keep nobody else's head or body out.
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
KEPT_BACK: Final = 16
"""Connections beyond the limit for the admin port, and as many for probes of the public one."""
HEADS: Final = 8 << 20
"""Most bytes of unfinished heads: of those that are sent in good faith one comes in milliseconds."""

_SWEEP_EVERY_S: Final = 0.5
_MOST_LEAVING: Final = 64
_SAY_EVERY_S: Final = 10.0


class Connection(Protocol):
    """Methods of a connection that ConnectionLimits calls."""

    kept_back: bool
    """Whether it has a place that is kept back; set here, before its first request."""

    def give_way(self) -> None:
        """Close the connection: it was idle or silent for too long, or a new one needs its place."""

    def turn_away(self, *, patient: bool) -> None:
        """Reject the connection before its first request; `patient` leaves its client a moment to read why."""

    def too_slow(self) -> None:
        """Reject the request that did not arrive in time, and close the connection."""

    def no_room(self) -> None:
        """Reject the request whose unfinished head takes the room of others', and close the connection."""


class ConnectionLimits:
    """Track the open connections and close those beyond the limits. Times are seconds of the event loop's clock.

    Not thread-safe: use it from one event loop.
    """

    __slots__ = (
        "_heads", "_heads_held", "_heads_room", "_idle", "_kept", "_leaving", "_most", "_open", "_resting", "_say_at",
        "_silent", "_silent_s", "_slow", "_sweeping", "_turned_away",
    )  # fmt: skip

    def __init__(self, most: int, silent_s: float, heads: int = HEADS) -> None:
        """Allow `most` connections; close one that has sent nothing after `silent_s` seconds.

        `heads` is the most bytes of unfinished heads.
        """
        self._most = most
        self._silent_s = silent_s
        self._silent: OrderedDict[Connection, float] = OrderedDict()
        self._open: set[Connection] = set()
        self._kept: tuple[dict[Connection, None], dict[Connection, None]] = {}, {}
        """Connections beyond the limit, oldest first: for probes, and of the admin port."""
        self._leaving: set[Connection] = set()
        """Rejected connections that are not closed yet."""
        self._turned_away = 0
        """Number of connections rejected since the last log line about them."""
        self._say_at = 0.0
        self._sweeping: asyncio.TimerHandle | None = None
        self._idle: OrderedDict[Connection, float] = OrderedDict()
        self._resting: OrderedDict[Connection, float] = OrderedDict()
        self._slow: OrderedDict[Connection, float] = OrderedDict()
        self._heads: dict[Connection, int] = {}
        """Bytes of unfinished heads, the oldest first."""
        self._heads_held = 0
        self._heads_room = heads

    def opened(self, connection: Connection, now: float, *, room: bool = True, admin: bool = False) -> None:
        """Add a new connection, of the `admin` port or of the public one; see the module for what it replaces.

        If it has no place it is rejected. `room` says whether the process has file descriptors left for it; without,
        it is treated as at the limit, and only one of the admin port has a place that is kept back.
        """
        if len(self._open) >= self._most or not room:
            waiting = [next(iter(some.items())) for some in (self._silent, self._idle) if some]
            if waiting:
                self._dismiss(min(waiting, key=lambda item: item[1])[0])
            elif (oldest := next((head for head in self._heads if head in self._open), None)) is not None:
                self._refuse_head(oldest)
            elif self._resting:
                self._dismiss(next(iter(self._resting)))
            else:
                if room or admin:
                    self._keep_back(connection, now, admin=admin)
                else:
                    self._turn_away(connection, now, room=room)
                return
        self._open.add(connection)
        self._silent[connection] = now

    def closed(self, connection: Connection) -> None:
        """Remove a connection that was closed."""
        self._open.discard(connection)
        for kept in self._kept:
            kept.pop(connection, None)
        self._leaving.discard(connection)
        self._silent.pop(connection, None)
        self._idle.pop(connection, None)
        self._resting.pop(connection, None)
        self._slow.pop(connection, None)
        self.head_came(connection)

    def becomes(self, connection: Connection, socket: Connection) -> None:
        """Record that the connection is one of WebSockets from now on, which `socket` handles."""
        self.closed(connection)
        self._open.add(socket)

    def begins(self, connection: Connection) -> None:
        """Record that a request has begun on the connection."""
        self._silent.pop(connection, None)
        self._idle.pop(connection, None)

    def rests(self, connection: Connection, now: float) -> None:
        """Record that the connection's request was answered and no other has begun: it is idle since `now`."""
        if connection in self._open:
            self._idle[connection] = now
            self._idle.move_to_end(connection)

    def socket_rests(self, socket: Connection, now: float | None) -> None:
        """Record that a WebSocket waits for a message since `now`; None while one is answered."""
        self._resting.pop(socket, None)
        if now is not None and socket in self._open:
            self._resting[socket] = now

    def waits(self, connection: Connection, now: float) -> None:
        """Record that the rest of the connection's request is awaited, from `now` unless recorded earlier."""
        self._slow.setdefault(connection, now)

    def goes_on(self, connection: Connection) -> None:
        """Record that, after `waits`, the request arrived completely or made enough progress."""
        self._slow.pop(connection, None)

    def head_grows(self, connection: Connection, more: int) -> None:
        """Count `more` bytes of the connection's unfinished head; the oldest heads are refused until all fit."""
        self._heads[connection] = self._heads.get(connection, 0) + more
        self._heads_held += more
        while self._heads_held > self._heads_room:
            self._refuse_head(next(iter(self._heads)))

    def head_came(self, connection: Connection) -> None:
        """Count the connection's head no more: it is complete, or given up."""
        self._heads_held -= self._heads.pop(connection, 0)

    def start(self) -> None:
        """Sweep now, and twice a second from now on."""
        loop = asyncio.get_running_loop()
        self._sweeping = loop.call_later(_SWEEP_EVERY_S, self.start)
        self.sweep(loop.time())

    def stop(self) -> None:
        """Sweep no more."""
        if self._sweeping is not None:
            self._sweeping.cancel()

    def sweep(self, now: float) -> None:
        """Close what has been slow, silent or idle for too long.."""
        while self._slow and now - next(iter(self._slow.values())) >= SLOW_S:
            connection, _ = self._slow.popitem(last=False)
            connection.too_slow()
        for waiting, limit_s in ((self._silent, self._silent_s), (self._idle, IDLE_S)):
            while waiting and now - next(iter(waiting.values())) >= limit_s:
                self._dismiss(next(iter(waiting)))

    def _keep_back(self, connection: Connection, now: float, *, admin: bool) -> None:
        """Give the connection a place that is kept back. The oldest there whose head has not come is rejected for it;
        without such a one, this is.
        """
        kept = self._kept[admin]
        if len(kept) >= KEPT_BACK:
            rejected = next((slow for slow in kept if slow in self._slow), connection)
            self.closed(rejected)
            self._turn_away(rejected, now, room=True)
            if rejected is connection:
                return
        connection.kept_back = True
        kept[connection] = None
        self._slow[connection] = now

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

    def _refuse_head(self, connection: Connection) -> None:
        self.closed(connection)
        connection.no_room()

    def _dismiss(self, connection: Connection) -> None:
        # connection_lost comes in a later turn of the loop; until then it must not be counted or dismissed again.
        self.closed(connection)
        connection.give_way()
