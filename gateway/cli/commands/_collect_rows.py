"""The files of `tierline collect`: prompts with what is accepted as right, and the labelled rows made of them.

    {"id", "dataset", "group", "prompt", "answers": [...], "grade": "choice" | "number" | "text" | "yes_no"}

`dataset` is the file's name and `group` the data set if they are left out. Rows of labelled prompts
(routing.offline.dataset) will do, with their `models` kept; what is accepted may stand in a file of its own, as {"id",
"answers", "grade"}.

A row is appended to OUT.part, a plain file, as soon as it is made: an interrupted run loses the answers in flight and
no other. OUT is written once, whole, at the end.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from routing.offline.dataset import DataError, unwrapped
from routing.offline.grading import RULES

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CollectTask:
    """A prompt to ask, and the answers that are accepted as right by the rule `grade`."""

    id: str
    dataset: str
    group: str
    prompt: str
    accepted: tuple[str, ...]
    grade: str
    models: Mapping[str, Any]
    """How other models did, as their row says it."""

    def row(self, model: str, answer: Mapping[str, Any]) -> Json:
        """The labelled row. It says what was accepted, so that it can be the prompt of the next model."""
        return {
            "id": self.id,
            "dataset": self.dataset,
            "group": self.group,
            "prompt": self.prompt,
            "answers": list(self.accepted),
            "grade": self.grade,
            "models": {**self.models, model: dict(answer)},
        }


def read_tasks(prompts: Path, answers: Path | None) -> tuple[list[CollectTask], int]:
    """The prompts that can be graded, and how many cannot: nothing says what is right. Raises DataError."""
    accepted = {} if answers is None else {str(row.get("id")): (place, row) for place, row in _lines(answers)}
    tasks: dict[str, CollectTask] = {}
    ungraded = 0
    for place, row in _lines(prompts):
        said_at, gold = accepted.get(str(row.get("id")), (place, row))
        if "answers" not in gold:
            ungraded += 1
            continue
        task = _task({"dataset": prompts.name.split(".")[0], **row}, place, *_gold(gold, said_at))
        if task.id in tasks:
            raise DataError(f"{place}: the id {task.id!r} is there twice")
        tasks[task.id] = task
    if not tasks:
        raise DataError(
            f"{prompts}: no prompt has `answers` that are accepted as right; --answers names a file of them"
        )
    return list(tasks.values()), ungraded


def _task(row: Json, place: str, rule: str, right: tuple[str, ...]) -> CollectTask:
    try:
        prompt = unwrapped(row["prompt"])
        prompt.encode()  # JSON can spell half a character, which no request can carry
        group = str(row.get("group", row["dataset"]))
        return CollectTask(str(row["id"]), str(row["dataset"]), group, prompt, right, rule, row.get("models", {}))
    except (KeyError, AttributeError, ValueError, SyntaxError) as error:
        raise DataError(f"{place}: not a prompt: {type(error).__name__}: {error}") from None


def _gold(row: Json, place: str) -> tuple[str, tuple[str, ...]]:
    rule, right = row.get("grade"), row["answers"]
    if not isinstance(rule, str) or rule not in RULES:
        raise DataError(f"{place}: grade is {rule!r}; it may be {', '.join(RULES)}")
    if not isinstance(right, list) or not right or not all(isinstance(one, str | int | float) for one in right):
        raise DataError(f"{place}: answers is a list of the answers accepted as right, at least one")
    return rule, tuple(map(str, right))


@dataclass(slots=True)
class Labels:
    """The rows that one model has, by id: those of OUT and OUT.part, and each new one, kept at once."""

    out: Path
    model: str
    rows: dict[str, Json] = field(default_factory=dict)

    @classmethod
    def open(cls, out: Path, model: str, *, resume: bool) -> Labels:
        """Those of an earlier run if it is to go on. Raises DataError where one is in the way."""
        labels = cls(out, model)
        for file in (out, labels.part):
            if not file.exists() or not file.stat().st_size:
                continue
            if not resume:
                raise DataError(f"{file} is there already: --resume goes on with it, another --out begins anew")
            labels.rows |= {str(row.get("id")): row for _, row in _lines(file, torn_end=file == labels.part)}
        out.parent.mkdir(parents=True, exist_ok=True)
        with labels.part.open("ab") as part:
            # A line that a killed run left torn is ended, for the next to be one of its own.
            part.write(b"\n" * bool(part.tell()))
        return labels

    @property
    def part(self) -> Path:
        """What is made so far, while under way."""
        return self.out.with_name(f"{self.out.name}.part")

    def missing(self, tasks: Iterable[CollectTask]) -> list[CollectTask]:
        """The tasks that the model has not answered yet. Raises DataError when a prompt of them is another by now."""
        found = []
        for task in tasks:
            row = self.rows.get(task.id)
            if row is not None and row.get("prompt") != task.prompt:
                raise DataError(f"{self.out} has another prompt as {task.id!r}: it was made of another file")
            if row is None or self.model not in row.get("models", {}):
                found.append(task)
        return found

    def add(self, task: CollectTask, answer: Mapping[str, Any]) -> None:
        """Keeps an answer, on disk too."""
        row = task.row(self.model, answer)
        if earlier := self.rows.get(task.id):
            row["models"] = {**earlier.get("models", {}), **row["models"]}
        self.rows[task.id] = row
        with self.part.open("ab") as file:
            file.write(_dumped(row))

    def finish(self, tasks: Iterable[CollectTask]) -> None:
        """Writes OUT, in the order of the tasks, whole or not at all."""
        order = dict.fromkeys([task.id for task in tasks if task.id in self.rows] + list(self.rows))
        body = b"".join(_dumped(self.rows[id_]) for id_ in order)
        draft = self.out.with_name(f".{self.out.name}.{os.getpid()}")
        draft.write_bytes(gzip.compress(body, mtime=0) if self.out.suffix == ".gz" else body)
        draft.replace(self.out)
        self.part.unlink(missing_ok=True)


def _dumped(row: Json) -> bytes:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _lines(path: Path, *, torn_end: bool = False) -> Iterator[tuple[str, Json]]:
    """(file:line, the object) for each line. With `torn_end` a line that is cut short is left out."""
    try:
        body = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: {error}") from None
    for number, line in enumerate(body.splitlines(), start=1):
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError as error:
            if torn_end:
                continue
            raise DataError(f"{path}:{number}: not JSON: {error}") from None
        if isinstance(row, dict):
            yield f"{path}:{number}", row
        elif row is not None:
            raise DataError(f"{path}:{number}: not an object")
