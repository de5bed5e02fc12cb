"""The room for bytes of requests: what came is counted, and nobody keeps it from others."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import LimitReached, Overloaded
from gateway.request.load_shedding import ANYONE, BodyClaim, BodyRoom, LoadShedder


def claimed(room: BodyRoom, sender: str, size: int) -> BodyClaim:
    claim = BodyClaim(room, sender)
    claim.resize(size)
    return claim


def test_one_sender_holds_as_much_as_it_leaves_free() -> None:
    """Half of the room alone; what another holds leaves less for both, and a newcomer finds room at any time."""
    room = BodyRoom(90)
    claimed(room, "a", 30)
    second = claimed(room, "a", 15)
    with pytest.raises(LimitReached):
        claimed(room, "a", 1)
    other = claimed(room, "b", 15)
    claimed(room, "b", 7)
    with pytest.raises(LimitReached):
        claimed(room, "b", 10)
    with pytest.raises(LimitReached):
        second.resize(16)
    claimed(room, "c", 11)
    second.release()
    other.release()
    claimed(room, "b", 15)
    assert room.held == 30 + 7 + 11 + 15


def test_a_single_body_may_fill_the_room() -> None:
    """One body always fits, however large its sender's share; it grows as it comes."""
    room = BodyRoom(100)
    claim = BodyClaim(room, "a")
    for size in (40, 80, 100):
        claim.resize(size)
    with pytest.raises(Overloaded):
        claimed(room, "b", 1)
    claim.release()
    assert room.held == 0
    claimed(room, "b", 100)


def test_senders_without_a_key_share_all_of_it() -> None:
    """Nobody can tell them apart."""
    room = BodyRoom(100)
    claimed(room, ANYONE, 60)
    claimed(room, ANYONE, 40)
    with pytest.raises(Overloaded):
        claimed(room, ANYONE, 1)


def test_what_is_refused_changes_nothing() -> None:
    room = BodyRoom(10)
    claim = claimed(room, "a", 4)
    with pytest.raises(Overloaded):
        claim.resize(11)
    assert (claim.size, room.held) == (4, 4)
    claim.resize(2)
    assert room.held == 2


async def test_what_is_announced_is_checked_and_not_held() -> None:
    """A request that has said what it will send keeps nobody out; one that could not be held is refused at once."""
    gate = LoadShedder(10, lambda: 0.0, room=100)

    async def announce(sender: str) -> None:
        gate.hold(80, sender, announced=True)
        gate.hold(10, sender)
        await asyncio.sleep(10)

    asking = [asyncio.create_task(announce(sender)) for sender in ("a", "b")]
    await asyncio.sleep(0)
    assert gate.bodies.held == 20
    third = asyncio.create_task(announce("c"))
    await asyncio.sleep(0)
    assert gate.bodies.held == 30
    with pytest.raises(Overloaded):
        gate.hold(71, "d", announced=True)
    for one in (*asking, third):
        one.cancel()
    await asyncio.gather(*asking, third, return_exceptions=True)
    assert gate.bodies.held == 0


async def test_a_task_that_goes_on_holds_nothing_of_the_request_before() -> None:
    """As that of a WebSocket does, which answers many."""
    gate = LoadShedder(10, lambda: 0.0, room=100)
    task = asyncio.current_task()
    assert task is not None
    for _ in range(3):
        gate.hold(90, "a")
        assert gate.bodies.held == 90
        gate.let_go(task)
        assert gate.bodies.held == 0
