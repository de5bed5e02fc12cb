"""Count what one worker lets in by itself while the store does not answer: a state machine without I/O or clock.

A limit holds for each worker alone then: what all workers had used when the store answered last, and what the others
had leased, counts for a minute from that answer, and what this worker has let in since counts for a minute from when it
did. Requests at once are those of this worker.
"""

from __future__ import annotations

from collections import deque

from gateway.parts.access.quotas.machine import AccountLease

MINUTE_S = 60.0
_SLOT_S = 0.25
"""What is let in within so many seconds is kept in one entry, and counts as let in at their end."""


class OwnCount:
    """This worker's own count of an account's use, since the first request that it admitted without the store."""

    def __init__(self, lease: AccountLease) -> None:
        self._before = lease.confirmed
        """All that this worker had used a minute ago, and before it."""
        self._samples: deque[tuple[float, int]] = deque()
        """What it had used in all by certain times within the last minute."""

    def fits(self, lease: AccountLease, amount: int, now: float) -> bool:
        """Return whether so much more fits into the limit; `amount` is of the unit of the lease."""
        if lease.unit == "concurrent":
            return lease.under + amount <= lease.limit
        total = lease.confirmed + lease.unwritten + lease.under
        while self._samples and self._samples[0][0] + _SLOT_S <= now - MINUTE_S:
            self._before = self._samples.popleft()[1]
        used = total - self._before
        if now < lease.heard_at + MINUTE_S:
            used += lease.spent + lease.others
        if not self._samples or now >= self._samples[-1][0] + _SLOT_S:
            self._samples.append((now, total))
        else:
            self._samples[-1] = (self._samples[-1][0], total)
        return used + amount <= lease.limit
