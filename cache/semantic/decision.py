"""Decide whether a stored answer may be served for another question, for one candidate and among several. No I/O.

Live lookups, the audit of hits and the evaluation on labelled pairs all use this module, so what is measured is what is
served. Five stages, each for what the one before leaves open:

    rule           Texts that are equal but for case, spaces, punctuation and polite phrases are served, with score 1.
                   Where a part reads slips, those in one are words of the other here and from here on.
    script         What is written in a script that the model to score it does not list is refused (`guard: script`):
    language       in signs that it cannot read, opposites look alike. Likewise what is in a language that a
                   cross-encoder's data sheet does not list (`guard: language`).
    verifier       Vetoes refuse what changes an answer, and the verifier's score what is plainly another question.
                   Without a cross-encoder its score is the candidate's. Without a verifier the guards take its place,
                   and the score is the cosine. The verifier knows English: of questions that are both in another
                   language only a few guards hold, and a cross-encoder that reads the language scores the rest.
    cross_encoder  It reads both questions together; its probability that they want the same answer is the score. A pair
                   with a token that it does not know is refused (`guard: unknown_token`).
                   Calling a model is I/O, so `shortlist` names the candidates, and a `PairQueue` chooses by scores.

    score      how likely both questions want the same answer
    veto       a reason against serving at any score: a guard's or the verifier's
    threshold  the score from which a candidate without a veto is served; set by the policy or by a `HitBound`

A cosine does not show what changes an answer: a negation, another number, another name, `before` for `after`, `A to B`
for `B to A` all stay within 0.95 of each other. So the guards (`cache.text.guards`) parse both texts and compare them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from cache.text.guards import LONGEST, Pair
from cache.text.languages import (
    ENGLISH,
    Language,
    foreign_languages,
    known_lexicons,
    language,
    languages_to_read,
    reading_in,
)
from cache.text.reading import SCRIPTS, is_written_in, unwrap
from policies.value_type import from_fields

if TYPE_CHECKING:
    from policies.caching import SemanticCache

GUARD: Final = "guard: "
UNREAD: Final = -1.0
"""A cross-encoder's score of a pair that it cannot read: lower than any threshold."""
_READ: Final = 3
"""Candidates without a veto that are read: to parse and score one takes 0.2 ms of the event loop."""
_SAME_WORDS_FROM: Final = 0.8
"""Cosine from which the rule is tried: further apart, texts hardly ever have the same words."""
Stage = Literal["", "rule", "guards", "verifier", "cross_encoder"]


class Verdict(NamedTuple):
    """The result for one candidate: its score, the veto that forbids serving it at any score ('' for none), and the
    stage that decided ('' where there was nothing to decide on).

    `read` is the cross-encoder's own score, which the cosine changes in `score`; None where it was not asked.
    """

    score: float
    refused: str = ""
    stage: Stage = ""
    read: float | None = None

    def served(self, threshold: float) -> bool:
        """Return whether the candidate's answer is served at this threshold."""
        return not self.refused and self.score >= threshold


_verdict = from_fields(Verdict)
EQUAL: Final = Verdict(1.0, "", "rule")


class Scored(Protocol):
    """What a verifier says of one candidate: `score`, 0..1, and the name of its veto (`refused`, '' for none)."""

    @property
    def score(self) -> float: ...
    @property
    def refused(self) -> str: ...


class PairScorer(Protocol):
    """A learned score for a pair of questions, with vetoes of its own; `cache.semantic.verifier` implements it."""

    @property
    def strict(self) -> float:
        """Score threshold used until the surface's own error rate has been measured."""

    @property
    def scripts(self) -> Collection[str]:
        """Scripts that it was made for, such as `Latin`."""

    def score(
        self, stored: str, asked: str, cosine: float, guards: Collection[str], *, screening: bool = False
    ) -> Scored:
        """Return the verdict on serving `stored`'s answer for `asked`, with the policy's `guards`.

        `screening`: a cross-encoder scores what is left, so fewer vetoes are needed.
        """


Decide = Callable[[str, str, float], Verdict]
"""Maps (stored question, new question, cosine of their vectors) to the verdict without a cross-encoder."""


def decide_by(
    semantic: SemanticCache,
    verifier: PairScorer | None = None,
    *,
    screening: bool = False,
    scripts: Collection[str] = SCRIPTS,
    languages: Collection[str] = (ENGLISH,),
) -> Decide:
    """Return a function that decides on one candidate by a policy's `semantic` section and the verifier, else guards.

    `screening`: a cross-encoder scores what is left, so only candidates below its `ask_from` are refused for their
    score; `scripts` and `languages` are those on its data sheet.
    """
    least = semantic.cross_encoder.ask_from if screening else 0.0
    readable = scripts if screening or verifier is None else verifier.scripts

    listed = languages if screening else (ENGLISH,)
    plainest = Language(ENGLISH) if ENGLISH in listed else None
    plain = "Latin" in readable
    languages_read = foreign_languages()

    def foreign(stored: str, asked: str) -> bool:
        return not (is_written_in(asked, readable) and is_written_in(stored, readable))

    def exchanged(stored: str, asked: str, code: str) -> str:
        """Return the guard of one word for another, or ''; in two languages, one of them English, there is none."""
        if languages_read is None or (code == ENGLISH) != (language(stored).code == ENGLISH):
            return ""
        return "" if languages_read.may_exchange(stored, asked, code) else "exchange"

    def decide(stored: str, asked: str, cosine: float) -> Verdict:
        if cosine < semantic.min_similarity:
            return _verdict((cosine, "similarity", "", None))
        if verifier is None:
            refused = Pair(stored, asked).refusal(semantic.guards, "strict")
            if not refused and stored != asked and foreign(stored, asked):
                refused = "script"
            return Verdict(cosine, f"{GUARD}{refused}" if refused else "", "guards")
        if stored == asked or (cosine >= _SAME_WORDS_FROM and wording(stored) == wording(asked)):
            return EQUAL
        if not (plain and stored.isascii() and asked.isascii()) and foreign(stored, asked):
            return Verdict(cosine, f"{GUARD}script", "verifier")
        written = stored, asked
        if languages_read is not None:
            stored, asked = languages_read.respelled(stored, asked)
        if written != (stored, asked) and wording(stored) == wording(asked):
            return EQUAL
        if (tongue := language(asked)).code != ENGLISH or not stored.isascii() or not screening:
            other = language(stored)
            if not (tongue == other == plainest or (tongue.is_one_of(listed) and other.is_one_of(listed))):
                return Verdict(cosine, f"{GUARD}language", "verifier")
            if tongue.code != ENGLISH != other.code and screening:
                refused = Pair(stored, asked).refusal(semantic.guards, "foreign")
                refused = refused or exchanged(stored, asked, tongue.code)
                return Verdict(cosine, f"{GUARD}{refused}" if refused else "", "verifier")
        result = verifier.score(stored, asked, cosine, semantic.guards, screening=screening)
        refused = result.refused or (exchanged(stored, asked, tongue.code) if screening else "")
        if refused:
            return _verdict((result.score, f"{GUARD}{refused}", "verifier", None))
        return _verdict((result.score, "similarity" if result.score < least else "", "verifier", None))

    return decide


def default_threshold(
    semantic: SemanticCache,
    verifier: PairScorer | None = None,
    *,
    screening: bool = False,
    strict: float | None = None,
) -> float:
    """Return the threshold that applies without labels: the policy's, or that of the model that scores.

    `screening`: that is a cross-encoder, whose own threshold is `strict`. If it states none, the policy has to.
    """
    if screening:
        least = strict if semantic.cross_encoder.min_score is None else semantic.cross_encoder.min_score
        return 1.0 if least is None else least
    return semantic.min_similarity if verifier is None else verifier.strict


class Doubtful(NamedTuple):
    """A candidate that a cross-encoder has to score: its place in the list of candidates, and its cosine."""

    place: int
    cosine: float


class Shortlist(NamedTuple):
    """The best candidate without a cross-encoder, by its place, and the verdict on it.

    `doubtful` are the candidates that a cross-encoder has to score, the likeliest first; without any, the verdict is
    final.
    """

    place: int
    verdict: Verdict
    doubtful: tuple[Doubtful, ...] = ()
    vetoed: tuple[str, ...] = ()
    """The guards that vetoed other candidates, each with the candidate's cosine: `entities 0.912`."""


_shortlist: Final = from_fields(Shortlist)


def shortlist(decide: Decide, asked: str, near: Sequence[tuple[str, float]], most: int = 0) -> Shortlist | None:
    """Return the best candidate, and up to `most` for a cross-encoder to score. None without candidates.

    Candidates are (stored question, cosine), nearest first. The best has the highest score of the first three without a
    veto; if each has a veto, it is the nearest. The candidates after one that is equal by rule are not read.
    """
    best: Shortlist | None = None
    open_: list[tuple[float, int, float]] = []
    vetoes: list[tuple[int, str]] = []
    for place, (stored, cosine) in enumerate(near):
        verdict = decide(stored, asked, cosine)
        if verdict.stage == "rule" or (verdict.stage == "guards" and stored == asked):
            return _shortlist((place, verdict, (), ()))
        if best is None or (not verdict.refused and (best.verdict.refused or verdict.score > best.verdict.score)):
            best = _shortlist((place, verdict, (), ()))
        if not verdict.refused:
            open_.append((-verdict.score, place, cosine))
            if len(open_) == _READ:
                break
        elif verdict.refused.startswith(GUARD):
            vetoes.append((place, f"{verdict.refused.removeprefix(GUARD)} {cosine:.3f}"))
    if best is not None and vetoes:
        best = best._replace(vetoed=tuple([veto for place, veto in vetoes if place != best.place]))
    if best is None or not most:
        return best
    return best._replace(doubtful=tuple(Doubtful(place, cosine) for _, place, cosine in sorted(open_)[:most]))


_STOPS: Final = re.compile(r"(?<=[^\s.,;:?\u2026])[.,;:?\u2026]++(?=\s|$)|(?<=[^\s\d!])!++(?=\s|$)|\s[.?!]++$")
"""Punctuation after a word. In `5!`, `.NET` and `a.b` it means something, and stays. A run is read once."""
_MARKS: Final = re.compile(r"[¿¡؟،؛。、，？！；：]|(?<!\S)[,.!?;:]++(?=\s|$)")
"""Punctuation of other scripts, and what is left of it around a polite phrase."""
_ACRONYM: Final = re.compile(r"\b[A-Z]{2,}\b")
_POLITE: Final = (["please"], ["thanks"], ["thx"], ["thank", "you"])
_LAST_POLITE: Final = frozenset(phrase[-1] for phrase in _POLITE)
_FEW: Final = 3


def same_words(stored: str, asked: str) -> bool:
    """Return whether two texts differ in case, spaces, punctuation and polite phrases only."""
    return stored == asked or wording(stored) == wording(asked)


@lru_cache(maxsize=16_384)
def wording(text: str) -> str:
    """Return a form that is equal for texts of the same words. Those in capitals differ: `US` is not `us`."""
    if len(text) > LONGEST:
        return text
    codes = languages_to_read(text)
    if codes:
        return _foreign_wording(codes[0], text)
    bare = _without_closing(_STOPS.sub("", unwrap(text)).split())
    if len(bare) < _FEW:  # in a text of few words a polite phrase may be what is asked about
        bare = _STOPS.sub("", text).split()
    capitals = () if text.isupper() else _ACRONYM.findall(text)
    return "\n".join((" ".join(bare).casefold(), *capitals))


def _foreign_wording(code: str, text: str) -> str:
    """Return such a form of a text in a language that has a lexicon; its numbers are in digits."""
    lexicon = known_lexicons()[code]
    bare = lexicon.bare(text)
    if reading_in(code, text).size < _FEW - 1:
        bare = text
    words = _STOPS.sub("", _MARKS.sub(" ", bare)).split()
    plain = ("" if lexicon.letters else " ").join(words).casefold()
    return "\n".join((plain, *(() if text.isupper() else _ACRONYM.findall(text))))


def _without_closing(words: list[str]) -> list[str]:
    """Remove polite words from the end, and the punctuation before them."""
    while words and words[-1].lower() in _LAST_POLITE:
        end = [word.lower() for word in words[-2:]]
        polite = next((phrase for phrase in _POLITE if end[-len(phrase) :] == phrase), None)
        if polite is None:
            break
        del words[-len(polite) :]
        if words:
            words[-1] = words[-1].rstrip(",.!?")
    return words
