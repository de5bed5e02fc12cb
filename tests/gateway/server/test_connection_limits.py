"""Which connections make room, and which are waited for no longer."""

from __future__ import annotations

import pytest

from gateway.server.connection_limits import IDLE_S, KEPT_BACK, SLOW_S, ConnectionLimits

SILENT_S = 10.0


class Scripted:
    """A connection that only says what became of it."""

    end = ""
    kept_back = False

    def give_way(self) -> None:
        self.end = "gave way"

    def turn_away(self, *, patient: bool) -> None:
        self.end = "turned away" if patient else "turned away at once"

    def too_slow(self) -> None:
        self.end = "too slow"

    def no_room(self) -> None:
        self.end = "no room"


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


def test_when_all_are_at_work_the_newcomer_is_for_probes_alone() -> None:
    """Nobody's answer is cut off for somebody who has not asked yet; the protocol refuses it unless it is a probe."""
    connections = ConnectionLimits(1, SILENT_S)
    a, b, c = Scripted(), Scripted(), Scripted()
    connections.opened(a, 0)
    connections.begins(a)
    connections.opened(b, 1)
    assert (ends(a, b), a.kept_back, b.kept_back) == (["", ""], False, True)
    connections.closed(a)
    connections.opened(c, 2)
    assert (c.end, c.kept_back) == ("", False)
    connections.sweep(2 + SLOW_S)
    assert (b.end, c.end) == ("too slow", "gave way")


def test_places_are_kept_back_for_the_admin_port_and_for_probes_apart() -> None:
    """The oldest newcomer whose request has not come makes room; those whose request has come stay."""
    connections = ConnectionLimits(1, SILENT_S)
    connections.opened(a := Scripted(), 0)
    connections.begins(a)
    crowd = [Scripted() for _ in range(KEPT_BACK)]
    for one in crowd:
        connections.opened(one, 1)
    connections.goes_on(crowd[0])  # its head has come
    connections.opened(late := Scripted(), 2)
    assert ends(*crowd[:3], late) == ["", "turned away", "", ""]
    admins = [Scripted() for _ in range(KEPT_BACK)]
    for one in admins:
        connections.opened(one, 3, room=False, admin=True)
        connections.goes_on(one)
    assert {one.end for one in admins} == {""} and all(one.kept_back for one in admins)
    connections.opened(more := Scripted(), 4, admin=True)
    assert more.end == "turned away"
    connections.closed(admins[0])
    connections.opened(more := Scripted(), 5, admin=True)
    assert more.end == ""


def test_a_websocket_that_rests_makes_room_last() -> None:
    """After those that are idle; one whose request is answered stays, and of two the one that rests longer goes."""
    connections = ConnectionLimits(4, SILENT_S)
    made = [Scripted() for _ in range(3)]
    first, second, busy = (Scripted() for _ in range(3))
    for now, (one, socket) in enumerate(zip(made, (first, second, busy), strict=True)):
        connections.opened(one, now)
        connections.begins(one)
        connections.becomes(one, socket)
        connections.socket_rests(socket, now)
    connections.socket_rests(busy, None)
    connections.opened(idle := Scripted(), 4)
    connections.begins(idle)
    connections.rests(idle, 5)
    connections.opened(a := Scripted(), 6)
    assert ends(idle, first, second, busy, a) == ["gave way", "", "", "", ""]
    connections.begins(a)
    connections.opened(b := Scripted(), 7)
    assert (ends(first, second, busy, b), b.kept_back) == (["gave way", "", "", ""], False)
    connections.sweep(8 + IDLE_S)
    assert ends(second, busy) == ["", ""]


def test_unfinished_heads_have_a_room_of_their_own() -> None:
    """The oldest makes room; one that is complete, or gone, counts no more."""
    connections = ConnectionLimits(10, SILENT_S, heads=100)
    a, b, c = (Scripted() for _ in range(3))
    for one in (a, b, c):
        connections.opened(one, 0)
        connections.begins(one)
    connections.head_grows(a, 60)
    connections.head_came(a)
    connections.head_grows(b, 60)
    connections.head_grows(a, 20)
    connections.head_grows(a, 20)
    assert ends(a, b) == ["", ""]
    connections.head_grows(c, 20)
    assert ends(a, b, c) == ["", "no room", ""]
    connections.head_grows(c, 40)
    assert ends(a, c) == ["", ""]
    connections.closed(c)
    connections.head_grows(a, 60)
    assert a.end == ""
    connections.head_grows(a, 1)
    assert a.end == "no room"


def test_at_the_limit_the_oldest_unfinished_head_makes_room() -> None:
    """Who keeps a place with half a head keeps it from nobody who comes later."""
    connections = ConnectionLimits(2, SILENT_S)
    a, b, c = (Scripted() for _ in range(3))
    for one in (a, b):
        connections.opened(one, 0)
        connections.begins(one)
        connections.head_grows(one, 10)
        connections.waits(one, 0)
    connections.opened(c, 1)
    assert (ends(a, b, c), c.kept_back) == (["no room", "", ""], False)


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
    rejected = 100 - KEPT_BACK
    assert ends(*crowd) == ["turned away"] * 64 + ["turned away at once"] * (rejected - 64) + [""] * KEPT_BACK
    connections.closed(crowd[0])
    connections.opened(Scripted(), 12)
    assert crowd[rejected].end == "turned away"
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "connections rejected: 1",
        "connections rejected: 84",
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
