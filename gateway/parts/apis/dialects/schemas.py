"""Fit JSON schemas to what each API can hold a reply to, so that no API refuses a schema that another takes.

OpenAI's strict mode takes objects that are closed and have no optional member. Anthropic's takes optional members, but
fewer keywords (https://platform.claude.com/docs/en/build-with-claude/structured-outputs).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from policies.value_type import value_type

Json = dict[str, Any]

_DEFINITIONS: Final = ("$defs", "definitions")
_OF_SCHEMAS: Final = ("properties", *_DEFINITIONS)
"""Keywords whose value holds schemas by name."""
_LISTS_OF_SCHEMAS: Final = ("anyOf", "allOf", "oneOf", "prefixItems")
_KEPT: Final = frozenset(
    {
        "type", "enum", "const", "description", "title", "default", "examples", "required", "properties", "items",
        "additionalProperties", "anyOf", "allOf", "$ref", "$defs", "definitions", "$schema", "$id", "$comment",
        "format", "pattern", "minItems",
    }
)  # fmt: skip
"""Keywords that Anthropic's API takes, some of them with some values only."""
_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)
_UNTAKEN_PATTERN: Final = re.compile(r"\(\?|\\[bB0-9]")
"""Lookarounds, word boundaries and references to groups."""


@value_type
class FittedSchema:
    """A schema that Anthropic's API takes. `whole`: whether all that satisfies it satisfies the given one too."""

    schema: Json
    whole: bool


class _NotTakenError(Exception):
    """Raised for a schema that has no likeness that is taken."""


def fit_for_anthropic(schema: Mapping[str, Any]) -> FittedSchema | None:
    """Return the schema without keywords that the API refuses, its objects closed; None if no such schema is like it.

    That is so for objects with members of any name, and for schemas that contain themselves.
    """
    removed: list[str] = []
    try:
        _refuse_recursion(schema)
        fitted = _fitted(schema, removed)
    except _NotTakenError:
        return None
    return FittedSchema(fitted, whole=not removed)


def fits_openai_strict(schema: object) -> bool:
    """Return whether OpenAI's strict mode takes a schema: all objects closed, and all of their members required."""
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        required, members = schema.get("required") or [], schema.get("properties") or {}
        well_formed = isinstance(required, list) and isinstance(members, dict)
        if (
            schema.get("additionalProperties") is not False
            or not well_formed
            or any(n not in required for n in members)
        ):
            return False
    return all(fits_openai_strict(inner) for inner in _inner(schema))


def _inner(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the schemas within a schema."""
    for name in _OF_SCHEMAS:
        if isinstance(named := schema.get(name), dict):
            yield from named.values()
    for name in _LISTS_OF_SCHEMAS:
        if isinstance(listed := schema.get(name), list):
            yield from listed
    yield schema.get("items")


def _fitted(schema: Any, removed: list[str]) -> Any:
    """Return a schema with those within it fitted, and add the keywords that are left out to `removed`."""
    if not isinstance(schema, dict):
        if schema is True:
            raise _NotTakenError
        return schema
    made: Json = {}
    for name, value in schema.items():
        if name in _OF_SCHEMAS and isinstance(value, dict):
            made[name] = {key: _fitted(inner, removed) for key, inner in value.items()}
        elif name in _LISTS_OF_SCHEMAS and isinstance(value, list) and name != "prefixItems":
            made["anyOf" if name == "oneOf" else name] = [_fitted(inner, removed) for inner in value]
            if name == "oneOf":
                removed.append(name)
        elif name == "items":
            made[name] = _fitted(value, removed)
        elif name in _KEPT and _takes(name, value):
            made[name] = value
        else:
            removed.append(name)
    if schema.get("type") == "object" or "properties" in schema:
        # With other members left out, every object that is taken is one that was asked for.
        others = schema.get("additionalProperties")
        if others is not False and (others not in (None, True, {}) or not schema.get("properties")):
            raise _NotTakenError
        made["additionalProperties"] = False
    return made


def _takes(name: str, value: Any) -> bool:
    if name == "format":
        return isinstance(value, str) and value in _FORMATS
    if name == "pattern":
        return isinstance(value, str) and _UNTAKEN_PATTERN.search(value) is None
    return name != "minItems" or value in (0, 1)


def _refuse_recursion(schema: Mapping[str, Any]) -> None:
    """Raise _NotTakenError if the schema contains itself, or refers to something that is not in it."""
    defined = {where: section for where in _DEFINITIONS if isinstance(section := schema.get(where), dict)}
    named = {f"#/{where}/{name}": inner for where, section in defined.items() for name, inner in section.items()}
    checked: set[str] = set()

    def check(value: Any, path: tuple[str, ...]) -> None:
        if not isinstance(value, dict):
            return
        if (reference := value.get("$ref")) is not None:
            if reference in path or reference not in named:
                raise _NotTakenError
            if reference not in checked:
                check(named[reference], (*path, reference))
                checked.add(reference)
        for inner in _inner(value):
            check(inner, path)

    check({name: value for name, value in schema.items() if name not in _DEFINITIONS}, ())
