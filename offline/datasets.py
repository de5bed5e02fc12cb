"""Read labelled prompts: rows of JSON lines, plain or gzipped, with the models' answers and whether they are right.

    {"id", "dataset", "group", "prompt", "models": {name: {"correct": 0..1, "confidence"?, "cost_usd"?, "latency_ms"?,
     "tok_in"?, "tok_out"?, "logprobs"?, "top_logprobs"?, "finish_reason"?, "answer"?, "agreement"?}}}

Unknown keys are ignored; `correct` may be a fraction where answers were sampled or graded. `tierline collect` writes
such rows.
"""

from __future__ import annotations

import ast
import gzip
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

_FIRST_CHOICE = re.compile(r"\n\(?A[.):] ")
_SHORTEST_QUESTION = 20
_GZIP = b"\x1f\x8b"
"""The first bytes of a gzipped file."""

T = TypeVar("T")


class DataError(Exception):
    """A file of labelled prompts cannot be used; the message gives the file, the line and the reason."""


@dataclass(frozen=True, slots=True)
class LabelledAnswer:
    """One model's answer to one prompt. Values missing from the file are None.

    `correct` is 0..1. `confidence` is one log-probability (<= 0): the answer's mean over its tokens, or a self-check's.
    `logprobs` are the tokens' own, in order, and give the mean where `confidence` is missing. `top_logprobs` are, for
    each of these tokens, the likeliest alternatives' (the chosen one may be among them), descending. `text` is the
    answer, `agreement` how far a second sample agrees with it (0..1). Costs are US dollars, latencies milliseconds.
    """

    correct: float
    confidence: float | None = None
    cost_usd: float | None = None
    latency_ms: float | None = None
    tok_in: int | None = None
    tok_out: int | None = None
    logprobs: tuple[float, ...] | None = None
    finish_reason: str | None = None
    top_logprobs: tuple[tuple[float, ...], ...] | None = None
    text: str | None = None
    agreement: float | None = None


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """One prompt, and each model's answer to it."""

    id: str
    dataset: str
    group: str
    prompt: str
    answers: dict[str, LabelledAnswer]


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt with the answers of the tiers under consideration, cheapest first: at least two."""

    prompt: str
    dataset: str
    group: str
    answers: tuple[LabelledAnswer, ...]

    @property
    def small(self) -> float:
        """Correctness of the cheapest tier's answer (0..1)."""
        return self.answers[0].correct

    @property
    def large(self) -> float:
        """Correctness of the strongest tier's answer (0..1)."""
        return self.answers[-1].correct


def read_rows(path: Path) -> list[LabelledRow]:
    """Return the rows of a file. Raises DataError."""
    return [_row(line, place) for place, line in json_lines(path)]


def json_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (`FILE:LINE`, line) for each non-blank line of a file, gzipped or not. Raises DataError."""
    try:
        with path.open("rb") as raw:
            # Peek, and open only once: `path` may be a pipe.
            file = gzip.open(raw) if raw.peek(len(_GZIP)).startswith(_GZIP) else raw  # noqa: SIM115  (reads raw, which is closed)
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}:{number}", line
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except EOFError as error:
        raise DataError(f"{path}: {error}") from None


def _row(line: bytes, place: str) -> LabelledRow:
    try:
        row: dict[str, Any] = json.loads(line)
        answers = {name: _answer(model) for name, model in row["models"].items()}
        prompt = unwrapped(row["prompt"])
        prompt.encode()  # JSON can contain half of a surrogate pair, which no tokenizer accepts
        return LabelledRow(str(row["id"]), str(row["dataset"]), str(row["group"]), prompt, answers)
    except (ValueError, KeyError, TypeError, AttributeError, SyntaxError, OverflowError) as error:
        raise DataError(f"{place}: not a row of labelled prompts: {type(error).__name__}: {error}") from None


def _answer(model: Mapping[str, Any]) -> LabelledAnswer:
    logprobs = model.get("logprobs")
    tokens = tuple(map(float, logprobs)) if logprobs else None
    confidence = _maybe(float, model.get("confidence"))
    if confidence is None and tokens:
        confidence = math.fsum(tokens) / len(tokens)
    top = model.get("top_logprobs")
    return LabelledAnswer(
        correct=_share(model["correct"]),
        confidence=confidence,
        cost_usd=_maybe(float, model.get("cost_usd")),
        latency_ms=_maybe(float, model.get("latency_ms")),
        tok_in=_maybe(int, model.get("tok_in")),
        tok_out=_maybe(int, model.get("tok_out")),
        logprobs=tokens,
        finish_reason=_maybe(str, model.get("finish_reason")),
        top_logprobs=tuple(tuple(map(float, token)) for token in top) if top else None,
        text=_maybe(str, model.get("answer")),
        agreement=_maybe(_share, model.get("agreement")),
    )


def _share(value: Any) -> float:
    share = float(value)
    if not 0 <= share <= 1:
        raise ValueError(f"{value!r} is not a share between 0 and 1")
    return share


def _maybe(kind: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else kind(value)


def unwrapped(prompt: str) -> str:
    """Return a prompt without RouterBench's wrapping, a printed Python list of strings: one, or one for each turn."""
    if not (prompt.startswith(("['", '["')) and prompt.endswith("]")):
        return prompt
    try:
        parts = ast.literal_eval(prompt)
    except (ValueError, SyntaxError):
        return prompt  # not a list after all
    return "\n".join(map(str, parts))


def choose_pair(rows: Sequence[LabelledRow], small: Sequence[str], large: Sequence[str]) -> tuple[str, str]:
    """Return the two models of these rows to compare: for each, the first of the given names that occurs.

    By default they are the worst and the best of those that answered every prompt. Raises DataError when none of the
    given names occurs.
    """
    models = sorted({name for row in rows for name in row.answers})
    complete = [name for name in models if all(name in row.answers for row in rows)]
    if len(complete) < 2 and not (small and large):
        raise DataError("no two models have answered every prompt of the file; name a small and a large one")
    by_skill = sorted(complete, key=lambda name: sum(row.answers[name].correct for row in rows))
    return _named(small, models) or by_skill[0], _named(large, models) or by_skill[-1]


def choose_ladder(
    rows: Sequence[LabelledRow], small: Sequence[str], middle: Sequence[Sequence[str]], large: Sequence[str]
) -> tuple[str, ...]:
    """Return the models of these rows to use as tiers, cheapest first.

    They are the pair of `choose_pair` and, between them, for each entry of `middle` the first of its names that occurs.
    Raises DataError if no name occurs or two tiers are the same model.
    """
    cheapest, strongest = choose_pair(rows, small, large)
    models = sorted({name for row in rows for name in row.answers})
    ladder = (cheapest, *filter(None, (_named(names, models) for names in middle)), strongest)
    for name in ladder:
        if ladder.count(name) > 1:
            raise DataError(f"two tiers are {name}, of {', '.join(ladder)}; name another model for one of them")
    return ladder


def _named(names: Sequence[str], models: Sequence[str]) -> str | None:
    if not names:
        return None
    for name in names:
        if name in models:
            return name
    raise DataError(f"none of {', '.join(names)} is among the models of the file: {', '.join(models)}")


def label(rows: Sequence[LabelledRow], *models: str) -> Iterator[Example]:
    """Yield the rows that all these models answered as examples; give at least two models, cheapest first."""
    for row in rows:
        if all(name in row.answers for name in models):
            yield Example(row.prompt, row.dataset, row.group, tuple(row.answers[name] for name in models))


def without_choices(prompt: str) -> str | None:
    """Return a multiple-choice prompt's question without its choices; None if there are none, or it is too short."""
    match = _FIRST_CHOICE.search(prompt)
    return prompt[: match.start()] if match and match.start() >= _SHORTEST_QUESTION else None
