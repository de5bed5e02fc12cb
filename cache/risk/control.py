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
  complaints        A client says that a hit was wrong. That is no sample, so it is no label: it counts as one wrong hit
                    at its score, once per request. First for its own tenant (or the team that shares its answers): the
                    threshold for that one rises above the score at once, and comes down again when `max_error` of the
                    requests it has sent since allow for the complaint. For the surface as a whole, what one tenant
                    complains of counts for half of what may be wrong there at most: alone it can move the threshold of
                    others no further than half of `max_error` would.

Everything that is known comes in batches, and the state is nothing but what was folded from them in order: replicas
that read the same batches out of the store have the same threshold, and so has one that starts again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

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
_ONE_OWNER = 0.5  # of what may be wrong on a surface, the part that one owner's complaints can make up
_NOTHING: Final[Mapping[str, int]] = {}


@dataclass(frozen=True, slots=True)
class Label:
    """What comparing a fresh answer with the stored one said. `weight`: how many such requests it stands for."""

    score: float
    wrong: bool
    weight: float


@dataclass(frozen=True, slots=True)
class Complaint:
    """A client said that a hit was wrong. `score`: the hit's. `owner`: whose hits may be held back for it first.

    `request` stands for the tenant and the id of the request, so that it counts once however often it is said.
    """

    score: float
    owner: str
    request: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Some requests of a surface: how many, the scores of those that had a candidate without a veto, and new labels.

    `asked` says how many of the requests were of each owner that had complained before.
    """

    requests: int
    scores: tuple[float, ...] = ()
    labels: tuple[Label, ...] = ()
    complaints: tuple[Complaint, ...] = ()
    asked: Mapping[str, int] = field(default_factory=lambda: _NOTHING)


def encode_batch(batch: Batch) -> bytes:
    """A batch as a line of the stream: JSON. Scores have six digits, but all where a threshold is to be just above."""
    line: list[object] = [
        batch.requests,
        [round(score, 6) for score in batch.scores],
        [(label.score, label.wrong, label.weight) for label in batch.labels],
    ]
    if batch.complaints or batch.asked:
        line += [[(one.score, one.owner, one.request) for one in batch.complaints], batch.asked]
    return orjson.dumps(line)


def decode_batch(data: bytes) -> Batch:
    """The batch in a line of the stream; raises CorruptEntry."""
    try:
        requests, scores, labels, *rest = orjson.loads(data)
        complaints, asked = rest or ((), _NOTHING)
        batch = Batch(
            int(requests),
            tuple(map(float, scores)),
            tuple(Label(float(s), bool(w), float(h)) for s, w, h in labels),
            tuple(Complaint(float(s), str(o), str(r)) for s, o, r in complaints),
            {str(owner): int(count) for owner, count in dict(asked).items()},
        )
    except (ValueError, TypeError) as error:
        raise CorruptEntry(f"batch: {error}") from None
    if (
        batch.requests < 0
        or not all(map(math.isfinite, batch.scores))
        or any(label.weight < 1 for label in batch.labels)
        or not all(math.isfinite(one.score) for one in batch.complaints)
        or any(count < 0 for count in batch.asked.values())
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
    force now, for all but the owners in `own`; `breached` while more than `max_error` of the requests would have been
    answered wrongly, by all that is known, at the threshold that was in force before.
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
    own: Mapping[str, float] = field(init=False, default_factory=dict)
    """Of each owner with a complaint in the window the least score that it is served at, -inf where any will do."""
    _complaints: dict[str, Complaint] = field(init=False, default_factory=dict)
    """Those in the window, by their request."""

    def __post_init__(self) -> None:
        self.threshold = self.strict
        self._aim = self.max_error

    @property
    def labels(self) -> int:
        """How many labels count now."""
        return self._labels

    def threshold_for(self, owner: str) -> float:
        """The score from which on this owner's requests are served."""
        own = self.own.get(owner)
        return self.threshold if own is None else max(own, self.threshold)

    def has_heard(self, request: str) -> bool:
        """Whether a complaint about this request counts already."""
        return request in self._complaints

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
        if not batch.requests and not batch.labels and not batch.complaints:
            return
        self._adapt(batch)
        if batch.complaints:
            new = {one.request: one for one in batch.complaints if one.request not in self._complaints}
            self._complaints.update(new)
            batch = replace(batch, complaints=tuple(new.values()))
        self._batches.append(batch)
        self._requests += batch.requests
        while self._requests - self._batches[0].requests >= WINDOW:
            gone = self._batches.popleft()
            self._requests -= gone.requests
            for one in gone.complaints:
                del self._complaints[one.request]
        by_owner = self._by_owner()
        self.own = self._own(by_owner)
        self._set(by_owner)

    def _adapt(self, batch: Batch) -> None:
        """Moves the aim by what these labels say of the threshold that was in force."""
        if self._labels < LEAST_LABELS:
            return
        lost = sum(label.weight for label in batch.labels if label.wrong and label.score >= self.threshold)
        moved = self._aim + _PACE / 100 * (self.max_error * batch.requests - lost)
        self._aim = min(self.max_error, max(_LOWEST_AIM * self.max_error, moved))

    def _by_owner(self) -> dict[str, list[float]]:
        """The scores of the complaints in the window, the highest first, by owner."""
        found: dict[str, list[float]] = {}
        for one in self._complaints.values():
            found.setdefault(one.owner, []).append(one.score)
        for scores in found.values():
            scores.sort(reverse=True)
        return found

    def _own(self, by_owner: Mapping[str, list[float]]) -> dict[str, float]:
        """See `own`. The complaints at the highest scores are allowed for first."""
        asked = dict.fromkeys(by_owner, 0)
        for batch in self._batches if by_owner else ():
            for owner, count in batch.asked.items():
                if owner in asked:
                    asked[owner] += count
        found = {}
        for owner, scores in by_owner.items():
            allowed = math.floor(self.max_error * asked[owner])
            found[owner] = math.nextafter(scores[allowed], math.inf) if allowed < len(scores) else -math.inf
        return found

    def _set(self, by_owner: Mapping[str, list[float]]) -> None:
        scores, wrong, weights = self._known()
        self._labels = len(scores)
        # A complaint is a wrong hit for certain and stands for no other, so it is neither scaled nor uncertain.
        most = _ONE_OWNER * self._aim * self._requests
        heard = [(score, min(1.0, most / len(some))) for some in by_owner.values() for score in some]
        told, parts = np.array(heard).reshape(-1, 2).T
        order = np.argsort(-np.concatenate([scores[wrong], told]))
        levels = np.concatenate([[math.inf], np.concatenate([scores[wrong], told])[order]])
        lost = np.concatenate([[0.0], np.concatenate([weights[wrong], np.zeros(len(told))])[order]])
        complained = np.concatenate([[0.0], np.concatenate([np.zeros(int(wrong.sum())), parts])[order]])
        growth = self._growth(levels) / max(1, self._requests)
        estimate = np.cumsum(lost) * growth + np.cumsum(complained) / max(1, self._requests)
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
