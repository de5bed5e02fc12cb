"""Apply the edits of findings to a file's text, so that all else, comments and layout too, stays as people wrote it.

Whatever is done to the text is checked: read again, it must have exactly the values that the edits ask for.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from gateway.parts.lint.edit import CannotEdit, node_at, with_value
from gateway.parts.lint.slips import yaml_text
from policies.errors import ConfigError, Edit, KeyPath, dotted
from policies.yaml_source import parse_yaml

_NOWHERE = Path()


def mended(text: str, edits: Iterable[Edit]) -> str:
    """Return the text of a file after these edits, one after the other. Raises CannotEdit.

    `text` is YAML that `read_yaml` accepts.
    """
    for edit in edits:
        expected = copy.deepcopy(parse_yaml(text, _NOWHERE).value)
        _edit_value(expected, edit)
        if edit.rename is not None:
            text = _renamed(text, edit.path, edit.rename)
        elif edit.value is not None:
            text = _with(text, edit.path, edit.value)
        else:
            text = _without(text, edit.path)
        try:
            changed = parse_yaml(text, _NOWHERE).value
        except ConfigError as error:
            raise CannotEdit(f"{dotted(edit.path)}: cannot be changed by a script here ({error})") from None
        if _filled(changed) != _filled(expected):
            raise CannotEdit(f"{dotted(edit.path)}: cannot be changed by a script here; do it by hand")
    return text


def _edit_value(value: Any, edit: Edit) -> None:
    """Do to plain values what an edit does to their text. Raises CannotEdit where there is nothing to change."""
    *above, last = edit.path
    for part in above:
        if isinstance(value, list):
            value = value[int(part)] if int(part) < len(value) else None
        elif isinstance(value, dict) and edit.value is not None:
            value[part] = {} if value.get(part) is None else value[part]
            value = value[part]
        elif isinstance(value, dict):
            value = value.get(part)
    if isinstance(value, list) and isinstance(last, int) and last < len(value):
        if edit.value is None:
            del value[last]
        else:
            value[last] = _value_of(edit.value)
    elif isinstance(value, dict) and (edit.value is not None or last in value):
        if edit.rename is not None and edit.rename in value:
            raise CannotEdit(f"{dotted(edit.path)}: {edit.rename} is there already")
        if edit.value is not None:
            value[str(last)] = _value_of(edit.value)
            return
        old = value.pop(last)
        if edit.rename is not None:
            value[edit.rename] = old
    else:
        raise CannotEdit(f"{dotted(edit.path)}: is not in this file")


def _value_of(text: str) -> Any:
    return parse_yaml(f"value: {text}\n", _NOWHERE).value["value"]


def _filled(value: Any) -> Any:
    """Return the value without empty maps and lists, which stand for the same as what is left out."""
    if isinstance(value, dict):
        filled = {key: _filled(item) for key, item in value.items()}
        return {key: item for key, item in filled.items() if item not in ({}, [], None)}
    return [_filled(item) for item in value] if isinstance(value, list) else value


def _renamed(text: str, path: KeyPath, name: str) -> str:
    key, _ = _entry(text, path)
    return text[: key.start_mark.index] + yaml_text(name) + text[key.end_mark.index :]


def _with(text: str, path: KeyPath, value: str) -> str:
    """Return the text with a value in place of another, or of none, whose sections are made where they are missing."""
    node = node_at(text, path)
    if node is not None:
        if isinstance(node, yaml.CollectionNode) and not node.flow_style:
            # The lines of a block, from the first item to the end of the last, become one value behind their key.
            key, _ = _entry(text, path)
            colon = text.index(":", key.end_mark.index) + 1
            return f"{text[:colon]} {value}{text[_end_of(text, node) :]}"
        return with_value(text, path, value)
    *above, last = path
    section = node_at(text, tuple(above))
    if section is None or (isinstance(section, yaml.ScalarNode) and not section.value):
        return _with(text, tuple(above), f"{{{yaml_text(last)}: {value}}}")
    if not isinstance(section, yaml.MappingNode):
        raise CannotEdit(f"{dotted(path)}: {dotted(tuple(above))} holds no keys")
    if not section.value:
        end = section.end_mark.index - 1
        return f"{text[:end]}{yaml_text(last)}: {value}{text[end:]}"
    end = _end_of(text, section.value[-1][1])
    if section.flow_style:
        return f"{text[:end]}, {yaml_text(last)}: {value}{text[end:]}"
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    indent = " " * section.value[0][0].start_mark.column
    return f"{text[:line_end]}\n{indent}{yaml_text(last)}: {value}{text[line_end:]}"


def _without(text: str, path: KeyPath) -> str:
    """Return the text without a key or an item; a section whose only one it was goes with it."""
    *above, last = path
    section = node_at(text, tuple(above))
    if not isinstance(section, yaml.CollectionNode):
        raise CannotEdit(f"{dotted(path)}: is not in this file")
    if isinstance(section, yaml.SequenceNode):
        spans = [(item.start_mark.index, item) for item in section.value]
        at = int(last)
    else:
        spans = [(key.start_mark.index, item) for key, item in section.value]
        at = next(i for i, (key, _) in enumerate(section.value) if key.value == last)
    start, end = spans[at][0], _end_of(text, spans[at][1])
    if len(spans) == 1 and not section.flow_style:
        return (
            _with(text, tuple(above), "[]") if isinstance(section, yaml.SequenceNode) else _without(text, tuple(above))
        )
    if section.flow_style:
        if at + 1 < len(spans):
            return text[:start] + text[spans[at + 1][0] :]
        if at:
            return text[: _end_of(text, spans[at - 1][1])] + text[end:]
        return text[:start] + text[end:]
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", end)
    return text[:line_start] + (text[line_end + 1 :] if line_end >= 0 else "")


def _entry(text: str, path: KeyPath) -> tuple[yaml.Node, yaml.Node]:
    """Return the key and the value at a path. Raises CannotEdit."""
    section = node_at(text, path[:-1])
    for key, value in section.value if isinstance(section, yaml.MappingNode) else ():
        if key.value == path[-1]:
            return key, value
    raise CannotEdit(f"{dotted(path)}: is not in this file")


def _end_of(text: str, node: yaml.Node) -> int:
    """Return where the last character of a value is followed by something else; PyYAML counts later comments to it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end_of(text, last[1] if isinstance(last, tuple) else last)
    end: int = node.end_mark.index
    return node.start_mark.index + len(text[node.start_mark.index : end].rstrip("\n"))
