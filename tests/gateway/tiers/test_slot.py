"""What is learnt from one call."""

from __future__ import annotations

import pytest

from gateway.backends.base import BudgetSpent, Unreachable
from gateway.tiers import Endpoint, SlotRequest
from tests.gateway.tiers.endpoints import CHAT, Clock


def test_a_streams_first_token_and_pace(clock: Clock, endpoint: Endpoint) -> None:
    """The time to the first token counts from when the call went out, the pace from that token on."""
    for _ in range(40):
        slot = endpoint.take(CHAT, 3.0)
        clock.now += 0.4
        slot.began()
        slot.began()
        clock.now += 1.0
        slot.succeeded(tokens_out=11)
    assert endpoint.latency.ttft(0.5, 100, clock.now) == pytest.approx(0.4, rel=0.06)
    assert endpoint.latency.pace(0.5, clock.now) == pytest.approx(0.1, rel=0.06)
    assert endpoint.latency.whole(0.5, 100, clock.now) is None


def test_a_json_answers_whole_time(clock: Clock, endpoint: Endpoint) -> None:
    """A call that never began to stream was answered as a whole."""
    for _ in range(40):
        slot = endpoint.take(SlotRequest(tokens_in=100))
        clock.now += 2.0
        slot.succeeded(tokens_out=50)
    assert endpoint.latency.whole(0.5, 100, clock.now) == pytest.approx(2.0, rel=0.06)
    assert endpoint.latency.ttft(0.5, 100, clock.now) is None


def test_a_lost_race_is_a_lower_bound(clock: Clock, endpoint: Endpoint) -> None:
    """A backend that loses its races does not look fast for the few calls that it wins; nor is it blamed."""
    for turn in range(100):
        slot = endpoint.take(CHAT)
        clock.now += 0.1 if turn % 2 else 0.5
        if turn % 2:
            slot.began()
            slot.succeeded(5)
        else:
            slot.lost()
    assert (endpoint.latency.ttft(0.9, 100, clock.now) or 0) > 0.4
    assert (endpoint.unavailable(), endpoint.in_flight) == ("", 0)


def test_silence_until_the_budget_was_spent_is_a_lower_bound_too(clock: Clock, endpoint: Endpoint) -> None:
    """A backend that is too slow for hurried surfaces is known to be, without a rest that would harm the others."""
    for turn in range(60):
        slot = endpoint.take(CHAT)
        clock.now += 0.8
        if turn % 2:
            slot.began()
            slot.succeeded(5)
        else:
            slot.failed(BudgetSpent(0.8))
    assert endpoint.unavailable() == ""
    assert endpoint.latency.ttft(0.5, 100, clock.now) == pytest.approx(0.8, rel=0.06)


def test_a_slot_that_has_ended_learns_nothing_more(clock: Clock, endpoint: Endpoint) -> None:
    """Whatever is said after the first verdict, the place is given back once and no latency is counted."""
    slot = endpoint.take(CHAT)
    slot.free()
    clock.now += 5
    slot.began()
    slot.succeeded()
    slot.lost()
    slot.failed(Unreachable())
    assert endpoint.in_flight == 0
    assert endpoint.latency.report(clock.now) == {}
