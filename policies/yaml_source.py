"""Read YAML that people write by hand, with the place of every key, and nothing of YAML that could surprise or harm.

Scalars are read by the YAML 1.2 core schema: only `true` and `false` are booleans, so `no`, `on` and `off` stay the
words they are, `12:30` is no number and `1e3` is one. (Where a field is a flag, `yes` and `no` still do as flags.)
Keys are always text. Refused: aliases and anchors, merge keys, tags (`!!python/...` among them), a key given twice,
several documents, an empty file, anything larger than 256 KiB or nested deeper than 32, and a file whose last line has
no line break: it may have been cut off, and half a file is often valid YAML that says something else.

PyYAML's parser gives the events, from libyaml 0.2.5; no Python object but dict, list, str, int, float, bool and None is
ever made. ruamel.yaml was tried in its place: its C parser is libyaml 0.1.7, which refuses `{url: redis://host}` and
`[tier:local]`, and its Python parser takes over ten times as long (5 s for 1,000 policy files).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from policies import ADDED
from policies.errors import ConfigError, Finding, InvalidYaml, KeyPath, Problem, UnreadableFile, dotted

MAX_BYTES = 256 << 10
MAX_DEPTH = 32

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
CORE_SCHEMA: tuple[tuple[re.Pattern[str], Any], ...] = (
    (re.compile(r"^(?:null|Null|NULL|~|)$"), lambda _: None),
    (re.compile(r"^(?:true|True|TRUE)$"), lambda _: True),
    (re.compile(r"^(?:false|False|FALSE)$"), lambda _: False),
    (re.compile(r"^[-+]?[0-9]{1,18}$"), int),
    (re.compile(r"^0x[0-9a-fA-F]{1,15}$"), lambda text: int(text, 16)),
    (re.compile(r"^0o[0-7]{1,20}$"), lambda text: int(text[2:], 8)),
    (re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"), float),
    (re.compile(r"^[-+]?\.(?:inf|Inf|INF)$"), lambda text: float(text.replace(".", ""))),
    (re.compile(r"^\.(?:nan|NaN|NAN)$"), lambda _: float("nan")),
)


class Place(NamedTuple):
    """Where a key and its value are, counted from 1. The value of a list's item is its own key.

    `line` and `column` are of a value that begins on its key's line or is a scalar, else of the key. `text` is the
    column of a scalar's first character within its quotes; 0 where it has escapes or spans lines.
    """

    file: Path
    line: int
    column: int
    text: int
    key_line: int
    key_column: int


@dataclass(frozen=True, slots=True)
class Document:
    """One file, read: its top-level mapping, and the place of everything in it."""

    file: Path
    value: dict[str, Any]
    places: dict[KeyPath, Place] = field(repr=False)

    def place(self, path: KeyPath) -> Place | None:
        """Return where `path` is, or, where the file has no such key, the nearest one around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path)

    def problem(self, path: KeyPath, message: str) -> Problem:
        """Return a problem at `path`, or at the nearest key around it."""
        return self.locate(Finding(path, message))

    def locate(self, finding: Finding) -> Problem:
        """Return the problem of a finding, whose path is from the top of the file."""
        path, message, code, mend, edits, at, of_key = finding
        place = self.place(path)
        if place is None:
            return Problem(self.file, 1, dotted(path), message, 0, code, mend, edits)
        line, column = place.line, place.column
        if of_key:
            line, column = place.key_line, place.key_column
        elif at is not None and place.text and path in self.places:
            column = place.text + _in_raw(self.at(path), at)
        return Problem(place.file, line, dotted(path), message, column, code, mend, edits)

    def at(self, path: KeyPath) -> Any:
        """Return the value at `path`, which is in the file."""
        value: Any = self.value
        for part in path:
            value = value[part]
        return value


def _in_raw(raw: Any, at: int) -> int:
    """Return where in a text the character is that has this index once each run of blanks is one."""
    ended = 0
    for word in re.finditer(r"\S+", raw if isinstance(raw, str) else ""):
        if at <= ended + len(word[0]):
            return word.start() + at - ended
        ended += len(word[0]) + 1
    return 0


def read_yaml(file: Path) -> Document:
    """Return the document in `file`; raises UnreadableFile or InvalidYaml."""
    return parse_yaml(_read_text(file), file)


def parse_yaml(text: str, file: Path) -> Document:
    """Return the document in a text that is, or will be, in `file`; raises InvalidYaml."""
    builder = _Builder(file, text)
    try:
        value = builder.document()
    except yaml.MarkedYAMLError as error:
        raise InvalidYaml([_syntax_problem(file, text, error)]) from None
    except yaml.YAMLError as error:
        # A character YAML does not allow; it comes without a mark.
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        raise InvalidYaml(
            [Problem(file, line, "", f"not YAML: {getattr(error, 'reason', error)}", code="T102")]
        ) from None
    if builder.problems:
        raise InvalidYaml(builder.problems)
    if not isinstance(value, dict):
        message = "the file must be a mapping of keys to values"
        raise InvalidYaml([Problem(file, 1, "", message, 1, "T102", "write `key: value`, as `surface: chat`")])
    return Document(file, value, builder.places)


def _syntax_problem(file: Path, text: str, error: yaml.MarkedYAMLError) -> Problem:
    # Where the parser gave up is often far from what was left open; that is where the context begins.
    began = f" ({error.context} that began on line {error.context_mark.line + 1})" if error.context_mark else ""
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    message = f"not YAML: {error.problem or error.context}{began}"
    reading = ADDED.reading()
    mend = "" if reading is None else reading.mend_of_yaml(text, error)
    return Problem(file, line, "", message, column, "T102", mend)


def _read_text(file: Path) -> str:
    try:
        # A pipe or a device would wait for ever or never end.
        if not file.is_file():
            raise _unreadable(file, "not a regular file" if file.exists() else "no such file")
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(file, error.strerror or "cannot be read") from None
    if len(data) > MAX_BYTES:
        raise _unreadable(file, f"larger than {MAX_BYTES >> 10} KiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UnreadableFile([Problem(file, line, "", "not UTF-8; save the file as UTF-8", code="T101")]) from None
    # A mapping in braces, such as JSON, ends visibly: cut off, it is no YAML.
    if text and text[-1] not in "\r\n" and text.lstrip()[:1] != "{":
        message = "the last line has no line break, so the file may be cut off"
        raise UnreadableFile([Problem(file, text.count("\n") + 1, "", message, 0, "T108", "end it with a line break")])
    return text


def _unreadable(file: Path, reason: str) -> ConfigError:
    return UnreadableFile([Problem(file, 0, "", reason, code="T101")])


class _Builder:
    """Build plain values from the parser's events, and collect what is refused instead of stopping at it."""

    def __init__(self, file: Path, text: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.places: dict[KeyPath, Place] = {}
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=_LOADER)

    def document(self) -> Any:
        """Return the value of the first document; a second one is refused."""
        value, documents = None, 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(event, (), "a second document; one file holds one")
                    return value
                value = self._value(next(self._events), ())
        if value is None:
            self.problems.append(Problem(self.file, 0, "", "the file is empty", code="T102"))
        return value

    def _value(self, event: yaml.Event, path: KeyPath, key: yaml.Event | None = None) -> Any:
        """Return the value that begins with `event`, and take its events up to its end. `key` is its key's event."""
        self.places.setdefault(path, self._place(event, key or event))
        if len(path) > MAX_DEPTH:
            line, column = _mark(event)
            raise InvalidYaml([Problem(self.file, line, "", f"nested deeper than {MAX_DEPTH}", column, "T102")])
        self._check_node(event, path)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
                items.append(self._value(event, (*path, len(items))))
            return items
        if not isinstance(event, yaml.MappingStartEvent):
            return _scalar(event) if isinstance(event, yaml.ScalarEvent) else None
        mapping: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse(event, path, "a key must be plain text")
                self._value(event, (*path, "?"))
                self._value(next(self._events), (*path, "?"))
                continue
            name, here = event.value, (*path, event.value)
            self._check_node(event, here)
            if name == "<<" and event.implicit[0]:
                self._refuse(event, here, "merge keys are not read; write the keys out")
            elif name in mapping:
                first = self.places[here].key_line
                self._refuse(event, here, f"given twice; first on line {first}; keep one")
            mapping.setdefault(name, self._value(next(self._events), here, event))
        return mapping

    def _place(self, event: yaml.Event, key: yaml.Event) -> Place:
        (line, column), (key_line, key_column) = _mark(event), _mark(key)
        if not isinstance(event, yaml.ScalarEvent):
            at = (line, column) if line == key_line else (key_line, key_column)
            return Place(self.file, *at, 0, key_line, key_column)
        end, text = event.end_mark, 0
        if end is not None and end.line + 1 == line:
            quotes = end.column + 1 - column - len(event.value)
            text = column + quotes // 2 if quotes in (0, 2) else 0
        return Place(self.file, line, column, text, key_line, key_column)

    def _check_node(self, event: yaml.Event, path: KeyPath) -> None:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            self._refuse(event, path, "anchors and aliases (&name, *name) are not read; write the value out")
        elif (tag := getattr(event, "tag", None)) is not None:
            self._refuse(event, path, f"tags ({tag}) are not read; leave it out")

    def _refuse(self, event: yaml.Event, path: KeyPath, message: str) -> None:
        line, column = _mark(event)
        self.problems.append(Problem(self.file, line, dotted(path), message, column, "T102"))


def _mark(event: yaml.Event) -> tuple[int, int]:
    """Return the line and the column at which an event begins, counted from 1."""
    return (event.start_mark.line + 1, event.start_mark.column + 1) if event.start_mark else (0, 0)


def _scalar(event: yaml.ScalarEvent) -> Any:
    text: str = event.value
    if not event.implicit[0]:  # quoted, or a block of text
        return text
    return next((read(text) for pattern, read in CORE_SCHEMA if pattern.match(text)), text)
