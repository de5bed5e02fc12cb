"""Read labelled data: JSON lines, plain or gzipped, with errors that name the file, the line and the form of a row.

    prompts  {"id", "dataset", "group", "prompt", "kind"?, "models": {name: {"correct": 0..1, "confidence"?,
              "cost_usd"?, "latency_ms"?, "tok_in"?, "tok_out"?, "logprobs"?, "top_logprobs"?, "finish_reason"?,
              "answer"?, "agreement"?, "judge"?, "scorer"?}}}; `tierline fit collect` writes them
    pairs    {"a", "b", "same_answer", "dataset"?, "group"?}; `a` and `b` are questions or lists of messages

Unknown keys are ignored; `correct` may be a fraction where answers were sampled or graded. To add a kind of row, write
a function that makes a value from a row, and give it to `rows_of`.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

_FIRST_CHOICE = re.compile(r"\n\(?A[.):] ")
_SHORTEST_QUESTION = 20
_SHOWN = 80
_GZIP = b"\x1f\x8b"
"""The first bytes of a gzipped file."""
_PROMPT = '{"id", "dataset", "group", "prompt", "models": {name: {"correct": 0..1}}}'
_PAIR = '{"a", "b", "same_answer": true or false, "dataset"?, "group"?}'

T = TypeVar("T")
Json = dict[str, Any]
Messages = str | tuple[Json, ...]
"""A single question, or the messages of a conversation."""


class DataError(Exception):
    """A file of labelled data cannot be used; the message gives the file, the line and the reason."""


@dataclass(frozen=True, slots=True)
class LabelledAnswer:
    """One model's answer to one prompt. Values missing from the file are None.

    `correct` is 0..1. `confidence` is one log-probability (<= 0): the answer's mean over its tokens, or a self-check's.
    `logprobs` are the tokens' own, in order, and give the mean where `confidence` is missing. `top_logprobs` are, for
    each of these tokens, the likeliest alternatives' (the chosen one may be among them), descending. `text` is the
    answer. `agreement` is how far a second sample agrees with it, `judge` and `scorer` how likely it is good enough by
    these, each 0..1. Costs are US dollars, latencies milliseconds.
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
    judge: float | None = None
    scorer: float | None = None


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """One prompt, and each model's answer to it."""

    id: str
    dataset: str
    group: str
    prompt: str
    answers: dict[str, LabelledAnswer]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt with the answers of the tiers under consideration, cheapest first: at least two."""

    prompt: str
    dataset: str
    group: str
    answers: tuple[LabelledAnswer, ...]
    kind: str = ""
    """The kind of request that the row names; empty if it names none."""

    @property
    def small(self) -> float:
        """Correctness of the cheapest tier's answer (0..1)."""
        return self.answers[0].correct

    @property
    def large(self) -> float:
        """Correctness of the strongest tier's answer (0..1)."""
        return self.answers[-1].correct


@dataclass(frozen=True, slots=True)
class LabelledPrompts:
    """Examples of one or more files, and for each file its name, SHA-256, number of rows and models."""

    examples: list[Example]
    sources: list[Json]

    def pair(self) -> tuple[str, str]:
        """Return the names of the small and the large model; joined by a slash if they differ between files."""
        small, large = (
            " / ".join(dict.fromkeys(str(source[role]) for source in self.sources)) for role in ("small", "large")
        )
        return small, large


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """Two requests. `same_answer`: the answer to `a` may be served for `b`. Names missing from the file are ''."""

    a: Messages
    b: Messages
    same_answer: bool
    dataset: str
    group: str


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
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: {error}") from None


def json_objects(path: Path, *, skip_broken: bool = False) -> Iterator[tuple[str, Json]]:
    """Yield (`FILE:LINE`, object) for each line. With `skip_broken`, lines that are not JSON are left out.

    Raises DataError.
    """
    for place, line in json_lines(path):
        try:
            row = json.loads(line)
        except ValueError as error:
            if skip_broken:
                continue
            raise DataError(f"{place}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise DataError(f"{place}: a row is an object, this is {_shown(row)}")
        yield place, row


def rows_of(path: Path, read: Callable[[Json], T], form: str) -> Iterator[T]:
    """Yield `read(row)` for each row. What `read` raises becomes a DataError that shows the `form` of a row."""
    for place, row in json_objects(path):
        try:
            yield read(row)
        except KeyError as missing:
            raise DataError(f"{place}: {missing.args[0]} missing; a row is {form}") from None
        except (ValueError, TypeError, AttributeError, SyntaxError, OverflowError) as error:
            raise DataError(f"{place}: {error}; a row is {form}") from None


def sampled(rows: Sequence[T], limit: int, seed: int) -> list[T]:
    """Return `limit` random ones of the rows in their order; all of them if `limit` is 0 or there are no more."""
    if not 0 < limit < len(rows):
        return list(rows)
    return [rows[i] for i in np.sort(np.random.default_rng(seed).choice(len(rows), limit, replace=False))]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hex: the name under which data sheets list it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- pairs ------------------------------------------------------------------------------------------------------------


def read_pairs(path: Path, conversation: Callable[[list[Any]], tuple[Json, ...]] | None = None) -> list[LabelledPair]:
    """Return the pairs of a file. Raises DataError.

    `conversation` checks a list of messages and returns them, or raises ValueError; without it, lists are taken as they
    are.
    """
    return list(rows_of(path, partial(_pair, conversation or tuple), _PAIR))


def _pair(conversation: Callable[[list[Any]], tuple[Json, ...]], row: Json) -> LabelledPair:
    a, b = (_messages(row[name], name, conversation) for name in ("a", "b"))
    if not isinstance(same := row["same_answer"], bool):
        raise ValueError(f"same_answer is true or false, not {_shown(same)}")
    return LabelledPair(a, b, same, str(row.get("dataset", "")), str(row.get("group", "")))


def _messages(value: object, name: str, conversation: Callable[[list[Any]], tuple[Json, ...]]) -> Messages:
    if isinstance(value, str):
        return whole_text(value, name)
    if not isinstance(value, list):
        raise ValueError(f"{name} is a question or a list of messages, not {_shown(value)}")
    try:
        return conversation(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def whole_text(text: str, name: str) -> str:
    """Return the text. Raises ValueError for a lone surrogate, which JSON can hold and no tokenizer accepts."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} holds a lone surrogate, which is half a character") from None
    return text


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# --- prompts ----------------------------------------------------------------------------------------------------------


def read_rows(path: Path) -> list[LabelledRow]:
    """Return the prompts of a file with every model's answer. Raises DataError."""
    return list(rows_of(path, _row, _PROMPT))


def read_labelled(
    paths: Sequence[Path],
    small: Sequence[str],
    large: Sequence[str],
    middle: Sequence[Sequence[str]] = (),
    at_most: int | None = None,
    seed: int = 0,
) -> LabelledPrompts:
    """Return the prompts that the models of all tiers answered. Raises DataError.

    `small`, `large` and each of `middle` list alternative model names, of which the first in a file is used. Of a file
    with more than `at_most` prompts so many are drawn at random.
    """
    read = LabelledPrompts([], [])
    for path in paths:
        rows = read_rows(path)
        try:
            ladder = choose_ladder(rows, small, middle, large)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        some = list(label(rows, *ladder))
        if not some:
            raise DataError(f"{path}: no prompt was answered by all of {', '.join(ladder)}")
        if at_most is not None and len(some) > at_most:
            drawn = np.random.default_rng(seed).permutation(len(some))[:at_most]
            some = [some[row] for row in np.sort(drawn).tolist()]
        read.examples.extend(some)
        between = {"middle": list(ladder[1:-1])} if middle else {}
        tiers = {"small": ladder[0], **between, "large": ladder[-1]}
        read.sources.append({"file": path.name, "sha256": file_digest(path), "rows": len(some), **tiers})
    return read


def read_answers(paths: Sequence[Path], model: str) -> tuple[list[tuple[str, str, LabelledAnswer]], list[Json]]:
    """Return all answers of a model, each behind its prompt and data set, and what is known of each file.

    That is its name, SHA-256, number of answers and share right. Raises DataError.
    """
    answers: list[tuple[str, str, LabelledAnswer]] = []
    sources: list[Json] = []
    for path in paths:
        rows = read_rows(path)
        some = [(row.prompt, row.dataset, row.answers[model]) for row in rows if model in row.answers]
        if not some:
            models = sorted({name for row in rows for name in row.answers})
            raise DataError(f"{path}: no answer of {model}; it has those of {', '.join(models) or 'no model'}")
        right = round(sum(answer.correct for *_, answer in some) / len(some), 4)
        sources.append({"file": path.name, "sha256": file_digest(path), "answers": len(some), "right": right})
        answers += some
    return answers, sources


def _row(row: Json) -> LabelledRow:
    if not isinstance(text := row["prompt"], str):
        raise ValueError(f"prompt is a text, not {_shown(text)}")
    if not isinstance(models := row["models"], dict) or not all(isinstance(model, dict) for model in models.values()):
        raise ValueError(f"models is an object of objects, not {_shown(models)}")
    answers = {name: _answer(model) for name, model in models.items()}
    prompt = whole_text(unwrapped(text), "prompt")
    kind = str(row.get("kind", ""))
    return LabelledRow(str(row["id"]), str(row["dataset"]), str(row["group"]), prompt, answers, kind)


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
        judge=_maybe(_share, model.get("judge")),
        scorer=_maybe(_share, model.get("scorer")),
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
    return _named(small, models, "small") or by_skill[0], _named(large, models, "large") or by_skill[-1]


def choose_ladder(
    rows: Sequence[LabelledRow], small: Sequence[str], middle: Sequence[Sequence[str]], large: Sequence[str]
) -> tuple[str, ...]:
    """Return the models of these rows to use as tiers, cheapest first.

    They are the pair of `choose_pair` and, between them, for each entry of `middle` the first of its names that occurs.
    Raises DataError if no name occurs or two tiers are the same model.
    """
    cheapest, strongest = choose_pair(rows, small, large)
    models = sorted({name for row in rows for name in row.answers})
    ladder = (cheapest, *filter(None, (_named(names, models, "middle") for names in middle)), strongest)
    for name in ladder:
        if ladder.count(name) > 1:
            raise DataError(f"two tiers are {name}, of {', '.join(ladder)}; name another model for one of them")
    return ladder


def _named(names: Sequence[str], models: Sequence[str], role: str) -> str | None:
    if not names:
        return None
    for name in names:
        if name in models or all(word in models for word in name.split("+")):
            return name
    there = ", ".join(models)
    raise DataError(f"none of {', '.join(names)} is among the models of the file: {there}; name one by --{role}")


def label(rows: Sequence[LabelledRow], *models: str) -> Iterator[Example]:
    """Yield the rows that all these models answered as examples; give at least two models, cheapest first.

    A class of models, `A+B+C`, is as right as those of them that answered are on average.
    """
    for row in rows:
        answers = [_answer_of(name, row) for name in models]
        if None not in answers:
            yield Example(row.prompt, row.dataset, row.group, tuple(filter(None, answers)), row.kind)


def _answer_of(name: str, row: LabelledRow) -> LabelledAnswer | None:
    """Return the answer of a model, or of a class of models (`A+B`) the mean correctness of those that answered."""
    if name in row.answers:
        return row.answers[name]
    some = [row.answers[word].correct for word in name.split("+") if word in row.answers]
    return LabelledAnswer(math.fsum(some) / len(some)) if some else None


def without_choices(prompt: str) -> str | None:
    """Return a multiple-choice prompt's question without its choices; None if there are none, or it is too short."""
    match = _FIRST_CHOICE.search(prompt)
    return prompt[: match.start()] if match and match.start() >= _SHORTEST_QUESTION else None
