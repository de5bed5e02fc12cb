"""Decide which requests may be answered from the cache, and by which cache. Rules only, no I/O.

exact      where the policy has it, unless one of its `never` rules holds.
semantic   the same, and the request must be one question that is complete in itself: no tools, images, seed, logprobs
           or n > 1, no temperature above the policy's; no follow-up (`and the second one?`); no text to work on
           (`translate ...`, quotes, code); not too long. `tests.bench.measure_cache --gates` measures each rule.

A rule of `never` may name `volatile` (`cache.planning.volatile`: is the shop open?), which holds where the head is
sure. Where it is in doubt and the rule would hold, both caches keep the answer for the policy's `doubt_ttl` at most.

`cache.write` decides which answers may be stored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from cache.planning.volatile import Volatility, volatility_of
from cache.text.languages import ForeignReading, readings_of
from cache.text.reading import FAINT, LISTS, text_words
from cache.text.thesaurus import groups_of, word_set

if TYPE_CHECKING:
    from policies.caching import CachePolicy

LONGEST_QUESTION = 2_000
"""Maximum characters: longer texts are documents, which other clients hardly ever repeat."""

_OPENER = re.compile(
    r"^\s*(?:(?:and|but|or|also|then|so|ok(?:ay)?|yes|no|yeah|sure|thanks?(?:\s+you)?)\b[\s,.!]*)+", re.IGNORECASE
)
"""Words that continue a conversation, or fill where a text that stands alone begins."""
_LEANS = re.compile(
    r"""^\s*(?:
        (?:what|how)\s+about\b|
        (?:why|how|when|where|who|what|which|really|continue|go\s+on|more|again|next|elaborate|explain|shorter|longer|
           rephrase|translate|summari[sz]e|rewrite)(?:\s+(?:it|this|that|them|please|so|not|me|more|else))*\W*$
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_POINTING_BACK = word_set(LISTS["pointing_back"])
_ASKING = word_set(LISTS["asking"])
_VOLATILE = "volatile"
_FOLLOW_UP: Final = "follow_up"
_WORD = re.compile(r"\w+")
_STANDS_ALONE = 2
"""With this many words of its own, a question may contain what its pronoun refers to."""
_ASKS_SOMETHING = 3
"""Words with which a turn in another language asks something, if none of them is its own: `what can I do now`."""


class RequestFacts(Protocol):
    """Facts that the caller has already read from the request (implemented by the gateway's Features)."""

    @property
    def text(self) -> str: ...
    @property
    def turns(self) -> int: ...
    @property
    def approx_tokens(self) -> int: ...
    @property
    def has_tools(self) -> bool: ...
    @property
    def has_images(self) -> bool: ...
    @property
    def wants_json(self) -> bool: ...
    @property
    def stream(self) -> bool: ...


def never_values(body: Mapping[str, Any], facts: RequestFacts) -> dict[str, Any]:
    """Return the values for `cache.never` rules, except `volatile`; None where the request does not set one."""
    return {
        "tools": facts.has_tools,
        "images": facts.has_images,
        "json": facts.wants_json,
        "stream": facts.stream,
        "turns": facts.turns,
        "tokens_in": facts.approx_tokens,
        "temperature": body.get("temperature"),
        "top_p": body.get("top_p"),
        "n": 1 if body.get("n") is None else body["n"],
        "seed": body.get("seed"),
        "logprobs": bool(body.get("logprobs")),
    }


def why_not_any(policy: CachePolicy, body: Mapping[str, Any], facts: RequestFacts) -> str:
    """Return why neither cache applies, or ''."""
    if policy.exact is None and policy.semantic is None:
        return "policy"
    if policy.never:
        values = never_values(body, facts)
        for rule in policy.never:
            if _VOLATILE in rule.names and _VOLATILE not in values:
                volatility = volatility_of(facts.text)
                values[_VOLATILE] = volatility != "stable" and counts_as_volatile(policy, volatility)
            if rule.holds(values):
                return f"never: {rule.source}"
    return ""


def counts_as_volatile(policy: CachePolicy, volatility: Volatility) -> bool:
    """Return the value of `volatile` in a rule: whether it is sure, or in doubt and the policy keeps nothing then."""
    return volatility == "volatile" or (volatility == "doubtful" and not policy.doubt_ttl)


def longest_kept(policy: CachePolicy, body: Mapping[str, Any], facts: RequestFacts) -> float:
    """Return for how many seconds the answer to a request that `why_not_any` has passed may be served.

    Infinite unless a rule of `never` would hold if the text were volatile, and it may be.
    """
    for rule in policy.never:
        may_hold = _VOLATILE in rule.names and volatility_of(facts.text) != "stable"
        if may_hold and rule.holds({**never_values(body, facts), _VOLATILE: True}):
            return policy.doubt_ttl
    return math.inf


def why_not_semantic(
    policy: CachePolicy,
    body: Mapping[str, Any],
    facts: RequestFacts,
    question: str | None,
    longest: int = LONGEST_QUESTION,
    *,
    in_context: bool = False,
) -> str:
    """Return why the semantic cache does not apply to a request that `why_not_any` has passed, or ''.

    `longest` is the number of characters of a question that its vector certainly covers. `in_context`: what was said
    before the question is compared too, so it need not stand alone.
    """
    if policy.semantic is None:
        return "policy"
    if facts.has_tools:
        return "tools"
    if facts.has_images:
        return "images"
    if body.get("seed") is not None:
        return "seed"
    if body.get("logprobs"):
        return "logprobs"
    if (body.get("n") or 1) != 1:
        return "n"
    if (body.get("temperature") or 0) > policy.semantic.max_temperature:
        return "temperature"
    if question is None:
        return "no_text"
    if len(question) > longest:
        return "long"
    return why_not_in_context(question) if in_context else why_not_the_question(question)


def why_not_the_question(question: str) -> str:
    """Return why no other question's answer may be served, or ''. What was said before it is equal for all candidates,
    so a pronoun may refer to it; but a question of hardly any word of its own has nothing to be compared by.
    """
    return "long" if len(question) > LONGEST_QUESTION else _why_not_asked(question)


@lru_cache(maxsize=1_024)
def _why_not_asked(question: str) -> str:
    """Return the reason as above; cached, because a request needs it before embedding, lookup and write."""
    words = _words_of(question)
    for reason, _, holds in _RULES:
        if holds(words):
            return reason
    return ""


@lru_cache(maxsize=1_024)
def why_not_in_context(question: str) -> str:
    """Return why a user's turn may not be answered as another wording of it was, or '' if it may.

    The turns before it are compared too, so it need not stand alone; but it needs a word of its own.
    """
    words = _words_of(question)
    if words.own == 0 or any(part.size + part.meta == 0 and part.length < _ASKS_SOMETHING for part in words.foreign):
        return _FOLLOW_UP
    return next((reason for reason, _, holds in _RULES if reason != _FOLLOW_UP and holds(words)), "")


class _QuestionWords(NamedTuple):
    """A question, its words in lower case, their set, the number of its own words, and how it reads in the languages
    other than English that it may be in.
    """

    text: str
    words: Sequence[str]
    seen: Set[str]
    own: int
    foreign: tuple[ForeignReading, ...]


def _words_of(question: str) -> _QuestionWords:
    words = text_words(question)
    seen = frozenset(words)
    return _QuestionWords(question, words, seen, len(seen - FAINT), readings_of(question))


def _leans(question: _QuestionWords) -> bool:
    return question.own == 0 or _LEANS.match(question.text) is not None


def _continues(question: _QuestionWords) -> bool:
    """Return whether it begins as a follow-up does, and is no whole question behind that: `and in Spain?`."""
    opener = _OPENER.match(question.text)
    if opener is None:
        return False
    rest = question.text[opener.end() :]
    own = len({*_WORD.findall(rest.lower())} - FAINT)
    return _LEANS.match(rest) is not None or own < (_STANDS_ALONE if _asks(rest) else _STANDS_ALONE + 1)


def _asks(text: str) -> bool:
    """Return whether a text begins as a question does."""
    first = _WORD.match(text.lstrip())
    return first is not None and (first[0].lower() in _ASKING or any(one.asks for one in readings_of(text.strip())))


def _points_back(question: _QuestionWords) -> bool:
    return question.own < _STANDS_ALONE and not question.seen.isdisjoint(_POINTING_BACK)


def _hangs(question: _QuestionWords) -> bool:
    """Return whether a question in another language leans, continues or points back, by the lexicon of its language."""
    return bool(question.foreign) and any(
        reading.size == 0
        or (reading.opens and reading.size < _STANDS_ALONE + (not reading.asks))
        or (reading.points_back and reading.size < _STANDS_ALONE)
        for reading in question.foreign
    )


_SIGNS: Final = re.compile(
    # Each alternative begins with a letter of its own, so that `re` tries them at these alone.
    r"""\{|\}|;(?=\S)               # code
    | \n                         # several lines
    | \((?<=\w\()|=[=>]|->|::|</|/>   # code
    """,
    re.VERBOSE,
)
_COLON: Final = re.compile(r"[:：]\s*(?=[^\W\d])")
_LISTS: Final = LISTS["payload"]
_POLITE: Final = word_set(_LISTS["polite"])
_ASKS_LEAVE: Final = frozenset(groups_of(_LISTS["asks_leave"]))
_TASKS: Final = word_set(_LISTS["tasks"])
_DESCRIBING: Final = word_set(_LISTS["describing"])
_ON_ITS_WORDS: Final = word_set(_LISTS["on_its_words"])
_OF_TEXT: Final = word_set(_LISTS["of_text"])
_ANNOUNCING: Final = word_set(_LISTS["announcing"])
_NAMING_TEXT: Final = word_set(_LISTS["naming_text"])
_NAMING_LANGUAGE: Final = word_set(_LISTS["naming_language"])
_PAIRS: Final = frozenset(groups_of(_LISTS["pairs"]))
_OF_PAIRS: Final = frozenset(max(reversed(pair), key=len) for pair in _PAIRS)
"""The longer word of each pair, the rarer one: most questions have none of them."""

# A question that contains a text to work on: every letter may matter then, so no neighbour may answer (`translate: the
# dog is in the house`, `how many letters are in having`). Rather too many than too few: such a question still has the
# exact cache. What is only quoted is compared with the other question's words (`cache.text.pair_features`).


def _of_language(question: _QuestionWords) -> bool:
    return (
        not question.seen.isdisjoint(_OF_TEXT)
        or (not _OF_PAIRS.isdisjoint(question.seen) and not _PAIRS.isdisjoint(pairwise(question.words)))
        or (bool(question.foreign) and any(reading.mentions for reading in question.foreign))
    )


def _has_signs(question: _QuestionWords) -> bool:
    return _SIGNS.search(question.text.rstrip()) is not None


def _introduces(question: _QuestionWords) -> bool:
    """Return whether a colon introduces a text (`French: good morning`), not the question: `quick one: where is`."""
    text = question.text
    if ":" not in text and "：" not in text:
        return False
    colon = _COLON.search(text)
    if colon is None:
        return False
    before = _WORD.findall(text[: colon.start()].lower())
    rest = text[colon.end() :]
    if before and _ANNOUNCING.issuperset(before):
        return _begins_with_a_task(_WORD.findall(rest.lower()))
    if not (_TASKS.isdisjoint(before) and _NAMING_TEXT.isdisjoint(before)):
        return True
    return (0 < len(before) <= 2 and before[-1] in _NAMING_LANGUAGE) or not _asks(rest)


def _begins_with_a_task(words: Sequence[str]) -> bool:
    # `Can I add ...` and `if you want to add ...` ask for information; `can you add ...` gives a task.
    if tuple(words[:2]) in _ASKS_LEAVE:
        return False
    for at, word in enumerate(words):
        if word not in _POLITE:
            return word in _TASKS and not _describes(words[at : at + 2])
    return False


def _describes(begin: Sequence[str]) -> bool:
    """Return whether a task's first two words show that it only describes its object."""
    return len(begin) > 1 and begin[0] not in _ON_ITS_WORDS and begin[1] in _DESCRIBING


_RULES: Final[tuple[tuple[str, str, Callable[[_QuestionWords], bool]], ...]] = (
    (_FOLLOW_UP, "leans", _leans),
    (_FOLLOW_UP, "continues", _continues),
    (_FOLLOW_UP, "points back", _points_back),
    (_FOLLOW_UP, "in another language", _hangs),
    ("payload", "language", _of_language),
    ("payload", "signs", _has_signs),
    ("payload", "colon", _introduces),
    ("payload", "task", lambda question: _begins_with_a_task(question.words)),
)
"""What makes a question ineligible: the reason, the rule's name where a reason has several, and the test."""
