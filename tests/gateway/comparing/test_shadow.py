"""Requests run once more under a candidate in shadow mode: for nobody, off the path, under a cap, in no figure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from cache.store.redis_store import RedisStore
from gateway.archive.folder import locked
from gateway.archive.keeper import Keeper, Rotation
from gateway.archive.query import ask, opened
from gateway.telemetry.ledger import TRACES
from policies.loader import RollingPolicy, made_policy
from policies.rollout import Rollout, ShadowRules
from tests.support.app import InProcess, in_process
from tests.support.store import UNHURRIED, LocalStore, local_store
from tests.support.upstream import Reply, Upstream
from tests.support.wait import eventually

LIVE = """
surface: chat
slo: {deadline: 20s}
holdout: 0%
tiers: [local, hosted]
route: {classifier: none, start: {local: otherwise}}
escalate: {no_signal: accept}
"""
CANDIDATE = {
    "surface": "chat", "slo": {"deadline": "20s"}, "holdout": 0, "tiers": ["local", "hosted"],
    "route": {"classifier": "none", "start": {"local": "tokens_in < 1", "hosted": "otherwise"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[LocalStore]:
    with local_store() as running:
        yield running


def roll(app: InProcess, share: float, mode: Any = "shadow", cap: float = 1.0) -> None:
    """Try the candidate, which starts at the hosted tier."""
    policies = app.steps.policies
    policy = made_policy(CANDIDATE, Path("chat.yaml"), {})
    rollout = Rollout(steps=(0.1,), shadow=ShadowRules(max_usd_per_day=cap))
    candidate = RollingPolicy(policy.model_copy(update={"rollout": rollout}), share, mode, salt="s")
    policies.current = replace(policies.current, rolling={"chat": candidate})  # type: ignore[misc]


def outcomes(app: InProcess) -> dict[str, float]:
    samples = app.steps.metrics.shadows.collect()[0].samples
    return {one.labels["outcome"]: one.value for one in samples if one.name.endswith("_total") and one.value}


async def test_a_shadow_is_recorded_and_served_to_nobody(server: LocalStore, tmp_path: Path) -> None:
    """The client has its answer from the live policy before; the record has the arm `shadow`, its cost and its path."""
    with Upstream() as small, Upstream() as large:
        large.default = Reply(text="of the candidate", before_first_s=0.5)
        async with in_process(tmp_path, small.url, large.url, store_url=server.url, policies={"chat": LIVE}) as app:
            roll(app, 1.0)
            reply = await app.ask("hello", stream=True)
            assert outcomes(app) == {}, "the reply waited for the shadow's"
            assert "of the candidate" not in reply.text and reply.headers["x-tierline-tier"] == "local"
            await eventually(lambda: outcomes(app) == {"answered": 1}, 10)
            assert len(small.requests) == len(large.requests) == 1 and not large.requests[0].body.get("stream")
            counted = app.steps.metrics.cost.collect()[0].samples
            app.steps.metrics.flush()
            assert not any(one.labels["tier"] == "hosted" and one.value for one in counted)
            store = RedisStore.from_url(server.url, slack=UNHURRIED)
            async with asyncio.timeout(20):
                while len(found := await store.after(TRACES, "0", 10, 0)) < 2:
                    await asyncio.sleep(0.01)
            ledgers = {one["ledger"]["arm"]: one["ledger"] for one in (orjson.loads(blob) for _, blob in found)}
            assert ledgers["shadow"]["request_id"] == reply.headers["x-request-id"] + ".shadow"
            assert (ledgers["shadow"]["tier"], ledgers[""]["tier"]) == ("hosted", "local")
            assert ledgers["shadow"]["cost_usd"] > 0 and ledgers["shadow"]["policy"] != ledgers[""]["policy"]
            with locked(tmp_path / "archive"):
                await Keeper(store, tmp_path / "archive", Rotation(), lambda _: None).catch_up()
            await store.aclose()
    with opened(tmp_path / "archive") as database:
        assert ask(database, "SELECT tier FROM requests").fetchall() == [("local",)]
        assert ask(database, "SELECT tier, arm FROM shadows").fetchall() == [("hosted", "shadow")]


async def test_a_shadow_keeps_to_its_share_its_cap_and_its_mode(server: LocalStore, tmp_path: Path) -> None:
    """Another mode runs none; what may cost more than the day's cap is not called."""
    with Upstream() as small, Upstream() as large:
        async with in_process(tmp_path, small.url, large.url, store_url=server.url, policies={"chat": LIVE}) as app:
            roll(app, 1.0, "evaluate")
            await app.ask("one")
            roll(app, 0.0)
            await app.ask("two")
            assert not outcomes(app) and not large.requests
            roll(app, 1.0, cap=0.0)
            await app.ask("three")
            await eventually(lambda: outcomes(app) == {"no_budget": 1}, 10)
            assert not large.requests
