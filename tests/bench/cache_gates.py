"""Count what each gate of the semantic cache stops, over labelled pairs: `python -m tests.bench.measure_cache --gates`.

A gate is a rule that refuses whatever the score is: a rule of eligibility (`cache.planning.eligibility`), the minimum
cosine, a veto (`cache.text.pair_features`), and where a cross-encoder decides, the verifier's plain no. All are
applied to each pair, not only the first that holds. A gate is worth its place where it alone stops pairs that differ,
and few that want the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from cache.planning.eligibility import _RULES, LONGEST_QUESTION, _words_of
from cache.text.guards import RULES, Where
from cache.text.normalized_question import NormalizedQuestion, gist
from cache.text.pair_features import leftover
from gateway.parts.fit.curves import Flags
from gateway.report import table

NOT_PARSED = "veto: wording: empty"
SIMILARITY = "similarity"
PLAIN = "verifier: plainly another question"


@dataclass(frozen=True, slots=True)
class GateCount:
    """Pairs that one gate stops, by whether they want the same answer; `alone`: they would be served without it."""

    same: int
    same_alone: int
    different: int
    different_alone: int


def gates_of(stored: str, asked: str, cosine: float, min_similarity: float, *, screening: bool) -> frozenset[str]:
    """Return the names of all gates that stop this pair of questions.

    `screening`: a cross-encoder reads what is left; without one more vetoes hold.
    """
    gates = {f"eligibility: {reason}" for question in (stored, asked) for reason in every_reason(question)}
    if cosine < min_similarity:
        gates.add(SIMILARITY)
    where: Where = "screened" if screening else "alone"
    gates.update(f"veto: {name}" for name in every_refusal(gist(stored), gist(asked), where))
    return frozenset(gates)


def count_gates(gates: Sequence[frozenset[str]], passes: Flags, same: Flags) -> dict[str, GateCount]:
    """Return the counts of each gate. `passes`: whether a pair's score would serve it if no gate stopped it."""
    counted = {}
    for name in sorted({gate for stopped in gates for gate in stopped}):
        stops = np.array([name in stopped for stopped in gates])
        alone = np.array([stopped == {name} for stopped in gates]) & passes
        counted[name] = GateCount(
            int((stops & same).sum()),
            int((alone & same).sum()),
            int((stops & ~same).sum()),
            int((alone & ~same).sum()),
        )
    return counted


def table_of_gates(counted: dict[str, GateCount], gates: Sequence[frozenset[str]], same: Flags) -> Table:
    """Return the counts as a table, with all gates together in the last row."""
    shown = table("gate", "stops of the same", "and alone", "stops of the different", "and alone")
    for name, one in counted.items():
        shown.add_row(name, *map(str, (one.same, one.same_alone, one.different, one.different_alone)))
    stopped = np.array([bool(each) for each in gates])
    of_same, of_different = int((stopped & same).sum()), int((stopped & ~same).sum())
    shown.add_row("any", f"{of_same} of {same.sum()}", "", f"{of_different} of {(~same).sum()}", "")
    return shown


def every_reason(question: str) -> list[str]:
    """Return every rule that holds, as `reason` or `reason: rule`: for a report on what each is worth."""
    if len(question) > LONGEST_QUESTION:
        return ["long"]
    words = _words_of(question)
    return [f"{reason}: {rule}" if rule else reason for reason, rule, holds in _RULES if holds(words)]


def every_refusal(a: NormalizedQuestion, b: NormalizedQuestion, where: Where) -> list[str]:
    """Return every rule that refuses, as `guard: rule`: for a report on what each is worth."""
    rest = leftover(a, b)
    read_of: Mapping[str, tuple[Any, ...]] = {"question": (a, b), "leftover": (a, b, rest)}
    return [
        f"{rule.guard}: {rule.name}"
        for rule in RULES
        if where in rule.where and rule.reads in read_of and rule.conflict(*read_of[rule.reads])
    ]
