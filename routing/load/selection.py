"""Which of a tier's backends is called: one small interface, three ways to choose.

All of them work on what is known here and now. With several gateways in front of the same backends, always taking the
best would send every gateway to the same one at the same time; two drawn at random and the better of them taken is
nearly as good as the best and does not herd (Mitzenmacher 2001).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

_MASK = (1 << 64) - 1
_MUCH_MORE = 0.5


@dataclass(slots=True)
class Candidate:
    """A backend that may be called now."""

    index: int
    """Which of the tier's it is; for the caller."""
    key: int
    """A number that stays its own when backends come and go and is the same in every worker, such as a hash of its
    name: what conversations stick to."""
    weight: float
    """Its configured share beside the others'."""
    load: float
    """Calls in flight and waiting, per place that it has."""
    ttft_s: float | None
    """The median time to its first token without what waits there now; None if not known."""
    slope_s: float | None = None
    """Seconds that it takes per prompt token that is not in its cache; None if not known."""

    @property
    def wait_s(self) -> float | None:
        """How long the next call is expected to wait for its first token."""
        return None if self.ttft_s is None else self.ttft_s * (1 + self.load)


class Selection(Protocol):
    """A way to choose."""

    def choose(self, candidates: Sequence[Candidate], affinity: int, tokens_in: int) -> int:
        """The position in `candidates`, of which there is at least one, of the backend to call.

        `affinity` is a number that the requests of one conversation share; 0 if there is none.
        """
        ...


class PowerOfTwo:
    """The one of two drawn at random where the first token is expected sooner. 0.7 us."""

    __slots__ = ("_random",)

    def __init__(self, random: Random) -> None:
        self._random = random.random

    def choose(self, candidates: Sequence[Candidate], affinity: int, tokens_in: int) -> int:
        """One of two; where either's latency is not known yet, the less loaded one."""
        count = len(candidates)
        if count == 1:
            return 0
        first = int(self._random() * count)
        second = int(self._random() * (count - 1))
        second += second >= first
        one, other = candidates[first], candidates[second]
        if one.ttft_s is None or other.ttft_s is None:
            return second if other.load < one.load else first
        return second if other.ttft_s * (1 + other.load) < one.ttft_s * (1 + one.load) else first


class Weighted:
    """Each by its weight, evenly interleaved, among those that are not much more loaded than the others.

    Smooth weighted round robin, as nginx has it: weights 5, 1, 1 give A A B A C A A, never A A A A A B C. Where each
    cycle starts is random, so that workers do not move in step.
    """

    __slots__ = ("_due", "_random")

    def __init__(self, random: Random) -> None:
        self._random = random
        self._due: dict[int, float] = {}

    def choose(self, candidates: Sequence[Candidate], affinity: int, tokens_in: int) -> int:
        """The one most due among those with a free place, or else with hardly more load than the least."""
        if len(candidates) == 1:
            return 0
        bar = max(1.0, min(candidate.load for candidate in candidates) + _MUCH_MORE)
        due, total, best, most = self._due, 0.0, 0, -math.inf
        for position, candidate in enumerate(candidates):
            if candidate.load >= bar:
                continue
            total += candidate.weight
            owed = due.get(candidate.key)
            if owed is None:
                owed = self._random.random() * candidate.weight
            due[candidate.key] = owed = owed + candidate.weight
            if owed > most:
                best, most = position, owed
        due[candidates[best].key] -= total
        return best


class Sticky:
    """The one that had this conversation before, unless another is faster by more than its warm prompt cache saves.

    A conversation's home is the backend with the highest score for it, by weighted rendezvous hashing (Thaler and
    Ravishankar 1998; the weights after Schindelhauer and Schomaker 2005): every worker agrees on it without sharing
    anything, and when a backend goes only its own conversations move. Requests without affinity go by power of two.
    """

    __slots__ = ("_by_load",)

    def __init__(self, random: Random) -> None:
        self._by_load = PowerOfTwo(random)

    def choose(self, candidates: Sequence[Candidate], affinity: int, tokens_in: int) -> int:
        """The home, or the one that is faster even though it must read the whole prompt. 1.5 us per candidate."""
        if not affinity or len(candidates) == 1:
            return self._by_load.choose(candidates, affinity, tokens_in)
        home, highest = 0, -math.inf
        for position, candidate in enumerate(candidates):
            score = -candidate.weight / math.log(_uniform(affinity, candidate.key))
            if score > highest:
                home, highest = position, score
        best, least = home, candidates[home].wait_s
        if least is None:
            return _elsewhere_if_full(candidates, home)
        for position, candidate in enumerate(candidates):
            if position != home and (wait := _wait_when_cold(candidate, tokens_in)) < least:
                best, least = position, wait
        return best


def _wait_when_cold(candidate: Candidate, tokens_in: int) -> float:
    """Its expected wait, the reading of the whole prompt included. Unless measured, that is taken to double it."""
    wait = candidate.wait_s
    if wait is None or candidate.ttft_s is None:
        return math.inf
    return wait + (candidate.ttft_s if candidate.slope_s is None else candidate.slope_s * tokens_in)


def _elsewhere_if_full(candidates: Sequence[Candidate], home: int) -> int:
    """Where the home's latency is not known: it, or the least loaded one if only that has a free place."""
    least = min(range(len(candidates)), key=lambda position: candidates[position].load)
    return least if candidates[home].load >= 1 > candidates[least].load else home


def _uniform(affinity: int, key: int) -> float:
    """A number in (0, 1) that looks random, the same for the same pair (the finaliser of SplitMix64, Steele 2014)."""
    mixed = (affinity * 0x9E3779B97F4A7C15 ^ key * 0xD1342543DE82EF95) & _MASK
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & _MASK
    return (((mixed ^ mixed >> 31) >> 12) + 0.5) / (1 << 52)
