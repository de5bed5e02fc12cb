"""Lower the limit on concurrent calls of a backend that slows down under its load, and raise it again.

The limit is cut under overload and grows back. The signal is that of TCP
Vegas (Brakmo and Peterson 1995), as adapted to services by Netflix's concurrency-limits: the latency of a call relative
to that of an idle backend (`Baseline`). The limit changes as TCP's does, by additive increase and multiplicative
decrease (Chiu and Jain 1989), which converges to a fair share where several gateways share a backend.

A backend may also be slower for reasons other than our load. Fewer calls do not make it faster then, and further cuts
would turn slowness into an outage. So there is at most one cut per call duration, to let it take effect; if four cuts
in a row have not helped, they are undone, and the present latency counts as normal until it improves.

After a cut the limit grows in small steps. Once a second has passed without another cut it grows in large steps, so
that it is back at its maximum within five seconds of a backend's recovery, if there is demand.
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
_PATIENCE = 4
_HELPED = 0.8
_BETTER = 0.7
_MOST_SLOW = 50.0


class AdaptiveLimit:
    """The number of concurrent calls that one backend may carry now. An observation takes 0.4 us."""

    __slots__ = (
        "_before",
        "_busiest",
        "_cut_at",
        "_cuts",
        "_least",
        "_limit",
        "_mean_then",
        "_most",
        "_normal",
        "_observed",
        "_ratios",
        "_seconds",
        "_slow",
        "_window_began",
        "ttft",
        "whole",
    )

    def __init__(self, most: int, least: int = 1) -> None:
        self.ttft, self.whole = Baseline(), Baseline()
        self._most, self._least = most, min(least, most)
        self._limit = float(most)
        self._cut_at = -math.inf
        self._window_began = -math.inf
        self._cuts = 0
        self._before = self._limit
        self._mean_then = 1.0
        self._normal = 1.0
        self._observed = self._slow = self._busiest = 0
        self._ratios = self._seconds = 0.0

    @property
    def limit(self) -> int:
        """Current limit on concurrent calls, from `least` to `most`."""
        return int(self._limit)

    def observe(self, ratio: float, in_flight: int, now: float, seconds: float = 0.0) -> None:
        """Record a successful call of `seconds` that took `ratio` times as long as it would on an idle backend.

        `in_flight` is the number of calls that the backend carried, this one included.
        """
        if self._observed:
            elapsed = now - self._window_began
            shortest = max(_SHORTEST_WINDOW_S, self._seconds / self._observed)
            if elapsed >= shortest and (self._observed >= _ENOUGH or elapsed >= max(shortest, _LONGEST_WINDOW_S)):
                self._close(min(elapsed, _LONGEST_WINDOW_S), now)
        if not self._observed:
            self._window_began = now
        self._observed += 1
        self._seconds += seconds
        self._ratios += min(ratio, _MOST_SLOW)
        self._slow += ratio > _TOLERANCE * self._normal
        self._busiest = max(self._busiest, in_flight)

    def overloaded(self, now: float) -> None:
        """Cut the limit: the backend reported overload (429, 503) or a call timed out."""
        if now - self._cut_at >= _SHORTEST_WINDOW_S:
            self._cut(now)
            self._forget()

    def _close(self, elapsed: float, now: float) -> None:
        """Evaluate the window and start a new one. If more than half of its calls were slow, the median is slow."""
        mean = self._ratios / self._observed
        if self._slow * 2 > self._observed:
            self._slowed(mean, now)
        else:
            self._cuts = 0
            if mean < _BETTER * self._normal:
                self._normal = max(1.0, mean)
            if self._busiest >= _IN_USE * self.limit:
                self._grow(elapsed, now)
        self._forget()

    def _slowed(self, mean: float, now: float) -> None:
        if not self._cuts or mean < _HELPED * self._mean_then:
            self._cuts, self._mean_then, self._before = 0, mean, self._limit
        if self._cuts == _PATIENCE:
            self._cuts, self._normal, self._limit = 0, mean, self._before
        else:
            self._cuts += 1
            self._cut(now)

    def _cut(self, now: float) -> None:
        self._limit = max(self._least, self._limit * _CUT)
        self._cut_at = now

    def _grow(self, elapsed: float, now: float) -> None:
        step = max(1.0, _STEP * self._limit)
        if now - self._cut_at >= _FEELING_S:
            step = max(step, self._most * elapsed / _BACK_AT_MOST_S)
        self._limit = min(self._most, self._limit + step)

    def _forget(self) -> None:
        self._observed = self._slow = self._busiest = 0
        self._ratios = self._seconds = 0.0


_BASELINE_S = 10.0
_BASELINE_CALLS = 30
_BASELINE_MOST = 64
_RISE = 1.02
_SLACK_S = 0.025


class Baseline:
    """Hold one backend's latency without congestion, of one kind (TTFT or whole answer), by prompt length.

    The baseline is the lowest median of any ten seconds. It rises by 2% every ten seconds, so that it adapts to a
    backend that has become slower for good (TCP Vegas and BBR keep such a minimum). 25 ms are added before the
    comparison, because a delay that short may come from our own event loop.
    """

    __slots__ = ("_by_length",)

    def __init__(self) -> None:
        self._by_length: dict[int, _Lowest] = {}

    def ratio(self, tokens_in: int, seconds: float, now: float) -> float | None:
        """Record a latency of `seconds`; return its ratio to the baseline, None until there is one."""
        bucket = (tokens_in >> 8).bit_length()
        lowest = self._by_length.get(bucket)
        if lowest is None:
            lowest = self._by_length[bucket] = _Lowest(now)
        lowest.add(seconds, now)
        return None if lowest.median is None else seconds / (lowest.median + _SLACK_S)


class _Lowest:
    __slots__ = ("_samples", "_since", "median")

    def __init__(self, now: float) -> None:
        self._samples: list[float] = []
        self._since = now
        self.median: float | None = None

    def add(self, seconds: float, now: float) -> None:
        samples = self._samples
        if now - self._since >= _BASELINE_S and len(samples) >= _BASELINE_CALLS:
            median = sorted(samples)[len(samples) // 2]
            self.median = median if self.median is None else min(median, self.median * _RISE)
            samples.clear()
            self._since = now
        if len(samples) < _BASELINE_MOST:
            samples.append(seconds)


new_latency_limit = AdaptiveLimit
