"""`learn: {apply: canary}`: what `tierline fit learn` starts by itself in a real registry, and what it refuses."""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest

from cache.store.redis_store import RedisStore
from gateway.cli.commands import CommandError
from gateway.cli.main import main
from gateway.config.launch import Launch
from gateway.parts.rollout.commands._learnt_canary import AUTHOR, in_force, start_canary
from gateway.parts.rollout.registry.checks import seeds
from gateway.parts.rollout.registry.registry import PolicyRegistry
from routing.difficulty.model import DifficultyModel, shipped_artefact
from routing.embedder import StaticEmbedder
from tests.parts.rollout.registry.conftest import server, store
from tests.support.gateway import config, write_deployment
from tests.support.store import UNHURRIED, LocalStore
from tests.support.strange_labels import label_rows
from tests.support.strange_models import Language

__all__ = ["server", "store"]
pytestmark = pytest.mark.usefixtures("store")  # it empties the registry

POLICY = """# ours
surface: chat
slo: {deadline: 20s}
tiers: [local, hosted]
route:
  classifier: default              # to be pinned
  start: {local: easiest 40% of its kind, hosted: otherwise}
"""
ROLLOUT = "rollout: {steps: [5%, 25%], guard: {quality: -2%}}\n"
CANARY = "learn: {judge: judge, apply: canary}\n"
T = TypeVar("T")


def deploy(folder: Path, policy: str, server: LocalStore, source: str = "store") -> Path:
    """Write a config with a judge and this policy, and put it in force in the store; return the config's file."""
    settings = config("http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1", server.url, policies={"source": source})
    judge = {"name": "judge", "base_url": "http://127.0.0.1:9/v1", "model": "judge-1"}
    settings["tiers"].append({"name": "judges", "backends": [judge]})
    write_deployment(folder, settings, {"chat": policy})
    if source == "store":
        launch = Launch(config=folder / "tierline.yaml", policies=folder / "policies")
        versions = seeds(launch.policy_source(launch.deployment()), time.time())
        in_registry(server, lambda registry: registry.seed(versions, "seeded"))
    return folder / "tierline.yaml"


def in_registry(server: LocalStore, work: Callable[[PolicyRegistry], Awaitable[T]]) -> T:
    async def run() -> T:
        opened = RedisStore.from_url(server.url, slack=UNHURRIED)
        try:
            return await work(PolicyRegistry(opened))
        finally:
            await opened.aclose()

    return asyncio.run(run())


def learn(folder: Path, rows: list[dict[str, Any]], *more: str) -> int:
    file = folder / "labels.jsonl"
    file.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    where = ["--config", str(folder / "tierline.yaml"), "--policies", str(folder / "policies")]
    out = str(folder / "policies" / "learned")
    return main(["fit", "learn", "--surface", "chat", *where, "--labels", str(file), "--out", out, *more])


def made_rows(count: int) -> list[dict[str, Any]]:
    embedder = StaticEmbedder.load()
    model = DifficultyModel.load(shipped_artefact("static"), embedder)
    return label_rows(count, Language.made(7, words=50), embedder, model)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTED_KEY", "sk-test")


@pytest.mark.long
@pytest.mark.parametrize("apply", ["canary", "propose"])
def test_what_is_learnt_is_started_as_a_canary_only_where_the_policy_says_so(
    apply: str, server: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the policy in force, not from the file; by its own name, with the measured figures; else nothing changes."""
    deploy(tmp_path, POLICY + ROLLOUT + CANARY.replace("canary", apply), server)
    (tmp_path / "policies" / "chat.yaml").write_text(POLICY.replace("20s", "10s"))  # drifted: in force nowhere
    assert learn(tmp_path, made_rows(360), "--json") == 0
    proposed = orjson.loads(capsys.readouterr().out)["proposed"]
    assert "deadline: 20s" in Path(proposed["policy"]).read_text()
    state = in_registry(server, lambda registry: registry.surface("chat"))
    history = in_registry(server, lambda registry: registry.history("chat"))
    if apply == "propose":
        assert state.rolling is None and [one.action for one in history] == ["seed"] and "canary" not in proposed
        return
    assert state.rolling is not None
    assert (state.rolling.mode, state.rolling.share, state.rolling.version) == (
        "canary",
        0.05,
        proposed["canary"]["version"],
    )
    assert (history[-1].action, history[-1].by) == ("apply", AUTHOR)
    assert "APGR" in history[-1].message and "108 held-out labels" in history[-1].message
    tried = in_registry(server, lambda registry: registry.version("chat", proposed["canary"]["version"]))
    assert f"classifier: {proposed['classifier']}" in tried.text and "# to be pinned" in tried.text
    assert learn(tmp_path, made_rows(10)) == 2  # before anything is fitted
    assert "is being tried, and `learn.apply` would start another canary" in capsys.readouterr().err


@pytest.mark.long
def test_what_is_not_better_starts_nothing(
    server: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labels that tell nothing end with exit 1, and the registry is as it was."""
    deploy(tmp_path, POLICY + ROLLOUT + CANARY, server)
    rows = made_rows(150)
    turned = [
        {**row, "small": other["small"], "strong": other["strong"]} for row, other in zip(rows, rows[::-1], strict=True)
    ]
    assert learn(tmp_path, turned) == 1
    assert "not better" in capsys.readouterr().out
    state = in_registry(server, lambda registry: registry.surface("chat"))
    assert state.rolling is None and state.revision == 1


def test_a_proposal_starts_beside_what_it_was_made_from_and_nothing_else(server: LocalStore, tmp_path: Path) -> None:
    """Stale where something else is in force by now; while it is tried or the surface is frozen, no other starts."""
    file = deploy(tmp_path, POLICY + ROLLOUT + CANARY, server)
    args = Namespace(store=server.url, config=file, state=tmp_path, surface="chat")
    launch = Launch(config=file, policies=tmp_path / "policies")
    source = launch.policy_source(launch.deployment())
    base = in_force(args, source)
    text = base.text.replace("easiest 40%", "easiest 50%")
    with pytest.raises(CommandError, match="stale: this was made from"):
        start_canary(args, source, replace(base, version="f" * 64), text, "why")
    started = start_canary(args, source, base, text, "APGR 0.6 against 0.5")
    state = in_registry(server, lambda registry: registry.surface("chat"))
    assert state.live == base.version and state.rolling is not None
    assert (state.rolling.version, state.rolling.share) == (started["version"], 0.05)
    entry = in_registry(server, lambda registry: registry.history("chat"))[-1]
    assert (entry.by, entry.message) == ("tierline fit learn", "APGR 0.6 against 0.5")
    with pytest.raises(CommandError, match="is being tried"):
        in_force(args, source)
    for word in ("rollback", "pause"):
        change = attrgetter(word)
        now = in_registry(server, lambda registry: registry.surface("chat"))
        in_registry(server, lambda registry: change(registry)("chat", now.revision, by="ada", message="no"))  # noqa: B023
    with pytest.raises(CommandError, match="is frozen"):
        in_force(args, source)


def test_a_canary_that_cannot_be_is_refused_before_anything_is_fitted(
    server: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By lint with its code, and by the command: where policies come from files, and without steps."""
    deploy(tmp_path / "files", POLICY + ROLLOUT + CANARY, server, "files")
    where = ["--config", str(tmp_path / "files" / "tierline.yaml")]
    assert main(["policy", "lint", str(tmp_path / "files" / "policies"), *where]) == 1
    assert "T716" in capsys.readouterr().out
    assert learn(tmp_path / "files", made_rows(5)) == 2
    assert "policies come from files here" in capsys.readouterr().err
    deploy(tmp_path / "store", POLICY + CANARY, server)
    where = ["--config", str(tmp_path / "store" / "tierline.yaml")]
    assert main(["policy", "lint", str(tmp_path / "store" / "policies"), *where]) == 1
    out = capsys.readouterr().out
    assert "T602" in out and "T716" not in out
    assert learn(tmp_path / "store", made_rows(5)) == 2
    assert "no `rollout` section" in capsys.readouterr().err
