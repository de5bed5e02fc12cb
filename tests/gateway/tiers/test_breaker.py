"""When an endpoint rests, and how it comes back."""

from __future__ import annotations

import pytest

from gateway.parts.fleet.reports import ejection_from, ejection_report, hear_ejection
from gateway.tiers.breaker import Breaker, Ejection


def fail(breaker: Breaker, now: float, times: int = 1, *, alone: bool = True) -> None:
    for _ in range(times):
        breaker.failed("upstream_error", now, now, alone=alone)


def tried(breaker: Breaker, now: float, *, well: bool, alone: bool = True) -> None:
    """One call goes out and ends at once."""
    probe = breaker.enter()
    if well:
        breaker.succeeded(now, now)
    else:
        fail(breaker, now, alone=alone)
    if probe:
        breaker.leave_probe()


def test_closed_open_half_open_closed() -> None:
    """Five failures open it, time half-opens it, and an answer to a call made since closes it."""
    breaker = Breaker()
    fail(breaker, 10.0, 4)
    assert breaker.state(10.0) == "closed"
    fail(breaker, 10.0)
    assert (breaker.state(10.5), breaker.state(11.0)) == ("open", "half_open")
    breaker.succeeded(9.0, 11.0)
    assert breaker.state(11.0) == "half_open"
    tried(breaker, 11.0, well=True)
    assert breaker.state(11.0) == "closed"


def test_one_call_at_a_time_tries_it() -> None:
    """While one is on its way, half-open is as good as open to the others."""
    breaker = Breaker()
    fail(breaker, 10.0, 5)
    probe = breaker.enter()
    assert breaker.reason(11.0)
    if probe:
        breaker.leave_probe()
    assert breaker.reason(11.0) == ""


def test_half_of_many_is_too_many() -> None:
    """Ten calls within ten seconds, half of them failed, open it though they never failed five in a row."""
    breaker = Breaker()
    for second in range(5):
        breaker.succeeded(float(second), float(second))
        assert breaker.state(float(second)) == "closed"
        fail(breaker, float(second))
    assert breaker.ejection is not None
    assert breaker.ejection.reason == "failing (upstream_error, 5 of 10 calls)"


def test_few_calls_or_old_ones_are_no_outlier() -> None:
    """Half of fewer than ten decides nothing, nor does what is older than ten seconds."""
    breaker = Breaker()
    for step in range(30):
        breaker.succeeded(step * 3.0, step * 3.0)
        fail(breaker, step * 3.0 + 1)
        assert breaker.state(step * 3.0 + 1) == "closed"


def test_what_led_to_one_rest_does_not_lead_to_the_next() -> None:
    """After it has come back, one failure among few calls is not held against its past."""
    breaker = Breaker()
    for step in range(5):
        breaker.succeeded(1.0 + step, 1.0 + step)
        fail(breaker, 1.0 + step)
    tried(breaker, 7.0, well=True)
    fail(breaker, 7.1)
    assert breaker.state(7.1) == "closed"


@pytest.mark.parametrize(
    ("alone", "lengths"), [(True, [1, 2, 4, 5, 5]), (False, [30, 60, 120, 240, 300, 300])], ids=["alone", "siblings"]
)
def test_rests_grow_while_it_flaps(alone: bool, lengths: list[float]) -> None:
    """Each time that the call which tries it fails, the next ejection is twice as long, up to a most."""
    breaker, now = Breaker(), 10.0
    fail(breaker, now, 5, alone=alone)
    for seconds in lengths:
        assert breaker.ejection is not None
        assert breaker.ejection.until - now == seconds
        now = breaker.ejection.until
        tried(breaker, now, well=False, alone=alone)


def test_being_well_for_as_long_as_it_was_ejected_makes_up_for_one() -> None:
    """Not for all of them at once."""
    breaker = Breaker()
    fail(breaker, 0.0, 5, alone=False)
    tried(breaker, 30.0, well=False, alone=False)
    tried(breaker, 90.0, well=True)
    fail(breaker, 100.0, 5, alone=False)
    assert breaker.ejection is not None
    assert breaker.ejection.until == 220.0
    tried(breaker, 220.0, well=True)
    fail(breaker, 345.0, 5, alone=False)
    assert breaker.ejection.until == 345.0 + 120


def test_only_an_ejection_for_failures_can_be_cut_short() -> None:
    """A pause that was asked for is kept whoever needs the endpoint."""
    breaker = Breaker()
    fail(breaker, 0.0, 5, alone=False)
    breaker.cut(2.0)
    assert breaker.state(2.0) == "half_open"
    paused = Breaker()
    paused.pause(20.0, "a pause", 0.0)
    paused.cut(2.0)
    assert paused.state(19.0) == "open"


def test_a_pause_that_is_asked_for_in_a_rest_is_kept() -> None:
    """An ejected endpoint that asks for a pause is not among those that are better asked than none."""
    breaker = Breaker()
    fail(breaker, 0.0, 5, alone=False)
    assert breaker.failing(0.0)
    breaker.pause(10.0, "a pause", 1.0)
    assert (breaker.failing(2.0), breaker.pause_s(2.0)) == (False, 9.0)
    assert breaker.failing(11.0)


def test_what_a_sibling_found_ends_with_it() -> None:
    """An ejection that was heard of ends when whoever told of it says so, and not at another's word."""
    breaker = Breaker()
    ejection = Ejection("failing", "failing", 0.0, 30.0)
    hear_ejection(breaker, "w2", ejection, 0.0)
    hear_ejection(breaker, "w3", None, 1.0)
    assert breaker.state(1.0) == "open"
    hear_ejection(breaker, "w2", None, 1.0)
    assert breaker.state(1.0) == "closed"


def test_what_is_over_at_a_sibling_neither_begins_a_rest_nor_ends_one() -> None:
    """Its own next call will show; until then one at a time tries it here, and one that was well here stays so."""
    breaker = Breaker()
    hear_ejection(breaker, "w2", Ejection("failing", "failing", 0.0, 5.0), 0.0)
    hear_ejection(breaker, "w2", Ejection("failing", "failing", 6.0, 6.0), 6.0)
    assert breaker.state(6.0) == "half_open"
    tried(breaker, 7.0, well=True)
    hear_ejection(breaker, "w2", Ejection("failing", "failing", 8.0, 8.0), 8.0)
    assert breaker.state(8.0) == "closed"


def test_an_ejection_is_reported_as_time_left() -> None:
    """Each process has a clock of its own."""
    report = ejection_report(Ejection("pause", "asking for a pause", 5.0, 20.0, status=503), 8.0)
    assert ejection_from(report, 1000.0) == Ejection("pause", "asking for a pause", 1000.0, 1012.0, status=503)
    assert ejection_report(Ejection("pause", "x", 5.0, 20.0, heard_from="w2"), 8.0) is None


def test_no_reported_ejection_is_longer_than_the_longest() -> None:
    """A sibling with a mistaken clock cannot rule a backend out for a day."""
    ejection = ejection_from({"cause": "failing", "reason": "x", "left_s": 86400}, 0.0)
    assert ejection is not None
    assert ejection.until == 300
