"""Hold the branches that the tests take against their floors: `make coverage [ARGS="--raise"]`.

Reads what the processes of a run have left in build/coverage. The floor of each package, in percent of its branches,
stands in `ratchets.json` and only rises: `--raise` writes today's percents where they are higher. The exit code is 1
where one is lower.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import coverage

from tests.bench import ratchets
from tests.support.gateway import ROOT


def main(arguments: list[str] | None = None) -> int:
    """Combine, print and compare."""
    parser = argparse.ArgumentParser(prog="make coverage", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--raise", dest="raised", action="store_true", help="write the percents that have become higher"
    )
    args = parser.parse_args(arguments)
    limits = ratchets.kept()
    floors: dict[str, float] = limits[ratchets.BRANCHES]
    percents = percents_of(_report(), list(floors))
    print(f"{ratchets.BRANCHES:32}{'now':>10}{'floor':>10}")
    for package, percent in percents.items():
        print(f"{package:32}{percent:>10.1f}{floors[package]:>10.1f}")
    if args.raised:
        limits[ratchets.BRANCHES] = {package: max(floor, percents[package]) for package, floor in floors.items()}
        ratchets.KEPT.write_text(json.dumps(limits, indent=1) + "\n")
    lines = fallen(percents, floors)
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines else 0


def _report() -> dict[str, Any]:
    measured = coverage.Coverage(config_file=str(ROOT / "pyproject.toml"))
    measured.combine()
    with tempfile.TemporaryDirectory() as folder:
        measured.json_report(outfile=f"{folder}/report.json")
        report: dict[str, Any] = json.loads(Path(folder, "report.json").read_bytes())
    return report


def percents_of(report: Mapping[str, Any], packages: list[str]) -> dict[str, float]:
    """Return the percent of its branches that were taken for each package, rounded down to a tenth."""
    taken, all_of_them = Counter[str](), Counter[str]()
    for file, found in report["files"].items():
        for package in packages:
            if file.startswith(f"{package}/"):
                taken[package] += found["summary"]["covered_branches"]
                all_of_them[package] += found["summary"]["num_branches"]
    return {package: math.floor(1000 * taken[package] / max(1, all_of_them[package])) / 10 for package in packages}


def fallen(percents: Mapping[str, float], floors: Mapping[str, float]) -> list[str]:
    """Return a line for each package whose tests take fewer of its branches than its floor says."""
    return [
        f"{package}: {percents[package]:.1f}% of the branches taken, {floor:.1f}% is the floor. Test what you added."
        for package, floor in floors.items()
        if percents[package] < floor
    ]


if __name__ == "__main__":
    sys.exit(main())
