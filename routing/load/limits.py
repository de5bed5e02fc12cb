"""Limit what backends are asked: calls at a time (`CallLimit`), batch calls, and calls beyond one per request.

`max_in_flight` holds for all workers together. Each may use an equal share of it, and more while the others' last
reports leave some unused. Reports are up to a second old, so several workers that raise their use at once can exceed
the limit for that long; the adaptive limit and the backend's own 429 bound that.

A batch call holds its slot until its answer is complete, so slots must be kept free before interactive requests arrive
(`Reserve`): as many as these recently needed and do not hold now. "Recently" is three windows of three mean call
lengths each (1 to 5 s a window). Without interactive traffic in that time, batch may use every slot; it may always hold
one slot in twenty, rounded up.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

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
_SHORTEST_RESERVE_S, _LONGEST_RESERVE_S = 1.0, 5.0
_CALLS = 3
_BATCH_SHARE = 0.05
_REMEMBERED_S = 2.0


class LatencyBaseline(Protocol):
    """Holds one backend's latency without congestion, of one kind, by prompt length."""

    def ratio(self, tokens_in: int, seconds: float, now: float) -> float | None:
        """Record a latency of `seconds`; return its ratio to the baseline, None until there is one."""


class LatencyLimit(Protocol):
    """Lowers the limit on concurrent calls of one backend while its latency rises under load."""

    ttft: LatencyBaseline
    """Of times to the first token."""
    whole: LatencyBaseline
    """Of times to the whole answer."""

    @property
    def limit(self) -> int:
        """Current limit on concurrent calls."""

    def observe(self, ratio: float, in_flight: int, now: float, seconds: float = 0.0) -> None:
        """Record a successful call of `seconds` that took `ratio` times as long as it would on an idle backend."""

    def overloaded(self, now: float) -> None:
        """Cut the limit: the backend reported overload (429, 503) or a call timed out."""


class CallLimit:
    """Limit the calls that this worker may have in flight at one backend, to `most` for all workers together.

    The methods that may change the limit return the one that holds from now on.
    """

    __slots__ = ("_adaptive", "_calls", "_in_flight_of", "_most", "_share")

    def __init__(self, most: int, adaptive: LatencyLimit | None = None) -> None:
        """`adaptive` lowers the limit while latency rises under load."""
        self._most = self._share = self._calls = most
        self._adaptive = adaptive
        self._in_flight_of: dict[str, tuple[float, int]] = {}
        """When a sibling worker last reported, and its calls in flight, by worker."""

    def observe(self, tokens_in: int, seconds: float, in_flight: int, now: float, *, whole: bool) -> int:
        """Take in a call's time to its first token, or to the whole answer, while `in_flight` calls were under way."""
        if (adaptive := self._adaptive) is not None:
            ratio = (adaptive.whole if whole else adaptive.ttft).ratio(tokens_in, seconds, now)
            if ratio is not None:
                adaptive.observe(ratio, in_flight, now, seconds)
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

    @property
    def is_shared(self) -> bool:
        """Whether another worker has reported that was alive when the share was last computed."""
        return bool(self._in_flight_of)

    def share(self, now: float) -> int:
        """Compute this worker's share anew, without the workers that have not reported for three seconds."""
        self._in_flight_of = {worker: (at, n) for worker, (at, n) in self._in_flight_of.items() if now - at <= _ALIVE_S}
        equal = -(-self._most // (len(self._in_flight_of) + 1))
        self._share = max(equal, self._most - sum(n for _, n in self._in_flight_of.values()))
        return self._changed()

    def _changed(self) -> int:
        self._calls = self._share if self._adaptive is None else max(1, min(self._adaptive.limit, self._share))
        return self._calls


class Reserve:
    """Keep slots free of batch calls: as many as interactive ones held at once in the last three windows."""

    __slots__ = ("_before", "_long_before", "_now", "_turns_at", "hold_s")

    def __init__(self) -> None:
        self._now = self._before = self._long_before = 0
        self._turns_at = 0.0
        self.hold_s = 0.0
        """The mean time in seconds for which a call holds its slot; whoever measures it sets it."""

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
        window_s = min(_LONGEST_RESERVE_S, max(_SHORTEST_RESERVE_S, _CALLS * self.hold_s))
        passed = 1 + int((now - self._turns_at) / window_s)
        recent = (self._now, self._before) if passed == 1 else (0, self._now) if passed == 2 else (0, 0)
        self._now, (self._before, self._long_before) = 0, recent
        self._turns_at += passed * window_s


class Grants:
    """Measure the rate, in slots a second, at which queued batch requests get slots; it predicts a new one's wait.

    The rate is measured only while batch requests wait, and starts from the one expected by the mean length of a call.
    It decays over the time of three calls (at least 2 s), because slots become free in bursts.
    """

    __slots__ = ("_at", "_rate", "hold_s")

    def __init__(self) -> None:
        self._rate = math.inf
        self._at = -math.inf
        self.hold_s = 0.0
        """The mean time in seconds for which a call holds its slot; whoever measures it sets it."""

    @property
    def _remembered_s(self) -> float:
        return max(_REMEMBERED_S, _CALLS * self.hold_s)

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
