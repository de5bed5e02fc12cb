"""Ids begin with their time, so that a record is found by its id or the beginning of one."""

from __future__ import annotations

import time

import pytest

from gateway.parts.ledger.live import recorded_between
from gateway.telemetry.trace import Trace, new_request_id


def test_request_ids_sort_by_time_and_tell_it() -> None:
    before_ms = time.time_ns() // 1_000_000
    first = new_request_id()
    time.sleep(0.002)
    second = new_request_id()
    assert first < second
    for given in (first, first[:-6], first[:15]):
        told = recorded_between(given)
        assert told is not None
        assert told[0] < before_ms < told[1] < before_ms + 3 * 3_600_000


def test_trace_ids_tell_their_time_and_differ_in_all_other_bits() -> None:
    traces = [Trace("request") for _ in range(1000)]
    now_ms = time.time_ns() // 1_000_000
    for trace in traces:
        told = recorded_between(f"{trace.trace_id:032x}")
        assert told is not None
        assert told[0] < now_ms < told[1]
    assert len({trace.trace_id & (1 << 64) - 1 for trace in traces}) == 1000
    assert 400 < sum(trace.trace_id >> 63 & 1 for trace in traces) < 600  # head sampling goes by the low 64 bits


@pytest.mark.parametrize("given", ["", "req_", "req_019", "chatcmpl-123456789", "req_019g0000000", "REQ_019abcde012"])
def test_what_is_no_id_of_ours_tells_nothing(given: str) -> None:
    assert recorded_between(given) is None
