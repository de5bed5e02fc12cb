"""Collect the cross-encoder's training pairs: labelled ones, families of questions, and questions reworded by rule.

Whole parts are left out of the training and only checked against: families, groups of a labelled data set or, where it
has few groups, clusters of texts that are connected by pairs. Which part a pair belongs to depends only on its names
and texts, so that it is the same for every seed.
"""

from __future__ import annotations

import tomllib
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from cache.text.guards import SWITCHED, Pair
from cache.text.languages import ENGLISH, foreign_languages, language_of
from gateway.parts.fit.datasets import DataError
from tools.question_families import QuestionFamily, family_pairs
from tools.question_pairs import RULES, QuestionPair, clusters_of
from tools.rewording import OTHER, SAME, as_typed
from tools.translated_pairs import TranslatedPairs

LANGUAGES = Path(__file__).with_name("languages.toml")
_LEFT_OUT = 8  # one part of this many
_MANY_GROUPS = 20
"""A data set of at least this many groups is parted by group, one of fewer by cluster."""
_PER_DATASET = 12_000
_FROM_FAMILIES = 0.66  # share of an epoch's pairs
_FROM_TEXTS = 0.2  # of the pairs, where there are translations
_BY_RULES = 0.07
_QUESTIONS = 8_000  # of each data set, for the rules
_AS_TYPED = 0.2  # share of the labelled pairs of which one question gets typos, fillers and the like
_CHECKED = 2_000  # pairs of a data set that are checked against, at most
LEFT_OUT_FAMILIES = "families: "
"""Begins the name of the data set of pairs of the families left out in a language; its code follows."""
_OF_FAMILIES = 2_500  # pairs of the families left out, of each language
_LONGEST = 240  # characters of a question


@dataclass(frozen=True, slots=True)
class PairSource:
    """What pairs are drawn from: labelled pairs, questions for the rules, families, and translations."""

    labelled: Sequence[QuestionPair]
    questions: Sequence[str]
    families: Sequence[QuestionFamily]
    texts: TranslatedPairs | None = None

    def epoch(self, count: int, seed: int) -> list[QuestionPair]:
        """Return `count` pairs in random order. Another seed gives other ones; labelled pairs recur."""
        rng = Random(seed)  # noqa: S311  (no secret)
        of_texts = _FROM_TEXTS if self.texts else 0.0
        from_families = list(
            family_pairs(self.families, round(_FROM_FAMILIES / (1 - _FROM_TEXTS + of_texts) * count), rng)
        )
        by_rules = self.by_rules(round(_BY_RULES * count), seed)
        from_texts = list(self.texts.draw(round(of_texts * count), rng)) if self.texts else []
        groups: dict[tuple[str, str, bool], list[QuestionPair]] = defaultdict(list)
        for pair in self.labelled:
            groups[pair.dataset, pair.group, pair.same_answer].append(pair)
        parts = Counter(dataset for dataset, _, _ in groups)
        bounded = [
            pair
            for (dataset, _, _), group in sorted(groups.items())
            for pair in rng.sample(group, min(len(group), _PER_DATASET // min(parts[dataset], _MANY_GROUPS * 2)))
        ]
        left = max(0, count - len(from_families) - len(by_rules) - len(from_texts))
        labelled = rng.sample(bounded, min(left, len(bounded)))
        pairs = [*from_families, *by_rules, *from_texts, *(_either_way(pair, rng) for pair in labelled)]
        rng.shuffle(pairs)
        return pairs

    def by_rules(self, count: int, seed: int) -> list[QuestionPair]:
        """Return pairs of a question and what a rule makes of it."""
        rng = Random(seed + 1)  # noqa: S311  (no secret)
        if not self.questions:
            return []
        pairs: list[QuestionPair] = []
        for number in range(20 * count):
            if len(pairs) >= count:
                break
            same = number % 2 == 0
            name, rule = rng.choice(list((SAME if same else OTHER).items()))
            question = rng.choice(self.questions)
            other = rule(question, rng)
            if other and other.lower() != question.lower():
                pairs.append(QuestionPair(question, other, same, RULES, name))
        return [_either_way(pair, rng) for pair in pairs[:count]]


def _either_way(pair: QuestionPair, rng: Random) -> QuestionPair:
    """Return the pair in either order; of some pairs, one question as people type it."""
    texts = [pair.a, pair.b]
    rng.shuffle(texts)
    if rng.random() < _AS_TYPED:
        texts[0] = as_typed(texts[0], rng)
    rng.shuffle(texts)
    return QuestionPair(texts[0], texts[1], pair.same_answer, pair.dataset, pair.group)


def parted(
    pairs: Sequence[QuestionPair],
    families: Sequence[QuestionFamily],
    of_families: int = _OF_FAMILIES,
    translated: TranslatedPairs | None = None,
) -> tuple[PairSource, list[QuestionPair]]:
    """Return what to train on, and pairs of the parts left out to check against, `of_families` of each language.

    Raises DataError for a language of which no family is left out: nobody would know how its pairs are judged.
    """
    fitted, checked = _parted_pairs([pair for pair in pairs if max(len(pair.a), len(pair.b)) <= _LONGEST])
    aside = [family for family in families if is_kept_out(family.name)]
    used = [family for family in families if not is_kept_out(family.name)]
    seen = {text for pair in checked for text in (pair.a, pair.b)}
    rng = Random(0)  # noqa: S311  (no secret)
    questions: list[str] = []
    for dataset in sorted({pair.dataset for pair in fitted}):
        own = {text for pair in fitted if pair.dataset == dataset for text in (pair.a, pair.b) if 15 < len(text) < 120}
        # The rules reword English.
        texts = sorted(text for text in own - seen if text.isascii())
        questions += rng.sample(texts, min(len(texts), _QUESTIONS))
    by_dataset: dict[str, list[QuestionPair]] = defaultdict(list)
    for pair in checked:
        by_dataset[pair.dataset].append(pair)
    some = [pair for _, group in sorted(by_dataset.items()) for pair in rng.sample(group, min(len(group), _CHECKED))]
    for language in sorted({family.language for family in families}):
        of_language = [family for family in aside if family.language == language]
        if not of_language:
            raise DataError(f"no family of questions in {language!r} is left out of training: give more of them")
        drawn = family_pairs(of_language, of_families, Random(0))  # noqa: S311  (no secret)
        some += (replace(pair, dataset=f"{LEFT_OUT_FAMILIES}{language}") for pair in drawn)
    return PairSource(fitted, questions, used, translated), some


def refused(question: str, other: str) -> bool:
    """Return whether a guard refuses two questions before any cross-encoder reads them, as a lookup does."""
    stored, asked = language_of(question), language_of(other)
    if Pair(question, other).refusal(SWITCHED, "screened" if ENGLISH in (stored, asked) else "foreign"):
        return True
    read = foreign_languages()
    one_kind = (stored == ENGLISH) == (asked == ENGLISH)
    return read is not None and one_kind and not read.may_exchange(question, other, asked)


def _parted_pairs(pairs: Sequence[QuestionPair]) -> tuple[list[QuestionPair], list[QuestionPair]]:
    fitted, checked = [], []
    for dataset in sorted({pair.dataset for pair in pairs}):
        own = [pair for pair in pairs if pair.dataset == dataset]
        by_group = len({pair.group for pair in own}) >= _MANY_GROUPS
        # Opposites stand beside each other, so that a question is not left out when its opposite is not.
        near = [QuestionPair(pair.a, pair.b, True, "", "") for pair in own if pair.group != "unrelated"]
        clusters = {} if by_group else clusters_of(near)
        names: dict[int, str] = {}
        for text, cluster in clusters.items():
            names[cluster] = min(text, names.get(cluster, text))
        for pair in own:
            parts = [pair.group] if by_group else [names.get(clusters.get(text, -1), text) for text in (pair.a, pair.b)]
            aside = [is_kept_out(part) for part in parts]
            if all(aside):
                checked.append(pair)
            elif not any(aside):
                fitted.append(pair)
    return fitted, checked


def read_languages() -> dict[str, dict[str, list[str]]]:
    """Return what `languages.toml` says of each language."""
    return tomllib.loads(LANGUAGES.read_text(encoding="utf-8"))


def is_kept_out(name: str) -> bool:
    """Return whether the family, group or topic of this name is left out of the training."""
    return zlib.crc32(name.encode()) % _LEFT_OUT == 0


def pair_counts(pairs: Sequence[QuestionPair]) -> dict[str, int]:
    """Return the number of pairs of each data set."""
    counts: dict[str, int] = defaultdict(int)
    for pair in pairs:
        counts[pair.dataset] += 1
    return dict(sorted(counts.items()))
