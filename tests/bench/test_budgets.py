"""What is counted, and the comparison of counts with their limits; all paths are counted by `make budgets`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.bench.budgets import AMONG, LIMITS, as_text, count_requests, exceeded, servers

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


def test_the_clocks_work_among_requests_is_counted_apart() -> None:
    """It may be more than twice its limit only where it is done for each request."""
    limit = {AMONG: {"calls": 1000.0}}
    assert exceeded({AMONG: {"calls": 2000.0}}, limit) == []
    assert len(exceeded({AMONG: {"calls": 3000.0}}, limit)) == 1


@pytest.mark.timeout(240)
@pytest.mark.long
def test_counts_do_not_depend_on_the_time_that_requests_take(tmp_path: Path) -> None:
    """Requests with pauses between them, in which the gateway's periodic work runs, cost the same calls."""

    def slowly(number: int) -> str:
        time.sleep(0.03)
        return f"a question after a pause, {number % 2}"

    with servers(tmp_path) as (_, ours):
        count_requests(ours, "bare", way="direct")  # what happens once has happened
        at_once = count_requests(ours, "bare", way="direct")
        paused = count_requests(ours, "bare", way="direct", prompts=slowly)
    assert paused["calls"] == pytest.approx(at_once["calls"], rel=0.05)
    assert paused["timers"] == pytest.approx(at_once["timers"], abs=0.2)
    assert ours.clock["calls"] > 0
