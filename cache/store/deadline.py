"""Limit the time of one exchange with a peer without counting delays of the own event loop as the peer's.

`asyncio.timeout` measures the wall clock: if the event loop itself was busy for longer than the limit, it gives up on a
reply that has long been waiting in the socket. Under load that would turn answers into failures, and failures into more
load: cache hits into misses, and fast backends into slow ones with an open breaker. So a deadline that fires gives the
loop one more turn at its sockets before it gives up, and another one for each turn that came late, since an exchange
may take several: a new connection takes five or six.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

_LATE_S = 0.002
_TURN_S = 0.001
_LATE_TURN_S = 0.005
_MOST_TURNS = 8


class Deadline:
    """Context manager: `with Deadline(0.02): await ...` raises TimeoutError if the body takes longer (seconds)."""

    __slots__ = ("_cancelling", "_due", "_expired", "_limit_s", "_loop", "_task", "_timer", "_turns")

    _task: asyncio.Task[object]
    _loop: asyncio.AbstractEventLoop
    _timer: asyncio.TimerHandle
    _cancelling: int
    _due: float

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._expired = False
        self._turns = 0

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline needs a running task")
        self._task = task
        self._cancelling = task.cancelling()
        self._loop = task.get_loop()
        self._due = self._loop.time() + self._limit_s
        self._timer = self._loop.call_later(self._limit_s, self._expire)

    def _expire(self) -> None:
        now = self._loop.time()
        late = now - self._due > _LATE_S
        if self._turns == 0 or (late and self._turns < _MOST_TURNS):
            self._turns += 1
            turn_s = _LATE_TURN_S if late else _TURN_S
            self._due = now + turn_s
            self._timer = self._loop.call_later(turn_s, self._expire)
            return
        self._expired = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        # As in asyncio.timeout: a cancellation that was requested elsewhere as well is passed on.
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from None
