"""Private names of libraries that we lean on: each is listed here with its reason, and is there in what is installed.

The versions of these libraries have upper bounds in pyproject.toml. To raise one, run this with the new version, and
look at what the names below do there.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from prometheus_client import Counter, Histogram
from redis._parsers.base import BaseParser
from redis.asyncio.connection import Connection

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = tuple(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
)
LIBRARIES: Final = ("redis", "hiredis", "prometheus_client", "uvicorn")

USED: Final[dict[tuple[str, str], str]] = {
    ("cache/store/redis_node.py", "redis._parsers"): "the class of each error reply: no public name has that table",
    (
        "cache/store/redis_node.py",
        "_writer",
    ): "the transport of a connection that redis-py opened",
    ("gateway/parts/metrics/metric_set.py", "_buckets"): "a histogram's counts, without an object for each line",
    ("gateway/parts/metrics/metric_set.py", "_documentation"): "what # HELP says",
    ("gateway/parts/metrics/metric_set.py", "_labelnames"): "names of a metric's labels",
    ("gateway/parts/metrics/metric_set.py", "_labelvalues"): "values of a series' labels",
    ("gateway/parts/metrics/metric_set.py", "_metrics"): "a metric's series, by the values of their labels",
    ("gateway/parts/metrics/metric_set.py", "_name"): "a metric's name",
    ("gateway/parts/metrics/metric_set.py", "_sum"): "the sum of what a histogram has seen",
    ("gateway/parts/metrics/metric_set.py", "_type"): "what # TYPE says",
    ("gateway/parts/metrics/metric_set.py", "_upper_bounds"): "the bounds of a histogram's buckets",
    ("gateway/parts/metrics/metric_set.py", "_value"): "a counter's or gauge's value",
    ("gateway/parts/metrics/metrics.py", "_buckets"): "many values at once: `observe` takes one, with a dozen calls",
    ("gateway/parts/metrics/metrics.py", "_metrics"): "how many series a metric has, to bound them",
    ("gateway/parts/metrics/metrics.py", "_sum"): "as `_buckets`",
    ("gateway/parts/metrics/metrics.py", "_upper_bounds"): "as `_buckets`",
    ("gateway/parts/metrics/metrics.py", "_value"): "a counter's sum at once: `inc` takes five calls, for each surface",
}
"""By file and name: what it is for."""


class _Both:
    """The attributes of a histogram without labels, and of one with labels, which has the series."""

    def __init__(self) -> None:
        self.__dict__ |= vars(Histogram("a", "text", ["x"], registry=None))
        self.__dict__ |= vars(Histogram("b", "text", registry=None))
        self._type = Histogram._type


HELD_BY: Final[dict[str, Callable[[], Any]]] = {
    "redis._parsers": lambda: importlib.import_module("redis"),
    "_writer": Connection,
    "_labelvalues": lambda: Counter("a", "text", ["x"], registry=None).labels("1"),
    "_value": lambda: Counter("a", "text", registry=None),
} | dict.fromkeys(
    ("_buckets", "_documentation", "_labelnames", "_metrics", "_name", "_sum", "_type", "_upper_bounds"),
    _Both,
)
"""By name, what has it."""


@cache
def _trees() -> dict[str, ast.Module]:
    files = (file for package in PRODUCT for file in (ROOT / package).rglob("*.py"))
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in files}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _made_in(tree: ast.Module) -> set[str]:
    """The names that a file gives to functions, classes, variables and attributes."""
    made = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    made |= {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    return made | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _imported(tree: ast.Module) -> Iterator[str]:
    """The dotted names that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _leaned_on(file: str) -> set[str]:
    """The private names of the libraries in a file: what it imports, reads of others, inherits and overrides."""
    tree = _trees()[file]
    theirs = [name for name in _imported(tree) if name.split(".")[0] in LIBRARIES]
    if not theirs:
        return set()
    made = _made_in(tree)
    found = {
        ".".join(parts[: place + 1])
        for parts in (name.split(".") for name in theirs)
        for place, part in enumerate(parts)
        if _is_private(part)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "super")
            if not own or node.attr not in made:
                found.add(node.attr)
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    for kind in (one for one in vars(module).values() if inspect.isclass(one) and one.__module__ == module.__name__):
        bases = [base for base in kind.__mro__[1:] if base.__module__.split(".")[0] in LIBRARIES]
        found |= {name for name in vars(kind) if _is_private(name) and any(hasattr(base, name) for base in bases)}
    return found


def test_every_private_name_of_these_libraries_is_listed() -> None:
    """With what it is for; and what is no longer used is no longer listed."""
    found = {(file, name) for file in _trees() for name in _leaned_on(file)}
    assert found - USED.keys() == set(), "a new private name of a library: do without it, or list it with its reason"
    assert USED.keys() - found == set(), "no longer used: take it off the list"


@pytest.mark.parametrize("name", sorted({name for _, name in USED}))
def test_the_installed_version_has_the_name(name: str) -> None:
    """So that an upgrade that renames it fails here, and not where a request needs it."""
    holder: Any = HELD_BY[name]()
    for part in name.split(".")[1:] if "." in name else [name]:
        assert hasattr(holder, part), f"{holder!r} has no {part}"
        holder = getattr(holder, part)


def test_an_error_reply_has_the_class_of_its_code() -> None:
    """What `redis._parsers` is there for."""
    assert type(BaseParser.parse_error("READONLY you cannot write")).__name__ == "ReadOnlyError"
    assert asyncio.iscoroutinefunction(Connection().connect)


@pytest.mark.parametrize("library", ["redis", "prometheus-client", "uvicorn"])
def test_their_versions_are_bounded(library: str) -> None:
    """A version that nobody has tried with these names is not installed."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (bound,) = (one for one in map(Requirement, wanted) if one.name == library)
    assert any(one.operator == "<" for one in bound.specifier), bound
