"""Say what to write instead of a mistake in a file, where its text shows what was meant."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, Union, get_args, get_origin

import yaml
from pydantic import BaseModel

from policies.errors import Edit, Finding, KeyPath, did_you_mean
from policies.expression import ExpressionError
from policies.quantities import UNIT_SECONDS
from policies.validation import Section
from policies.yaml_source import CORE_SCHEMA, Document

_PLAIN = re.compile(r"^[A-Za-z0-9_](?:[A-Za-z0-9_ .%<>=!+()/-]*[A-Za-z0-9_.%)])?$")


def yaml_text(value: Any) -> str:
    """Return a plain value as YAML in flow style, on one line; `read_yaml` reads the same value from it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{yaml_text(key)}: {yaml_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(yaml_text, value)) + "]"
    if isinstance(value, str):
        plain = _PLAIN.match(value) and not any(pattern.match(value) for pattern, _ in CORE_SCHEMA)
        return value if plain else json.dumps(value, ensure_ascii=False)
    return "null" if value is None else json.dumps(value)


# fmt: off
_UNITS = {"msec": "ms", "millis": "ms", "sec": "s", "secs": "s", "second": "s", "seconds": "s", "min": "m", "mins": "m",
          "minute": "m", "minutes": "m", "hr": "h", "hrs": "h", "hour": "h", "hours": "h", "day": "d", "days": "d"}
# fmt: on


def mend_of_value(  # noqa: PLR0912  # one list of mistakes
    path: KeyPath, value: Any, kind: str, context: Mapping[str, Any], message: str
) -> tuple[str, tuple[Edit, ...]]:
    """Return what to write for a wrong value, as text and as an edit; neither where only a person can choose.

    `kind`, `context` and `message` are those of pydantic's error.
    """
    error, text = context.get("error"), str(value)
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    new: str | None = None
    if isinstance(error, ExpressionError):
        new = None if error.instead is None else yaml_text(error.instead)
    elif kind in ("literal_error", "enum"):
        near = get_close_matches(text, re.findall(r"'([^']*)'", context.get("expected", "")), n=1)
        if not near:
            return "or leave it out", (Edit(path),)
        new = near[0]
    elif number is not None and "is not a duration" in message:
        new = f"{number}ms" if number >= 100 else f"{number}s"
        return f"did you mean {new}?", (Edit(path, new),)
    elif isinstance(value, str) and (match := re.match(r"^(\d+(?:\.\d+)?)\s*([A-Za-z]+)$", text)):
        unit = _UNITS.get(match[2].lower(), match[2].lower())
        if "is not a duration" in message and unit in UNIT_SECONDS:
            new = match[1] + unit
        elif kind in ("int_parsing", "float_parsing"):
            new = match[1]
    elif isinstance(value, str) and kind in ("int_parsing", "float_parsing", "value_error"):
        bare = re.sub(r"[\s,_]", "", text)
        new = bare if bare != text and re.match(r"^\d+(?:\.\d+)?%?$", bare) else None
    elif number is not None and kind == "less_than_equal" and context["le"] == 1 and 1 < number <= 100:
        new = f"{number:g}%"
    elif number is not None and kind in ("less_than_equal", "greater_than_equal"):
        new = f"{context['le' if kind == 'less_than_equal' else 'ge']:g}"
    elif number is not None and kind == "int_from_float":
        new = str(round(number))
    elif kind in ("tuple_type", "frozen_set_type") and isinstance(value, str | int | float):
        new = f"[{yaml_text(value)}]"
    elif kind == "string_type" and number is not None:
        new = f'"{value}"'
    elif kind == "string_pattern_mismatch":
        slug = re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-_")
        new = slug if re.match(context["pattern"], slug) else None
    return ("", ()) if new is None else (f"write {new}", (Edit(path, new),))


_NO_SPACE = re.compile(r"\s*(?:- )?(\w[\w-]*):(?![\s/])(\S.*)")


def mend_of_yaml(text: str, error: yaml.MarkedYAMLError) -> str:
    """Return what to write instead, for the slips that people make in YAML; '' for others."""
    mark, problem = error.problem_mark or error.context_mark, error.problem or ""
    if mark is None:
        return ""
    lines = text.split("\n")
    here = lines[mark.line] if mark.line < len(lines) else ""
    above = next((number for number in range(mark.line - 1, -1, -1) if lines[number].strip(" \t")), None)
    opened = error.context_mark.line + 1 if error.context_mark else 0
    value = here.partition(":")[2].strip()
    if "cannot start any token" in problem:
        tab = mark.column < len(here) and here[mark.column] == "\t"
        return "indent with spaces, not with tabs" if tab else f"put the value in quotes: {json.dumps(value)}"
    if "unexpected end of stream" in problem and "quoted" in (error.context or ""):
        return f"end the text that the quote on line {opened} begins with another quote"
    if "expected ','" in problem:
        return f"close the bracket that opens on line {opened} with {problem[-2]}"
    for number in (mark.line, above):
        if number is not None and (found := _NO_SPACE.fullmatch(lines[number])) is not None:
            return f"write a space behind the colon on line {number + 1}: `{found[1]}: {found[2]}`"
    if value[:1] in "\"'" and value:
        return "end the value behind its quote; a quote within single quotes is written twice"
    if "mapping values" in problem and above is not None and _indent(here) > _indent(lines[above]):
        return f"indent line {mark.line + 1} as far as line {above + 1}"
    if "mapping values" in problem:
        return f"put the value in quotes: {json.dumps(value)}"
    if "expected key" in problem and _indent(here):
        return f"indent line {mark.line + 1} as far as the keys that it belongs to"
    return ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


_INSTEAD: Final = {
    "&": "and",
    "&&": "and",
    "|": "or",
    "||": "or",
    "=<": "<=",
    "=>": ">=",
    "=": "==",
    "!": "not",
    "<>": "!=",
}
"""What people write who know another language, and what to write instead."""
_FOREIGN = re.compile(r"&&?|\|\|?|\b(?:AND|OR|NOT|And|Or|Not)\b|=<|=>|<>|(?<![=!<>])=(?![=<>])|!(?!=)")


def foreign_word(text: str) -> tuple[str, str, int, str | None] | None:
    """Return a word of another language in a rule, the one to write, its place, and the rule mended; None for none."""
    bare = re.sub(r"""'[^']*'|"[^"]*\"""", lambda quoted: " " * len(quoted[0]), text)
    foreign = _FOREIGN.search(bare)
    if foreign is None:
        return None
    mended = _FOREIGN.sub(lambda other: f" {_INSTEAD.get(other[0]) or other[0].lower()} ", bare)
    instead = None if "'" in text or '"' in text else " ".join(mended.split())
    return foreign[0], _INSTEAD.get(foreign[0]) or foreign[0].lower(), foreign.start(), instead


def mended_key(finding: Finding, model: type[BaseModel], document: Document) -> Finding:
    """Return the finding of a key that is unknown or missing in a document of this model, with what to write."""
    path = finding.path
    section = _section_at(model, path[:-1], document)
    fields, name = section.model_fields if section else {}, str(path[-1]) if path else ""
    if not finding.of_key:
        examples = fields[name].examples if name in fields else None
        if not examples:
            return finding
        message = f"{finding.message}; write such as `{name}: {examples[0]}`"
        return finding._replace(message=message, edits=(Edit(path, str(examples[0])),))
    near, instead = did_you_mean(name, fields), get_close_matches(name, list(fields), n=1)
    new = instead[0] if near and instead[0] not in document.at(path[:-1]) else None
    head, colon, rest = name.partition(":")
    if colon and head in fields and rest:
        return finding._replace(mend=f"write a space behind the colon: `{head}: {rest}`")
    message = finding.message + (near or f"; leave it out, or write one of {', '.join(fields)}")
    return finding._replace(message=message, edits=(Edit(path, rename=new),))


def _section_at(model: type[BaseModel], path: KeyPath, document: Document) -> type[BaseModel] | None:
    """Return the model that describes the mapping at `path`, to list its keys; None if there is none."""
    annotation: Any = model
    for number, part in enumerate(path):
        annotation = _model_at(annotation, path[:number], document)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model_field = annotation.model_fields.get(str(part))
            if model_field is None:
                return None
            annotation = model_field.annotation
        elif get_origin(annotation) is not None:
            annotation = get_args(annotation)[1 if issubclass(get_origin(annotation), Mapping) else 0]
        else:
            return None
    annotation = _model_at(annotation, path, document)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _model_at(annotation: Any, path: KeyPath, document: Document) -> Any:
    plain = _unwrap(annotation)
    is_section = isinstance(plain, type) and issubclass(plain, Section)
    return plain.model_of(document.at(path)) if is_section and path in document.places else plain


def _unwrap(annotation: Any) -> Any:
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (Union, types.UnionType):
            annotation = next(part for part in get_args(annotation) if part is not type(None))
        else:
            return annotation
