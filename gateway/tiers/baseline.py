"""Estimate a backend's latency without congestion, with which the adaptive limit compares current latency. No I/O.

The baseline is the lowest median of any ten seconds, by prompt length. It rises by 2% every ten seconds, so that it
adapts to a backend that has become slower for good (TCP Vegas and BBR keep such a minimum). 25 ms are added before the
comparison, because a delay that short may come from our own event loop.
"""

from __future__ import annotations

_WINDOW_S = 10.0
_ENOUGH = 30
_MOST = 64
_RISE = 1.02
_SLACK_S = 0.025


class Baseline:
    """Hold the baseline of one kind of latency (TTFT or whole answer) of one backend."""

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
        if now - self._since >= _WINDOW_S and len(samples) >= _ENOUGH:
            median = sorted(samples)[len(samples) // 2]
            self.median = median if self.median is None else min(median, self.median * _RISE)
            samples.clear()
            self._since = now
        if len(samples) < _MOST:
            samples.append(seconds)
