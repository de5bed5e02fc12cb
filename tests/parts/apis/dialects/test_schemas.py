"""What is made of a JSON schema for an API that takes fewer of them."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parts.apis.dialects.schemas import fit_for_anthropic, fits_openai_strict

TEXT = {"type": "string"}


def closed(**properties: Any) -> dict[str, Any]:
    """An object with these members, all required, and no others."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def test_objects_are_closed_and_what_is_not_taken_is_left_out() -> None:
    given = {
        "type": "object",
        "properties": {
            "count": {"type": "integer", "minimum": 1, "description": "How many."},
            "tags": {"type": "array", "minItems": 2, "items": {"type": "string", "format": "regex"}},
            "at": {"oneOf": [TEXT, {"type": "object", "properties": {"x": TEXT}, "additionalProperties": True}]},
            "when": {"type": "string", "format": "date", "pattern": "^2"},
        },
    }
    made = fit_for_anthropic(given)
    assert made is not None
    assert not made.whole
    at = {"type": "object", "properties": {"x": TEXT}, "additionalProperties": False}
    assert made.schema == {
        "type": "object",
        "properties": {
            "count": {"type": "integer", "description": "How many."},
            "tags": {"type": "array", "items": TEXT},
            "at": {"anyOf": [TEXT, at]},
            "when": {"type": "string", "format": "date", "pattern": "^2"},
        },
        "additionalProperties": False,
    }
    assert given["properties"]["count"]["minimum"] == 1  # type: ignore[index]


def test_a_schema_that_is_taken_stays_as_it_is() -> None:
    given = {**closed(of={"$ref": "#/$defs/of"}, also={"$ref": "#/$defs/of"}), "$defs": {"of": closed(name=TEXT)}}
    made = fit_for_anthropic(given)
    assert made is not None
    assert (made.schema, made.whole) == (given, True)
    assert fit_for_anthropic({"type": "object", "properties": {}, "additionalProperties": False}) is not None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "additionalProperties": TEXT},
        closed(any=True),
        {**closed(next={"$ref": "#/$defs/node"}), "$defs": {"node": closed(next={"$ref": "#/$defs/node"})}},
        closed(next={"$ref": "#"}),
        closed(far={"$ref": "https://example.test/schema.json"}),
    ],
)
def test_a_schema_without_a_likeness_is_not_taken(schema: dict[str, Any]) -> None:
    assert fit_for_anthropic(schema) is None


@pytest.mark.parametrize(
    ("schema", "fits"),
    [
        (closed(a=TEXT, b=closed(c=TEXT)), True),
        ({**closed(a=TEXT, b=TEXT), "required": ["a"]}, False),
        ({**closed(a=TEXT), "additionalProperties": True}, False),
        (closed(a={"anyOf": [TEXT, {"type": "object", "properties": {}}]}), False),
        ({**closed(a={"$ref": "#/$defs/of"}), "$defs": {"of": {"type": "object", "properties": {"b": TEXT}}}}, False),
        (closed(a={"type": "array", "items": {"type": "object"}}), False),
        ({**closed(a=TEXT), "required": True}, False),
    ],
)
def test_the_schemas_of_openais_strict_mode(schema: dict[str, Any], fits: bool) -> None:
    assert fits_openai_strict(schema) is fits
