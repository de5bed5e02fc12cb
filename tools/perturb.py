"""Generate pairs: a paraphrase of a question, and a question with one small change that changes its answer.

Labelled data contains few ways to ask and few ways to differ. From questions alone (no labels are read), each rule
below makes a pair whose label is known by construction. The rules are the groups of the data set `perturbed`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cache.text.normalized_question import gist
from cache.text.reading import FAINT, NUMBERS
from cache.text.thesaurus import FILLERS, SYNONYM, VAGUE

OURS = "perturbed"
"""Name of the generated data set."""
_HOW_TO = re.compile(r"^(?:how (?:do|can|should|would) (?:i|you|we|one)|how to) (.+?)\??$", re.IGNORECASE)
_WAYS = (
    "How do I {}?", "How can I {}?", "How to {}?", "What is the best way to {}?", "What's a good way to {}?",
    "What should I do to {}?", "Can you tell me how to {}?", "What are some ways to {}?", "How can one {}?",
    "What are the steps to {}?", "Please explain how to {}.", "I want to {}. How do I do that?",
    "Is there a way to {}?", "Tips to {}?", "How would you {}?", "If I want to {}, what should I do?",
)  # fmt: skip
_WRAPPED = (
    "Can you tell me {}?", "Please tell me {}?", "I would like to know {}.", "Do you know {}?", "Hi, {}?",
    "{}, please?", "So {}?", "I'm wondering {}?",
)  # fmt: skip
_ASKING = ("What", "Why", "When", "Where", "Who", "How")
_LINKS = ("in", "on", "for", "with", "without", "about", "of", "from", "to", "under", "against")
_WORD = re.compile(r"[A-Za-z]+")
_BY_GROUP: dict[str, list[str]] = {}
for _word, _groups in SYNONYM.items():
    if len(_groups) == 1:  # a word with several meanings may be used in another one
        _BY_GROUP.setdefault(_groups[0], []).append(_word)


@dataclass(frozen=True, slots=True)
class QuestionPair:
    """Two questions and whether the answer to `a` may be served for `b`. Pairs of a `group` are left out together."""

    a: str
    b: str
    same_answer: bool
    dataset: str
    group: str


def perturbed(questions: Sequence[str], seed: int) -> Iterator[QuestionPair]:
    """Yield a paraphrase and a changed version of each question, using the rules in turn."""
    rng = random.Random(seed)  # noqa: S311  (no secret)
    pool = [word for text in questions for word in _changeable(text)]
    for number, question in enumerate(questions):
        for label, rules in ((True, _REPHRASE), (False, _CHANGE)):
            for step in range(2):
                start = number + step * (len(rules) // 2 + 1)
                for turn in range(len(rules)):
                    name, rule = rules[(start + turn) % len(rules)]
                    other = rule(question, rng, pool)
                    if other and other.lower() != question.lower():
                        yield QuestionPair(question, other, label, OURS, name)
                        break


def _changeable(text: str) -> list[str]:
    """Return the words that carry the meaning of `text`."""
    return [
        word
        for word in _WORD.findall(text)
        if len(word) > 2 and not {word.lower()} & (FAINT | VAGUE | FILLERS) and word.lower() not in NUMBERS
    ]


def _replace(text: str, word: str, instead: str) -> str:
    return re.sub(rf"\b{re.escape(word)}\b", lambda _: instead, text, count=1)


def _otherwise(text: str, rng: random.Random, pool: Sequence[str]) -> str:
    match = _HOW_TO.match(text)
    return rng.choice(_WAYS).format(match[1]) if match else ""


def _wrapped(text: str, rng: random.Random, pool: Sequence[str]) -> str:
    return rng.choice(_WRAPPED).format(text[:1].lower() + text[1:].rstrip("?. "))


def _synonym(text: str, rng: random.Random, pool: Sequence[str]) -> str:
    candidates = [word for word in _WORD.findall(text) if len(SYNONYM.get(word, ())) == 1]
    if not candidates:
        return ""
    word = rng.choice(candidates)
    return _replace(text, word, rng.choice(_BY_GROUP[SYNONYM[word][0]]))


def _plain(text: str, rng: random.Random, pool: Sequence[str]) -> str:
    """Return the text as people type it: lower case, without final punctuation and articles."""
    return re.sub(r"\s+", " ", re.sub(r"\b(?:the|a|an)\b", " ", text.lower().rstrip("?. ")))


def _filled(text: str, rng: random.Random, pool: Sequence[str]) -> str:
    head, _, tail = text.partition(" ")
    second, _, rest = tail.partition(" ")
    return f"{head} {second} {rng.choice(('actually', 'really', 'exactly', 'basically'))} {rest}" if rest else ""


def _which(text: str, rng: random.Random, pool: Sequence[str]) -> str:
    swapped = re.sub(r"^What (is|are) the (?:best|most)", lambda m: f"Which {m[1]} the {m[0].split()[-1]}", text)
    return re.sub(r"^What are (?:some of )?the ", "What are some ", swapped) if swapped == text else swapped


def _both(
    *rules: Callable[[str, random.Random, Sequence[str]], str],
) -> Callable[[str, random.Random, Sequence[str]], str]:
    def rule(text: str, rng: random.Random, pool: Sequence[str]) -> str:
        for one in rules:
            text = one(text, rng, pool) or text
        return text

    return rule


def _dropped(text: str, rng: random.Random, pool: Sequence[str]) -> str:
    words = _changeable(text)
    return _replace(text, rng.choice(words), "").replace("  ", " ") if len(words) > 1 else ""


def _added(text: str, rng: random.Random, pool: Sequence[str]) -> str:
    words = _changeable(text)
    if not words:
        return ""
    word = rng.choice(words)
    return _replace(
        text, word, rng.choice((f"{word} {rng.choice(pool).lower()}", f"{rng.choice(pool).lower()} {word}"))
    )


def _another(text: str, rng: random.Random, pool: Sequence[str]) -> str:
    words = _changeable(text)
    if not words:
        return ""
    word = rng.choice(words)
    instead = rng.choice(pool)
    same = {one.sense for one in gist(word).words} & {one.sense for one in gist(instead).words}
    return "" if same else _replace(text, word, instead if word[0].isupper() else instead.lower())


def _swapped(text: str, rng: random.Random, pool: Sequence[str]) -> str:
    words = _changeable(text)
    if len(words) < 2:
        return ""
    one, other = rng.sample(words, 2)
    return _replace(_replace(_replace(text, one, "\0"), other, one), "\0", other) if "\0" not in text else ""


def _asked(text: str, rng: random.Random, pool: Sequence[str]) -> str:
    first = text.split(" ", 1)[0]
    return _replace(text, first, rng.choice([word for word in _ASKING if word != first])) if first in _ASKING else ""


def _linked(text: str, rng: random.Random, pool: Sequence[str]) -> str:
    links = [word for word in _WORD.findall(text) if word in _LINKS]
    if not links:
        return ""
    word = rng.choice(links)
    return _replace(text, word, rng.choice([other for other in _LINKS if other != word]))


def _unlinked(text: str, rng: random.Random, pool: Sequence[str]) -> str:
    """Remove a preposition or append one: "what is money" becomes "what is money for"."""
    links = [word for word in _WORD.findall(text) if word in _LINKS]
    if links and rng.random() < 0.5:
        return _replace(text, rng.choice(links), "").replace("  ", " ")
    return f"{text.rstrip('?. ')} {rng.choice(('for', 'about', 'like', 'with', 'in', 'of'))}?"


def _narrowed(text: str, rng: random.Random, pool: Sequence[str]) -> str:
    return f"{text.rstrip('?. ')} {rng.choice(('in', 'for', 'with', 'without', 'and'))} {rng.choice(pool).lower()}?"


def _changed_and_said_otherwise(text: str, rng: random.Random, pool: Sequence[str]) -> str:
    changed = _another(text, rng, pool)
    return (_otherwise(changed, rng, pool) or _wrapped(changed, rng, pool)) if changed else ""


_REPHRASE = (
    ("otherwise", _otherwise), ("wrapped", _wrapped), ("synonym", _synonym), ("plain", _plain), ("filled", _filled),
    ("which", _which), ("synonym and otherwise", _both(_synonym, _otherwise)),
    ("plain synonym", _both(_synonym, _plain)),
    ("two synonyms", _both(_synonym, _synonym)),
)  # fmt: skip
_CHANGE = (
    ("dropped", _dropped), ("added", _added), ("another", _another), ("swapped", _swapped), ("asked", _asked),
    ("linked", _linked), ("unlinked", _unlinked), ("narrowed", _narrowed),
    ("another, otherwise", _changed_and_said_otherwise),
    ("two others", _both(_another, _another)),
)  # fmt: skip
