"""The breaker in front of the store: after so many failures in a row nobody asks it, except one probe now and then.

    closed    --5 failures in a row, or a failed health check-->  open
    open      --1 s later, one probe leaves-->                    half_open
    half_open --the probe succeeds-->  closed        half_open --it fails-->  open

Pure: it keeps count and reads the clock it is given; who sends the probe is not its business.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

State = Literal["closed", "open", "half_open"]


class StoreBreaker:
    """See the module's docstring. `clock` is monotonic, in seconds."""

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
        """Whether requests may ask the store."""
        return self.state == "closed"

    def succeeded(self) -> None:
        """A request was answered. Of one that was sent before the breaker opened, this says nothing new."""
        self._failures = 0

    def failed(self) -> None:
        """A request was not answered."""
        self._failures += 1
        if self.state == "closed" and self._failures >= self._limit:
            self.trip()

    def trip(self) -> None:
        """Opens, whatever the count: a health check has failed."""
        self.state = "open"
        self._probe_at = self._clock() + self._probe_every_s

    def reset(self) -> None:
        """Closes: a probe or a health check has been answered."""
        self.state = "closed"
        self._failures = 0

    def wait_s(self) -> float:
        """Seconds until the next probe may leave."""
        return max(0.0, self._probe_at - self._clock())

    def begin_probe(self) -> bool:
        """Whether the caller is the one to probe now; it then answers with `reset` or `trip`."""
        if self.state != "open" or self.wait_s() > 0:
            return False
        self.state = "half_open"
        return True
