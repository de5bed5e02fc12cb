"""What holds for the whole tree."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from tests.conftest import TOGETHER

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", ["gateway", "routing", "cache", "policies", "tools"])
def test_our_packages_come_from_this_tree(name: str) -> None:
    """Their names are common; one installed from elsewhere under the same name would silently replace ours."""
    package = import_module(name)
    assert package.__file__ is not None
    assert Path(package.__file__).resolve() == ROOT / name / "__init__.py"


def test_every_tests_folder_is_a_package() -> None:
    """Two test files may have one name, and helpers are imported as `tests.support`."""
    folders = {file.parent for file in (ROOT / "tests").rglob("*.py") if "node_modules" not in file.parts}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_files_that_run_together_are_there() -> None:
    """A file that is renamed or moved keeps its place in its group, or is missed here."""
    grouped = sorted(name for names in TOGETHER.values() for name in names)
    assert grouped == sorted(file.name for file in (ROOT / "tests").rglob("test_*.py") if file.name in set(grouped))
