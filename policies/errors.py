"""Define the errors in a config file or a policy, each with its place and what to do about it.

    ConfigError              one or more problems, each with its file, line, column, key and message
    ├── UnreadableFile       missing, not a file, too large, not UTF-8
    ├── InvalidYaml          not YAML, or a part of YAML that is refused (aliases, tags, a key twice, ...)
    └── InvalidContent       valid YAML with invalid content: unknown keys, wrong values, contradictory rules

Every check reports all problems, not only the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

KeyPath = tuple[str | int, ...]
"""Path to a value in a file: `("tiers", 0, "name")`."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of a file that a script can make: the value at `path` becomes `value`, in YAML's flow style.

    With `value` None the key, or the item of a list, is removed. `rename` gives the key another name instead.
    """

    path: KeyPath
    value: str | None = None
    rename: str | None = None


class Finding(NamedTuple):
    """A mistake in a value: its path below that value, why it is one, and what to write instead."""

    path: KeyPath
    message: str
    code: str = ""
    """Its code in the list of what checks of policies find, such as `T205`; '' for none."""
    mend: str = ""
    """What to write instead, as text; '' where the message says it."""
    edits: tuple[Edit, ...] = ()
    """The same for a script, with paths from the top of the file; empty where only a person can choose."""
    at: int | None = None
    """Where in the value's text it is, in characters, runs of blanks counted as one; None for the whole value."""
    of_key: bool = False
    """Whether the key is the mistake, not its value."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake at its place. `line` and `column` count from 1; each is 0 when there is none to point at.

    `key` is such as `slo.ttft.p95`. `code`, `mend` and `edits` are those of the Finding.
    """

    file: Path
    line: int
    key: str
    message: str
    column: int = 0
    code: str = ""
    mend: str = ""
    edits: tuple[Edit, ...] = ()

    @property
    def place(self) -> str:
        """`file:line:column`, as far as they are known."""
        return ":".join([str(self.file), *(str(number) for number in (self.line, self.column) if number)])

    def __str__(self) -> str:
        key = f"{self.key}: " if self.key else ""
        mend = f"; {self.mend}" if self.mend else ""
        return f"{self.place}: {key}{self.message}{mend}" + (f" [{self.code}]" if self.code else "")


class ConfigError(Exception):
    """One or more problems; `str()` has one line per problem."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class UnreadableFile(ConfigError):
    """The file could not be read at all."""


class InvalidYaml(ConfigError):
    """The file is not YAML, or uses a part of YAML that is not accepted here."""


class InvalidContent(ConfigError):
    """The file's keys or values are wrong."""


def dotted(path: KeyPath) -> str:
    """Return a key path for display: `tiers[0].backends[1].price`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'deadline'?)`, or '' when no known name is similar."""
    near: Sequence[str] = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""
