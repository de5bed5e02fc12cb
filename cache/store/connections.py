"""Pool the connections to one server, limit the time of an exchange, and stop while the server fails (a breaker).

A connection is used for one exchange at a time, and the caller may be cancelled at any await: one that was abandoned
during an exchange is never reused, because its next reply would belong to another request.

    closed    --5 failures in a row, or a failed health check-->  open
    open      --0.05 s later, then every second, one probe-->     half_open
    half_open --the probe succeeds-->  closed        half_open --it fails-->  open
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, Literal, Protocol, TypeVar

MAX_CONNECTIONS = 256
"""Maximum connections to one server for commands that do not block."""
MAX_BLOCKING = 16
"""Maximum additional connections for commands that block."""
_MAX_DIALLING = 16
"""Maximum simultaneous connection attempts: hundreds of handshakes at once would all be too slow."""
_FIRST_PROBE_S = 0.05


class AllInUse(Exception):
    """No connection is free and no more may be opened. Raised at once; callers never wait for one."""


class Wire(Protocol):
    """The part of a connection that is used here."""

    @property
    def usable(self) -> bool:
        """False once the connection is lost, or has unread bytes and so is out of step with its server."""

    async def disconnect(self) -> None:
        """Close the connection without waiting."""


W = TypeVar("W", bound=Wire)


class WirePool(Generic[W]):
    """A bounded pool of connections. One that was abandoned during an exchange is never reused."""

    def __init__(self, dial: Callable[[], Awaitable[W]], most: int) -> None:
        """`dial` returns a new connection, or leaves nothing open."""
        self._make = dial
        self._most = most
        self._count = 0
        self._idle: list[W] = []
        self._dialling: set[asyncio.Task[W]] = set()
        self._closed = False

    def idle(self) -> W | None:
        """Return an idle connection for one exchange; None if `take` has to make one, or to close what is lost."""
        return self._idle.pop() if self._idle and self._idle[-1].usable else None

    async def take(self) -> W:
        """Return a connected connection for one exchange. Raises AllInUse at once if the limit is reached."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            await self._drop(connection)
        if self._count >= self._most or len(self._dialling) >= _MAX_DIALLING:
            raise AllInUse
        self._count += 1
        return await self._wait_for(asyncio.get_running_loop().create_task(self._dial()))

    async def give_back(self, connection: W, *, clean: bool) -> None:
        """End an exchange; `clean` when every reply was read."""
        if clean and connection.usable and not self._closed:
            self._idle.append(connection)
        else:
            await self._drop(connection)

    async def drop_idle(self) -> None:
        """Close the idle connections, so that new ones resolve the address again."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await self._drop(connection)

    async def aclose(self) -> None:
        """Close idle connections now, and others when they are given back."""
        self._closed = True
        if self._dialling:
            await asyncio.wait(tuple(self._dialling))
        await self.drop_idle()

    async def _drop(self, connection: W) -> None:
        self._count -= 1
        await connection.disconnect()

    async def _dial(self) -> W:
        try:
            return await self._make()
        except BaseException:
            self._count -= 1
            raise

    async def _wait_for(self, dialling: asyncio.Task[W]) -> W:
        """Return the new connection. If cancelled, it goes to the pool, so that slow handshakes still complete."""
        self._dialling.add(dialling)
        try:
            return await asyncio.shield(dialling)
        except asyncio.CancelledError:
            dialling.add_done_callback(self._adopt)
            raise
        finally:
            if dialling.done():
                self._dialling.discard(dialling)

    def _adopt(self, dialling: asyncio.Task[W]) -> None:
        self._dialling.discard(dialling)
        if not dialling.cancelled() and dialling.exception() is None:
            self._idle.append(dialling.result())


State = Literal["closed", "open", "half_open"]


class StoreBreaker:
    """The circuit breaker of one server. `clock` is monotonic, in seconds; the caller sends the probes."""

    __slots__ = ("_clock", "_closed_at", "_limit", "_probe_at", "_probe_every_s", "failures", "state")

    def __init__(
        self, *, failures: int = 5, probe_every_s: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.state: State = "closed"
        self._limit = failures
        self._probe_every_s = probe_every_s
        self._clock = clock
        self.failures = 0
        """Failed requests since the last one that was answered."""
        self._probe_at = 0.0
        self._closed_at = float("-inf")

    @property
    def closed(self) -> bool:
        """Whether requests may use the store."""
        return self.state == "closed"

    def succeeded(self) -> None:
        """Record an answered request. An open breaker stays open: the request may have been sent before it opened."""
        self.failures = 0

    def failed(self) -> None:
        """Record a failed request, and open at the limit."""
        self.failures += 1
        if self.state == "closed" and self.failures >= self._limit:
            self.trip()

    def trip(self) -> None:
        """Open at once: a health check or a probe has failed.

        The first probe comes soon, because most stalls are short: one of 20 ms fails all the exchanges under way. It
        comes later where the breaker was closed for a moment only.
        """
        now = self._clock()
        first = self.state == "closed" and now - self._closed_at >= self._probe_every_s
        self.state = "open"
        self._probe_at = now + (_FIRST_PROBE_S if first else self._probe_every_s)

    def reset(self) -> None:
        """Close: a probe or a health check has succeeded."""
        if self.state != "closed":
            self._closed_at = self._clock()
        self.state = "closed"
        self.failures = 0

    def wait_s(self) -> float:
        """Return the seconds until the next probe may be sent."""
        return max(0.0, self._probe_at - self._clock())

    def begin_probe(self) -> bool:
        """Return whether the caller must probe now; it then reports the result with `reset` or `trip`."""
        if self.state != "open" or self.wait_s() > 0:
            return False
        self.state = "half_open"
        return True


_LATE_S = 0.002
_TURN_S = 0.001
_LATE_TURN_S = 0.005
_MOST_TURNS = 8


class PatientLimit:
    """Limit the time of an exchange, `begin` to `timer.cancel()`; after it `_give_up` is called, perhaps a bit later.

    `asyncio.timeout` measures the wall clock: if the event loop itself was busy for longer than the limit, it gives up
    on a reply that has long been waiting in the socket. Under load that would turn answers into failures, and failures
    into more load: cache hits into misses, and fast backends into slow ones with an open breaker. So a limit that is
    reached gives the loop one more turn at its sockets before it gives up, and another one for each turn that came
    late, since an exchange may take several: a new connection takes five or six.
    """

    __slots__ = ("_due", "_loop", "_turns", "timer")

    _loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self.timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._turns = 0

    def begin(self, limit_s: float) -> None:
        """Have `_give_up` called after `limit_s` seconds, unless `timer` is cancelled."""
        self._turns = 0
        self._due = self._loop.time() + limit_s
        self.timer = self._loop.call_later(limit_s, self._expire)

    def _expire(self) -> None:
        now = self._loop.time()
        late = now - self._due > _LATE_S
        if self._turns == 0 or (late and self._turns < _MOST_TURNS):
            self._turns += 1
            turn_s = _LATE_TURN_S if late else _TURN_S
            self._due = now + turn_s
            self.timer = self._loop.call_later(turn_s, self._expire)
            return
        self._give_up()

    def _give_up(self) -> None:
        raise NotImplementedError


class Deadline(PatientLimit):
    """Limit the time of what a task waits for: `with Deadline(0.02): await ...` raises TimeoutError after so long."""

    __slots__ = ("_cancelling", "_expired", "_limit_s", "_task")

    _task: asyncio.Task[object]
    _cancelling: int

    def __init__(self, limit_s: float) -> None:
        # All of it without a call: every call of a model has one.
        self._limit_s = limit_s
        self._expired = False
        self._turns = 0

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline needs a running task")
        self._task = task
        self._cancelling = task.cancelling()
        self._loop = loop = task.get_loop()
        self._due = loop.time() + self._limit_s
        self.timer = loop.call_later(self._limit_s, self._expire)

    def _give_up(self) -> None:
        self._expired = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.timer is not None:
            self.timer.cancel()
        # As in asyncio.timeout: a cancellation that was requested elsewhere as well is passed on.
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from None
