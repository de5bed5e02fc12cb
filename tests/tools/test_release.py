"""`make release`: which checkouts it refuses, and what it writes beside the files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gateway import ROOT
from tools.release import Refused, releasable, sums

CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [0.3.0] - 2026-11-26\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A commit that is tagged v0.3.0, and a changelog that describes it."""
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    _git(root, "init", "-q")
    _git(root, "add", ".")
    _git(root, "commit", "-q", "-m", "a commit")
    _git(root, "tag", "v0.3.0")
    return root


def test_a_tagged_commit_that_the_changelog_describes_is_released(checkout: Path, tmp_path: Path) -> None:
    assert releasable(checkout, tmp_path / "out") == "0.3.0"


def test_a_changed_file_is_refused(checkout: Path, tmp_path: Path) -> None:
    """A new one too: it would be in the wheel, and in no commit."""
    (checkout / "new.py").touch()
    with pytest.raises(Refused, match=r"(?s)commit.*new\.py"):
        releasable(checkout, tmp_path / "out")


def test_a_commit_without_a_tag_is_refused(checkout: Path, tmp_path: Path) -> None:
    _git(checkout, "tag", "-d", "v0.3.0")
    _git(checkout, "tag", "nightly")
    with pytest.raises(Refused, match="HEAD has no tags such as"):
        releasable(checkout, tmp_path / "out")


def test_a_tag_that_the_changelog_lacks_is_refused(checkout: Path, tmp_path: Path) -> None:
    """So is a release without its date."""
    for text in (CHANGELOG.replace("0.3.0", "0.3.1"), CHANGELOG.replace(" - 2026-11-26", "")):
        (checkout / "CHANGELOG.md").write_text(text)
        _git(checkout, "commit", "-qam", "another")
        _git(checkout, "tag", "-f", "v0.3.0")
        with pytest.raises(Refused, match=re.escape("CHANGELOG.md has no '## [0.3.0] - YYYY-MM-DD'")):
            releasable(checkout, tmp_path / "out")


def test_a_folder_with_files_is_refused(checkout: Path, tmp_path: Path) -> None:
    """Files of another release would get into its sums."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tierline-0.2.0.tar.gz").touch()
    with pytest.raises(Refused, match="has files"):
        releasable(checkout, tmp_path / "out")


def test_sums_are_what_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"wheel")
    (tmp_path / "b.tar.gz").write_bytes(b"sdist")
    (tmp_path / "SHA256SUMS").write_text(sums(tmp_path))
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["a.whl: OK", "b.tar.gz: OK"], done.stderr


def test_help_has_examples() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.release", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "examples:" in done.stdout and "exit codes:" in done.stdout


def _git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)
