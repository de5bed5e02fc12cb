"""A real store with an empty registry, and policies to put into it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.parts.rollout.registry.registry import PolicyRegistry
from policies.loader import PolicySource
from policies.model import DeployedTier
from tests.support.gateway import CHAT
from tests.support.store import UNHURRIED, LocalStore, local_store

BATCH = """
surface: batch
slo: {deadline: 20s}
tiers: [local]
route: {classifier: none, start: {local: otherwise}}
"""
ROLLOUT = "rollout: {steps: [5%, 25%]}\n"


def chat(confidence_below: float = 0.5, more: str = "") -> str:
    """The text of a policy for `chat`, with that threshold."""
    return CHAT.replace("confidence_below: 0.5", f"confidence_below: {confidence_below}") + more


@pytest.fixture(scope="module")
def server() -> Iterator[LocalStore]:
    with local_store() as running:
        yield running


@pytest.fixture
async def store(server: LocalStore) -> AsyncIterator[RedisStore]:
    opened = RedisStore.from_url(server.url, slack=UNHURRIED)
    await opened.ask([Command((b"FLUSHALL",))])
    yield opened
    await opened.aclose()


@pytest.fixture
def registry(store: RedisStore) -> PolicyRegistry:
    return PolicyRegistry(store)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two policies, `chat` and `batch`."""
    folder = tmp_path / "policies"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "chat.yaml").write_text(chat())
    (folder / "batch.yaml").write_text(BATCH)
    return folder


@pytest.fixture
def source(folder: Path) -> PolicySource:
    return PolicySource(folder, (DeployedTier("local"), DeployedTier("hosted")))
