"""Compare two normalized questions: vetoes that hold at any score, and the verifier's input features. No I/O.

`veto` covers what changes an answer however similar two questions look: numbers, negation and opposites, names, time,
who does what to whom, another thing of the same kind, another question word. `features` are the rest: how similar they
are, how many words remain on either side after equal and synonymous ones are removed, and how rare those are. Every
feature is monotonic (SIGNS): more of it makes "the same answer" only more likely, or only less likely.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Final, Protocol

from cache.text.normalized_question import DIRECTIONS, NormalizedQuestion, Word, gist, grams_of
from cache.text.reading import LISTS, groups_of, word_set

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


_KEYS: Final[tuple[Callable[[Word], str], ...]] = (attrgetter("text"), attrgetter("root"), attrgetter("sense"))
"""What makes words equal, the plainest first."""
_LESS: Final = frozenset({"less", "fewer", "least"})
_DUTIES: Final = frozenset({"should", "must"})
_FEW: Final = 3
"""Words from which two questions differ in more than a `not`."""
_SHORT: Final = 7
"""Letters from which a name is no abbreviation."""
_TURNED: Final = 2
"""Two words swap places in many paraphrases (`damaged item`, `the item is damaged`); three in the opposite order mean
that roles are swapped."""


_TIME_KINDS: Final[dict[str, set[int]]] = {}
"""A word of time -> the kinds of time it may be, by number."""
for _number, _group in enumerate(groups_of(LISTS["time_kinds"])):
    for _word in _group:
        _TIME_KINDS.setdefault(_word, set()).add(_number)


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
    return Leftover(
        tuple(a.words[place] for place in waiting),
        tuple(b.words[place] for place in free),
        counts[0],
        counts[1],
        counts[2],
        0 if in_order else len(order) - _rising(order),
        min(len(order), 1) if in_order else _rising([-place for place in order]),
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


def early_veto(
    a: NormalizedQuestion, b: NormalizedQuestion, guards: Collection[str], *, screening: bool = False
) -> str:
    """Return the guard that refuses on the basis of each question by itself, or ''. It decides most refusals, at a
    hundredth of the cost of `leftover`.

    `screening`: a cross-encoder reads what is left, so only what conflicts is refused, not every difference.
    """
    for guard, _, conflict, alone in _EARLY:
        if not (alone and screening) and (guard in guards or guard in _ALWAYS) and conflict(a, b):
            return guard
    return ""


def veto(
    a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover, guards: Collection[str], *, screening: bool = False
) -> str:
    """Return the guard that refuses on the basis of the remaining words, or ''. Call `early_veto` first."""
    for guard, _, conflict, alone in _LATE:
        if not (alone and screening) and (guard in guards or guard in _ALWAYS) and conflict(a, b, rest):
            return guard
    return ""


def every_veto(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover, *, screening: bool = False) -> list[str]:
    """Return the name of every rule that refuses, as `guard: rule`: for a report on what each is worth."""
    early = [
        f"{guard}: {rule}" for guard, rule, conflict, alone in _EARLY if not (alone and screening) and conflict(a, b)
    ]
    return early + [
        f"{guard}: {rule}"
        for guard, rule, conflict, alone in _LATE
        if not (alone and screening) and conflict(a, b, rest)
    ]


def _any_other_times(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    return a.times != b.times


def _not_in_one(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    return len(a.negations) % 2 != len(b.negations) % 2


def _any_other_question(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    """Return whether they ask for different things. A task fits any, `what` fits `how`."""
    if a.modals != b.modals and a.modals and b.modals:
        return True
    if a.asked == b.asked:
        return False
    if a.polar or b.polar:
        return True
    return bool(a.asked and b.asked) and not (a.asked | b.asked <= _WAYS or a.asked & b.asked)


def _other_numbers(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    return a.numbers != b.numbers or a.symbols != b.symbols


def _other_times(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    """Return whether each names a time of one kind that the other does not: Monday and Tuesday, before and after.

    A time in only one of them makes its question narrower, or is part of its story: the score decides.
    """
    if a.times == b.times or not a.times or not b.times:
        return False
    only = [
        {kind for time in own if time not in other for kind in _TIME_KINDS.get(time, ())}
        for own, other in ((a.times, b.times), (b.times, a.times))
    ]
    return not only[0].isdisjoint(only[1])


def _other_question(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    """Return whether they ask different things: who or when, whether or how. `what` may ask for any of them."""
    if a.asked == b.asked or "what" in a.asked or "what" in b.asked:
        return False
    if a.polar or b.polar:
        return bool(a.asked or b.asked)
    return bool(a.asked and b.asked) and _ways(a.asked).isdisjoint(_ways(b.asked))


def _ways(asked: frozenset[str]) -> frozenset[str]:
    return asked - {"howto"} | {"how"} if "howto" in asked else asked


def _negated(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether one is the other turned round: by an opposite, or by a `not` where hardly anything else differs.

    An even number of turns says the same: `more patient` and `less impatient`. In other words a `not` may say it too.
    """
    turned = len(a.negations) % 2 != len(b.negations) % 2 or ("against" in a.function) != ("against" in b.function)
    lessened = _is_less(rest.left) != _is_less(rest.right)
    opposites = _opposites(*([word for word in side if word.text not in _LESS] for side in (rest.left, rest.right)))
    if opposites:
        return (opposites + lessened + turned) % 2 == 1
    few = min(len(rest.left), len(rest.right)) == 0 and len(rest.left) + len(rest.right) < _FEW
    return _other_sides(a, b) or ((turned or lessened) and few)


def _is_less(words: Sequence[Word]) -> bool:
    return any(word.text in _LESS for word in words)


def _other_sides(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    """Return whether they contain opposite sides of an opposition, such as more and less."""
    return any(pole ^ 1 in b.poles and pole ^ 1 not in a.poles for pole in a.poles - b.poles)


def _opposite_in_one(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether there is any opposite, or the same negations stand at different places of the same words."""
    moved = a.negations != b.negations and not rest.left and not rest.right
    return moved or _opposites(rest.left, rest.right) > 0 or _other_sides(a, b)


def _other_way(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether the remaining words point in opposite directions, or only one side has `against` or `avoid`."""
    if ("against" in a.function) != ("against" in b.function):
        return True
    if not rest.left and not rest.right:
        return False
    if any(word.sense == "avoid" for word in rest.left) != any(word.sense == "avoid" for word in rest.right):
        return True
    left, right = _directions(rest.left), _directions(rest.right)
    # One side means less, an end or a no, and the other the contrary or nothing specific.
    if -1 in left:
        return -1 not in right and (1 in right or all(word.vague for word in rest.right))
    return -1 in right and (1 in left or all(word.vague for word in rest.left))


def _directions(words: Sequence[Word]) -> set[int]:
    return {DIRECTIONS[word.sense] for word in words if word.sense in DIRECTIONS}


def _opposites(left: Sequence[Word], right: Sequence[Word]) -> int:
    """Return the number of words on the left whose opposite is on the right."""
    if not left or not right:
        return 0
    texts = {word.text for word in right}
    senses = {sense for word in right for sense in word.senses}
    negated = {other for word in right for other in word.negated}
    return sum(
        not word.opposed.isdisjoint(senses) or not word.negated.isdisjoint(texts) or word.text in negated
        for word in left
    )


def _another_kind(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    kinds = {kind for word in rest.right for kind in word.kinds}
    return any(not word.kinds.isdisjoint(kinds) for word in rest.left)


def _another_name(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether each has a name that the other has not, and neither stands for the other, as EU does."""
    names, others = _names(rest.left), _names(rest.right)
    if not names or not others:
        return False
    return not (_stands_for(names, rest.right) or _stands_for(others, rest.left))


def _name_in_one(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    return any(word.name for word in (*rest.left, *rest.right))


def _names(words: Sequence[Word]) -> list[str]:
    return [word.text for word in words if word.name]


def _stands_for(names: Sequence[str], words: Sequence[Word]) -> bool:
    """Return whether a name shortens the other side's words, with letters of theirs in order: `uae`, `http`."""
    whole = "".join(word.text for word in words)
    return any(len(name) < _SHORT and any(_shortens(name, whole[at:]) for at in _starts(words)) for name in names)


def _starts(words: Sequence[Word]) -> list[int]:
    """Return where each word begins in the text of all of them without spaces."""
    return list(accumulate((len(word.text) for word in words[:-1]), initial=0))


def _shortens(name: str, text: str) -> bool:
    letters = iter(text)
    return text.startswith(name[0]) and len(text) > len(name) + 1 and all(letter in letters for letter in name)


def _other_quotes(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether one quotes what does not occur in the other."""
    return any(quote not in other.plain for one, other in ((a, b), (b, a)) for quote in one.quotes)


def _other_order(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether the same words, or the same names, come in another order."""
    if _is_symmetric(a, rest):
        return False
    few = len(rest.left) + len(rest.right) < 2
    if few and a.passive != b.passive and not rest.inversions:
        return True
    if few and a.passive == b.passive and rest.turned > _TURNED:
        return True
    names = {word.text for word in a.words if word.name} & {word.text for word in b.words if word.name}
    if len(names) > 1 and a.passive == b.passive:
        order = [[word.text for word in gist.words if word.text in names] for gist in (a, b)]
        return order[0] != order[1]
    return False


def _is_symmetric(a: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether the same words tell of a relation that holds in both directions."""
    return not rest.left and not rest.right and any(word.sense in _SYMMETRIC for word in a.words)


def _foreign_order(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether words changed places in a language whose grammar is not parsed here."""
    return rest.inversions > 0 and (a.foreign or b.foreign)


def _other_pronouns(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    return a.others != b.others


def _other_persons(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    return not rest.left and not rest.right and _any_other_persons(a, b, rest)


def _any_other_persons(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether `I` and `you` differ; in general questions (`how can I`, `should you`) they mean the same."""
    if a.persons == b.persons:
        return False
    left, right = {*a.persons}, {*b.persons}
    if len(left) > 1 or len(right) > 1:
        return True
    anybody = ("howto" in a.asked and "howto" in b.asked) or (a.modals and b.modals)
    return bool(left and right and left != right and not anybody)


def _other_modals(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether they differ only in that one asks what can be, and the other what should or must be."""
    if not a.modals or not b.modals or rest.left or rest.right:
        return False
    return a.modals.isdisjoint(_DUTIES) != b.modals.isdisjoint(_DUTIES)


def _links_differ(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    if _is_symmetric(a, rest):
        return False
    before = {word.sense: word.link for word in a.words}
    changed = {(other, word.link) for word in b.words if (other := before.get(word.sense, word.link)) != word.link}
    if not changed:
        return False
    # In `miles to kilometres` and `kilometres to miles` the words have swapped links.
    traded = any((now, then) in changed and not _JOINING & {then, now} for then, now in changed)
    return traded or any(frozenset(links) in _AGAINST for links in changed)


_ALWAYS: Final = frozenset({"asked", "order"})
"""Guards that a policy cannot switch off."""
_EARLY: Final[tuple[tuple[str, str, Callable[[NormalizedQuestion, NormalizedQuestion], bool], bool], ...]] = (
    ("numbers", "other", _other_numbers, False),
    ("negation", "in one", _not_in_one, True),
    ("dates", "other", _other_times, False),
    ("dates", "any", _any_other_times, True),
    ("asked", "other", _other_question, False),
    ("asked", "any", _any_other_question, True),
)
_LATE: Final[tuple[tuple[str, str, Callable[[NormalizedQuestion, NormalizedQuestion, Leftover], bool], bool], ...]] = (
    ("asked", "modals", _other_modals, False),
    ("negation", "turned", _negated, False),
    ("negation", "opposite", _opposite_in_one, True),
    ("negation", "way", _other_way, True),
    ("entities", "kind", _another_kind, True),
    ("entities", "name", _another_name, False),
    ("entities", "quoted", _other_quotes, False),
    ("entities", "any", _name_in_one, True),
    ("order", "words", _other_order, False),
    ("order", "foreign", _foreign_order, False),
    ("order", "pronouns", _other_pronouns, False),
    ("order", "persons", _other_persons, False),
    ("order", "any person", _any_other_persons, True),
    ("order", "links", _links_differ, False),
)
"""Each rule's guard, its name, its test, and whether it holds only where no cross-encoder reads what is left."""


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
