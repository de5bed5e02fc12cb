"""No text of a client makes a pattern or a function cost more than in proportion to its length.

Patterns and functions are collected from the packages, so a new one is timed as soon as it is there.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from time import thread_time
from types import ModuleType
from typing import Any

import pytest

from cache.semantic.decision import decide_by
from cache.semantic.verifier import Verifier, shipped_verifier
from cache.text.guards import SWITCHED, Pair
from gateway.parts.redaction.part import TextRedactor
from policies.caching import SemanticCache
from tests.support.wait import SLOWNESS

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("gateway", "routing", "cache", "policies")
NOT_OF_CLIENTS = (
    "gateway.cli",
    "gateway.parts.console",
    "gateway.config",
    "gateway.parts.ledger",
    "gateway.__main__",
    "policies",
)
"""What reads an operator's own files and commands."""
TEXT = (
    "cache.text",
    "cache.semantic",
    "cache.planning",
    "gateway.parts.agents",
    "gateway.parts.hit_audits",
    "gateway.parts.servers",
    "routing",
    "gateway.dialects",
    "gateway.chat",
)
"""Packages whose functions of strings are timed too."""
LONG = 2_000
"""Characters, up to which questions are read; the short text has a tenth."""
FLOOR_S = 0.004 * SLOWNESS
"""What a text of LONG characters may always cost."""
WORSE = 30
"""Where ten times the text costs so many times as much, that is no longer in proportion."""

CLASSES = (
    *".,!?\u2026 \n\ta A1-_/\\'\"()[]{}<>=+&|%#@:;*~`$^\u3002\uff0c\u6587\u3042\u0e01\u05d0\u00e9\u0301\x00",
    "\U0001f600",
)
MIXED = tuple(a + b for a in ". 1aA\n-_:" for b in ".,1a -A\n(" if a != b)
WORDS = (
    "please ",
    "thanks, ",
    "how to ",
    "is ",
    "not ",
    "A. ",
    "1. ",
    "\n1. ",
    "x;",
    "::",
    "a@b.",
    "\u6587\u3002",
    "data:a;",
)
RUNS = (*CLASSES, *MIXED, *WORDS)


def modules() -> list[ModuleType]:
    """Every module that serves."""
    names = [
        each.name
        for package in PACKAGES
        for each in pkgutil.walk_packages([str(ROOT / package)], f"{package}.")
        if not each.name.startswith(NOT_OF_CLIENTS)
    ]
    return [import_module(name) for name in names]


def patterns_in(value: object, depth: int = 3) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, tuple | list | set | frozenset | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from patterns_in(each, depth - 1)


CALLED = re.compile(r"(\w+)\.(match|search|fullmatch|sub|finditer|findall|split)\b")


@cache
def methods_called() -> dict[str, set[str]]:
    """The methods of patterns that are called somewhere, by the name of what they are called on."""
    called: dict[str, set[str]] = {}
    for file in [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]:
        for name, method in CALLED.findall(file.read_text()):
            called.setdefault(name, set()).add(method)
    return called


def methods_of(name: str, pattern: re.Pattern[Any]) -> Iterator[Callable[[Any], object]]:
    """The methods that are called on it somewhere; all where it is not called by its name."""
    used = methods_called().get(name, set())
    if not used or used & {"match"}:
        yield pattern.match
    if not used or used & {"fullmatch"}:
        yield pattern.fullmatch
    if not used or used & {"search", "sub", "finditer", "findall", "split"}:
        yield lambda text: pattern.sub(text[:0], text)


PATTERNS = {
    f"{module.__name__}.{name}.{at}": (name, pattern)
    for module in modules()
    for name, value in vars(module).items()
    for at, pattern in enumerate(patterns_in(value))
}


def sample(node: Any, runs: list[tuple[str, str]], before: str = "") -> str:
    """A text that fits a parsed pattern; to `runs` goes what stands before each repetition, and what it repeats."""
    text = ""
    for op, value in node:
        here = before + text
        if op is ops.LITERAL:
            text += chr(value)
        elif op is ops.NOT_LITERAL or op is ops.ANY:
            text += "b" if value == ord("a") else "a"
        elif op is ops.IN:
            text += of_set(value)
        elif op is ops.BRANCH:
            text += next(sample(branch, runs, here) for branch in value[1])
        elif op is ops.SUBPATTERN:
            text += sample(value[3], runs, here)
        elif op is ops.ATOMIC_GROUP:
            text += sample(value, runs, here)
        elif op in (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT):
            least, most, item = value
            each = sample(item, runs, here)
            if most >= 8 and each:
                runs.append((here, each))
            text += each * least
    return text


def of_set(items: Any) -> str:
    spelled = {
        ops.CATEGORY_DIGIT: "1",
        ops.CATEGORY_NOT_DIGIT: "a",
        ops.CATEGORY_SPACE: " ",
        ops.CATEGORY_NOT_SPACE: "a",
        ops.CATEGORY_WORD: "a",
        ops.CATEGORY_NOT_WORD: " ",
    }
    excluded = [
        sample([item], []) if item[0] is not ops.RANGE else chr(item[1][0])
        for item in items[1:]
        if item[0] is not ops.CATEGORY
    ]
    if items[0][0] is ops.NEGATE:
        return next(letter for letter in "a 1.\u3002" if letter not in excluded)
    op, value = items[0]
    return chr(value) if op is ops.LITERAL else chr(value[0]) if op is ops.RANGE else spelled[value]


def texts(begins: str, run: str, ends: str, length: int) -> str:
    return begins + (run * (length // len(run) + 1))[:length] + ends


def too_slow(call: Callable[[Any], object], begins: str, run: str, ends: str, binary: bool = False) -> str:
    """What is wrong with a function on a run of `run`; '' for nothing. No cache answers."""

    def cost(length: int) -> float:
        text = texts(begins, run, ends, length)
        given = text.encode() if binary else text
        for remembering in remembering_functions():
            remembering.cache_clear()
        since = thread_time()
        call(given)
        return thread_time() - since

    # A text four times as long costs 16 times as much if by the square; what goes by the cube costs more here already.
    if cost(LONG // 4) < FLOOR_S / 4**2 or cost(LONG) < FLOOR_S:
        return ""
    short = min(cost(LONG // 10 + more) for more in range(8))
    for more in range(1, 12):  # another process may have had the core; a function that is slow is slow each time
        if (long := cost(LONG + more)) < max(FLOOR_S, WORSE * short):
            return ""
    return f"{begins!r} and {run!r}: {short * 1e3:.2f} and {long * 1e3:.2f} ms"


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_a_pattern_costs_in_proportion_to_the_text(name: str) -> None:
    """Runs of every class of character, and of what the pattern itself repeats after what stands before it."""
    called, pattern = PATTERNS[name]
    binary = isinstance(pattern.pattern, bytes)
    source = pattern.pattern.decode("latin-1") if binary else pattern.pattern
    own: list[tuple[str, str]] = []
    sample(parser.parse(source, pattern.flags & ~(re.UNICODE if binary else 0)), own)
    befores = dict.fromkeys(before for before, _ in own)
    tried = dict.fromkeys([*(("", run) for run in RUNS), *own, *((one, run) for one in befores for run in " .a1\n")])
    methods = list(methods_of(called, pattern))
    for begins, run in tried:
        for ends in ("", "\x01"):
            for method in methods:
                assert not too_slow(method, begins, run, ends, binary)


def takes_text(function: object) -> bool:
    """Whether a function is called with nothing but one or two texts."""
    signature = inspect.signature(function) if inspect.isroutine(function) or hasattr(function, "cache_info") else None
    if signature is None or inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        return False
    needed = [one for one in signature.parameters.values() if one.default is one.empty]
    return 1 <= len(needed) <= 2 and all(one.annotation in ("str", str) for one in needed)


OF_FILES = {"word_list", "shipped_head", "shipped_verifier", "package_file", "facts_of_model", "_dictionaries"}
"""They take the name of a file, of a model, of a language."""


@cache
def remembering_functions() -> list[Any]:
    """Functions of texts that answer from a cache what they were asked before, by whichever function."""
    return [
        value
        for module in modules()
        if module.__name__.startswith(TEXT)
        for name, value in vars(module).items()
        if hasattr(value, "cache_clear") and value.__module__ == module.__name__
        if takes_text(value) and name not in OF_FILES
    ]


def called_with(function: Any) -> Callable[[str], object]:
    two = sum(one.default is one.empty for one in inspect.signature(function).parameters.values()) == 2

    def call(text: str) -> object:
        try:
            return function(text, f"{text}!") if two else function(text)
        except (ValueError, KeyError, TypeError):  # a text that it refuses; how soon is what counts
            return None

    return call


decide = decide_by(
    SemanticCache.model_validate({"ttl": "1h", "max_error": "1%"}), Verifier.load(shipped_verifier("static"))
)
FUNCTIONS = {
    f"{module.__name__}.{name}": called_with(value)
    for module in modules()
    if module.__name__.startswith(TEXT)
    for name, value in vars(module).items()
    if getattr(value, "__module__", "") == module.__name__ and takes_text(value) and name not in OF_FILES
} | {
    "a pair": lambda text: decide(f"{text} a", text, 0.99),
    "guards": lambda text: Pair(f"{text} a", text).refusal(SWITCHED, "strict"),
    "redaction": TextRedactor([r"\d{16}"]).redacted,
}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_function_of_text_costs_in_proportion_to_it(name: str) -> None:
    """Runs of every class of character, alone and after a beginning that a question may have."""
    for begins in ("", "how can I ", "1. A "):
        for run in RUNS:
            for ends in ("", "x\x01?"):
                assert not too_slow(FUNCTIONS[name], begins, run, ends)
