"""Stop using the store after several failures in a row, except for one probe now and then (a circuit breaker).

    closed    --5 failures in a row, or a failed health check-->  open
    open      --1 s later, one probe is sent-->                   half_open
    half_open --the probe succeeds-->  closed        half_open --it fails-->  open

No I/O: it counts and reads the given clock; the caller sends the probe.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

State = Literal["closed", "open", "half_open"]


class StoreBreaker:
    """The breaker of one server. `clock` is monotonic, in seconds."""

    __slots__ = ("_clock", "_failures", "_limit", "_probe_at", "_probe_every_s", "state")

    def __init__(
        self, *, failures: int = 5, probe_every_s: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.state: State = "closed"
        self._limit = failures
        self._probe_every_s = probe_every_s
        self._clock = clock
        self._failures = 0
        self._probe_at = 0.0

    @property
    def closed(self) -> bool:
        """Whether requests may use the store."""
        return self.state == "closed"

    def succeeded(self) -> None:
        """Record an answered request. An open breaker stays open: the request may have been sent before it opened."""
        self._failures = 0

    def failed(self) -> None:
        """Record a failed request, and open at the limit."""
        self._failures += 1
        if self.state == "closed" and self._failures >= self._limit:
            self.trip()

    def trip(self) -> None:
        """Open at once: a health check has failed."""
        self.state = "open"
        self._probe_at = self._clock() + self._probe_every_s

    def reset(self) -> None:
        """Close: a probe or a health check has succeeded."""
        self.state = "closed"
        self._failures = 0

    def wait_s(self) -> float:
        """Return the seconds until the next probe may be sent."""
        return max(0.0, self._probe_at - self._clock())

    def begin_probe(self) -> bool:
        """Return whether the caller must probe now; it then reports the result with `reset` or `trip`."""
        if self.state != "open" or self.wait_s() > 0:
            return False
        self.state = "half_open"
        return True
