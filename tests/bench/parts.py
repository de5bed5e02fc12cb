"""Count the core and its parts: their lines and files, the names that tie them together, and what a worker loads.

A part is a folder of `gateway.parts`; the core is the rest of the packages. The module `tierline`, which users import,
belongs to neither: it hands on the names of the part that has them.
"""

from __future__ import annotations

import ast
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.bench.ratchets import PACKAGES, lines_of, module_of, product_files, syntax_of, wheel_files
from tests.bench.rig import bench_gateway, raw_model
from tests.support.ask import ask, chat_body, read_stream
from tests.support.gateway import ROOT
from tests.support.store import local_store

TARGETS = {
    "modules per miss": 88,
    "core lines": 36_000,
    "core lines of other text": 2_000,
    "core files": 205,
    "names of parts in the core": 0,
    "core files that name a part": 0,
    "largest part's lines": 12_000,
    "names between parts": 200,
    "product lines without tools": 113_884,
    "public functions in two modules": 40,
    "`one` as a stored name": 100,
    "worker's modules": 300,
    "worker's modules, core alone": 185,
    "worker's lines, core alone": 32_000,
}
"""What each number is to become at most; the lines of the product are to be 8,000 fewer than the 121,884 before."""
_TEXTS = {".toml", ".lua", ".html"}
_SERVE = """
import json, sys
from gateway.cli.main import main

code = main(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    json.dump({name: getattr(module, "__file__", None) for name, module in sys.modules.items()}, file)
sys.exit(code)
"""


def sizes() -> dict[str, int]:
    """Count everything that needs no running gateway, by the names of `ratchets.json`."""
    lines = lines_of_parts()
    core = [file for file in wheel_files() if not part_of(module_of(file))]
    texts = [file for name in PACKAGES[:-1] for file in (ROOT / name).rglob("*") if file.suffix in _TEXTS]
    without_tools = (file for file in product_files() if not file.is_relative_to(ROOT / "tools"))
    between = names_of_parts()
    in_core = {(user, name) for user, name in between if not part_of(user) and user.split(".")[0] in PACKAGES}
    return {
        "core lines": lines.pop(""),
        "core lines of other text": lines_of(file for file in texts if not part_of(module_of(file))),
        "core files": len(core),
        "names of parts in the core": len(in_core),
        "core files that name a part": len({user for user, _ in in_core}),
        "largest part's lines": max(lines.values()),
        "names between parts": sum(part_of(user) != "" for user, _ in between),
        "product lines without tools": lines_of(without_tools),
        "public functions in two modules": len(functions_in_two_modules()),
        "`one` as a stored name": times_stored("one"),
    }


def part_of(module: str) -> str:
    """Return the part that a module belongs to, '' for the core; files that are no Python are named as modules are."""
    words = module.split(".")
    return words[2] if words[:2] == ["gateway", "parts"] and words[2:3] not in ([], ["standard"]) else ""


def lines_of_parts() -> Counter[str]:
    """Return the lines of Python of each part, and under '' those of the core."""
    lines: Counter[str] = Counter()
    for file in wheel_files():
        lines[part_of(module_of(file))] += lines_of([file])
    return lines


def names_of_parts() -> set[tuple[str, str]]:
    """Return each module of the wheel with each name that it imports, for types or late too, of a part not its own."""
    modules = {module_of(file): file for file in wheel_files()}
    return {
        (module, name)
        for module, file in modules.items()
        for name in _imported(syntax_of(file))
        if part_of(name) not in ("", part_of(module)) and name.split(".")[0] in PACKAGES
    }


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)


def functions_in_two_modules() -> list[str]:
    """Return the names of public functions that two or more modules of the product define, other than a seam's."""
    places: defaultdict[str, set[Path]] = defaultdict(set)
    of_seams: set[str] = set()
    for file in product_files():
        for node in syntax_of(file).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                places[node.name].add(file)
                if any(ast.unparse(decorator).startswith(("one(", "every(")) for decorator in node.decorator_list):
                    of_seams.add(node.name)
    return sorted(name for name, files in places.items() if len(files) > 1 and name not in of_seams)


def times_stored(name: str) -> int:
    """Count how often the product binds a variable of this name."""
    nodes = (node for file in product_files() for node in ast.walk(syntax_of(file)))
    return sum(isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store) for node in nodes)


def loaded(folder: Path) -> dict[str, int]:
    """Count the modules of ours, and their lines, that a worker has loaded after a chat, whole and streamed.

    Once with all parts and once in a copy of the packages without the parts' folders.
    """
    copy = folder / "core"
    shutil.copytree(ROOT / "gateway", copy / "gateway", ignore=_without_parts)
    for name in ("routing", "cache", "policies"):
        (copy / name).symlink_to(ROOT / name)
    files = {module_of(file): file for file in wheel_files()}
    counts = {}
    for root, which in ((ROOT, ""), (copy, ", core alone")):
        modules = _modules_of_a_worker(folder / f"gateway{which}", root) & files.keys()
        counts[f"worker's modules{which}"] = len(modules)
        counts[f"worker's lines{which}"] = lines_of(files[module] for module in modules)
    return counts


def _without_parts(folder: str, names: list[str]) -> set[str]:
    """Return what is not copied of the parts' folder: what stands in a folder of its own."""
    path = Path(folder)
    return {name for name in names if (path / name).is_dir()} if path.parts[-2:] == ("gateway", "parts") else set()


def _modules_of_a_worker(folder: Path, root: Path) -> set[str]:
    result = folder / "modules.json"
    launcher = ("-P", "-c", _SERVE, str(result))
    with raw_model() as model, local_store() as store:
        env = {"PYTHONPATH": str(root)}
        with bench_gateway(folder, model.port, store.url, launcher=launcher, **env) as gateway:
            ask(gateway, "What is a fuse?", model="full").raise_for_status()
            assert read_stream(gateway, chat_body("What is a relay?", "full")).done
        modules: dict[str, str | None] = json.loads(result.read_text())
    return {name for name, file in modules.items() if file and Path(file).is_relative_to(root)}
