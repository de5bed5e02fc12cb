"""A server that cuts off a prompt's beginning and answers 200."""

from __future__ import annotations

import itertools

import pytest

from tests.faults.lanes import Rig
from tests.faults.test_refusals import backend, backend_of
from tests.support.upstream import Reply, Upstream
from tests.support.wait import until

LONG = "The quick brown fox jumps over the lazy dog. " * 400
CUT = {"prompt_tokens": 2048, "completion_tokens": 10, "total_tokens": 2058}


@pytest.fixture(autouse=True)
def _cuts(local_upstream: Upstream, hosted_upstream: Upstream) -> None:
    local_upstream.default = Reply(text="I read the end.", usage=CUT)
    hosted_upstream.default = Reply(text="I read it all.")


def asked(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{number} {LONG}"}]


def test_the_next_tier_answers_what_a_server_read_in_part(rig: Rig, local_upstream: Upstream) -> None:
    """Its context is learnt, so that the next prompt of that length goes where it fits."""
    lane = rig.take("lane")
    answer = rig.ask(lane, messages=asked(1))
    assert (answer.status, answer.text) == (200, "I read it all.")
    assert answer.headers["x-tierline-path"] == "escalated"
    first = rig.hops(answer)[0]["attributes"]
    assert first["tierline.outcome"] == "unfit"
    assert first["tierline.fault"] == "the server read 2048 tokens of a prompt of 3601 words"
    assert backend(rig, lane)["context"] == 2048
    numbers = itertools.count(2)  # what was answered once comes from the cache, without an attempt

    def passed_over() -> bool:
        return rig.ask(lane, messages=asked(next(numbers))).headers["x-tierline-attempts"] == "1"

    until(passed_over, 5, "the tier passed over", poll_s=0.05)  # what a tier takes is looked up now and then
    before = len(local_upstream.requests)
    assert passed_over() and len(local_upstream.requests) == before


def test_from_the_last_tier_it_is_degraded(rig: Rig) -> None:
    """It is served where nothing better is left, says so, and is not kept for others."""
    lane = rig.take("lone")
    answer = rig.ask(lane, messages=asked(1))
    assert (answer.status, answer.text) == (200, "I read the end.")
    assert answer.headers["x-tierline-path"] == "degraded"
    assert not rig.cached(lane, messages=asked(1))


def test_a_stream_is_degraded_in_its_record(rig: Rig) -> None:
    """Its count comes at its end: it has gone out by then, and is not kept."""
    lane = rig.take("lone")
    answer = rig.ask(lane, stream=True, messages=asked(1))
    assert (answer.status, answer.text) == (200, "I read the end.")
    assert rig.record(answer.headers["x-request-id"])["ledger"]["path"] == "degraded"
    assert backend_of(rig, lane)["context"] == 2048
    assert not rig.cached(lane, messages=asked(1))


def test_a_server_that_reads_more_after_all_has_that_context(rig: Rig, local_upstream: Upstream) -> None:
    """Counts that are no sign of a cut are not held against it for hours."""
    lane = rig.take("lone")
    rig.ask(lane, messages=asked(1))
    local_upstream.default = Reply(text="All of it.", usage={**CUT, "prompt_tokens": 4000, "total_tokens": 4010})
    answer = rig.ask(lane, messages=asked(2))
    assert answer.headers["x-tierline-path"] == "direct"
    assert backend_of(rig, lane)["context"] is None
