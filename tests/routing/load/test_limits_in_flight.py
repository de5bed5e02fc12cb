"""How many calls may be in flight at a backend, and how many of them batch calls."""

from __future__ import annotations

from routing.load.limits import CallLimit, Reserve


def test_as_many_as_interactive_traffic_needed_lately() -> None:
    """Its peak is remembered for the time of some six to nine calls."""
    reserve = Reserve()
    reserve.hold_s = 5.0
    for interactive in range(1, 9):
        reserve.entered(interactive, 100.0)
    assert [reserve.kept(0, now) for now in (100.0, 109.9, 115.1)] == [8, 8, 0]
    reserve.entered(3, 116.0)
    assert reserve.kept(1, 116.0) == 2


def test_batch_has_its_floor_where_there_is_a_place() -> None:
    """One place in twenty, and one at least, however much is reserved; never one that is not there."""
    reserve = Reserve()
    reserve.entered(40, 100.0)
    assert reserve.admits_batch(40, 0, 0, 100.0)
    assert reserve.admits_batch(40, 0, 1, 100.0)
    assert not reserve.admits_batch(40, 0, 2, 100.0)
    assert not reserve.admits_batch(40, 40, 0, 100.0)
    assert reserve.admits_batch(1, 0, 0, 100.0)


def test_short_calls_are_soon_forgotten() -> None:
    """What calls of a fifth of a second needed is news of yesterday after a few seconds."""
    reserve = Reserve()
    reserve.hold_s = 0.2
    reserve.entered(8, 100.0)
    assert [reserve.kept(0, now) for now in (100.0, 101.9, 103.5)] == [8, 8, 0]


def test_without_interactive_traffic_all_is_for_batch() -> None:
    """Nothing is kept for those who never come."""
    assert Reserve().admits_batch(8, 0, 7, 100.0)


def test_a_share_is_what_the_others_leave() -> None:
    """An equal part of the limit at least, all that is unused at most, and everything when the others are gone."""
    limit = CallLimit(10)
    assert limit.share(0.0) == 10
    for in_flight, share in ((0, 10), (3, 7), (9, 5)):
        limit.heard("w2", in_flight, 0.0)
        assert limit.share(0.0) == share
    limit.heard("w3", 9, 2.0)
    assert limit.share(2.0) == 4
    assert limit.share(6.0) == 10
