"""Decide what forbids serving the answer to one question for another, however alike they look. One list. No I/O.

A guard is a name that traces show and that a policy may switch (`cache.semantic.guards`); its rules compare two texts.
A rule says what it reads of each:

    text       the signs, in any language, and the words of a lexicon (`cache.text.languages`)
    wording    every word, as `cache.text.reading` keeps them
    question   the normalized question (`cache.text.normalized_question`)
    leftover   the words of each that the other has not (`cache.text.pair_features`)

and where it holds:

    strict     no model scores the pair: every word counts
    alone      the verifier scores it, and nothing reads what is left
    screened   a cross-encoder reads what is left, so only what conflicts is refused, not every difference
    foreign    as `screened`, where neither question is in English
    turn       two turns of conversations, before the cross-encoder reads them
    earlier    two turns before the last
    answers    two answers to one question, in an audit

The tests of two texts are in `text_conflicts` and `question_conflicts`, by what they read.
A new guard is a row of GUARDS with its rules in RULES; a name that a policy may switch stands in
`policies.caching.Guard` as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Final, Literal, NamedTuple, get_args

from cache.text import question_conflicts as by_question
from cache.text import text_conflicts as by_text
from cache.text.normalized_question import NormalizedQuestion, gist
from cache.text.pair_features import Leftover, leftover
from cache.text.reading import read
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
    "exchange": "one word in place of another that does not mean the same",
    "scope": "a key of another scope",
    "turns": "another number of turns, other speakers, or more than six turns in other words",
    "answer": "another long answer of the assistant",
    "payload": "a turn with a text to work on",
    "follow_up": "a turn that means something only after what was said before it",
}
"""What each guard refuses."""
LONGEST: Final = 2_000
"""Maximum characters: longer questions hardly recur in other words, and would be slow to parse."""


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
            reading, other = read(self.stored), read(self.asked)
            for guard, conflict in wording:
                if conflict(reading, other):
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
_UNSCREENED: Final = frozenset({"alone", "answers"})
"""Where no cross-encoder reads what is left."""
_SCREENED: Final = frozenset({"screened"})
_BOTH: Final = _UNSCREENED | _SCREENED
_FOREIGN: Final = frozenset({"foreign"})
_BOUNDED: Final = frozenset({"strict", "alone", "screened", "foreign"})
RULES: Final[tuple[Rule, ...]] = tuple(Rule(*row) for row in (
    ("numbers", "other", "text", _FOREIGN, by_text.other_numbers),
    ("numbers", "in turns", "text", _TURN, by_text.other_numbers_in_turns),
    ("entities", "latin", "text", _FOREIGN, by_text.other_latin_words),
    ("entities", "part", "text", _FOREIGN, by_text.part_for_whole),
    ("order", "latin", "text", _FOREIGN, by_text.latin_words_moved),
    ("order", "moved", "text", _FOREIGN, by_text.words_moved),
    ("negation", "opposite", "text", _FOREIGN, by_text.opposite),
    ("negation", "in turns", "text", _TURN, by_text.opposite_in_turns),
    ("wording", "empty", "wording", _STRICT, by_question.no_content),
    ("numbers", "in order", "wording", _STRICT, by_question.numbers_in_order),
    ("negation", "every", "wording", _STRICT, by_question.negations),
    ("entities", "every", "wording", _STRICT | _EARLIER, by_question.names_in_one),
    ("dates", "every", "wording", _STRICT, by_question.times),
    ("asked", "every", "wording", _STRICT, by_question.asked),
    ("order", "every", "wording", _STRICT, by_question.same_words_moved),
    ("order", "in turns", "wording", _TURN, by_question.topics_moved),
    ("wording", "every", "wording", _STRICT, by_question.any_other_word),
    ("wording", "empty", "question", frozenset({"alone", "screened"}), by_question.no_words),
    ("numbers", "any", "question", _UNSCREENED, by_question.any_other_numbers),
    ("numbers", "other", "question", _SCREENED, by_question.other_numbers),
    ("negation", "in one", "question", _UNSCREENED, by_question.not_in_one),
    ("dates", "other", "question", _UNSCREENED, by_question.other_times),
    ("dates", "other", "question", _SCREENED, by_question.times_asked),
    ("dates", "any", "question", _UNSCREENED, by_question.any_other_times),
    ("asked", "other", "question", _BOTH, by_question.other_question),
    ("asked", "any", "question", _UNSCREENED, by_question.any_other_question),
    ("asked", "modals", "leftover", _BOTH, by_question.other_modals),
    ("dates", "told", "leftover", _SCREENED, by_question.times_told),
    ("negation", "turned", "leftover", _BOTH, by_question.negated),
    ("negation", "opposite", "leftover", _UNSCREENED, by_question.opposite_in_one),
    ("negation", "way", "leftover", _UNSCREENED, by_question.other_way),
    ("entities", "kind", "leftover", _UNSCREENED, by_question.another_kind),
    ("entities", "name", "leftover", _BOTH, by_question.another_name),
    ("entities", "quoted", "leftover", _UNSCREENED, by_question.other_quotes),
    ("entities", "quoted", "leftover", _SCREENED, by_question.quotes_asked),
    ("entities", "any", "leftover", _UNSCREENED, by_question.name_in_one),
    ("order", "words", "leftover", _BOTH, by_question.other_order),
    ("order", "pronouns", "leftover", _BOTH, by_question.other_pronouns),
    ("order", "persons", "leftover", _BOTH, by_question.other_persons),
    ("order", "any person", "leftover", _UNSCREENED, by_question.any_other_persons),
    ("order", "links", "leftover", _UNSCREENED, by_question.links_differ),
    ("order", "links", "leftover", _SCREENED, by_question.links_told),
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
