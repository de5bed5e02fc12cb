"""What a backend's latency is without congestion: what an adaptive limit holds the latency of now against. Pure.

The baseline is the lowest median of any ten seconds, by prompt length, and rises by 2% in each ten seconds, so that a
backend that has become slower for good is not held against its past for ever (as TCP Vegas and BBR keep a minimum).
A few dozen milliseconds are no congestion whatever they are a multiple of: our own event loop may have taken them.
"""

from __future__ import annotations

_WINDOW_S = 10.0
_ENOUGH = 30
_MOST = 64
_RISE = 1.02
_SLACK_S = 0.025


class Baseline:
    """One kind of latency of one backend."""

    __slots__ = ("_by_length",)

    def __init__(self) -> None:
        self._by_length: dict[int, _Lowest] = {}

    def ratio(self, tokens_in: int, seconds: float, now: float) -> float | None:
        """How many times the uncongested latency this one is; None until there is a baseline."""
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
