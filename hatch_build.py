"""Write what the wheels carry: one importable package, `tierline`, instead of the folders of this tree.

There is a wheel of `tierline` itself, and one for each part that the list of parts gives another distribution: its
folder alone, at its place in the same package. All have one version, and need each other at that version.

`gateway/...`, `routing/...` and the others become `tierline/gateway/...`, so that nobody's site-packages gets a
top-level `cache` or `routing`. Their imports of each other are prefixed in place, at the positions that `ast` gives:
every line keeps its number, and a stack trace reads as it does in the checkout. `tierline.py` becomes
`tierline/__init__.py`. The data files are hatchling's own to move (`sources` in pyproject.toml).

A string is never rewritten, as `cache.write` may be a module as well as the name of a span. The tree is therefore
written without strings that name its modules (`f"{__name__}:worker"`, `-m tierline`), and the build fails at one.
An editable install is the tree itself: nothing is written for it.
"""

from __future__ import annotations

import ast
import re
import runpy
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Set
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

NAMESPACE: Final = "tierline"
_ROOT: Final = Path(__file__).resolve().parent
_FOLDERS: Final = Path("gateway", "parts")
_NOT_OURS: Final = {"__pycache__", "node_modules"}
_FROM: Final = re.compile(rb"from(?:\s|\\\r?\n)+")
_DOTTED: Final = re.compile(r"(?P<module>[a-z_]\w*(?:\.\w+)*)(?:(?P<attribute>:\w+)|\.)?")
"""`package.module`, `package.module:function`, and the beginning of an f-string, `package.module.`."""
_ALSO_WORDS: Final = {"cache"}
"""Packages whose modules have names that policies, spans and the admin API use too: `cache.write`, `cache.entry`."""
_IMPORTERS: Final = {"import_module", "find_spec", "files", "run_module", "__import__"}
_MAIN: Final = f"""\"\"\"Run the command line: `python -m {NAMESPACE}` is the same as `{NAMESPACE}`.\"\"\"

from {NAMESPACE} import main

if __name__ == "__main__":
    raise SystemExit(main())
"""


class OldName(Exception):
    """Files of the tree name modules in ways that would be wrong in the wheel; the message has a line for each."""


def parts_apart() -> dict[str, Any]:
    """Return the parts that are distributions of their own, by the names of these."""
    parts = runpy.run_path(str(_ROOT / _FOLDERS / "standard.py"))["PARTS"]
    return {part.distribution: part for part in parts if part.distribution != NAMESPACE}


class DistributionMetadata(MetadataHookInterface):
    """The hook for metadata, which hatchling finds here."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add what a part needs, or the extras of `tierline`; see hatchling."""
        apart, settings = parts_apart(), _settings()
        groups = settings["dependency-groups"]
        pinned = {part.name: f"{name}=={metadata['version']}" for name, part in apart.items()}
        if (part := apart.get(metadata["name"])) is None:
            metadata["optional-dependencies"] = {
                **{
                    name: [*groups.get(name, []), *(pinned[brought] for brought in brings)]
                    for name, brings in self.config["extras"].items()
                },
                **{name: [pin] for name, pin in pinned.items()},
                "all": list(pinned.values()),
            }
            return
        others = [each.name for each in apart.values() if set(each.needed_by) & set(part.commands)]
        ours = [f"{NAMESPACE}=={metadata['version']}", *(pinned[other] for other in others)]
        metadata["dependencies"] = [*ours, *groups.get(part.name, [])]
        metadata |= {name: settings["project"][name] for name in ("classifiers", "license", "requires-python")}


class WheelNamespace(BuildHookInterface[Any]):
    """The build hook of the wheels, which hatchling finds here."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the namespace into a temporary folder, and have it put into the wheel; see hatchling."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory()  # removed at the latest when a failed build ends
        into, apart = Path(self._folder.name), parts_apart()
        packages = set(_settings()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
        if (part := apart.get(self.metadata.name)) is None:
            write(_ROOT, packages, into)
            for other in apart.values():
                shutil.rmtree(into / _FOLDERS / other.name)
            build_data["force_include"] |= {str(path): path.name for path in into.iterdir()}
            return
        folder = _FOLDERS / part.name
        shutil.copytree(_ROOT / folder, into / folder, ignore=shutil.ignore_patterns(*_NOT_OURS))
        write(_ROOT, packages, into, folder)
        build_data["force_include"][str(into / folder)] = f"{NAMESPACE}/{folder}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder; see hatchling."""
        if version != "editable":
            self._folder.cleanup()


def _settings() -> dict[str, Any]:
    return tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))


def write(root: Path, packages: Set[str], into: Path, part: Path | None = None) -> None:
    """Write the Python files of `packages`, and what makes them one package with types, into a folder.

    With `part`, a folder of theirs, only what is below it.

    Raises:
        OldName: Some lines have to be written differently first; it names all of them.
    """
    sources = {
        file: file.relative_to(root)
        for package in sorted(packages)
        for file in sorted((root / package).rglob("*.py"))
        if not _NOT_OURS & set(file.parts)
    }
    # A folder of the tree that the wheel leaves out (tests, tools) cannot be imported from it either.
    absent = {path.name for path in root.iterdir() if path.is_dir()} - packages
    modules = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in sources.values()}
    if part is None:
        sources[root / f"{NAMESPACE}.py"] = Path("__init__.py")
    else:
        sources = {file: path for file, path in sources.items() if path.is_relative_to(part)}
    problems: list[str] = []
    for file, path in sources.items():
        text = file.read_bytes()
        tree = ast.parse(text)
        lines = [*imports_left(tree, packages, absent), *strings_left(tree, packages | absent, modules)]
        problems += (f"{file.relative_to(root)}:{line}" for line in lines)
        target = into / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(rewritten(text, packages))
    if problems:
        raise OldName("these lines would be wrong in the wheel (hatch_build.py says why):\n" + "\n".join(problems))
    if part is None:
        (into / "__main__.py").write_text(_MAIN)
        (into / "py.typed").touch()


def rewritten(text: bytes, packages: Set[str]) -> bytes:
    """Return a module's text with `tierline.` before each of `packages` that a `from` or `import ... as` names.

    Raises:
        OldName: The outcome is not the same module with other names.
    """
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    tree = ast.parse(text)
    places = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and _is_of(node.module, packages):
            if keyword := _FROM.match(text, starts[node.lineno - 1] + node.col_offset):
                places.append(keyword.end())
            node.module = f"{NAMESPACE}.{node.module}"
        elif isinstance(node, ast.Import):
            for name in node.names:
                if _is_of(name.name, packages):
                    places.append(starts[name.lineno - 1] + name.col_offset)
                    name.name = f"{NAMESPACE}.{name.name}"
    for place in sorted(places, reverse=True):  # from the end, so that the places before it stay where they are
        text = text[:place] + f"{NAMESPACE}.".encode() + text[place:]
    if ast.dump(ast.parse(text)) != ast.dump(tree):
        raise OldName(f"rewriting would change more than imports in the module that begins with {lines[0]!r}")
    return text


def imports_left(tree: ast.Module, packages: Set[str], absent: Set[str]) -> Iterator[str]:
    """Yield `line: what is wrong` for imports that cannot be prefixed, or of folders that the wheel does not carry."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and _is_of(node.module, absent):
            yield f"{node.lineno}: from {node.module} import ..., which the wheel does not carry"
        elif isinstance(node, ast.Import):
            for name in node.names:
                if _is_of(name.name, absent):
                    yield f"{node.lineno}: import {name.name}, which the wheel does not carry"
                elif _is_of(name.name, packages) and not name.asname:
                    yield f"{node.lineno}: import {name.name} binds a top-level name; write from ... import ..."


def strings_left(tree: ast.Module, tops: Set[str], modules: Set[str]) -> Iterator[str]:
    """Yield `line: what to do` for strings that name a module, or a folder, of this tree; docstrings may."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[first, *_]) if name in _IMPORTERS:
                if _is_of(_text(first), tops):
                    yield f"{node.lineno}: {name}({_text(first)!r}); write it with a module's __name__"
            case ast.List(elts=words) | ast.Tuple(elts=words) | ast.Call(args=words):
                for before, after in pairwise(words):
                    if _text(before) == "-m" and _is_of(_text(after), tops):
                        yield f"{after.lineno}: -m {_text(after)}; write -m {NAMESPACE}, or with a module's __name__"
            case ast.Constant(value=str(text)) if id(node) not in docstrings and (dotted := _DOTTED.fullmatch(text)):
                top, dot, _ = dotted["module"].partition(".")
                if dotted["module"] in modules and (dotted["attribute"] or (dot and top not in _ALSO_WORDS)):
                    yield f"{node.lineno}: {text!r} names a module; write it with the module's __name__"


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _is_of(module: str | None, tops: Set[str]) -> bool:
    return module is not None and re.split("[.:]", module, maxsplit=1)[0] in tops
