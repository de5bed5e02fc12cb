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
  labels that err   The comparison's own errors are known from pairs of answers, and what its labels say is corrected by
                    them (`label_errors`): false alarms neither raise the threshold nor show a breach.
  few labels        An estimate is not enough where a handful of labels decides: an upper bound is kept under
                    `max_error`, and until there are enough labels of would-be hits for one, the strict threshold holds,
                    or one above the wrong hits that were seen, where they are more than false alarms explain.
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

  groups            A mean can hide that one language or one tenant gets the wrong hits. Each has a threshold of its
                    own, never below the surface's, which follows its own requests and labels (`groups`).
                    It moves first: labels that it keeps from being served no longer count against the surface.

All observations come in batches, and the state is computed only from them, in order: replicas that read the same
batches from the store have the same threshold, and so does a restarted one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from cache.semantic.hit_bound import Complaint
from gateway.parts.hit_audits.groups import (
    LEAST_LABELS,
    Batch,
    Flags,
    Floats,
    GroupFigures,
    Groups,
    Label,
    Labelled,
    above_misfits,
    code_of,
    too_few,
)
from gateway.parts.hit_audits.label_errors import AS_THEY_ARE, LabelErrors

WINDOW = 50_000
"""Number of latest requests whose labels count."""
ENOUGH = 1_000
"""Labels of candidates above the threshold that sampling aims for in a window, where the error is near the bound."""
_LEAST_NEED = 0.2  # of ENOUGH: twice as many as it takes to know a bound at all
_RECENT = 5_000  # requests that tell how often candidates reach the threshold now
_PRIOR = 20.0  # candidates: so many more must reach it before a difference between now and then counts
_MANY = 0.1  # largest share sampled of candidates above the threshold
_FREE = 5.0  # factor by which candidates below it are sampled more often: their requests lose no hit
_PACE = 0.01  # change of the target level per excess of a batch and hundred requests
_LOWEST_AIM = 0.25
_ONE_OWNER = 0.5  # maximum share of a surface's allowed wrong hits that one owner's complaints make up


@dataclass(frozen=True, slots=True)
class RiskFigures:
    """What a surface's labels say of the threshold in force. Shares are of all requests of the surface.

    `error` is the estimated share that wrongly gets another question's answer, `error_most` its one-sided upper bound
    with 90% confidence, None while labels are too few for one (the strict threshold holds then, and `fewest` says how
    many of would-be hits it takes). `served` of the `labels` are of candidates above the threshold, `wrong` of those
    were wrong.
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
    groups: tuple[GroupFigures, ...] = ()
    false_alarm: float | None = None
    """Share of right hits that the comparison calls wrong, which `error` leaves aside; None if nobody measured it."""
    sensitivity: float | None = None
    """Share of wrong hits that it calls wrong, by which `error` is scaled, in all languages together."""

    @property
    def breached_groups(self) -> list[GroupFigures]:
        """Those whose own bound is breached."""
        return [group for group in self.groups if group.breached]


@dataclass(frozen=True, slots=True)
class _Observed:
    """A batch, with its scores and labels as arrays; labels have shape (6, labels): score, 1 if wrong, weight, 1 if
    judged, codes of the language and of the owner.
    """

    batch: Batch
    scores: Floats
    labels: Floats

    @classmethod
    def of(cls, batch: Batch, errors: LabelErrors) -> _Observed:
        """Return the batch as arrays, with weights that make up for wrong hits which labels do not show."""
        rows = [
            (one.score, one.wrong, _weight(one, errors), one.judged, code_of(one.language), code_of(one.owner))
            for one in batch.labels
        ]
        labels = np.array(rows, np.float64).reshape(-1, 6).T
        return cls(replace(batch, scores=(), labels=()), np.asarray(batch.scores, np.float64), labels)


def _weight(label: Label, errors: LabelErrors) -> float:
    return label.weight if label.judged else label.weight * errors.stands_for(label.language)


@dataclass(frozen=True, slots=True)
class _Window:
    """The labels of a window, with the groups of their requests."""

    languages: Labelled
    owners: Labelled
    judged: Flags

    @property
    def scores(self) -> Floats:
        return self.languages.scores

    @property
    def wrong(self) -> Flags:
        return self.languages.wrong

    @property
    def weights(self) -> Floats:
        return self.languages.weights


class _Growth:
    """How much more often candidates reach a level now than over the whole window; at least 1."""

    def __init__(self, batches: deque[_Observed], requests: int) -> None:
        recent, count = [], 0
        for observed in reversed(batches):
            recent.append(observed.scores)
            count += observed.batch.requests
            if count >= _RECENT:
                break
        self._share = count / max(1, requests)
        self._now, self._all = (
            np.sort(np.concatenate([np.empty(0), *some])) for some in (recent, [one.scores for one in batches])
        )

    def candidates_from(self, levels: Floats) -> Floats:
        """Return how many candidates of the window reach each level."""
        return len(self._all) - self._all.searchsorted(levels).astype(np.float64)

    def __call__(self, levels: Floats) -> Floats:
        """Return the factor for each level."""
        if not self._share:
            return np.ones(len(levels))
        now, all_along = (len(scores) - scores.searchsorted(levels) for scores in (self._now, self._all))
        return np.maximum(1.0, (now + _PRIOR) / (all_along * self._share + _PRIOR))


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
    errors: LabelErrors = AS_THEY_ARE
    threshold: float = field(init=False)
    breached: bool = field(init=False, default=False)
    _aim: float = field(init=False)
    _batches: deque[_Observed] = field(init=False, default_factory=deque)
    _requests: int = field(init=False, default=0)
    _share: float = field(init=False)
    """Share of the candidates above the threshold that is sampled now."""
    labels: int = field(init=False, default=0)
    """Number of labels in the window."""
    alike: bool = field(init=False, default=True)
    """Whether `threshold` is that of every owner and language: none has one of its own."""
    languages: Groups = field(init=False)
    tenants: Groups = field(init=False)
    own: Mapping[str, float] = field(init=False, default_factory=dict)
    """For each owner with a complaint in the window, the lowest score it is served at; -inf where any is allowed."""
    _complaints: dict[str, Complaint] = field(init=False, default_factory=dict)
    """Complaints in the window by their request."""
    _error: float = field(init=False, default=0.0)
    _error_most: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.threshold = self.strict
        self.languages, self.tenants = (
            Groups(kind, self.max_error, self.strict, self.errors) for kind in ("language", "tenant")
        )
        self._aim = self.max_error
        self._share = max(self.audit, _MANY)

    def threshold_for(self, owner: str, language: str = "") -> float:
        """Return the score from which on this owner's requests in this language are served."""
        languages, tenants = self.languages, self.tenants
        return max(
            self.threshold,
            self.own.get(owner, -math.inf),
            languages.own.get(language, languages.others) if language else -math.inf,
            tenants.own.get(owner, tenants.others) if owner else -math.inf,
        )

    def figures(self) -> RiskFigures:
        """Return what is known of the threshold in force."""
        window, growth = self._known(), _Growth(self._batches, self._requests)
        served = (window.scores >= self.threshold) & ~self._held(window)
        groups = [
            *self.languages.figures(window.languages, self._requests, self.threshold, growth),
            *self.tenants.figures(window.owners, self._requests, self.threshold, growth),
        ]
        return RiskFigures(
            max_error=self.max_error,
            threshold=self.threshold,
            strict=self.strict,
            audit=self.audit,
            breached=self.breached,
            requests=self._requests,
            labels=self.labels,
            fewest=LEAST_LABELS,
            served=int(served.sum()),
            wrong=int((served & window.wrong).sum()),
            complaints=len(self._complaints),
            owners=sum(lowest > self.threshold for lowest in self.own.values()),
            error=self._error,
            error_most=self._error_most,
            groups=tuple(groups),
            false_alarm=self.errors.false_alarm if self.errors.same else None,
            sensitivity=self.errors.sensitivity() if self.errors.other else None,
        )

    def has_heard(self, request: str) -> bool:
        """Return whether a complaint about this request is already counted."""
        return request in self._complaints

    def weight(self, score: float, chance: float, threshold: float | None = None, least: float = 0.0) -> float:
        """Return the label weight of a candidate without a veto if it is sampled for comparison, else 0.0.

        `chance` is uniform in 0..1. A sampled candidate above the threshold is not served. `threshold` is that of the
        request, else the surface's, and `least` the smallest share that is sampled.
        """
        if not self.audit:
            return 0.0
        share = max(least, self._share)
        if score < (self.threshold if threshold is None else threshold):
            share = min(1.0, _FREE * share)
        return 1 / share if chance < share else 0.0

    def fold(self, batch: Batch) -> None:
        """Take in a batch of observations, of any worker, and compute the threshold anew."""
        if not (batch.requests or batch.labels or batch.complaints or batch.withdrawn):
            return
        self._adapt(batch)
        for request in batch.withdrawn:
            self._complaints.pop(request, None)
        if batch.complaints:
            new = {one.request: one for one in batch.complaints if one.request not in self._complaints}
            self._complaints.update(new)
            batch = replace(batch, complaints=tuple(new.values()))
        self._batches.append(_Observed.of(batch, self.errors))
        self._count(batch)
        while self._requests - self._batches[0].batch.requests >= WINDOW:
            gone = self._batches.popleft().batch
            self._count(gone, -1)
            for one in gone.complaints:
                if self._complaints.get(one.request) is one:  # else it was withdrawn
                    del self._complaints[one.request]
        by_owner = self._by_owner()
        self.own = self._own(by_owner)
        self._set(by_owner, batch)
        kinds = (self.languages, self.tenants)
        self.alike = not self.own and not any(groups.own or groups.others > -math.inf for groups in kinds)

    def _count(self, batch: Batch, sign: int = 1) -> None:
        self._requests += sign * batch.requests
        self.languages.count(batch.languages, sign)
        self.tenants.count(batch.owners, sign)

    def _adapt(self, batch: Batch) -> None:
        """Move the target level by the excess of these labels at the threshold that was in force."""
        if self._error_most is None:
            return
        lost = sum(
            _weight(label, self.errors)
            for label in batch.labels
            if label.wrong and label.score >= self.threshold_for(label.owner, label.language)
        )
        expected = self.errors.per_hit * sum(score >= self.threshold for score in batch.scores)
        moved = self._aim + _PACE / 100 * (self.max_error * batch.requests + expected - lost)
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
        for observed in self._batches if by_owner else ():
            for owner, count in observed.batch.asked.items():
                if owner in asked:
                    asked[owner] += count
        lowest = {}
        for owner, scores in by_owner.items():
            allowed = math.floor(self.max_error * asked[owner])
            lowest[owner] = math.nextafter(scores[allowed], math.inf) if allowed < len(scores) else -math.inf
        return lowest

    def _set(self, by_owner: Mapping[str, list[float]], batch: Batch) -> None:
        window, growth = self._known(), _Growth(self._batches, self._requests)
        self.labels = len(window.scores)
        # What was served until now tells of a breach; what the groups' thresholds hold back from now on is no loss.
        until_now = window.wrong & ~self._held(window)
        levels, estimate, *_ = self._bounds(by_owner, window, until_now, growth)
        served = _last_served(levels, self.threshold)
        self.breached = served > 0 and float(estimate[served]) > self.max_error
        wrong = [label for label in batch.labels if label.wrong]
        for groups, labelled, latest in (
            (self.languages, window.languages, [(label.language, label.score) for label in wrong]),
            (self.tenants, window.owners, [(label.owner, label.score) for label in wrong]),
        ):
            groups.settle(labelled, self._requests, self.threshold, growth, latest)
        served_now = ~self._held(window)
        lost = window.wrong & served_now
        levels, estimate, upper, lowest = self._bounds(by_owner, window, lost, growth)
        if lowest < self.strict:
            lowest = self.strict
            if window.judged.sum() >= LEAST_LABELS:
                doubtful = lost | served_now & ~window.judged & (window.scores < self.strict)
                lowest = min(lowest, self._bounds(by_owner, window, doubtful, growth)[-1])
        self.threshold = lowest
        served = _last_served(levels, self.threshold)
        self._error = float(estimate[served])
        self._error_most = None if upper is None else float(upper[served])
        self._share = self._sampled(float(growth.candidates_from(np.array([self.threshold]))[0]), self._need())

    def _held(self, window: _Window) -> Flags:
        """Return which labels are of candidates that the threshold of their language or tenant holds back."""
        return self.languages.held(window.languages) | self.tenants.held(window.owners)

    def _bounds(
        self, by_owner: Mapping[str, list[float]], window: _Window, wrong: Flags, growing: _Growth
    ) -> tuple[Floats, Floats, Floats | None, float]:
        """Return falling levels of the score, the share of wrong hits that serving from each on gives, its upper bound
        (None with few labels), and the lowest threshold that keeps the bound.
        """
        scores, weights = window.scores, window.weights
        # A complaint is certainly a wrong hit and represents no other, so it is neither scaled nor uncertain.
        most = _ONE_OWNER * self._aim * self._requests
        counted = [(score, min(1.0, most / len(some))) for some in by_owner.values() for score in some]
        reported, parts = np.array(counted).reshape(-1, 2).T
        # Of no weight: no wrong hit is above the highest level, and the strict threshold stands for all above it.
        levels = np.concatenate([[math.inf], scores[wrong], reported, [self.strict]])
        order = (-levels).argsort(kind="stable")
        levels, nothing = levels[order], np.zeros(len(levels))
        lost, complained = nothing.copy(), nothing
        lost[1 : 1 + int(wrong.sum())], complained[1 + int(wrong.sum()) : -1] = weights[wrong], parts
        lost, complained = lost[order], complained[order].cumsum() / max(1, self._requests)
        growth, hits = growing(levels) / max(1, self._requests), growing.candidates_from(levels)
        total = lost.cumsum()
        estimate = self.errors.unexplained(total, (lost > 0).astype(np.float64).cumsum(), hits) * growth + complained
        bearing, largest = (scores >= self.strict) | window.judged, float(weights.max(initial=0.0))
        few, upper = too_few(int(bearing.sum()), largest, self.max_error * self._requests), None
        fits = estimate <= self.max_error
        if not few:
            upper = self.errors.upper(total, (lost**2).cumsum(), largest, hits) * growth + complained
            fits = upper <= self._aim
        # Scores between two levels have the loss of the upper one, so the threshold is just above the first misfit.
        lowest = above_misfits(levels, fits, self.strict if few else float(scores.min()))
        return levels, estimate, upper, max(self.strict, lowest) if few else lowest

    def _need(self) -> float:
        """Return how much of the bound the error may take, 0..1; 1 where that or the error of a group is not known."""
        apart = any(groups.own or groups.others > -math.inf for groups in (self.languages, self.tenants))
        if apart or self._error_most is None:
            return 1.0
        return max(_LEAST_NEED, min(1.0, self._error_most / self._aim))

    def _sampled(self, above: float, need: float) -> float:
        """Return the share of candidates above the threshold to sample, for `ENOUGH` labels of them in a full window.

        `above` of them are in this one. `need`, 0..1, is how much of the bound the error may take: the less, the fewer
        labels. It depends on labels before, never on the one that is drawn, so weights stay those of the draw.

        The share changes little from batch to batch: labels of very different weights make a poor estimate.
        """
        expected = above * WINDOW / max(1, self._requests)
        return max(self.audit, min(_MANY, need * ENOUGH / max(1.0, expected)))

    def _known(self) -> _Window:
        """Return the window's labels."""
        known = np.concatenate([np.empty((6, 0)), *(observed.labels for observed in self._batches)], axis=1)
        scores, wrong, weights = known[0], known[1].astype(np.bool_), known[2]
        languages, owners = (Labelled(scores, wrong, weights, codes) for codes in known[4:])
        return _Window(languages, owners, known[3].astype(np.bool_))


def _last_served(levels: Floats, threshold: float) -> int:
    """Return the place of the lowest of the falling levels that the threshold serves; the first is infinite."""
    return int((-levels).searchsorted(-threshold, side="right")) - 1
