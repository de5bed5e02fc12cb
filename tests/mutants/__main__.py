"""Break one rule after the other, and see a test fail: `python -m tests.mutants [NAME...] [--list] [--json]`.

Each mutant of the lists beside this file is made in a copy of the tree, whose test runs alone; the same tests run
without any mutant first. A NAME is a mutant, `keys.grace_is_cut`, or a list, `keys`. The exit code is 1 where a mutant
lives or a test fails without one. Not in CI: a mutant takes about five seconds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from tests.mutants.listed import ROOT, Mutant, mutants

_LONGEST_S = 600
_OURS = frozenset({"cache", "gateway", "policies", "routing", "tests"})
_LIBRARIES = (
    "fastapi",
    "httpx2",
    "hypothesis",
    "numpy",
    "openai",
    "pydantic",
    "redis.asyncio",
    "uvicorn",
    "websockets",
)
"""Libraries that take long to load: each run of the tests is a child that has them."""
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
    log = root.with_suffix(".log")
    child = os.fork()
    if not child:
        _be_pytest(root, tests, log)
    until = time.monotonic() + _LONGEST_S
    try:
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > until:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return _FAILED, "the test did not end within ten minutes"
            time.sleep(0.02)
        return os.waitstatus_to_exitcode(ended[1]), log.read_text(errors="replace")
    finally:
        log.unlink(missing_ok=True)


def _be_pytest(root: Path, tests: Sequence[str], log: Path) -> NoReturn:
    """Run tests in this process, a child that has the libraries, and of the tree nothing."""
    code = -1
    try:
        os.setsid()
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
            del sys.modules[name]
        os.chdir(root)
        os.environ["PYTHONPATH"] = str(root)
        sys.path.insert(0, str(root))
        code = int(pytest.main(["-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]))
    finally:
        sys.stdout.flush()
        os._exit(code)


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
    for name in _LIBRARIES:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tree"
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
