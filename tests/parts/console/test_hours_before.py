"""What is told of a surface that is not as it was in the hours before: by figures alone, and on the page Now."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.parts.console.hours_before import PeriodSums, compared_hours, gone, moved_figures, unjudged_need
from gateway.parts.console.standing import StandingMark
from gateway.parts.console.surface_counts import BUCKETS
from gateway.parts.recorder.decision_record import DecisionRecorder
from gateway.telemetry.ledger import TRACES, CallAccount, ledger_blob
from tests.gateway.telemetry.conftest import server, store
from tests.gateway.telemetry.requests_made import escalated
from tests.parts.console.test_app import console

__all__ = ["server", "store"]

FROM_MS, SPAN_MS = 1_000_000_000, 3_600_000
EDIT = StandingMark("chat", "policy", FROM_MS / 1000 + 1830, "apply chat@f00d123 by ann: less strict")


def sums(requests: int, escalated: float = 0.1, usd: float = 0.001, **more: float) -> dict[str, Any]:
    """A row of sums, of requests whose costs spread by as much as their mean."""
    return {
        "requests": requests, "escalated": requests * escalated, "hits": requests * 0.2, "cost": requests * usd,
        "cost_squares": requests * usd * usd * 2, "drafts": 0.0, "unjudged": 0.0, **more,
    }  # fmt: skip


def per_bucket(edited: int, *after: float) -> list[dict[str, Any]]:
    """A row of 10 requests in each bucket, which have another escalation and cost from one bucket on."""
    return [{"bucket": at, **sums(10, *(after if at >= edited else ()))} for at in range(BUCKETS)]


@pytest.mark.parametrize(
    ("now", "before", "names"),
    [
        (sums(500, 0.38, 0.003), sums(500), ["cost", "escalated"]),
        (sums(500, 0.12, 0.0011), sums(500), []),
        (sums(20, 0.9, 0.01), sums(500), []),  # too few
        (sums(500, hits=0.0), sums(500), ["hits"]),
        (sums(500, drafts=200.0, unjudged=190.0), sums(500, drafts=200.0, unjudged=10.0), ["unjudged"]),
        (sums(500, 0.0, 0.0), sums(500, 0.0, 0.0), []),
        (sums(500, 0.1, 0.0074), sums(500), ["cost"]),
        (sums(60, 0.1, 0.002, cost_squares=60 * 0.01), sums(60), []),  # one dear request makes no trend
    ],
)
def test_a_figure_is_told_where_it_moved_by_much_and_no_chance(
    now: dict[str, Any], before: dict[str, Any], names: list[str]
) -> None:
    assert [one.name for one in moved_figures(PeriodSums.of([now]), PeriodSums.of([before]))] == names


def test_what_moved_is_told_with_who_changed_what() -> None:
    """Since the change, whatever came before it within the span; another surface's change is not it."""
    other = StandingMark("voice", "policy", EDIT.at_s + 5, "apply voice@0 by bob")
    found = compared_hours("chat", per_bucket(31, 0.38, 0.003), None, [EDIT, other], FROM_MS, SPAN_MS)
    assert found is not None
    need = found.need("chat")
    assert need.what == (
        "chat is not as it was in the hours before: cost per 1,000 $1.00 -> $3.00, escalations 10.0% -> 38.0%."
    )
    assert (need.since_s, need.level) == (EDIT.at_s, "warn")
    assert need.todo.startswith("Since apply chat@f00d123 by ann: less strict.")
    assert compared_hours("chat", per_bucket(BUCKETS), sums(3000), [EDIT], FROM_MS, SPAN_MS) is None


def test_a_change_before_the_span_is_held_against_the_hours_before() -> None:
    """And what began within it without any change is told without one."""
    before = StandingMark("", "restart", FROM_MS / 1000 - 60, "worker a:1 started")
    found = compared_hours("chat", per_bucket(0, 0.1, 0.0074), sums(3000), [before], FROM_MS, SPAN_MS)
    assert found is not None and found.change is before and [one.name for one in found.figures] == ["cost"]
    late = compared_hours("chat", per_bucket(40, 0.6, 0.001), None, [], FROM_MS, SPAN_MS)
    assert late is not None and late.change is None and "No change of its policy" in late.need("chat").todo


@pytest.mark.parametrize(("bucket", "slots", "told"), [(30, 60, True), (BUCKETS, 60, False), (30, 3, False)])
def test_traffic_that_is_gone_is_told(bucket: int, slots: int, told: bool) -> None:
    """By the rate of the hours before; a burst of some minutes promises nothing."""
    rows = [row for row in per_bucket(BUCKETS) if row["bucket"] < bucket]
    earlier = {**sums(3600), "slots": slots, "first_ms": FROM_MS - 6 * SPAN_MS}
    found = list(gone("chat", rows, earlier, [EDIT], FROM_MS, SPAN_MS))
    assert bool(found) is told
    if told:
        assert "chat: 0 requests in the last 15 min, where 1" in found[0].what and "by ann" in found[0].todo
        assert found[0].since_s == FROM_MS / 1000 + 1800
        assert list(gone("chat", (), earlier, [], FROM_MS, SPAN_MS)), "of a surface without any request in the span too"


def test_drafts_that_nobody_judged_are_told_where_a_verifier_is_asked() -> None:
    rows = [{"bucket": 0, **sums(200, drafts=200.0, unjudged=180.0)}]
    need = unjudged_need("chat", rows, ["judge"], "judge: it takes too long")
    assert need is not None and need.what == (
        "chat: nobody judged 180 of 200 drafts, though its policy asks judge (judge: it takes too long)."
    )
    assert unjudged_need("chat", rows, [], "") is None
    assert unjudged_need("chat", [sums(200, drafts=200.0, unjudged=90.0)], ["judge"], "") is None


async def seen(store: RedisStore, count: int, age_s: float, name: str, **ledger: Any) -> None:
    """Put records into the ledger's stream that ended so long ago, a second apart. Older ones have to be put first."""
    recorder, at_ms = DecisionRecorder({}), int((time.time() - age_s) * 1000)
    for number in range(count):
        trace, made = escalated(f"req-{name}-{number}", **ledger)
        trace.started_unix_ns = (at_ms + number * 1000) * 1_000_000
        entry = f"{at_ms + number * 1000}-0".encode()
        await store.ask([Command((b"XADD", TRACES.encode(), entry, b"v", ledger_blob(trace, made, recorder)))])


async def test_now_does_not_say_well_of_a_surface_that_costs_three_times_as_much(
    store: RedisStore, tmp_path: Path
) -> None:
    """Every limit is kept both times: the difference is told with the version that came into use."""
    calls = [CallAccount(1, "local", "a", "m", "accepted", 1, 1, False, 0.0, False, 0.0, None, 1.0, basis="none")]
    kept = {"slo": {"ttft_p95": True}}
    await seen(store, 150, 3 * 3600, "old", path="direct", cost_usd=0.0001, policy="chat@aaaaaaa", **kept)
    await seen(store, 60, 3000, "then", path="direct", cost_usd=0.0001, policy="chat@aaaaaaa", **kept)
    await seen(store, 110, 600, "new", cost_usd=0.0003, policy="chat@bbbbbbb", calls=calls, **kept)
    async with console(tmp_path, store, 1, **kept) as client:
        data = (await client.get("/now.json?since=1h")).json()
        [surface] = data["surfaces"]
        assert surface["state"] == "changed" and data["verdict"]["level"] == "warn", data["verdict"]
        assert "chat is not as in the hours before" in data["verdict"]["text"]
        [need] = data["needs"]
        assert "cost per 1,000 $0.10 -> $0.30, escalations 0.0% -> 100.0%" in need["what"], need
        assert "chat@bbbbbbb came into use" in need["todo"], need
        assert {one["name"] for one in surface["moved"]} >= {"cost", "escalated"}
        page = (await client.get("/now?since=1h")).text
        assert "not as before" in page and "came into use" in page
