"""Which connections make room, and which are waited for no longer."""

from __future__ import annotations

import pytest

from gateway.server.connection_limits import IDLE_S, SLOW_S, ConnectionLimits

SILENT_S = 10.0


class Scripted:
    """A connection that only says what became of it."""

    end = ""

    def give_way(self) -> None:
        self.end = "gave way"

    def turn_away(self, *, patient: bool) -> None:
        self.end = "turned away" if patient else "turned away at once"

    def too_slow(self) -> None:
        self.end = "too slow"


def ends(*connections: Scripted) -> list[str]:
    return [connection.end for connection in connections]


def test_the_oldest_idle_one_makes_room() -> None:
    """Not one at work, and not one that was at work more lately."""
    connections = ConnectionLimits(3, SILENT_S)
    a, b, c, d, e = (Scripted() for _ in range(5))
    for now, one in enumerate((a, b, c)):
        connections.opened(one, now)
    connections.begins(a)
    connections.begins(b)
    connections.rests(b, 10)
    connections.opened(d, 11)
    assert ends(a, b, c, d) == ["", "", "gave way", ""]
    connections.opened(e, 12)
    assert ends(a, b, d, e) == ["", "gave way", "", ""]


def test_when_all_are_at_work_the_newcomer_is_turned_away() -> None:
    """Nobody's answer is cut off for somebody who has not asked yet."""
    connections = ConnectionLimits(1, SILENT_S)
    a, b, c = Scripted(), Scripted(), Scripted()
    connections.opened(a, 0)
    connections.begins(a)
    connections.opened(b, 1)
    assert ends(a, b) == ["", "turned away"]
    connections.closed(a)
    connections.opened(c, 2)
    assert c.end == ""


def test_without_a_descriptor_left_an_idle_one_makes_room_too() -> None:
    """However few connections there are; without an idle one the newcomer goes, and at once, for it holds the last."""
    connections = ConnectionLimits(100, SILENT_S)
    a, b, c = Scripted(), Scripted(), Scripted()
    connections.opened(a, 0)
    connections.opened(b, 1, room=False)
    assert ends(a, b) == ["gave way", ""]
    connections.begins(b)
    connections.opened(c, 2, room=False)
    assert ends(b, c) == ["", "turned away at once"]


def test_what_is_turned_away_is_said_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """At once, and then every ten seconds, with how many they were; only so many are left time to read why."""
    connections = ConnectionLimits(1, SILENT_S)
    connections.opened(a := Scripted(), 0)
    connections.begins(a)
    crowd = [Scripted() for _ in range(100)]
    for number, one in enumerate(crowd):
        connections.opened(one, number / 10)
    assert ends(*crowd) == ["turned away"] * 64 + ["turned away at once"] * 36
    connections.closed(crowd[0])
    connections.opened(last := Scripted(), 10)
    assert last.end == "turned away"
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "connections rejected: 1",
        "connections rejected: 100",
    ]


def test_slow_ones_are_waited_for_so_long() -> None:
    """From when they were first said to be slow, unless they go on."""
    connections = ConnectionLimits(10, SILENT_S)
    a, b, c = Scripted(), Scripted(), Scripted()
    for one in (a, b, c):
        connections.opened(one, 0)
        connections.begins(one)
        connections.waits(one, 0)
    connections.waits(a, SLOW_S - 1)
    connections.goes_on(b)
    connections.goes_on(c)
    connections.waits(c, 1)
    connections.sweep(SLOW_S - 0.1)
    assert ends(a, b, c) == ["", "", ""]
    connections.sweep(SLOW_S)
    assert ends(a, b, c) == ["too slow", "", ""]
    connections.sweep(SLOW_S + 1)
    assert ends(b, c) == ["", "too slow"]


def test_who_never_asks_is_not_kept() -> None:
    """One that was opened and sends nothing, and one that was answered long ago."""
    connections = ConnectionLimits(10, SILENT_S)
    a, b = Scripted(), Scripted()
    connections.opened(a, 0)
    connections.opened(b, 0)
    connections.begins(b)
    connections.rests(b, 5)
    connections.sweep(SILENT_S - 0.1)
    assert ends(a, b) == ["", ""]
    connections.sweep(SILENT_S)
    assert ends(a, b) == ["gave way", ""]
    connections.sweep(IDLE_S + 4.9)
    assert b.end == ""
    connections.sweep(IDLE_S + 5)
    assert b.end == "gave way"


def test_what_is_gone_is_forgotten() -> None:
    """Neither its place nor its slowness outlives it, nor does a late word of its rest."""
    connections = ConnectionLimits(1, SILENT_S)
    a, b = Scripted(), Scripted()
    connections.opened(a, 0)
    connections.waits(a, 0)
    connections.closed(a)
    connections.rests(a, 1)
    connections.opened(b, 2)
    connections.sweep(1000)
    assert ends(a, b) == ["", "gave way"]
