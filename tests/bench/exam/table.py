"""Put the exam's main figures beside their targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from rich.table import Table

from gateway.parts.fit.curves import Flags
from gateway.report import table
from tests.bench.exam.pair_cost import PairCost
from tests.bench.exam.questions import ExamPair
from tests.bench.exam.scope import ScopeFigures
from tools.cache_stages import Figure, share_shown

MIXED: Final = ("en", "ar", "de", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "ru", "zh")
"""The languages of the mixed exam: English and the twelve that have every part but `english`."""
MIXED_PARTS: Final = ("english", "rewordings", "words")
NEEDED: Final = (*MIXED_PARTS, "scope", "recall", "volatile")
"""The parts whose figures the table has."""
_SETS: Final = {"semanticmemo": (75, 74), "checklist_qqp": (82, 80), "fow": (47, 48)}
"""Percent served of the public sets that are named with --pairs: when the targets were set, and the target."""


class Answered(NamedTuple):
    """The pairs of a part, and whether the cache serves each, shape (pairs,)."""

    pairs: Sequence[ExamPair]
    out: Flags


@dataclass(frozen=True, slots=True)
class Line:
    """One figure beside its `target` in percent, or as a ratio; `then` is what it was when the target was set."""

    what: str
    value: float | None
    shown: str
    then: str
    target: float | None
    at_least: bool = False
    n: int = 0

    @property
    def met(self) -> bool | None:
        """Whether the figure itself reaches its target; None where one of the two is not there."""
        if self.value is None or self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target

    def as_json(self) -> dict[str, Any]:
        """Return the line as JSON values."""
        return {
            "what": self.what, "value": self.value, "shown": self.shown, "then": self.then, "target": self.target,
            "at_least": self.at_least, "n": self.n, "met": self.met,
        }  # fmt: skip


def lines_of(
    answered: Mapping[str, Answered], values: Mapping[str, Any], scope: ScopeFigures | None, cost: PairCost | None
) -> list[Line]:
    """Return the lines for which there are figures: `values` are the exam's, by part."""
    lines = list(_pairs(answered))
    if scope is not None:
        lines += [
            _share("traps served end to end, English", scope.wrong, "3.2", 1.2),
            _share("rewordings served end to end, English", scope.served, "-", None, at_least=True),
            _share("rewordings given another question's answer, English", scope.mistaken, "-", None),
            Line("pairs judged for a hit", scope.judged_mean, f"{scope.judged_mean:.2f}, p95 {scope.judged_p95:.0f}",
                 "-", None),
        ]  # fmt: skip
    lines += _recall(values.get("recall", {}))
    lines += _volatile(values.get("volatile", {}))
    for name, of in values.get("unselected", {}).get("language", {}).items():
        then, target = _SETS.get(name, (None, None))
        lines.append(_of(f"{name}: served", of["served"], "-" if then is None else str(then), target, at_least=True))
        lines.append(_of(f"{name}: wrong", of["wrong"], "-", None))
    if cost is not None:
        lines.append(
            Line(
                f"CPU per pair judged, beside {cost.base}", cost.ratio,
                f"{cost.ratio:.2f} [{cost.least:.2f}, {cost.most:.2f}] ({cost.ms:.2f} ms, {cost.base_ms:.2f} ms)",
                "1.00", 0.7, n=cost.pairs,
            )
        )  # fmt: skip
    return lines


def _pairs(answered: Mapping[str, Answered]) -> Iterator[Line]:
    of = [answered[part] for part in MIXED_PARTS if part in answered]
    rows = [(pair, hit) for each in of for pair, hit in zip(each.pairs, each.out.tolist(), strict=True)]
    rows = [(pair, hit) for pair, hit in rows if pair.language in MIXED]
    if not rows:
        return
    hits = np.array([hit for _, hit in rows])
    same = np.array([pair.same for pair, _ in rows])
    english = np.array([pair.language == "en" for pair, _ in rows])
    yield _share("mixed, 13 languages: rewordings served", _among(hits, same), "28.2", 40, at_least=True)
    yield _share("mixed: English traps served", _among(hits, ~same & english), "2.3", 0.9)
    yield _share("mixed: traps of other languages served", _among(hits, ~same & ~english), "0", 0.5)
    yield _share("English pairs: rewordings served", _among(hits, same & english), "-", None, at_least=True)
    yield _share("twelve other languages: rewordings served", _among(hits, same & ~english), "19.5", 38, at_least=True)
    yield _share("twelve other languages: traps served", _among(hits, ~same & ~english), "0", 0.8)


def _among(hits: Flags, rows: Flags) -> Figure:
    return share_shown(int((hits & rows).sum()), int(rows.sum()))


def _share(what: str, figure: Figure, then: str, target: float | None, *, at_least: bool = False) -> Line:
    value = None if figure.value is None else round(100 * figure.value, 2)
    return Line(what, value, str(figure), then, target, at_least, figure.n)


def _of(what: str, of: Mapping[str, Any], then: str, target: float | None, *, at_least: bool = False) -> Line:
    figure = Figure(of["value"], of["lo"], of["hi"], int(of["n"]))
    return _share(what, figure, then, target, at_least=at_least)


def _recall(values: Mapping[str, Any]) -> Iterator[Line]:
    if "en" in values:
        yield _of("right neighbour handed on: English", values["en"]["handed_on"], "70", 80, at_least=True)
    others = {language: of["handed_on"] for language, of in values.items() if language != "en" and language in MIXED}
    if not others:
        return
    count, n = (sum(int(each) for each in column) for column in zip(
        *((round((of["value"] or 0) * of["n"]), of["n"]) for of in others.values()), strict=True))  # fmt: skip
    yield _share("right neighbour handed on: others", share_shown(count, n), "36-59", 70, at_least=True)
    worst = min(others, key=lambda language: others[language]["value"] or 0.0)
    yield _of(f"right neighbour handed on: least, {worst}", others[worst], "36", 70, at_least=True)


def _volatile(values: Mapping[str, Any]) -> Iterator[Line]:
    if not values:
        return
    every = values["language"]["all"]
    yield _of("stable texts barred", every["barred, stay"], "9.1", 4)
    groups = {name: of["barred, stay"] for by in ("language", "kind") for name, of in values[by].items()}
    worst = max(groups, key=lambda name: groups[name]["value"] or 0.0)
    yield _of(f"stable texts barred: most, {worst}", groups[worst], "40", 8)
    yield _of("volatile texts passed", every["kept, change"], "9.2", 10)


def shown_lines(lines: Sequence[Line]) -> Table:
    """Return the table: each figure with its interval, what it was, its target, and whether the figure reaches it."""
    shown = table("hits: figures beside their targets", "figure", "of", "when set", "target", "reached")
    for line in lines:
        target = "-" if line.target is None else f"{'>=' if line.at_least else '<='} {line.target:g}"
        reached = {None: "-", True: "yes", False: "no"}[line.met]
        shown.add_row(line.what, line.shown, f"{line.n:,}" if line.n else "-", line.then, target, reached)
    return shown
