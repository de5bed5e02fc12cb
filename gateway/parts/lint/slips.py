"""Say what to write instead of a mistake in a file, where its text shows what was meant."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

import yaml

from policies.errors import Edit, KeyPath
from policies.expression import ExpressionError
from policies.quantities import UNIT_SECONDS
from policies.yaml_source import CORE_SCHEMA

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
