"""Which connections make room, and which are waited for no longer."""

from __future__ import annotations

from gateway.connections import IDLE_S, SILENT_S, SLOW_S, Connections


class Scripted:
    """A connection that only says what became of it."""

    end = ""

    def give_way(self) -> None:
        self.end = "gave way"

    def too_slow(self) -> None:
        self.end = "too slow"


def ends(*connections: Scripted) -> list[str]:
    return [connection.end for connection in connections]


def test_the_oldest_idle_one_makes_room() -> None:
    """Not one at work, and not one that was at work more lately."""
    connections = Connections(3)
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


def test_when_all_are_at_work_the_newcomer_gives_way() -> None:
    """Nobody's answer is cut off for somebody who has not asked yet."""
    connections = Connections(1)
    a, b, c = Scripted(), Scripted(), Scripted()
    connections.opened(a, 0)
    connections.begins(a)
    connections.opened(b, 1)
    assert ends(a, b) == ["", "gave way"]
    connections.closed(a)
    connections.opened(c, 2)
    assert c.end == ""


def test_slow_ones_are_waited_for_so_long() -> None:
    """From when they were first said to be slow, unless they go on."""
    connections = Connections(10)
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
    connections = Connections(10)
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
    connections = Connections(1)
    a, b = Scripted(), Scripted()
    connections.opened(a, 0)
    connections.waits(a, 0)
    connections.closed(a)
    connections.rests(a, 1)
    connections.opened(b, 2)
    connections.sweep(1000)
    assert ends(a, b) == ["", "gave way"]
