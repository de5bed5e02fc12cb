"""What is learnt from one call."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.backends.base import BudgetSpent, Saturated, Unreachable
from gateway.tiers import Endpoint
from gateway.tiers.slot import SlotQueue, SlotRequest, Waiter
from tests.gateway.tiers.endpoints import BATCH, CHAT, Clock


def line_of(length: int = 100, surfaces: Counter[str] | None = None) -> SlotQueue:
    return SlotQueue(length, Counter() if surfaces is None else surfaces)


def join(line: SlotQueue, ask: SlotRequest = CHAT) -> Waiter:
    return line.join(ask, 0.0, 1.0)


async def test_interactive_goes_first_and_first_come_first_served() -> None:
    """Batch requests are served when no interactive one waits, each kind in its order."""
    line = line_of()
    batch, chats = [join(line, BATCH) for _ in range(2)], [join(line) for _ in range(3)]
    assert [line.next(batch_may=True) for _ in range(6)] == [*chats, *batch, None]
    assert line.size == 0


async def test_a_batch_request_is_passed_over_nineteen_times_at_most() -> None:
    """The twentieth place that becomes free is its own, unless batch may have none at all."""
    line = line_of()
    waiter = join(line, BATCH)
    chats = [join(line) for _ in range(30)]
    assert [line.next(batch_may=True) for _ in range(20)] == [*chats[:19], waiter]
    join(line, BATCH)
    assert [line.next(batch_may=False) for _ in range(12)] == [*chats[19:], None]


async def test_a_slot_that_batch_may_not_have_does_not_count_as_passed_over() -> None:
    """A batch request alone in the queue, whose class has its share of the slots, is not owed the next free one."""
    line = line_of()
    waiter = join(line, BATCH)
    assert [line.next(batch_may=False) for _ in range(30)] == [None] * 30
    chat = join(line)
    assert [line.next(batch_may=True) for _ in range(2)] == [chat, waiter]


async def test_batch_keeps_one_place_in_line_in_twenty() -> None:
    """However many interactive requests come, a few batch ones may wait for their turn."""
    line = line_of(length=40)
    for _ in range(38):
        join(line)
    with pytest.raises(Saturated):
        join(line)
    batch = [join(line, BATCH) for _ in range(2)]
    with pytest.raises(Saturated):
        join(line, BATCH)
    with pytest.raises(Saturated):
        join(line)
    assert not any(waiter.future.done() for waiter in batch)


async def test_how_long_a_line_is_for_a_batch_request() -> None:
    """All who wait are ahead of it, but no more than get a place before its twentieth."""
    line = line_of(length=1000)
    for _ in range(5):
        join(line)
    assert (line.ahead_of(batch=False), line.ahead_of(batch=True)) == (5, 5)
    for _ in range(95):
        join(line)
    join(line, BATCH)
    assert (line.ahead_of(batch=False), line.ahead_of(batch=True)) == (100, 39)


async def test_a_full_line_takes_an_interactive_request_for_its_youngest_batch_one() -> None:
    """Which is turned away at once; among equals the newcomer is."""
    line = line_of(length=2)
    older, younger = join(line, BATCH), join(line, BATCH)
    with pytest.raises(Saturated):
        join(line, BATCH)
    chat = join(line)
    with pytest.raises(Saturated):
        younger.future.result()
    assert not older.future.done()
    join(line)
    with pytest.raises(Saturated) as caught:
        join(line)
    assert (line.size, caught.value.retry_after_s) == (2, 1.0)
    assert isinstance(older.future.exception(), Saturated)
    assert not chat.future.done()


async def test_a_surface_has_so_many_waiters_in_all_lines() -> None:
    """One surface cannot fill every line of the worker."""
    surfaces: Counter[str] = Counter()
    one, other = line_of(surfaces=surfaces), line_of(surfaces=surfaces)
    few = SlotRequest("chat", max_waiting=2)
    waiter = join(one, few)
    join(other, few)
    with pytest.raises(Saturated, match="2 requests of chat"):
        join(other, few)
    join(other, SlotRequest("other", max_waiting=1))
    one.leave(waiter)
    one.leave(waiter)
    join(other, few)


async def test_who_was_cancelled_is_not_served() -> None:
    """A place does not go to a request whose client has left, though its task has not run since."""
    line = line_of()
    gone, stays = join(line), join(line)
    gone.future.cancel()
    assert line.next(batch_may=True) is stays
    assert line.size == 0


def test_a_streams_first_token(clock: Clock, endpoint: Endpoint) -> None:
    """The time to the first token counts from when the call went out; the end of a stream says nothing of it."""
    for _ in range(40):
        slot = endpoint.take(CHAT, 3.0)
        clock.now += 0.4
        slot.began()
        slot.began()
        clock.now += 1.0
        slot.succeeded()
    assert endpoint.latency.ttft(0.5, 100, clock.now) == pytest.approx(0.4, rel=0.06)
    assert endpoint.latency.whole(0.5, 100, clock.now) is None


def test_a_json_answers_whole_time(clock: Clock, endpoint: Endpoint) -> None:
    """A call that never began to stream was answered as a whole."""
    for _ in range(40):
        slot = endpoint.take(SlotRequest(tokens_in=100))
        clock.now += 2.0
        slot.succeeded()
    assert endpoint.latency.whole(0.5, 100, clock.now) == pytest.approx(2.0, rel=0.06)
    assert endpoint.latency.ttft(0.5, 100, clock.now) is None


def test_a_lost_race_is_a_lower_bound(clock: Clock, endpoint: Endpoint) -> None:
    """A backend that loses its races does not look fast for the few calls that it wins; nor is it blamed."""
    for turn in range(100):
        slot = endpoint.take(CHAT)
        clock.now += 0.1 if turn % 2 else 0.5
        if turn % 2:
            slot.began()
            slot.succeeded()
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
            slot.succeeded()
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
