"""Labelled prompts: rows of JSON lines, plain or gzipped, that say which models answered a prompt right.

    {"id", "dataset", "group", "prompt", "models": {name: {"correct": 0..1, ...}}}

Unknown keys are let be; `correct` is a share where an answer was sampled or graded.
"""

from __future__ import annotations

import ast
import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FIRST_CHOICE = re.compile(r"\n\(?A[.):] ")
_SHORTEST_QUESTION = 20


class DataError(Exception):
    """A file of labelled prompts cannot be used; the message says file, line and why."""


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt, and how right each model was on it (0..1)."""

    id: str
    dataset: str
    group: str
    prompt: str
    correct: dict[str, float]


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt labelled for a pair of models: how right the small and the large one were (0..1)."""

    prompt: str
    dataset: str
    group: str
    small: float
    large: float


def read_rows(path: Path) -> list[Row]:
    """The rows of a file. Raises DataError."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            return [_row(line, f"{path}:{number}") for number, line in enumerate(file, start=1) if line.strip()]
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: {error}") from None


def _row(line: bytes, place: str) -> Row:
    try:
        row: dict[str, Any] = json.loads(line)
        correct = {name: float(model["correct"]) for name, model in row["models"].items()}
        prompt = _unwrapped(row["prompt"])
        return Row(str(row["id"]), str(row["dataset"]), str(row["group"]), prompt, correct)
    except (ValueError, KeyError, TypeError, AttributeError, SyntaxError) as error:
        raise DataError(f"{place}: not a row of labelled prompts: {type(error).__name__}: {error}") from None


def _unwrapped(prompt: str) -> str:
    """RouterBench keeps some prompts as a printed Python list of one string."""
    if prompt.startswith(("['", '["')) and prompt.endswith("]"):
        (only,) = ast.literal_eval(prompt)
        return str(only)
    return prompt


def choose_pair(rows: Sequence[Row], small: Sequence[str], large: Sequence[str]) -> tuple[str, str]:
    """The models of these rows to compare: the first of the given names they have.

    By default they are the worst and the best of those that answered every prompt. Raises DataError when none of the
    names is there.
    """
    known = sorted({name for row in rows for name in row.correct})
    complete = [name for name in known if all(name in row.correct for row in rows)]
    if len(complete) < 2 and not (small and large):
        raise DataError("no two models have answered every prompt of the file; name a small and a large one")
    by_skill = sorted(complete, key=lambda name: sum(row.correct[name] for row in rows))
    return _named(small, known) or by_skill[0], _named(large, known) or by_skill[-1]


def _named(names: Sequence[str], known: Sequence[str]) -> str | None:
    if not names:
        return None
    for name in names:
        if name in known:
            return name
    raise DataError(f"none of {', '.join(names)} is among the models of the file: {', '.join(known)}")


def label(rows: Sequence[Row], small: str, large: str) -> Iterator[Example]:
    """The rows that both models answered, as examples for that pair."""
    for row in rows:
        if small in row.correct and large in row.correct:
            yield Example(row.prompt, row.dataset, row.group, row.correct[small], row.correct[large])


def without_choices(prompt: str) -> str | None:
    """The question of a multiple-choice prompt, as people ask it; None where there is none, or next to nothing."""
    match = _FIRST_CHOICE.search(prompt)
    return prompt[: match.start()] if match and match.start() >= _SHORTEST_QUESTION else None
