"""The registry of policies in a real store: versions, states, and the audit trail of every change."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.config.addresses import open_store
from gateway.parts.rollout.registry.checks import checked, seeds
from gateway.parts.rollout.registry.records import Replica, Version
from gateway.parts.rollout.registry.registry import PolicyRegistry, RegistryConflict, RegistryError
from policies.errors import ConfigError
from policies.loader import PolicySource
from tests.parts.rollout.registry.conftest import ROLLOUT, chat
from tests.support.cluster import cluster_of
from tests.support.store import UNHURRIED


async def seeded(registry: PolicyRegistry, source: PolicySource) -> None:
    assert await registry.seed(seeds(source, 1.0), "seeded")


def version(source: PolicySource, tmp_path: Path, text: str, message: str = "why", at: float = 2.0) -> Version:
    file = tmp_path / "new.yaml"
    file.write_text(text)
    return checked(file, source, [], author="ada", message=message, at=at)[0]


async def test_files_seed_an_empty_registry_once(registry: PolicyRegistry, source: PolicySource) -> None:
    await seeded(registry, source)
    assert not await registry.seed(seeds(source, 2.0), "again")
    states = await registry.in_force()
    assert list(states) == ["batch", "chat"]
    assert states["chat"].live == source.load().by_surface["chat"].version
    assert [(entry.surface, entry.action, entry.by) for entry in await registry.history()] == [
        ("batch", "seed", "files"),
        ("chat", "seed", "files"),
    ]


async def test_each_change_is_audited_with_its_author_and_message(
    registry: PolicyRegistry, source: PolicySource, tmp_path: Path
) -> None:
    await seeded(registry, source)
    before = await registry.surface("chat")
    new = version(source, tmp_path, chat(0.6), "fewer escalations")
    after = await registry.apply(new, before)
    assert (after.live, after.revision, after.rolling) == (new.version, 2, None)
    assert await registry.surface("chat") == after
    entry = (await registry.history("chat"))[-1]
    assert (entry.action, entry.version, entry.before) == ("apply", new.version, before.live)
    assert (entry.by, entry.message, entry.at) == ("ada", "fewer escalations", 2.0)
    stored = await registry.version("chat", new.version[:4])
    assert stored == replace(new, parent=before.live)
    assert stored.text == chat(0.6)


async def test_a_stale_change_is_refused_and_leaves_no_trace(
    registry: PolicyRegistry, source: PolicySource, tmp_path: Path
) -> None:
    await seeded(registry, source)
    before = await registry.surface("chat")
    await registry.apply(version(source, tmp_path, chat(0.6)), before)
    with pytest.raises(RegistryConflict, match="revision 2"):
        await registry.apply(version(source, tmp_path, chat(0.7)), before)
    assert len(await registry.history("chat")) == 2
    assert len(await registry.versions("chat")) == 2


async def test_of_many_changes_at_once_one_is_made(
    registry: PolicyRegistry, source: PolicySource, tmp_path: Path
) -> None:
    await seeded(registry, source)
    before = await registry.surface("chat")
    new = [version(source, tmp_path, chat(0.6 + number / 100)) for number in range(8)]
    results = await asyncio.gather(*(registry.apply(one, before) for one in new), return_exceptions=True)
    refused = [result for result in results if isinstance(result, RegistryConflict)]
    assert len(refused) == 7
    assert len(await registry.history("chat")) == 2


async def test_texts_that_rule_the_same_share_a_version_and_each_is_kept(
    registry: PolicyRegistry, source: PolicySource, tmp_path: Path
) -> None:
    await seeded(registry, source)
    before = await registry.surface("chat")
    with pytest.raises(RegistryError, match="already in force"):
        await registry.apply(version(source, tmp_path, chat()), before)
    commented = chat(more="# a comment\n")
    after = await registry.apply(version(source, tmp_path, commented), before)
    assert after.live == before.live
    assert (await registry.version("chat", before.live)).text == commented
    assert [one.text for one in await registry.versions("chat")] == [chat(), commented]


async def test_a_candidate_goes_through_its_steps_to_all(
    registry: PolicyRegistry, source: PolicySource, tmp_path: Path
) -> None:
    await seeded(registry, source)
    live = await registry.surface("chat")
    new = version(source, tmp_path, chat(0.6, ROLLOUT))
    state = await registry.apply(new, live, "evaluate")
    assert state.live == live.live
    assert state.rolling is not None and state.rolling.mode == "evaluate"
    with pytest.raises(RegistryError, match="is being tried"):
        await registry.apply(version(source, tmp_path, chat(0.7)), state)
    shares = []
    while state.rolling is not None:
        state = await registry.step("chat", state.revision, by="tierline", message="the guards hold", now=5.0)
        shares.append(state.rolling and (state.rolling.mode, state.rolling.share, state.rolling.since))
    assert shares == [("canary", 0.05, 5.0), ("canary", 0.25, 5.0), None]
    assert (state.live, state.since, (await registry.surface("chat")).since) == (new.version, 5.0, 5.0)
    assert [entry.action for entry in await registry.history("chat")] == ["seed", "apply", "step", "step", "promote"]


async def test_a_rollback_drops_the_candidate_then_goes_further_back_each_time(
    registry: PolicyRegistry, source: PolicySource, tmp_path: Path
) -> None:
    await seeded(registry, source)
    first = state = await registry.surface("chat")
    second = state = await registry.apply(version(source, tmp_path, chat(0.6)), state)
    state = await registry.apply(version(source, tmp_path, chat(0.7)), state)
    state = await registry.apply(version(source, tmp_path, chat(0.8)), state, "canary", 0.05)
    live = state.live
    state = await registry.rollback("chat", state.revision, by="ada", message="slow")
    assert (state.live, state.rolling) == (live, None)
    state = await registry.rollback("chat", state.revision, by="ada", message="slow")
    assert state.live == second.live
    state = await registry.rollback("chat", state.revision, by="ada", message="still slow")
    assert state.live == first.live
    with pytest.raises(RegistryError, match="no other version"):
        await registry.rollback("chat", state.revision, by="ada", message="more")
    back = await registry.version("chat", live)
    state = await registry.rollback("chat", state.revision, by="ada", message="it was the network", to=back)
    assert state.live == live


async def test_pausing_holds_a_candidate_or_freezes_the_surface(
    registry: PolicyRegistry, source: PolicySource, tmp_path: Path
) -> None:
    await seeded(registry, source)
    state = await registry.surface("chat")
    state = await registry.pause("chat", state.revision, by="ada", message="the fair")
    assert state.frozen
    new = version(source, tmp_path, chat(0.6))
    with pytest.raises(RegistryError, match="frozen"):
        await registry.apply(new, state)
    state = await registry.resume("chat", state.revision, by="ada", message="over")
    state = await registry.apply(new, state, "canary", 0.05)
    state = await registry.pause("chat", state.revision, by="tierline", message="undecided")
    assert state.rolling is not None and state.rolling.paused == "undecided" and not state.frozen
    state = await registry.resume("chat", state.revision, by="ada", message="go on", now=9.0)
    assert state.rolling is not None and (state.rolling.paused, state.rolling.since) == ("", 9.0)
    with pytest.raises(RegistryError, match="not paused"):
        await registry.resume("chat", state.revision, by="ada", message="go on")


async def test_the_audit_trail_is_whole_however_long(
    registry: PolicyRegistry, source: PolicySource, store: RedisStore
) -> None:
    await seeded(registry, source)
    state = await registry.surface("chat")
    for _ in range(30):
        state = await registry.pause("chat", state.revision, by="ada", message="")
        state = await registry.resume("chat", state.revision, by="ada", message="")
    blob = (await store.latest("tierline:{policies}:audit", 1))[0][1]
    add = Command((b"XADD", b"tierline:{policies}:audit", b"*", b"v", blob))
    await store.ask([add] * 2500)
    assert len(await registry.history()) == 2 + 60 + 2500


async def test_replicas_are_shown_until_they_withdraw(registry: PolicyRegistry) -> None:
    one = Replica("a:1", 3, {"chat": "f00d"}, {"chat": "beef canary 0.05"}, "", ("chat.yaml says something else",))
    two = Replica("b:1", 2, {"chat": "cafe"}, problem="no tier")
    await registry.publish(two)
    await registry.publish(one)
    assert await registry.replicas() == [one, two]
    await registry.withdraw("a:1")
    assert await registry.replicas() == [two]


async def test_reports_are_by_surface(registry: PolicyRegistry) -> None:
    await registry.put_report("chat", {"looks": 3})
    assert await registry.reports() == {"chat": {"looks": 3}}


async def test_a_prefix_that_fits_several_versions_is_refused(
    registry: PolicyRegistry, source: PolicySource, tmp_path: Path
) -> None:
    await seeded(registry, source)
    await registry.apply(version(source, tmp_path, chat(0.6)), await registry.surface("chat"))
    with pytest.raises(RegistryError, match="several versions"):
        await registry.version("chat", "")
    with pytest.raises(RegistryError, match="no version 'zz'"):
        await registry.version("chat", "zz")
    with pytest.raises(RegistryError, match="no surface 'voice'; it has batch, chat"):
        await registry.surface("voice")


async def test_a_cluster_keeps_the_registry_on_one_node(source: PolicySource, tmp_path: Path) -> None:
    """Whichever node the URL names: the scripts reach all of their keys."""
    with cluster_of() as cluster:
        for url in cluster.urls:
            store = open_store(url, slack=UNHURRIED)
            await store.ping()
            registry = PolicyRegistry(store)
            await registry.seed(seeds(source, 1.0), "seeded")
            state = await registry.surface("chat")
            new = version(source, tmp_path, chat(0.6 + state.revision / 100))
            after = await registry.apply(new, state)
            await registry.publish(Replica(url, 1, {"chat": after.live}))
            assert (await registry.version("chat", after.live)).text == new.text
            await store.aclose()
        store = open_store(cluster.urls[0], slack=UNHURRIED)
        await store.ping()
        assert len(await PolicyRegistry(store).replicas()) == len(cluster.urls)
        assert len(await PolicyRegistry(store).history("chat")) == 1 + len(cluster.urls)
        await store.aclose()


async def test_what_the_deployment_cannot_hold_is_not_accepted(source: PolicySource, tmp_path: Path) -> None:
    file = tmp_path / "chat.yaml"
    others = seeds(source, 1.0)
    for text, message in (
        (chat().replace("tiers: [local, hosted]", "tiers: [local, moon]"), "no tier 'moon'"),
        (chat().replace("models: [chat, gpt-4o-mini]", "models: [batch]"), "already stands for the surface 'batch'"),
        (chat().replace("deadline: 20s", "deadline: soon"), "chat.yaml:4"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            checked(file, source, others, author="ada", message="", at=1.0)


async def test_a_surface_is_removed_only_where_nothing_needs_it(
    registry: PolicyRegistry, source: PolicySource, tmp_path: Path
) -> None:
    """A default surface, one with a candidate, a frozen one and the last one stay; no refusal leaves a trace."""
    await registry.seed(seeds(source, 1.0), "seeded")

    async def refused(surface: str, says: str) -> None:
        state = await registry.surface(surface)
        with pytest.raises(RegistryError, match=says):
            await registry.remove(surface, state.revision, by="ada", message="why")
        assert await registry.surface(surface) == state

    await registry.publish(Replica("a:1", 1, {}, default="chat"))
    await refused("chat", "default surface of 1 workers, such as a:1")
    await registry.withdraw("a:1")
    tried = version(source, tmp_path, chat(0.6, ROLLOUT))
    state = await registry.apply(tried, await registry.surface("chat"), "canary", 0.05)
    await refused("chat", "is being tried; .* --with-candidate")
    state = await registry.remove("chat", state.revision, by="ada", message="why", with_candidate=True)
    assert (await registry.history("chat"))[-1].details == f"with its candidate chat@{tried.version[:7]}"
    await refused("batch", "the only surface")
    with pytest.raises(RegistryError, match="was removed"):
        await registry.pause("chat", state.revision, by="ada", message="why")
    with pytest.raises(RegistryConflict, match="it is gone"):
        await registry.apply(tried, None)

    # Another version takes the place of the removed one, and a rollback then goes back to what was before.
    again = await registry.apply(version(source, tmp_path, chat(0.7)), state)
    assert (again.revision, again.rolling) == (state.revision + 1, None)
    back = await registry.rollback("chat", again.revision, by="ada", message="why")
    assert back.live == (await registry.versions("chat"))[0].version
    state = await registry.pause("chat", back.revision, by="ada", message="why")
    await refused("chat", "is frozen")
