"""The command line: what it imports, and how it says what went wrong."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gateway.cli import main as cli
from gateway.cli.actions import actions_of
from gateway.cli.commands import CommandError, command_module
from gateway.cli.flags import add_server_flags
from gateway.cli.main import COMMANDS, main
from gateway.exit_codes import Exit
from gateway.parts import standard
from policies.errors import ConfigError, Problem
from tests.support.processes import children_cpu_s


class _FakeCommand(ModuleType):
    """A command that ends as the test says."""

    def __init__(self, end: Any) -> None:
        super().__init__("fake")
        self._end = end

    def add_parser(self, subparsers: Any) -> None:
        add_server_flags(subparsers.add_parser("serve"))

    def run(self, args: Any) -> int:
        if isinstance(self._end, BaseException):
            raise self._end
        self.args = args
        return int(self._end)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    def _serve(end: Any) -> _FakeCommand:
        command = _FakeCommand(end)
        monkeypatch.setattr(cli, "command_module", lambda _: command)
        return command

    return _serve


def test_help_is_quick_and_imports_no_command() -> None:
    """`tierline --help` needs neither pydantic nor any server."""
    code = (
        "import sys; from gateway.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('pydantic', 'yaml', 'starlette', 'httpx2', 'numpy') if m in sys.modules])"
    )
    started = children_cpu_s()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert children_cpu_s() - started < 2
    assert done.stdout.splitlines()[-1] == "[]"
    for name in COMMANDS:
        assert name in done.stdout


@pytest.mark.parametrize("name", ["trace", "ledger"])
def test_a_command_that_reads_the_store_imports_no_config(name: str) -> None:
    """It is typed again and again; pydantic and the config's schema would be half of its start."""
    code = (
        f"import sys, gateway.cli.main; from gateway.cli.commands import command_module; command_module({name!r})\n"
        "print([m for m in ('pydantic', 'yaml', 'gateway.config.schema') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_version_is_the_distribution_s(capsys: pytest.CaptureFixture[str]) -> None:
    """`tierline --version` prints it and ends well."""
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("tierline 0.")


@pytest.mark.parametrize("argv", [[], ["nope"], ["--nope"], ["check", "--nope"]])
def test_a_wrong_command_line_is_exit_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With the usage and one line that says what is wrong."""
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        (0, 0, ""),
        (3, 3, ""),
        (CommandError("port 8787 is in use"), 2, "tierline: port 8787 is in use\n"),
        (CommandError("too few labels", Exit.FINDINGS), 1, "tierline: too few labels\n"),
        (KeyboardInterrupt(), 130, ""),
        (ModuleNotFoundError("x", name="sklearn"), 2,
         "tierline: serve needs sklearn, which is not installed: pip install 'sklearn'\n"),
    ],
)  # fmt: skip
def test_how_a_command_ended_is_the_exit_code(
    serve: Any, capsys: pytest.CaptureFixture[str], end: Any, code: int, said: str
) -> None:
    """Expected failures are one line on stderr, never a traceback."""
    serve(end)
    assert main(["serve"]) == code
    assert capsys.readouterr().err == said


def test_config_errors_are_a_line_each(serve: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and every problem with its place."""
    serve(ConfigError([Problem(Path("a.yaml"), 3, "port", "bad"), Problem(Path("b.yaml"), 0, "", "no such file")]))
    assert main(["serve"]) == 2
    assert capsys.readouterr().err == "tierline: a.yaml:3: port: bad\ntierline: b.yaml: no such file\n"


def test_a_missing_extra_names_it(
    serve: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the command that needs it fails, and says how to get it."""

    def missing(_: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")

    monkeypatch.setattr(cli, "command_module", missing)
    assert main(["fit", "train"]) == 2
    assert "pip install 'tierline[train]'" in capsys.readouterr().err


def test_a_bug_keeps_its_traceback(serve: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """What nobody expected is not made to look like a user's mistake, nor like a finding."""
    serve(RuntimeError("bug"))
    assert main(["serve"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback") and err.endswith("RuntimeError: bug\n")


def test_the_server_flags(serve: Any) -> None:
    """They are read, checked, and leave to the config what they do not say."""
    command = serve(0)
    main(["serve", "--port", "0", "--workers", "2", "--host", "::1"])
    assert (command.args.port, command.args.workers, command.args.host) == (0, 2, "::1")
    assert (command.args.config, command.args.policies) == (None, None)
    for wrong in (["--port", "70000"], ["--port", "x"], ["--workers", "0"]):
        with pytest.raises(SystemExit):
            main(["serve", *wrong])


def test_a_reader_that_leaves_ends_the_command_quietly() -> None:
    """`tierline check | head -1` prints no traceback."""
    check = subprocess.Popen(
        [sys.executable, "-m", "gateway", "check", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert check.stdout is not None
    check.stdout.close()
    assert check.stderr is not None
    assert check.stderr.read() == b""
    check.stderr.close()
    assert check.wait(timeout=60) == 2


def _subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: one for action in actions for name, one in action.choices.items()}


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_every_help_has_an_example_and_fits_a_terminal(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each command and subcommand: no line is longer than 120 characters where the terminal is that wide."""
    monkeypatch.setenv("COLUMNS", "122")
    parser = cli._parser(command_module(name) if name else None)
    own = _subcommands(parser)[name] if name else parser
    for action in actions_of(name) if name in ("policy", "fit") else ():
        command_module(f"{name} {action}").add_options(_subcommands(own)[action])
    texts = [one.format_help() for one in (own, *(_subcommands(own).values() if name else ()))]
    assert [text for text in texts if "\nexamples:\n  tierline " not in text] == []
    assert [line for text in texts for line in text.splitlines() if len(line) > 120] == []


@pytest.mark.parametrize("name", ["prices", "init", "fit"])
def test_the_prose_of_a_help_fits_a_narrow_terminal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the command lines of examples, and what stands beside them, may be longer than 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = _subcommands(cli._parser(command_module(name)))[name].format_help()
    assert [line for line in lines.splitlines() if len(line) > 80 and line[0] != " "] == []


def test_a_file_that_cannot_be_written_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the command: with the file's name, and no traceback."""
    prices = {"litellm_provider": "openai", "input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}
    (tmp_path / "map.json").write_text(json.dumps({"gpt-4o": {**prices, "mode": "chat", "max_input_tokens": 1000}}))
    out = tmp_path / "none" / "x.json"
    assert main(["prices", "import", str(tmp_path / "map.json"), "--write", str(out)]) == 2
    assert capsys.readouterr().err == f"tierline: {out} cannot be written: No such file or directory\n"


@pytest.mark.parametrize("row", [5, {}, {"surface": "chat"}, {"surface": "chat", "judged_at": 1}])
def test_labels_that_are_none_are_a_line(tmp_path: Path, row: object, capsys: pytest.CaptureFixture[str]) -> None:
    labels = tmp_path / "labels.jsonl"
    labels.write_text(json.dumps(row))
    assert main(["fit", "learn", "--surface", "chat", "--labels", str(labels), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"tierline: {labels} holds no labels")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["trce"], "there is no 'trce' (did you mean 'trace'?)"),
        (["policy", "lnt"], "there is no 'lnt' (did you mean 'lint'?)"),
        (["trace", "lst"], "there is no 'lst' (did you mean 'l"),
        (["zzzzz"], "there is no 'zzzzz'; it is one of 'up', "),
    ],
)
def test_a_command_that_is_mistyped_is_named(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the one that was perhaps meant, or else all there are; the exit code is 2."""
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("old", "new"), standard.RENAMED.items())
def test_a_renamed_command_tells_its_new_name(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The old name still runs it."""
    with pytest.raises(SystemExit) as ended:
        main([old, "--help"])
    printed = capsys.readouterr()
    assert ended.value.code == 0 and printed.out.startswith(f"usage: tierline {new} ")
    assert printed.err == f"tierline: `{old}` is `{new}` now; the old name works in this release alone\n"


def test_a_help_fits_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 columns: 50 lines for most commands, and none is longer than a screen and a third."""
    monkeypatch.setenv("COLUMNS", "100")

    def every(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
        yield parser
        for each in _subcommands(parser).values():
            yield from every(each)

    _, *commands = every(cli.whole_parser())
    lines = [len(parser.format_help().splitlines()) for parser in (cli._parser(None), *commands)]
    assert max(lines) <= 66 and sum(count > 50 for count in lines) <= len(lines) / 10
