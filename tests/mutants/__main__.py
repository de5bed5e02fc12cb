"""Break one rule after the other, and see a test fail: `python -m tests.mutants [NAME...] [--list] [--json]`.

Each mutant of the lists beside this file is made in a copy of the tree, whose test runs alone; the same tests run
without any mutant first. A NAME is a mutant, `keys.grace_is_cut`, or a list, `keys`. The exit code is 1 where a mutant
lives or a test fails without one. Not in CI: a mutant takes about ten seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.listed import ROOT, Mutant, mutants

_LONGEST_S = 600
_FAILED = 1
"""Exit code of pytest where tests ran and one failed; without any test it has another."""


def _copy(into: Path) -> None:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, into / name)


def _pytest(root: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests in the copy, at most ten minutes; return pytest's exit code and what it wrote."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
    env = os.environ | {"PYTHONPATH": str(root)}  # with bytecode, so that one module alone is compiled for each mutant
    try:
        done = subprocess.run(
            command, cwd=root, env=env, capture_output=True, text=True, timeout=_LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return _FAILED, "the test did not end within ten minutes"
    return done.returncode, done.stdout + done.stderr


def _try(root: Path, mutant: Mutant) -> dict[str, object]:
    path = root / mutant.file
    whole = path.read_text()
    path.write_text(mutant.mutated(root))
    began = time.monotonic()
    try:
        code, wrote = _pytest(root, mutant.test.split(" "))
    finally:
        path.write_text(whole)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", wrote, re.MULTILINE)
    return mutant._asdict() | {
        "killed": code == _FAILED,
        "by": failed[0] if failed else None,
        "seconds": round(time.monotonic() - began, 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the mutants named, print how each ended, and return 1 where one lives."""
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a mutant, or a list of them; by default all")
    parser.add_argument("--list", action="store_true", help="print the rules, and make no mutant")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each mutant")
    args = parser.parse_args(arguments)
    chosen = [each for each in mutants() if not args.names or {each.name, each.name.split(".")[0]} & set(args.names)]
    if not chosen:
        parser.error(f"there is no mutant of these names: {', '.join(args.names)}")
    if args.list:
        print("\n".join(f"{each.name:44} {each.rule}" for each in chosen))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _copy(root)
        code, wrote = _pytest(root, sorted({test for each in chosen for test in each.test.split(" ")}))
        if code:
            print(wrote[-4000:], "Without a mutant the tests must pass.", sep="\n", file=sys.stderr)
            return 1
        alive = 0
        for each in chosen:
            ended = _try(root, each)
            alive += not ended["killed"]
            if args.json:
                print(json.dumps(ended), flush=True)
            else:
                how = f"killed by {ended['by']}" if ended["killed"] else "LIVES"
                print(f"{each.name:44} {how} ({ended['seconds']} s)", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} killed", file=sys.stderr)
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
