"""Commands read the policies in force from where the config says that they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli.main import main
from gateway.parts.rollout.registry.checks import seeds
from gateway.parts.rollout.registry.registry import PolicyRegistry
from policies.loader import PolicySource, read_policy
from tests.parts.rollout.registry.conftest import chat, folder, registry, server, source, store
from tests.support.gateway import config
from tests.support.store import LocalStore

__all__ = ["folder", "registry", "server", "source", "store"]

_REQUEST = {"model": "chat", "messages": [{"role": "user", "content": "What is the capital of France?"}]}


@pytest.fixture
async def there(registry: PolicyRegistry, source: PolicySource, server: LocalStore, tmp_path: Path) -> Path:
    """A config whose policies come from the store, which has other ones than the files beside it; no secret is set."""
    settings: dict[str, Any] = config("http://127.0.0.1:9/v1", None, server.url, policies={"source": "store"})
    settings["tenants"] = {"acme": {"key_env": ["NOBODY_HAS_SET_THIS"]}}
    settings["admin"] = {"key_env": "NOR_THIS"}
    await registry.seed(seeds(source, 1.0), "seeded")
    (tmp_path / "tierline.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "new.yaml").write_text(chat(0.7))
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "chat.yaml").write_text(chat(0.9))
    (tmp_path / "request.json").write_text(json.dumps(_REQUEST))
    return tmp_path


def _where(there: Path) -> list[str]:
    return ["--config", str(there / "tierline.yaml"), "--state", str(there / "state")]


def test_a_plan_is_made_against_the_store_that_the_config_names(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --from-store, and with --policies too: these files only fill an empty store."""
    for more in ([], ["--policies", str(there / "rules")]):
        assert main(["policy", "plan", str(there / "new.yaml"), *_where(there), *more]) == 0
        out = capsys.readouterr().out
        assert "escalate.when.confidence_below 0.5 -> 0.7" in out, out


def test_a_plan_is_made_against_what_the_running_gateway_has(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`tierline up` says which config it has; a command beside it needs no flag but the state folder's."""
    (there / "state").mkdir()
    running = {"config": str(there / "tierline.yaml"), "policies": str(there / "rules")}
    (there / "state" / "up.json").write_text(json.dumps(running))
    assert main(["policy", "plan", str(there / "new.yaml"), "--state", str(there / "state")]) == 0
    assert "escalate.when.confidence_below 0.5 -> 0.7" in capsys.readouterr().out


def test_a_new_surface_is_said_to_be_new_there(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (there / "new.yaml").write_text(chat(0.7).replace("surface: chat", "surface: shop"))
    assert main(["policy", "plan", str(there / "new.yaml"), *_where(there)]) == 0
    assert "(new: the store has no policy of shop in force)" in capsys.readouterr().out


def test_files_are_read_where_the_config_says_files(
    there: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERLINE_POLICY_SOURCE", "files")
    more = ["--policies", str(there / "rules")]
    assert main(["policy", "plan", str(there / "new.yaml"), *_where(there), *more]) == 0
    assert "escalate.when.confidence_below 0.9 -> 0.7" in capsys.readouterr().out


def test_a_store_that_does_not_answer_is_no_empty_one(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = yaml.safe_load((there / "tierline.yaml").read_text())
    (there / "tierline.yaml").write_text(yaml.safe_dump(settings | {"store": {"url": "redis://127.0.0.1:9"}}))
    assert main(["policy", "plan", str(there / "new.yaml"), *_where(there)]) == 2
    assert "the store does not answer" in capsys.readouterr().err


def test_a_request_is_explained_by_the_policy_in_the_store(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "explain", str(there / "request.json"), "--json", *_where(there)]) == 0
    explained = json.loads(capsys.readouterr().out)
    assert explained["policy"] == read_policy(there / "policies" / "chat.yaml")[0].label


def test_lint_says_that_the_policies_are_elsewhere(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "lint", "--config", str(there / "tierline.yaml")]) == 2
    assert "are in the store; name the files to check" in capsys.readouterr().err


def test_thresholds_are_chosen_for_the_policy_in_the_store(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A surface that only the files have is not there, and no file is written."""
    (there / "rules" / "shop.yaml").write_text(chat(0.9).replace("surface: chat", "surface: shop"))
    (there / "labels.csv").write_text("prompt\n")
    ask = ["--target", "quality=0.9", "--data", str(there / "labels.csv"), *_where(there)]
    assert main(["fit", "calibrate", "--surface", "shop", "--policies", str(there / "rules"), *ask]) == 2
    assert "has no surface 'shop'; it has batch, chat" in capsys.readouterr().err
    assert main(["fit", "calibrate", "--surface", "chat", "--write", *ask]) == 2
    assert "so there is no file to write" in capsys.readouterr().err


def test_usage_needs_no_secret_of_the_server(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["usage"], ["budgets", "show"], ["ledger", "tail"], ["prices", "check"], ["policy", "status"]):
        code = main([*command, "--config", str(there / "tierline.yaml")])
        said = capsys.readouterr()
        assert "NOBODY_HAS_SET_THIS" not in said.err and "NOR_THIS" not in said.err, (command, said.err, code)
    assert main(["check", "--config", str(there / "tierline.yaml")]) == 1
    assert "NOR_THIS is not set" in capsys.readouterr().out
