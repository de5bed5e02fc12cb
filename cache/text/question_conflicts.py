"""Say where two questions conflict by what is read of each: numbers, times, negations, what is asked. Pure.

A function takes both readings (`cache.text.reading`), or both normalized questions, and returns whether they conflict.
"""

from __future__ import annotations

from typing import Final

from cache.text.normalized_question import NormalizedQuestion
from cache.text.reading import FAINT, LISTS, QuestionReading
from cache.text.thesaurus import groups_of

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
    """Return whether the same words come in another order, but for those without a topic."""
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
    """Return whether they ask for different things. A task fits any, `what` fits `how`."""
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
    """Return whether they count or calculate other things.

    One is said with an article as well. A number in only one of them may belong to its story, if that is long.
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
    """Return whether they ask different things: who or when, whether or how. `what` may ask for any of them."""
    if a.asked == b.asked or "what" in a.asked or "what" in b.asked:
        return False
    if a.polar or b.polar:
        return bool(a.asked or b.asked)
    return bool(a.asked and b.asked) and _ways(a.asked).isdisjoint(_ways(b.asked))


def _ways(asked: frozenset[str]) -> frozenset[str]:
    return asked - {"howto"} | {"how"} if "howto" in asked else asked


def other_sides(a: NormalizedQuestion | QuestionReading, b: NormalizedQuestion | QuestionReading) -> bool:
    """Return whether they contain opposite sides of an opposition, such as more and less."""
    return any(pole ^ 1 in b.poles and pole ^ 1 not in a.poles for pole in a.poles - b.poles)
