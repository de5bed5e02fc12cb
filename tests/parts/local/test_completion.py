"""`tierline completion`: real shells complete with its scripts, and man shows its page without a complaint."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.cli.actions import actions_of
from gateway.cli.main import COMMANDS, main

_ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=()
_shtab_tierline "$1" "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def printed_for(what: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", what]) == 0
    return capsys.readouterr().out


def test_bash_completes_commands_actions_options_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As many as `--help` lists, whatever part they belong to."""
    script = tmp_path / "tierline.bash"
    script.write_text(printed_for("bash", capsys))
    (tmp_path / "mine.yaml").touch()

    def completed(*words: str) -> set[str]:
        asked = ["bash", "-c", _ASK, "-", str(script), "tierline", *words]
        return set(subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split())

    assert completed("") == set(COMMANDS)
    assert completed("policy", "") == set(actions_of("policy"))
    assert completed("fit", "tr") == {"train"}
    assert {"--config", "--json"} <= completed("fit", "learn", "--")
    assert "mine.yaml" in completed("check", "--config", "m")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_zsh_can_read_its_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "_tierline"
    script.write_text(printed_for("zsh", capsys))
    assert subprocess.run(["zsh", "-n", str(script)], capture_output=True, text=True, check=True).stderr == ""


def test_the_manual_page_describes_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its actions and options, and in words that roff takes for no commands of its own."""
    text = printed_for("man", capsys)
    named = [line.removeprefix(".SS tierline ") for line in text.splitlines() if line.startswith(".SS ")]
    assert set(COMMANDS) <= set(named) and "trace show" in named and "fit eval route" in named
    macros = {line.split()[0] for line in text.splitlines() if line.startswith((".", "'"))}
    assert macros == {".TH", ".SH", ".SS", ".PP", ".TP", ".nf", ".fi"}
    if (groff := shutil.which("groff")) is not None:
        page = tmp_path / "tierline.1"
        page.write_text(text)
        shown = subprocess.run([groff, "-ww", "-man", "-Tutf8", str(page)], capture_output=True, text=True, check=True)
        assert "tierline usage" in shown.stdout
