"""Have a model judge the answers that labelled rows hold already: `tierline fit collect --judge`.

It is asked for one token, as a policy's `escalate.judge` is, and its P(yes) becomes the answer's `judge`, which `train
confidence` and `calibrate` read. Each word is appended to OUT.part at once; OUT, all rows with the words, is written at
the end.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.backends.base import InvalidReply
from gateway.parts.agents.verifying import ALTERNATIVES, judge_body, p_yes
from gateway.parts.fit.commands._collect_model import Respondent
from gateway.parts.fit.datasets import DataError, Json, json_objects, read_rows, sampled, unwrapped
from routing.confidence.judge import Evidence


@dataclass(frozen=True, slots=True)
class AnswerToJudge:
    """An answer of `model` to the prompt of a row, by the row's place in the file."""

    id: str
    row: int
    model: str
    prompt: str
    text: str


class JudgingRespondent(Respondent):
    """Ask a model whether answers are good enough."""

    async def _answer(self, task: Any) -> Json:
        """Return P(yes). Raises BackendError."""
        body = judge_body([{"role": "user", "content": task.prompt}], Evidence(task.text), alone=False)
        completion, _ = await self._complete({**body, "logprobs": True, "top_logprobs": ALTERNATIVES})
        said = p_yes(completion.value)
        if said is None:
            raise InvalidReply("it said neither yes nor no, or not how surely")
        return {"judge": round(said, 9)}


class JudgedRows:
    """Rows with answers, and what a judge says of these."""

    def __init__(self, rows: Sequence[Json], part: Path, out: Path) -> None:
        self._rows = rows
        self._part = part
        self._out = out

    @classmethod
    def open(cls, prompts: Path, out: Path, *, resume: bool) -> JudgedRows:
        """Read the rows, and with `resume` the words of an earlier run. Raises DataError."""
        read_rows(prompts)  # which says what is no row
        rows = [row for _, row in json_objects(prompts)]
        part = out.with_name(f"{out.name}.part")
        if out.exists() or (part.exists() and not resume):
            raise DataError(f"{out} or {part.name} exists already: continue it with --resume, or name another --out")
        try:
            for _, word in json_objects(part, skip_broken=True) if part.exists() else ():
                rows[word["row"]]["models"][word["model"]]["judge"] = word["judge"]
        except (LookupError, TypeError):
            raise DataError(f"{part} is of other prompts; remove it, or name another --out") from None
        out.parent.mkdir(parents=True, exist_ok=True)
        return cls(rows, part, out)

    def missing(self, limit: int | None, of: Collection[str]) -> list[AnswerToJudge]:
        """Return the answers that the judge has not judged yet, of the models in `of`, or of all if it is empty.

        They are those of `limit` random prompts of each data set; None takes all prompts.
        """
        by_set: dict[str, list[int]] = {}
        for at, row in enumerate(self._rows):
            by_set.setdefault(str(row.get("dataset", "")), []).append(at)
        chosen = [at for some in by_set.values() for at in sampled(some, limit or 0, 0)]
        return [
            AnswerToJudge(f"{self._rows[at].get('id')} of {model}", at, model, unwrapped(prompt), answer["answer"])
            for at in chosen
            if isinstance(prompt := self._rows[at].get("prompt"), str)
            for model, answer in (self._rows[at].get("models") or {}).items()
            if isinstance(text := answer.get("answer"), str) and text and "judge" not in answer
            if not of or model in of
        ]

    def add(self, task: AnswerToJudge, word: Mapping[str, Any]) -> None:
        """Add a word, and append it to OUT.part."""
        self._rows[task.row]["models"][task.model].update(word)
        with self._part.open("ab") as file:
            file.write(json.dumps({"row": task.row, "model": task.model, **word}).encode() + b"\n")

    def finish(self) -> int:
        """Write OUT atomically, and remove OUT.part; return how many answers have a word."""
        body = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in self._rows)
        draft = self._out.with_name(f".{self._out.name}.{os.getpid()}")
        draft.write_bytes(gzip.compress(body, mtime=0) if self._out.suffix == ".gz" else body)
        draft.replace(self._out)
        self._part.unlink(missing_ok=True)
        return sum("judge" in answer for row in self._rows for answer in (row.get("models") or {}).values())
