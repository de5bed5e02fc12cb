"""Define the errors in a config file or a policy, each with its place and what to do about it.

    ConfigError              one or more problems, each with its file, line, key and message
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

KeyPath = tuple[str | int, ...]
"""Path to a value in a file: `("tiers", 0, "name")`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. `line` counts from 1, 0 when there is no line to point at; `key` is such as `slo.ttft.p95`."""

    file: Path
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else str(self.file)
        return f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"


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
