from __future__ import annotations

import pytest

from gateway.telemetry import names
from gateway.telemetry.trace import NO_PARENT, RemoteParent, Trace, parse_parent


def _trace(*spans: tuple[str, int, int]) -> Trace:
    trace = Trace("request")
    for name, start_ns, end_ns in spans:
        hop = trace.begin(name)
        hop.start_ns, hop.end_ns = start_ns, end_ns
    return trace


def test_what_ran_side_by_side_is_waited_for_once() -> None:
    """Overlapping attempts, one within another, and one after a gap: the time in which any was open."""
    trace = _trace(("attempt", 10, 50), ("attempt", 30, 70), ("attempt", 35, 40), ("embed", 0, 99), ("attempt", 80, 90))
    trace.root.start_ns, trace.root.end_ns = 0, 100
    assert trace.overhead_ms() == 30e-6


@pytest.mark.parametrize("wait", [names.CACHE_FOLLOW, names.BUDGET_WAIT, names.QUOTA_WAIT])
def test_what_others_made_a_request_wait_is_not_overhead(wait: str) -> None:
    """A shared answer, a budget that holds it back, and money that other requests hold."""
    trace = _trace((wait, 10, 70), ("attempt", 70, 90))
    trace.root.start_ns, trace.root.end_ns = 0, 100
    assert trace.overhead_ms() == 20e-6


def test_a_hop_that_is_still_open_counts_up_to_now() -> None:
    """While an attempt runs, the time since its beginning has been waited."""
    trace = Trace("request")
    hop = trace.begin("attempt")
    before = hop.start_ns - trace.root.start_ns
    assert trace.overhead_ms() == before / 1e6
    hop.end()
    trace.root.end_ns = hop.end_ns + 5
    assert trace.overhead_ms() == (before + 5) / 1e6


_TRACE = b"4bf92f3577b34da6a3ce929d0e0e4736"
_PARENT = b"00f067aa0ba902b7"
_GOOD = b"00-" + _TRACE + b"-" + _PARENT + b"-01"


def test_a_valid_header_gives_both_ids() -> None:
    """The trace id and the parent id of a valid header come back as numbers."""
    assert parse_parent({b"traceparent": _GOOD}) == RemoteParent(
        0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, 1
    )


def test_our_own_header_is_read_back() -> None:
    """What a trace sends to a backend parses to that trace and that hop."""
    trace = Trace("request")
    read = parse_parent({b"traceparent": trace.traceparent(trace.root).encode()})
    assert (read.trace_id, read.parent_id) == (trace.trace_id, trace.span_id(trace.root))


def test_a_later_version_may_say_more() -> None:
    """A version after 00 is read as far as it is known."""
    assert parse_parent({b"traceparent": b"cc" + _GOOD[2:] + b"-what-the-future-holds"}) != NO_PARENT


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"ff" + _GOOD[2:],
        b"0" + _GOOD[2:],
        _GOOD + b"-more",
        _GOOD + b"\n",
        _GOOD + b" ",
        b" " + _GOOD,
        _GOOD.upper(),
        _GOOD.replace(b"-", b"_"),
        _GOOD.replace(_TRACE, b"0" * 32),
        _GOOD.replace(_PARENT, b"0" * 16),
        _GOOD.replace(_TRACE, _TRACE[:-1] + b"g"),
        _GOOD[:-1],
        b"cc" + _GOOD[2:] + b"more",
        b"cc" + _GOOD[2:] + b"-" + b"x" * 100,
    ],
)
def test_anything_else_is_as_good_as_absent(header: bytes | None) -> None:
    """A header that is not exactly right is ignored, however long or odd it is."""
    assert parse_parent({} if header is None else {b"traceparent": header}) == NO_PARENT
