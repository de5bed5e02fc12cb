"""Set a threshold that keeps the share of wrong hits among all requests of a surface below a bound. No clock, no I/O.

A candidate is served if its score reaches the threshold; serving a wrong one is a loss of 1, everything else of 0, per
request. So the expected loss falls as the threshold rises, and conformal risk control (Angelopoulos et al. 2022) finds
the lowest threshold that keeps it under `max_error` from labelled requests. Properties of the labels, and consequences:

  random sampling   Of the candidates that would be served only a few are answered by a model and compared, so each
                    label is weighted by the inverse of its probability of being drawn.
  free labels       A candidate under the threshold is answered by a model anyway. Its label shows how far the threshold
                    may be lowered.
  coarse labels     A comparison of two answers by their words and vectors takes some opposites for the same. So it may
                    raise the threshold and let it fall back, but not below the strict one: there, what a judge or a
                    person has not labelled counts as wrong, and LEAST_LABELS of theirs are needed.
  few labels        An estimate is not enough where a handful of labels decides: an upper bound is kept under
                    `max_error`, and until there are enough labels the strict threshold holds.
  a rolling window  The index fills up, and what a threshold lets through grows with it. Labels of the latest WINDOW
                    requests count, and are scaled by how much more often candidates reach the threshold now (which
                    every request shows, without a label).
  drift             What the window misses shows in the labels of served answers: the target level falls with every
                    excess and recovers slowly (adaptive conformal inference, Gibbs and Candes 2021). So over a long run
                    the bound holds for any order of requests, not only for exchangeable ones.
  complaints        A client reports a wrong hit. That is no random sample, so it is no label: it counts as one wrong
                    hit at its score, once per request. It first affects its own tenant (or the team that shares its
                    answers): that tenant's threshold rises above the score at once, and falls again when `max_error` of
                    its requests since then covers the complaint. For the whole surface, one tenant's complaints count
                    for at most half of the allowed wrong hits: alone it can move the threshold of others no further
                    than half of `max_error` would. One that is withdrawn counts no more.

All observations come in batches, and the state is computed only from them, in order: replicas that read the same
batches from the store have the same threshold, and so does a restarted one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final

import numpy as np
import orjson
from numpy.typing import NDArray

from cache.entry import CorruptEntry

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

WINDOW = 50_000
"""Number of latest requests whose labels count."""
ENOUGH = 1_000
"""Number of labels of candidates above the threshold that the sampling aims for in a window."""
LEAST_LABELS = 100
"""Fewest labels of a surface before its threshold may leave the strict one."""
_RECENT = 5_000  # requests that tell how often candidates reach the threshold now
_PRIOR = 20.0  # candidates: so many more must reach it before a difference between now and then counts
_MANY = 0.1  # largest share sampled of candidates above the threshold
_FREE = 5.0  # factor by which candidates below it are sampled more often: their requests lose no hit
_SURE = 1.28  # standard errors: a one-sided upper bound with 90% confidence
_PACE = 0.01  # change of the target level per excess of a batch and hundred requests
_LOWEST_AIM = 0.25
_ONE_OWNER = 0.5  # maximum share of a surface's allowed wrong hits that one owner's complaints make up
_NOTHING: Final[Mapping[str, int]] = {}


@dataclass(frozen=True, slots=True)
class Label:
    """The result of comparing a stored with a new answer. `weight`: the number of such requests it represents.

    `judged`: by a judge or a person, who may lower the threshold below the strict one.
    """

    score: float
    wrong: bool
    weight: float
    judged: bool = False


@dataclass(frozen=True, slots=True)
class Complaint:
    """A client's report of a wrong hit. `score` is the hit's, `owner` the tenant or team whose threshold rises first.

    `request` identifies the tenant and the request, so that repeated complaints count once.
    """

    score: float
    owner: str
    request: str


def complaint_of(tenant: str, request_id: str, score: float, owner: str) -> Complaint:
    """Return the complaint about a tenant's request; its name in the stream does not contain the request's id."""
    return Complaint(score, owner, blake2b(orjson.dumps((tenant, request_id)), digest_size=8).hexdigest())


@dataclass(frozen=True, slots=True)
class RiskFigures:
    """What a surface's labels say of the threshold in force. Shares are of all requests of the surface.

    `error` is the estimated share that wrongly gets another question's answer, `error_most` its one-sided upper bound
    with 90% confidence, None while labels are too few for one (the strict threshold holds then, and `fewest` says how
    many it takes). `served` of the `labels` are of candidates above the threshold, `wrong` of those were wrong.
    """

    max_error: float
    threshold: float
    strict: float
    audit: float
    breached: bool
    requests: int
    labels: int
    fewest: int
    served: int
    wrong: int
    complaints: int
    owners: int
    """Tenants and teams whose own threshold is higher now, because of their complaints."""
    error: float
    error_most: float | None


@dataclass(frozen=True, slots=True)
class Batch:
    """Some requests of a surface: their number, the scores of candidates without a veto, and new labels.

    `asked` is the number of the requests of each owner that had complained before, `withdrawn` names the requests whose
    complaints, in earlier batches, were no wrong hits.
    """

    requests: int
    scores: tuple[float, ...] = ()
    labels: tuple[Label, ...] = ()
    complaints: tuple[Complaint, ...] = ()
    asked: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    withdrawn: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Observed:
    """A batch as arrays: the candidates' scores, and the labels, shape (4, labels): score, 1 if wrong, weight,
    1 if judged.
    """

    requests: int
    scores: Floats
    labels: Floats
    complaints: tuple[Complaint, ...]
    asked: Mapping[str, int]

    @classmethod
    def of(cls, batch: Batch) -> _Observed:
        """Return the batch as arrays."""
        labels = np.array([(one.score, one.wrong, one.weight, one.judged) for one in batch.labels], np.float64)
        scores = np.asarray(batch.scores, np.float64)
        return cls(batch.requests, scores, labels.reshape(-1, 4).T, batch.complaints, batch.asked)


def encode_batch(batch: Batch) -> bytes:
    """Encode a batch as a line of the stream, JSON.

    Scores are rounded to six digits, but not those of labels and complaints: a threshold may be set just above one.
    """
    line: list[object] = [
        batch.requests,
        [round(score, 6) for score in batch.scores],
        [(label.score, label.wrong, label.weight, label.judged) for label in batch.labels],
    ]
    if batch.complaints or batch.asked or batch.withdrawn:
        line += [[(one.score, one.owner, one.request) for one in batch.complaints], batch.asked]
    if batch.withdrawn:
        line.append(batch.withdrawn)
    return orjson.dumps(line)


def decode_batch(data: bytes) -> Batch:
    """Decode a line of the stream. Raises CorruptEntry."""
    try:
        requests, scores, labels, *rest = orjson.loads(data)
        complaints, asked, *withdrawn = rest or ((), _NOTHING)
        batch = Batch(
            int(requests),
            tuple(map(float, scores)),
            tuple(Label(float(s), bool(w), float(h), bool(j)) for s, w, h, j in labels),
            tuple(Complaint(float(s), str(o), str(r)) for s, o, r in complaints),
            {str(owner): int(count) for owner, count in dict(asked).items()},
            tuple(str(request) for several in withdrawn for request in several),
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
    """Return the lowest threshold with an expected share of wrong hits of at most `max_error`; infinite if none has.

    `scores` (n,) are of cases drawn like the next one, -inf where no threshold serves; `wrong`: serving it is wrong.
    Conformal risk control (Angelopoulos et al. 2022): one wrong hit is added to those observed.
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
    """Set the threshold of one surface; see the module's docstring.

    `strict` is the threshold while labels are few, `audit` the smallest share of candidates above the threshold that is
    sampled (0: nothing is compared, and the strict threshold stays). `threshold` is in force now, for all but the
    owners in `own`; `breached` is set while, by the present estimate, more than `max_error` of the requests would have
    been answered wrongly at the previous threshold.
    """

    max_error: float
    strict: float
    audit: float = 0.02
    threshold: float = field(init=False)
    breached: bool = field(init=False, default=False)
    _aim: float = field(init=False)
    _batches: deque[_Observed] = field(init=False, default_factory=deque)
    _requests: int = field(init=False, default=0)
    _share: float = field(init=False)
    """Share of the candidates above the threshold that is sampled now."""
    _labels: int = field(init=False, default=0)
    own: Mapping[str, float] = field(init=False, default_factory=dict)
    """For each owner with a complaint in the window, the lowest score it is served at; -inf where any is allowed."""
    _complaints: dict[str, Complaint] = field(init=False, default_factory=dict)
    """Complaints in the window by their request."""
    _error: float = field(init=False, default=0.0)
    _error_most: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.threshold = self.strict
        self._aim = self.max_error
        self._share = max(self.audit, _MANY)

    @property
    def labels(self) -> int:
        """Number of labels in the window."""
        return self._labels

    def threshold_for(self, owner: str) -> float:
        """Return the score from which on this owner's requests are served."""
        own = self.own.get(owner)
        return self.threshold if own is None else max(own, self.threshold)

    def figures(self) -> RiskFigures:
        """Return what is known of the threshold in force."""
        scores, wrong, _, _ = self._known()
        served = scores >= self.threshold
        return RiskFigures(
            max_error=self.max_error,
            threshold=self.threshold,
            strict=self.strict,
            audit=self.audit,
            breached=self.breached,
            requests=self._requests,
            labels=self._labels,
            fewest=LEAST_LABELS,
            served=int(served.sum()),
            wrong=int((served & wrong).sum()),
            complaints=len(self._complaints),
            owners=sum(lowest > self.threshold for lowest in self.own.values()),
            error=self._error,
            error_most=self._error_most,
        )

    def has_heard(self, request: str) -> bool:
        """Return whether a complaint about this request is already counted."""
        return request in self._complaints

    def weight(self, score: float, chance: float) -> float:
        """Return the label weight of a candidate without a veto if it is sampled for comparison, else 0.0.

        `chance` is uniform in 0..1. A sampled candidate above the threshold is not served.
        """
        if not self.audit:
            return 0.0
        share = self._share
        if score < self.threshold:
            share = min(1.0, _FREE * share)
        return 1 / share if chance < share else 0.0

    def fold(self, batch: Batch) -> None:
        """Process a batch and update the threshold."""
        if not (batch.requests or batch.labels or batch.complaints or batch.withdrawn):
            return
        self._adapt(batch)
        for request in batch.withdrawn:
            self._complaints.pop(request, None)
        if batch.complaints:
            new = {one.request: one for one in batch.complaints if one.request not in self._complaints}
            self._complaints.update(new)
            batch = replace(batch, complaints=tuple(new.values()))
        self._batches.append(_Observed.of(batch))
        self._requests += batch.requests
        while self._requests - self._batches[0].requests >= WINDOW:
            gone = self._batches.popleft()
            self._requests -= gone.requests
            for one in gone.complaints:
                if self._complaints.get(one.request) is one:  # else it was withdrawn
                    del self._complaints[one.request]
        by_owner = self._by_owner()
        self.own = self._own(by_owner)
        self._set(by_owner)

    def _adapt(self, batch: Batch) -> None:
        """Move the target level by the excess of these labels at the threshold that was in force."""
        if self._labels < LEAST_LABELS:
            return
        lost = sum(label.weight for label in batch.labels if label.wrong and label.score >= self.threshold)
        moved = self._aim + _PACE / 100 * (self.max_error * batch.requests - lost)
        self._aim = min(self.max_error, max(_LOWEST_AIM * self.max_error, moved))

    def _by_owner(self) -> dict[str, list[float]]:
        """Return the scores of the complaints in the window by owner, the highest first."""
        by_owner: dict[str, list[float]] = {}
        for one in self._complaints.values():
            by_owner.setdefault(one.owner, []).append(one.score)
        for scores in by_owner.values():
            scores.sort(reverse=True)
        return by_owner

    def _own(self, by_owner: Mapping[str, list[float]]) -> dict[str, float]:
        """Return the value of `own`. Complaints at the highest scores are covered first."""
        asked = dict.fromkeys(by_owner, 0)
        for batch in self._batches if by_owner else ():
            for owner, count in batch.asked.items():
                if owner in asked:
                    asked[owner] += count
        lowest = {}
        for owner, scores in by_owner.items():
            allowed = math.floor(self.max_error * asked[owner])
            lowest[owner] = math.nextafter(scores[allowed], math.inf) if allowed < len(scores) else -math.inf
        return lowest

    def _set(self, by_owner: Mapping[str, list[float]]) -> None:
        scores, wrong, weights, judged = self._known()
        self._labels = len(scores)
        levels, estimate, upper, lowest = self._bounds(by_owner, scores, wrong, weights)
        if lowest < self.strict:
            lowest = self.strict
            if judged.sum() >= LEAST_LABELS:
                doubtful = wrong | ~judged & (scores < self.strict)
                lowest = min(lowest, self._bounds(by_owner, scores, doubtful, weights)[-1])
        served = _last_served(levels, self.threshold)
        self.breached = served > 0 and float(estimate[served]) > self.max_error
        self.threshold = lowest
        served = _last_served(levels, self.threshold)
        self._error = float(estimate[served])
        self._error_most = None if upper is None else float(upper[served])
        self._share = self._sampled()

    def _bounds(
        self, by_owner: Mapping[str, list[float]], scores: Floats, wrong: Flags, weights: Floats
    ) -> tuple[Floats, Floats, Floats | None, float]:
        """Return falling levels of the score, the share of wrong hits that serving from each on gives, its upper bound
        (None with few labels), and the lowest threshold that keeps the bound.
        """
        # A complaint is certainly a wrong hit and represents no other, so it is neither scaled nor uncertain.
        most = _ONE_OWNER * self._aim * self._requests
        counted = [(score, min(1.0, most / len(some))) for some in by_owner.values() for score in some]
        reported, parts = np.array(counted).reshape(-1, 2).T
        order = np.argsort(-np.concatenate([scores[wrong], reported]))
        levels = np.concatenate([[math.inf], np.concatenate([scores[wrong], reported])[order]])
        lost = np.concatenate([[0.0], np.concatenate([weights[wrong], np.zeros(len(reported))])[order]])
        complained = np.concatenate([[0.0], np.concatenate([np.zeros(int(wrong.sum())), parts])[order]])
        growth = self._growth(levels) / max(1, self._requests)
        estimate = np.cumsum(lost) * growth + np.cumsum(complained) / max(1, self._requests)
        few, upper = len(scores) < LEAST_LABELS, None
        if few:
            fits = estimate <= self.max_error
        else:
            upper = estimate + (weights.max() + _SURE * np.sqrt(np.cumsum(lost**2))) * growth
            fits = upper <= self._aim
        # Scores between two levels have the loss of the upper one, so the threshold is just above the first misfit.
        if fits.all():
            lowest = self.strict if few else float(scores.min())
        else:
            lowest = math.nextafter(float(levels[int(np.argmin(fits))]), math.inf)
        return levels, estimate, upper, max(self.strict, lowest) if few else lowest

    def _sampled(self) -> float:
        """Return the share of candidates above the threshold to sample, for `ENOUGH` labels of them in a full window.

        It changes little from batch to batch: labels of very different weights make a poor estimate.
        """
        above = sum(int((batch.scores >= self.threshold).sum()) for batch in self._batches)
        expected = above * WINDOW / max(1, self._requests)
        return max(self.audit, min(_MANY, ENOUGH / max(1.0, expected)))

    def _known(self) -> tuple[Floats, Flags, Floats, Flags]:
        """Return the window's labels: scores, whether wrong, weights, whether judged."""
        known = np.concatenate([np.empty((4, 0)), *(batch.labels for batch in self._batches)], axis=1)
        return known[0], known[1].astype(np.bool_), known[2], known[3].astype(np.bool_)

    def _growth(self, levels: Floats) -> Floats:
        """Return how much more often candidates reach each level recently than over the window; at least 1."""
        every = [batch.scores for batch in self._batches]
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


def _last_served(levels: Floats, threshold: float) -> int:
    """Return the place of the lowest of the falling levels that the threshold serves; the first is infinite."""
    return int(np.searchsorted(-levels, -threshold, side="right")) - 1


def _reaching(scores: Floats, levels: Floats) -> Floats:
    """Return how many of the scores are at each level or above, shape (levels,)."""
    ordered = np.sort(scores)
    return (len(ordered) - np.searchsorted(ordered, levels)).astype(np.float64)
