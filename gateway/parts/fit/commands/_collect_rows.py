"""Read and write the files of `tierline fit collect`: prompts with accepted answers, and the labelled rows.

    {"id", "dataset", "group", "prompt", "answers": [...], "grade": "choice" | "number" | "text" | "yes_no"}

`dataset` defaults to the file's name and `group` to the data set. Rows of labelled prompts (gateway.parts.fit.datasets)
are accepted too, and keep their `models`. The accepted answers may be in a file of their own, as {"id", "answers",
"grade"}.

Each row is appended to OUT.part, an uncompressed file, as soon as it is made, so that an interrupted run loses only the
answers in flight. OUT is written once, at the end.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.parts.fit.datasets import DataError, Json, json_objects, unwrapped, whole_text
from gateway.parts.fit.grading import RULES


@dataclass(frozen=True, slots=True)
class CollectTask:
    """A prompt to ask, the accepted answers, and the rule (`grade`) by which answers are compared with them."""

    id: str
    dataset: str
    group: str
    prompt: str
    accepted: tuple[str, ...]
    grade: str
    models: Mapping[str, Any]
    """Answers of other models, from the row that the prompt was read from."""

    def row(self, model: str, answer: Mapping[str, Any]) -> Json:
        """Return the labelled row. It includes the accepted answers, so that it can be another model's prompt."""
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
    """Return the prompts with accepted answers, and the number of those without. Raises DataError."""
    accepted = {} if answers is None else {str(row.get("id")): (place, row) for place, row in json_objects(answers)}
    tasks: dict[str, CollectTask] = {}
    ungraded = 0
    for place, row in json_objects(prompts):
        gold_place, gold = accepted.get(str(row.get("id")), (place, row))
        if "answers" not in gold:
            ungraded += 1
            continue
        task = _task({"dataset": prompts.name.split(".")[0], **row}, place, *_gold(gold, gold_place))
        if task.id in tasks:
            raise DataError(f"{place}: the id {task.id!r} occurs twice")
        tasks[task.id] = task
    if not tasks:
        raise DataError(f"{prompts}: no prompt has accepted `answers`; --answers names a file with them")
    return list(tasks.values()), ungraded


def _task(row: Json, place: str, rule: str, right: tuple[str, ...]) -> CollectTask:
    try:
        prompt = whole_text(unwrapped(row["prompt"]), "prompt")
        group = str(row.get("group", row["dataset"]))
        return CollectTask(str(row["id"]), str(row["dataset"]), group, prompt, right, rule, row.get("models", {}))
    except (KeyError, AttributeError, ValueError, SyntaxError) as error:
        raise DataError(f"{place}: not a prompt: {type(error).__name__}: {error}") from None


def _gold(row: Json, place: str) -> tuple[str, tuple[str, ...]]:
    rule, right = row.get("grade"), row["answers"]
    if not isinstance(rule, str) or rule not in RULES:
        raise DataError(f"{place}: grade is {rule!r}; it may be {', '.join(RULES)}")
    if not isinstance(right, list) or not right or not all(isinstance(text, str | int | float) for text in right):
        raise DataError(f"{place}: answers must be a list of the accepted answers, at least one")
    return rule, tuple(map(str, right))


@dataclass(slots=True)
class Labels:
    """Hold the rows of one model by id: those of OUT and OUT.part, and each new one, written to disk at once."""

    out: Path
    model: str
    rows: dict[str, Json] = field(default_factory=dict)

    @classmethod
    def open(cls, out: Path, model: str, *, resume: bool) -> Labels:
        """Open the output, with `resume` the rows of an earlier run. Raises DataError if files exist without it."""
        labels = cls(out, model)
        for file in (out, labels.part):
            if not file.exists() or not file.stat().st_size:
                continue
            if not resume:
                raise DataError(f"{file} exists already: continue it with --resume, or name another --out")
            labels.rows |= {str(row.get("id")): row for _, row in json_objects(file, skip_broken=file == labels.part)}
        out.parent.mkdir(parents=True, exist_ok=True)
        with labels.part.open("ab") as part:
            # End a line that a killed run left incomplete, so that the next row starts a line of its own.
            part.write(b"\n" * bool(part.tell()))
        return labels

    @property
    def part(self) -> Path:
        """The file with the rows made so far, during a run."""
        return self.out.with_name(f"{self.out.name}.part")

    def missing(self, tasks: Iterable[CollectTask]) -> list[CollectTask]:
        """Return the tasks that the model has not answered yet. Raises DataError if a stored prompt differs."""
        missing = []
        for task in tasks:
            row = self.rows.get(task.id)
            if row is not None and row.get("prompt") != task.prompt:
                raise DataError(f"{self.out} has another prompt as {task.id!r}: it was made from another file")
            if row is None or self.model not in row.get("models", {}):
                missing.append(task)
        return missing

    def add(self, task: CollectTask, answer: Mapping[str, Any]) -> None:
        """Add an answer, and append its row to OUT.part."""
        row = task.row(self.model, answer)
        if earlier := self.rows.get(task.id):
            row["models"] = {**earlier.get("models", {}), **row["models"]}
        self.rows[task.id] = row
        with self.part.open("ab") as file:
            file.write(_dumped(row))

    def finish(self, tasks: Iterable[CollectTask]) -> None:
        """Write OUT atomically, in the order of the tasks, and remove OUT.part."""
        order = dict.fromkeys([task.id for task in tasks if task.id in self.rows] + list(self.rows))
        body = b"".join(_dumped(self.rows[id_]) for id_ in order)
        draft = self.out.with_name(f".{self.out.name}.{os.getpid()}")
        draft.write_bytes(gzip.compress(body, mtime=0) if self.out.suffix == ".gz" else body)
        draft.replace(self.out)
        self.part.unlink(missing_ok=True)


def _dumped(row: Json) -> bytes:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
