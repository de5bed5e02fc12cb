"""The version: of a tag, after one, and without any, wherever the tree comes from."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

import pytest
from packaging.version import Version

from gateway.version import package_version
from tests.support.gateway import ROOT

CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [0.3.0] - 2026-11-26\n\n## [0.2.9] - 2026-11-01\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of one commit, with a changelog and without a tag."""
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    for name in (".git_archival.txt", ".gitattributes"):
        (root / name).write_text((ROOT / name).read_text())
    _git(root, "init", "-q")
    _git(root, "add", ".")
    _commit(root)
    return root


def test_a_tag_is_a_release_and_what_follows_is_not(checkout: Path) -> None:
    """Commits after a tag belong to the next release; changed files are told."""
    _git(checkout, "tag", "v0.3.0")
    assert package_version(checkout) == "0.3.0"
    _commit(checkout)
    _commit(checkout)
    assert re.fullmatch(r"0\.3\.1\.dev2\+g[0-9a-f]{8}", package_version(checkout))
    (checkout / "CHANGELOG.md").write_text(CHANGELOG + "\n")
    assert re.fullmatch(r"0\.3\.1\.dev2\+g[0-9a-f]{8}\.dirty", package_version(checkout))


def test_without_a_tag_it_is_the_newest_release_and_the_commit(checkout: Path, tmp_path: Path) -> None:
    """So it is in a shallow clone of a tagged repository, which has the tag no more."""
    assert re.fullmatch(r"0\.3\.0\+g[0-9a-f]{8}", package_version(checkout))
    _git(checkout, "tag", "v0.3.0")
    _commit(checkout)
    _git(tmp_path, "clone", "-q", "--depth", "1", f"file://{checkout}", "shallow")
    assert re.fullmatch(r"0\.3\.0\+g[0-9a-f]{8}", package_version(tmp_path / "shallow"))


def test_an_archive_knows_its_tag(checkout: Path, tmp_path: Path) -> None:
    """`git archive` writes it down; with no tag it writes the commit."""
    for tag, wanted in ((None, r"0\.3\.0\+g[0-9a-f]{7,}"), ("v0.3.0", r"0\.3\.0")):
        if tag:
            _git(checkout, "tag", tag)
        folder = tmp_path / f"archive-{tag}"
        folder.mkdir()
        _git(checkout, "archive", "-o", str(folder / "a.tar"), "HEAD")
        subprocess.run(["tar", "-xf", "a.tar"], cwd=folder, check=True)
        assert re.fullmatch(wanted, package_version(folder))


def test_files_alone_are_the_newest_release(tmp_path: Path) -> None:
    """A copy of the files without git, and the marks that no archive filled in."""
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    assert package_version(tmp_path) == "0.3.0"
    (tmp_path / ".git_archival.txt").write_text((ROOT / ".git_archival.txt").read_text())
    assert package_version(tmp_path) == "0.3.0"


def test_an_sdist_keeps_what_it_was_built_as(tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / "PKG-INFO").write_text("Name: tierline\nVersion: 0.4.0.dev7+gabc\n\nVersion: 9\n")
    assert package_version(tmp_path) == "0.4.0.dev7+gabc"


def test_the_command_says_it() -> None:
    """In a checkout by its commit of now, however long ago it was installed; the release is that of CHANGELOG.md."""
    said = subprocess.run(
        [sys.executable, "-m", "tierline", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert said == f"tierline {package_version(ROOT)}\n"
    newest = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - 20\d\d-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M)[0]
    assert Version(package_version(ROOT)) >= Version(newest)
    assert installed_version("tierline")


def _git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def _commit(root: Path) -> None:
    _git(root, "commit", "-q", "--allow-empty", "-m", "a commit")
