"""What stands beside a surface's figures on the Now page: candidates, lagging workers, backends that are out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest

from cache.store.base import Append, NoStore
from cache.store.redis_store import RedisStore
from gateway.parts.console.gateway_client import GatewayClient
from gateway.parts.console.standing import StandingReader, StoreStanding, backends_of, chips_of, marks_within, needs_of
from gateway.parts.console.views.now import _down_from, _flips_in
from gateway.parts.fleet.gossip import STREAM, ReportedEjection, ejections_in
from gateway.parts.hit_audits.control import RiskFigures
from gateway.parts.hit_audits.groups import GroupFigures
from gateway.parts.hit_audits.published import PublishedRisk, publication
from gateway.parts.rollout.registry.apply import apply_file
from gateway.parts.rollout.registry.records import Replica
from gateway.parts.rollout.registry.registry import PolicyRegistry
from gateway.tiers.breaker import REFUSALS, Cause
from tests.gateway.telemetry.conftest import server, store
from tests.parts.console.test_app import console, in_registry, places

__all__ = ["server", "store"]

SURFACE = {"surface": "chat", "canary": 12, "unavailable": {}, "cost_unknown": False}
THAI = GroupFigures("language", "Thai", 90, 4, 3, 0.97, 0.0, True)
BREACH = RiskFigures(0.01, 0.9, 0.95, 0.05, True, 1000, 50, 20, 40, 4, 0, 0, 0.021, 0.03, (THAI,))


def said(worker: str, cause: str = "", backend: str = "local") -> bytes:
    ejection = {"cause": cause, "reason": f"{cause} it is", "left_s": 9.0, "status": 503} if cause else None
    state = {f"{backend}@0123456789ab": {"in_flight": 1, "ejection": ejection}}
    return orjson.dumps({"v": 2, "worker": worker, "backends": state})


def test_a_backend_is_out_since_its_worker_said_so_without_a_break() -> None:
    """Newest first; other workers' reports do not end it, one without an ejection does, and silence of some seconds."""
    entries = [
        ("10000-0", said("a", "failing")), ("9500-0", said("b")), ("9000-0", said("a", "failing")),
        ("8000-0", said("a")), ("7000-0", said("a", "failing")),
    ]  # fmt: skip
    [one] = ejections_in(entries, 10.5)
    assert (one.backend, one.cause, one.reason, one.since_s, one.at_least) == (
        "local", "failing", "failing it is", 9.0, False,
    )  # fmt: skip
    assert ejections_in(entries[:3], 10.5)[0].at_least
    assert ejections_in(entries, 30.0) == [] and ejections_in([("10000-0", said("a")), *entries[2:]], 10.5) == []
    assert ejections_in([("10000-0", b"no json"), ("9000-0", said("a", "nonsense"))], 10.0) == []


async def trying(store: RedisStore, folder: Path) -> PolicyRegistry:
    """A registry with a canary on chat at its first share, one worker that has it and one that lags."""
    registry = await in_registry(store, folder)
    state = await registry.surface("chat")
    text = (await registry.version("chat", state.live)).text.replace("deadline: 2m", "deadline: 50s")
    file = folder / "chat.yaml"
    file.write_text(text + "\nrollout: {steps: [2.5%, 50%], step_min: 1h, step_max: 2h}\n")
    source = places(folder, store).source
    await apply_file(registry, source, file, how="canary", author="ann", message="why", at=time.time(), surface="chat")
    live = {name: one.live for name, one in (await registry.in_force()).items()}
    await registry.publish(Replica("a:1", 1, live, started=time.time()))
    await registry.publish(Replica("b:2", 1, {**live, "voice": "0" * 64}, problem="no tier x"))
    return registry


async def test_chips_say_what_the_registry_and_the_workers_say(store: RedisStore, tmp_path: Path) -> None:
    """The share of a canary is that of its step, however many of the requests in the span were of it."""
    registry = await trying(store, tmp_path)
    reader = StandingReader(store, places(tmp_path, store).deployment)
    standing = await reader.read()
    [chip] = chips_of(SURFACE, ("local", "hosted"), standing, reader)
    assert (chip.text, chip.href) == ("canary 2.5%", "/changes") and "12 requests" in chip.title
    assert standing.lagging == {}, "a change reaches every worker within seconds; until then nobody lags"
    assert {mark.kind for mark in standing.changes} == {"policy", "restart"}
    assert await reader.read() is standing, "the same answer serves all pages for a while"
    async with console(tmp_path, store, 10) as client:
        data = (await client.get("/now.json")).json()
        assert [one["text"] for one in data["surfaces"][0]["chips"]] == ["canary 2.5%"] and not data["standing_problem"]
        assert {(mark["kind"], mark["surface"]) for mark in data["marks"]} == {("policy", "chat"), ("restart", "")}
        page = (await client.get("/now")).text
        assert "canary 2.5%" in page and "worker a:1 started" in page and "cannot follow the policies" in page

    state = await registry.surface("chat")
    await registry.pause("chat", state.revision, by="ann", message="look first")
    await store.ask([publication(PublishedRisk("chat", "stream", time.time(), BREACH))], 1.0)
    await store.apply([Append(STREAM, said("a", "key", "hosted"), 100)])
    standing = await StandingReader(store, places(tmp_path, store).deployment).read()
    standing = replace(standing, lagging={"voice": ["b:2"], "chat": ["c:3"]})
    surface = {**SURFACE, "cost_unknown": True}
    texts = [chip.text for chip in chips_of(surface, ("local", "hosted"), standing, reader)]
    assert texts == [
        "canary 2.5%", "paused", "policy drifted on 1 of 2", "hosted out", "cache bound breached", "price unknown",
    ]  # fmt: skip
    chip = next(one for one in chips_of(surface, ("local", "hosted"), standing, reader) if "bound" in one.text)
    assert chip.title.endswith("of all requests, language Thai")
    needs = {need.what: need for need in needs_of(standing, reader)}
    words = (
        "Backend hosted of tier hosted is not called", "wrong hits to 2.10%", "b:2 cannot follow", "1 of 2 workers",
        "stays at 2.5%", "more wrong hits to language Thai",
    )  # fmt: skip
    found = [next(need for what, need in needs.items() if word in what) for word in words]
    assert all(need.todo and need.href for need in found) and len(needs) == len(words)
    assert "Set a new one" in found[0].todo and found[0].since_s is not None and found[4].since_s is not None


@pytest.mark.parametrize("cause", get_args(Cause))
async def test_every_cause_of_a_backend_that_is_out_is_told(tmp_path: Path, cause: Cause) -> None:
    """With what to do; one that only somebody can mend is told at once, the others when they last."""
    reader = StandingReader(NoStore(), places(tmp_path, RedisStore.from_url("redis://127.0.0.1:1")).deployment)
    for age_s in (1.0, 60.0):
        out = [ReportedEjection("hosted", cause, "it says no", time.time() - age_s, at_least=False)]
        needs = list(needs_of(StoreStanding(time.time(), out=out), reader))
        chips = list(chips_of(SURFACE, ("local", "hosted"), StoreStanding(time.time(), out=out), reader))
        assert [need.level for need in needs] == (["bad"] if cause in REFUSALS else ["warn"] if age_s > 30 else [])
        assert len(chips) == len(needs) and all(need.todo for need in needs)


async def test_a_store_that_does_not_answer_is_told_in_words(tmp_path: Path) -> None:
    reader = StandingReader(NoStore(), places(tmp_path, RedisStore.from_url("redis://127.0.0.1:1")).deployment)
    standing = await reader.read()
    assert standing.problem and list(needs_of(standing, reader)) == []
    assert list(chips_of(SURFACE, ("local",), standing, reader)) == []


def test_a_tier_that_goes_down_and_comes_back_is_marked_twice() -> None:
    rows = [
        {"bucket": bucket, "unavailable": None if why is None else ["", why]}
        for bucket, why in ((0, ""), (3, "down"), (4, None), (5, "down"), (9, ""), (11, "again"))
    ]
    flips = list(_flips_in({"surface": "chat", "ladder": ["local", "hosted"]}, rows, 0, 60_000))
    assert [(flip.at_s, flip.text) for flip in flips] == [
        (3.0, "tier hosted went down: down"), (9.0, "tier hosted came back"), (11.0, "tier hosted went down: again"),
    ]  # fmt: skip
    assert [mark["at"] for mark in marks_within(flips, 0.0, 6.0)] == [0.5]
    assert _down_from(rows, 1) == 11 and _down_from(rows[1:4], 1) is None and _down_from(rows, 0) is None


@contextlib.asynccontextmanager
async def answering(report: dict[str, Any]) -> AsyncIterator[GatewayClient]:
    """A gateway whose `/readyz` is this."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = orjson.dumps(report)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        client = GatewayClient(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        yield client
        await client.aclose()


def backend(state: str = "ready") -> dict[str, Any]:
    return {"state": state, "model": "small", "in_flight": 2, "waiting": 1}


async def test_what_the_gateway_says_is_degraded_needs_somebody(store: RedisStore, tmp_path: Path) -> None:
    """Each line once, and none of a tier that may be back in a moment; the strip has every backend."""
    tiers = {
        "local": {"state": "ready", "backends": {"local": backend()}},
        "hosted": {"state": "x", "backends": {"hosted": backend("unconfigured: OPENAI_API_KEY is not set")}},
    }
    lines = ["store: refuses writes", "tier local: it asked for a pause", "backend hosted: it refuses our key"]
    await store.apply([Append(STREAM, said("a", "key", "hosted"), 100)])
    async with answering(
        {"status": "degraded", "degraded": lines, "tiers": tiers, "surfaces": {"voice": "1"}}
    ) as client:
        reader = StandingReader(store, places(tmp_path, store).deployment, client)
        standing = await reader.read()
    needs = [need.what for need in needs_of(standing, reader)]
    store_fails = "The store does not work as it should: refuses writes."
    assert needs[:2] == [store_fails, "Backend hosted of tier hosted is not called: key it is"], needs
    assert not [what for what in needs if "asked for a pause" in what or "refuses our key" in what]
    local, hosted = backends_of(standing)
    assert (local.tier, local.state, local.in_flight, local.waiting) == ("local", "ready", 2, 1)
    assert (hosted.state, hosted.why, hosted.in_flight) == ("out", "key it is", 1), "in flight by all workers"


async def test_a_gateway_that_does_not_answer_is_the_first_thing_told(store: RedisStore, tmp_path: Path) -> None:
    reader = StandingReader(store, places(tmp_path, store).deployment, GatewayClient("http://127.0.0.1:1"))
    standing = await reader.read()
    first = next(needs_of(standing, reader))
    assert first.level == "bad" and first.what.startswith("The gateway at http://127.0.0.1:1 does not answer")
    assert list(backends_of(standing)) == []


async def test_a_gateway_that_hangs_is_told_with_how_long_it_was_waited_for(store: RedisStore, tmp_path: Path) -> None:
    silent = await asyncio.start_server(lambda *_: asyncio.sleep(60), "127.0.0.1", 0)
    origin = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    reader = StandingReader(store, places(tmp_path, store).deployment, GatewayClient(origin))
    first = next(needs_of(await reader.read(), reader))
    silent.close()
    assert first.what == f"The gateway at {origin} does not answer (nothing within 0.5 s)."


async def test_a_gateway_that_says_no_more_than_degraded_is_told_so(store: RedisStore, tmp_path: Path) -> None:
    """Where tenants have keys, details are for the admin's."""
    async with answering({"status": "degraded"}) as client:
        reader = StandingReader(store, places(tmp_path, store).deployment, client)
        assert "admin's key" in next(needs_of(await reader.read(), reader)).todo
