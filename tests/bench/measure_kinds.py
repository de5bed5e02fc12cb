"""Measure whether the shipped classifier tells kinds of requests by the task, in templates of exams never seen.

    python -m tests.bench.measure_kinds [--embedding minilm]

The exam is `tests/bench/kinds_exam.toml`: each task in every template, with the choices where the template has some.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from gateway.cli.flags import add_json_flag
from gateway.encoders import load_embedder
from gateway.parts.fit.figures import Interval
from gateway.parts.fit.flags import add_embedding_flag, add_state_flag
from gateway.parts.measures.intervals import wilson
from gateway.report import WIDE, OnProgress, Report, table
from routing.difficulty.model import DifficultyModel, shipped_artefact
from routing.features import features_of_text
from tools import command

EXAM: Final = Path(__file__).with_name("kinds_exam.toml")
_OF: Final = {"chosen": "choices"}
"""The kind of a part of the exam, where it is not its name."""


def texts(exam: dict[str, Any], part: str) -> Iterator[str]:
    """Yield the tasks of a part of the exam in its templates."""
    made_up = exam["options"].get(part, [])
    for number, task in enumerate(exam["tasks"][part], start=1):
        prompt, *choices = task.split(" | ")
        for at, template in enumerate(exam["templates"]):
            if choices and "{options}" not in template:
                continue
            some = choices or made_up[(number + at) % len(made_up)].split(" | ")
            lines = "\n".join(f"{letter}) {choice}" for letter, choice in zip("ABCD", some, strict=True))
            values = {"{number}": str(number), "{options}": lines, "{prompt}": prompt}
            text = template
            for name, value in values.items():
                text = text.replace(name, value)
            yield text


def main(argv: Sequence[str] | None = None) -> int:
    """Print what each part of the exam is taken for, and how much of it is claimed as the classifier's domain."""
    parser = command.parser("measure_kinds", "tests.bench")
    parser.add_argument("--classifier", type=Path, metavar="DIR")
    add_embedding_flag(parser)
    add_state_flag(parser)
    add_json_flag(parser, "a table")

    def work(args: argparse.Namespace, on_progress: OnProgress) -> Report:
        embedder = load_embedder(args.embedding, args.state)
        model = DifficultyModel.load(args.classifier or shipped_artefact(args.embedding), embedder)
        exam = tomllib.loads(EXAM.read_text(encoding="utf-8"))
        made = table("task", "texts", "taken for it", "taken for others", "called the domain")
        values: dict[str, Any] = {"version": model.version}
        for done, part in enumerate(exam["tasks"]):
            on_progress("judging", done, len(exam["tasks"]))
            asked, kind = list(texts(exam, part)), _OF.get(part, part)
            pairs = zip(embedder.embed(asked), asked, strict=True)
            rated = [model.assess(vector, features_of_text(text)) for vector, text in pairs]
            kinds = Counter(one.kind for one in rated)
            inside, n = sum(one.in_domain for one in rated), len(rated)
            shares = [Interval(count / n, *wilson(count / n, n)) for count in (kinds[kind], inside)]
            others = ", ".join(f"{name} {count}" for name, count in kinds.most_common() if name != kind)
            made.add_row(kind, str(n), str(shares[0]), others, str(shares[1]))
            values[kind] = {"n": n, "kinds": dict(kinds), "inside": inside}
        return Report(values, [made], title=f"kinds by classifier {model.version}", width=WIDE)

    return command.run(parser, work, argv)


if __name__ == "__main__":
    sys.exit(main())
