"""The data of `tierline demo`: its config, policies, candidate and scenes; and the folder that it keeps to."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

import pytest

from gateway.config.launch import Launch
from gateway.parts.console.part import console_place
from gateway.parts.local.commands.demo import _CONFIG
from gateway.parts.local.demo.policies import write_policies
from gateway.parts.local.demo.scenes import draw_scenes, read_scenes
from gateway.parts.local.kinds.scripted.replies import ScriptedTransport
from gateway.parts.rollout.policy import RolloutSections
from policies.loader import SHIPPED, read_policy
from tests.support.template import run_command


def test_the_same_seed_draws_the_same_scenes() -> None:
    first, again, other = (list(islice(draw_scenes(seed), 200)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_every_scene_comes_before_any_comes_again() -> None:
    scenes, _ = read_scenes()
    drawn = list(islice(draw_scenes(3), len(scenes)))
    assert [one.scene for one in drawn] == list(scenes)
    assert not any("{" in text for one in drawn for text in one.texts)


def test_every_shipped_surface_has_a_scene() -> None:
    shipped = {file.stem for file in SHIPPED.glob("*.yaml") if not file.name.endswith(".test.yaml")}
    assert shipped <= {scene.surface for scene in read_scenes()[0]}


def test_the_policies_load_with_the_config_and_the_candidate_is_another_one(tmp_path: Path) -> None:
    made = write_policies(tmp_path)
    launch = Launch(config=_CONFIG, policies=made.folder)
    deployment = launch.deployment({})
    loaded = launch.policy_source(deployment).load()
    assert made.surface in loaded.names
    live, _ = read_policy(made.folder / made.candidate.name)
    candidate, _ = read_policy(made.candidate)
    assert candidate.of(RolloutSections).rollout is not None
    assert candidate.version != live.version


def test_all_backends_are_scripted_and_the_port_of_the_console_is_free_to_choose() -> None:
    deployment = Launch(config=_CONFIG).deployment({"TIERLINE_DEMO_CONSOLE_PORT": "0"})
    backends = [backend for tier in deployment.tiers for backend in tier.backends]
    assert deployment.scripted_models == ("scripted-small", "scripted-large")
    assert {backend.kind for backend in backends} == {"scripted"}
    ports = [console_place(each) for each in (deployment, Launch(config=_CONFIG).deployment({}))]
    assert [place and place.port for place in ports] == [0, 8790]
    assert all(ScriptedTransport(backend.script, max_reply=1 << 20) for backend in backends)


@pytest.mark.parametrize("file", ["lock", "ledger/part.parquet"])
def test_a_folder_that_is_not_the_demo_s_is_refused(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    done = run_command("demo", "--state", str(tmp_path), env=dict(os.environ))
    assert done.returncode == 2
    assert "something else than a demo's state" in done.stderr
    assert [left.name for left in tmp_path.iterdir()] == [file.split("/", maxsplit=1)[0]]
