"""How fast a backend answers: its latencies of the last minute as quantiles, by prompt length.

Each sample is one count in a histogram whose bins grow by a constant factor, so that every quantile read from it is
within 5% of the true one (DDSketch: Masson, Rim and Lee 2019). Histograms add up: those of six generations of ten
seconds make the window, those of sibling processes are heard and added, and what leaves the window fades from a longer
memory, which counts only while the window holds too little.

A call that was given up after a while without an answer is a lower bound, not a sample. Quantiles are Kaplan and
Meier's (1958), which spreads such a bound over the longer samples. It costs one division per bin, and leaving these
calls out (or counting them as answered when they were cancelled) would make a backend that loses its races look fast.

All of it is called on the path of a request. Measured with timeit on one core: an observation 0.7 us; a quantile that
was asked within the last 250 ms 0.3 us, one that was not 4 to 30 us; a slope, kept for two seconds, 0.2 ms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

_RELATIVE_ERROR = 0.05
_GROWTH = (1 + _RELATIVE_ERROR) / (1 - _RELATIVE_ERROR)
_PER_LOG = 1 / math.log(_GROWTH)
_SHORTEST_S, _LONGEST_S = 1e-6, 1e4
_OFFSET = -math.log(_SHORTEST_S) * _PER_LOG
_BINS = int(math.log(_LONGEST_S / _SHORTEST_S) * _PER_LOG) + 1
_BIN_VALUES = tuple(_SHORTEST_S * _GROWTH**i * 2 * _GROWTH / (1 + _GROWTH) for i in range(_BINS))

_GENERATIONS = 6
_MEMORY_S = 600.0
_FORGOTTEN = 0.01
_CACHED_S = 0.25
_SLOPE_CACHED_S = 2.0

_TTFT, _WHOLE, _PACE = 0, 16, 32
_BUCKETS = 16
_SERIES = 48
_MOST_HEARD = 100_000
"""More of one kind than any process sees between two reports."""

Series = Mapping[int, "Sketch"]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the next call of some prompt length may expect of a backend, the wait in its queue included; in seconds."""

    ttft_s: float
    """The median of the time to the first token."""
    ttft_p95_s: float
    whole_s: float
    """The median of the time to the last token."""
    queue_s: float
    known: bool
    """False: too few samples; then the other figures are zeros and decide nothing."""
    cold: bool = False
    """It has had no call for so long that its first token will take as long as its config says."""
    least_s: float = 0.0
    """What hardly any call goes under: the 5% quantile of whichever is known, first token or whole answer."""


def _bin_of(seconds: float) -> int:
    if _SHORTEST_S < seconds < _LONGEST_S:
        return int(math.log(seconds) * _PER_LOG + _OFFSET)
    return _BINS - 1 if seconds >= _LONGEST_S else 0


def _bucket_of(tokens_in: int) -> int:
    """0 for up to 64 tokens, 1 for up to 128, and so on in powers of two."""
    return min((tokens_in - 1 >> 6).bit_length(), _BUCKETS - 1) if tokens_in > 64 else 0


@dataclass(slots=True)
class Sketch:
    """A histogram of durations from 1 us to 10,000 s in bins that grow by 10.5%; durations beyond count as the ends."""

    seen: dict[int, float] = field(default_factory=dict)
    """How many, by bin."""
    censored: dict[int, float] = field(default_factory=dict)
    """How many were given up in this bin, their true duration being longer."""

    @property
    def total(self) -> float:
        """How many samples; lower bounds are not samples."""
        return sum(self.seen.values())

    def add(self, seconds: float, *, censored: bool = False) -> None:
        """Counts one duration, or one that was given up when it had lasted so long."""
        self.add_bin(_bin_of(seconds), 1, censored=censored)

    def add_bin(self, at: int, count: float, *, censored: bool = False) -> None:
        """Counts so many in a bin."""
        bins = self.censored if censored else self.seen
        bins[at] = bins.get(at, 0) + count

    def merge(self, other: Sketch) -> None:
        """Adds all that another holds."""
        for at, count in other.seen.items():
            self.seen[at] = self.seen.get(at, 0) + count
        for at, count in other.censored.items():
            self.censored[at] = self.censored.get(at, 0) + count

    def fade(self, factor: float) -> None:
        """Makes everything count for less, and drops what counts for next to nothing."""
        self.seen = {at: faded for at, n in self.seen.items() if (faded := n * factor) > _FORGOTTEN}
        self.censored = {at: faded for at, n in self.censored.items() if (faded := n * factor) > _FORGOTTEN}

    def quantile(self, q: float) -> float | None:
        """The q-quantile in seconds; None of nothing. Where lower bounds hide it, the longest duration there is."""
        at_risk = self.total + sum(self.censored.values())
        beyond, allowed = 1.0, 1 - q + 1e-12
        last: int | None = None
        for at in sorted(self.seen.keys() | self.censored.keys() if self.censored else self.seen):
            last = at
            count = self.seen.get(at, 0)
            if count:
                beyond *= 1 - count / at_risk
                if beyond <= allowed:
                    break
            at_risk -= count + self.censored.get(at, 0)
        return None if last is None else _BIN_VALUES[last]


class LatencyModel:
    """What one backend's latencies are now. Time is passed in, in seconds of a clock that never goes back."""

    def __init__(self, window_s: float = 60.0, min_samples: int = 20) -> None:
        self._generation_s = window_s / _GENERATIONS
        self._min_samples = min_samples
        self._plenty = 10 * min_samples
        self._generations: list[dict[int, Sketch]] = [{}]
        self._memory: dict[int, Sketch] = {}
        self._turns_at = -math.inf
        self._fresh: dict[int, int] = {}
        self._unreported: dict[int, int] = {}
        self._cache: dict[tuple[int, float], tuple[float, float | None]] = {}

    def observe_ttft(self, tokens_in: int, seconds: float, now: float, *, censored: bool = False) -> None:
        """A first token came after so long; or, censored, had not come when the call was given up."""
        self._observe(_TTFT + _bucket_of(tokens_in), seconds, now, censored=censored)

    def observe_whole(self, tokens_in: int, seconds: float, now: float) -> None:
        """A whole answer took so long."""
        self._observe(_WHOLE + _bucket_of(tokens_in), seconds, now)

    def observe_pace(self, seconds_per_token: float, now: float) -> None:
        """A stream's tokens came at this pace after the first."""
        self._observe(_PACE, seconds_per_token, now)

    def ttft(self, q: float, tokens_in: int, now: float) -> float | None:
        """A quantile of the time to the first token, in seconds; None: too few samples of any prompt length."""
        return self._quantile(_TTFT + _bucket_of(tokens_in), q, now)

    def whole(self, q: float, tokens_in: int, now: float) -> float | None:
        """A quantile of the time that whole answers took, in seconds; None: too few samples."""
        return self._quantile(_WHOLE + _bucket_of(tokens_in), q, now)

    def pace(self, q: float, now: float) -> float | None:
        """A quantile of the seconds per token after the first; None: too few samples."""
        return self._quantile(_PACE, q, now)

    def slope(self, now: float) -> float | None:
        """Seconds of TTFT per prompt token: what it costs to read a prompt that no cache holds; None if not known.

        Least squares over the medians of the prompt-length buckets, by their samples. Prompts that were read from a
        cache are among them, so this is the least that it costs.
        """
        key = (_SERIES, 0.5)
        cached = self._cache.get(key)
        if cached is not None and now < cached[0]:
            return cached[1]
        self._settle(now)
        value = self._slope()
        self._cache[key] = (now + _SLOPE_CACHED_S, value)
        return value

    def report(self, now: float) -> dict[str, list[int]]:
        """What this process saw since the last report: `n`, a flat list of (key, count) pairs; empty if nothing."""
        self._settle(now)
        unreported, self._unreported = self._unreported, {}
        return {"n": [number for pair in unreported.items() for number in pair]} if unreported else {}

    def hear(self, report: Mapping[str, object], now: float) -> None:
        """Adds what a sibling reported. What does not look like a report is left out."""
        numbers = report.get("n")
        if not isinstance(numbers, list):
            return
        self._settle(now)
        for key, count in zip(numbers[::2], numbers[1::2], strict=False):
            if type(key) is int and type(count) is int and 0 <= key < _SERIES << 9 and 0 < count <= _MOST_HEARD:
                self._count(key, count)

    def _observe(self, series: int, seconds: float, now: float, *, censored: bool = False) -> None:
        """One dict update: sorting it into the histograms waits until somebody asks."""
        if now >= self._turns_at:
            self._settle(now)
        key = series << 9 | _bin_of(seconds) << 1 | censored
        fresh = self._fresh
        fresh[key] = fresh.get(key, 0) + 1

    def _quantile(self, series: int, q: float, now: float) -> float | None:
        cached = self._cache.get((series, q))
        if cached is not None and now < cached[0]:
            return cached[1]
        self._settle(now)
        sketch = self._gathered(series)
        value = None if sketch is None else sketch.quantile(q)
        self._cache[series, q] = (min(now + _CACHED_S, self._turns_at), value)
        return value

    def _settle(self, now: float) -> None:
        """Brings the histograms up to date: sorts fresh samples in, and turns the window."""
        fresh, self._fresh = self._fresh, {}
        for key, count in fresh.items():
            self._count(key, count)
            self._unreported[key] = self._unreported.get(key, 0) + count
        if now >= self._turns_at:
            self._turn(now)

    def _count(self, key: int, count: int) -> None:
        series, at = key >> 9, key >> 1 & 255
        newest = self._generations[0]
        sketch = newest.get(series)
        if sketch is None:
            sketch = newest[series] = Sketch()
        sketch.add_bin(min(at, _BINS - 1), count, censored=bool(key & 1))

    def _turn(self, now: float) -> None:
        """Begins a new generation, one for each that has passed; the oldest go into the memory, which fades."""
        passed = 1 if math.isinf(self._turns_at) else 1 + int((now - self._turns_at) / self._generation_s)
        for _ in range(min(passed, _GENERATIONS)):
            self._generations.insert(0, {})
            for series, sketch in self._generations.pop().items() if len(self._generations) > _GENERATIONS else ():
                self._memory.setdefault(series, Sketch()).merge(sketch)
        for sketch in self._memory.values():
            sketch.fade(math.exp(-passed * self._generation_s / _MEMORY_S))
        self._turns_at = now + self._generation_s
        self._cache.clear()

    def _gathered(self, series: int) -> Sketch | None:
        """The samples to judge by: the newest that are plenty, else the neighbours' too, else what was known before."""
        gathered, total = Sketch(), 0.0
        for sketch in self._of(series, self._generations):
            if total >= self._plenty:
                break
            gathered.merge(sketch)
            total += sketch.total
        if total < self._min_samples:
            for sketch in self._second_best(series):
                gathered.merge(sketch)
                total += sketch.total
                if total >= self._min_samples:
                    break
        return gathered if total >= self._min_samples else None

    def _second_best(self, series: int) -> Iterator[Sketch]:
        for other in _NEIGHBOURS[series]:
            yield from self._of(other, self._generations)
        for each in (series, *_NEIGHBOURS[series]):
            yield from self._of(each, (self._memory,))

    @staticmethod
    def _of(series: int, sources: Iterable[Series]) -> Iterator[Sketch]:
        return (sketch for source in sources if (sketch := source.get(series)) is not None)

    def _slope(self) -> float | None:
        points: list[tuple[float, float, float]] = []
        for bucket in range(_BUCKETS):
            sketch = Sketch()
            for each in self._of(_TTFT + bucket, [*self._generations, self._memory]):
                sketch.merge(each)
            median = sketch.quantile(0.5)
            if median is not None and (total := sketch.total) >= self._min_samples / 4:
                points.append((_tokens_of(bucket), median, total))
        if len(points) < 2:
            return None
        weight = sum(n for _, _, n in points)
        x_mean = sum(x * n for x, _, n in points) / weight
        y_mean = sum(y * n for _, y, n in points) / weight
        spread = sum(n * (x - x_mean) ** 2 for x, _, n in points)
        return max(0.0, sum(n * (x - x_mean) * (y - y_mean) for x, y, n in points) / spread)


def _tokens_of(bucket: int) -> float:
    """The middle of a bucket, in tokens."""
    return 48.0 * 2**bucket if bucket else 32.0


def _neighbours(series: int) -> tuple[int, ...]:
    """The same of other prompt lengths, nearest first."""
    if series == _PACE:
        return ()
    first = series - series % _BUCKETS
    others = (other for other in range(first, first + _BUCKETS) if other != series)
    return tuple(sorted(others, key=lambda other: abs(other - series)))


_NEIGHBOURS = tuple(_neighbours(series) for series in range(_PACE + 1))
