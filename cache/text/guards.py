"""Decide what forbids serving the answer to one question for another, however alike they look. One list. No I/O.

A guard is a name that traces show and that a policy may switch (`cache.semantic.guards`); its rules compare two texts.
A rule says what it reads of each:

    text       the signs, in any language
    wording    every word, as `cache.text.reading` keeps them
    question   the normalized question (`cache.text.normalized_question`)
    leftover   the words of each that the other has not (`cache.text.pair_features`)

and where it holds:

    strict     no model scores the pair: every word counts
    alone      the verifier scores it, and nothing reads what is left
    screened   a cross-encoder reads what is left, so only what conflicts is refused, not every difference
    foreign    the same, for two questions in another language than English
    turn       two turns of conversations, before the cross-encoder reads them
    earlier    two turns before the last
    answers    two answers to one question, in an audit

A new guard is a row of GUARDS with its rules in RULES; a name that a policy may switch stands in
`policies.caching.Guard` as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple, get_args

from cache.text.normalized_question import DIRECTIONS, NormalizedQuestion, Word, gist
from cache.text.pair_features import Leftover, leftover, roaming_links
from cache.text.reading import FAINT, LISTS, QuestionReading, read, script_of
from cache.text.thesaurus import groups_of, word_set
from policies.caching import Guard

Where = Literal["strict", "alone", "screened", "foreign", "turn", "earlier", "answers"]
Reads = Literal["text", "wording", "question", "leftover"]
SWITCHED: Final[tuple[str, ...]] = get_args(Guard)
"""Guards that a policy may leave out; all others always hold."""
GUARDS: Final[Mapping[str, str]] = {
    "numbers": "other numbers, quantities or symbols of a calculation",
    "negation": "a negation or an opposite in one of them",
    "entities": "another name, another thing of its kind, or another text in quotes",
    "dates": "another day, month or tense, before for after",
    "asked": "who for when, whether for how, can for should",
    "order": "the same words in other roles: `A to B` for `B to A`, `I` for `you`",
    "wording": "a word that only one of them has, or no word at all",
    "length": "a text of more than 2,000 characters",
    "script": "signs that the model to score it was not made for",
    "language": "a language that the model to score it was not made for",
    "unknown_token": "a token that the cross-encoder does not know",
    "scope": "a key of another scope",
    "turns": "another number of turns, other speakers, or more than four turns in other words",
    "answer": "another long answer of the assistant",
    "payload": "a turn with a text to work on",
    "volatile": "a turn that asks for what changes with time",
    "follow_up": "a turn that means something only after what was said before it",
}
"""What each guard refuses."""
LONGEST: Final = 2_000
"""Maximum characters: longer questions hardly recur in other words, and would be slow to parse."""

_WAYS: Final = frozenset({"what", "how", "howto"})
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
_DUTIES: Final = frozenset({"should", "must"})
_FEW: Final = 3
"""Words from which two questions differ in more than a `not`."""
_SHORT: Final = 7
"""Letters from which a name is no abbreviation."""
_STORY: Final = 20
"""Words from which a text tells a story around its question."""
_RETOLD: Final = 8
"""Words that each of two stories has of its own, from which one is the other in other words."""
_LACKING: Final = frozenset(word.sense for one in word_set(LISTS["lacking"]) for word in gist(f"they {one}").words)
_TURNED: Final = 2
"""Two words swap places in many paraphrases (`damaged item`, `the item is damaged`); three in the opposite order mean
that roles are swapped."""


_TIME_KINDS: Final[dict[str, set[int]]] = {}
"""A word of time -> the kinds of time it may be, by number."""
for _number, _group in enumerate(groups_of(LISTS["time_kinds"])):
    for _word in _group:
        _TIME_KINDS.setdefault(_word, set()).add(_number)


class Pair:
    """Two texts and what is read of them.

    `a`, `b` and `rest` are there once the guards were asked where rules read the leftover, and none refused.
    """

    __slots__ = ("_normalize", "a", "asked", "b", "rest", "stored")

    def __init__(self, stored: str, asked: str, normalize: Callable[[str], NormalizedQuestion] = gist) -> None:
        self.stored = stored
        self.asked = asked
        self._normalize = normalize
        self.a: NormalizedQuestion
        self.b: NormalizedQuestion
        self.rest: Leftover

    def refusal(self, guards: Collection[str], where: Where) -> str:
        """Return the name of the guard that refuses, of those in `guards` and those that always hold; '' for none."""
        if self.stored == self.asked:
            return ""
        text, wording, question, left = _rules_of(frozenset(guards), where)
        if (len(self.stored) > LONGEST or len(self.asked) > LONGEST) and where in _BOUNDED:
            return "length"
        for guard, conflict in text:
            if conflict(self.stored, self.asked):
                return guard
        if wording:
            one, other = read(self.stored), read(self.asked)
            for guard, conflict in wording:
                if conflict(one, other):
                    return guard
        if not question:
            return ""
        a, b = self.a, self.b = self._normalize(self.stored), self._normalize(self.asked)
        for guard, conflict in question:
            if conflict(a, b):
                return guard
        rest = self.rest = leftover(a, b)
        for guard, conflict in left:
            if conflict(a, b, rest):
                return guard
        return ""


def every_refusal(a: NormalizedQuestion, b: NormalizedQuestion, where: Where) -> list[str]:
    """Return every rule that refuses, as `guard: rule`: for a report on what each is worth."""
    rest = leftover(a, b)
    read_of: Mapping[str, tuple[Any, ...]] = {"question": (a, b), "leftover": (a, b, rest)}
    return [
        f"{rule.guard}: {rule.name}"
        for rule in RULES
        if where in rule.where and rule.reads in read_of and rule.conflict(*read_of[rule.reads])
    ]


_DIGITS: Final = re.compile(r"\d+(?:[.,\u066b\u066c]\d+)*")
_WORDS: Final = re.compile(r"\w+")
_UNSPACED: Final = frozenset({"Han", "Hiragana", "Thai"})
"""Scripts without spaces between words."""
_LATIN_WORDS: Final = re.compile(r"[A-Za-z][A-Za-z0-9.+#-]*")


def _other_digits(stored: str, asked: str) -> bool:
    """Return whether the numbers in digits differ, in whatever digits they are written."""
    return sorted(_numbers_in_digits(stored)) != sorted(_numbers_in_digits(asked))


def _numbers_in_digits(text: str) -> list[str]:
    return ["".join(str(int(sign)) if sign.isdecimal() else "." for sign in found) for found in _DIGITS.findall(text)]


def _other_latin_words(stored: str, asked: str) -> bool:
    """Return whether texts in another script both have words in Latin letters and none in common: PDF and JPG."""
    own, others = _latin_words(stored), _latin_words(asked)
    return bool(own and others) and set(own).isdisjoint(others)


def _words_moved(stored: str, asked: str) -> bool:
    """Return whether they have the same words in another order; where no spaces are, the same signs."""
    own, others = (_WORDS.findall(text.lower()) for text in (stored, asked))
    if script_of(stored) in _UNSPACED:
        own, others = list("".join(own)), list("".join(others))
    return own != others and sorted(own) == sorted(others)


def _latin_words_moved(stored: str, asked: str) -> bool:
    """Return whether texts in another script have the same words in Latin letters in another order: PDF to Word."""
    own, others = _latin_words(stored), _latin_words(asked)
    return own != others and sorted(own) == sorted(others)


def _latin_words(text: str) -> list[str]:
    """Return the words in Latin letters, in lower case and in order; none of a text that is mostly in Latin script."""
    return [] if script_of(text) == "Latin" else [word.lower() for word in _LATIN_WORDS.findall(text)]


def _no_content(a: QuestionReading, b: QuestionReading) -> bool:
    return not a.content or not b.content


def _no_words(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    return not a.words or not b.words


def _numbers_in_order(a: QuestionReading, b: QuestionReading) -> bool:
    return a.numbers != b.numbers


def _numbers(a: QuestionReading, b: QuestionReading) -> bool:
    return sorted(a.numbers) != sorted(b.numbers)


def _negations(a: QuestionReading, b: QuestionReading) -> bool:
    return a.negations != b.negations or a.poles != b.poles


def _negations_or_sides(a: QuestionReading, b: QuestionReading) -> bool:
    return len(a.negations) % 2 != len(b.negations) % 2 or _other_sides(a, b)


def _names_in_one(a: QuestionReading, b: QuestionReading) -> bool:
    return not (a.names <= b.stems and b.names <= a.stems)


def _times(a: QuestionReading, b: QuestionReading) -> bool:
    return a.times != b.times


def _asked(a: QuestionReading, b: QuestionReading) -> bool:
    return a.asked != b.asked


def _same_words_moved(a: QuestionReading, b: QuestionReading) -> bool:
    return a.content != b.content and a.stems == b.stems


def _topics_moved(a: QuestionReading, b: QuestionReading) -> bool:
    """Return whether the same words come in another order, but for those without a topic."""
    if a.stems != b.stems:
        return False
    return [word for word in a.content if word not in FAINT] != [word for word in b.content if word not in FAINT]


def _any_other_word(a: QuestionReading, b: QuestionReading) -> bool:
    return a.content != b.content


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


def _any_other_numbers(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    return a.numbers != b.numbers or a.symbols != b.symbols


def _other_numbers(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    """Return whether they count or calculate other things.

    One is said with an article as well. A number in only one of them may belong to its story, if that is long.
    """
    if not _any_other_numbers(a, b):
        return False
    if _is_story(a, b):
        one, other = {*a.numbers, *a.symbols} - {"1"}, {*b.numbers, *b.symbols} - {"1"}
        return not (one <= other or other <= one)
    if a.symbols != b.symbols or a.symbols:
        return True
    return [number for number in a.numbers if number != "1"] != [number for number in b.numbers if number != "1"]


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


def _times_asked(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    return not _is_story(a, b) and _other_times(a, b)


def _times_told(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    return not _is_retold(a, b, rest) and _other_times(a, b)


def _is_story(a: NormalizedQuestion, b: NormalizedQuestion) -> bool:
    return max(a.length, b.length) >= _STORY


def _is_retold(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether they tell a story in other words, of which a cross-encoder must say whether it is another."""
    return _is_story(a, b) and min(len(rest.left), len(rest.right)) >= _RETOLD


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
    if _other_sides(a, b):
        return True
    # What one says with a `not`, the other may say with a word of its own.
    plain = rest.right if len(a.negations) % 2 else rest.left
    return few and (lessened or (turned and not any(word.sense in _LACKING for word in plain)))


def _is_less(words: Sequence[Word]) -> bool:
    return any(word.text in _LESS for word in words)


def _other_sides(a: NormalizedQuestion | QuestionReading, b: NormalizedQuestion | QuestionReading) -> bool:
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
    texts = {form for word in right for form in (word.text, word.root)}
    senses = {sense for word in right for sense in word.senses}
    negated = {other for word in right for other in word.negated}
    return sum(
        not word.opposed.isdisjoint(senses)
        or not word.negated.isdisjoint(texts)
        or word.text in negated
        or word.root in negated
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


def _quotes_asked(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether they quote other things. What only one of them quotes may belong to its story."""
    return bool(not _is_story(a, b) or (a.quotes and b.quotes)) and _other_quotes(a, b, rest)


def _other_order(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
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
    named = [{(word.text, word.link) for word in one.words if word.name} for one in (a, b)]
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


def _other_pronouns(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    """Return whether others do what, or others than in the other. Only one of them may name somebody in its story."""
    one, other = {*a.others}, {*b.others}
    if not one or not other:
        return False
    return one.isdisjoint(other) or (len(a.others) == len(b.others) and a.others != b.others)


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


def _links_told(a: NormalizedQuestion, b: NormalizedQuestion, rest: Leftover) -> bool:
    return not _is_retold(a, b, rest) and _links_differ(a, b, rest)


class Rule(NamedTuple):
    """One test of a guard: `conflict` takes what it `reads` of both texts (see the module's docstring)."""

    guard: str
    name: str
    reads: Reads
    where: frozenset[str]
    conflict: Callable[..., bool]


_STRICT: Final = frozenset({"strict"})
_TURN: Final = frozenset({"turn"})
_EARLIER: Final = frozenset({"earlier"})
_ALONE: Final = frozenset({"alone", "answers"})
_SCREENED: Final = frozenset({"screened"})
_BOTH: Final = _ALONE | _SCREENED
_FOREIGN: Final = frozenset({"foreign"})
_BOUNDED: Final = frozenset({"strict", "alone", "screened", "foreign"})
RULES: Final[tuple[Rule, ...]] = tuple(Rule(*row) for row in (
    ("numbers", "digits", "text", _FOREIGN, _other_digits),
    ("entities", "latin", "text", _FOREIGN, _other_latin_words),
    ("order", "latin", "text", _FOREIGN, _latin_words_moved),
    ("order", "moved", "text", _FOREIGN, _words_moved),
    ("wording", "empty", "wording", _STRICT, _no_content),
    ("numbers", "in order", "wording", _STRICT, _numbers_in_order),
    ("numbers", "in turns", "wording", _TURN, _numbers),
    ("negation", "every", "wording", _STRICT, _negations),
    ("negation", "in turns", "wording", _TURN, _negations_or_sides),
    ("entities", "every", "wording", _STRICT | _EARLIER, _names_in_one),
    ("dates", "every", "wording", _STRICT, _times),
    ("asked", "every", "wording", _STRICT, _asked),
    ("order", "every", "wording", _STRICT, _same_words_moved),
    ("order", "in turns", "wording", _TURN, _topics_moved),
    ("wording", "every", "wording", _STRICT, _any_other_word),
    ("wording", "empty", "question", frozenset({"alone", "screened"}), _no_words),
    ("numbers", "any", "question", _ALONE, _any_other_numbers),
    ("numbers", "other", "question", _SCREENED, _other_numbers),
    ("negation", "in one", "question", _ALONE, _not_in_one),
    ("dates", "other", "question", _ALONE, _other_times),
    ("dates", "other", "question", _SCREENED, _times_asked),
    ("dates", "any", "question", _ALONE, _any_other_times),
    ("asked", "other", "question", _BOTH, _other_question),
    ("asked", "any", "question", _ALONE, _any_other_question),
    ("asked", "modals", "leftover", _BOTH, _other_modals),
    ("dates", "told", "leftover", _SCREENED, _times_told),
    ("negation", "turned", "leftover", _BOTH, _negated),
    ("negation", "opposite", "leftover", _ALONE, _opposite_in_one),
    ("negation", "way", "leftover", _ALONE, _other_way),
    ("entities", "kind", "leftover", _ALONE, _another_kind),
    ("entities", "name", "leftover", _BOTH, _another_name),
    ("entities", "quoted", "leftover", _ALONE, _other_quotes),
    ("entities", "quoted", "leftover", _SCREENED, _quotes_asked),
    ("entities", "any", "leftover", _ALONE, _name_in_one),
    ("order", "words", "leftover", _BOTH, _other_order),
    ("order", "pronouns", "leftover", _BOTH, _other_pronouns),
    ("order", "persons", "leftover", _BOTH, _other_persons),
    ("order", "any person", "leftover", _ALONE, _any_other_persons),
    ("order", "links", "leftover", _ALONE, _links_differ),
    ("order", "links", "leftover", _SCREENED, _links_told),
))  # fmt: skip
"""In the order in which they are asked: the cheapest refuses most, at a hundredth of the cost of `leftover`."""

_Tests = tuple[tuple[str, Callable[..., bool]], ...]


@lru_cache(maxsize=256)
def _rules_of(guards: frozenset[str], where: str) -> tuple[_Tests, _Tests, _Tests, _Tests]:
    """Return the rules that hold there, by what they read."""
    held = [rule for rule in RULES if where in rule.where and (rule.guard in guards or rule.guard not in SWITCHED)]
    text, wording, question, left = (
        tuple((rule.guard, rule.conflict) for rule in held if rule.reads == reads)
        for reads in ("text", "wording", "question", "leftover")
    )
    return text, wording, question, left
