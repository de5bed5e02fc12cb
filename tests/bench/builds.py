"""Two commits side by side: a tree of each, run by this interpreter and its installed packages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.gateway import ROOT, environment

COST_BASE: Final = Path(__file__).with_name("cost-base")
"""Names the commit that costs are compared with."""
WORKING_TREE: Final = "the working tree"
_LOCK: Final = "requirements"


class NoBuild(Exception):
    """A commit that cannot be taken or run; the message says why."""


@dataclass(frozen=True, slots=True)
class Build:
    """A tree of the product: a commit's, or a copy of the working tree; `commit` names it for people."""

    name: str
    commit: str
    tree: Path

    def env(self, **more: str) -> dict[str, str]:
        """Return an environment in which the packages are this build's."""
        return environment(PYTHONPATH=str(self.tree), **more)

    def run(self, arguments: Sequence[str], timeout_s: float = 1800, **more: str) -> subprocess.CompletedProcess[str]:
        """Run `python ARGUMENTS` in this build; the process' exit code is the caller's to judge."""
        env = self.env(**more)
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # users have compiled modules
        command = [sys.executable, "-P", *arguments]
        return subprocess.run(
            command, cwd=self.tree, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
        )


def base_commit() -> str:
    """Return the commit that the file `cost-base` names."""
    return COST_BASE.read_text().split()[0]


def packed(folder: Path, name: str, commit: str | None) -> Build:
    """Make a tree of `commit`, or of the working tree with all that git does not ignore, below `folder`.

    Raises:
        NoBuild: There is no such commit, or its packages are not the ones that run.
    """
    tree = folder / name
    tree.mkdir(parents=True)
    if commit is None:
        listed = _git("ls-files", "--cached", "--others", "--exclude-standard", "-z").split(b"\0")
        present = b"\0".join(file for file in listed if file and (ROOT / os.fsdecode(file)).is_file())
        command = ["tar", "-c", "-C", str(ROOT), "--null", "-T", "-"]
        archive = subprocess.run(command, input=present, stdout=subprocess.PIPE, check=True).stdout
        head = _git("rev-parse", "HEAD").decode().strip()[:10]
        label = f"{WORKING_TREE} ({head} and what is not committed)" if _git("status", "--porcelain") else head
    else:
        label = _git("rev-parse", "--verify", "--end-of-options", f"{commit}^{{commit}}", what=commit).decode().strip()
        archive, label = _git("archive", label), label[:10]
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
    build = Build(name, label, tree)
    run = build.run(["-c", "import gateway; print(gateway.__file__)"])
    if not run.stdout.startswith(str(tree)):
        raise NoBuild(f"{label}: its packages cannot be run: {run.stderr.strip()[-300:] or run.stdout}")
    return build


def same_locks(builds: Mapping[str, Build]) -> bool:
    """Return whether the builds' lists of pinned packages are equal; both run with those installed here anyway."""
    texts = {
        tuple((file.name, file.read_text()) for file in sorted((build.tree / _LOCK).glob("*.lock")))
        for build in builds.values()
    }
    return len(texts) == 1


def _git(*arguments: str, what: str = "the working tree") -> bytes:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise NoBuild(f"{what} cannot be taken: git {arguments[0]}: {done.stderr.decode().strip()[:300]}")
    return done.stdout
