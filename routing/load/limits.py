"""Limit what backends are asked: calls at a time (`CallLimit`), batch calls, and calls beyond one per request.

`max_in_flight` holds for all workers together. Each may use an equal share of it, and more while the others' last
reports leave some unused. Reports are up to a second old, so several workers that raise their use at once can exceed
the limit for that long; the adaptive limit and the backend's own 429 bound that.

A batch call holds its slot until its answer is complete, so slots must be kept free before interactive requests arrive
(`Reserve`): as many as these recently needed and do not hold now. "Recently" is three windows of three mean call
lengths each (1 to 5 s a window). Without interactive traffic in that time, batch may use every slot; it may always hold
one slot in twenty, rounded up.

The adaptive limit on concurrent calls (`AdaptiveLimit`) is cut under overload and grows back. The signal is that of TCP
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
from collections import deque

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
    )

    def __init__(self, most: int, least: int = 1) -> None:
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


_WINDOW_S = 10
_RETRY_SHARE = 0.1
_RETRY_FLOOR = 3
_BURST_REQUESTS = 1000
_MEAN_OVER = 100


class RetryBudget:
    """Limits retries to 10% of the requests, so that an outage does not multiply the calls.

    A retry towards a backend whose last call succeeded is free. Any other is counted for ten seconds from when it is
    allowed, unless it succeeds; no further one is allowed while the count is at least 10% of the requests of the last
    ten seconds, and at least three. A free retry that fails is counted too. (A retry is counted when it begins: if only
    failures were counted, all retries that are running when an outage starts would be allowed.) Times are in seconds of
    a monotonic clock.
    """

    __slots__ = ("_by_second", "_retries", "_second", "_under_way")

    def __init__(self) -> None:
        self._by_second = [0] * _WINDOW_S
        self._second = 0
        self._retries: deque[float] = deque()
        self._under_way = 0

    def request(self, now: float) -> None:
        """Count an incoming request."""
        if int(now) > self._second:
            self._advance(now)
        self._by_second[self._second % _WINDOW_S] += 1

    def may_retry(self, healthy: bool, now: float) -> bool:
        """Return whether a retry may start; True for a backend that is not `healthy` also counts the retry."""
        if healthy:
            return True
        self._forget(now)
        if len(self._retries) >= max(_RETRY_FLOOR, _RETRY_SHARE * sum(self._by_second)):
            return False
        self._retries.append(now)
        self._under_way += 1
        return True

    def retry_failed(self, now: float) -> None:
        """Record that a retry gave no answer."""
        self._forget(now)
        if self._under_way:
            self._under_way -= 1
        else:
            self._retries.append(now)

    def retry_succeeded(self, now: float) -> None:
        """Record that a retry gave an answer, and stop counting it."""
        self._forget(now)
        if self._under_way:
            self._under_way -= 1
            self._retries.pop()

    def _advance(self, now: float) -> None:
        second = int(now)
        if second > self._second:
            for passed in range(max(self._second + 1, second - _WINDOW_S + 1), second + 1):
                self._by_second[passed % _WINDOW_S] = 0
            self._second = second

    def _forget(self, now: float) -> None:
        self._advance(now)
        while self._retries and self._retries[0] <= now - _WINDOW_S:
            self._retries.popleft()
        self._under_way = min(self._under_way, len(self._retries))


class SpendBudget:
    """Limits the cost of hedges and speculation to a share of the cost of the requests themselves, in US dollars.

    A token bucket: each request adds that share of its cost, each extra call subtracts its own cost, and one may begin
    while the balance is not negative. The balance is capped at what a thousand average requests add, so that a quiet
    night does not pay for many hedges at once in the morning.
    """

    __slots__ = ("_mean", "_share", "balance_usd")

    def __init__(self, share: float) -> None:
        self._share = share
        self._mean = 0.0
        self.balance_usd = 0.0

    def earn(self, cost_usd: float) -> None:
        """Add the share of a request's cost, its extra calls not included."""
        earned = self._share * cost_usd
        self._mean += (earned - self._mean) / _MEAN_OVER if self._mean else earned
        self.balance_usd = min(self.balance_usd + earned, max(self.balance_usd, self._mean * _BURST_REQUESTS))

    def may_spend(self) -> bool:
        """Return whether an extra call may begin now."""
        return self._share > 0 and self.balance_usd >= 0

    def spend(self, cost_usd: float) -> None:
        """Subtract the cost of an extra call."""
        self.balance_usd -= cost_usd


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
