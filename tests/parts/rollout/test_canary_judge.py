"""The judge of canaries, with a real store and the gateway's own records."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
import pytest

from cache.store.base import Append, Command
from cache.store.redis_store import RedisStore
from gateway.parts.ledger.commands.policy_judge import earlier
from gateway.parts.ledger.folder import locked
from gateway.parts.ledger.keeper import Keeper, Rotation
from gateway.parts.measures import label
from gateway.parts.rollout.canary_judge import CanaryJudge, labels_of
from gateway.parts.rollout.registry.checks import checked
from gateway.parts.rollout.registry.records import JUDGE, InForce, Mode
from gateway.parts.rollout.registry.registry import PolicyRegistry
from gateway.telemetry.ledger import TRACES
from policies.loader import PolicySource, made_policy
from policies.model import DeployedTier
from tests.support.app import InProcess, in_process
from tests.support.gateway import CHAT
from tests.support.store import UNHURRIED, LocalStore
from tests.support.upstream import Upstream, error_reply

ROLLOUT = """
rollout: {steps: [40%, 60%], step_min: 0s, step_max: 1h, guard: {goodput: -20%}}
"""
TO_HOSTED = CHAT.replace("tiers: [local, hosted]", "tiers: [hosted]").replace("local: otherwise", "hosted: otherwise")


@dataclass
class Setup:
    """A gateway whose policies come from the store, the registry, and a judge that looks when it is told to."""

    app: InProcess
    registry: PolicyRegistry
    judge: CanaryJudge
    said: list[str]
    folder: Path
    asked: int = 0

    async def try_out(self, text: str, share: float = 0.4, mode: Mode = "canary") -> InForce:
        """Apply a policy as a candidate, and return once the worker follows."""
        file = self.folder / "candidate.yaml"
        file.write_text(f"{text}\n")
        source = PolicySource(self.folder / "policies", (DeployedTier("local"), DeployedTier("hosted")))
        version, _ = checked(file, source, [], author="ada", message="try", at=time.time())
        state = await self.registry.apply(version, await self.registry.surface("chat"), mode, share)
        await self.until_rolling(True)
        return state

    async def until_rolling(self, rolling: bool) -> None:
        """Return once the worker assigns, or no longer assigns, requests to a candidate."""
        async with asyncio.timeout(10):
            while bool(self.app.steps.policies.current.rolling) != rolling:
                await asyncio.sleep(0.01)

    async def ask(self, count: int) -> set[int]:
        """Send so many conversations' first turns, and return the statuses once all are recorded."""
        first, self.asked = self.asked, self.asked + count
        replies = await asyncio.gather(*(self.app.ask(f"question {number}") for number in range(first, self.asked)))
        async with asyncio.timeout(10):
            while self.app.steps.telemetry._queue or not await self.recorded():
                await asyncio.sleep(0.01)
        return {reply.status_code for reply in replies}

    async def recorded(self) -> bool:
        [[length]] = [await self.app.steps.store.ask([Command((b"XLEN", TRACES.encode()))])]
        return bool(length >= self.asked)

    async def state(self) -> InForce:
        return await self.registry.surface("chat")


@asynccontextmanager
async def setup(folder: Path, local: Upstream, hosted: Upstream, store: LocalStore) -> AsyncIterator[Setup]:
    settings = {"policies": {"source": "store"}, "embedding": {"state": str(folder / "state")}}
    async with in_process(folder, local.url, hosted.url, store_url=store.url, settings=settings) as app:
        said: list[str] = []
        judging = RedisStore.from_url(store.url, slack=UNHURRIED)
        judge = CanaryJudge(judging, said.append, settle_s=0)
        await judge.look()
        yield Setup(app, PolicyRegistry(judging), judge, said, folder)
        await judging.aclose()


async def test_a_candidate_that_fails_is_taken_back_with_its_figures(
    tmp_path: Path, local_upstream: Upstream, hosted_upstream: Upstream, store: LocalStore
) -> None:
    """By the judge alone, and no request gets it any more."""
    hosted_upstream.on(lambda _request: True).reply(error_reply(500))
    async with setup(tmp_path, local_upstream, hosted_upstream, store) as rig:
        tried = await rig.try_out(TO_HOSTED + ROLLOUT)
        assert tried.rolling is not None
        statuses = await rig.ask(40)
        assert 200 in statuses and max(statuses) >= 500
        await rig.judge.look()
        state = await rig.state()
        assert state.rolling is None and state.live == tried.live
        entry = (await rig.registry.history("chat"))[-1]
        assert (entry.action, entry.by, entry.before) == ("rollback", "tierline", tried.rolling.version)
        assert "goodput" in entry.message
        assert entry.details.startswith("candidate 1") and "goodput crossed -" in entry.details
        [goodput] = (await rig.registry.reports())["chat"]["guards"]
        assert (goodput["state"], goodput["control"], goodput["allowed"]) == ("crossed", 1, -0.2)
        assert goodput["candidate"] < 0.2 and goodput["high"] < -0.2
        await rig.until_rolling(False)
        assert await rig.ask(20) == {200}
        assert any("rollback" in line for line in rig.said)


async def test_what_is_late_is_known_from_the_requests_before_the_step(
    tmp_path: Path,
    local_upstream: Upstream,
    hosted_upstream: Upstream,
    store: LocalStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of the surface's policy in force."""
    monkeypatch.setattr("gateway.parts.rollout.trial._FIRST_TTFTS", 10)
    async with setup(tmp_path, local_upstream, hosted_upstream, store) as rig:
        await rig.ask(12)
        await rig.try_out(TO_HOSTED + ROLLOUT.replace("goodput: -20%", "ttft_p95: +50ms"))
        await rig.judge.look()
        [ttft] = (await rig.registry.reports())["chat"]["guards"]
        assert ttft["waits_for"].startswith("outcomes of more units: 0 of 5 candidate")
        trial = rig.judge._candidates["chat"].trial
        records = [json.loads(blob)["ledger"] for _, blob in await rig.app.steps.store.after(TRACES, "0", 100, 0)]
        times = [record["ttft_ms"] / 1000 for record in records]
        assert trial is not None and len(times) == 12 and trial._slow_after == pytest.approx(np.quantile(times, 0.95))


async def test_a_good_candidate_goes_step_by_step_to_all(
    tmp_path: Path, local_upstream: Upstream, hosted_upstream: Upstream, store: LocalStore
) -> None:
    """Each step begins anew, and the report says how far it is."""
    async with setup(tmp_path, local_upstream, hosted_upstream, store) as rig:
        candidate = await rig.try_out(TO_HOSTED + ROLLOUT)
        assert candidate.rolling is not None
        await rig.ask(6)
        await rig.judge.look()
        report = (await rig.registry.reports())["chat"]
        assert (report["move"], report["step"], report["version"]) == ("wait", 0, candidate.rolling.version)
        assert sum(report["requests"].values()) == 6
        assert report["lines"][0].startswith("candidate ") and "goodput   open" in report["lines"][1]
        steps = []
        for _ in range(12):
            await rig.ask(40)
            await rig.judge.look()
            state = await rig.state()
            if not steps or steps[-1] != (state.rolling and state.rolling.share):
                steps.append(state.rolling and state.rolling.share)
            if state.rolling is None:
                break
            async with asyncio.timeout(10):
                while rig.app.steps.policies.current.rolling["chat"].share != state.rolling.share:
                    await asyncio.sleep(0.01)
        assert steps[-2:] == [0.6, None]
        assert (await rig.state()).live == candidate.rolling.version
        assert ["60%" in line or "in force for all" in line for line in rig.said[-2:]] == [True, True]
        assert [entry.action for entry in await rig.registry.history("chat")] == ["seed", "apply", "step", "promote"]


def test_a_policy_with_one_tier_gets_no_labels() -> None:
    """A judge compares the answers of two, so its `learn` section alone decides no quality guard."""
    rules = {"surface": "chat", "slo": {"deadline": "9s"}, "learn": {"judge": "judge"}}
    one = {**rules, "tiers": ["hosted"], "route": {"start": {"hosted": "otherwise"}}}
    two = {**one, "tiers": ["local", "hosted"], "route": {"start": {"local": "otherwise"}}}
    assert labels_of(made_policy(one, Path("chat.yaml"), {})) is None
    assert labels_of(made_policy(two, Path("chat.yaml"), {})) is not None


async def test_a_judge_models_labels_take_a_worse_candidate_back(
    tmp_path: Path, local_upstream: Upstream, hosted_upstream: Upstream, store: LocalStore
) -> None:
    """Read from the store's stream, each for the arm of its request; without any the report says what is missing."""
    async with setup(tmp_path, local_upstream, hosted_upstream, store) as rig:
        await rig.try_out(TO_HOSTED + "rollout: {steps: [40%], step_min: 0s, step_max: 1h, guard: {quality: -10%}}")
        await rig.ask(120)
        await rig.judge.look()
        lines = (await rig.registry.reports())["chat"]["lines"]
        assert any("give both policies a `learn` section" in line for line in lines)
        records = [orjson.loads(blob) for _, blob in await rig.app.steps.store.after(TRACES, "0", 1000, 0)]
        for ledger in (record["ledger"] for record in records):
            bad = {"served": True, "adequate": float(ledger["arm"] == "control")}
            names = {name: ledger[name] for name in ("tenant", "request_id", "surface")}
            blob = orjson.dumps({"v": 1, **names, "small": bad, "strong": {"served": False, "adequate": 1.0}})
            await rig.app.steps.store.apply([Append(label.LABELS, blob, 1000)])
        await rig.judge.look()
        assert (await rig.state()).rolling is None
        entry = (await rig.registry.history("chat"))[-1]
        assert entry.action == "rollback" and entry.message.startswith("quality -100.0%")
        [quality] = (await rig.registry.reports())["chat"]["guards"]
        assert (quality["word"], quality["candidate"], quality["control"]) == ("judge", 0.0, 1.0)


async def test_shadows_are_summed_up_and_their_late_records_disturb_no_canary(
    tmp_path: Path, local_upstream: Upstream, hosted_upstream: Upstream, store: LocalStore
) -> None:
    """The report counts requests, failures and dollars, and says how the judge's labels compare both answers."""
    async with setup(tmp_path, local_upstream, hosted_upstream, store) as rig:
        tried = await rig.try_out(TO_HOSTED + ROLLOUT, 1.0, "shadow")
        assert tried.rolling is not None
        await rig.judge.look()
        assert "not judged" in (await rig.registry.reports())["chat"]["lines"][1]
        await rig.ask(3)
        rig.asked += 3  # each request is recorded a second time, for its shadow
        async with asyncio.timeout(10):
            while not await rig.recorded():
                await asyncio.sleep(0.01)
        candidate = f"chat@{tried.rolling.version[:7]}"
        for number in range(30):
            names = {"tenant": "default", "request_id": f"req-{number}", "surface": "chat", "conversation": number}
            answers = {"small": {"served": True, "adequate": 0.0}, "strong": {"served": False, "adequate": 1.0}}
            blob = orjson.dumps({"v": 1, **names, **answers, "better": "strong", "candidate": candidate})
            await rig.app.steps.store.apply([Append(label.LABELS, blob, 1000)])
        await rig.judge.look()
        report = (await rig.registry.reports())["chat"]
        assert (report["mode"], report["requests"], report["failed"]) == ("shadow", 3, 0)
        assert report["quality"]["pairs"] == 30 and report["quality"]["difference"]["low"] > 0.5
        assert report["lines"][1].startswith("quality  30 pairs judged: better 30, worse 0, alike 0; adequate 100.0%")
        state = await rig.state()
        await rig.registry.step("chat", state.revision, by="ada", message="serve it")
        await rig.judge.look()  # reads the shadows' records again, which are of neither arm
        assert (await rig.registry.reports())["chat"]["mode"] == "canary"


async def test_a_candidate_that_is_evaluated_is_decided_here_and_serves_nobody(
    tmp_path: Path, local_upstream: Upstream, hosted_upstream: Upstream, store: LocalStore
) -> None:
    """From the records alone: nothing is called, and no request gets it."""
    longer = CHAT.replace("start: {local: otherwise}", 'start: {local: "tokens_in < 20", hosted: otherwise}')
    async with setup(tmp_path, local_upstream, hosted_upstream, store) as rig:
        state = await rig.try_out(longer, mode="evaluate")
        assert state.rolling is not None
        await rig.ask(5)
        for number in range(3):
            await rig.app.ask(f"A much longer question, number {number}: " + "and so on " * 40)
        rig.asked += 3
        await rig.ask(0)
        await rig.judge.look()
        report = (await rig.registry.reports())["chat"]
        assert (report["mode"], report["version"]) == ("evaluate", state.rolling.version)
        assert (report["requests"], report["same"], report["not_comparable"]) == (8, 5, 0)
        assert report["elsewhere"] == [{"from": "local", "to": "hosted", "requests": 3}]
        assert "start elsewhere: 3 (37.5%)" in report["lines"]
        assert len(hosted_upstream.requests) == 0
        assert (await rig.state()).rolling is not None


async def test_a_judge_that_starts_again_reads_what_the_store_has_dropped(
    tmp_path: Path, local_upstream: Upstream, hosted_upstream: Upstream, store: LocalStore
) -> None:
    """From the files of the ledger, each request once."""
    folder = tmp_path / "ledger"
    async with setup(tmp_path, local_upstream, hosted_upstream, store) as rig:
        await rig.try_out(TO_HOSTED + ROLLOUT)
        await rig.ask(8)
        keeping = rig.app.steps.store
        with locked(folder):
            await Keeper(keeping, folder, Rotation(), rig.said.append).catch_up()
        await rig.ask(2)
        await keeping.ask([Command((b"XTRIM", TRACES.encode(), b"MAXLEN", b"1"))])
        again = CanaryJudge(
            keeping, rig.said.append, earlier=lambda since: earlier(folder, since), look_s=0, settle_s=0
        )
        await again.look()
        report = (await rig.registry.reports())["chat"]
        assert sum(report["requests"].values()) == 9  # the store had dropped one before it was kept
        assert {guard["n_candidate"] + guard["n_control"] for guard in report["guards"]} == {9}


async def test_silence_of_the_judge_is_failure(
    tmp_path: Path, local_upstream: Upstream, hosted_upstream: Upstream, store: LocalStore
) -> None:
    """Workers stop assigning when nobody judges, and the next judge takes back what was served meanwhile."""
    async with setup(tmp_path, local_upstream, hosted_upstream, store) as rig:
        await rig.try_out(TO_HOSTED + ROLLOUT)
        await rig.app.steps.store.delete(JUDGE)  # as if it had expired
        await rig.until_rolling(False)
        judging = RedisStore.from_url(store.url, slack=UNHURRIED)
        later = CanaryJudge(judging, rig.said.append, holder="other", clock=lambda: time.time() + 100)
        await later.look()
        await judging.aclose()
        assert (await rig.state()).rolling is None
        assert re.fullmatch(r"nobody judged it for 10\d s", (await rig.registry.history("chat"))[-1].message)


async def test_one_judge_is_at_work(store: LocalStore) -> None:
    """A second one waits, and goes on when the first has stopped."""
    said: list[str] = []
    first, second = (
        CanaryJudge(RedisStore.from_url(store.url, slack=UNHURRIED), said.append, holder=name, look_s=0.01)
        for name in ("first", "second")
    )
    running = asyncio.create_task(first.run())
    waiting = None
    try:
        async with asyncio.timeout(10):
            while "judging" not in said:
                await asyncio.sleep(0.01)
            waiting = asyncio.create_task(second.run())
            while "first judges; waiting until it stops" not in said:
                await asyncio.sleep(0.01)
            assert said.count("judging") == 1
            running.cancel()
            while said.count("judging") < 2:
                await asyncio.sleep(0.01)
    finally:
        for task in (running, waiting):
            if task is not None:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
