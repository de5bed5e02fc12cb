"""Decide how many calls one worker may have in flight at a backend, and how many of them may be batch calls. No I/O.

`max_in_flight` holds for all workers together. Each may use an equal share of it, and more while the others' last
reports leave some unused. Reports are up to a second old, so several workers that raise their use at once can exceed
the limit for that long; the adaptive limit and the backend's own 429 bound that. The adaptive limit compares current
latency with that of the backend without congestion (`Baseline`).

A batch call holds its slot until its answer is complete, so slots must be kept free before interactive requests arrive
(`Reserve`): as many as these recently needed and do not hold now. "Recently" is three windows of three mean call
lengths each (1 to 5 s a window). Without interactive traffic in that time, batch may use every slot; it may always hold
one slot in twenty, rounded up.
"""

from __future__ import annotations

import math

from routing.load.limits import AdaptiveLimit

_ALIVE_S = 3.0
_BASELINE_S = 10.0
_BASELINE_CALLS = 30
_BASELINE_MOST = 64
_RISE = 1.02
_SLACK_S = 0.025
_SHORTEST_RESERVE_S, _LONGEST_RESERVE_S = 1.0, 5.0
_CALLS = 3
_BATCH_SHARE = 0.05
_REMEMBERED_S = 2.0


class CallLimit:
    """Limit the calls that this worker may have in flight at one backend, to `most` for all workers together.

    The methods that may change the limit return the one that holds from now on.
    """

    __slots__ = ("_adaptive", "_calls", "_in_flight_of", "_most", "_share", "_ttft", "_whole")

    def __init__(self, most: int, *, adaptive: bool) -> None:
        """`adaptive`: lower the limit while latency rises under load."""
        self._most = self._share = self._calls = most
        self._adaptive = AdaptiveLimit(most) if adaptive else None
        self._ttft, self._whole = Baseline(), Baseline()
        self._in_flight_of: dict[str, tuple[float, int]] = {}
        """When a sibling worker last reported, and its calls in flight, by worker."""

    def observe(self, tokens_in: int, seconds: float, in_flight: int, now: float, *, whole: bool) -> int:
        """Take in a call's time to its first token, or to the whole answer, while `in_flight` calls were under way."""
        if self._adaptive is not None:
            ratio = (self._whole if whole else self._ttft).ratio(tokens_in, seconds, now)
            if ratio is not None:
                self._adaptive.observe(ratio, in_flight, now, seconds)
                return self._changed()
        return self._calls

    def overloaded(self, now: float) -> int:
        """Lower an adaptive limit: the backend has asked for a pause or did not answer in time."""
        if self._adaptive is not None:
            self._adaptive.overloaded(now)
        return self._changed()

    def heard(self, worker: str, in_flight: int, now: float) -> None:
        """Take in a sibling worker's number of calls in flight."""
        self._in_flight_of[worker] = (now, in_flight)

    def share(self, now: float) -> int:
        """Compute this worker's share anew, without the workers that have not reported for three seconds."""
        self._in_flight_of = {worker: (at, n) for worker, (at, n) in self._in_flight_of.items() if now - at <= _ALIVE_S}
        equal = -(-self._most // (len(self._in_flight_of) + 1))
        self._share = max(equal, self._most - sum(n for _, n in self._in_flight_of.values()))
        return self._changed()

    def _changed(self) -> int:
        self._calls = self._share if self._adaptive is None else max(1, min(self._adaptive.limit, self._share))
        return self._calls


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


class Reserve:
    """Track the most interactive calls in flight at once during the last three windows."""

    __slots__ = ("_before", "_long_before", "_now", "_turns_at", "_window_s")

    def __init__(self) -> None:
        self._now = self._before = self._long_before = 0
        self._turns_at = 0.0
        self._window_s = _SHORTEST_RESERVE_S

    def calls_take(self, seconds: float) -> None:
        """Set the mean time in seconds for which a call holds its slot."""
        self._window_s = min(_LONGEST_RESERVE_S, max(_SHORTEST_RESERVE_S, _CALLS * seconds))

    def entered(self, interactive: int, now: float) -> None:
        """Record that `interactive` calls are in flight, after one more went out."""
        if now >= self._turns_at:
            self._turn(now)
        self._now = max(self._now, interactive)

    def admits_batch(self, capacity: int, interactive: int, batch: int, now: float) -> bool:
        """Return whether one more batch call may go out, given the calls in flight of each class."""
        free = capacity - interactive - batch
        return free > 0 and (batch < floor_of(capacity) or free > self.kept(interactive, now))

    def kept(self, interactive: int, now: float) -> int:
        """Return how many free slots are reserved now, with `interactive` calls in flight."""
        if now >= self._turns_at:
            self._turn(now)
        return max(0, max(self._now, self._before, self._long_before) - interactive)

    def _turn(self, now: float) -> None:
        passed = 1 + int((now - self._turns_at) / self._window_s)
        recent = (self._now, self._before) if passed == 1 else (0, self._now) if passed == 2 else (0, 0)
        self._now, (self._before, self._long_before) = 0, recent
        self._turns_at += passed * self._window_s


class Grants:
    """Measure the rate, in slots a second, at which queued batch requests get slots; it predicts a new one's wait.

    The rate is measured only while batch requests wait, and starts from the one expected by the mean length of a call.
    It decays over the time of three calls (at least 2 s), because slots become free in bursts.
    """

    __slots__ = ("_at", "_rate", "_remembered_s")

    def __init__(self) -> None:
        self._rate = math.inf
        self._at = -math.inf
        self._remembered_s = _REMEMBERED_S

    def calls_take(self, seconds: float) -> None:
        """Set the mean time in seconds for which a call holds its slot."""
        self._remembered_s = max(_REMEMBERED_S, _CALLS * seconds)

    def begin(self, expected: float, now: float) -> None:
        """Start measuring, as the first batch request is queued, from `expected` slots a second.

        A rate measured shortly before is kept instead.
        """
        if math.isinf(self._rate) or now - self._at > self._remembered_s:
            self._rate = expected
        self._at = now

    def granted(self, expected: float, now: float) -> None:
        """Record that a queued batch request got its slot."""
        if math.isinf(self._rate):
            self.begin(expected, now)
        self._rate = self.per_second(now) + 1 / self._remembered_s
        self._at = now

    def per_second(self, now: float) -> float:
        """Return the rate with older grants discounted exponentially; infinite until a call has ended."""
        return self._rate if math.isinf(self._rate) else self._rate * math.exp((self._at - now) / self._remembered_s)


def floor_of(capacity: int) -> int:
    """Return the number of slots that batch calls may always hold: 5% of `capacity`, rounded up."""
    return math.ceil(capacity * _BATCH_SHARE)
