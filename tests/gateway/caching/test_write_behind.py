"""Step 11 over a real application and store: what is written and recorded of a reply, and what is drawn."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import orjson
import pytest

from cache.planning.plan import CachePlan
from cache.write import CacheWrite, PendingWrite
from gateway.caching import batches, write_behind
from gateway.parts.measures import reader
from gateway.request.context import AnswerEnd, Reply
from gateway.telemetry.trace import Trace
from policies.caching import CachePolicy
from routing.features import Features
from tests.gateway.telemetry.requests_made import escalated
from tests.support.app import in_process
from tests.support.ask import record_of
from tests.support.store import LocalStore
from tests.support.upstream import Upstream
from tests.support.wait import eventually


async def test_a_full_write_queue_costs_the_write_alone(
    upstream: Upstream, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where writes pile up, an answer goes out and its request is recorded, but the answer is not kept."""
    async with in_process(tmp_path, upstream.url, store_url=store.url) as app:
        monkeypatch.setattr(write_behind, "_QUEUE", 0)
        dropped = await app.ask("hello")
        assert dropped.headers["x-tierline-path"] == "direct"
        record = await record_of(app.steps.store, dropped.headers["x-request-id"])
        (write,) = [hop for hop in record["hops"] if hop["name"] == "cache.write"]
        assert (write["attributes"]["tierline.cache.outcome"], write["error"]) == ("dropped", "queue_full")
        assert not await app.stored("hello")
        monkeypatch.undo()
        assert (await app.ask("hello")).headers["x-tierline-path"] == "direct"
        await app.kept("hello")


async def test_writes_keep_pace_with_a_loop_that_has_few_turns(
    upstream: Upstream, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load a turn of the loop ends several requests: the more of them wait, the more are finished in a turn."""
    async with in_process(tmp_path, upstream.url, store_url=store.url) as app:
        monkeypatch.setattr(write_behind, "_QUEUE", 128)
        traces: list[Trace] = []
        for number in range(200):
            for place in range(3):
                plan = CachePlan(CachePolicy(), "chat", "chat@1", {}, Features("", 1, 2), "")
                trace, ledger = escalated(f"req-{number}-{place}")
                traces.append(trace)
                app.steps.write_behind.finish(trace, ledger, Reply(write=PendingWrite(plan, lambda: None)))
            time.sleep(0.002)  # the rest of such a turn
            await asyncio.sleep(0)
        assert [trace.hops[-1].error for trace in traces].count("queue_full") == 0


async def test_a_pending_answer_that_is_the_hit_leaves_no_lease(
    upstream: Upstream, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that finds nothing in the store takes the right to make the answer; a hit elsewhere gives it back."""
    monkeypatch.setattr(write_behind, "_LINGER_S", 0.3)
    async with in_process(tmp_path, upstream.url, store_url=store.url) as app:
        fresh = await app.ask("hello", {"cache-control": "no-cache"})
        assert fresh.headers["x-tierline-path"] == "direct"
        hit = await app.ask("hello")
        assert hit.headers["x-tierline-path"] == "cache-exact"
        leases = app.steps.coalescer.shared.leases
        await eventually(lambda: leases.held == 0, 5, "the release")
        await app.kept("hello")
        assert leases.held == 0


async def test_a_full_batch_is_finished_at_once(
    upstream: Upstream, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load no more than a batch of answers is in memory; fewer wait for others."""
    monkeypatch.setattr(write_behind, "_LINGER_S", 600.0)

    def unfinished() -> CacheWrite | None:
        return None

    async with in_process(tmp_path, upstream.url, store_url=store.url) as app:
        behind = app.steps.write_behind
        for number in range(batches.MOST_AT_ONCE + 1):
            write = PendingWrite(CachePlan(CachePolicy(), "chat", "chat@1", {}, Features("", 1, 2), ""), unfinished)
            behind.finish(*escalated(f"req-{number}"), Reply(write=write))
            await asyncio.sleep(0)
        await record_of(app.steps.store, f"req-{batches.MOST_AT_ONCE - 1}")
        assert [finished.ledger.request_id for finished in behind._queue] == [f"req-{batches.MOST_AT_ONCE}"]
    async with in_process(tmp_path / "again", upstream.url, store_url=store.url) as app:
        await record_of(app.steps.store, f"req-{batches.MOST_AT_ONCE}")


async def test_every_request_is_recorded_once(upstream: Upstream, store: LocalStore, tmp_path: Path) -> None:
    """One without a reply at once; one whose answer others still read at that answer's end."""
    async with in_process(tmp_path, upstream.url, store_url=store.url) as app:
        finish = app.steps.write_behind.finish
        finish(*escalated("req-alone"), None)
        await record_of(app.steps.store, "req-alone")
        finish(*escalated("req-shared"), Reply(shared_end=(end := AnswerEnd())))
        finish(*escalated("req-after"), None)
        await record_of(app.steps.store, "req-after")
        assert await reader.find(app.steps.store, "req-shared") is None
        end.end(None)
        await record_of(app.steps.store, "req-shared")
        finish(*escalated("req-late"), Reply(shared_end=end))  # the answer is over when its last reader is done
        await record_of(app.steps.store, "req-late")
        records = [orjson.loads(blob)["ledger"]["request_id"] async for blob in reader.newest(app.steps.store)]
        assert sorted(name for name in records if name.startswith("req-")) == [
            "req-after", "req-alone", "req-late", "req-shared",
        ]  # fmt: skip


async def test_what_is_open_when_the_process_stops_is_recorded(
    upstream: Upstream, store: LocalStore, tmp_path: Path
) -> None:
    """A request whose answer others still read at the stop is in the store like any other."""
    async with in_process(tmp_path, upstream.url, store_url=store.url) as app:
        app.steps.write_behind.finish(*escalated("req-open"), Reply(shared_end=AnswerEnd()))
    async with in_process(tmp_path / "again", upstream.url, store_url=store.url) as app:
        await record_of(app.steps.store, "req-open")


async def test_a_write_that_cannot_be_built_costs_no_other(
    upstream: Upstream, store: LocalStore, tmp_path: Path
) -> None:
    """Of one batch, an answer that cannot be put together is refused, and the others are written."""

    def broken() -> CacheWrite | None:
        raise ValueError("such JSON cannot be encoded")

    def unfinished() -> CacheWrite | None:
        return None

    async with in_process(tmp_path, upstream.url, store_url=store.url) as app:
        for name, make in (("req-broken", broken), ("req-unfinished", unfinished)):
            write = PendingWrite(CachePlan(CachePolicy(), "chat", "chat@1", {}, Features("", 1, 2), ""), make)
            app.steps.write_behind.finish(*escalated(name), Reply(write=write))
        await app.ask("hello")
        await app.kept("hello")
        for name in ("req-broken", "req-unfinished"):
            hops = (await record_of(app.steps.store, name))["hops"]
            assert hops[-1]["attributes"] == {
                "tierline.cache.outcome": "refused",
                "tierline.cache.reason": "unfinished",
            }
