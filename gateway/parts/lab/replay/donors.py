"""Draw what was never recorded from requests alike where it was: a hot deck with the approximate Bayesian bootstrap.

Requests are alike if they lie between the same constants of the recorded policies' start rules and agree in whether
they stream, and if possible in kind, tenth of the quantile and prompt length too. Routing depends on nothing else
that is recorded, so among those alike who was called is as good as drawn at random. Where too few are alike nothing is
drawn: an extrapolation would be a guess.

Each imputation first draws the donors with replacement, then a donor for each request. The variance between imputations
then covers both what a request would have got and what is not known of its likes (Rubin and Schenker 1986).

Requests that ask the same get much the same, so they are no independent draws. Of several donors that ask the same a
stratum has one: drawing donors is drawing questions. A request that asks the same as others gets the donor of one of
them, recorded or drawn before, or a new one from its stratum: with m of those before it, a new one with the probability
a / (a + m). This is Polya's urn (Blackwell and MacQueen 1973) with the stratum as its base: the answers of two that ask
the same then correlate by 1 / (1 + a), and a is taken from how much the recorded answers of equal questions do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.parts.lab.replay.cells import Bools, Floats, Ints, numbered
from gateway.parts.lab.replay.history import History

FEWEST: Final = 5
"""Fewest donors of a stratum; with fewer there is no evidence."""
_ENOUGH: Final = 30
"""With fewer donors a coarser stratum is taken if there is one."""
APART: Final = 1e9
"""The urn's parameter where those that ask the same have nothing in common."""
_LEAST_ALIKE: Final = 1e-6
_LENGTHS: Final = 32
_MOST_KEYS: Final = 4_000_000
_MOST: Final = 1000
"""Most donors of one stratum: more would not narrow any interval noticeably."""

Salts = NDArray[np.uint64]
"""One for each imputation."""
Keys = NDArray[np.integer[Any]]
Strata = tuple[Keys, ...]
"""The stratum of each request, from the finest division to the coarsest."""


def strata_of(history: History) -> Strata:
    """Return the strata of all requests."""
    stream = history.stream.astype(np.int64)
    tenth = np.where(np.isnan(history.quantile), 10, np.minimum(history.quantile * 10, 9)).astype(np.int64)
    coarse = history.rules * 2 + stream
    middle = coarse * 11 + tenth
    fine = (middle * 128 + history.kind) * _LENGTHS + _length_of(history)
    return tuple(map(_short, (fine, middle, coarse)))


def hit_strata_of(history: History) -> Strata:
    """Return strata by what is known of cache hits, which were never decided upon: prompt length and stream."""
    stream = history.stream.astype(np.int64)
    return tuple(map(_short, (_length_of(history) * 2 + stream, stream)))


def _length_of(history: History) -> Ints:
    """Return the binary logarithm of each prompt's tokens."""
    lengths: Ints = np.log2(np.nan_to_num(history.tokens, nan=1.0).clip(1, 1 << 20)).astype(np.int64)
    return lengths


def _short(keys: Ints) -> Keys:
    """Return the keys numbered in their order, if that is enough in two bytes, which sort ten times as fast."""
    small = keys if int(keys.max(initial=0)) < _MOST_KEYS else numbered(keys)
    there = _marked(small, int(small.max(initial=0)) + 1)
    numbers: Ints = (np.cumsum(there) - 1)[small]
    return numbers.astype(np.uint16) if there.sum() <= 1 << 16 else numbers


@dataclass(frozen=True, slots=True)
class Pool:
    """Donors for some targets, sorted by stratum at each level of division."""

    donors: Ints
    group_start: Ints
    group_size: Ints
    start: Ints
    """For each target, where its donors begin."""
    size: Ints
    """For each target, the number of its donors; 0 for no evidence."""
    question: Ints
    """For each target, the number of what it asks."""
    same: Ints
    """The donors that ask the same as a target, in the order of what they ask."""
    same_start: Ints
    """For each target, where those begin that ask the same."""
    same_size: Ints
    alone: Bools
    """For each target, whether neither another one nor a donor asks the same."""

    @classmethod
    def of(
        cls,
        is_donor: Bools,
        strata: Strata,
        targets: Ints,
        question: Ints,
        draw: np.random.Generator,
        *,
        one_each: bool = True,
    ) -> Pool:
        """Divide the donors by stratum, and find those of each target.

        `question` is what each request asks; with `one_each` a stratum has one donor of those that ask the same.
        """
        every = np.flatnonzero(is_donor)
        questions = int(question.max(initial=0)) + 1
        asked = _marked(question[targets], questions)
        number = (np.cumsum(asked) - 1)[question[targets]]
        same = every[asked[question[every]]]
        same = same[np.argsort(question[same], kind="stable")]
        different = np.flatnonzero(asked)
        same_start = np.searchsorted(question[same], different)
        same_size = np.searchsorted(question[same], different, "right") - same_start
        every = every[np.isin(strata[-1][every], strata[-1][targets])]
        every = every[draw.permutation(len(every))]
        if one_each:
            first_at = np.empty(questions, np.int64)
            first_at[question[every[::-1]]] = np.arange(len(every))[::-1]  # the last that is written stays
            every = every[first_at[question[every]] == np.arange(len(every))]
        start, size = np.zeros(len(targets), np.int64), np.zeros(len(targets), np.int64)
        donors, starts, sizes, offset = [], [], [], 0
        for level, keys in enumerate(strata):
            least = FEWEST if level == len(strata) - 1 else _ENOUGH
            order = np.argsort(keys[every], kind="stable")
            own = every[order]
            first = _begins(keys[own])
            groups, count = keys[own][first], np.diff(first, append=len(own))
            rank = np.arange(len(own)) - np.repeat(first, count)
            open_ = np.flatnonzero(size == 0)
            wanted = keys[targets[open_]]
            at = np.minimum(np.searchsorted(groups, wanted), max(len(groups) - 1, 0))
            found = (groups[at] == wanted) & (count[at] >= least) if len(groups) else np.zeros(len(open_), np.bool_)
            # Only the strata of targets are kept, and of each at most so many donors.
            most = np.zeros(len(groups), np.int64)
            most[at[found]] = np.minimum(count, _MOST)[at[found]]
            own, count = own[rank < np.repeat(most, count)], most
            first = np.cumsum(count) - count
            start[open_[found]], size[open_[found]] = offset + first[at[found]], count[at[found]]
            donors.append(own)
            starts.append(offset + np.repeat(first, count))
            sizes.append(np.repeat(count, count))
            offset += len(own)
        return cls(
            donors=np.concatenate(donors),
            group_start=np.concatenate(starts),
            group_size=np.concatenate(sizes),
            start=start,
            size=size,
            question=number,
            same=same,
            same_start=same_start[number],
            same_size=same_size[number],
            alone=(same_size[number] == 0) & (np.bincount(number)[number] == 1),
        )

    def resampled(self, draw: np.random.Generator, count: int = 1) -> Salts:
        """Return the donors of each of `count` imputations: each stratum's drawn from it with replacement.

        They are not drawn one by one: an imputation's salt tells, by a hash, which donor stands at a place.
        """
        salts: Salts = draw.integers(0, 1 << 63, count, np.uint64)
        return salts

    def drawn(self, resampled: Salts, targets: Ints, draw: np.random.Generator, which: Ints | int = 0) -> Ints:
        """Return a donor for each of these targets (positions among the targets), which must have some.

        `which` is the imputation of each.
        """
        at = self.start[targets] + (draw.random(len(targets)) * self.size[targets]).astype(np.int64)
        within = (_shares(resampled[which], at) * self.group_size[at]).astype(np.int64)
        donors: Ints = self.donors[self.group_start[at] + within]
        return donors

    def shared(
        self,
        resampled: Salts,
        targets: Ints,
        concentration: Floats | float,
        draw: np.random.Generator,
        which: Ints | int = 0,
    ) -> Ints:
        """Return a donor for each of these targets, which those that ask the same share: Polya's urn.

        The targets must have donors that are alike, or that ask the same: then one of those is taken. `which` is the
        imputation of each, `concentration` the urn's parameter in it.
        """
        concentration, which = (np.broadcast_to(array, len(targets)) for array in (concentration, which))
        result = targets.copy()
        alike = np.flatnonzero(self.size[targets] > 0)
        result[alike] = self.drawn(resampled, targets[alike], draw, which[alike])
        if len(alike) == len(targets) and (concentration >= APART).all():
            return result
        several = np.flatnonzero(~self.alone[targets])
        result[several] = self._urn(result[several], targets[several], concentration[several], draw, which[several])
        return result

    def _urn(self, donors: Ints, targets: Ints, concentration: Floats, draw: np.random.Generator, which: Ints) -> Ints:
        """Return what comes of these new donors, one for each target, once those that ask the same share some."""
        n = len(targets)
        question = self.question[targets] + which * (int(self.question.max(initial=0)) + 1)
        order = np.argsort(question, kind="stable")
        asked = question[order]
        first = _begins(asked)
        begin = np.repeat(first, np.diff(np.concatenate([first, [n]])))
        before = np.arange(n) - begin
        recorded = self.same_size[targets][order]
        new = np.where(self.size[targets][order] > 0, concentration[order], 0.0)
        ball = (draw.random(n) * (recorded + before + new)).astype(np.int64)
        of_record = np.flatnonzero(ball < recorded)
        chosen = donors[order]
        chosen[of_record] = self.same[self.same_start[targets][order][of_record] + ball[of_record]]
        # The others take that of one before them, which may have taken another's in turn.
        copies = (ball >= recorded) & (ball < recorded + before)
        source = np.where(copies, begin + ball - recorded, np.arange(n))
        while not np.array_equal(source, further := source[source]):
            source = further
        result = np.empty_like(donors)
        result[order] = chosen[source]
        return result


@dataclass(frozen=True, slots=True)
class Likeness:
    """How much the recorded values of equal questions agree: one-way analysis of variance within the strata."""

    within: float
    """Variance of the values of one question; of no use without degrees of freedom."""
    freedom: int
    """Degrees of freedom of `within`; 0 if no question was recorded twice."""
    total: float
    """Variance of the values of one stratum."""

    @classmethod
    def of(cls, values: Floats, question: Ints, stratum: Keys) -> Likeness:
        """Measure how alike the values of equal questions are; the arrays have one item for each donor."""
        known = np.isfinite(values)
        values, question = values[known], numbered(question[known])
        if len(values) < 2:
            return cls(0.0, 0, 0.0)
        stratum = numbered(stratum[known])
        total, strata = _squares(values, stratum)
        within, questions = _squares(values, question)
        freedom = len(values) - questions
        return cls(within / max(freedom, 1), freedom, total / max(len(values) - strata, 1))

    def concentration(self, draw: np.random.Generator) -> float:
        """Return the urn's parameter, drawn from what is known of it; any correlation is as likely if nothing is."""
        if not self.freedom or not self.total:
            alike = float(draw.random())
        else:
            alike = 1 - self.within * self.freedom / float(draw.chisquare(self.freedom)) / self.total
        alike = min(max(alike, _LEAST_ALIKE), 1.0)
        return (1 - alike) / alike


def _squares(values: Floats, group: Ints) -> tuple[float, int]:
    """Return the sum of squared differences from the means of the groups, and the number of groups."""
    sizes = np.bincount(group)
    means = np.bincount(group, values) / np.maximum(sizes, 1)
    return float(((values - means[group]) ** 2).sum()), len(sizes)


def _shares(salt: Salts | np.uint64, place: Ints) -> Floats:
    """Return a number from 0 up to 1 for each salt and place, as if drawn: SplitMix64 (Steele, Lea and Flood 2014)."""
    mixed = (place.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed += salt
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    shares: Floats = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return shares


def _begins(ordered: Keys) -> Ints:
    """Return where each run of equal numbers begins."""
    return np.flatnonzero(np.concatenate([np.ones(min(len(ordered), 1), np.bool_), ordered[1:] != ordered[:-1]]))


def _marked(keys: Keys, size: int) -> Bools:
    """Return which numbers below `size` are among the keys."""
    there = np.zeros(size, np.bool_)
    there[keys] = True
    return there
