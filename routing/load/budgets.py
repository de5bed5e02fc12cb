"""Limit what is spent beyond one call per request: retries by count, hedges and speculation by cost."""

from __future__ import annotations

from collections import deque

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
