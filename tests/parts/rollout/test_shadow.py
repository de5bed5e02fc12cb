"""Requests run once more under a candidate in shadow mode: for nobody, off the path, under a cap, in no figure."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis

from cache.store.base import Write
from cache.store.redis_store import RedisStore
from gateway.cli.main import main
from gateway.parts.ledger.folder import locked
from gateway.parts.ledger.keeper import Keeper, Rotation
from gateway.parts.ledger.query import ask, connect
from gateway.parts.measures import label
from gateway.parts.measures.daily_budget import DailyBudget
from gateway.parts.rollout.policy import Learn, Rollout, ShadowRules
from gateway.telemetry.ledger import TRACES
from policies.loader import RollingPolicy, made_policy
from tests.support.app import InProcess, in_process
from tests.support.metrics import samples_of
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
    samples = samples_of(app.steps.metrics, "shadows")
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
    with connect(tmp_path / "archive") as database:
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


VERDICT = '{"better": "%s", "adequate_a": %s, "adequate_b": %s}'


@asynccontextmanager
async def judged_gateway(
    folder: Path, url: str, three: tuple[Upstream, Upstream, Upstream]
) -> AsyncIterator[InProcess]:
    """A gateway whose small model says nonsense, whose large one is right, and whose judge sees it."""
    small, large, judge = three
    small.default, large.default = Reply(text="nonsense"), Reply(text="the right answer")
    judge.default = Reply(text=VERDICT % ("B", "false", "true"))
    judge.on('"answer_b":"nonsense"').reply(text=VERDICT % ("A", "true", "false"))

    def tier(name: str, upstream: Upstream) -> dict[str, Any]:
        price = {"input": 1.0, "output": 4.0}
        return {"name": name, "backends": [{"name": name, "base_url": upstream.url, "model": name, "price": price}]}

    tiers = [tier("local", small), tier("hosted", large), tier("judges", judge)]
    async with in_process(folder, small.url, store_url=url, policies={"chat": LIVE}, settings={"tiers": tiers}) as app:
        yield app


def roll_judged(app: InProcess, cap: float = 1.0) -> str:
    """Try the candidate as a shadow of every request, judged; return its label."""
    roll(app, 1.0, cap=cap)
    [(surface, rolling)] = app.steps.policies.current.rolling.items()
    learned = replace(rolling, policy=rolling.policy.model_copy(update={"learn": Learn(judge="judges")}))
    app.steps.policies.current = replace(app.steps.policies.current, rolling={surface: learned})  # type: ignore[misc]
    return learned.policy.label


async def test_a_judge_compares_a_shadow_with_what_was_served(server: LocalStore, tmp_path: Path) -> None:
    """Streamed or whole: after the reply, in a label that names the candidate and is no label of tiers."""
    store = RedisStore.from_url(server.url, slack=UNHURRIED)
    for stream in (label.LABELS, TRACES):
        await store.delete(stream)
    with Upstream() as small, Upstream() as large, Upstream() as judge:
        async with judged_gateway(tmp_path, server.url, (small, large, judge)) as app:
            candidate = roll_judged(app)
            served = [await app.ask("one"), await app.ask("two", stream=True)]
            await eventually(lambda: outcomes(app) == {"judged": 2}, 10)
            assert len(judge.requests) == 4 and len(small.requests) == len(large.requests) == 2
            spent = samples_of(app.steps.metrics, "shadow_usd")[0].value
        found = [label.decode_label(blob) for _, blob in await store.after(label.LABELS, "0", 10, 0)]
        assert {one["request_id"] for one in found if one} == {one.headers["x-request-id"] for one in served}
        for one in found:
            assert one is not None and (one["candidate"], one["better"]) == (candidate, "strong")
            assert (one["small"]["tier"], one["small"]["adequate"], one["small"]["served"]) == ("local", 0, True)
            assert (one["strong"]["tier"], one["strong"]["adequate"], one["strong"]["served"]) == ("hosted", 1, False)
            assert one["messages"] is None and one["small"]["text"] is None
        judged = sum(one["judge_usd"] for one in found if one)
        assert 0 < judged < spent
        assert await label.stored_labels(store) == []
        with locked(tmp_path / "archive"):
            await Keeper(store, tmp_path / "archive", Rotation(), lambda _: None).catch_up()
    await store.aclose()
    with connect(tmp_path / "archive") as database:
        assert ask(database, "SELECT count(*) FROM labels").fetchall() == [(0,)]
        rows = ask(database, "SELECT candidate, better, served.tier, shadow.tier FROM shadow_labels").fetchall()
    assert rows == [(candidate, "shadow", "local", "hosted")] * 2
    arguments = ["fit", "learn", "quality", "--surface", "chat", "--ledger", str(tmp_path / "archive"), "--json"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert await asyncio.to_thread(main, arguments) == 0
    [shadow] = orjson.loads(out.getvalue())["shadows"]
    assert (shadow["candidate"], shadow["pairs"], shadow["new"], shadow["present"]) == (candidate, 2, 1.0, 0.0)
    assert shadow["difference"]["value"] == 1.0 and shadow["difference"]["low"] < 1.0


async def test_a_label_that_cannot_be_kept_costs_the_label_alone(server: LocalStore, tmp_path: Path) -> None:
    """What the shadow and its judge have cost is counted and recorded all the same."""
    store = RedisStore.from_url(server.url, slack=UNHURRIED)
    await store.delete(TRACES)
    await store.apply([Write(label.LABELS, b"no stream", 60)])
    with Upstream() as small, Upstream() as large, Upstream() as judge:
        async with judged_gateway(tmp_path, server.url, (small, large, judge)) as app:
            roll_judged(app)
            await app.ask("one")
            await eventually(lambda: outcomes(app) == {"store": 1}, 10)
            assert len(judge.requests) == 2
            spent = samples_of(app.steps.metrics, "shadow_usd")[0].value
    ledgers = [orjson.loads(blob)["ledger"] for _, blob in await store.after(TRACES, "0", 10, 0)]
    [shadow] = [one for one in ledgers if one["arm"] == "shadow"]
    assert 0 < shadow["cost_usd"] < spent
    await store.delete(label.LABELS)
    await store.aclose()


async def test_the_judge_of_shadows_keeps_to_their_cap(server: LocalStore, tmp_path: Path) -> None:
    """What answer and judge may cost together is reserved before; what is over the cap is not called."""
    with Upstream() as small, Upstream() as large, Upstream() as judge:
        async with judged_gateway(tmp_path, server.url, (small, large, judge)) as app:
            cap = await DailyBudget(app.steps.store).spent("shadow:chat") + 0.016  # of three calls of 1,024 tokens
            roll(app, 1.0, cap=cap)
            await app.ask("without a judge it fits")
            await eventually(lambda: outcomes(app) == {"answered": 1}, 10)
            roll_judged(app, cap=cap)
            await app.ask("with one it does not")
            await eventually(lambda: outcomes(app) == {"answered": 1, "no_budget": 1}, 10)
            assert not judge.requests and len(large.requests) == 1


async def test_shadows_have_a_cap_of_their_own(server: LocalStore, tmp_path: Path) -> None:
    """What the surface's comparisons have spent today is not theirs, nor the other way round."""
    with Upstream() as small, Upstream() as large, redis.Redis.from_url(server.url) as client:
        client.flushall()
        async with in_process(tmp_path, small.url, large.url, store_url=server.url, policies={"chat": LIVE}) as app:
            budget = DailyBudget(app.steps.store)
            assert await budget.reserve("chat", 1.0, 1.0) is not None
            roll(app, 1.0, cap=1.0)
            await app.ask("one")
            await eventually(lambda: outcomes(app) == {"answered": 1}, 10)
            assert (await budget.spent("chat"), await budget.spent("shadow:chat") > 0) == (1.0, True)
