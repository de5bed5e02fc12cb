"""The comparison of counts with their limits; the counting itself is `make budgets`."""

from __future__ import annotations

import json

from tests.bench.budgets import LIMITS, as_text, exceeded

LIMIT = {"miss": {"calls": 1000.0, "tasks": 1.0, "store_bytes": 100.0}}


def test_a_path_that_grew_is_named() -> None:
    """Beyond the tolerance each count is one line; within it, and where nothing is held, there is none."""
    assert exceeded({"miss": {"calls": 1100.0, "tasks": 1.2, "store_bytes": 900.0}}, LIMIT) == []
    assert exceeded({"miss": {"calls": 1200.0, "tasks": 3.0}}, LIMIT) == [
        "miss: 1200.00 calls, 1000 allowed",
        "miss: 3.00 tasks, 1 allowed",
    ]


def test_a_path_without_limits_is_not_forgotten() -> None:
    """A new path has to be given its limits."""
    (line,) = exceeded({"miss": {"calls": 1.0}, "new": {"calls": 1.0}}, LIMIT)
    assert line.startswith("new: there are no limits")


def test_the_table_is_a_line_a_path() -> None:
    """Each path's calls stand beside the raw proxy's."""
    counts = {"raw proxy": {"calls": 200.0}, "bare": {"calls": 500.0}}
    head, raw, bare = as_text(counts).splitlines()
    assert "x raw" in head
    assert raw.endswith("1.00")
    assert bare.endswith("2.50")


def test_every_path_of_ours_has_limits() -> None:
    """What is written in the tree holds calls, tasks and round trips of each path."""
    limits = json.loads(LIMITS.read_text())
    assert len(limits) >= 10
    assert all({"calls", "tasks", "round_trips"} <= set(limit) for limit in limits.values())
