"""A tool's input is one object for APIs that take nothing else at the top, with all of its members."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parts.apis.dialects.schemas import as_one_object, is_one_object

A, B = {"type": "string"}, {"type": "integer"}
MEMBERS = {"a": A, "b": B}


def part(*required: str, **members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": members, **({"required": list(required)} if required else {})}


@pytest.mark.parametrize(
    ("schema", "members", "required", "lost", "told"),
    [
        (
            {"type": "object", "properties": MEMBERS, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            MEMBERS, [], ["anyOf"], "a | b",
        ),
        (
            {"oneOf": [part("a", a=A, x=A), part("a", a=A, b=B)]},
            {"a": A, "x": A, "b": B}, ["a"], ["oneOf"], "a, [x] | a, [b]",
        ),
        ({"allOf": [part("a", a=A), part("b", b=B)]}, MEMBERS, ["a", "b"], [], ""),
        ({"type": ["object", "null"], "properties": MEMBERS}, MEMBERS, [], [], ""),
        ({"anyOf": [part("a", a=A), {"type": "null"}]}, {"a": A}, ["a"], [], ""),
        ({"$ref": "#/$defs/In", "$defs": {"In": part("a", a=A)}}, {"a": A}, ["a"], [], ""),
        ({"oneOf": [part(a=A), part(a=B)]}, {"a": {"anyOf": [A, B]}}, [], ["oneOf"], "[a] | [a]"),
        ({"allOf": [part(a=A), part(a=B)]}, {"a": {"allOf": [A, B]}}, [], [], ""),
        ({"allOf": [{"oneOf": [part(a=A), part(b=B)]}, part(c=A)]}, {**MEMBERS, "c": A}, [], ["oneOf"], "[a] | [b]"),
        ({"oneOf": [{**part("a", a=A), "title": "Copy"}, part()]}, {"a": A}, [], ["oneOf"], "Copy (a) | nothing more"),
        ({"properties": MEMBERS}, MEMBERS, [], [], ""),
        ({"type": "object"}, {}, [], [], ""),
        ({"type": "object", "properties": MEMBERS, "not": {"required": ["a"]}}, MEMBERS, [], ["not"], ""),
        ({"anyOf": "wrong", "allOf": [3], "$ref": 7, "properties": None}, {}, [], [], ""),
    ],
)  # fmt: skip
def test_members_are_merged(
    schema: dict[str, Any], members: dict[str, Any], required: list[str], lost: list[str], told: str
) -> None:
    """What alternatives have together is required; which belong together stands in the description."""
    made, without = as_one_object(schema)
    assert is_one_object(made) and made["properties"] == members
    assert made.get("required", []) == required and without == lost
    assert told in made.get("description", "") and bool(told) == ("description" in made)


def test_what_is_closed_for_one_part_is_not_closed_for_all() -> None:
    closed = {**part(b=B), "additionalProperties": False}
    for word in ("allOf", "anyOf", "oneOf"):
        made, _ = as_one_object(
            {"type": "object", "properties": {"a": A}, "additionalProperties": False, word: [closed]}
        )
        assert made["properties"] == MEMBERS and "additionalProperties" not in made


def test_a_schema_that_contains_itself_ends() -> None:
    schema = {"$ref": "#/$defs/In", "$defs": {"In": {"anyOf": [{"$ref": "#/$defs/In"}, part(a=A)]}}}
    made, _ = as_one_object(schema)
    assert made["properties"] == {"a": A} and made["$defs"] == schema["$defs"]


def test_definitions_stay_and_an_object_is_left_alone() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/In"}}, "$defs": {"In": A}}
    assert is_one_object(schema) and as_one_object(schema) == (schema, [])
    given = {"type": "object", "description": "Edits.", "oneOf": [part(a=A), part(b=B)]}
    assert as_one_object(given)[0]["description"] == "Edits. Give the members of one of these: [a] | [b]."
    assert "oneOf" in given and "properties" not in given, "the client's own schema stays as it is"
