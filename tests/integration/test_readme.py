"""What the READMEs show works as it stands there, except for the port."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli.main import main
from gateway.config.sections import deployment_model
from gateway.parts.lab.policy_tests.format import read_tests
from gateway.parts.standard import PARTS
from policies.loader import SHIPPED
from policies.sections import rules_model
from tests.support.gateway import ROOT, Gateway, serve
from tests.support.store import LocalStore
from tests.support.upstream import Reply, Upstream

NODE = ROOT / "tests" / "integration" / "node"
PARIS = "The capital city of France is Paris."


PAGES = {
    name: (ROOT / name / "README.md").read_text("utf-8")
    for name in (
        *(".", "gateway", "policies", "cache", "routing", "tests/bench"),
        *(f"gateway/parts/{part.name}" for part in PARTS if part.installed),
    )
}
"""All but deploy's, whose trial has tests of its own with the scripted backend."""


def blocks(language: str) -> list[str]:
    """The code blocks of all pages in that language, each once."""
    found = (block for page in PAGES.values() for block in re.findall(rf"^```{language}\n(.*?)^```", page, re.M | re.S))
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("language", ["python", "sh", "js", "console", "yaml"])
def test_pages_have_examples(language: str) -> None:
    """A test of no example at all would pass unseen."""
    assert blocks(language)


@pytest.fixture(scope="module")
def _shipped(
    _upstreams: tuple[Upstream, Upstream], _store: LocalStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    policies = {name: (SHIPPED / f"{name}.yaml").read_text("utf-8") for name in ("chat", "agent", "support")}
    models = [upstream.url for upstream in _upstreams]
    with serve(tmp_path_factory.mktemp("shipped"), *models, store_url=_store.url, policies=policies) as gateway:
        yield gateway


@pytest.fixture
def gateway(_shipped: Gateway, store: LocalStore, local_upstream: Upstream, hosted_upstream: Upstream) -> Gateway:
    """Policies that ship, over an empty store and two models that know the capital of France."""
    local_upstream.default = hosted_upstream.default = Reply(text=PARIS)
    return _shipped


def at(gateway: Gateway, code: str) -> str:
    return code.replace("http://127.0.0.1:8787", gateway.origin)


@pytest.mark.parametrize("code", [code for code in blocks("python") if "import Tierline" not in code])
def test_python_examples(gateway: Gateway, code: str) -> None:
    """Each prints the answer."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(at(gateway, code), "README.md", "exec"), {})
    assert PARIS in said.getvalue()


@pytest.mark.parametrize("code", blocks("sh"))
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_example(gateway: Gateway, code: str) -> None:
    """The line to paste gets the answer."""
    done = subprocess.run(["bash", "-c", at(gateway, code)], capture_output=True, text=True, check=True, timeout=20)
    assert PARIS in done.stdout


@pytest.mark.parametrize("code", blocks("bash"))
def test_commands_of_keys(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    """They make a team and a key, and say what was spent."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIERLINE_STORE_URL", store.url)
    lines = [shlex.split(one, comments=True) for line in code.splitlines() for one in line.split(" && ")]
    commands = [words[1:] for words in lines if words[0] == "tierline"]
    assert len(commands) >= 4
    for words in commands:
        assert main(words) == 0, words
    assert " tl_" in capsys.readouterr().out


@pytest.mark.parametrize("code", blocks("js"))
@pytest.mark.skipif(not (NODE / "node_modules" / "openai").is_dir(), reason="the Node SDK is not installed")
def test_node_example(gateway: Gateway, code: str, tmp_path: Path) -> None:
    """So does Node's."""
    (tmp_path / "node_modules").symlink_to(NODE / "node_modules")
    script = tmp_path / "example.mjs"
    script.write_text(at(gateway, code))
    done = subprocess.run(["node", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30)
    assert PARIS in done.stdout, done.stderr


@pytest.mark.parametrize("line", [line for block in blocks("console") for line in block.splitlines()])
def test_commands_are_understood(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each with all of its flags: what then is missing is the reader's own file or ledger, which the error names."""
    monkeypatch.chdir(tmp_path)  # the checkout may have a state folder, and a `tierline up` that runs on it
    program, *arguments = shlex.split(line, comments=True)
    assert program == "tierline"
    assert main(arguments) in (1, 2)
    said = capsys.readouterr().err
    assert any(missing in said for missing in ("No such file", "holds no ledger", "no store to read")), said


@pytest.mark.parametrize("text", blocks("yaml"))
def test_policy_examples(text: str, tmp_path: Path) -> None:
    """What they say to change in a policy fits into the shipped one; a test file can be read beside it.

    What they say of the config is a config, with a tier.
    """
    policy = yaml.safe_load((SHIPPED / "chat.yaml").read_text())
    change = yaml.safe_load(text)
    if "tests" in change:
        shutil.copy(SHIPPED / "chat.yaml", tmp_path)
        (tmp_path / "prompts").mkdir()
        for name in re.findall(r"prompts/[\w.-]+", text):
            (tmp_path / name).write_text('{"model": "chat", "messages": [{"role": "user", "content": "refund?"}]}')
        (tmp_path / "chat.test.yaml").write_text(text)
        assert read_tests(tmp_path / "chat.test.yaml").tests
        return
    if not change.keys() <= policy.keys():
        backend = {"model": "m", "base_url": "http://127.0.0.1:9/v1"}
        deployment_model().model_validate({"tiers": [{"name": "local", "backends": [backend]}], **change})
        return
    rules_model().model_validate(_merged(policy, change))


def _merged(old: Any, new: Any) -> Any:
    """`new` over `old`, key by key."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
