from __future__ import annotations

import pytest

from cache.store.connections import StoreBreaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make() -> tuple[StoreBreaker, Clock]:
    clock = Clock()
    return StoreBreaker(failures=5, probe_every_s=1.0, clock=clock), clock


def test_it_opens_at_the_fifth_failure_in_a_row() -> None:
    """Four failures leave it closed, the fifth opens it."""
    breaker, _ = make()
    for _ in range(4):
        breaker.failed()
    assert breaker.closed
    breaker.failed()
    assert breaker.state == "open"


def test_a_success_starts_the_count_again() -> None:
    """Failures that are not in a row never open it."""
    breaker, _ = make()
    for _ in range(20):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert breaker.closed


def test_one_probe_leaves_each_second() -> None:
    """An open breaker gives the probe to one caller, a second after it opened, and again a second after it failed."""
    breaker, clock = make()
    breaker.trip()
    assert not breaker.begin_probe()
    clock.now += 1.0
    assert [breaker.begin_probe() for _ in range(3)] == [True, False, False]
    assert breaker.state == "half_open"
    breaker.trip()
    assert breaker.wait_s() == 1.0
    clock.now += 1.0
    assert breaker.begin_probe()
    breaker.reset()
    assert breaker.closed


def test_the_first_probe_comes_soon_and_those_of_a_store_that_fails_again_do_not() -> None:
    """A short stall costs a twentieth of a second; a store that fails again within a second gets a second of rest."""
    breaker, clock = make()
    for _ in range(5):
        breaker.failed()
    assert breaker.wait_s() == pytest.approx(0.05)
    clock.now += 0.06
    assert breaker.begin_probe()
    breaker.reset()
    clock.now += 0.5
    for _ in range(5):
        breaker.failed()
    assert breaker.wait_s() == pytest.approx(1.0)
    clock.now += 1.0
    assert breaker.begin_probe()
    breaker.reset()
    clock.now += 1.0
    breaker.reset()  # a health check: it was closed all the time
    breaker.trip()
    assert breaker.wait_s() == pytest.approx(0.05)


def test_a_late_success_does_not_close_it() -> None:
    """The answer to a request that was sent before the breaker opened says nothing of the store now."""
    breaker, _ = make()
    breaker.trip()
    breaker.succeeded()
    assert breaker.state == "open"
