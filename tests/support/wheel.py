"""`python -m tests.support.wheel FILE`: whether a wheel carries all it must without the checkout, and nothing else."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("gateway", "offline", "routing", "cache", "policies")


def missing_from(wheel: Path) -> list[str]:
    """Files of our packages, and the default config, that the wheel does not have."""
    with zipfile.ZipFile(wheel) as archive:
        carried = set(archive.namelist())
    wanted = [
        file.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    ]
    return sorted({*wanted, "gateway/defaults/tierline.yaml"} - carried)


def strangers_in(wheel: Path) -> list[str]:
    """Top-level names in the wheel that are not our packages or its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    return sorted(top for top in tops if top not in PACKAGES and not top.endswith(".dist-info"))


def main() -> int:
    """Prints what is wrong; 1 if anything is."""
    wheel = Path(sys.argv[1])
    problems = [f"not in the wheel: {name}" for name in missing_from(wheel)]
    problems += [f"should not be in the wheel: {name}" for name in strangers_in(wheel)]
    print("\n".join(problems or [f"{wheel.name} carries all it needs"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
