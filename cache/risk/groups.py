"""Thresholds of a surface's languages, and of its tenants: a bound on the mean can hide that one group gets wrong hits.

Each group has its own requests and labels in the window of `cache.risk.control`, and its threshold is the lowest that
keeps `max_error` of its own requests; it is never below the surface's. Two cases:

    few labels   (under LEAST_LABELS, or of a weight beyond `max_error` of the group's requests) The estimate decides:
                 the threshold lies above wrong hits that were seen, and nothing is promised of those that were not.
    enough       An upper bound (90%) on the estimate is kept, as for the surface. That is conformal risk control within
                 the group: its mean error stays within `max_error` for requests like those in the window. What drifts
                 is followed by the window alone, not by a falling target level as for the surface.

How often candidates reach a level now is taken from all requests of the surface. The groups with most requests have
thresholds, the others one together. A group of nearly all requests has none: its bound is the surface's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Kind = Literal["language", "tenant"]

LEAST_LABELS = 100
"""Fewest labels from which an upper bound is computed, of a surface or of a group."""
SURE: Final = 1.28
"""Standard errors: a one-sided upper bound with 90% confidence."""
MOST: Final = 16
"""Groups of a kind with a threshold of their own."""
OTHERS: Final = "other"
"""Name of all other groups together."""
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
    now, and codes of their groups; the labels of each group, and the largest weight.
    """

    levels: Floats
    weights: Floats
    growth: Floats
    codes: Floats
    labels: Mapping[float, int]
    largest: float

    @classmethod
    def of(cls, labelled: Labelled, growth: Callable[[Floats], Floats]) -> _Falling:
        """Return the wrong hits among these labels."""
        rows = np.flatnonzero(labelled.wrong)
        rows = rows[np.argsort(-labelled.scores[rows])]
        levels = labelled.scores[rows]
        codes, counts = np.unique(labelled.codes, return_counts=True)
        labels = dict(zip(codes.tolist(), counts.tolist(), strict=True))
        largest = float(labelled.weights.max(initial=0.0))
        return cls(levels, labelled.weights[rows], growth(levels), labelled.codes[rows], labels, largest)


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
    """The falling scores of a group's wrong hits, the estimated error of serving from each on, and the lowest score
    that may be served to it, -inf for any.
    """

    levels: Floats
    estimate: Floats
    lowest: float

    def from_(self, score: float) -> tuple[float, int]:
        """Return the estimated error of serving from this score on, and the number of wrong hits seen there."""
        served = int(np.searchsorted(-self.levels, -score, side="right"))
        return float(self.estimate[served - 1]) if served else 0.0, served


_NOTHING_LOST: Final = _Lost(np.empty(0), np.empty(0), -math.inf)


def group_in_words(kind: str, name: str) -> str:
    """Return what a group is called. A tenant's name is the owner of a scope, `tenant:acme` or `team:sales`."""
    if name == OTHERS:
        return f"other {kind}s"
    return f"language {name}" if kind == "language" else name.replace(":", " ", 1)


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
        """Return which labels are below their group's threshold, and are of candidates that are not served."""
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
        growth: Callable[[Floats], Floats],
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
        falling = _Falling.of(labelled, growth)
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

    def figures(
        self, labelled: Labelled, requests: int, threshold: float, growth: Callable[[Floats], Floats]
    ) -> Iterator[GroupFigures]:
        """Yield the figures of each group; `threshold` is the surface's."""
        falling = _Falling.of(labelled, growth)
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
        levels, weights = falling.levels[mine], falling.weights[mine]
        grown = falling.growth[mine] / max(1, group.requests)
        estimate = np.cumsum(weights) * grown
        if group.count(falling.labels) < LEAST_LABELS or falling.largest > self.max_error * group.requests:
            fits = estimate <= self.max_error
        else:
            fits = estimate + (falling.largest + SURE * np.sqrt(np.cumsum(weights**2))) * grown <= self.max_error
        lowest = -math.inf if fits.all() else math.nextafter(float(levels[int(np.argmin(fits))]), math.inf)
        return _Lost(levels, estimate, lowest)
