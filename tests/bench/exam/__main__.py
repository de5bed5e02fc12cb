"""Print what the semantic cache makes of the exam: `python -m tools.exam`."""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.table import Table

from cache.planning.eligibility import longest_kept
from cache.planning.plan import CachePlan
from gateway.cli.flags import add_json_flag, whole
from gateway.encoders import load_embedder
from gateway.parts.fit.curves import Flags
from gateway.parts.fit.datasets import DataError
from gateway.parts.fit.embedding import Remembered
from gateway.parts.fit.flags import add_embedding_flag, add_seed_flag, add_state_flag
from gateway.parts.hit_audits.comparison import ALIKE, AnswerComparer
from gateway.report import WIDE, OnProgress, Report, table
from policies.loader import SHIPPED
from tests.bench.exam.answers import answer_pairs, compared
from tests.bench.exam.desk import REQUESTS, desk_languages, run_desks
from tests.bench.exam.pair_cost import compare_pair_cost
from tests.bench.exam.public import unselected_pairs
from tests.bench.exam.questions import PARTS, ExamPair, languages_of, pairs_of, volatile_questions
from tests.bench.exam.recall import SCOPE, recalled
from tests.bench.exam.scope import ScopeFigures, figures_of, look_up, scope_questions, shown_scope
from tests.bench.exam.table import MIXED, NEEDED, Answered, lines_of, shown_lines
from tests.bench.measure_cache import CacheOptions, CacheUnderTest, PlannedRequests, load_cache, pair_cosines
from tools import command
from tools.cache_stages import score_pairs, served_of, share_shown

_ALL: Final = (*PARTS, "volatile", "answers", "desk", "recall", "scope", "table")
_COSTED: Final = 200
"""Pairs of each label whose cost is compared."""


@dataclass(frozen=True, slots=True)
class Examinee:
    """The cache under test, with the vectors and the plans of what it is asked."""

    cache: CacheUnderTest
    embedder: Remembered
    requests: PlannedRequests

    def serves(self, pairs: Sequence[ExamPair], on_progress: OnProgress) -> Flags:
        """Return whether the cache answers `b` with the answer to `a`, for each pair."""
        asked = [(self.requests.asked(pair.a), self.requests.asked(pair.b)) for pair in pairs]
        scores, _ = score_pairs(asked, pair_cosines(asked, self.embedder), self.cache.stages, on_progress)
        return scores >= self.cache.threshold


def examinee(args: argparse.Namespace, on_progress: OnProgress) -> Examinee:
    """Load what is examined. Raises as `evaluate_cache`."""
    options = CacheOptions(
        None, None, args.threshold, None, None, args.cross_encoder, args.policy, args.embedding, None, False,
        0, args.seed, args.state,
    )  # fmt: skip
    embedder = Remembered(load_embedder(args.embedding, args.state), on_progress)
    cache = load_cache(options, embedder.name)
    embedder.vectors = None if cache.cross_encoder is None else cache.cross_encoder.vectors
    return Examinee(cache, embedder, PlannedRequests(cache.policy, embedder, by_turns=cache.stages.candidates > 0))


def examine(args: argparse.Namespace, on_progress: OnProgress) -> Report:
    """Run the parts that were asked for."""
    parts = args.part or ([] if args.pairs else list(_ALL))
    languages = frozenset(filter(None, args.languages.split(",")))
    if unknown := languages.difference(*map(languages_of, PARTS)):
        raise DataError(f"--languages: the exam has no {', '.join(sorted(unknown))}; see --help")
    examined = examinee(args, on_progress)
    values: dict[str, Any] = {}
    lines: list[str | Table] = []
    cache, embedder = examined.cache, examined.embedder
    comparer = AnswerComparer(embedder.embed, cache.cross_encoder, alike=ALIKE[args.embedding])
    table_languages = languages or frozenset(MIXED)
    needed = {*parts, *NEEDED} if "table" in parts else {*parts}

    def languages_for(part: str) -> frozenset[str]:
        return languages if part in parts else table_languages

    def take(part: str, made: tuple[dict[str, Any], list[str | Table]]) -> None:
        values[part] = made[0]
        lines.extend(made[1] if part in parts else ())

    if "volatile" in needed:
        take("volatile", _volatile(examined.requests, languages, wrong=args.wrong))
    if "answers" in parts:
        take("answers", compared(answer_pairs(languages), comparer, on_progress))
    if "desk" in parts:
        desks = [one for one in desk_languages() if not languages or one in languages]
        count = args.limit or REQUESTS
        take("desk", run_desks(desks, count, args.seed, cache, examined.requests, embedder, comparer, on_progress))
    if "recall" in needed:
        reworded = [pair for part in ("english", "rewordings") for pair in pairs_of(part, languages_for("recall"))]
        reworded = _limited(reworded, args.limit, args.seed)
        take("recall", recalled(reworded, SCOPE, args.seed, cache, examined.requests, embedder, on_progress))
    scope: ScopeFigures | None = None
    if "scope" in needed and (not languages or "en" in languages):
        questions = scope_questions(args.limit, args.seed)
        looked = look_up(questions, cache, embedder, on_progress, args.seed)
        stored = sum(question.first for question in questions)
        scope = figures_of(looked, stored)
        take("scope", shown_scope(looked, stored, wrong=args.wrong))
    asked = {
        part: _limited(pairs_of(part, languages_for(part)), args.limit, args.seed) for part in PARTS if part in needed
    }
    if args.pairs:
        asked["unselected"] = unselected_pairs(args.pairs, args.limit, args.seed)
        parts.append("unselected")
    answered: dict[str, Answered] = {}
    for part, pairs in asked.items():
        if pairs:
            answered[part] = Answered(pairs, examined.serves(pairs, on_progress))
            take(part, _questions(part, pairs, answered[part].out, wrong=args.wrong))
    if "table" in parts:
        cost = compare_pair_cost(_costed(args.seed)) if args.cost else None
        rows = lines_of(answered, values, scope, cost)
        values["table"] = [row.as_json() for row in rows]
        lines += [shown_lines(rows), ""]
    return Report(values, lines, width=WIDE)


def _costed(seed: int) -> list[tuple[str, str]]:
    """Return pairs of questions in English, as many rewordings as traps, by which the cost of a pair is measured."""
    pairs, chooser = pairs_of("english"), random.Random(seed)
    chosen = [chooser.sample([pair for pair in pairs if pair.same == same], _COSTED) for same in (True, False)]
    return [(pair.a, pair.b) for each in chosen for pair in each]


def _questions(
    part: str, pairs: Sequence[ExamPair], out: Flags, *, wrong: bool
) -> tuple[dict[str, Any], list[str | Table]]:
    """Return the figures of a part by language and by kind, as JSON values and as tables."""
    same = np.array([pair.same for pair in pairs])
    values: dict[str, Any] = {"all": _values(out, same)}
    lines: list[str | Table] = []
    for by in ("language", "script", "kind"):
        names = np.array([getattr(pair, by) for pair in pairs])
        groups = {str(name): names == name for name in dict.fromkeys(names.tolist())}
        if len(groups) > 1 or part == "unselected":
            lines += [_shown(f"{part} by {by}", out, same, groups), ""]
            values[by] = {name: _values(out[own], same[own]) for name, own in groups.items()}
    if wrong:
        hits = [pair for pair, hit in zip(pairs, out.tolist(), strict=True) if hit and not pair.same]
        lines += [f"{pair.language}, {pair.kind}: {pair.a} <> {pair.b}" for pair in hits]
    return values, lines


_SHARES: Final = (("barred", False), ("in doubt", False), ("kept", True), ("in doubt", True))
"""What is printed: what becomes of questions whose answer stays (False) or changes (True)."""


def _volatile(
    requests: PlannedRequests, languages: frozenset[str], *, wrong: bool
) -> tuple[dict[str, Any], list[str | Table]]:
    """Return, of questions whose answer stays and of those whose answer changes, how many neither cache keeps (barred),
    how many are kept for a short time (in doubt) and how many as long as any (kept): by language and by kind.
    """
    questions = volatile_questions(languages)
    rows = [(question, _told(requests.plan([{"role": "user", "content": question.text}]))) for question in questions]
    values: dict[str, Any] = {}
    lines: list[str | Table] = []
    for by in ("language", "kind"):
        shown = table(f"volatile by {by}", "stay", "barred", "in doubt", "change", "kept", "in doubt")
        names = [str(getattr(question, by)) for question in questions]
        for name in (*dict.fromkeys(names), "all"):
            own = [row for row, row_name in zip(rows, names, strict=True) if name in (row_name, "all")]
            shares = []
            for what, changes in _SHARES:
                told = [told for question, told in own if question.changes == changes]
                shares.append(share_shown(told.count(what), len(told)))
            stay, change = (f"{shares[at].n:,}" for at in (0, 2))
            shown.add_row(name, stay, *map(str, shares[:2]), change, *map(str, shares[2:]))
            values.setdefault(by, {})[name] = {
                f"{what}, {'change' if changes else 'stay'}": share.as_json()
                for (what, changes), share in zip(_SHARES, shares, strict=True)
            }
        lines += [shown, ""]
    if wrong:
        lines += [
            f"{question.language}, {question.kind}, {told}: {question.text}"
            for question, told in rows
            if told == ("kept" if question.changes else "barred")
        ]
    return values, lines


def _told(plan: CachePlan) -> str:
    if plan.reason:
        return "barred"
    return "in doubt" if longest_kept(plan.policy, plan.body, plan.facts) < math.inf else "kept"


def _limited(pairs: list[ExamPair], limit: int, seed: int) -> list[ExamPair]:
    """Return at most `limit` random pairs of each language, kind and label; all for 0."""
    if not limit:
        return pairs
    groups: dict[tuple[str, str, bool], list[ExamPair]] = {}
    for pair in pairs:
        groups.setdefault((pair.language, pair.kind, pair.same), []).append(pair)
    chooser = random.Random(seed)
    return [pair for group in groups.values() for pair in chooser.sample(group, min(limit, len(group)))]


def _values(out: Flags, same: Flags) -> dict[str, Any]:
    one = served_of(out, same)
    return {"served": one.served.as_json(), "wrong": one.wrong.as_json()}


def _shown(title: str, out: Flags, same: Flags, groups: dict[str, Flags]) -> Table:
    shown = table(title, "same", "served", "different", "wrong")
    for name, own in {**groups, "all": np.ones(len(out), np.bool_)}.items():
        one = served_of(out[own], same[own])
        shown.add_row(name, f"{one.served.n:,}", str(one.served), f"{one.wrong.n:,}", str(one.wrong))
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Run the exam and print the figures."""
    parser = command.parser("exam")
    parser.add_argument("--part", action="append", choices=_ALL)
    parser.add_argument("--pairs", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument("--languages", default="", metavar="CODES")
    parser.add_argument("--cross-encoder", default="default", metavar="PATH")
    parser.add_argument("--threshold", type=float, metavar="SCORE")
    parser.add_argument("--policy", type=Path, default=SHIPPED / "chat.yaml", metavar="FILE")
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--limit", type=whole(0), default=0, metavar="N")
    add_embedding_flag(parser)
    add_seed_flag(parser, " of samples")
    add_state_flag(parser)
    add_json_flag(parser)
    return command.run(parser, examine, argv)


if __name__ == "__main__":
    sys.exit(main())
