"""Estimate how fast a backend answers: quantiles of its latencies over the last minute, and what the next call takes.

Each sample is one count in a histogram whose bins grow by a constant factor, so that every quantile read from it is
within 5% of the true one (DDSketch: Masson, Rim and Lee 2019). Histograms can be added: six generations of ten seconds
each form the window, and samples reported by sibling processes are added to them. What leaves the window is added to a
memory that decays over ten minutes and is used only while the window holds too few samples.

A call that was cancelled without an answer is a lower bound (a censored sample). Quantiles follow Kaplan and Meier
(1958), who distribute such a bound over the longer samples, at one division per bin. Leaving these calls out (or
counting them as answered at the time of cancellation) would make a backend that loses its races look fast.

All of it runs on a request's path. Measured with timeit on one core: an observation 0.7 us; a quantile that was read
within the last 250 ms 0.3 us, one that was not 4 to 30 us; a slope, cached for two seconds, 0.2 ms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Final, NamedTuple

from policies.value_type import from_fields, value_type

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

_TTFT, _WHOLE = 0, 16
_BUCKETS = 16
_SERIES = 2 * _BUCKETS
_PACE_STREAMS, _LEAST_STREAMS = 16, 8
"""Streams over which the pace is averaged, the newest with the same weight each, and the fewest that give one."""
_MOST_HEARD = 100_000
"""Limit on a reported count: more samples of one kind than any process collects between two reports."""

_PRIOR_SAMPLES, _PRIOR_POINTS = 8.0, 40
"""What a prior weighs beside measured samples, and in how many parts."""
_NORMAL = NormalDist()

Series = Mapping[int, "Sketch"]


@value_type
class Forecast:
    """The expected latency in seconds of a backend's next call for a given prompt length, its queue wait included."""

    ttft_s: float
    """The median of the time to the first token."""
    ttft_p95_s: float
    whole_s: float
    """The median of the time to the last token."""
    queue_s: float
    known: bool
    """False: there are too few samples, and the other figures are zeros that must not be used."""
    cold: bool = False
    """The backend has been idle for so long that its first token will take its configured cold-start time."""
    least_s: float = 0.0
    """A lower bound: the 5% quantile of the time to the first token or, if that is unknown, of the whole answer."""
    tpot_s: float = 0.0
    """Mean time per output token after the first, of late; 0 where too few streams were measured."""
    prior_ttft: bool = False
    """Whether the times to the first token are those of a `Prior`, with the few samples there are, if any."""
    prior_whole: bool = False
    """The same of the time to the last token."""


def _bin_of(seconds: float) -> int:
    if _SHORTEST_S < seconds < _LONGEST_S:
        return int(math.log(seconds) * _PER_LOG + _OFFSET)
    return _BINS - 1 if seconds >= _LONGEST_S else 0


def _bucket_of(tokens_in: int) -> int:
    """Return the prompt-length bucket: 0 for up to 64 tokens, 1 for up to 128, and so on in powers of two."""
    return min((tokens_in - 1 >> 6).bit_length(), _BUCKETS - 1) if tokens_in > 64 else 0


@dataclass(slots=True)
class Sketch:
    """A histogram of durations from 1 us to 10,000 s in bins that grow by 10.5%; others go to the end bins."""

    seen: dict[int, float] = field(default_factory=dict)
    """Number of samples by bin."""
    censored: dict[int, float] = field(default_factory=dict)
    """Number of censored samples by bin: calls that were given up after this time, whose true duration is longer."""

    @property
    def total(self) -> float:
        """Number of samples, without the censored ones."""
        return sum(self.seen.values())

    def add(self, seconds: float, *, censored: bool = False) -> None:
        """Count one duration in seconds; `censored` if the call was given up after that time."""
        self.add_bin(_bin_of(seconds), 1, censored=censored)

    def add_bin(self, at: int, count: float, *, censored: bool = False) -> None:
        """Add `count` to a bin."""
        bins = self.censored if censored else self.seen
        bins[at] = bins.get(at, 0) + count

    def merge(self, other: Sketch) -> None:
        """Add all counts of another sketch."""
        for at, count in other.seen.items():
            self.seen[at] = self.seen.get(at, 0) + count
        for at, count in other.censored.items():
            self.censored[at] = self.censored.get(at, 0) + count

    def fade(self, factor: float) -> None:
        """Multiply every count by `factor` and drop those that become negligible."""
        self.seen = {at: faded for at, n in self.seen.items() if (faded := n * factor) > _FORGOTTEN}
        self.censored = {at: faded for at, n in self.censored.items() if (faded := n * factor) > _FORGOTTEN}

    def quantile(self, q: float) -> float | None:
        """Return the q-quantile in seconds; None without samples.

        If censored samples leave the quantile undetermined, it is the longest duration seen.
        """
        at_risk = sum(self.seen.values()) + sum(self.censored.values())
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


@value_type
class Prior:
    """The latency that is expected of a model before any call was measured: log-normal, as wide as `spread`."""

    ttft_s: float
    """The median of the time to the first token of a short prompt."""
    whole_s: float
    """The median of what an answer takes from then on."""
    per_token_s: float
    """Time to the first token for each token of the prompt."""
    spread: float
    """The 95% quantile divided by the median."""

    def sketch(self, tokens_in: int, *, whole: bool) -> Sketch:
        """Return `_PRIOR_SAMPLES` samples of it, for a prompt of this many tokens."""
        median = self.ttft_s + tokens_in * self.per_token_s + (self.whole_s if whole else 0.0)
        sigma, made = math.log(self.spread) / _NORMAL.inv_cdf(0.95), Sketch()
        for i in range(_PRIOR_POINTS):
            seconds = median * math.exp(sigma * _NORMAL.inv_cdf((i + 0.5) / _PRIOR_POINTS))
            made.add_bin(_bin_of(seconds), _PRIOR_SAMPLES / _PRIOR_POINTS)
        return made


class _ReadSeries(NamedTuple):
    """The samples of one series that quantiles are read from, and those that were read, until a time."""

    until: float
    samples: Sketch | None
    """None: there are too few."""
    quantiles: dict[float, float | None]


_made_read: Final = from_fields(_ReadSeries)


class LatencyModel:
    """The latency statistics of one backend. Times are passed in as seconds of a monotonic clock."""

    def __init__(self, window_s: float = 60.0, min_samples: int = 20) -> None:
        self._generation_s = window_s / _GENERATIONS
        self._min_samples = min_samples
        self._plenty = 10 * min_samples
        self._generations: list[dict[int, Sketch]] = [{}]
        self._memory: dict[int, Sketch] = {}
        self._turns_at = -math.inf
        self._fresh: dict[int, int] = {}
        self._unreported: dict[int, int] = {}
        self._read: dict[int, _ReadSeries] = {}
        self._slope_read: tuple[float, float | None] | None = None
        self._tpot_s = 0.0
        self._streams = 0

    def observe_ttft(self, tokens_in: int, seconds: float, now: float, *, censored: bool = False) -> None:
        """Add a time to first token in seconds; `censored` if it had not arrived when the call was given up."""
        self._observe(_TTFT + _bucket_of(tokens_in), seconds, now, censored=censored)

    def observe_whole(self, tokens_in: int, seconds: float, now: float) -> None:
        """Add the duration of a whole answer in seconds."""
        self._observe(_WHOLE + _bucket_of(tokens_in), seconds, now)

    def observe_tpot(self, seconds: float) -> None:
        """Add the time per output token after the first of a stream in seconds."""
        self._streams += 1
        self._tpot_s += (seconds - self._tpot_s) / min(self._streams, _PACE_STREAMS)

    @property
    def tpot_s(self) -> float:
        """Mean time per output token of the last streams of this process; 0 where there were too few."""
        return self._tpot_s if self._streams >= _LEAST_STREAMS else 0.0

    def ttft(self, q: float, tokens_in: int, now: float) -> float | None:
        """Return a quantile of the time to the first token in seconds; None: too few samples of any prompt length."""
        return self.quantiles((q,), tokens_in, now, whole=False)[0]

    def whole(self, q: float, tokens_in: int, now: float) -> float | None:
        """Return a quantile of the duration of whole answers in seconds; None: too few samples."""
        return self.quantiles((q,), tokens_in, now, whole=True)[0]

    def quantiles(self, wanted: Sequence[float], tokens_in: int, now: float, *, whole: bool) -> list[float | None]:
        """Return quantiles of the time to the first token (or, with `whole`, of whole answers) in seconds.

        All are None if there are too few samples.
        """
        series = (_WHOLE if whole else _TTFT) + _bucket_of(tokens_in)
        read = self._read.get(series)
        if read is None or now >= read.until:
            if self._fresh or now >= self._turns_at:
                self._settle(now)
            until = min(now + _CACHED_S, self._turns_at)
            read = self._read[series] = _made_read((until, self._gathered(series), {}))
        samples, known = read.samples, read.quantiles
        if samples is not None:
            for q in wanted:
                if q not in known:
                    known[q] = samples.quantile(q)
        return list(map(known.get, wanted))

    def with_prior(self, prior: Prior, q: float, tokens_in: int, now: float, *, whole: bool) -> float:
        """Return the quantile `q`, in seconds, of the prior's expectation and the model's samples merged."""
        self._settle(now)
        gathered, series = prior.sketch(tokens_in, whole=whole), (_WHOLE if whole else _TTFT) + _bucket_of(tokens_in)
        for sketch in self._of(series, self._generations) + self._second_best(series):
            gathered.merge(sketch)
        return gathered.quantile(q) or 0.0

    def slope(self, now: float) -> float | None:
        """Return the seconds of TTFT per uncached prompt token; None if unknown.

        Weighted least squares over the medians of the prompt-length buckets, each weighted by its samples. Samples with
        prompt-cache hits are included, so the true cost is at least this high.
        """
        cached = self._slope_read
        if cached is not None and now < cached[0]:
            return cached[1]
        self._settle(now)
        value = self._slope()
        self._slope_read = (now + _SLOPE_CACHED_S, value)
        return value

    @property
    def has_news(self) -> bool:
        """Whether `report` would return samples."""
        return bool(self._fresh or self._unreported)

    def report(self, now: float) -> dict[str, list[int]]:
        """Return the samples since the last report: `n`, a flat list of (key, count) pairs; empty if there are none."""
        self._settle(now)
        unreported, self._unreported = self._unreported, {}
        return {"n": [number for pair in unreported.items() for number in pair]} if unreported else {}

    def hear(self, report: Mapping[str, object], now: float) -> None:
        """Add the samples in a sibling process's `report`; malformed parts are ignored."""
        numbers = report.get("n")
        if not isinstance(numbers, list):
            return
        self._settle(now)
        for key, count in zip(numbers[::2], numbers[1::2], strict=False):
            if type(key) is int and type(count) is int and 0 <= key < _SERIES << 9 and 0 < count <= _MOST_HEARD:
                self._count(key, count)

    def _observe(self, series: int, seconds: float, now: float, *, censored: bool = False) -> None:
        """Count a sample with one dict update; it is sorted into the histograms when a quantile is read."""
        if now >= self._turns_at:
            self._settle(now)
        key = series << 9 | _bin_of(seconds) << 1 | censored
        fresh = self._fresh
        fresh[key] = fresh.get(key, 0) + 1

    def _settle(self, now: float) -> None:
        """Sort new samples into the histograms; start a new generation if it is due."""
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
        bins, at = sketch.censored if key & 1 else sketch.seen, min(at, _BINS - 1)
        bins[at] = bins.get(at, 0) + count

    def _turn(self, now: float) -> None:
        """Start a new generation for each one that has passed; the oldest are added to the decaying memory."""
        passed = 1 if math.isinf(self._turns_at) else 1 + int((now - self._turns_at) / self._generation_s)
        for _ in range(min(passed, _GENERATIONS)):
            self._generations.insert(0, {})
            for series, sketch in self._generations.pop().items() if len(self._generations) > _GENERATIONS else ():
                self._memory.setdefault(series, Sketch()).merge(sketch)
        for sketch in self._memory.values():
            sketch.fade(math.exp(-passed * self._generation_s / _MEMORY_S))
        self._turns_at = now + self._generation_s
        self._read.clear()
        self._slope_read = None

    def _gathered(self, series: int) -> Sketch | None:
        """Return the samples to read a quantile from; None if there are too few.

        They are the newest ones up to a sufficient number, then those of other prompt lengths, then the memory.
        """
        gathered, total = Sketch(), 0.0
        for each in self._generations:
            if total >= self._plenty:
                break
            if (sketch := each.get(series)) is not None:
                gathered.merge(sketch)
                total += sum(sketch.seen.values())
        if total < self._min_samples:
            for sketch in self._second_best(series):
                gathered.merge(sketch)
                total += sum(sketch.seen.values())
                if total >= self._min_samples:
                    break
        return gathered if total >= self._min_samples else None

    def _second_best(self, series: int) -> list[Sketch]:
        neighbours, memory = _NEIGHBOURS[series], self._memory
        recent = [each[other] for other in neighbours for each in self._generations if other in each]
        return recent + [memory[name] for name in (series, *neighbours) if name in memory]

    @staticmethod
    def _of(series: int, sources: Iterable[Series]) -> list[Sketch]:
        return [sketch for source in sources if (sketch := source.get(series)) is not None]

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
    """Return the middle of a bucket in tokens."""
    return 48.0 * 2**bucket if bucket else 32.0


def _neighbours(series: int) -> tuple[int, ...]:
    """Return the same series for the other prompt lengths, nearest first."""
    first = series - series % _BUCKETS
    others = (other for other in range(first, first + _BUCKETS) if other != series)
    return tuple(sorted(others, key=lambda other: abs(other - series)))


_NEIGHBOURS = tuple(_neighbours(series) for series in range(_SERIES))


_FRESH_S = 0.25


class Forecasts:
    """Forecast one backend's latency by prompt length; each forecast is cached for 0.25 s."""

    __slots__ = ("_answered_at", "_cache", "_cold_after_s", "_cold_ttft_s", "_latency", "prior")

    def __init__(
        self,
        latency: LatencyModel,
        prior: Prior | None = None,
        cold_after_s: float | None = None,
        cold_ttft_s: float = 0.0,
    ) -> None:
        """After `cold_after_s` without a call (None: never) the next first token takes `cold_ttft_s`."""
        self._latency = latency
        self._cold_after_s = cold_after_s
        self._cold_ttft_s = cold_ttft_s
        self.prior = prior
        """What is expected of the model where too few calls were measured; None: nothing is."""
        self._answered_at: float | None = None
        self._cache: dict[tuple[int, bool], tuple[float, Forecast]] = {}

    def answered(self, at: float) -> None:
        """Record that the backend answered at time `at`, for this worker or another."""
        if self._answered_at is None or at > self._answered_at:
            self._answered_at = at

    def idle_s(self, now: float) -> float | None:
        """Return the seconds since the backend last answered any worker; None if it never did."""
        return None if self._answered_at is None else now - self._answered_at

    def unqueued(self, tokens_in: int, now: float) -> Forecast:
        """Return the forecast for a prompt of `tokens_in` tokens without a wait in the queue."""
        cold = False
        if self._cold_after_s is not None:
            cold = self._answered_at is None or now - self._answered_at > self._cold_after_s
        key = ((tokens_in - 1 >> 6).bit_length() if tokens_in > 64 else 0, cold)
        cached = self._cache.get(key)
        if cached is None or now >= cached[0]:
            cached = self._cache[key] = (now + _FRESH_S, self._forecast(tokens_in, now, cold=cold))
        return cached[1]

    def _forecast(self, tokens_in: int, now: float, *, cold: bool) -> Forecast:
        latency = self._latency
        ttft, least, p95 = latency.quantiles((0.5, 0.05, 0.95), tokens_in, now, whole=False)
        if ttft is None:
            whole, least = latency.quantiles((0.5, 0.05), tokens_in, now, whole=True)
        else:
            whole = latency.whole(0.5, tokens_in, now)
        if cold:
            start = self._cold_ttft_s
            return Forecast(start, start, start + (whole or 0.0), 0.0, known=True, cold=True, least_s=start)
        if self.prior is not None and (ttft is None or whole is None):
            return self._with_prior(self.prior, tokens_in, now, ttft, whole)
        if ttft is None and whole is None:
            return Forecast(0.0, 0.0, 0.0, 0.0, known=False)
        pace = latency.tpot_s
        return Forecast(ttft or 0.0, p95 or 0.0, whole or 0.0, 0.0, known=True, least_s=least or 0.0, tpot_s=pace)

    def _with_prior(
        self, prior: Prior, tokens_in: int, now: float, ttft: float | None, whole: float | None
    ) -> Forecast:
        """Return the forecast where streams, whole answers or both were measured too rarely."""
        latency = self._latency

        def quantile_s(q: float, *, of_whole: bool = False) -> float:
            measured = (latency.whole if of_whole else latency.ttft)(q, tokens_in, now)
            return latency.with_prior(prior, q, tokens_in, now, whole=of_whole) if measured is None else measured

        return Forecast(
            quantile_s(0.5),
            quantile_s(0.95),
            quantile_s(0.5, of_whole=True),
            0.0,
            known=True,
            least_s=quantile_s(0.05, of_whole=ttft is None and whole is not None),
            tpot_s=latency.tpot_s,
            prior_ttft=ttft is None,
            prior_whole=whole is None,
        )


def queued(forecast: Forecast, queue_s: float) -> Forecast:
    """Return the forecast with a wait of `queue_s` seconds before it; then it counts as known even if it was not."""
    if queue_s <= 0:
        return forecast
    return replace(
        forecast,
        ttft_s=forecast.ttft_s + queue_s,
        ttft_p95_s=forecast.ttft_p95_s + queue_s,
        whole_s=forecast.whole_s + queue_s,
        queue_s=queue_s,
        known=True,
        least_s=forecast.least_s + queue_s,
    )
