"""What the machine of one account owes at each event, beside what the interleavings explore."""

from __future__ import annotations

from gateway.parts.access.quotas.machine import DRY, FULL, GRANTED, HELD, AccountLease, LeaseReply, WaitingRequest


def leased(amount: int, others: int, *, pressed: bool = False, spent: int = 0) -> AccountLease:
    """A lease of a budget of 1,000 of which other workers have `others`."""
    lease = AccountLease("usd", 1000)
    lease.send(0.0)
    lease.heard(LeaseReply(amount, spent, others, others, others, int(pressed), 0, 0, 0), 0.0)
    return lease


def test_what_a_request_did_not_need_is_returned_where_others_wait_for_it() -> None:
    """It is not kept for the next request here: whose turn it is, the store knows."""
    lease = leased(300, 100, pressed=True)
    lease.take(50, 300, 0.0)
    lease.settle(50, 300, 20)
    assert lease.lease == 20


def test_what_a_request_did_not_need_is_returned_where_little_is_left() -> None:
    """Where more than half of a budget is spent or leased, others may need it soon."""
    for others, kept in ((100, 300), (300, 20)):
        lease = leased(300, others)
        lease.take(50, 300, 0.0)
        lease.settle(50, 300, 20)
        assert lease.lease == kept


def test_the_worst_case_is_reserved_from_nine_tenths_on() -> None:
    assert not leased(0, 0, spent=900).is_nearly_spent
    assert leased(0, 0, spent=901).is_nearly_spent


def test_waiting_helps_only_near_the_end_and_while_something_is_expected_to_be_left() -> None:
    assert not leased(0, 1000, spent=0).is_worth_waiting(100, ())
    assert leased(0, 100, spent=850).is_worth_waiting(100, ())
    assert not leased(0, 150, spent=850).is_worth_waiting(100, ())


def test_those_who_wait_before_a_request_are_served_before_it() -> None:
    """What they are expected to need is not left for it, and what is reserved for them is held."""
    assert leased(0, 100, spent=850).is_worth_waiting(100, [WaitingRequest(49, 100)])
    assert not leased(0, 100, spent=850).is_worth_waiting(100, [WaitingRequest(50, 100)])
    assert leased(0, 100, spent=500).is_worth_waiting(100, [WaitingRequest(10, 300)])
    assert not leased(0, 100, spent=500).is_worth_waiting(101, [WaitingRequest(10, 300)])


def test_what_is_expected_of_others_must_leave_something() -> None:
    """A lease that covers a request lets it in; where others are expected to need all the rest it is held."""
    assert leased(300, 100).check(50, 300, 0.01) == GRANTED
    lease = leased(300, 1000)
    assert lease.check(50, 300, 0.01) == HELD


def test_tokens_used_beyond_what_was_expected_count_for_what_the_next_exchange_asks_for() -> None:
    """Else the lease is too short each time, and every request waits for an exchange."""
    lease = AccountLease("tokens", 1_000_000)
    lease.send(0.0)
    lease.heard(LeaseReply(20, 0, 0, 0, 0, 0, 0, 0, 0), 0.0)
    lease.take(20, 20, 0.1)
    lease.settle(20, 20, 123)
    assert lease.send(0.2).comfort == 2 * 123


def test_what_is_idle_is_returned_where_another_worker_got_less_than_it_needed() -> None:
    """Else it stays leased for the next request here for a second, while the other's wait."""
    for pressed, kept in ((False, 300), (True, 100)):
        lease = leased(300, 100, pressed=pressed)
        lease.take(50, 100, 0.1)
        assert lease.send(0.2).kept == kept


def test_a_limit_that_is_raised_is_asked_about_at_once() -> None:
    """What was refused by the old one is not refused for as long as that was good for."""
    lease = AccountLease("requests", 10)
    lease.waiting.append(WaitingRequest(1, 1))
    lease.send(0.0)
    lease.heard(LeaseReply(0, 10, 0, 0, 0, 1, 1, 5000, 5000), 0.0)
    assert lease.check(1, 1, 0.01) == FULL
    lease.change_limit(20)
    assert lease.check(1, 1, 0.01) == DRY


def test_of_a_limit_that_is_lowered_what_is_idle_is_returned() -> None:
    """What requests hold is kept until they are settled; a limit that is raised takes nothing back."""
    lease = leased(300, 100)
    lease.take(50, 120, 0.0)
    lease.change_limit(2000)
    assert lease.lease == 300
    lease.change_limit(500)
    assert lease.lease == 120
