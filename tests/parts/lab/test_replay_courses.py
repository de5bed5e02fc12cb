"""The courses of many requests, as the cascade that serves would go."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gateway.parts.lab.replay.cells import NO_TIER, CellVerdict
from gateway.parts.lab.replay.courses import FAILURE, GOOD, PATHS, POOR, Courses
from policies.model import Policy

TIERS = ("small", "middle", "large")
ALL = CellVerdict(TIERS, (), (), weaker=False, stands_in=False)
TOP = CellVerdict(("large",), ("middle", "small"), (), weaker=False, stands_in=False)
STANDS_IN = CellVerdict(("small",), (), ("large",), weaker=True, stands_in=True)


def policy(**rules: object) -> Policy:
    """A policy over three tiers."""
    return Policy.model_validate(
        {
            "surface": "chat",
            "version": "0" * 64,
            "slo": {"deadline": "10s", **({"on_miss": rules.pop("on_miss")} if "on_miss" in rules else {})},
            "tiers": list(TIERS),
            "route": {"start": {"small": "otherwise"}},
            "escalate": {"when": {"confidence_below": 0.5}, **rules},
        }
    )


def course(
    verdict: CellVerdict, *ends: tuple[int, bool], stream: bool = False, rules: Policy | None = None
) -> tuple[list[str], str, str]:
    """The tiers that one request calls, the tier that is served, and the path."""
    courses = Courses(rules or policy(), [NO_TIER, verdict], TIERS)
    at = courses.begin(np.array([1]), np.array([stream]))
    called = []
    for end, in_time in ends:
        called.append(TIERS[courses.tier[at][0]])
        at = courses.after(at, np.array([end]), np.array([in_time]))
    if (tier := courses.tier[at][0]) >= 0:
        called.append(TIERS[tier])
    served = courses.served[at][0]
    return called, TIERS[served] if served >= 0 else "", PATHS[courses.path[at][0]]


@pytest.mark.parametrize(
    ("verdict", "ends", "stream", "expected"),
    [
        (ALL, [(GOOD, True)], False, (["small"], "small", "direct")),
        (ALL, [(POOR, True), (GOOD, True)], False, (["small", "middle"], "middle", "escalated")),
        (ALL, [(POOR, False)], False, (["small"], "small", "degraded")),
        (ALL, [(POOR, False)], True, (["small"], "small", "degraded")),
        (ALL, [(FAILURE, True), (GOOD, True)], False, (["small", "middle"], "middle", "fallback")),
        (ALL, [(POOR, True), (FAILURE, True), (FAILURE, True)], False, ([*TIERS], "small", "degraded")),
        (ALL, [(POOR, True), (POOR, True), (GOOD, True)], True, ([*TIERS], "large", "escalated")),
        (TOP, [(FAILURE, True), (GOOD, True)], False, (["large", "middle"], "middle", "fallback")),
        (TOP, [(FAILURE, True)] * 3, False, (["large", "middle", "small"], "", "none")),
        (STANDS_IN, [(GOOD, True)], False, (["small"], "small", "degraded")),
    ],
)
def test_a_course_goes_as_the_cascade_goes(
    verdict: CellVerdict, ends: list[tuple[int, bool]], stream: bool, expected: tuple[list[str], str, str]
) -> None:
    assert course(verdict, *ends, stream=stream) == expected


def test_a_tier_whose_draft_was_dropped_from_a_stream_is_called_again() -> None:
    called, served, path = course(
        TOP._replace(tiers=("middle", "large"), fallbacks=()), (POOR, True), (FAILURE, True), (GOOD, True), stream=True
    )
    assert (called, served, path) == (["middle", "large", "middle"], "middle", "degraded")


def test_where_the_policy_serves_no_poor_answer_a_miss_fails() -> None:
    assert course(ALL, (POOR, False), rules=policy(on_miss="fail")) == (["small"], "", "none")


def test_no_more_attempts_are_made_than_the_policy_allows() -> None:
    for ends in itertools.product((POOR, FAILURE), repeat=3):
        called, *_ = course(ALL, *((end, True) for end in ends[:2]), rules=policy(max_attempts=2))
        assert len(called) == 2


def test_a_decision_without_a_tier_calls_nobody() -> None:
    courses = Courses(policy(), [NO_TIER], TIERS)
    at = courses.begin(np.array([0, 0]), np.array([False, True]))
    assert courses.tier[at].tolist() == [-1, -1] and courses.served[at].tolist() == [-1, -1]


def test_equal_courses_are_followed_together() -> None:
    courses = Courses(policy(), [ALL], TIERS)
    at = courses.begin(np.zeros(1000, np.int64), np.arange(1000) % 2 == 0)
    at = courses.after(at, np.full(1000, POOR), np.full(1000, True))
    assert len(np.unique(at)) == 2 and set(courses.tier[at]) == {1} and courses.judged[at].all()
    assert set(courses.above[at]) == {2}
