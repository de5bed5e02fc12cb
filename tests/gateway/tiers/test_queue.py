"""The line in front of a full endpoint: its order, and its bounds."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.backends.base import Saturated
from gateway.tiers.queue import SlotQueue, SlotRequest, Waiter
from tests.gateway.tiers.endpoints import BATCH, CHAT


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
