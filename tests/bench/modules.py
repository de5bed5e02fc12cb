"""How many modules one must read to follow a request: `python -m tests.bench.modules [--list]`.

Counts the modules of ours that a JSON request with a cache miss passes in the gateway's event loop, over a real store;
the longest chain of imports among the modules that serve; and the lines of these. Offline tools and the commands are
left out of the last two.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Set
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

from tests.bench import budgets
from tests.support.gateway import ROOT

PACKAGES = ("gateway", "offline", "routing", "cache", "policies")
GOALS = {"passed": (45, 30), "chain": (14, 10), "lines": (23_000, 20_000)}
"""Target and aim of each figure."""


def passed(folder: Path) -> tuple[list[str], list[str]]:
    """The modules that every JSON miss passes, and those that only some of the requests did."""
    with budgets.servers(folder) as (_, ours):
        counts = budgets.count_requests(ours, "full", unique=True, way="direct")
        calls: dict[str, int] = budgets.calls_by_module(ours)
    assert counts["calls"] > 0
    here = {module: count for module, count in calls.items() if module.partition(".")[0] in PACKAGES}
    often = sorted(module for module, count in here.items() if count >= budgets.REQUESTS)
    return often, sorted(set(here) - set(often))


def serves(module: str) -> bool:
    """Whether a module is neither an offline tool nor a command."""
    return module.partition(".")[0] != "offline" and not module.startswith("gateway.cli.commands")


def imports() -> dict[str, set[str]]:
    """Each module that serves, and those of them that it imports at its own import, other than for types alone."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    modules = {module for module in graph.modules if serves(module)}

    def early(importer: str, imported: str) -> bool:
        lines = _lines_of(importer)
        details = graph.get_import_details(importer=importer, imported=imported)
        return any(not lines[one["line_number"] - 1].startswith(" ") for one in details)

    return {
        module: {one for one in graph.find_modules_directly_imported_by(module) & modules if early(module, one)}
        for module in modules
    }


@cache
def _lines_of(module: str) -> list[str]:
    path = ROOT.joinpath(*module.split("."))
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text().splitlines()


def longest_chain(imported: Mapping[str, Set[str]]) -> list[str]:
    """The longest chain of modules of which each imports the next; raises CycleError where two import each other."""
    best: dict[str, list[str]] = {}
    for module in TopologicalSorter(imported).static_order():  # what is imported comes first
        tails = [best[one] for one in sorted(imported.get(module, ()))]
        best[module] = [module, *max(tails, key=len, default=[])]
    return max((best[module] for module in sorted(best)), key=len, default=[])


def lines() -> int:
    """Lines of the files that serve."""
    total = 0
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            total += len(file.read_text().splitlines()) if serves(module) else 0
    return total


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.modules", description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="name the modules and the chain")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        often, seldom = passed(Path(folder))
    chain = longest_chain(imports())
    found = {
        "passed": ("modules that every JSON miss passes", len(often)),
        "chain": ("modules in the longest import chain", len(chain)),
        "lines": ("serving lines", lines()),
    }
    print(f"{'':40}{'ours':>8}{'target':>8}{'aim':>8}")
    for name, (what, value) in found.items():
        target, aim = GOALS[name]
        state = "aim met" if value <= aim else "met" if value <= target else "OVER"
        print(f"{what:40}{value:>8,}{target:>8,}{aim:>8,}  {state}")
    print(f"{len(seldom)} more modules ran for some of the requests.")
    if asked.list:
        print("\nPassed:\n  " + "\n  ".join(often) + "\nMeanwhile:\n  " + "\n  ".join(seldom))
        print("Chain:\n  " + "\n  ".join(chain))
    return 0


if __name__ == "__main__":
    sys.exit(main())
