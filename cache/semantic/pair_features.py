"""Compare two normalized questions: vetoes that hold at any score, and the verifier's input features. No I/O.

`veto` covers what changes an answer however similar two questions look: numbers, negation and opposites, names, time,
who does what to whom, another thing of the same kind, another question word. `features` are the rest: how similar they
are, how many words remain on either side after equal and synonymous ones are removed, and how rare those are. Every
feature is monotonic (SIGNS): more of it makes "the same answer" only more likely, or only less likely.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, Protocol

from cache.text.normalized_question import DIRECTIONS, OPPOSITES, NormalizedQuestion, Word, gist, grams_of
from cache.text.reading import word_set

_NEGATING: Final = ("un", "in", "im", "ir", "il", "dis", "non", "de", "anti", "mis")
_WAYS: Final = frozenset({"what", "how", "howto"})
_JOINING: Final = word_set("and or that but if then whether because so")
"""Links without a role in who does what to whom."""
_SYMMETRIC: Final = frozenset(
    gist(f"they are {word}").words[0].sense
    for word in word_set("related married engaged dating friends siblings connected similar identical equal different")
)
"""Symmetric relations: they hold in both directions."""
_AGAINST: Final = {
    frozenset(pair.split())
    for pair in ("from to", "in on", "on under", "over under", "for against", "of by", "into from", "on about")
}
"""Pairs of prepositions with opposite meanings for the same word."""


_TURNED: Final = 2
"""Two words swap places in many paraphrases (`damaged item`, `the item is damaged`); three in the opposite order mean
that roles are swapped."""


class WordTable(Protocol):
    """Rarity of words, and similarity of pairs of words."""

    def rarity(self, word: str) -> float:
        """Return 0 for the commonest word, up to 1 for one that is not in the table."""

    def similarities(self, left: Sequence[str], right: Sequence[str]) -> list[list[float]]:
        """Return the cosine of each word of `left` with each of `right`; 0 where one has no vector."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """The words of two questions that remain when equal ones are removed."""

    left: tuple[Word, ...]
    right: tuple[Word, ...]
    exact: int
    """Number of equal words; `inflected` counts those equal in their root only, `synonyms` in their sense only."""
    inflected: int
    synonyms: int
    inversions: int
    """Minimum number of matched words that must move to get the same order."""
    turned: int
    """Length of the longest run of matched words in the opposite order."""


def leftover(a: NormalizedQuestion, b: NormalizedQuestion) -> Leftover:
    """Remove equal words, each once: first of the same spelling, then of the same root, then of the same sense."""
    free = list(range(len(b.words)))
    pairs: list[tuple[int, int]] = []
    counts = [0, 0, 0]
    waiting = list(range(len(a.words)))
    for i, key in enumerate(("text", "root", "sense")):
        if not waiting or not free:
            break
        places: dict[str, list[int]] = {}
        for place in reversed(free):
            places.setdefault(getattr(b.words[place], key), []).append(place)
        left = []
        for place in waiting:
            there = places.get(getattr(a.words[place], key))
            if there:
                pairs.append((place, there.pop()))
                counts[i] += 1
            else:
                left.append(place)
        waiting = left
        taken = {there for _, there in pairs}
        free = [place for place in free if place not in taken]
    for place in list(waiting) if free else ():
        match = next((at for at in free if _share_a_sense(a.words[place], b.words[at])), None)
        if match is not None:
            pairs.append((place, match))
            counts[2] += 1
            waiting.remove(place)
            free.remove(match)
    pairs.sort()
    order = [there for _, there in pairs]
    return Leftover(
        tuple(a.words[place] for place in waiting),
        tuple(b.words[place] for place in free),
        counts[0],
        counts[1],
        counts[2],
        len(order) - _rising(order),
        _rising([-place for place in order]),
    )


def _share_a_sense(one: Word, other: Word) -> bool:
    """Return whether a word with several meanings may be a synonym of the other in one of them."""
    several = len(one.senses) > 1 or len(other.senses) > 1
    return several and not set(one.senses).isdisjoint(other.senses)


def _rising(places: Sequence[int]) -> int:
    """Return the length of the longest increasing subsequence of `places`."""
    tails: list[int] = []
    for place in places:
        at = bisect_left(tails, place)
        tails[at : at + 1] = [place]
    return len(tails)


def early_veto(a: NormalizedQuestion, b: NormalizedQuestion, guards: Collection[str]) -> str:
    """Return the guard that refuses on the basis of each question by itself, or ''. It decides most refusals, at a
    hundredth of the cost of `leftover`.
    """
    if "numbers" in guards and (a.numbers != b.numbers or a.symbols != b.symbols):
        return "numbers"
    if "negation" in guards and len(a.negations) % 2 != len(b.negations) % 2:
        return "negation"
    if "dates" in guards and a.times != b.times:
        return "dates"
    return "asked" if _other_question(a, b) else ""


def veto(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover, guards: Collection[str]) -> str:
    """Return the guard that refuses on the basis of the remaining words, or ''. Call `early_veto` first."""
    if "negation" in guards and (
        _moved_negation(a, b, rest) or _opposed(rest) or _other_poles(a, b) or _other_way(a, b, rest)
    ):
        return "negation"
    if "entities" in guards and (_another_kind(rest) or any(word.name for word in (*rest.left, *rest.right))):
        return "entities"
    return "order" if _other_roles(a, b, rest) else ""


def _other_question(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    """Return whether they ask different things: who or when, whether or why. A task fits any, `what` fits `how`."""
    if a.modals != b.modals and a.modals and b.modals:
        return True
    if a.asked == b.asked:
        return False
    if a.polar or b.polar:
        return True
    return bool(a.asked and b.asked) and not (a.asked | b.asked <= _WAYS or a.asked & b.asked)


def _moved_negation(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether they differ only in the word that is negated."""
    return a.negations != b.negations and not rest.left and not rest.right


def _other_poles(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    """Return whether they contain opposite sides of an opposition, such as more and less."""
    return any(pole ^ 1 in b.poles and pole ^ 1 not in a.poles for pole in a.poles - b.poles)


def _other_way(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether the remaining words point in opposite directions, or only one side has `against` or `avoid`."""
    if ("against" in a.function) != ("against" in b.function):
        return True
    if not rest.left and not rest.right:
        return False
    if "avoid" in _senses(rest.left) ^ _senses(rest.right):
        return True
    return _turns_away(rest.left, rest.right) or _turns_away(rest.right, rest.left)


def _turns_away(these: Sequence[Word], others: Sequence[Word]) -> bool:
    """Return whether these mean less, an end or a no, and the others the contrary or nothing specific."""
    if -1 not in _directions(these):
        return False
    ways = _directions(others)
    return -1 not in ways and (1 in ways or all(word.vague for word in others))


def _senses(words: Sequence[Word]) -> frozenset[str]:
    return frozenset(word.sense for word in words)


def _directions(words: Sequence[Word]) -> frozenset[int]:
    return frozenset(DIRECTIONS[word.sense] for word in words if word.sense in DIRECTIONS)


def _opposed(rest: Leftover) -> bool:
    return any(
        frozenset((one.sense, other.sense)) in OPPOSITES
        or _opposed_in_one_sense(one, other)
        or _negates(one.text, other.text)
        or _negates(other.text, one.text)
        for one in rest.left
        for other in rest.right
    )


def _opposed_in_one_sense(one: Word, other: Word) -> bool:
    """Return whether a word with several meanings is the opposite of the other in one of them."""
    several = len(one.senses) > 1 or len(other.senses) > 1
    return several and any(frozenset(pair) in OPPOSITES for pair in product(one.senses, other.senses))


def _negates(word: str, other: str) -> bool:
    """Return whether `word` is `other` with a negating prefix or suffix."""
    if len(other) > 3 and word.endswith(other) and word[: -len(other)] in _NEGATING:
        return True
    return word.endswith("less") and (other == word[:-4] or other == word[:-4] + "ful")


def _another_kind(rest: Leftover) -> bool:
    return any(one.kinds & other.kinds for one in rest.left for other in rest.right)


def _other_roles(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether the roles are swapped: who does what to whom."""
    if a.others != b.others or _other_persons(a, b):
        return True
    if rest.inversions and (a.foreign or b.foreign):
        return True
    if any(word.sense in _SYMMETRIC for word in a.words) and not rest.left and not rest.right:
        return False
    few = len(rest.left) + len(rest.right) < 2
    if few and a.passive != b.passive and not rest.inversions:
        return True
    if few and a.passive == b.passive and rest.turned > _TURNED:
        return True
    names = {word.text for word in a.words if word.name} & {word.text for word in b.words if word.name}
    if len(names) > 1 and a.passive == b.passive:
        order = [[word.text for word in gist.words if word.text in names] for gist in (a, b)]
        if order[0] != order[1]:
            return True
    return _links_differ(a, b)


def _other_persons(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    """Return whether `I` and `you` differ; in general questions (`how can I`, `should you`) they are equivalent."""
    if a.persons == b.persons:
        return False
    left, right = {*a.persons}, {*b.persons}
    if len(left) > 1 or len(right) > 1:
        return True
    anybody = ("howto" in a.asked and "howto" in b.asked) or (a.modals and b.modals)
    return bool(left and right and left != right and not anybody)


def _links_differ(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    before = {word.sense: word.link for word in a.words}
    changed = {(other, word.link) for word in b.words if (other := before.get(word.sense, word.link)) != word.link}
    # In `miles to kilometres` and `kilometres to miles` the words have swapped links.
    traded = any((now, then) in changed and not _JOINING & {then, now} for then, now in changed)
    return traded or any(frozenset(links) in _AGAINST for links in changed)


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
    both = len(a | b)
    return len(a & b) / both if both else 0.0


def _new_links(a: NormalizedQuestion, b: NormalizedQuestion) -> int:
    """Return the number of words that follow another preposition than in the other question, at most 3."""
    before = {word.sense: word.link for word in a.words}
    return min(sum(word.sense in before and before[word.sense] != word.link for word in b.words), 3)
