"""Compare two conversations turn by turn: every pair of turns has to pass like two questions. No I/O.

    who speaks when     equal, or the pair is refused
    guards              A pair of turns that differ must have the same numbers, negations and, before the last turn, the
                        same names (as the policy's `guards` say), and not the same words in another order. A user's
                        turn must be no text to work on and ask for nothing that changes by the day. The vetoes on
                        two questions hold too.
    an answer           Equal, or short and a rewording of the other: of a long one only the hash is there.
    cross-encoder       It reads each pair of turns that are left. The score is that of the two turns that are least
                        alike, so each turn keeps the bound by itself. Earlier turns of the user count as more alike
                        where the assistant's answer to them is the same, and is more than `Sure, go ahead`; answers
                        of the assistant do, as the questions before them have to mean the same.

So the context counts as a whole: `I'm vegetarian` before the same last message makes another conversation, and so does
another answer of the assistant. Without a cross-encoder conversations are not taken apart at all
(`cache.planning.plan`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from cache.planning.eligibility import why_not_in_context
from cache.semantic.decision import Verdict, same_words, wording
from cache.text.conversation import END, HASH, LONG, USER, Turn, turns_of
from cache.text.guards import Pair
from cache.text.languages import ENGLISH, language_of
from cache.text.normalized_question import gist
from cache.text.pair_features import leftover
from cache.text.question_conflicts import DUTIES
from cache.text.reading import FAINT, LISTS, read, text_words
from cache.text.thesaurus import word_set
from gateway.parts.encoders.typos import respelled

if TYPE_CHECKING:
    from cache.semantic.cross_encoder import TextPair, TextPairScorer
    from cache.semantic.decision import Decide
    from policies.caching import SemanticCache

_FEWEST: Final = 3
_MOST_SENTENCES: Final = 40
"""Sentences of each text: to compare two lists of them takes the product of their lengths."""
_MOST: Final = 6
"""Pairs of sentences: a bound on what a model has to read."""
_ALIKE: Final = 0.6
"""Share of words that two texts have in common, below which they are two stories, or one told anew."""
_WORDS: Final = re.compile(r"\w+")
_GREETINGS: Final = word_set(LISTS["greetings"])


def differing_sentences(stored: str, asked: str, wording: Callable[[str], str]) -> tuple[tuple[str, str], ...] | None:
    """Return the pairs of sentences in which two long texts differ, each sentence with the one in its place.

    None where they are not long, have little in common, or a sentence has no counterpart: these must be read as a
    whole. `wording` returns what is equal for sentences that are taken for the same.
    """
    if min(len(stored), len(asked)) < LONG:
        return None
    return _differing(stored, asked, wording)


@lru_cache(maxsize=1_024)
def _differing(stored: str, asked: str, wording: Callable[[str], str]) -> tuple[tuple[str, str], ...] | None:
    own, others = _words_of(stored), _words_of(asked)
    if 2 * len(own & others) < _ALIKE * (len(own) + len(others)):
        return None
    ours, theirs = ([sentence for sentence in _sentences(text) if not _greets(sentence)] for text in (stored, asked))
    if len(ours) != len(theirs) or not _FEWEST <= len(ours) <= _MOST_SENTENCES:
        return None
    pairs: list[tuple[str, str]] = []
    matcher = SequenceMatcher(None, [*map(wording, ours)], [*map(wording, theirs)], autojunk=False)
    for kind, i, j, k, m in matcher.get_opcodes():
        if kind == "equal":
            continue
        if j - i != m - k:
            return None
        pairs += zip(ours[i:j], theirs[k:m], strict=True)
    return tuple(pairs) if len(pairs) <= _MOST else None


@lru_cache(maxsize=64)
def _words_of(text: str) -> frozenset[str]:
    """Return the words of a text; cached, because one text is compared with several."""
    return frozenset(text_words(text))


def _sentences(text: str) -> list[str]:
    return [sentence for line in text.splitlines() for sentence in map(str.strip, END.split(line)) if sentence]


def _greets(sentence: str) -> bool:
    """Return whether a sentence is a greeting or thanks."""
    return _GREETINGS.issuperset(_WORDS.findall(sentence.lower()))


_SAME_CONTENT: Final = 2.0
"""Logits: how much likelier two statements in the same place of two long texts are to say the same where no word of
content differs. Chosen on the long texts of tools/pairs/dev-lost.jsonl."""
_MOST_REWORDED: Final = 6
"""Turns of one conversation that may differ from another's: a bound on what the cross-encoder has to read."""
_SAME_TOLD: Final = 0.8
"""Logits: how much likelier two long English texts without sentences in the same places are to ask the same than two
questions with this score: the more words, the lower a model's score of either kind. Of the families of
tools/families/long.toml left out, which are five, the highest score of 58 near-misses that no guard refuses is 1.6
logits, a logit below the threshold of questions; of 151 rewordings 40 have 2.6 and more, 50 have 1.8."""
_OWN_WORDS: Final = 4
_SAME_ANSWER: Final = 1.0
_SAME_PLACE: Final = 0.4
_SAME_QUESTION: Final = 2.2
"""Logits: how much likelier two turns are to mean the same where both were given the same answer, have at least the
same place in conversations that pass all guards, or are answers to questions that have to mean the same themselves.
All were chosen on tools/pairs/dev-conversations.jsonl and, as last turns after the same beginning,
tools/pairs/dev-rephrasings.jsonl. Answers in other words of the first have 0.8 logits and more there, answers to
other questions -0.4 and less.
"""


def turn_by_turn(decide: Decide, semantic: SemanticCache) -> Decide:
    """Return `decide` for single questions, and for two conversations the guards on each pair of turns."""

    def decided(stored: str, asked: str, cosine: float) -> Verdict:
        ours, theirs = turns_of(stored), turns_of(asked)
        if not ours and not theirs:
            # As nearly all are short or too far apart, sentences are compared of the others alone.
            if len(stored) < LONG or len(asked) < LONG or cosine < semantic.min_similarity:
                return decide(stored, asked, cosine)
            differing = differing_sentences(stored, asked, wording)
            if differing is None:
                return decide(stored, asked, cosine)
            return _sentence_by_sentence(differing, decide, cosine)
        if cosine < semantic.min_similarity:
            return Verdict(cosine, "similarity")
        reworded = _reworded(ours, theirs)
        if [turn.speaker for turn in ours] != [turn.speaker for turn in theirs] or len(reworded) > _MOST_REWORDED:
            return Verdict(cosine, "guard: turns", "guards")
        refused = next(filter(None, (_difference(turn, other, semantic.guards) for turn, other in reworded)), "")
        if refused := refused or _other_names(ours, theirs, semantic.guards):
            return Verdict(cosine, f"guard: {refused}", "guards")
        for our, other in reworded:
            verdict = decide(our.text, other.text, cosine)
            if verdict.refused.startswith("guard: "):
                return verdict
        return Verdict(cosine, "", "guards") if _unsettled(reworded) else Verdict(1.0, "", "rule")

    return decided


def _sentence_by_sentence(differing: Sequence[TextPair], decide: Decide, cosine: float) -> Verdict:
    """Return the verdict on two long texts that differ in these sentences only: each pair has to pass the guards."""
    for turn, other in differing:
        verdict = decide(turn, other, cosine)
        if verdict.refused.startswith("guard: "):
            return verdict
    return Verdict(cosine, "", "guards") if differing else Verdict(1.0, "", "rule")


def _reworded(ours: Sequence[Turn], theirs: Sequence[Turn]) -> list[tuple[Turn, Turn]]:
    """Return the pairs of turns that are not equal, without the slips of either."""
    pairs = [(turn, other) for turn, other in zip(ours, theirs, strict=False) if turn.text != other.text]
    texts = [respelled(turn.text, other.text) for turn, other in pairs]
    return [
        (turn._replace(text=left), other._replace(text=right))
        for (turn, other), (left, right) in zip(pairs, texts, strict=True)
    ]


def _unsettled(reworded: Sequence[tuple[Turn, Turn]]) -> list[TextPair]:
    """Return the pairs that differ in more than case, spaces, punctuation and polite phrases."""
    return [(turn.text, other.text) for turn, other in reworded if not same_words(turn.text, other.text)]


def _difference(turn: Turn, other: Turn, guards: Collection[str]) -> str:
    """Return what forbids taking one turn for the other whatever their wording, or ''."""
    if turn.speaker == HASH:
        return "answer"
    if turn.speaker == USER and (reason := why_not_in_context(turn.text) or why_not_in_context(other.text)):
        return reason
    return Pair(turn.text, other.text).refusal(guards, "turn")


def _other_names(ours: Sequence[Turn], theirs: Sequence[Turn], guards: Collection[str]) -> str:
    """Return the guard that refuses turns before the last, or ''."""
    pairs = (Pair(turn.text, other.text) for turn, other in _reworded(ours[:-1], theirs[:-1]))
    return next(filter(None, (pair.refusal(guards, "earlier") for pair in pairs)), "")


class TurnScorer:
    """Score pairs of questions with a cross-encoder, and conversations turn by turn."""

    def __init__(self, scorer: TextPairScorer) -> None:
        """Score with this cross-encoder."""
        self._scorer = scorer
        self.strict = scorer.strict
        self.scripts = scorer.scripts
        self.languages = scorer.languages

    def scores(self, pairs: Sequence[TextPair]) -> list[float]:
        """Return the score of each pair; that of two conversations is the lowest of their turns' scores."""
        parts = [_parts(stored, asked) for stored, asked in pairs]
        flat = [(text, other) for some in parts for text, other, _ in some]
        scores = iter(self._scorer.scores(flat) if flat else ())
        return [min((_raised(next(scores), by) for *_, by in some), default=1.0) for some in parts]


def _parts(stored: str, asked: str) -> list[tuple[str, str, float]]:
    """Return the pairs to read, and by how many logits to raise the score of each; none where all are equal by rule."""
    ours, theirs = turns_of(stored), turns_of(asked)
    if not ours or not theirs:
        differing = differing_sentences(stored, asked, wording)
        if differing is None:
            return [(*respelled(stored, asked), _SAME_TOLD if _both_long(stored, asked) else 0.0)]
        texts = [respelled(text, other) for text, other in differing]
        return [(*pair, _SAME_CONTENT if _same_content(*pair) else 0.0) for pair in texts if not same_words(*pair)]
    pairs = list(zip(ours, theirs, strict=False))
    answers = [*(text if text == other else None for text, other in pairs[1:]), None]
    parts = [
        (respelled(text.text, other.text), _likelier(text, answer))
        for (text, other), answer in zip(pairs, answers, strict=True)
        if text.text != other.text
    ]
    return [(*texts, by) for texts, by in parts if not same_words(*texts)]


def _both_long(stored: str, asked: str) -> bool:
    return min(len(stored), len(asked)) >= LONG and language_of(stored) == ENGLISH == language_of(asked)


def _likelier(turn: Turn, answer: Turn | None) -> float:
    """Return by how many logits to raise the score of a turn. `answer` is what both questions were given, if equal."""
    if turn.speaker != USER:
        return _SAME_QUESTION
    return _SAME_ANSWER if _says_something(answer) else _SAME_PLACE


def _same_content(text: str, other: str) -> bool:
    """Return whether two English statements tell of the same things, in the same order, time and roles, and differ in
    words without content only.
    """
    if "?" in text + other or language_of(text) != ENGLISH or language_of(other) != ENGLISH:
        return False
    a, b = gist(text), gist(other)
    told = [
        (
            said.persons,
            said.others,
            said.times,
            [clause for clause, _ in said.negations],
            said.modals & DUTIES,
            said.passive,
            "or" in said.function,
        )
        for said in (a, b)
    ]
    if told[0] != told[1]:
        return False
    rest = leftover(a, b)
    return not rest.inversions and all(word.vague for word in (*rest.left, *rest.right))


def _says_something(answer: Turn | None) -> bool:
    """Return whether there is an answer that fits its question only: `Sure, go ahead` fits any."""
    if answer is None or answer.speaker == USER:
        return False
    return answer.speaker == HASH or len(read(answer.text).stems - FAINT) >= _OWN_WORDS


def _raised(score: float, by: float) -> float:
    """Return a score raised by so many logits."""
    return 1 / (1 + (1 - score) / score * math.exp(-by)) if by and 0 < score < 1 else score
