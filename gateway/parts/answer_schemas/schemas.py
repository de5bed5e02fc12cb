"""Check a JSON value against a JSON Schema that came with a request. Schemas are compiled once and cached. No I/O.

The schema is a client's and not trusted: nothing is fetched for it, its patterns run in linear time, and the cost of
checking is bounded beforehand. A schema that is invalid, that refers to another document or that could cost too much is
*not checkable*: that is reported, and no answer is rejected because of it.

How the cost is bounded: without `$ref` no value is visited by more subschemas than there are. With it, a few hundred
bytes can cause billions of visits (`anyOf` of twice the same reference, thirty levels deep). `_Costs` counts the visits
that any chain of nested values can get, level by level, and gives the depth up to which they stay few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import jsonschema_rs
import orjson

SMALL_BYTES: Final = 4 << 10
"""Schemas up to this size compile in about a millisecond; one of 60 KB takes ten, and holds Python's lock (the GIL)."""
_MAX_BYTES: Final = 64 << 10
# A compiled schema takes some 25 times its bytes: 2 MiB of schemas of either size are kept, about 100 MB at the worst.
_SMALL_KEPT: Final = 512
_LARGE_KEPT: Final = 32
# A pattern of five letters that names a Unicode class takes half a millisecond to compile, and repeated up to 100 times
# as long as it may become large: 3,500 of the first kind held Python's lock for five seconds.
_MAX_PATTERNS: Final = 16
_MAX_PATTERN_CHARS: Final = 1024
_MAX_LOOKS: Final = 10_000
_MAX_DEPTH: Final = 24
_MAX_CHAIN: Final = 64
_PATTERNS: Final = jsonschema_rs.RegexOptions(size_limit=1 << 17, dfa_size_limit=1 << 20)
_REFERENCES: Final = (b'"$ref"', b'"$dynamicRef"', b'"$recursiveRef"')

# Subschemas of the same value, and of the values in it.
_SAME_MAPS: Final = ("dependentSchemas", "dependencies")
_SAME_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SAME: Final = ("not", "if", "then", "else")
_INNER_LISTS: Final = ("prefixItems", "items")
_INNER: Final = (
    "items",
    "additionalItems",
    "additionalProperties",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_ELSEWHERE: Final = ("$id", "id", "$anchor", "$dynamicRef", "$recursiveRef")

Node = Mapping[str, Any]


class _NotCheckableError(Exception):
    """A schema cannot be checked against; the message says why."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A compiled schema. `unchecked` is empty, or the reason why it is not checkable."""

    unchecked: str = ""
    _validator: jsonschema_rs.Validator | None = None
    _max_depth: int | None = None

    def fits(self, value: object) -> bool | None:
        """Return whether a JSON value (as `orjson.loads` gives it) is valid; None if that cannot be determined."""
        if self._validator is None or (self._max_depth is not None and _deeper_than(value, self._max_depth)):
            return None
        try:
            return self._validator.is_valid(value)
        except ValueError:  # nested deeper than the library supports
            return None


def compile_schema(raw: bytes) -> Schema:
    """Return the compiled schema of these bytes (JSON, as `orjson.dumps` writes it), from a cache if possible.

    Never raises. Measured: 10 us for three properties, 6 ms for a thousand; a cache hit less than a microsecond.
    """
    return _small(raw) if len(raw) <= SMALL_BYTES else _large(raw)


def _schema(raw: bytes) -> Schema:
    try:
        return _compiled(raw)
    except _NotCheckableError as reason:
        return Schema(str(reason))


_small = lru_cache(_SMALL_KEPT)(_schema)
_large = lru_cache(_LARGE_KEPT)(_schema)


def _compiled(raw: bytes) -> Schema:
    if len(raw) > _MAX_BYTES:
        raise _NotCheckableError("too large")
    schema = orjson.loads(raw)
    if not isinstance(schema, dict | bool):
        raise _NotCheckableError("not a schema")
    if b'"pattern' in raw:
        patterns = _patterns(schema)
        if len(patterns) > _MAX_PATTERNS or sum(map(len, patterns)) > _MAX_PATTERN_CHARS:
            raise _NotCheckableError("has too many patterns, or too long ones")
    refers = any(reference in raw for reference in _REFERENCES)
    max_depth = _Costs(schema).safe_depth() if isinstance(schema, dict) and refers else None
    try:
        validator = jsonschema_rs.validator_for(schema, pattern_options=_PATTERNS, validate_formats=False, offline=True)
    except (ValueError, jsonschema_rs.ReferencingError):
        raise _NotCheckableError("not a valid schema") from None
    return Schema("", validator, max_depth)


def _patterns(schema: object) -> set[str]:
    """Collect all patterns of a schema; a property that is named like a keyword may add a string that is none."""
    patterns: set[str] = set()
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            waiting += node.values()
            if isinstance(pattern := node.get("pattern"), str):
                patterns.add(pattern)
            if isinstance(named := node.get("patternProperties"), dict):
                patterns |= named.keys()
    return patterns


def _deeper_than(value: object, depth: int) -> bool:
    level = [value]
    for _ in range(depth + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


class _Costs:
    """Bound how many subschemas may visit the values of one chain of nested values. Nodes are keyed by their `id`."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self._same: dict[int, list[int]] = {}
        self._groups: dict[int, list[list[int]]] = {}
        self._read()
        self._inner = dict.fromkeys(self._same, 0)
        self._now: dict[int, int] = {}

    def safe_depth(self) -> int | None:
        """Return the deepest nesting that stays under _MAX_LOOKS visits, at most _MAX_DEPTH; None if there is no limit.

        Raises _NotCheckableError if even a flat value exceeds it.
        """
        for depth in range(_MAX_DEPTH + 1):
            self._now = {}
            for node in self._same:
                self._looks(node, 0)
            if self._now[id(self._root)] > _MAX_LOOKS:
                if depth == 0:
                    raise _NotCheckableError("too costly to check")
                return depth - 1
            if self._now == self._inner:
                return None
            self._inner = self._now
        return _MAX_DEPTH

    def _looks(self, node: int, chain: int) -> int:
        seen = self._now.get(node)
        if seen is not None:
            return seen
        if chain > _MAX_CHAIN:
            raise _NotCheckableError("refers to itself in a circle, or through too many references in a row")
        count = 1
        for same in self._same[node]:
            count += self._looks(same, chain + 1)
        for group in self._groups[node]:
            count += max(self._inner[inner] for inner in group)
        # Beyond the limit the exact number does not matter, and would only grow.
        self._now[node] = count = min(count, _MAX_LOOKS + 1)
        return count

    def _read(self) -> None:
        waiting: list[Node] = [self._root]
        while waiting:
            node = waiting.pop()
            if id(node) in self._same:
                continue
            if any(isinstance(node.get(key), str) for key in _ELSEWHERE):
                raise _NotCheckableError("uses $id, $anchor or dynamic references, which are not supported")
            same = list(_same_value(node))
            if "$ref" in node:
                same += _schemas([self._target(node["$ref"])])
            groups = [group for group in _inner_groups(node) if group]
            self._same[id(node)] = list(map(id, same))
            self._groups[id(node)] = [list(map(id, group)) for group in groups]
            waiting += same
            for group in groups:
                waiting += group

    def _target(self, reference: object) -> object:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise _NotCheckableError("refers to another document")
        target: object = self._root
        for part in unquote(reference[1:]).split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and key in target:
                target = target[key]
            elif isinstance(target, list) and key.isascii() and key.isdigit() and int(key) < len(target):
                target = target[int(key)]
            else:
                raise _NotCheckableError("refers to a part that does not exist")
        return target


def _same_value(node: Node) -> Iterator[Node]:
    for key in _SAME_LISTS:
        yield from _schemas(node.get(key))
    for key in _SAME_MAPS:
        yield from _schemas(_values(node.get(key)))
    for key in _SAME:
        yield from _schemas([node.get(key)])


def _inner_groups(node: Node) -> Iterator[list[Node]]:
    """Yield the subschemas of the inner values, in groups of which at most one applies to a given value."""
    yield list(_schemas(_values(node.get("properties"))))
    yield from ([schema] for schema in _schemas(_values(node.get("patternProperties"))))
    for key in _INNER_LISTS:
        yield list(_schemas(node.get(key)))
    for key in _INNER:
        yield list(_schemas([node.get(key)]))


def _values(value: object) -> list[object]:
    return list(value.values()) if isinstance(value, dict) else []


def _schemas(value: object) -> Iterator[Node]:
    """Yield the subschemas in a list that are objects, without `true` and `false`."""
    if isinstance(value, list):
        yield from (schema for schema in value if isinstance(schema, dict))
