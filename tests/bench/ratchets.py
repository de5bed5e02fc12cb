"""Sizes of the house that may fall and not grow: counted here, kept in `ratchets.json`.

`python -m tests.bench.modules` prints them beside what is kept and exits with 1 when one has grown. Whoever makes one
smaller writes the new number down (`--lower`). A number is raised by hand alone, in a commit of its own that names the
feature, the lines that it takes, and what it made unnecessary.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import grimp

from tests.support.gateway import ROOT

KEPT = Path(__file__).with_name("ratchets.json")
NOT_SERVING = ("gateway.parts", "gateway.cli", "gateway.report", "tools")
"""Modules that no request needs: the parts of `gateway.parts.standard`, and commands."""
RAISE = (
    "Take as much away, or raise the number by hand in tests/bench/ratchets.json, in a commit of its own that names "
    "the feature, the lines that it takes, and what it made unnecessary."
)
BRANCHES = "branches taken, %"
_RULE_LINES = 100
_PUBLIC = {"_", "_asdict", "_fields", "_make", "_replace"}
"""Names that are no private ones: those of named tuples are public in spite of their underscore."""
_BUILT = {"node_modules", "build", "dist", "tests", "__pycache__"}
_SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES: tuple[str, ...] = tuple(_SETTINGS["tool"]["importlinter"]["root_packages"])


def sizes() -> dict[str, int]:
    """Count everything that needs no running gateway, by the names of `ratchets.json`."""
    return {
        "product lines": lines_of(product_files()),
        "wheel lines": lines_of(wheel_files()),
        "serving lines": lines_of(file for file in wheel_files() if serves(module_of(file))),
        "import chain": len(longest_chain(imports())),
        "private names of libraries": len(private_names()),
        "ask-like helpers in tests": len(helpers_that_ask()),
        "rules without a test file": len(rules_without_tests()),
        "tests/bench lines": lines_of((ROOT / "tests" / "bench").rglob("*.py")),
    }


def kept() -> dict[str, Any]:
    """Read the numbers that nothing may exceed; `branch coverage` holds those that nothing may fall below."""
    numbers: dict[str, Any] = json.loads(KEPT.read_text())
    return numbers


def grown(found: Mapping[str, int], limits: Mapping[str, Any]) -> list[str]:
    """Return a line for each number that is larger than the one kept, or has none."""
    lines = []
    for name, number in found.items():
        if name not in limits:
            lines.append(f"{name}: {number:,}, and no number is kept for it; write it into tests/bench/ratchets.json")
        elif number > limits[name]:
            lines.append(f"{name}: {number:,}, at most {limits[name]:,} kept. {RAISE}")
    return lines


def lower(found: Mapping[str, int]) -> None:
    """Keep those numbers that are smaller than the ones kept; the others stay as they are."""
    limits = kept()
    limits |= {name: number for name, number in found.items() if number < limits.get(name, number + 1)}
    KEPT.write_text(json.dumps(limits, indent=1) + "\n")


@cache
def product_files() -> tuple[Path, ...]:
    """All Python of ours outside the tests: of every folder at the top, so that a new one is counted."""
    files = [*ROOT.glob("*.py"), *(file for folder in ROOT.glob("[!.]*/") for file in sorted(folder.rglob("*.py")))]
    return tuple(file for file in files if not _BUILT & set(file.relative_to(ROOT).parts))


def wheel_files() -> list[Path]:
    """The Python files that the wheel carries, by the packages named to hatchling, and the module of its own name."""
    packages = _SETTINGS["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    carried = [*(ROOT / folder for folder in packages), ROOT / f"{_SETTINGS['project']['name']}.py"]
    return [file for file in product_files() if any(file.is_relative_to(folder) for folder in carried)]


def lines_of(files: Iterable[Path]) -> int:
    """Count the lines of all these files."""
    return sum(len(file.read_text().splitlines()) for file in files)


def module_of(file: Path) -> str:
    """Return the dotted name of a file; that of a package for its `__init__.py`."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def serves(module: str) -> bool:
    """Return whether a request may need a module: it belongs to no listed part and to no command."""
    return not any(module == name or module.startswith(name + ".") for name in NOT_SERVING)


@cache
def syntax_of(file: Path) -> ast.Module:
    """Parse a file, once."""
    return ast.parse(file.read_text())


def imports() -> dict[str, set[str]]:
    """Map each module to those of ours that it imports when it is imported itself, other than for types alone."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    late = {module_of(file): _lines_of_functions(file) for file in product_files()}
    return {
        module: {
            imported
            for imported in graph.find_modules_directly_imported_by(module)
            if any(
                each["line_number"] not in late[module]
                for each in graph.get_import_details(importer=module, imported=imported)
            )
        }
        for module in graph.modules
    }


def _lines_of_functions(file: Path) -> set[int]:
    functions = (node for node in ast.walk(syntax_of(file)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {line for node in functions for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def longest_chain(imported: Mapping[str, Set[str]]) -> list[str]:
    """Return the longest chain of modules of which each imports the next.

    Raises:
        CycleError: Two modules import each other.
    """
    best: dict[str, list[str]] = {}
    for module in TopologicalSorter(imported).static_order():  # what is imported comes first
        tails = [best[name] for name in sorted(imported.get(module, ()))]
        best[module] = [module, *max(tails, key=len, default=[])]
    return max((best[module] for module in sorted(best)), key=len, default=[])


def private_names() -> list[str]:
    """Return `module: name` for each private name of another library that a module of ours uses.

    Such a name stands in an import or behind an imported name, or is an attribute that nothing in our own tree defines.
    """
    trees = {module_of(file): syntax_of(file) for file in product_files()}
    ours = {name for tree in trees.values() for name in _defined(tree)}
    top = {module.partition(".")[0] for module in trees}
    return sorted({f"{module}: {name}" for module, tree in trees.items() for name in _foreign(tree, ours, top)})


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in _PUBLIC


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=ast.Tuple(elts=slots)):
                yield from (slot.value for slot in slots if isinstance(slot, ast.Constant))
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name


def _foreign(tree: ast.Module, ours: Set[str], top: Set[str]) -> Iterator[str]:
    known = top | sys.stdlib_module_names
    other, standard = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                root = each.name.partition(".")[0]
                (standard if root in known else other).add(each.asname or root)
        elif isinstance(node, ast.ImportFrom) and node.module:
            foreign = node.module.partition(".")[0] not in known
            (other if foreign else standard).update(each.asname or each.name for each in node.names)
            parts = [*node.module.split("."), *(each.name for each in node.names)]
            yield from (f"{node.module}: {part}" for part in parts if foreign and _is_private(part))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            name = root.id if isinstance(root, ast.Name) else ""
            if name in other or (node.attr not in ours and name not in standard):
                yield node.attr


def helpers_that_ask() -> list[str]:
    """Return `file: function` for each function of the tests that asks something of a gateway in its own way.

    They are known by their name, `ask` and what begins so. The one that all should use is in tests/support.
    """
    return [
        f"{file.relative_to(ROOT)}: {name}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        if not {"support", "node_modules"} & set(file.parts)
        for name in re.findall(r"^ *(?:async )?def (_?ask(?:_\w+)?)\(", file.read_text(), re.MULTILINE)
    ]


def rules_without_tests() -> list[str]:
    """Return the modules of the packages whose branches have a floor that no test file is named for, but small ones."""
    named = {file.stem.removeprefix("test_") for file in (ROOT / "tests").rglob("test_*.py")}
    return sorted(
        str(file.relative_to(ROOT))
        for package in kept()[BRANCHES]
        for file in (ROOT / package).rglob("*.py")
        if not any(name == file.stem or name.startswith(f"{file.stem}_") for name in named)
        and len(file.read_text().splitlines()) >= _RULE_LINES
    )
