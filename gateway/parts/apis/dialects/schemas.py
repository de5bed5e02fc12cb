"""Fit JSON schemas to what each API can hold a reply to, so that no API refuses a schema that another takes.

OpenAI's strict mode takes objects that are closed and have no optional member. Anthropic's takes optional members, but
fewer keywords (https://platform.claude.com/docs/en/build-with-claude/structured-outputs).

Anthropic's API refuses `anyOf`, `oneOf` and `allOf` at the top of a tool's input, a type that is a list, and references
there (https://platform.claude.com/docs/en/agents-and-tools/tool-use). Below the top it takes them. So a tool's input
becomes one object (`as_one_object`):

    allOf          the members of all, and what any of them requires: nothing is lost
    anyOf, oneOf   the members of all, and what all of them require; which belong together is told in the description
    $ref           what it refers to
    type           object
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
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


_UNIONS: Final = ("anyOf", "oneOf")
_AT_TOP: Final = frozenset({*_UNIONS, "allOf", "$ref", "not", "if", "then", "else"})
_DEEPEST: Final = 8
_MOST_TOLD: Final = 20
"""Alternatives that the description names."""


def is_one_object(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema is an object without anything at its top that `as_one_object` changes."""
    return schema.get("type") == "object" and _AT_TOP.isdisjoint(schema)


def as_one_object(schema: Mapping[str, Any]) -> tuple[Json, list[str]]:
    """Return the schema as one object, and the keywords at its top whose meaning is not all in it."""
    made, lost = _flat(schema, schema, 0)
    made["type"] = "object"
    if not isinstance(made.get("properties"), dict):
        made["properties"] = {}
    return made, lost


def _flat(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> tuple[Json, list[str]]:
    """Return a schema without what `_AT_TOP` lists, its members merged, and the keywords that lost something."""
    made = {name: value for name, value in schema.items() if name not in _AT_TOP}
    lost = [name for name in ("not", "if") if name in schema]
    if depth >= _DEEPEST:
        return made, [*lost, *(name for name in (*_UNIONS, "allOf", "$ref") if name in schema)]
    if isinstance(target := _referred(schema.get("$ref"), root), dict):
        _add_all(made, [_flat(target, root, depth + 1)[0]])
    if parts := _objects(schema.get("allOf")):
        flat = [_flat(part, root, depth + 1) for part in parts]
        _add_all(made, [part for part, _ in flat])
        lost += [name for _, names in flat for name in names]
    for name in _UNIONS:
        if parts := _objects(schema.get(name)):
            _add_any(made, [_flat(part, root, depth + 1)[0] for part in parts])
            if len(parts) > 1:
                lost.append(name)
    return made, lost


def _objects(parts: Any) -> list[Mapping[str, Any]]:
    """Return the schemas of a list that may be those of objects; null is left out."""
    listed = parts if isinstance(parts, list) else ()
    return [one for one in listed if isinstance(one, dict) and one.get("type") in (None, "object", ["object", "null"])]


def _referred(reference: Any, root: Mapping[str, Any]) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    value: Any = root
    for name in reference[2:].split("/"):
        value = value.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(value, dict) else None
    return value


def _members(schema: Mapping[str, Any]) -> Json:
    members = schema.get("properties")
    return members if isinstance(members, dict) else {}


def _required(schema: Mapping[str, Any]) -> list[Any]:
    required = schema.get("required")
    return required if isinstance(required, list) else []


def _add_all(made: Json, parts: Sequence[Mapping[str, Any]]) -> None:
    """Add parts that all hold."""
    for part in parts:
        members = {**_members(made)}
        for name, inner in _members(part).items():
            members[name] = (
                inner if name not in members or members[name] == inner else {"allOf": [members[name], inner]}
            )
        required = list(dict.fromkeys([*_required(made), *_required(part)]))
        rest = {name: value for name, value in part.items() if name not in ("properties", "required", "type")}
        rest.pop("additionalProperties", None)  # it knows the part's own members alone
        for name, value in rest.items():
            made.setdefault(name, value)
        made |= {"properties": members, **({"required": required} if required else {})}
    made.pop("additionalProperties", None)


def _add_any(made: Json, parts: Sequence[Mapping[str, Any]]) -> None:
    """Add parts of which one holds, and say so in the description."""
    members = {**_members(made)}
    for part in parts:
        for name, inner in _members(part).items():
            if name not in members:
                members[name] = inner
            elif members[name] != inner:
                before = members[name]
                known = before["anyOf"] if isinstance(before, dict) and before.keys() == {"anyOf"} else [before]
                members[name] = {"anyOf": known if inner in known else [*known, inner]}
    common = [name for name in _required(parts[0]) if all(name in _required(part) for part in parts)]
    required = list(dict.fromkeys([*_required(made), *common]))
    made |= {"properties": members, **({"required": required} if required else {})}
    made.pop("additionalProperties", None)
    if len(parts) > 1:
        told = [_told(part) for part in parts[:_MOST_TOLD]]
        text = f"Give the members of one of these: {' | '.join(told)}."
        made["description"] = f"{made['description']} {text}" if isinstance(made.get("description"), str) else text


def _told(part: Mapping[str, Any]) -> str:
    """Return what an alternative has, in words: its title, and its members, those in brackets that may be missing."""
    required = [str(name) for name in _required(part)]
    names = [*required, *(f"[{name}]" for name in _members(part) if name not in required)]
    listed = ", ".join(names) or "nothing more"
    return f"{part['title']} ({listed})" if isinstance(part.get("title"), str) else listed
