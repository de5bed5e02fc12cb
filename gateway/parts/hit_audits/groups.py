"""Thresholds of a surface's languages, and of its tenants: a bound on the mean can hide that one group gets wrong hits.

Each group has its own requests and labels in the window of `control`, and its threshold is the lowest that
keeps `max_error` of its own requests; it is never below the surface's. Two cases:

    few labels   (under LEAST_LABELS, or of a weight beyond HEAVY of what `max_error` allows the group) The estimate
                 decides: the threshold lies above wrong hits that were seen and that are no false alarms of the
                 comparison (`gateway.parts.hit_audits.label_errors`), and nothing is promised of those that were not.
    enough       An upper bound (90%) on the estimate is kept, as for the surface. That is conformal risk control within
                 the group: its mean error stays within `max_error` for requests like those in the window. What drifts
                 is followed by the window alone, not by a falling target level as for the surface.

How often candidates reach a level now is taken from all requests of the surface. The groups with most requests have
thresholds, the others one together. A group of nearly all requests has none: its bound is the surface's.

What audits observe of one surface, in batches: labels, complaints and counts; and how a batch is encoded.

A batch has scores and verdicts and no text. It names languages, and the tenants and teams that asked most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol
from zlib import crc32

import numpy as np
import orjson
from numpy.typing import NDArray

from cache.entry import CorruptEntry
from cache.semantic.hit_bound import OTHERS, Complaint, group_in_words
from gateway.parts.hit_audits.label_errors import AS_THEY_ARE, LabelErrors

_NOTHING: Final[Mapping[str, int]] = {}


@dataclass(frozen=True, slots=True)
class Label:
    """The result of comparing a stored with a new answer. `weight`: the number of such requests it represents.

    `judged`: by a judge or a person, who may lower the threshold below the strict one. `language` and `owner` are the
    request's, '' where they are not known.
    """

    score: float
    wrong: bool
    weight: float
    judged: bool = False
    language: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some requests of a surface: their number, the scores of candidates without a veto, and new labels.

    `asked` is the number of the requests of each owner that had complained before, `withdrawn` names the requests whose
    complaints, in earlier batches, were no wrong hits. `languages` and `owners` are the requests of each language, and
    of the owners that asked most.
    """

    requests: int
    scores: tuple[float, ...] = ()
    labels: tuple[Label, ...] = ()
    complaints: tuple[Complaint, ...] = ()
    asked: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    withdrawn: tuple[str, ...] = ()
    languages: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    owners: Mapping[str, int] = field(default_factory=lambda: _NOTHING)


def encode_batch(batch: Batch) -> bytes:
    """Encode a batch as a line of the stream: JSON, without fields that are empty.

    Scores are rounded to six digits, but not those of labels and complaints: a threshold may be set just above one.
    """
    fields = {
        "requests": batch.requests,
        "scores": [round(score, 6) for score in batch.scores],
        "labels": [(one.score, one.wrong, one.weight, one.judged, one.language, one.owner) for one in batch.labels],
        "complaints": [(one.score, one.owner, one.request) for one in batch.complaints],
        "asked": batch.asked,
        "withdrawn": batch.withdrawn,
        "languages": batch.languages,
        "owners": batch.owners,
    }
    return orjson.dumps({name: value for name, value in fields.items() if value or name == "requests"})


def decode_batch(data: bytes) -> Batch:
    """Decode a line of the stream. Raises CorruptEntry."""
    try:
        fields = orjson.loads(data)
        if not isinstance(fields, dict) or not fields.keys() <= set(Batch.__slots__):
            raise CorruptEntry("batch: not one")
        get = fields.get
        counts = [
            {str(name): int(count) for name, count in dict(get(field, ())).items()}
            for field in ("asked", "languages", "owners")
        ]
        batch = Batch(
            int(fields["requests"]),
            tuple(map(float, get("scores", ()))),
            tuple(
                Label(float(s), bool(w), float(h), bool(j), str(n), str(o)) for s, w, h, j, n, o in get("labels", ())
            ),
            tuple(Complaint(float(s), str(o), str(r)) for s, o, r in get("complaints", ())),
            counts[0],
            tuple(str(request) for request in get("withdrawn", ())),
            *counts[1:],
        )
    except (ValueError, TypeError, LookupError) as error:
        raise CorruptEntry(f"batch: {error}") from None
    if (
        batch.requests < 0
        or not all(map(math.isfinite, batch.scores))
        or any(not math.isfinite(label.score) or label.weight < 1 for label in batch.labels)
        or not all(math.isfinite(one.score) for one in batch.complaints)
        or any(count < 0 for some in counts for count in some.values())
    ):
        raise CorruptEntry("batch: out of range")
    return batch


Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Kind = Literal["language", "tenant"]

LEAST_LABELS = 100
"""Fewest labels from which an upper bound is computed, of a surface or of a group."""
HEAVY: Final = 0.5
"""Largest share of the allowed wrong hits that a label may stand for where an upper bound is computed: with heavier
ones a single wrong label decides, whether it errs or not."""
MOST: Final = 16
"""Groups of a kind with a threshold of their own."""
_NEARLY_ALL: Final = 0.9
_LEAST_REQUESTS: Final = 100
_LEAST_WRONG: Final = 2
"""Labels of wrong hits from which a group's breach is reported; the first one moves its threshold."""


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """What the labels say of one group of requests. `threshold` is the lowest score served to it, `error` the estimated
    share of its requests that wrongly get another question's answer; `wrong` of its `labels` were, and are not served
    any more if they are below the threshold.
    """

    kind: Kind
    name: str
    requests: int
    labels: int
    wrong: int
    threshold: float
    error: float
    breached: bool

    @property
    def words(self) -> str:
        """What it is called: `language Han`, `tenant acme`."""
        return group_in_words(self.kind, self.name)


class Growth(Protocol):
    """How much more often candidates occur now than in the window of labels, by the level of their score."""

    def __call__(self, levels: Floats) -> Floats:
        """Return how much more often candidates reach these levels now."""

    def candidates_from(self, levels: Floats) -> Floats:
        """Return how many candidates of the window reach these levels."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """A window's labels, shape (labels,): scores, whether wrong, weights, and the codes of their groups."""

    scores: Floats
    wrong: Flags
    weights: Floats
    codes: Floats


@dataclass(frozen=True, slots=True)
class _Falling:
    """A window's wrong hits, the highest score first: scores, weights, how much more often candidates reach the score
    now, candidates per request that reach it, and codes of their groups; the labels of each group, the largest weight.

    The last one is none, of no weight and at the strict threshold: it stands for all above.
    """

    levels: Floats
    weights: Floats
    growth: Floats
    hits: Floats
    codes: Floats
    labels: Mapping[float, int]
    largest: float

    @classmethod
    def of(cls, labelled: Labelled, growth: Growth, strict: float, requests: int) -> _Falling:
        """Return the wrong hits among these labels."""
        rows = labelled.wrong.nonzero()[0]
        rows = rows[(-labelled.scores[rows]).argsort()]
        levels, weights, codes = (
            np.concatenate((some[rows], (last,)))
            for some, last in ((labelled.scores, strict), (labelled.weights, 0.0), (labelled.codes, math.nan))
        )
        order = (-levels).argsort(kind="stable")
        levels, weights, codes = levels[order], weights[order], codes[order]
        named, counts = np.unique(labelled.codes, return_counts=True)
        labels = dict(zip(named.tolist(), counts.tolist(), strict=True))
        largest = float(labelled.weights.max(initial=0.0))
        hits = growth.candidates_from(levels) / max(1, requests)
        return cls(levels, weights, growth(levels), hits, codes, labels, largest)


@dataclass(frozen=True, slots=True)
class _Members:
    """A group: its requests, and the codes that are its own, or with `rest` all but those."""

    name: str
    requests: int
    codes: frozenset[int]
    rest: bool = False

    def of(self, codes: Floats) -> Flags:
        """Return which of these codes are the group's."""
        named = np.isin(codes, list(self.codes)) if self.rest else codes == next(iter(self.codes))
        return (codes > 0) & ~named if self.rest else named

    def count(self, labels: Mapping[float, int]) -> int:
        """Return the number of its labels, from those of each code."""
        if not self.rest:
            return labels.get(next(iter(self.codes)), 0)
        return sum(count for code, count in labels.items() if code > 0 and code not in self.codes)


@dataclass(frozen=True, slots=True)
class _Lost:
    """The falling scores of a group's wrong hits, the estimated error of serving from each on, the number of them, and
    the lowest score that may be served to it, -inf for any.
    """

    levels: Floats
    estimate: Floats
    counts: Floats
    lowest: float

    def from_(self, score: float) -> tuple[float, int]:
        """Return the estimated error of serving from this score on, and the number of wrong hits seen there."""
        served = int((-self.levels).searchsorted(-score, side="right"))
        return (float(self.estimate[served - 1]), int(self.counts[served - 1])) if served else (0.0, 0)


_NOTHING_LOST: Final = _Lost(np.empty(0), np.empty(0), np.empty(0), -math.inf)


def code_of(name: str) -> int:
    """Return the code of a group's name: that of no group is 0."""
    return crc32(name.encode()) if name else 0


@dataclass(slots=True)
class Groups:
    """The groups of one kind. `own` has the lowest score served to each that has a threshold of its own, -inf where the
    surface's is enough, and `others` that of all groups that are not in it.
    """

    kind: Kind
    max_error: float
    strict: float = math.inf
    errors: LabelErrors = AS_THEY_ARE
    own: dict[str, float] = field(default_factory=dict)
    others: float = -math.inf
    breached: frozenset[str] = frozenset()
    main: str | None = None
    """The group of nearly all requests, '' if there is none; None while there are too few requests to tell."""
    _requests: dict[str, int] = field(default_factory=dict)
    _suspected: set[str] = field(default_factory=set)
    """Groups whose threshold rose by a single label."""

    def threshold_of(self, name: str) -> float:
        """Return the lowest score served to a group, -inf if it has none of its own."""
        return self.own.get(name, self.others) if name else -math.inf

    def count(self, requests: Mapping[str, int], sign: int = 1) -> None:
        """Add the requests of a batch by group, or with a `sign` of -1 take them away."""
        for name, number in requests.items():
            left = self._requests.get(name, 0) + sign * number
            if left > 0:
                self._requests[name] = left
            else:
                self._requests.pop(name, None)

    def held(self, labelled: Labelled) -> Flags:
        """Return which labels are of candidates that are not served, as they score below their group's threshold."""
        lowest = np.where(labelled.codes > 0, self.others, -math.inf)
        for name, own in self.own.items():
            if own != self.others:
                lowest[labelled.codes == code_of(name)] = own
        return labelled.scores < lowest

    def settle(
        self,
        labelled: Labelled,
        requests: int,
        threshold: float,
        growth: Growth,
        latest: Sequence[tuple[str, float]],
    ) -> None:
        """Set the thresholds by the labels of a window of so many requests, and say whose bound is breached.

        `threshold` is the surface's until now; `growth` tells how much more often candidates reach levels now; `latest`
        are the wrong hits of the newest batch: the group's name, and the score.
        """
        own, breached = {}, set()
        named = {name for name, _ in self._ranked()}
        wrong: dict[str, list[float]] = {}
        for name, score in latest:
            if name and score >= threshold:
                wrong.setdefault(name if name in named else OTHERS, []).append(score)
        falling = _Falling.of(labelled, growth, self.strict, requests)
        for group in self._groups(requests):
            lost = self._lost(falling, group)
            own[group.name] = lost.lowest
            scores = wrong.get(group.name)
            if not scores:
                continue
            served_from = max(threshold, self.threshold_of(group.name))
            error, seen = lost.from_(served_from)
            if max(scores) < served_from:
                # Held back already; of a first wrong hit it tells that it was not the label that erred.
                error, seen = lost.from_(threshold) if group.name in self._suspected else (0.0, 0)
            if error > self.max_error:
                if seen < _LEAST_WRONG:
                    self._suspected.add(group.name)
                else:
                    self._suspected.discard(group.name)
                    breached.add(group.name)
        self.main = next((name for name, number in self._ranked() if number >= _NEARLY_ALL * requests), "")
        if requests < _LEAST_REQUESTS:
            self.main = None
        self.others = own.pop(OTHERS, -math.inf)
        self.own, self.breached = own, frozenset(breached)

    def figures(self, labelled: Labelled, requests: int, threshold: float, growth: Growth) -> Iterator[GroupFigures]:
        """Yield the figures of each group; `threshold` is the surface's."""
        falling = _Falling.of(labelled, growth, self.strict, requests)
        for group in self._groups(requests):
            own = self.others if group.name == OTHERS else self.threshold_of(group.name)
            lowest = max(threshold, own)
            error, _ = self._lost(falling, group).from_(lowest)
            wrong, labels = int(group.of(falling.codes).sum()), group.count(falling.labels)
            breached = group.name in self.breached
            yield GroupFigures(self.kind, group.name, group.requests, labels, wrong, lowest, error, breached)

    def _ranked(self) -> list[tuple[str, int]]:
        """Return the groups with most requests, and how many."""
        return sorted(self._requests.items(), key=lambda one: (-one[1], one[0]))[:MOST]

    def _groups(self, requests: int) -> Iterator[_Members]:
        """Yield the groups with most requests, and all others together, where there is more than one group."""
        ranked = self._ranked()
        for name, number in ranked:
            if number < _NEARLY_ALL * requests:
                yield _Members(name, number, frozenset((code_of(name),)))
        rest = requests - sum(number for _, number in ranked)
        if rest > 0 and len(self._requests) > MOST:
            yield _Members(OTHERS, rest, frozenset(code_of(name) for name, _ in ranked), rest=True)

    def _lost(self, falling: _Falling, group: _Members) -> _Lost:
        """Return what serving a group from each level on loses."""
        mine = group.of(falling.codes)
        if not mine.any():
            return _NOTHING_LOST
        mine |= np.isnan(falling.codes)
        levels, weights, hits = falling.levels[mine], falling.weights[mine], falling.hits[mine] * group.requests
        grown = falling.growth[mine] / max(1, group.requests)
        lost, counts = weights.cumsum(), (weights > 0).astype(np.float64).cumsum()
        estimate = self.errors.unexplained(lost, counts, hits) * grown
        fits = estimate <= self.max_error
        if not too_few(group.count(falling.labels), falling.largest, self.max_error * group.requests):
            fits = self.errors.upper(lost, (weights**2).cumsum(), falling.largest, hits) * grown <= self.max_error
        return _Lost(levels, estimate, counts, above_misfits(levels, fits, -math.inf))


def too_few(labels: int, largest: float, allowed: float) -> bool:
    """Return whether labels are too few for an upper bound, or one stands for too much of the `allowed` wrong hits."""
    return labels < LEAST_LABELS or largest > HEAVY * allowed


def above_misfits(levels: Floats, fits: Flags, lowest: float) -> float:
    """Return the score just above the first of falling levels that may not be served; `lowest` if all may.

    What may be served from a level on may be from all above it: serving less loses no more.
    """
    may = np.logical_or.accumulate(fits[::-1])[::-1]
    return lowest if may.all() else math.nextafter(float(levels[int(np.argmin(may))]), math.inf)
