from __future__ import annotations

from gateway.telemetry.trace import Trace


def _trace(*spans: tuple[str, int, int]) -> Trace:
    trace = Trace("request")
    for name, start_ns, end_ns in spans:
        hop = trace.begin(name)
        hop.start_ns, hop.end_ns = start_ns, end_ns
    return trace


def test_what_ran_side_by_side_is_waited_for_once() -> None:
    """Overlapping attempts, one within another, and one after a gap: the time in which any was open."""
    trace = _trace(("attempt", 10, 50), ("attempt", 30, 70), ("attempt", 35, 40), ("embed", 0, 99), ("attempt", 80, 90))
    assert trace.waited_ns("attempt") == 70


def test_a_hop_that_is_still_open_counts_up_to_now() -> None:
    """While an attempt runs, the time since its beginning has been waited."""
    trace = Trace("request")
    hop = trace.begin("attempt")
    assert trace.waited_ns("attempt") >= 0
    hop.end()
    assert trace.waited_ns("attempt") == hop.end_ns - hop.start_ns
