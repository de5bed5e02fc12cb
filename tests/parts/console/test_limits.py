"""Whether a limit is kept, missed, or of too few requests to say, and since when it is missed."""

from __future__ import annotations

import pytest

from gateway.parts.console.limits import SurfaceLimit, is_over, may_miss, trouble_in
from gateway.parts.console.needs import verdict_of
from gateway.parts.console.standing import Need


@pytest.mark.parametrize(
    ("name", "held", "missed", "verdict"),
    [
        ("ttft_p95", 19, 0, "few"),  # not one of them may miss it
        ("ttft_p95", 20, 0, "kept"),
        ("ttft_p95", 20, 1, "kept"),
        ("ttft_p95", 20, 2, "few"),  # in a quarter of all cases so many do, of requests that keep it
        ("ttft_p95", 20, 4, "missed"),
        ("ttft_p95", 3, 3, "missed"),
        ("ttft_p50", 12, 9, "few"),
        ("ttft_p50", 12, 10, "missed"),
        ("goodput", 60, 5, "missed"),
        ("goodput", 99, 0, "few"),
        ("goodput", 100, 1, "kept"),
        ("total_p99", 100_000, 1_000, "kept"),
        ("total_p99", 100_000, 1_100, "missed"),
        ("deadline", 1, 1, "missed"),
    ],
)
def test_a_limit_is_missed_by_more_than_chance(name: str, held: int, missed: int, verdict: str) -> None:
    assert SurfaceLimit(name, 400.0, held, missed, may_miss(name)).verdict == verdict


def test_a_trouble_is_the_time_with_too_many_misses() -> None:
    """A miss now and then before it is none of it, and neither is the quiet after it."""
    held = [10.0] * 12
    missed = [0.0, 1, 0, 0, 0, 6, 8, 7, 0, 0, 0, 0]
    assert trouble_in(held, missed, 0.05) == (5, 7)
    assert trouble_in(held, [0.0] * 12, 0.05) is None
    assert trouble_in([0.0, 10.0], [0.0, 10.0], 0.01) == (1, 1)


@pytest.mark.parametrize(
    ("since", "still", "over"),
    [(0, 0, False), (3, 0, False), (20, 0, True), (40, 1, True), (20, 4, False), (5_000, 40, True)],
)
def test_a_trouble_is_over_once_enough_requests_say_so(since: int, still: int, over: bool) -> None:
    """The few of a part that has just begun do not turn the first sentence, and neither does a pause."""
    assert is_over([10.0, 100, 100, since], [0.0, 20, 20, still], 1, 2) is over
    assert is_over([4.0, 3], [4.0, 0], 0, 0), "after misses alone, three that keep it are enough"


def test_a_trouble_that_is_over_is_not_called_too_few_requests() -> None:
    """The first sentence says that a limit was missed, and that it is kept since."""
    ended = Need("warn", "chat: 19.8% of first tokens came late.", 1.0, "See which.", "/surfaces/chat", 2.0)
    chat = {"surface": "chat", "requests": 189, "state": "over"}
    voice = {"surface": "voice", "requests": 6, "state": "few"}
    batch = {"surface": "batch", "requests": 5, "state": "well"}
    assert verdict_of([ended], [chat, voice], "15m") == {
        "level": "warn",
        "text": "chat missed a limit earlier, and not since (195 requests in the last 15m); "
        "too few requests to say of voice; 1 thing to look at.",
    }
    assert verdict_of([ended], [chat, batch], "15m")["text"].startswith(
        "chat missed a limit earlier, and not since; batch keeps its limits (194 requests"
    )


def test_the_first_sentence_ends_before_the_next_one() -> None:
    out = Need("bad", "Backend hosted is not called: refusing our key (status 401)", 1.0, "Set one.", "/requests")
    said = verdict_of([out, out], [{"surface": "chat", "requests": 3, "state": "few"}], "15m")["text"]
    assert said == "Backend hosted is not called: refusing our key (status 401). And 1 more to look at."
