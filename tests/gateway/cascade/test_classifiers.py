"""Classifiers that policies pin: loaded with the policy, refused with a reason, used for its requests alone."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np
import orjson
import pytest

from cache.store.base import Command
from gateway.parts.fit.learning.own_artefact import save_own
from gateway.parts.recorder.decision_record import BASES
from policies.errors import ConfigError
from policies.loader import CLASSIFIER_SHEET
from routing.difficulty.model import SHEET_FILE, shipped_artefact
from routing.difficulty.own_heads import OwnHeads
from routing.difficulty.text_statistics import COUNTS
from tests.support.app import in_process
from tests.support.store import local_store
from tests.support.upstream import Upstream

PINNED = """
surface: chat
slo: {deadline: 20s}
tiers: [local, hosted]
holdout: 0%
route: {classifier: CLASSIFIER, start: {local: p_adequate >= 0.1, hosted: otherwise}}
"""
PLAIN = (
    PINNED.replace("surface: chat", "surface: plain")
    .replace("CLASSIFIER", "default")
    .replace("p_adequate >= 0.1", "p_adequate >= 0.1 or not in_domain")
)


def own_artefact(folder: Path, dimension: int = 256) -> Path:
    """Heads that take every request for one that the small tier fails."""
    zeros, kinds = np.zeros((2, dimension), np.float32), np.tile(np.linspace(0, 1, 101), (5, 1))
    counts = np.zeros((2, len(COUNTS)), np.float32)
    bias = np.array([[-4, -4], [4, 4]], np.float32)
    ends = np.zeros(len(COUNTS), np.float32), np.ones(len(COUNTS), np.float32)
    everywhere = np.array([-1], np.float32)
    heads = OwnHeads(zeros, counts, np.zeros((2, 2), np.float32), bias, *ends, zeros[:1], everywhere, kinds)
    return save_own(shipped_artefact("static"), heads, folder, "chat", {})


async def test_a_pinned_classifier_decides_on_its_surface_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the record of the decision names it. Its name is taken apart for the first request alone."""
    artefact = own_artefact(tmp_path / "policies" / "learned")
    pinned = f"learned/{artefact.name}@{artefact.name.removeprefix('chat-')}"
    policies = {"chat": PINNED.replace("CLASSIFIER", pinned), "plain": PLAIN}
    with Upstream() as small, Upstream() as large, local_store() as server:
        async with in_process(tmp_path, small.url, large.url, store_url=server.url, policies=policies) as app:
            replies = [await app.ask("Say hello", model=model) for model in ("chat", "plain")]
            assert [reply.headers["x-tierline-tier"] for reply in replies] == ["hosted", "local"]
            assert float(replies[0].headers["x-tierline-difficulty"]) > 0.9
            async with asyncio.timeout(20):
                while len(bases := (await app.steps.store.ask([Command((b"HVALS", BASES.encode()))]))[0]) < 2:
                    await asyncio.sleep(0.01)
            versions = {orjson.loads(blob)["artefacts"]["classifier"] for blob in bases}
            classifiers, by_surface = app.steps.router.classifiers, app.steps.policies.current.by_surface
            assert versions == {classifiers.default.version, artefact.name.removeprefix("chat-")}
            monkeypatch.setattr("policies.model._PINNED", None)
            assert classifiers.of(by_surface["chat"]).version == artefact.name.removeprefix("chat-")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [("missing", "cannot be read"), ("another", "holds the classifier"), ("torn", "the SHA-256 differs")],
)
async def test_a_classifier_that_is_not_the_pinned_one_is_refused(tmp_path: Path, damage: str, reason: str) -> None:
    """At the start, at the line of the policy."""
    artefact = own_artefact(tmp_path / "policies" / "learned")
    version = artefact.name.removeprefix("chat-")
    if damage == "missing":
        shutil.rmtree(artefact)
    if damage == "torn":
        (artefact / "difficulty.safetensors").write_bytes(b"0")
    if damage == "another":
        version = "0" * 12
    policy = PINNED.replace("CLASSIFIER", f"learned/{artefact.name}@{version}")
    with pytest.raises(ConfigError, match=rf"chat\.yaml:6:\d+: route\.classifier: .*{reason}"):
        async with in_process(tmp_path, "http://127.0.0.1:9/v1", policies={"chat": policy}):
            raise AssertionError("it must not start")


def test_the_loader_knows_a_classifiers_data_sheet_by_name() -> None:
    """Two packages name it, of which neither imports the other for that."""
    assert CLASSIFIER_SHEET == SHEET_FILE
