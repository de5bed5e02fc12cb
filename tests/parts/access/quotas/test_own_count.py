"""What one worker lets in by itself while the store does not answer."""

from __future__ import annotations

from gateway.parts.access.quotas.accounts import Unit
from gateway.parts.access.quotas.machine import AccountLease, LeaseReply, OwnCount


def lease_of(unit: Unit, limit: int, *, spent: int = 0, others: int = 0, heard_at: float = 0.0) -> AccountLease:
    """A lease of which the store has said how much was used, and leased to others."""
    lease = AccountLease(unit, limit)
    lease.send(heard_at)
    lease.heard(LeaseReply(0, spent, others, 0, 0, 0, 0, 0, 0), heard_at)
    return lease


def let_in(count: OwnCount, lease: AccountLease, amount: int, now: float, tries: int) -> int:
    """How many requests of so much get in at one time."""
    number = 0
    for _ in range(tries):
        if count.fits(lease, amount, now):
            lease.take(amount, amount, now)
            lease.settle(amount, amount, amount)
            number += 1
    return number


def test_what_was_used_before_counts_for_a_minute() -> None:
    lease = lease_of("requests", 10, spent=5, others=2)
    count = OwnCount(lease)
    assert let_in(count, lease, 1, 1.0, 20) == 3
    assert let_in(count, lease, 1, 59.0, 20) == 0
    assert let_in(count, lease, 1, 60.5, 20) == 7, "those of the first second still count"
    assert let_in(count, lease, 1, 61.5, 20) == 3


def test_any_minute_has_no_more_than_the_limit() -> None:
    lease = lease_of("tokens", 100)
    count = OwnCount(lease)
    times = [now / 10 for now in range(3000) for _ in range(let_in(count, lease, 7, now / 10, 1))]
    assert len(times) > 4 * (100 // 7)
    for begins in times:
        assert sum(7 for at in times if begins <= at < begins + 60) <= 100


def test_requests_at_once_are_those_of_this_worker() -> None:
    lease = lease_of("concurrent", 2, others=2)
    count = OwnCount(lease)
    for expected in (True, True, False):
        assert count.fits(lease, 1, 1.0) is expected
        lease.take(1, 1, 1.0)
    lease.settle(1, 1, 1)
    lease.settle(1, 1, 1)
    assert count.fits(lease, 1, 1.0)
