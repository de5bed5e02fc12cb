"""How many calls a backend carries before it slows down: a limit that is cut on trouble and grows back.

The signal is TCP Vegas's (Brakmo and Peterson 1995), as Netflix's concurrency-limits took it over for services: how
much longer a call takes than it would at an idle backend. The answer to it is TCP's own, additive increase and
multiplicative decrease (Chiu and Jain 1989), which converges to a fair share where several gateways meet at a backend.

After a cut the limit feels its way up in small steps. Once a second has gone by without another one it takes large
steps, so that it is back at the most within five seconds of a backend's recovery, if there is demand.
"""

from __future__ import annotations

import math

_TOLERANCE = 2.0
_CUT = 0.85
_STEP = 0.05
_IN_USE = 0.8
_ENOUGH = 10
_SHORTEST_WINDOW_S, _LONGEST_WINDOW_S = 0.25, 1.0
_FEELING_S = 1.0
_BACK_AT_MOST_S = 2.5


class AdaptiveLimit:
    """The calls at a time that one backend may carry now. An observation costs 0.4 us."""

    __slots__ = ("_busiest", "_cut_at", "_least", "_limit", "_most", "_observed", "_slow", "_window_began")

    def __init__(self, most: int, least: int = 1) -> None:
        self._most, self._least = most, min(least, most)
        self._limit = float(most)
        self._cut_at = -math.inf
        self._window_began = -math.inf
        self._observed = self._slow = self._busiest = 0

    @property
    def limit(self) -> int:
        """How many calls it may carry now, between the least and the most."""
        return int(self._limit)

    def observe(self, ratio: float, in_flight: int, now: float) -> None:
        """A call went well, and took `ratio` times what it would at an idle backend.

        `in_flight` is how many calls the backend carried, this one included.
        """
        if self._observed:
            elapsed = now - self._window_began
            if elapsed >= _SHORTEST_WINDOW_S and (self._observed >= _ENOUGH or elapsed >= _LONGEST_WINDOW_S):
                self._close(min(elapsed, _LONGEST_WINDOW_S), now)
        if not self._observed:
            self._window_began = now
        self._observed += 1
        self._slow += ratio > _TOLERANCE
        self._busiest = max(self._busiest, in_flight)

    def overloaded(self, now: float) -> None:
        """The backend said that it has too much to do (429, 503), or let a call time out."""
        if now - self._cut_at >= _SHORTEST_WINDOW_S:
            self._limit = max(self._least, self._limit * _CUT)
            self._cut_at = now
            self._observed = self._slow = self._busiest = 0

    def _close(self, elapsed: float, now: float) -> None:
        """More than half of the calls being slow is the same as a slow median."""
        if self._slow * 2 > self._observed:
            self.overloaded(now)
        elif self._busiest >= _IN_USE * self.limit:
            step = max(1.0, _STEP * self._limit)
            if now - self._cut_at >= _FEELING_S:
                step = max(step, self._most * elapsed / _BACK_AT_MOST_S)
            self._limit = min(self._most, self._limit + step)
        self._observed = self._slow = self._busiest = 0
