from __future__ import annotations

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


def test_a_late_success_does_not_close_it() -> None:
    """The answer to a request that was sent before the breaker opened says nothing of the store now."""
    breaker, _ = make()
    breaker.trip()
    breaker.succeeded()
    assert breaker.state == "open"
