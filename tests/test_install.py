"""What `make run` and `make test` install: enough for every promised Python and platform, or a clear refusal."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker, default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHONS = [
    version
    for minor in range(40)
    for version in (f"3.{minor}.0", f"3.{minor}.2", f"3.{minor}.99")
    if version in SpecifierSet(PROJECT["project"]["requires-python"])
]
PLATFORMS = [
    {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"},
    {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64"},
    {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
]
UNUSED = {canonicalize_name(one["name"]) for one in PROJECT["tool"]["uv"]["dependency-metadata"]}
"""Packages whose own dependencies are left out on purpose."""
PIN = re.compile(r"^(?P<name>[a-z0-9._-]+)==(?P<version>[^ ]+)(?: ; (?P<marker>[^\\]+))? \\$", re.MULTILINE)


@cache
def _pinned(lock: str) -> dict[str, tuple[str, Marker | None]]:
    """Version and marker of each package in a lock, by name."""
    text = (ROOT / "requirements" / f"{lock}.lock").read_text()
    return {
        found["name"]: (found["version"], Marker(found["marker"]) if found["marker"] else None)
        for found in PIN.finditer(text)
    }


def _environment(python: str, platform: dict[str, str]) -> dict[str, str]:
    major_minor = python.rpartition(".")[0]
    return {**default_environment(), **platform, "python_full_version": python, "python_version": major_minor}


def _asked(requirement: Requirement, extras: set[str], environment: dict[str, str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({**environment, "extra": extra}) for extra in extras or {""})


def _needed(roots: list[str], environment: dict[str, str]) -> Iterator[tuple[Requirement, str]]:
    """Each requirement that holds in an environment, and who asks for it, by the metadata of what is installed here."""
    queue = [(Requirement(text), "pyproject.toml") for text in roots]
    seen: set[str] = set()
    while queue:
        requirement, asker = queue.pop()
        if not _asked(requirement, set(), environment) and asker == "pyproject.toml":
            continue
        yield requirement, asker
        name = canonicalize_name(requirement.name)
        key = f"{name}{sorted(requirement.extras)}"
        if key in seen or name in UNUSED:
            continue
        seen.add(key)
        extras = set(requirement.extras) | {""}
        queue += [(one, name) for one in _required_by(name) if _asked(one, extras, environment)]


@cache
def _required_by(name: str) -> list[Requirement]:
    """What an installed package requires, on any Python and platform."""
    try:
        return [Requirement(text) for text in requires(name) or []]
    except PackageNotFoundError:  # of another Python or platform: what it needs in turn cannot be seen from here
        return []


@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda one: f"{one['sys_platform']}-{one['platform_machine']}")
@pytest.mark.parametrize("lock", ["base", "serve", "all", "dev"])
def test_a_lock_has_all_that_any_promised_python_needs(lock: str, platform: dict[str, str]) -> None:
    """Each requirement is pinned, at a version that satisfies it, under a marker that holds there too."""
    project, groups = PROJECT["project"], PROJECT["dependency-groups"]
    has = {
        "base": (),
        "serve": ("console", "ledger", "minilm"),
        "all": ("console", "fit", "ledger", "minilm"),
        "dev": ("console", "dev", "fit", "ledger", "mcp", "minilm"),
    }
    roots = [*project["dependencies"], *(text for group in has[lock] for text in groups[group])]
    pinned, missing = _pinned(lock), set()
    assert len(PYTHONS) >= 6
    for python in PYTHONS:
        environment = _environment(python, platform)
        for requirement, asker in _needed(roots, environment):
            version, marker = pinned.get(canonicalize_name(requirement.name), (None, None))
            if version is None or (marker is not None and not marker.evaluate(environment)):
                missing.add(f"{requirement.name} for {asker} on {python}")
            elif not requirement.specifier.contains(version, prereleases=True):
                missing.add(f"{requirement} for {asker}, pinned at {version}")
    assert not missing


def test_serve_and_dev_locks_agree() -> None:
    """`make test` after `make run` changes no package that is there, and neither does `make browser`."""
    dev = _pinned("dev")
    assert {name: pin for name, pin in _pinned("serve").items() if dev.get(name) != pin} == {}
    for lock in ("all", "base", "browser", "build", "release"):
        assert {name: pin for name, pin in _pinned(lock).items() if dev.get(name, pin)[0] != pin[0]} == {}


def test_what_builds_tierline_is_pinned() -> None:
    """The build backend comes from a lock with hashes: pip's own build environment would fetch the newest."""
    pinned = _pinned("build")
    for text in (*PROJECT["build-system"]["requires"], *PROJECT["dependency-groups"]["build"]):
        requirement = Requirement(text)
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)][0])
    built = [line for line in (ROOT / "Makefile").read_text().splitlines() if re.search(r"pip .*--editable", line)]
    assert len(built) == 1 and all("--no-build-isolation" in line for line in built)


@pytest.mark.parametrize("lock", ["serve", "dev", "browser", "build", "release", "weights"])
def test_a_lock_names_no_index(lock: str) -> None:
    """Where packages come from is left to the settings of the user's own pip."""
    text = (ROOT / "requirements" / f"{lock}.lock").read_text()
    assert "://" not in text and "--index" not in text


def test_the_makefile_takes_the_pythons_that_are_promised() -> None:
    """An interpreter that `requires-python` lets in is not refused by `make run`, and no other one is accepted."""
    found = re.search(r"\((\d+), (\d+)\) <= sys.version_info < \((\d+), (\d+)\)", (ROOT / "Makefile").read_text())
    assert found is not None
    assert PROJECT["project"]["requires-python"] == ">={}.{},<{}.{}".format(*found.groups())


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("lacks", "says"),
    [("ensurepip", "apt install python3-venv"), ("version_info", "Tierline needs Python 3.11 to 3.14")],
)
def test_an_interpreter_that_will_not_do_is_refused(tmp_path: Path, lacks: str, says: str) -> None:
    """With what to do about it: Debian's Python comes without python3-venv, and others are too old or too new."""
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\ncase "$*" in *{lacks}*) exit 1;; esac\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["make", "run", f"PYTHON={python}", f"VENV={tmp_path}/venv"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "venv").exists()
