"""`tierline policy apply PLAN`: what was reviewed is what comes into force, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cache.store.redis_store import RedisStore
from gateway.cli.main import main
from gateway.config.loader import load_deployment
from gateway.parts.lab.commands._bound import bound_to
from gateway.parts.lab.replay.plan_file import PolicyPlan, write_plan
from gateway.parts.rollout.registry.checks import checked, seeds
from gateway.parts.rollout.registry.registry import PolicyRegistry
from policies.loader import PolicySource
from tests.parts.rollout.registry.conftest import chat, folder, registry, server, source, store
from tests.support.gateway import config
from tests.support.store import LocalStore

__all__ = ["folder", "registry", "server", "source", "store"]


@pytest.fixture
async def plan(
    registry: PolicyRegistry, source: PolicySource, server: LocalStore, tmp_path: Path, store: RedisStore
) -> Path:
    """A plan to escalate more, made from what is in force."""
    settings = config("http://127.0.0.1:9/v1", None, server.url, policies={"source": "store"})
    (tmp_path / "tierline.yaml").write_text(yaml.safe_dump(settings))
    await registry.seed(seeds(source, 1.0), "seeded")
    (tmp_path / "new.yaml").write_text(chat(0.7))
    version, _ = checked(tmp_path / "new.yaml", source, [], author="", message="", at=0.0)
    live = (await registry.surface("chat")).live
    bound = bound_to(load_deployment(tmp_path / "tierline.yaml", {}), live)
    write_plan(tmp_path / "chat.plan", PolicyPlan("chat", "new.yaml", chat(0.7), version.version, bound, 1.0))
    return tmp_path / "chat.plan"


def _apply(plan: Path) -> int:
    return main(["policy", "apply", str(plan), "-m", "why", "--config", str(plan.with_name("tierline.yaml"))])


def test_a_plan_whose_defaults_are_others_is_refused(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.with_name("_defaults.yaml").write_text("load: {max_waiting: 7}\n")
    assert _apply(plan) == 2
    assert "but its text makes chat@" in capsys.readouterr().err
    plan.with_name("_defaults.yaml").unlink()
    assert _apply(plan) == 0
