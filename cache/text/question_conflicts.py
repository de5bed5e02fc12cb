"""Say where two questions conflict: numbers, times, negations, what is asked; opposites, names, roles, links. Pure.

A function takes both readings (`cache.text.reading`) or both normalized questions, and those that compare the words
which only one of them has the `Leftover` too, and returns whether they conflict.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Final

from cache.text.normalized_question import DIRECTIONS, NormalizedQuestion, Word, gist, negated_by
from cache.text.pair_features import Leftover, roaming_links
from cache.text.reading import FAINT, LISTS, QuestionReading
from cache.text.thesaurus import groups_of, word_set

_TEXT, _NAME = attrgetter("text"), attrgetter("name")
_OPPOSED = attrgetter("opposed")

_WAYS: Final = frozenset({"what", "how", "howto"})

_STORY: Final = 20
"""Words from which a text tells a story around its question."""

_TIME_KINDS: Final[dict[str, set[int]]] = {}
"""A word of time -> the kinds of time it may be, by number."""
for _number, _group in enumerate(groups_of(LISTS["time_kinds"])):
    for _word in _group:
        _TIME_KINDS.setdefault(_word, set()).add(_number)


def no_content(a: QuestionReading, b: QuestionReading) -> bool:
    return not a.content or not b.content


def no_words(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    return not a.words or not b.words


def numbers_in_order(a: QuestionReading, b: QuestionReading) -> bool:
    return a.numbers != b.numbers


def numbers(a: QuestionReading, b: QuestionReading) -> bool:
    return sorted(a.numbers) != sorted(b.numbers)


def negations(a: QuestionReading, b: QuestionReading) -> bool:
    return a.negations != b.negations or a.poles != b.poles


def negations_or_sides(a: QuestionReading, b: QuestionReading) -> bool:
    return len(a.negations) % 2 != len(b.negations) % 2 or other_sides(a, b)


def names_in_one(a: QuestionReading, b: QuestionReading) -> bool:
    return not (a.names <= b.stems and b.names <= a.stems)


def times(a: QuestionReading, b: QuestionReading) -> bool:
    return a.times != b.times


def asked(a: QuestionReading, b: QuestionReading) -> bool:
    return a.asked != b.asked


def same_words_moved(a: QuestionReading, b: QuestionReading) -> bool:
    return a.content != b.content and a.stems == b.stems


def topics_moved(a: QuestionReading, b: QuestionReading) -> bool:
    """Return whether both consist of the same words, but those with a topic come in another order."""
    if a.stems != b.stems:
        return False
    return [word for word in a.content if word not in FAINT] != [word for word in b.content if word not in FAINT]


def any_other_word(a: QuestionReading, b: QuestionReading) -> bool:
    return a.content != b.content


def any_other_times(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    return a.times != b.times


def not_in_one(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    return len(a.negations) % 2 != len(b.negations) % 2


def any_other_question(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    """Return whether they ask for different things, by their question words and modal verbs.

    A task (no question word) fits any question; `what` and `how` fit each other.
    """
    if a.modals != b.modals and a.modals and b.modals:
        return True
    if a.asked == b.asked:
        return False
    if a.polar or b.polar:
        return True
    return bool(a.asked and b.asked) and not (a.asked | b.asked <= _WAYS or a.asked & b.asked)


def any_other_numbers(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    return a.numbers != b.numbers or a.symbols != b.symbols


def other_numbers(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    """Return whether they name different numbers, or calculate with different signs.

    1 counts as an article. In a long text, numbers that only this one has may belong to its story, and are no conflict.
    """
    if not any_other_numbers(a, b):
        return False
    if is_story(a, b):
        mine, other = {*a.numbers, *a.symbols} - {"1"}, {*b.numbers, *b.symbols} - {"1"}
        return not (mine <= other or other <= mine)
    if a.symbols != b.symbols or a.symbols:
        return True
    return [number for number in a.numbers if number != "1"] != [number for number in b.numbers if number != "1"]


def other_times(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
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


def times_asked(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    return not is_story(a, b) and other_times(a, b)


def is_story(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    return max(a.length, b.length) >= _STORY


def other_question(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    """Return whether their question words ask for different things: who or when, whether or how.

    `what` fits every question word, as it may ask for any of these things.
    """
    if a.asked == b.asked or "what" in a.asked or "what" in b.asked:
        return False
    if a.polar or b.polar:
        return bool(a.asked or b.asked)
    return bool(a.asked and b.asked) and _ways(a.asked).isdisjoint(_ways(b.asked))


def _ways(asked: frozenset[str]) -> frozenset[str]:
    return asked - {"howto"} | {"how"} if "howto" in asked else asked


def other_sides(a: NormalizedQuestion | QuestionReading, b: NormalizedQuestion | QuestionReading) -> bool:
    """Return whether they contain opposite sides of an opposition, such as more and less."""
    only = a.poles - b.poles
    return bool(only) and any(pole ^ 1 in b.poles and pole ^ 1 not in a.poles for pole in only)


_JOINING: Final = word_set("and or that but if then whether because so")
"""Links without a role in who does what to whom."""

_SYMMETRIC: Final = frozenset(
    gist(f"they are {word}").words[0].sense
    for word in word_set(
        "related married engaged dating friends siblings connected similar identical equal different compare comparison"
    )
)
"""Symmetric relations: they hold in both directions."""

_AGAINST: Final = {
    frozenset(pair.split())
    for pair in ("from to", "in on", "on under", "over under", "for against", "of by", "into from", "on about")
}
"""Pairs of prepositions with opposite meanings for the same word."""

_LESS: Final = frozenset({"less", "fewer", "least"})

DUTIES: Final = frozenset({"should", "must"})

_FEW: Final = 3
"""Words from which two questions differ in more than a `not`."""

_SHORT: Final = 7
"""Letters from which a name is no abbreviation."""

_RETOLD: Final = 8
"""Words that each of two stories has of its own, from which one is the other in other words."""

_LACKING: Final = frozenset(word.sense for lack in word_set(LISTS["lacking"]) for word in gist(f"they {lack}").words)

_TURNED: Final = 2
"""Two words swap places in many paraphrases (`damaged item`, `the item is damaged`); three in the opposite order mean
that roles are swapped."""


def times_told(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    return not _is_retold(a, b, rest) and other_times(a, b)


def _is_retold(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether they tell a story in other words, of which a cross-encoder must say whether it is another."""
    return is_story(a, b) and min(len(rest.left), len(rest.right)) >= _RETOLD


def negated(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether one is the other turned round: by an opposite, or by a `not` where hardly anything else differs.

    An even number of turns says the same: `more patient` and `less impatient`. In other words a `not` may say it too.
    """
    turned = len(a.negations) % 2 != len(b.negations) % 2 or ("against" in a.function) != ("against" in b.function)
    less, less_too = _is_less(rest.left), _is_less(rest.right)
    lessened = less != less_too
    left: Sequence[Word] = rest.left
    right: Sequence[Word] = rest.right
    if less or less_too:
        left, right = ([word for word in side if word.text not in _LESS] for side in (left, right))
    if opposites := _opposites(left, right):
        return (opposites + lessened + turned) % 2 == 1
    few = min(len(rest.left), len(rest.right)) == 0 and len(rest.left) + len(rest.right) < _FEW
    if other_sides(a, b):
        return True
    # What one says with a `not`, the other may say with a word of its own.
    plain = rest.right if len(a.negations) % 2 else rest.left
    return few and (lessened or (turned and not any(word.sense in _LACKING for word in plain)))


def _is_less(words: Sequence[Word]) -> bool:
    return not _LESS.isdisjoint(map(_TEXT, words))


def opposite_in_one(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether there is any opposite, or the same negations stand at different places of the same words."""
    moved = a.negations != b.negations and not rest.left and not rest.right
    return moved or _opposites(rest.left, rest.right) > 0 or other_sides(a, b)


def other_way(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
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
    negations, theirs = [list(map(negated_by, map(_TEXT, words))) for words in (left, right)]
    if not (any(map(_OPPOSED, left)) or any(negations) or any(theirs)):
        return 0
    texts = {form for word in right for form in (word.text, word.root)}
    senses = {sense for word in right for sense in word.senses}
    negated = frozenset().union(*theirs)
    return sum(
        not word.opposed.isdisjoint(senses)
        or not negates.isdisjoint(texts)
        or word.text in negated
        or word.root in negated
        for word, negates in zip(left, negations, strict=True)
    )


def another_kind(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    kinds = {kind for word in rest.right for kind in word.kinds}
    return any(not word.kinds.isdisjoint(kinds) for word in rest.left)


def another_name(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether each has a name that the other has not, and neither stands for the other, as EU does."""
    if not _has_name(rest.left) or not _has_name(rest.right):
        return False
    names, others = _names(rest.left), _names(rest.right)
    return not (_stands_for(names, rest.right) or _stands_for(others, rest.left))


def name_in_one(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    return _has_name(rest.left) or _has_name(rest.right)


def _has_name(words: Sequence[Word]) -> bool:
    return any(map(_NAME, words))


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


def other_quotes(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether one quotes what does not occur in the other."""
    return any(quote not in other.plain for side, other in ((a, b), (b, a)) for quote in side.quotes)


def quotes_asked(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether they quote other things. What only one of them quotes may belong to its story."""
    return bool(not is_story(a, b) or (a.quotes and b.quotes)) and other_quotes(a, b, rest)


def other_order(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether the same words, or the same names, come in another order."""
    if _is_symmetric(a, rest):
        return False
    few = len(rest.left) + len(rest.right) < 2
    matched = rest.exact + rest.inflected + rest.synonyms
    if few and a.passive != b.passive and not rest.inversions and matched > 1:
        return True
    if few and a.passive == b.passive and rest.inversions and _subject(a) != _subject(b) != 0 != _subject(a):
        return True
    if few and a.passive == b.passive and rest.turned > _TURNED:
        return True
    if not _has_name(a.words) or not _has_name(b.words):
        return False
    named = [{(word.text, word.link) for word in gist.words if word.name} for gist in (a, b)]
    roaming = roaming_links(a, b)
    moving = {text for text, link in named[0] & named[1] if link in roaming}
    names = {text for text, _ in named[0]} & {text for text, _ in named[1]} - moving
    if len(names) > 1 and a.passive == b.passive:
        order = [[word.text for word in gist.words if word.text in names] for gist in (a, b)]
        return order[0] != order[1]
    return False


def _subject(question: NormalizedQuestion) -> int:
    """Return 1 for a question with `I` and no `me`, -1 for one with `me` and no `I`: who acts. 0 for others."""
    words = question.plain.split()
    return ("i" in words) - ("me" in words or "me?" in words)


def _is_symmetric(a: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether the same words tell of a relation that holds in both directions."""
    return not rest.left and not rest.right and any(word.sense in _SYMMETRIC for word in a.words)


def other_pronouns(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether both say `he` or `she`, but not the same of the two, or as often in another order.

    Persons that only one of them names may belong to its story, and are no conflict.
    """
    words, other = {*a.others}, {*b.others}
    if not words or not other:
        return False
    return words.isdisjoint(other) or (len(a.others) == len(b.others) and a.others != b.others)


def other_persons(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    return not rest.left and not rest.right and any_other_persons(a, b, rest)


def any_other_persons(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether `I` and `you` differ; in general questions (`how can I`, `should you`) they mean the same."""
    if a.persons == b.persons:
        return False
    left, right = {*a.persons}, {*b.persons}
    if len(left) > 1 or len(right) > 1:
        return True
    anybody = ("howto" in a.asked and "howto" in b.asked) or (a.modals and b.modals)
    return bool(left and right and left != right and not anybody)


def other_modals(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether they differ only in that one asks what can be, and the other what should or must be."""
    if not a.modals or not b.modals or rest.left or rest.right:
        return False
    return a.modals.isdisjoint(DUTIES) != b.modals.isdisjoint(DUTIES)


def links_differ(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    if _is_symmetric(a, rest):
        return False
    before = {word.sense: word.link for word in a.words}
    changed = {(other, word.link) for word in b.words if (other := before.get(word.sense, word.link)) != word.link}
    if not changed:
        return False
    # In `miles to kilometres` and `kilometres to miles` the words have swapped links.
    traded = any((now, then) in changed and not _JOINING & {then, now} for then, now in changed)
    return traded or any(frozenset(links) in _AGAINST for links in changed)


def links_told(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    return not _is_retold(a, b, rest) and links_differ(a, b, rest)
