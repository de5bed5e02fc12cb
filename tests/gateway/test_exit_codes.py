"""Exit codes of every command: 0 nothing to say, 1 findings, 2 could not be done; `--help` says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gateway.cli.main import COMMANDS, main
from gateway.exit_codes import HELP, Exit
from policies.loader import SHIPPED
from tests.support.upstream import Upstream, error_reply

NO_STORE = "redis://127.0.0.1:9/0"
ROWS = "{folder}/rows.jsonl"

NOT_DONE = {
    "console, of a bad config": ["console", "--config", "{folder}/bad.yaml"],
    "console, with an address that is none": ["console", "--store", "redis://127.0.0.1:9/0", "--gateway", "here"],
    "mcp, with a config that is not there": ["mcp", "--config", "{folder}/none.yaml"],
    "mcp, with a console that is no address": ["mcp", "--store", "redis://127.0.0.1:9/0", "--console", "here"],
    "up, with a config that is not there": ["up", "--config", "{folder}/none.yaml", "--state", "{folder}/state"],
    "up, with a config that is no config": ["up", "--config", "{folder}/bad.yaml", "--state", "{folder}/state"],
    "up, with a state folder that cannot be": ["up", "--state", "{folder}/bad.yaml/state"],
    "serve, with a config that is not there": ["serve", "--config", "{folder}/none.yaml"],
    "serve, with a config that is no config": ["serve", "--config", "{folder}/bad.yaml"],
    "serve, on an address of another machine": ["serve", "--host", "192.0.2.1"],
    "demo, in a folder of something else": ["demo", "--state", "{folder}"],
    "init, over a file that is there": ["init", "--out", "{folder}/bad.yaml"],
    "check, of a config that is not there": ["check", "--config", "{folder}/none.yaml"],
    "check, of a folder that is not there": ["check", "--policies", "{folder}/none"],
    "top, without a store": ["top", "--once", "--store", NO_STORE],
    "trace, without a store": ["trace", "last", "--store", NO_STORE],
    "trace, of a store that is no URL": ["trace", "last", "--store", "bogus"],
    "trace, with a config that is not there": ["trace", "last", "--config", "{folder}/none.yaml"],
    "cache, without a store": ["cache", "stats", "--store", NO_STORE],
    "cache, with nothing to purge named": ["cache", "purge", "--store", NO_STORE],
    "completion, for a shell that is none": ["completion", "cmd"],
    "audit, without a store": ["audit", "--store", NO_STORE],
    "usage, of days that are none": ["usage", "--since", "noon"],
    "keys, without a store": ["keys", "list", "--store", NO_STORE],
    "teams, without a store": ["teams", "list", "--store", NO_STORE],
    "budgets, without a store": ["budgets", "show", "--store", NO_STORE],
    "ledger, without a store": ["ledger", "--store", NO_STORE],
    "prices import, of a file that is not there": ["prices", "import", "{folder}/none", "--write", "{folder}/out"],
    "collect, of a file that is not there": ["fit", "collect", "--prompts", "{folder}/none", "--out", "{folder}/out"],
    "collect, with half an endpoint": ["fit", "collect", "--prompts", ROWS, "--out", "{folder}/out", "--model", "m"],
    "train, of a file that is not there": ["fit", "train", "--data", "{folder}/none", "--out", "{folder}/out"],
    "train, of nothing": ["fit", "train"],
    "train confidence, of a file that is not there": [
        *("fit", "train", "confidence", "--data", "{folder}/none", "--model", "m", "--out", "{folder}/out")
    ],
    "calibrate, of a surface that is not there": [
        *("fit", "calibrate", "--surface", "none", "--target", "quality=0.9", "--data", ROWS)
    ],
    "calibrate, of a file that is not there": [
        *("fit", "calibrate", "--surface", "chat", "--target", "quality=0.9", "--data", "{folder}/none")
    ],
    "learn, from a ledger that is not there": [
        "fit",
        "learn",
        "--surface",
        "chat",
        "--ledger",
        "{folder}/none",
        "--out",
        "{folder}/o",
    ],
    "policy lint, of a file that is not there": ["policy", "lint", "{folder}/none.yaml"],
    "policy test, of a file that is not there": ["policy", "test", "{folder}/none.yaml"],
    "policy diff, with a file that is not there": ["policy", "diff", "{folder}/none.yaml", "{folder}/none2.yaml"],
    "policy explain, of a file that is not there": ["policy", "explain", "{folder}/none.json"],
    "policy replay, from a ledger that is not there": [
        *("policy", "replay", str(SHIPPED / "chat.yaml"), "--ledger", "{folder}/none")
    ],
    "policy status, without a store": ["policy", "status", "--store", NO_STORE],
    "policy rollback, without a store": ["policy", "rollback", "chat", "-m", "why", "--store", NO_STORE],
    "eval route, of a file that is not there": ["fit", "eval", "route", "--data", "{folder}/none"],
    "eval cascade, of a file that is not there": ["fit", "eval", "cascade", "--data", "{folder}/none"],
}
FINDINGS = {
    "check, of a config with a mistake": ["check", "--config", "{folder}/bad.yaml"],
    "check, of a policy with a mistake": ["check", "--policies", "{folder}/policies"],
    "policy lint, of a policy with a mistake": ["policy", "lint", "{folder}/policies"],
    "policy diff, of two policies": ["policy", "diff", str(SHIPPED / "chat.yaml"), str(SHIPPED / "batch.yaml")],
    "collect, with a prompt that gets no answer": [
        *("fit", "collect", "--prompts", ROWS, "--out", "{folder}/out", "--base-url", "{upstream}", "--model", "m")
    ],
}
QUIET = {
    "check, of what is shipped": ["check"],
    "policy lint, of what is shipped": ["policy", "lint"],
    "check, with a warning": ["check", "--policies", "{folder}/doubtful"],
}
CASES = [
    *((argv, Exit.NOT_DONE, name) for name, argv in NOT_DONE.items()),
    *((argv, Exit.FINDINGS, name) for name, argv in FINDINGS.items()),
    *((argv, Exit.OK, name) for name, argv in QUIET.items()),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files to be wrong about, and no store or key from outside."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "TIERLINE_LOCAL_BASE_URL", "TIERLINE_STORE_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bad.yaml").write_text("teirs: 1\n")
    prompt = {"id": "1", "prompt": "Capital of Italy?", "answers": ["Rome"], "grade": "text"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(prompt) + "\n")
    for name, old, new in (
        ("policies", "  deadline: 2m", "  deadlin: 2m"),
        ("doubtful", "holdout: 1%", "holdout: 50%"),
    ):
        shutil.copytree(SHIPPED, tmp_path / name, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        chat = tmp_path / name / "chat.yaml"
        assert old in chat.read_text()
        chat.write_text(chat.read_text().replace(old, new))
    return tmp_path


def _code(argv: list[str]) -> int:
    """How the command ended; argparse ends the process itself."""
    try:
        return main(argv)
    except SystemExit as exit_:
        assert isinstance(exit_.code, int)
        return exit_.code


@pytest.mark.parametrize(("argv", "code"), [case[:2] for case in CASES], ids=[case[2] for case in CASES])
def test_a_command_ends_with_the_code_of_what_happened(
    folder: Path, upstream: Upstream, argv: list[str], code: Exit, capfd: pytest.CaptureFixture[str]
) -> None:
    """What cannot be done is 2 and one clear line, never mistaken for a finding, which is 1."""
    upstream.default = error_reply(400, "no")
    assert _code([word.format(folder=folder, upstream=upstream.url) for word in argv]) == code
    said = capfd.readouterr()
    assert "Traceback" not in said.err
    assert bool(said.err) or code != Exit.NOT_DONE or argv[0] == "check"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_held_to_its_codes_and_says_them(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """There is a case for each; a flag that it does not have is 2; its `--help` says what the codes mean."""
    assert any(argv[0] == name for argv in NOT_DONE.values())
    assert _code([name, "--no-such-flag"]) == Exit.NOT_DONE
    capsys.readouterr()
    assert _code([name, "--help"]) == Exit.OK
    assert HELP in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["--help"], ["cache", "purge", "--help"], ["fit", "train", "confidence", "--help"]])
def test_the_codes_are_said_at_every_level(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """By `tierline --help` and by what a command has below it."""
    assert _code(argv) == Exit.OK
    assert HELP in capsys.readouterr().out
