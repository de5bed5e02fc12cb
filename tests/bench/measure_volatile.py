"""Measure how often the head of `volatile` is wrong: `python -m tests.bench.measure_volatile`.

On the texts of the exam (`volatile/exam`), which neither fit nor choose anything: the share of those whose answer
changes with time that is kept all the same, the share of the others that is barred, and of both the share in doubt. On
`--questions`, which have no labels: the share that is barred, with a sample of them to read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from cache.planning.volatile import ARTEFACT, VolatileHead
from gateway.cli.flags import add_json_flag, whole
from gateway.parts.fit.datasets import DataError, json_objects
from gateway.parts.fit.flags import add_seed_flag
from gateway.parts.measures.intervals import wilson
from gateway.report import WIDE, OnProgress, Report, table
from tools import command
from tools.volatile_texts import EXAM, LabelledText, filled_texts

_FIELDS = ("prompt", "a", "b")
"""Fields of a row that hold a question."""
_TOLD: Final = ("volatile, stable", "volatile, doubtful", "others, volatile", "others, doubtful")
_COUNTED: Final = ("volatile", "others", *_TOLD, "volatile, volatile", "others, stable")


def told_by_language(head: VolatileHead, texts: Sequence[LabelledText]) -> dict[str, dict[str, int]]:
    """Return, for all and for each language, how many texts are volatile and how many not (`others`), and how many of
    each the head takes for stable, for volatile or for neither.
    """
    counts: dict[str, dict[str, int]] = {}
    for one in texts:
        score = head.score(one.text)
        told = "stable" if score < head.doubt else "doubtful" if score < head.threshold else "volatile"
        label = "volatile" if one.is_volatile else "others"
        for name in ("all", one.language):
            row = counts.setdefault(name, dict.fromkeys(_COUNTED, 0))
            row[label] += 1
            row[f"{label}, {told}"] += 1
    return counts


def questions_in(path: Path) -> Iterator[str]:
    """Yield the distinct questions in a file of JSON lines: the fields `prompt`, `a` and `b`. Raises DataError."""
    seen = set[str]()
    for _, row in json_objects(path):
        for name in _FIELDS:
            text = row.get(name)
            if isinstance(text, str) and text not in seen:
                seen.add(text)
                yield text
    if not seen:
        raise DataError(f"{path}: no row has a text in {', '.join(_FIELDS)}")


def share(count: int, n: int) -> str:
    """Return a share with its 95% interval, as people read it."""
    if n == 0:
        return "-"
    low, high = wilson(count / n, n)
    return f"{count / n:.1%} [{low * 100:.1f}, {high * 100:.1f}]"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the head and print the shares by language and by file."""
    parser = command.parser("measure_volatile", "tests.bench")
    parser.add_argument("--head", type=Path, default=ARTEFACT, metavar="DIR")
    parser.add_argument("--exam", type=Path, default=EXAM, metavar="DIR")
    parser.add_argument("--questions", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument("--sample", type=whole(0), default=0, metavar="N")
    add_seed_flag(parser)
    add_json_flag(parser, "a table")

    def work(args: argparse.Namespace, on_progress: OnProgress) -> Report:
        head = VolatileHead.load(args.head)
        exam = told_by_language(head, filled_texts(args.exam, 1, args.seed))
        made = table("language", "volatile, n", "kept", "in doubt", "not volatile, n", "barred", "in doubt")
        for name, row in sorted(exam.items()):
            kept, doubtful, barred, others = (share(row[told], row[told.partition(",")[0]]) for told in _TOLD)
            made.add_row(name, str(row["volatile"]), kept, doubtful, str(row["others"]), barred, others)
        values: dict[str, Any] = {"version": head.version, "exam": exam, "questions": {}}
        tables, done = [made], list[str]()
        by_file = table("file", "questions", "barred")
        for number, path in enumerate(args.questions):
            questions = list(questions_in(path))
            found = [text for text in questions if head.score(text) >= head.threshold]
            on_progress("reading", number + 1, len(args.questions))
            by_file.add_row(path.name, str(len(questions)), share(len(found), len(questions)))
            drawn = Random(args.seed).sample(found, min(args.sample, len(found)))
            values["questions"][path.name] = {"n": len(questions), "barred": len(found), "sample": drawn}
            done += [f"{path.name}: {text[:160]!r}" for text in drawn]
        if args.questions:
            tables.append(by_file)
        return Report(values, tables, title=f"head {head.version}", done=done, width=WIDE)

    return command.run(parser, work, argv)


if __name__ == "__main__":
    sys.exit(main())
