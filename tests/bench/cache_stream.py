"""Simulate a stream of requests to a cache that is empty at first and fills up with their answers.

A request answered by a model is stored; one served with another question's answer has that answer under its own key
from then on (the back-fill). So a threshold affects later requests, which isolated pairs do not show.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cache.semantic.decision import shortlist
from gateway.parts.encoders.blend import settled
from gateway.parts.fit.curves import Flags
from gateway.parts.hit_audits.control import RiskControl
from gateway.parts.hit_audits.groups import Batch, Label
from gateway.report import OnProgress
from tools.cache_stages import Asked, Figure, Stages, share_shown
from tools.question_pairs import connected

NEIGHBOURS = 5
"""Number of neighbours that a lookup compares."""

_SHOWN_EVERY = 1_000
_BATCH = 200  # requests between two updates of the controller
_BLOCK = 256  # vectors compared with all others at a time


@dataclass(frozen=True, slots=True)
class StreamOutcome:
    """Per request, shape (n,): answered from the cache; because an equal request came before; wrongly; and counted as
    wrong only because there is no label.
    """

    hits: Flags
    repeats: Flags
    wrong: Flags
    unlabelled: Flags

    @classmethod
    def none(cls, count: int) -> StreamOutcome:
        """Return an outcome for `count` requests with all flags unset."""
        return cls(*(np.zeros(count, np.bool_) for _ in range(4)))

    def part(self, rows: slice) -> StreamOutcome:
        """Return the outcome of these requests only."""
        return StreamOutcome(self.hits[rows], self.repeats[rows], self.wrong[rows], self.unlabelled[rows])


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a stream.

    `hit_rate`, `repeats` (hits of equal requests), `by_meaning` (all other hits) and `error` (wrong hits) are shares of
    all requests; `precision` is the share of right hits among hits.
    """

    hit_rate: Figure
    repeats: Figure
    by_meaning: Figure
    error: Figure
    precision: Figure


def rates(outcome: StreamOutcome) -> Rates:
    """Return the figures of these requests."""
    n, hits, wrong = len(outcome.hits), int(outcome.hits.sum()), int(outcome.wrong.sum())
    repeats = int((outcome.hits & outcome.repeats).sum())
    return Rates(
        hit_rate=share_shown(hits, n),
        repeats=share_shown(repeats, n),
        by_meaning=share_shown(hits - repeats, n),
        error=share_shown(wrong, n),
        precision=share_shown(hits - wrong, hits),
    )


def halves(outcome: StreamOutcome) -> tuple[Rates, Rates]:
    """Return the figures of the first and of the second half of the requests."""
    middle = len(outcome.hits) // 2
    return rates(outcome.part(slice(middle))), rates(outcome.part(slice(middle, None)))


class StreamGate:
    """The threshold for serving candidates: constant, or set by `control`, which learns during the stream.

    It learns as in a gateway: a random sample of candidates is answered by a model and compared. `judged`: its labels
    are a judge's. `breached` is set once a breach was shown.
    """

    def __init__(
        self, threshold: float, control: RiskControl | None = None, seed: int = 0, *, judged: bool = True
    ) -> None:
        self.breached = False
        self._threshold = threshold
        self._control = control
        self._judged = judged
        self._generator = random.Random(seed)
        self._requests = 0
        self._scores: list[float] = []
        self._labels: list[Label] = []

    def serves(self, score: float | None, label: Callable[[], bool | None]) -> bool:
        """Return whether the best candidate, with this score, is served; `label` says whether that would be wrong, and
        None where the comparison does not know.
        """
        if self._control is None:
            return score is not None and score >= self._threshold
        compared, serves = 0.0, False
        if score is not None:
            compared = self._control.weight(score, self._generator.random())
            serves = score >= self._control.threshold and not compared
            self._scores.append(score)
        if score is not None and compared and (wrong := label()) is not None:
            self._labels.append(Label(score, wrong, compared, judged=self._judged))
        self._requests += 1
        if self._requests == _BATCH:
            self._control.fold(Batch(self._requests, tuple(self._scores), tuple(self._labels)))
            self._requests, self._scores, self._labels = 0, [], []
            self.breached |= self._control.breached
        return serves


class Truth:
    """Equivalence of requests, by number. Pairs without a label, direct or by transitivity, count as different."""

    def __init__(self, count: int, labels: Iterable[tuple[int, int, bool]]) -> None:
        """Take the `labels`: (one request, another, whether they want the same answer)."""
        self._labels = {(min(a, b), max(a, b)): same for a, b, same in labels}
        self._class = connected(count, [pair for pair, same in self._labels.items() if same])
        self._apart = {self._classes(*pair) for pair, same in self._labels.items() if not same}

    def same(self, one: int, other: int) -> bool:
        """Return whether both want the same answer. A pair's own label takes precedence."""
        label = self._labels.get((min(one, other), max(one, other)))
        return self._class[one] == self._class[other] if label is None else label

    def has_label(self, one: int, other: int) -> bool:
        """Return whether this pair has a label, direct or by transitivity."""
        if (min(one, other), max(one, other)) in self._labels or self._class[one] == self._class[other]:
            return True
        return self._classes(one, other) in self._apart

    def _classes(self, one: int, other: int) -> tuple[int, int]:
        a, b = sorted((self._class[one], self._class[other]))
        return a, b


Neighbours = Sequence[tuple[NDArray[np.intp], NDArray[np.float32]]]
"""For each text the others that are near it, nearest first, and their cosines."""


def near_neighbours(vectors: NDArray[np.float32], at_least: float, on_progress: OnProgress) -> Neighbours:
    """Return for each unit vector, shape (n, dimension), the others with a cosine of at least `at_least`."""
    neighbours = []
    for start in range(0, len(vectors), _BLOCK):
        for text, cosines in enumerate(vectors[start : start + _BLOCK] @ vectors.T, start):
            cosines[text] = -1.0
            near = np.flatnonzero(cosines >= at_least)
            near = near[np.argsort(-cosines[near], kind="stable")]
            neighbours.append((near, cosines[near]))
        on_progress("comparing", min(start + _BLOCK, len(vectors)), len(vectors))
    return neighbours


@dataclass(frozen=True, slots=True)
class Stream:
    """`requests` in order of arrival, repeated ones included.

    Request i wants what `wants[i]` stands for in `truth`; its text is number `texts[i]` among the `neighbours`.
    """

    requests: Sequence[Asked]
    wants: Sequence[int]
    texts: Sequence[int]
    neighbours: Neighbours
    truth: Truth
    audit: Callable[[int, int], bool | None] | None = None
    """Whether the stored answer to one request would be wrong for another, None if not known; without it the truth."""

    def served_by(self, stages: Stages, gate: StreamGate, on_progress: OnProgress) -> StreamOutcome:
        """Simulate our cache, deciding like a lookup, at the threshold that `gate` has at the time."""
        outcome, kept, answers = StreamOutcome.none(len(self.requests)), _Kept(), dict[str, int]()
        for row, asked in enumerate(self.requests):
            if row % _SHOWN_EVERY == 0:
                on_progress("serving", row, len(self.requests))
            stored = answers.get(asked.key) if asked.key else None
            if stored is not None:
                outcome.repeats[row] = True
            else:
                stored = self._found(kept, row, stages, gate) if asked.partition else None
                answers[asked.key] = row if stored is None else stored
                if stored is None and asked.partition:
                    kept.add(asked.partition, self.texts[row], row)
            outcome.hits[row] = stored is not None
            outcome.wrong[row] = stored is not None and not self._same(stored, row)
            outcome.unlabelled[row] = outcome.wrong[row] and not self._has_label(stored, row)
        on_progress("serving", len(self.requests), len(self.requests))
        return outcome

    def _found(self, kept: _Kept, row: int, stages: Stages, gate: StreamGate) -> int | None:
        """Return the request whose answer is served for this one; None if there is none."""
        best, score = self._best(kept, row, stages)
        return best if gate.serves(score, lambda: self._label(best, row)) else None

    def _label(self, best: int | None, row: int) -> bool | None:
        if best is None:
            return None
        return not self._same(best, row) if self.audit is None else self.audit(best, row)

    def _best(self, kept: _Kept, row: int, stages: Stages) -> tuple[int | None, float | None]:
        """Return the best candidate without a veto, and its score."""
        asked = self.requests[row]
        near = self._near(kept, asked.partition, self.texts[row], NEIGHBOURS)
        texts = [(self.requests[other].question, cosine) for other, cosine in near]
        chosen = shortlist(stages.decide, asked.question, texts, stages.candidates)
        if chosen is not None and chosen.doubtful:
            read = stages.scores([(texts[one.place][0], asked.question) for one in chosen.doubtful])
            chosen = settled(chosen, read, stages.blend)
        if chosen is None or chosen.verdict.refused:
            return None, None
        return near[chosen.place][0], chosen.verdict.score

    def _same(self, one: int, other: int) -> bool:
        return self.wants[one] == self.wants[other] or self.truth.same(self.wants[one], self.wants[other])

    def _has_label(self, one: int | None, other: int) -> bool:
        return one is not None and self.truth.has_label(self.wants[one], self.wants[other])

    def served_by_cosine(self, at_least: float) -> StreamOutcome:
        """Simulate a cache that compares only the cosine of the last user texts."""
        outcome, kept = StreamOutcome.none(len(self.requests)), _Kept()
        for row, text in enumerate(self.texts):
            near = self._near(kept, "", text, 1)
            if near and near[0][1] >= at_least:
                other = near[0][0]
                outcome.hits[row], outcome.wrong[row] = True, not self._same(other, row)
                outcome.repeats[row] = self.wants[other] == self.wants[row]
            else:
                kept.add("", text, row)
        return outcome

    def _near(self, kept: _Kept, partition: str, text: int, most: int) -> list[tuple[int, float]]:
        """Return (request, cosine) of the nearest stored ones."""
        nearest = []
        if (same := kept.get(partition, text)) is not None:
            nearest.append((same, 1.0))
        for other, cosine in zip(*(part.tolist() for part in self.neighbours[text]), strict=True):
            if len(nearest) >= most:
                break
            if (row := kept.get(partition, other)) is not None:
                nearest.append((row, cosine))
        return nearest


class _Kept:
    """Maps partition and text to the request whose answer is stored."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], int] = {}

    def add(self, partition: str, text: int, row: int) -> None:
        self._rows.setdefault((partition, text), row)

    def get(self, partition: str, text: int) -> int | None:
        return self._rows.get((partition, text))
