"""Measure the first stage: whether the search finds the rewording's right neighbour in a full scope.

A scope of each language holds the questions of the exam's rewordings and as many wordings of the training families in
that language as fill it: near ones, since the intents of a family are neighbours. Each rewording is then looked up with
the index, the limits and the stages of a lookup; what they hand on is read, no model is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from random import Random
from typing import Any, Final

from rich.table import Table

from cache.entry import IndexRecord
from cache.index import ReplicaIndex
from cache.semantic.decision import Shortlist, shortlist
from cache.semantic.matcher import NEIGHBOURS
from gateway.parts.fit.embedding import Remembered
from gateway.report import OnProgress, table
from tests.bench.exam.questions import ExamPair
from tests.bench.measure_cache import CacheUnderTest, PlannedRequests
from tools.cache_stages import share_shown
from tools.question_families import SHIPPED as FAMILIES
from tools.question_families import QuestionFamily, questions_of, read_families

SCOPE: Final = 20_000
_WORDINGS: Final = 150
"""Wordings of an intent at most, with values of its slots, of which the scope takes a random part."""


def recalled(
    pairs: Sequence[ExamPair],
    size: int,
    seed: int,
    cache: CacheUnderTest,
    planned: PlannedRequests,
    embedder: Remembered,
    on_progress: OnProgress,
) -> tuple[dict[str, Any], list[str | Table]]:
    """Return, by language, the shares of rewordings whose question is found and handed on, as values and as a table.

    Found: among the nearest that the index gives. Handed on: scored by the cross-encoder, or served by rule.
    """
    families = read_families(FAMILIES)
    same = [pair for pair in pairs if pair.same]
    values: dict[str, Any] = {}
    shown = table(f"first stage by language, scope of {size:,}", "rewordings", "found", "handed on", "vetoed", "scope")
    for language in dict.fromkeys(pair.language for pair in same):
        own = [pair for pair in same if pair.language == language]
        # A text of a conversation or of what is barred is never looked up by meaning.
        asked = [(planned.asked(pair.a), planned.asked(pair.b)) for pair in own]
        rows = [(a, b) for a, b in asked if a.partition and a.partition == b.partition]
        stored = list(dict.fromkeys(a.question for a, _ in rows))
        stored += _others([one for one in families if one.language == language], size - len(stored), seed, stored)
        index = _filled(stored, embedder, size)
        found = handed = vetoed = 0
        for (a, b), vector in zip(rows, embedder.embed([b.text for _, b in rows]), strict=True):
            near = index.search("scope", vector, NEIGHBOURS, cache.semantic.min_similarity)
            at = next((place for place, one in enumerate(near) if one.question == a.question), None)
            if at is None or near[at].similarity < cache.semantic.min_similarity:
                continue
            found += 1
            chosen = shortlist(
                cache.stages.decide, b.question, [(one.question, one.similarity) for one in near],
                cache.stages.candidates,
            )  # fmt: skip
            handed += _hands_on(chosen, at)
            refused = cache.stages.decide(a.question, b.question, near[at].similarity).refused
            vetoed += refused.startswith("guard: ")
        on_progress("searching", len(values) + 1, len({pair.language for pair in same}))
        n = len(rows)
        counted = (str(share_shown(count, n)) for count in (found, handed, vetoed))
        shown.add_row(language, f"{n:,}", *counted, f"{len(stored):,}")
        values[language] = {
            "found": share_shown(found, n).as_json(), "handed_on": share_shown(handed, n).as_json(),
            "vetoed": share_shown(vetoed, n).as_json(), "scope": len(stored),
        }  # fmt: skip
    return values, [shown, ""]


def _hands_on(chosen: Shortlist | None, place: int) -> bool:
    """Return whether the candidate at a place is scored by the cross-encoder, or is the one to serve without it."""
    if chosen is None:
        return False
    if chosen.doubtful:
        return any(one.place == place for one in chosen.doubtful)
    return chosen.place == place and not chosen.verdict.refused


def _others(families: Sequence[QuestionFamily], count: int, seed: int, known: Sequence[str]) -> list[str]:
    """Return at most `count` different wordings of these families, none of which is `known`."""
    draw = Random(seed)
    made = {text: None for text, _ in questions_of(families, _WORDINGS, draw)}
    for text in known:
        made.pop(text, None)
    texts = list(made)
    draw.shuffle(texts)
    return list(islice(texts, max(0, count)))


def _filled(questions: Sequence[str], embedder: Remembered, size: int) -> ReplicaIndex:
    """Return the index of one scope that holds these questions."""
    index = ReplicaIndex(embedder.dimension, total=size, per_partition=size)
    for place, vector in enumerate(embedder.embed(questions)):
        data = vector.astype("<f4").tobytes()
        index.add(IndexRecord("scope", str(place), questions[place], float("inf"), data))
    return index
