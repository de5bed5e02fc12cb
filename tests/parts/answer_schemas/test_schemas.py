"""Schemas that come with requests: held against values, and never trusted."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest

from gateway.parts.answer_schemas.schemas import Schema, compile_schema

TREE: dict[str, Any] = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"value": {"type": "integer"}, "left": {"$ref": "#/$defs/node"}},
            "required": ["value"],
        }
    },
}


def compiled(schema: object) -> Schema:
    return compile_schema(orjson.dumps(schema))


def doubling(levels: int) -> dict[str, Any]:
    """A schema in which each level asks the next one twice."""
    names = [f"l{level}" for level in range(levels)]
    parts: dict[str, Any] = {
        name: {"anyOf": [{"$ref": f"#/$defs/{after}"}] * 2}
        for name, after in zip(names, [*names[1:], "end"], strict=True)
    }
    return {"$ref": "#/$defs/l0", "$defs": parts | {"end": {"type": "string"}}}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"value": 0}
    for _ in range(depth):
        value = {"value": 0, "left": value}
    return value


def test_values_fit_or_do_not() -> None:
    """As the schema says, with references within it."""
    schema = compiled(TREE)
    assert schema.unchecked == ""
    assert schema.fits({"value": 1, "left": {"value": 2}}) is True
    assert schema.fits({"value": 1, "left": {"value": "two"}}) is False


def test_older_drafts_are_read_as_what_they_are() -> None:
    """By the `$schema` that many tools write."""
    pair = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}, {"type": "string"}]}
    assert compiled(pair).fits([1, "a"]) is True
    assert compiled(pair).fits(["a", 1]) is False


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"$ref": "http://127.0.0.1:9/a.json"}, "another document"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "another document"),
        ({"$schema": "http://127.0.0.1:9/a.json", "type": "string"}, "not a valid schema"),
        ({"$dynamicRef": "#a"}, "not supported"),
        ({"$ref": "#/$defs/none"}, "does not exist"),
        ({"$ref": "#"}, "in a circle"),
        ({"allOf": [{"$ref": "#"}]}, "in a circle"),
        ({"$id": "urn:a", "properties": {"a": {"$ref": "#"}}}, "not supported"),
        ({"type": "nope"}, "not a valid schema"),
        ({"pattern": "(?=a)b"}, "not a valid schema"),
        ({"pattern": "((a{100}){100}){100}"}, "not a valid schema"),
        ([], "not a schema"),
        ({"enum": ["x" * 300_000]}, "too large"),
        ({"patternProperties": {rf"\p{{L}}{i}": {} for i in range(17)}}, "too many patterns"),
        ({"properties": {f"p{i}": {"pattern": f"{i}{'x' * 100}"} for i in range(11)}}, "too many patterns"),
        (doubling(25), "too costly"),
    ],
)
def test_what_is_not_checkable_says_why(schema: object, why: str) -> None:
    """Nothing is fetched, nothing runs away, and no answer is held against it."""
    found = compiled(schema)
    assert why in found.unchecked
    assert found.fits({"a": 1}) is None


def test_what_could_double_with_every_level_is_checked_as_deep_as_that_is_cheap() -> None:
    """A recursive schema with two ways down is held against shallow values, and not against deep ones."""
    ways = [{"properties": {"x": {"$ref": "#"}, "t": {"const": t}}, "required": ["t"]} for t in (1, 2)]
    schema = compiled({"anyOf": ways})
    assert schema.fits({"t": 2, "x": {"t": 1}}) is True
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"x": deep}
    began = time.process_time()
    assert schema.fits(deep) is None
    assert time.process_time() - began < 0.5


def test_a_schema_without_references_is_held_against_values_of_any_depth() -> None:
    """Each part of the value is looked at by few of its parts."""
    assert compiled({"type": "object"}).fits(nested(500)) is True
    assert compiled(TREE).fits(nested(20)) is True
    assert compiled(TREE).fits(nested(30)) is None


def test_a_hostile_schema_takes_no_longer_than_a_large_one() -> None:
    """A few thousand patterns of Unicode classes, which would take seconds to compile, are not compiled at all."""
    started = time.process_time()
    assert compiled({"patternProperties": {rf"\p{{L}}{i}": {} for i in range(3000)}}).unchecked
    assert compiled({"pattern": r"(\p{L}{1,100}){1,100}"}).unchecked
    assert time.process_time() - started < 0.2


def test_some_patterns_are_held_against_values() -> None:
    """Sixteen different ones are no more than a form may have; the same one may stand anywhere."""
    many = compiled({"properties": {f"p{i}": {"pattern": f"^[A-Z]{{2}}-{i % 16}$"} for i in range(60)}})
    assert many.fits({"p3": "AB-3"})
    assert many.fits({"p3": "AB-4"}) is False


def test_patterns_take_linear_time() -> None:
    """One that would keep a backtracking engine busy for years."""
    began = time.process_time()
    assert compiled({"pattern": "^(a+)+$"}).fits("a" * 5000 + "!") is False
    assert time.process_time() - began < 1


def test_a_schema_is_compiled_once() -> None:
    """The same bytes give the same compiled schema, small or large."""
    assert compiled(TREE) is compiled(TREE)
    large = {"properties": {f"p{n}": {"type": "string"} for n in range(500)}}
    assert compiled(large) is compiled(large)
    assert compiled(large).fits({"p499": 1}) is False
