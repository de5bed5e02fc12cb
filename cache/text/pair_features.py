"""Compare two normalized questions word by word: what is left of each, and the verifier's input features. No I/O.

Features say how similar two questions are, how many words remain on either side after equal and synonymous ones are
removed, and how rare those are. Every feature is monotonic (SIGNS): more of it makes "the same answer" only more
likely, or only less likely. What refuses whatever the features is in `cache.text.guards`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final, Protocol

from cache.text.normalized_question import NormalizedQuestion, Word, grams_of
from policies.value_type import value_type

_KEYS: Final[tuple[Callable[[Word], str], ...]] = (attrgetter("text"), attrgetter("root"), attrgetter("sense"))
"""What makes words equal, the plainest first."""


_ADJUNCTS: Final = frozenset({"in", "at", "on", "for", "with", "during", "within", "of"})
"""Prepositions whose words may stand at either end of a question."""


class WordTable(Protocol):
    """Rarity of words, and similarity of pairs of words."""

    def rarity(self, word: str) -> float:
        """Return 0 for the commonest word, up to 1 for one that is not in the table."""

    def similarities(self, left: Sequence[str], right: Sequence[str]) -> list[list[float]]:
        """Return the cosine of each word of `left` with each of `right`; 0 where one has no vector."""


@value_type
class Leftover:
    """The words of either question that have no equal in the other, and how the others matched."""

    left: tuple[Word, ...]
    right: tuple[Word, ...]
    exact: int
    """Number of equal words; `inflected` counts those equal in their root only, `synonyms` in their sense only."""
    inflected: int
    synonyms: int
    inversions: int
    """Minimum number of matched words that must move to get the same order."""
    turned: int
    """Length of the longest run of matched words in the opposite order, without those after a preposition that
    may move about."""


def leftover(a: NormalizedQuestion, b: NormalizedQuestion) -> Leftover:
    """Remove equal words, each once: first of the same spelling, then of the same root, then of the same sense."""
    free = list(range(len(b.words)))
    pairs: list[tuple[int, int]] = []
    counts = [0, 0, 0]
    waiting = list(range(len(a.words)))
    for i, key in enumerate(_KEYS):
        wanted = {key(a.words[place]) for place in waiting}
        there_too = [place for place in free if key(b.words[place]) in wanted]
        if not there_too:
            continue
        places: dict[str, list[int]] = {}
        for place in reversed(there_too):
            places.setdefault(key(b.words[place]), []).append(place)
        left = []
        for place in waiting:
            there = places.get(key(a.words[place]))
            if there:
                pairs.append((place, there.pop()))
                counts[i] += 1
            else:
                left.append(place)
        waiting = left
        taken = {there for _, there in pairs}
        free = [place for place in free if place not in taken]
    # Only a word with several meanings shares one that is not its sense.
    several = any(len(a.words[place].senses) > 1 for place in waiting) or any(
        len(b.words[place].senses) > 1 for place in free
    )
    for place in list(waiting) if several else ():
        match = next((at for at in free if _share_a_sense(a.words[place], b.words[at])), None)
        if match is not None:
            pairs.append((place, match))
            counts[2] += 1
            waiting.remove(place)
            free.remove(match)
    pairs.sort()
    order = [there for _, there in pairs]
    in_order = order == sorted(order)
    roaming = frozenset() if in_order else roaming_links(a, b)
    acting = [at for here, at in pairs if not (a.words[here].link == b.words[at].link in roaming)]
    return Leftover(
        tuple(a.words[place] for place in waiting),
        tuple(b.words[place] for place in free),
        counts[0],
        counts[1],
        counts[2],
        0 if in_order else len(order) - _rising(order),
        min(len(order), 1) if in_order else _rising([-place for place in acting]),
    )


def roaming_links(a: NormalizedQuestion, b: NormalizedQuestion) -> frozenset[str]:
    """Return the prepositions whose words may stand anywhere: those that occur once in both questions.

    Where one occurs more often, two of its words may have been exchanged.
    """
    links = [[word.link for word in side.words] for side in (a, b)]
    return frozenset(link for link in _ADJUNCTS if links[0].count(link) == links[1].count(link) == 1)


def _share_a_sense(word: Word, other: Word) -> bool:
    """Return whether a word with several meanings may be a synonym of the other in one of them."""
    several = len(word.senses) > 1 or len(other.senses) > 1
    return several and not set(word.senses).isdisjoint(other.senses)


def _rising(places: Sequence[int]) -> int:
    """Return the length of the longest increasing subsequence of `places`."""
    tails: list[int] = []
    for place in places:
        at = bisect_left(tails, place)
        tails[at : at + 1] = [place]
    return len(tails)


FEATURES: Final = (
    "cosine", "cosine_high", "coverage_least", "coverage_most", "left_most", "left_least", "rare_most", "rare_least",
    "vague", "pair_best", "pair_worst", "unpaired", "synonyms", "inflected", "inversions", "function", "asked",
    "howto", "modals", "persons", "grams", "length", "matched", "symbols", "links", "or", "task",
)  # fmt: skip
SIGNS: Final = (1, 1, 1, 1, -1, -1, -1, -1, -1, 1, 1, -1, -1, -1, -1, -1, -1, 0, -1, -1, 1, -1, 0, 0, -1, -1, 0)
"""+1: more of it makes the same answer more likely; -1: less likely; 0: not monotonic."""


def features(
    a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover, cosine: float, table: WordTable
) -> list[float]:
    """Return the values of FEATURES, in order."""
    left = [word for word in rest.left if not word.vague]
    right = [word for word in rest.right if not word.vague]
    best, worst, unpaired = _paired(left, right, table)
    weights = (_weight(rest.left, table), _weight(rest.right, table))
    matched = rest.exact + rest.inflected + rest.synonyms
    coverage = [matched / (matched + weight) if matched + weight else 0.0 for weight in weights]
    rare = [max((table.rarity(word.text) for word in side), default=0.0) for side in (left, right)]
    return [
        cosine,
        max(0.0, cosine - 0.8),
        min(coverage),
        max(coverage),
        min(float(max(len(left), len(right))), 4.0),
        min(float(min(len(left), len(right))), 4.0),
        max(rare),
        min(rare),
        min(len(rest.left) + len(rest.right) - len(left) - len(right), 6) / 2,
        best,
        worst,
        unpaired,
        min(rest.synonyms, 3),
        min(rest.inflected, 3),
        min(rest.inversions, 3),
        min(len(a.function ^ b.function), 6) / 2,
        float(a.asked != b.asked),
        float("howto" in a.asked and "howto" in b.asked),
        float(a.modals != b.modals),
        float(set(a.persons) != set(b.persons)),
        _overlap(grams_of(a.plain), grams_of(b.plain)),
        abs(math.log((a.length + 1) / (b.length + 1))),
        min(matched, 5),
        float(bool(a.symbols)),
        float(_new_links(a, b)),
        float(("or" in a.function) != ("or" in b.function)),
        float(not a.asked and not a.polar and not b.asked and not b.polar),
    ]


def _weight(words: Sequence[Word], table: WordTable) -> float:
    return sum(0.3 if word.vague else 0.6 + 0.4 * table.rarity(word.text) for word in words)


def _paired(left: Sequence[Word], right: Sequence[Word], table: WordTable) -> tuple[float, float, float]:
    """Return best and worst similarity of the remaining words to their best counterpart, and how many have none."""
    if not left or not right:
        alone = float(min(len(left) + len(right), 4))
        return (1.0, 1.0, 0.0) if not alone else (0.0, 0.0, alone)
    rows = table.similarities([word.text for word in left], [word.text for word in right])
    tops = [max(row) for row in rows] + [max(column) for column in zip(*rows, strict=True)]
    return max(tops), min(tops), float(min(sum(top < 0.3 for top in tops), 4))


def _overlap(a: frozenset[str], b: frozenset[str]) -> float:
    shared = len(a & b)
    either = len(a) + len(b) - shared
    return shared / either if either else 0.0


def _new_links(a: NormalizedQuestion, b: NormalizedQuestion) -> int:
    """Return the number of words that follow another preposition than in the other question, at most 3."""
    before = {word.sense: word.link for word in a.words}
    return min(sum(word.sense in before and before[word.sense] != word.link for word in b.words), 3)
