"""Make the schema of a tool's input one object, for APIs that take nothing else at its top.

Anthropic's API refuses `anyOf`, `oneOf` and `allOf` at the top of a tool's input, a type that is a list, and references
there (https://platform.claude.com/docs/en/agents-and-tools/tool-use). Below the top it takes them. So:

    allOf          the members of all, and what any of them requires: nothing is lost
    anyOf, oneOf   the members of all, and what all of them require; which belong together is told in the description
    $ref           what it refers to
    type           object
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Json = dict[str, Any]
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
