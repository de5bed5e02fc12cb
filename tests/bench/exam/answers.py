"""Compare the exam's answers as the audit of the cache does, and count how often opposite ones are called the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from gateway.parts.hit_audits.comparison import AnswerComparer
from gateway.report import OnProgress, table
from tests.bench.exam.questions import FOLDER, read_data, reworded
from tools.cache_stages import Figure, share_shown


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """Two answers to a question, and whether they say the same. `kind`: how they differ, or would."""

    question: str
    one: str
    other: str
    same: bool
    language: str
    kind: str


def answer_pairs(languages: frozenset[str] = frozenset()) -> list[AnswerPair]:
    """Return the pairs in these languages; in all languages where none is named."""
    return [
        AnswerPair(question, pair.a, pair.b, pair.same, group["language"], group["kind"])
        for group in read_data(FOLDER / "answers.toml")["group"]
        if not languages or group["language"] in languages
        for question, *row in group["rows"]
        for pair in reworded(group["language"], row, "", "")
    ]


def compared(
    pairs: Sequence[AnswerPair], comparer: AnswerComparer, on_progress: OnProgress
) -> tuple[dict[str, Any], list[str | Table]]:
    """Return the shares by language and by kind, as JSON values and as tables."""
    verdicts = []
    for done, pair in enumerate(pairs):
        if done % 20 == 0:
            on_progress("comparing answers", done, len(pairs))
        verdicts.append(comparer.compare(pair.one, pair.other, pair.question))
    on_progress("comparing answers", len(pairs), len(pairs))
    values: dict[str, Any] = {}
    tables: list[str | Table] = []
    for by in ("language", "kind"):
        shown = table(f"answers by {by}", "others", "called same", "unknown", "same", "called different", "unknown ")
        names = [str(getattr(pair, by)) for pair in pairs]
        values[by] = {}
        for name in [*dict.fromkeys(names), "all"]:
            own = [row for row, one in enumerate(names) if name in (one, "all")]
            figures = _figures([(pairs[row].same, verdicts[row]) for row in own])
            values[by][name] = {key: figure.as_json() for key, figure in figures.items()}
            wrong, open_, lost, quiet = figures.values()
            shown.add_row(name, f"{wrong.n:,}", str(wrong), str(open_), f"{lost.n:,}", str(lost), str(quiet))
        tables += [shown, ""]
    return values, tables


def _figures(rows: Sequence[tuple[bool, str]]) -> Mapping[str, Figure]:
    counted, same = Counter(rows), sum(same for same, _ in rows)
    return {
        "others_called_same": share_shown(counted[False, "same"], len(rows) - same),
        "others_unknown": share_shown(counted[False, "unknown"], len(rows) - same),
        "same_called_different": share_shown(counted[True, "different"], same),
        "same_unknown": share_shown(counted[True, "unknown"], same),
    }
