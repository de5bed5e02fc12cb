"""Limit what backends are asked: calls at a time (`AdaptiveLimit`), and calls beyond one per request (`RetryBudget`).

The limit on concurrent calls is cut under overload and grows back. The signal is that of TCP Vegas (Brakmo and Peterson
1995), as adapted to services by Netflix's concurrency-limits: the latency of a call relative to that of an idle
backend. The limit changes as TCP's does, by additive increase and multiplicative decrease (Chiu and Jain 1989), which
converges to a fair share where several gateways share a backend.

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
