"""The parts of other makers, as the list of parts finds and checks them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.parts import standard
from tests.support.gateway import CHAT, ROOT, config, environment, write_deployment

ENTER = "def build_admissions(core):\n    return ()\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The module of a part that an installed distribution, `guards`, lists; nothing is written yet."""
    name = f"guards_of_{tmp_path.name}"
    installed = tmp_path / "guards-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: guards\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[{standard.OUTSIDE}]\nguards = {name}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    standard.outside_parts.cache_clear()
    yield tmp_path / f"{name}.py"
    standard.outside_parts.cache_clear()


def test_a_part_of_another_maker_provides_the_seams_that_it_names(module: Path) -> None:
    module.write_text(f'PROVIDES = ("admission",)\n{ENTER}')
    assert [part.__name__ for part in standard.providers("admission")][-1] == module.stem
    assert module.stem not in [part.__name__ for part in standard.providers("tasks")]


MISTAKES = {
    f'PROVIDES = ("admissions",)\n{ENTER}': "it provides 'admissions', which is no seam (did you mean 'admission'?)",
    'PROVIDES = ("xyz",)\n': "it provides 'xyz', which is no seam",
    'PROVIDES = ("authenticator",)\n': "it provides 'authenticator': only Tierline's own parts provide it",
    'PROVIDES = ("reading",)\n': "it provides 'reading': only Tierline's own parts provide it",
    'PROVIDES = ("admission",)\n': "it provides 'admission' and has no function 'build_admissions'",
    f'PROVIDES = ("admission")\n{ENTER}': "it has no PROVIDES, a tuple of seams",
    ENTER: "it has no PROVIDES, a tuple of seams",
    "import nothing_of_this_name\n": "ModuleNotFoundError: No module named 'nothing_of_this_name'",
}


@pytest.mark.parametrize(("text", "reason"), MISTAKES.items(), ids=MISTAKES.values())
def test_a_part_that_would_not_work_is_refused_when_it_is_loaded(module: Path, text: str, reason: str) -> None:
    module.write_text(text)
    with pytest.raises(standard.BrokenPart, match=f"cannot be loaded: {re.escape(reason)}$"):
        standard.outside_parts()


def test_check_says_so_in_one_line(module: Path, tmp_path: Path) -> None:
    write_deployment(tmp_path, config("http://127.0.0.1:9/v1", None), {"chat": CHAT})
    module.write_text(f'PROVIDES = ("admissions",)\n{ENTER}')
    done = subprocess.run(
        [sys.executable, "-m", "tierline", "check", "--config", str(tmp_path / "tierline.yaml")],
        cwd=ROOT,
        env={**environment(), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        f"tierline: the part guards ({module.stem} of guards) cannot be loaded: "
        "it provides 'admissions', which is no seam (did you mean 'admission'?)\n",
    )
