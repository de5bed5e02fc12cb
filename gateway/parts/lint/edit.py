"""Change single values of a policy file as text, so that comments, order and layout stay as people wrote them.

ruamel.yaml, which keeps comments, would write the whole file anew, without the blanks by which people line up their
values: where they do, half of the lines would change, and a diff of one number could not be reviewed.
"""

from __future__ import annotations

import re

import yaml

from policies.errors import KeyPath, dotted

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_GAP = re.compile(r" +(?=#)")


class CannotEdit(ValueError):
    """The text has no place for the value; the message says which and why."""


def source_of(text: str, path: KeyPath) -> str | None:
    """Return the scalar at `path` as it is written, quotes included; None if there is none.

    `text` is YAML that `read_yaml` has accepted.
    """
    node = node_at(text, path)
    return text[node.start_mark.index : node.end_mark.index] if isinstance(node, yaml.ScalarNode) else None


def with_value(text: str, path: KeyPath, value: str) -> str:
    """Return the text with `value` as the scalar or braces at `path`; a missing key becomes the first of its section.

    A comment behind a scalar stays in its column, as far as there is room. Raises CannotEdit where the section is
    missing or empty, or where the present value is a block of lines.
    """
    node = node_at(text, path)
    if isinstance(node, yaml.CollectionNode):
        if not node.flow_style:
            raise CannotEdit(f"{dotted(path)}: is written as a block of lines; remove it, and it is written anew")
        return text[: node.start_mark.index] + value + text[node.end_mark.index :]
    if isinstance(node, yaml.ScalarNode):
        start, behind = node.start_mark.index, text[node.end_mark.index :]
        if gap := _GAP.match(behind):
            room = node.end_mark.index - start + len(gap[0])
            return text[:start] + value.ljust(room - 1) + " " + behind[gap.end() :]
        return text[:start] + value + behind
    section = node_at(text, path[:-1])
    if not isinstance(section, yaml.MappingNode) or not section.value:
        raise CannotEdit(f"there is no {dotted(path[:-1])}: section to put {path[-1]} into; add one by hand")
    first = section.value[0][0].start_mark
    between = ", " if section.flow_style else "\n" + " " * first.column
    return f"{text[: first.index]}{path[-1]}: {value}{between}{text[first.index :]}"


def node_at(text: str, path: KeyPath) -> yaml.Node | None:
    """Return the node at a path, with its place in the text; None if there is none."""
    node: yaml.Node | None = yaml.compose(text, Loader=_LOADER)
    for part in path:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part] if part < len(node.value) else None
        elif isinstance(node, yaml.MappingNode):
            node = next((value for key, value in node.value if key.value == part), None)
        else:
            return None
    return node


def keys_by_line(text: str) -> dict[int, str]:
    """Return the dotted key that begins on each line of a policy file, by line from 1; lines without one are left out.

    Where several begin on a line it is the first, and the outermost.
    """
    keys: dict[int, str] = {}

    def walk(node: yaml.Node | None, above: str) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                path = f"{above}.{key.value}" if above else str(key.value)
                keys.setdefault(key.start_mark.line + 1, path)
                walk(value, path)
        elif isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                keys.setdefault(item.start_mark.line + 1, f"{above}[{number}]")
                walk(item, f"{above}[{number}]")

    walk(yaml.compose(text, Loader=yaml.SafeLoader), "")
    return keys
