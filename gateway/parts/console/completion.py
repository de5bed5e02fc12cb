"""Complete a policy's text at a place: the keys that may stand there with their meanings, and the values of a key.

Where a place is comes from the indentation and the brackets before it, so that a text that is no YAML at the moment,
as it is while somebody types, is completed all the same. Keys and values are those of the schema that
`tierline policy schema` prints; names of tiers, backends and services are the deployment's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.parts.lint.policy_schema import SCHEMA_FILE
from gateway.parts.lint.rule_values import CACHE_VALUES, ROUTE_VALUES, Ranges
from policies.errors import KeyPath
from policies.expression import WORDS
from policies.loader import PolicySource

_KEY: Final = re.compile(r"""^(?P<indent>\s*)(?P<item>- +)?(?P<key>[\w.-]+|"[^"]*"|'[^']*')\s*:(?:\s|$)""")
_WORD: Final = re.compile(r"[\w.-]*$")
_IN_FLOW: Final = re.compile(r"^\s*(?P<key>[\w.-]+)\s*:\s*(?P<value>.*)$")
_START: Final = ("route", "start")
_OTHER: Final = ("endpoints", "other")
_RULES: Final[Mapping[KeyPath, Ranges]] = {
    ("escalate", "speculate", "both"): ROUTE_VALUES,
    ("cache", "never"): CACHE_VALUES,
}
"""Where rules are written besides `route.start`, and the values that they may ask for."""
_COMPARED: Final = re.compile(rf"\b({'|'.join(WORDS)})\s*[!=]=\s*[\w.-]*$")
_EASIEST: Final = "easiest 40% of its kind"
_JOINING: Final = ("and", "or", "not")
_MOST: Final = 60


@dataclass(frozen=True, slots=True)
class EditorCompletion:
    """One thing to write: what the list shows, what is inserted, its kind in a word or two, and what it means."""

    label: str
    apply: str
    detail: str = ""
    info: str = ""


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a text: the keys around it, whether a key or a value is written there, and what is written already.

    `column` is where `word`, the beginning of what is completed, starts, counted from 1. `siblings` are the keys that
    stand beside it. `block` says that a new line may follow a key.
    """

    path: KeyPath
    is_key: bool
    word: str
    column: int
    siblings: frozenset[str]
    indent: int
    block: bool
    before: str
    """What stands before the word on its line."""


def spot_at(text: str, line: int, column: int) -> Spot | None:
    """Return the place at a line and column of a text, from 1; None within a comment."""
    lines = text.split("\n")
    here = lines[line - 1] if 0 < line <= len(lines) else ""
    before = here[: column - 1]
    if _in_comment(before):
        return None
    match = _WORD.search(before)
    word = match[0] if match else ""
    at = len(before) - len(word) + 1
    indent = len(before) - len(before.lstrip())
    key = _KEY.match(before)
    in_list = before.lstrip().startswith("- ")
    depth = indent + 1 if in_list else indent
    above = _around(lines[: line - 1], depth)
    if key is None and not in_list and "{" not in before and "[" not in before:
        if before.strip() != word:
            return None
        return Spot(above, True, word, at, _siblings(lines, line - 1, indent), indent, True, before)
    if key is None:
        return _within(above, before[indent:].removeprefix("- "), word, at, indent, before)
    return _within((*above, key["key"].strip("\"'")), before[key.end() :], word, at, indent, before)


def _within(path: KeyPath, value: str, word: str, at: int, indent: int, before: str) -> Spot:
    """Return the place at the end of what stands behind a key, which may open braces and lists."""
    outer: list[tuple[KeyPath, str, set[str]]] = []
    bracket, piece, seen = "", "", set[str]()
    for char in value:
        pair = _IN_FLOW.match(piece)
        if char in "{[":
            outer.append((path, bracket, seen))
            path = (*path, pair["key"]) if pair is not None and bracket == "{" else path
            bracket, piece, seen = char, "", set()
        elif char in "}]" and outer:
            path, bracket, seen = outer.pop()
        elif char == ",":
            seen |= {pair["key"]} if pair is not None else set()
            piece = ""
        else:
            piece += char
    pair = _IN_FLOW.match(piece)
    if bracket == "{" and pair is None:
        return Spot(path, True, word, at, frozenset(seen), indent, False, before)
    inner = (*path, pair["key"]) if pair is not None and bracket == "{" else path
    return Spot(inner, False, word, at, frozenset(seen), indent, False, before)


def _in_comment(before: str) -> bool:
    """Return whether a `#` that begins a comment stands before the end of a line's beginning."""
    quoted = ""
    for place, char in enumerate(before):
        if quoted:
            quoted = "" if char == quoted else quoted
        elif char in "\"'":
            quoted = char
        elif char == "#" and (place == 0 or before[place - 1].isspace()):
            return True
    return False


def _around(lines: Sequence[str], indent: int) -> KeyPath:
    """Return the keys of the lines before that are indented less, outermost first."""
    path: list[str] = []
    for line in reversed(lines):
        key = _KEY.match(line)
        if key is not None and len(key["indent"]) < indent:
            path.append(key["key"].strip("\"'"))
            indent = len(key["indent"])
        if not indent:
            break
    return tuple(reversed(path))


def _siblings(lines: Sequence[str], at: int, indent: int) -> frozenset[str]:
    """Return the keys of the section that the line `at` (from 0) belongs to, but for that line."""
    surfaces = set()
    for step in (-1, 1):
        place = at + step
        while 0 <= place < len(lines):
            line = lines[place]
            key = _KEY.match(line)
            if line.strip() and not line.lstrip().startswith("#") and len(line) - len(line.lstrip()) < indent:
                break
            if key is not None and len(key["indent"]) == indent:
                surfaces.add(key["key"].strip("\"'"))
            place += step
    return frozenset(surfaces)


class PolicyCompleter:
    """Complete policies of one deployment."""

    def __init__(self, source: PolicySource) -> None:
        """Prepare the schema; `source` names the tiers, backends and services."""
        self._schema: Mapping[str, Any] = orjson.loads(SCHEMA_FILE.read_bytes())
        tiers = tuple(tier.name for tier in source.tiers)
        self._names: Mapping[KeyPath, Sequence[str]] = {
            ("tiers",): tiers,
            ("cache", "semantic", "audit_judge", "backend"): tuple(source.backends),
            ("learn", "judge"): tuple(source.backends),
            **{
                ("endpoints", *rest): source.named.get("services", ())
                for rest in (
                    ("completions",), ("moderations",), ("audio",), ("images",), ("files",), ("batches",), ("other",),
                    ("embeddings", "service"), ("embeddings", "fallback"),
                )
            },
            ("route", "classifier"): ("default", "none"),
        }  # fmt: skip

    def complete(self, text: str, line: int, column: int) -> dict[str, Any]:
        """Return what may be written at a place: `options`, and the `column` where what they replace begins."""
        spot = spot_at(text, line, column)
        if spot is None:
            return {"column": column, "options": []}
        completions = list(self._keys(spot) if spot.is_key else self._values(spot))
        return {"column": spot.column, "options": [_shown(completion) for completion in completions[:_MOST]]}

    def _keys(self, spot: Spot) -> Iterator[EditorCompletion]:
        if spot.path == _START:
            for tier in self._names[("tiers",)]:
                if tier not in spot.siblings:
                    yield EditorCompletion(tier, f"{tier}: ", "tier", "Requests for which this rule holds start here.")
            return
        node = self._node(spot.path)
        required = node.get("required", ())
        names = node.get("propertyNames", {}).get("enum", ())
        for key, inner in {**node.get("properties", {}), **{key: {} for key in names}}.items():
            if key in spot.siblings:
                continue
            section = spot.block and "properties" in _object(inner) and not _flat(inner)
            behind = f":\n{' ' * (spot.indent + 2)}" if section else ": "
            detail = ", ".join(filter(None, ("required" if key in required else "", _kind(inner))))
            yield EditorCompletion(key, key + behind, detail, inner.get("description", ""))

    def _values(self, spot: Spot) -> Iterator[EditorCompletion]:
        path = spot.path
        if path[:2] == _START and len(path) == 3:
            yield from _of_rules(ROUTE_VALUES, spot.before)
            yield EditorCompletion("otherwise", "otherwise", "every other request")
            return
        if (ranges := _RULES.get(path)) is not None:
            yield from _of_rules(ranges, spot.before)
            return
        for name in self._names.get(path[:2] if path[:2] == _OTHER else path, ()):
            yield EditorCompletion(name, name, "of this deployment" if path != ("route", "classifier") else "")
        node = self._node(path)
        for value in _enumerated(node):
            yield EditorCompletion(value, value, "", node.get("description", ""))
        for example in node.get("examples", ()):
            yield EditorCompletion(str(example), str(example), "for example", node.get("description", ""))

    def _node(self, path: KeyPath) -> Mapping[str, Any]:
        """Return the schema of what stands at a path; an empty one where nothing may."""
        node: Mapping[str, Any] = self._schema
        for part in path:
            inner = _object(node)
            node = inner.get("properties", {}).get(part) or inner.get("additionalProperties") or {}
            if not isinstance(node, Mapping):
                return {}
        shape = _object(node)
        return {**shape, **{key: node[key] for key in ("description",) if key in node}}


def _object(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a schema that describes keys, where it may also be null; else the schema."""
    return next((part for part in node.get("anyOf", ()) if part.get("type") == "object"), node)


def _flat(node: Mapping[str, Any]) -> bool:
    """Return whether a section holds few plain values, so that people write it in braces."""
    inner = _object(node).get("properties", {})
    return len(inner) <= 3 and not any("properties" in _object(schema) for schema in inner.values())


def _enumerated(node: Mapping[str, Any]) -> Iterator[str]:
    if node.get("type") == "boolean":
        yield from ("true", "false")
    yield from map(str, node.get("enum", ()))
    for part in (*node.get("anyOf", ()), *filter(None, [node.get("items")])):
        yield from _enumerated(part)


def _kind(node: Mapping[str, Any]) -> str:
    """Return in a word what a key holds."""
    values = list(_enumerated(node))
    if values:
        return " | ".join(values[:4])
    if "properties" in _object(node):
        return "section"
    if node.get("type") == "array":
        return "list"
    return "duration" if "(ms|s|m|h|d)" in str(node) else "share" if "%$" in str(node) else str(node.get("type", ""))


def _of_rules(ranges: Ranges, before: str) -> Iterator[EditorCompletion]:
    """Return what may come next in a rule of which `before` is written."""
    if (compared := _COMPARED.search(before)) is not None:
        for word in WORDS[compared[1]]:
            yield EditorCompletion(word, word, "kind of request")
        return
    for name, values in ranges.items():
        info = "It may be missing; then no comparison with it holds." if values.optional else ""
        yield EditorCompletion(name, name, str(values), info)
    if "quantile" in ranges:
        yield EditorCompletion(_EASIEST, _EASIEST, "quantile <= 0.4", "The easiest requests of each kind.")
    for joining in _JOINING:
        yield EditorCompletion(joining, joining)


def _shown(completion: EditorCompletion) -> dict[str, str]:
    return {"label": completion.label, "apply": completion.apply, "detail": completion.detail, "info": completion.info}
