"""What may be spent beyond one call per request: retries by count, hedges and speculation by money."""

from __future__ import annotations

from collections import deque

_WINDOW_S = 10
_RETRY_SHARE = 0.1
_RETRY_FLOOR = 3
_BURST_REQUESTS = 1000
_MEAN_OVER = 100


class RetryBudget:
    """Keeps an outage from multiplying the calls: retries that promise little stay under 10% of the requests.

    A retry towards a backend whose last call went well is free. Any other is counted from the moment when it is allowed
    until ten seconds later, unless it succeeds; while as many are counted as 10% of the requests of these ten seconds,
    though at least three, no other is allowed. A free retry that fails is counted too. (A retry is counted when it
    begins because those on their way at the start of an outage would all be allowed if only failures were.)
    """

    __slots__ = ("_by_second", "_retries", "_second", "_under_way")

    def __init__(self) -> None:
        self._by_second = [0] * _WINDOW_S
        self._second = 0
        self._retries: deque[float] = deque()
        self._under_way = 0

    def request(self, now: float) -> None:
        """A request came in. 0.3 us."""
        self._advance(now)
        self._by_second[self._second % _WINDOW_S] += 1

    def may_retry(self, healthy: bool, now: float) -> bool:
        """Whether a retry may go out; a yes to one that is not `healthy` counts it, so ask only if you will."""
        if healthy:
            return True
        self._forget(now)
        if len(self._retries) >= max(_RETRY_FLOOR, _RETRY_SHARE * sum(self._by_second)):
            return False
        self._retries.append(now)
        self._under_way += 1
        return True

    def retry_failed(self, now: float) -> None:
        """A retry gave no answer."""
        self._forget(now)
        if self._under_way:
            self._under_way -= 1
        else:
            self._retries.append(now)

    def retry_succeeded(self, now: float) -> None:
        """A retry gave an answer: it is no longer counted."""
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
    """Caps what hedges and speculation may cost to a share of what the requests themselves cost. US dollars.

    A token bucket: each request earns the share of its cost, each extra call spends, and while the balance is not
    negative one more may begin. What a thousand requests earn is the most that it holds, so that a quiet night does not
    pay for a storm of hedges in the morning.
    """

    __slots__ = ("_mean", "_share", "balance_usd")

    def __init__(self, share: float) -> None:
        self._share = share
        self._mean = 0.0
        self.balance_usd = 0.0

    def earn(self, cost_usd: float) -> None:
        """A request was answered at this cost, its extra calls not counted."""
        earned = self._share * cost_usd
        self._mean += (earned - self._mean) / _MEAN_OVER if self._mean else earned
        self.balance_usd = min(self.balance_usd + earned, max(self.balance_usd, self._mean * _BURST_REQUESTS))

    def may_spend(self) -> bool:
        """Whether an extra call may begin now."""
        return self._share > 0 and self.balance_usd >= 0

    def spend(self, cost_usd: float) -> None:
        """An extra call cost so much."""
        self.balance_usd -= cost_usd
