"""Workers that follow the registry in a real store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.parts.rollout.registry import last_good
from gateway.parts.rollout.registry.checks import checked
from gateway.parts.rollout.registry.follower import PolicyFollower
from gateway.parts.rollout.registry.records import JUDGE, InForce, Mode, Replica
from gateway.parts.rollout.registry.registry import PolicyRegistry
from policies.errors import ConfigError
from policies.loader import PolicySet, PolicySource
from policies.model import DeployedTier
from tests.parts.rollout.registry.conftest import ROLLOUT, chat
from tests.support.store import UNHURRIED, LocalStore, local_store
from tests.support.wait import eventually


class Following:
    """A running follower, with what it told."""

    def __init__(self, store: RedisStore, source: PolicySource, state: Path, name: str = "") -> None:
        self.registry = PolicyRegistry(store)
        self.loaded: list[PolicySet] = []
        self.failed: list[ConfigError] = []
        self.notes: list[str] = []
        self.follower = PolicyFollower(
            source,
            self.registry,
            state / "policies.json",
            self.loaded.append,
            self.failed.append,
            self.notes.append,
            interval_s=0.02,
        )
        self.follower._name += name
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.follower.start()
        self._task = asyncio.create_task(self.follower.run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self.follower.aclose()

    @property
    def threshold(self) -> float:
        return self.follower.current.by_surface["chat"].escalate.when.confidence_below

    @property
    def note(self) -> str:
        return "; ".join(self.follower.notes)


Start = Callable[..., Following]


@pytest.fixture
async def start(store: RedisStore, source: PolicySource, tmp_path: Path) -> AsyncIterator[Start]:
    running: list[Following] = []

    def begin(of: PolicySource = source, state: str = "state", store: RedisStore = store) -> Following:
        running.append(Following(store, of, tmp_path / state, f"-{len(running)}"))
        return running[-1]

    yield begin
    for one in running:
        await one.stop()


async def told(registry: PolicyRegistry, revision: int | None) -> list[Replica]:
    """What the replicas say, once each says that it has this revision."""
    async with asyncio.timeout(20):
        while True:
            replicas = await registry.replicas()
            if replicas and all(replica.revision == revision for replica in replicas):
                return replicas
            await asyncio.sleep(0.01)


async def apply(
    registry: PolicyRegistry,
    source: PolicySource,
    text: str,
    mode: Mode | None = None,
    share: float = 1.0,
) -> InForce:
    """Apply a text to `chat`; the file has another name than any of the folder, which therefore stays as it was."""
    file = source.directory / "new.tmp"
    file.write_text(text)
    version, _ = checked(file, source, [], author="ada", message="why", at=2.0)
    return await registry.apply(version, await registry.surface("chat"), mode, share)


async def test_all_workers_take_what_is_applied_and_what_is_rolled_back(start: Start, source: PolicySource) -> None:
    one, two = start(), start(state="other")
    await one.start()
    await two.start()
    before = one.follower.current
    state = await apply(one.registry, source, chat(0.6))
    await eventually(lambda: one.threshold == two.threshold == 0.6)
    assert one.follower.current.by_surface["batch"] is before.by_surface["batch"]
    assert before.by_surface["chat"].escalate.when.confidence_below == 0.5
    await one.registry.rollback("chat", state.revision, by="ada", message="no")
    await eventually(lambda: one.threshold == two.threshold == 0.5)
    replicas = await told(one.registry, one.follower.revision)
    assert {replica.surfaces["chat"] for replica in replicas} == {before.by_surface["chat"].version}
    assert len(replicas) == 2


async def test_an_edited_file_is_drift_told_once_and_never_applied(
    start: Start, source: PolicySource, folder: Path
) -> None:
    one = start()
    await one.start()
    assert one.follower.notes == ()
    (folder / "chat.yaml").write_text(chat(0.9))
    one.follower._looked_at = 0.0
    await eventually(lambda: bool(one.follower.drift))
    assert one.follower.drift[0].startswith("chat.yaml says chat@")
    assert one.threshold == 0.5
    for _ in range(3):
        one.follower._looked_at = 0.0
        await one.follower.look()
    assert len([note for note in one.notes if "not applied" in note]) == 1
    (folder / "chat.yaml").write_text("surface: [\n")
    await one.follower._look_at_files(at_once=True)
    assert "the file is not in force" in one.follower.drift[0]
    (folder / "chat.yaml").write_text(chat())
    (folder / "_defaults.yaml").write_text("load: {max_waiting: 7}\n")
    await one.follower._look_at_files(at_once=True)
    assert [drift.split()[0] for drift in one.follower.drift] == ["batch.yaml", "chat.yaml"]
    (folder / "_defaults.yaml").unlink()
    await one.follower._look_at_files(at_once=True)
    assert one.follower.drift == ()


async def test_a_removed_surface_is_gone_on_all_workers_until_a_rollback(
    start: Start, source: PolicySource, registry: PolicyRegistry
) -> None:
    """Nothing brings it back by itself: not its file, which is drift, and not a worker that starts."""
    one, two = start(), start(state="other")
    await one.start()
    await two.start()
    batch = await registry.surface("batch")
    before = (one.follower.current.by_surface["batch"].version, len(await registry.history("batch")))
    gone = await registry.remove("batch", batch.revision, by="ada", message="nobody uses it", now=9.0)
    assert (gone.removed, gone.revision, gone.since) == (True, batch.revision + 1, 9.0)
    for follower in (one.follower, two.follower):
        await eventually(lambda follower=follower: "batch" not in follower.current.by_surface, 1.0)
        assert follower.failure is None
    assert list(await registry.in_force()) == ["chat"]
    await eventually(lambda: any("batch was removed from the store" in drift for drift in one.follower.drift), 5.0)
    three = start(state="third")
    await three.start()
    assert list(three.follower.current.by_surface) == ["chat"]

    later = await registry.surface("batch", removed=True)
    await registry.rollback("batch", later.revision, by="bo", message="it is used")
    for each in (one, two, three):
        await eventually(lambda each=each: "batch" in each.follower.current.by_surface, 1.0)
    assert one.follower.current.by_surface["batch"].version == before[0]
    entries = await registry.history("batch")
    assert [(entry.action, entry.by, entry.message) for entry in entries[before[1] :]] == [
        ("remove", "ada", "nobody uses it"),
        ("rollback", "bo", "it is used"),
    ]
    assert entries[-2].version == before[0]


async def test_a_candidate_rolls_beside_what_is_in_force_while_a_judge_is_at_work(
    start: Start, source: PolicySource, store: RedisStore
) -> None:
    one = start()
    await one.start()
    state = await apply(one.registry, source, chat(0.6, ROLLOUT), "evaluate")
    await eventually(lambda: "chat" in one.follower.current.rolling)
    assert one.threshold == 0.5
    rolling = one.follower.current.rolling["chat"]
    assert (rolling.mode, rolling.sticky, rolling.salt) == ("evaluate", "conversation", rolling.policy.version)
    assert rolling.policy.ladder == ("local", "hosted")
    await one.registry.step("chat", state.revision, by="ada", message="go")
    await eventually(lambda: "chat" not in one.follower.current.rolling, what="no judge, no canary")
    await store.ask([Command((b"SET", JUDGE.encode(), b"judge-1"))])
    await eventually(lambda: "chat" in one.follower.current.rolling)
    assert one.follower.current.rolling["chat"].share == 0.05
    assert one.follower.current.by_surface["chat"].escalate.when.confidence_below == 0.5


async def test_what_this_deployment_cannot_hold_leaves_the_last_good_version(
    start: Start, source: PolicySource, folder: Path
) -> None:
    """Another worker, whose deployment has more tiers, applies it; this one says why it does not follow."""
    wide = PolicySource(folder, (DeployedTier("local"), DeployedTier("hosted"), DeployedTier("large")))
    one, other = start(), start(wide, state="other")
    await one.start()
    await other.start()
    text = chat(0.6).replace("tiers: [local, hosted]", "tiers: [local, hosted, large]")
    state = await apply(one.registry, wide, text)
    await eventually(lambda: other.threshold == 0.6 and one.follower.failure is not None)
    assert one.threshold == 0.5
    assert "no tier 'large'" in str(one.follower.failure)
    await eventually(lambda: one.follower.revision == other.follower.revision)
    replicas = await told(one.registry, one.follower.revision)
    lagging = [replica for replica in replicas if replica.problem]
    assert len(lagging) == 1
    assert "no tier 'large'" in lagging[0].problem
    await one.registry.rollback("chat", state.revision, by="ada", message="no")
    await eventually(lambda: one.follower.failure is None and other.threshold == 0.5)
    assert len(one.failed) == 1


async def test_a_store_that_goes_down_leaves_the_last_good_set(source: PolicySource, tmp_path: Path) -> None:
    """Also for a worker that starts meanwhile; and a store that comes back empty is filled with it, not with files."""
    with local_store() as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        one = Following(store, source, tmp_path)
        await one.start()
        await apply(one.registry, source, chat(0.6))
        await eventually(lambda: one.threshold == 0.6)
        await eventually(lambda: b'"version"' in (tmp_path / "policies.json").read_bytes())
        await eventually(lambda: {v.version for v in last_good.kept(tmp_path / "policies.json")}
                         == {p.version for p in one.follower.current.by_surface.values()})  # fmt: skip
        server.stop()
        await eventually(lambda: "cannot be read" in one.note)
        assert one.threshold == 0.6
        late = Following(RedisStore.from_url(server.url), source, tmp_path)
        late.follower._interval_s = 0.02
        assert late.threshold == 0.6
        assert str(tmp_path / "policies.json") in late.note
        server.start()
        await eventually(lambda: "cannot be read" not in one.note, timeout_s=10)
        assert one.threshold == 0.6
        assert "the store had lost its registry" in "".join(one.notes)
        entries = await one.registry.history("chat")
        assert [entry.action for entry in entries] == ["seed"]
        assert (await one.registry.surface("chat")).live == one.follower.current.by_surface["chat"].version
        await one.stop()
        await late.follower._registry._store.aclose()
        await store.aclose()


async def test_a_canary_serves_no_longer_when_the_store_is_silent(source: PolicySource, tmp_path: Path) -> None:
    """No judge could take it back; it goes on when the store answers again. An evaluation goes on all the while."""
    with local_store() as server:
        store = RedisStore.from_url(server.url)
        one = Following(store, source, tmp_path)
        one.follower._unheard_s = 0.05
        await one.start()
        await store.ask([Command((b"SET", JUDGE.encode(), b"judge-1"))])
        await apply(one.registry, source, chat(0.6, ROLLOUT), "canary", 0.05)
        await eventually(lambda: "chat" in one.follower.current.rolling)
        server.freeze()
        await eventually(lambda: "chat" not in one.follower.current.rolling, timeout_s=10)
        server.thaw()
        await eventually(lambda: "chat" in one.follower.current.rolling, timeout_s=10)
        await one.stop()
        await store.aclose()


async def test_a_worker_without_store_and_without_a_kept_set_serves_the_files_and_says_so(
    source: PolicySource, tmp_path: Path, server: LocalStore
) -> None:
    store = RedisStore.from_url("redis://127.0.0.1:1/0")
    one = Following(store, source, tmp_path / "nothing")
    with suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await one.start()
    assert one.threshold == 0.5
    assert f"those of the files in {source.directory} are in force" in one.note
    await one.stop()
    await store.aclose()


async def test_a_kept_set_that_cannot_be_read_is_passed_over(source: PolicySource, tmp_path: Path) -> None:
    (tmp_path / "policies.json").write_text('{"surface": ')
    assert last_good.kept(tmp_path / "policies.json") == []
    store = RedisStore.from_url("redis://127.0.0.1:1/0")
    assert Following(store, source, tmp_path).threshold == 0.5
    await store.aclose()
