"""Collect the verifier's training data: labelled pairs, near pairs of different clusters, and generated pairs."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cache.planning.eligibility import LONGEST_QUESTION
from gateway.parts.fit.datasets import DataError, read_pairs
from tools.rewording import OTHER, SAME

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
"""Maps texts to unit vectors, shape (texts, dimension)."""

RULES = "rules"
"""Name of the data set of pairs that rules make from questions: its groups are the rules."""
STRANGERS = "strangers"
"""Group name of near texts that are known to differ."""
_PER_DATASET = 7_000
_QUESTIONS = 2_500
_NEIGHBOURS = 4
_STRANGERS = 2_500


@dataclass(frozen=True, slots=True)
class QuestionPair:
    """Two questions and whether the answer to `a` may be served for `b`. Pairs of a `group` are left out together."""

    a: str
    b: str
    same_answer: bool
    dataset: str
    group: str


def reworded(questions: Sequence[str], seed: int) -> Iterator[QuestionPair]:
    """Yield two rewordings of each question and two changed versions of it, using the rules in turn."""
    rng = random.Random(seed)  # noqa: S311  (no secret)
    for number, question in enumerate(questions):
        for same, named in ((True, SAME), (False, OTHER)):
            rules = list(named.items())
            for step in range(2):
                start = number + step * (len(rules) // 2 + 1)
                for turn in range(len(rules)):
                    name, rule = rules[(start + turn) % len(rules)]
                    other = rule(question, rng)
                    if other and other.lower() != question.lower():
                        yield QuestionPair(question, other, same, RULES, name)
                        break


def read_questions(path: Path) -> list[QuestionPair]:
    """Return the pairs of questions in a file; conversations and very long texts are left out. Raises DataError.

    The verifier compares two questions.
    """
    pairs = [
        QuestionPair(pair.a, pair.b, pair.same_answer, pair.dataset or path.stem, pair.group)
        for pair in read_pairs(path)
        if isinstance(pair.a, str) and isinstance(pair.b, str) and max(len(pair.a), len(pair.b)) <= LONGEST_QUESTION
    ]
    if not pairs:
        raise DataError(f"{path}: it contains no pair of questions")
    return pairs


def prepared(
    pairs: Sequence[QuestionPair], checked: Sequence[QuestionPair], embed: Embed, seed: int
) -> list[QuestionPair]:
    """Return a bounded share of every group for fitting and for checking, then strangers and reworded questions.

    Of the pairs for checking only the questions' wording is used to generate others, never a label.
    """
    rng = random.Random(seed)  # noqa: S311  (no secret)
    bounded = list(_bounded([*pairs, *checked], rng))
    questions = sorted({text for pair in bounded for text in (pair.a, pair.b) if 15 < len(text) < 150})
    rng.shuffle(questions)
    return [*bounded, *strangers(pairs, embed, rng), *reworded(questions[:_QUESTIONS], seed)]


def _bounded(pairs: Sequence[QuestionPair], rng: random.Random) -> Iterator[QuestionPair]:
    groups: dict[tuple[str, str, bool], list[QuestionPair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.dataset, pair.group, pair.same_answer].append(pair)
    parts = Counter(dataset for dataset, _, _ in groups)
    for name in sorted(groups):
        group = groups[name]
        yield from rng.sample(group, min(_PER_DATASET // parts[name[0]], len(group)))


def strangers(pairs: Sequence[QuestionPair], embed: Embed, rng: random.Random) -> Iterator[QuestionPair]:
    """Yield near texts of one data set that are known to differ: they are in different clusters of paraphrases."""
    for dataset in sorted({pair.dataset for pair in pairs}):
        own = [pair for pair in pairs if pair.dataset == dataset]
        clusters = clusters_of(own)
        sizes: dict[int, int] = defaultdict(int)
        for cluster in clusters.values():
            sizes[cluster] += 1
        texts = sorted(text for text, cluster in clusters.items() if sizes[cluster] > 3)
        rng.shuffle(texts)
        near = list(_near(texts[: 2 * _QUESTIONS], clusters, embed, dataset))
        yield from rng.sample(near, min(_STRANGERS, len(near)))


def _near(texts: Sequence[str], clusters: dict[str, int], embed: Embed, dataset: str) -> Iterator[QuestionPair]:
    if len(texts) < _NEIGHBOURS:
        return
    vectors = embed(texts)
    for row, text in enumerate(texts):
        near = np.argsort(-(vectors @ vectors[row]))[1 : 8 * _NEIGHBOURS]
        others = [texts[i] for i in near if clusters[texts[i]] != clusters[text]]
        for other in others[:_NEIGHBOURS]:
            yield QuestionPair(text, other, False, dataset, STRANGERS)


def clusters_of(pairs: Iterable[QuestionPair]) -> dict[str, int]:
    """Return each text's cluster number: texts connected by a chain of true pairs have the same one."""
    every = list(pairs)
    texts = sorted({text for pair in every for text in (pair.a, pair.b)})
    place = {text: number for number, text in enumerate(texts)}
    joined = connected(len(texts), [(place[pair.a], place[pair.b]) for pair in every if pair.same_answer])
    return dict(zip(texts, joined, strict=True))


def connected(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return a number for each of `count` nodes, the same for those that these edges connect."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    ends = np.array(edges, np.int64).reshape(-1, 2).T
    graph = coo_matrix((np.ones(len(edges)), (ends[0], ends[1])), shape=(count, count))
    numbers: list[int] = connected_components(graph, directed=False)[1].tolist()
    return numbers
