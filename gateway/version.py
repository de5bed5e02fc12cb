"""Say which version of Tierline this is, the same to the build and to whatever runs.

A release is a tag, `v0.1.0`. Commits after it are `0.1.1.dev3+g1a2b3c4d`, and changed files add `dirty`. Where no tag
can be seen, as in a shallow clone, the version is the newest release in CHANGELOG.md with the commit: it is
`0.1.0+g1a2b3c4d`, never older than that release, as setuptools-scm's `0.1.dev1` is. An archive of the repository says
its tag in `.git_archival.txt`, an sdist in PKG-INFO, and an installed wheel in its metadata.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

_DESCRIBED = re.compile(
    r"(?:v(?P<release>\d+\.\d+\.\d+)(?:-(?P<commits>\d+)-g)?)?(?P<node>[0-9a-f]{7,40})?(?P<dirty>-dirty)?"
)
"""What `git describe --tags --always --dirty` prints."""


@cache
def version() -> str:
    """Return the version, by PEP 440."""
    root = Path(__file__).resolve().parents[1]
    if (root / "CHANGELOG.md").is_file():
        return package_version(root)
    from importlib.metadata import version  # slow to import

    return version("tierline")


def package_version(root: Path) -> str:
    """Return the version of a checkout, an unpacked archive of the repository, or an unpacked sdist."""
    if (info := root / "PKG-INFO").is_file():
        return re.findall(r"^Version: (.+)$", info.read_text("utf-8"), re.MULTILINE)[0]  # type: ignore[no-any-return]
    described = _DESCRIBED.fullmatch(_git(root) or _archived(root))
    release, commits, node, dirty = described.group("release", "commits", "node", "dirty") if described else (None,) * 4
    if not release:
        changelog = (root / "CHANGELOG.md").read_text("utf-8")
        [release] = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", changelog, re.MULTILINE)[:1]
    elif commits:
        first, second, third = release.split(".")
        release = f"{first}.{second}.{int(third) + 1}.dev{commits}"
    local = [*([f"g{node}"] if node else []), *(["dirty"] if dirty else [])]
    return "+".join([release, ".".join(local)]) if local else release


def _git(root: Path) -> str:
    """Return what git says of a checkout; nothing where there is no repository, or no git."""
    if not (root / ".git").exists():
        return ""
    command = [
        "git",
        "--no-optional-locks",
        "describe",
        "--tags",
        "--match",
        "v[0-9]*",
        "--always",
        "--abbrev=8",
        "--dirty",
    ]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _archived(root: Path) -> str:
    """Return what `git archive` wrote into an archive: the tag that it follows, or else the commit."""
    words = (root / ".git_archival.txt").read_text("utf-8").split() if (root / ".git_archival.txt").is_file() else []
    return words[0] if words and "$" not in words[0] else ""
