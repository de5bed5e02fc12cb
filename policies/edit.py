"""Changing single values of a policy file as text, so that comments, order and layout stay as people wrote them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import yaml

_GAP = re.compile(r" +(?=#)")


class CannotEdit(ValueError):
    """The text has no place for the value; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Span:
    """A value's place: `text[start:end]`."""

    start: int
    end: int


def span_of(text: str, path: tuple[str, ...]) -> Span | None:
    """Where the scalar at `path` stands, None if there is none. `text` is YAML that `read_yaml` has accepted."""
    node = _at(_root(text), path)
    return Span(node.start_mark.index, node.end_mark.index) if isinstance(node, yaml.ScalarNode) else None


def with_value(text: str, path: tuple[str, ...], value: str) -> str:
    """The text with the scalar at `path` replaced by `value`, or with the key added first in its section.

    Raises CannotEdit where that section is not there, or empty.
    """
    span = span_of(text, path)
    if span is not None:
        return replaced(text, span, value)
    section = _at(_root(text), path[:-1])
    if not isinstance(section, yaml.MappingNode) or not section.value:
        raise CannotEdit(f"there is no {'.'.join(path[:-1])}: section to put {path[-1]} into; add one by hand")
    first = section.value[0][0].start_mark
    added = f"{path[-1]}: {value}"
    between = ", " if section.flow_style else "\n" + " " * first.column
    return text[: first.index] + added + between + text[first.index :]


def replaced(text: str, span: Span, value: str) -> str:
    """The text with `value` at that place. A comment behind it stays in its column, as far as there is room."""
    behind = text[span.end :]
    gap = _GAP.match(behind)
    if gap is None:
        return text[: span.start] + value + behind
    room = span.end - span.start + len(gap[0]) - len(value)
    return text[: span.start] + value + " " * max(1, room) + behind[gap.end() :]


def _root(text: str) -> yaml.Node | None:
    return yaml.compose(text, Loader=yaml.SafeLoader)


def _at(node: yaml.Node | None, path: tuple[str, ...]) -> yaml.Node | None:
    for part in path:
        if not isinstance(node, yaml.MappingNode):
            return None
        node = next((value for key, value in node.value if key.value == part), None)
    return node
