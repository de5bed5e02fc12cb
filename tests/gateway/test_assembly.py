"""What a worker starts and closes, and in which order."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from gateway import assembly
from gateway.assembly import Managed, build, lifecycle, running
from gateway.config.launch import Launch
from gateway.steps import Steps
from tests.support.gateway import CHAT, config, write_deployment
from tests.support.store import LocalStore

ORDER = [
    "backend local",
    "backend hosted",
    "embedder",
    "store",
    "policies",
    "keys",
    "store room",
    "limits",
    "changes of policies",
    "cache",
    "telemetry",
    "observer",
    "kept calls",
    "other APIs",
    "services",
    "sessions and shorter input",
    "write-behind",
    "coalescer",
    "identities",
    "cache tidying",
    "key files",
    "gossip",
    "keep-warm",
    "tool-probe",
    "metrics",
    "gate",
]


@pytest.fixture
def steps(tmp_path: Path, store: LocalStore) -> Steps:
    write_deployment(tmp_path, config("http://127.0.0.1:9/v1", None, store.url), {"chat": CHAT})
    launch = Launch(config=tmp_path / "tierline.yaml", policies=tmp_path / "policies")
    deployment = launch.deployment({})
    return build(deployment, launch.policy_source(deployment))


async def test_what_is_started_last_is_closed_first(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """So everything finds what it uses alive until it has closed itself."""
    assert [managed.name for managed in lifecycle(steps)] == ORDER
    done: list[str] = []
    rows = [Managed(name, partial(done.append, f"+{name}"), partial(done.append, f"-{name}")) for name in ORDER]
    monkeypatch.setattr(assembly, "lifecycle", lambda _: rows)
    async with running(steps):
        assert done == [f"+{name}" for name in ORDER]
    assert done[len(ORDER) :] == [f"-{name}" for name in reversed(ORDER)]
    await steps.store.aclose()


async def test_a_failed_start_closes_what_has_started(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its connections and tasks would live on in a program that goes on without it."""
    closed: list[str] = []

    def fails() -> None:
        raise RuntimeError("no room")

    rows = [
        Managed("first", None, lambda: closed.append("first")),
        Managed("second", fails, lambda: closed.append("second")),
        Managed("third", None, lambda: closed.append("third")),
    ]
    monkeypatch.setattr(assembly, "lifecycle", lambda _: rows)
    with pytest.raises(RuntimeError, match="no room"):
        async with running(steps):
            pytest.fail("it has not started")
    assert closed == ["second", "first"]
    await steps.store.aclose()
