"""A threshold that keeps the share of wrong hits among all requests of a surface below a bound. Pure: no clock, no I/O.

A candidate is served from the threshold on; serving a wrong one is a loss of 1, everything else of 0, per request. So
the expected loss falls as the threshold rises, and conformal risk control (Angelopoulos et al. 2022) finds the lowest
threshold that keeps it under `max_error` from labelled requests. Where the labels come from, and what that asks for:

  drawn by chance   Of the candidates that would be served only a few are answered afresh and compared, so each label
                    stands for as many requests as its chance was small (inverse probability weights).
  below, for free   A candidate under the threshold is answered afresh anyway. Its label says how far down one may go.
  few               Being right on average is not enough where a handful of labels decides: an upper bound is kept under
                    `max_error`, not the estimate, and until there are enough labels the strict threshold holds.
  a rolling window  The index fills up, and what a threshold lets through grows with it. Labels of the latest WINDOW
                    requests count, and are scaled by how much more often candidates reach the threshold now (of that
                    every request tells, without a label).
  drift             Whatever the window misses shows in the labels of what was served: the level that is aimed for falls
                    with every excess and comes back slowly (adaptive conformal inference, Gibbs and Candes 2021). So
                    over a long run the bound holds for any order of requests, not only for exchangeable ones.

Everything that is known comes in batches, and the state is nothing but what was folded from them in order: replicas
that read the same batches out of the store have the same threshold, and so has one that starts again.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import orjson
from numpy.typing import NDArray

from cache.codec import CorruptEntry

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

WINDOW = 50_000
"""Requests whose labels count."""
ENOUGH = 1_000
"""So many labels of candidates above the threshold in force, and no more than the policy's share is drawn."""
LEAST_LABELS = 100
"""With fewer labels in all, the strict threshold holds."""
_RECENT = 5_000  # requests that tell how often candidates reach the threshold now
_PRIOR = 20.0  # candidates: so many more must reach it before a difference between now and then counts
_MANY = 0.1  # the share drawn of candidates above the threshold while labels are few
_FREE = 5.0  # candidates below it are drawn so many times as often: nobody waits for them
_SURE = 1.28  # standard errors: an upper bound that holds nine times in ten
_PACE = 0.01  # how much of a batch's excess, per hundred requests, the aim moves by
_LOWEST_AIM = 0.25


@dataclass(frozen=True, slots=True)
class Label:
    """What comparing a fresh answer with the stored one said. `weight`: how many such requests it stands for."""

    score: float
    wrong: bool
    weight: float


@dataclass(frozen=True, slots=True)
class Batch:
    """Some requests of a surface: how many, the scores of those that had a candidate without a veto, and new labels."""

    requests: int
    scores: tuple[float, ...] = ()
    labels: tuple[Label, ...] = ()


def encode_batch(batch: Batch) -> bytes:
    """A batch as a line of the stream: JSON, scores to six digits."""
    labels = [(round(label.score, 6), label.wrong, label.weight) for label in batch.labels]
    return orjson.dumps((batch.requests, [round(score, 6) for score in batch.scores], labels))


def decode_batch(data: bytes) -> Batch:
    """The batch in a line of the stream; raises CorruptEntry."""
    try:
        requests, scores, labels = orjson.loads(data)
        batch = Batch(
            int(requests), tuple(map(float, scores)), tuple(Label(float(s), bool(w), float(h)) for s, w, h in labels)
        )
    except (ValueError, TypeError) as error:
        raise CorruptEntry(f"batch: {error}") from None
    if (
        batch.requests < 0
        or not all(map(math.isfinite, batch.scores))
        or any(label.weight < 1 for label in batch.labels)
    ):
        raise CorruptEntry("batch: out of range")
    return batch


def calibrated(scores: Floats, wrong: Flags, max_error: float) -> float:
    """The least threshold at which the expected share of wrong hits is `max_error` at most; infinite where none is.

    `scores` (n,) of cases drawn as the next one will be, -inf for what no threshold serves; `wrong`: serving it is
    wrong. Conformal risk control (Angelopoulos et al. 2022): one wrong hit more is counted than there are.
    """
    lost = np.sort(scores[wrong & (scores > -math.inf)])[::-1]
    allowed = math.floor(max_error * (len(scores) + 1)) - 1
    if allowed < 0:
        return math.inf
    if allowed >= len(lost):
        return -math.inf
    return math.nextafter(float(lost[allowed]), math.inf)


@dataclass(slots=True)
class RiskControl:
    """Sets the threshold of one surface; see the module's docstring.

    `strict` is the threshold while little is known, `audit` the share of candidates above the threshold that is
    answered afresh once enough is (0: nothing is ever compared, and the strict threshold stays). `threshold` is in
    force now; `breached` while by the labels more than `max_error` of the requests would have been answered wrongly at
    the threshold that was in force before.
    """

    max_error: float
    strict: float
    audit: float = 0.02
    threshold: float = field(init=False)
    breached: bool = field(init=False, default=False)
    _aim: float = field(init=False)
    _batches: deque[Batch] = field(init=False, default_factory=deque)
    _requests: int = field(init=False, default=0)
    _above: int = field(init=False, default=0)
    _labels: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.threshold = self.strict
        self._aim = self.max_error

    @property
    def labels(self) -> int:
        """How many labels count now."""
        return self._labels

    def weight(self, score: float, chance: float) -> float:
        """Whether a candidate without a veto is to be compared with a fresh answer: 0.0, or the weight of its label.

        `chance` is drawn evenly from 0..1. Above the threshold, being compared means not being served.
        """
        if not self.audit:
            return 0.0
        share = self.audit if self._above >= ENOUGH else max(self.audit, _MANY)
        if score < self.threshold:
            share = min(1.0, _FREE * share)
        return 1 / share if chance < share else 0.0

    def fold(self, batch: Batch) -> None:
        """Takes a batch in, and sets the threshold anew."""
        if not batch.requests and not batch.labels:
            return
        self._adapt(batch)
        self._batches.append(batch)
        self._requests += batch.requests
        while self._requests - self._batches[0].requests >= WINDOW:
            self._requests -= self._batches.popleft().requests
        self._set()

    def _adapt(self, batch: Batch) -> None:
        """Moves the aim by what these labels say of the threshold that was in force."""
        if self._labels < LEAST_LABELS:
            return
        lost = sum(label.weight for label in batch.labels if label.wrong and label.score >= self.threshold)
        moved = self._aim + _PACE / 100 * (self.max_error * batch.requests - lost)
        self._aim = min(self.max_error, max(_LOWEST_AIM * self.max_error, moved))

    def _set(self) -> None:
        scores, wrong, weights = self._known()
        self._labels = len(scores)
        order = np.argsort(-scores[wrong])
        levels = np.concatenate([[math.inf], scores[wrong][order]])
        lost = np.concatenate([[0.0], weights[wrong][order]])
        growth = self._growth(levels) / max(1, self._requests)
        estimate = np.cumsum(lost) * growth
        few = self._labels < LEAST_LABELS
        if few:
            fits = estimate <= self.max_error
        else:
            upper = estimate + (weights.max() + _SURE * np.sqrt(np.cumsum(lost**2))) * growth
            fits = upper <= self._aim
        # What lies between two levels costs what the upper one does, so the threshold is just above the first misfit.
        if fits.all():
            found = self.strict if few else float(scores.min())
        else:
            found = math.nextafter(float(levels[int(np.argmin(fits))]), math.inf)
        served = int(np.searchsorted(-levels, -self.threshold, side="right")) - 1
        self.breached = served > 0 and float(estimate[served]) > self.max_error
        self.threshold = max(self.strict, found) if few else found
        self._above = int((scores >= self.threshold).sum())

    def _known(self) -> tuple[Floats, Flags, Floats]:
        """The window's labels: scores, whether wrong, weights."""
        found = np.array(
            [(label.score, label.wrong, label.weight) for batch in self._batches for label in batch.labels]
        )
        scores, wrong, weights = found.reshape(-1, 3).T
        return scores, wrong.astype(np.bool_), weights

    def _growth(self, levels: Floats) -> Floats:
        """How much more often a candidate reaches each level of late than over the window; never less than 1."""
        every = [np.asarray(batch.scores) for batch in self._batches]
        recent, count = [], 0
        for batch, scores in zip(reversed(self._batches), reversed(every), strict=True):
            recent.append(scores)
            count += batch.requests
            if count >= _RECENT:
                break
        if count == 0:
            return np.ones(len(levels))
        now, all_along = (_reaching(np.concatenate(some), levels) for some in (recent, every))
        return np.maximum(1.0, (now + _PRIOR) / (all_along * (count / self._requests) + _PRIOR))


def _reaching(scores: Floats, levels: Floats) -> Floats:
    """How many of the scores are at each level or above, shape (levels,)."""
    ordered = np.sort(scores)
    return (len(ordered) - np.searchsorted(ordered, levels)).astype(np.float64)
