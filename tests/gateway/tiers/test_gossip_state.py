"""What workers tell each other of a backend."""

from __future__ import annotations

from gateway.tiers.breaker import Ejection
from gateway.tiers.gossip_state import rest_of, rest_told


def test_a_rest_is_told_as_time_left() -> None:
    """Each process has a clock of its own."""
    told = {"rest": rest_told(Ejection("pause", "asking for a pause", 5.0, 20.0), 8.0)}
    assert rest_of(told, 1000.0) == Ejection("pause", "asking for a pause", 1000.0, 1012.0)
    assert rest_told(Ejection("pause", "x", 5.0, 20.0, heard_from="w2"), 8.0) is None


def test_no_rest_is_longer_than_the_longest() -> None:
    """A sibling with a mistaken clock cannot rule a backend out for a day."""
    rest = rest_of({"rest": {"cause": "failing", "reason": "x", "left_s": 86400}}, 0.0)
    assert rest is not None
    assert rest.until == 300
