"""Choose from which score two statements of answers say the same to a cross-encoder, and up to which one denies the
other, see `gateway.parts.measures.statements`; and measure how often an audit errs that compares answers with it.

The thresholds are chosen on families of answers (`families/**/answers.toml`) that the cross-encoder was not trained on,
in all languages of its data sheet together. A pair gets the lower of its scores in both orders, as an audit reads it.
Errors are counted on the answers of support desks (`desks/*.toml`): two to one intent say the same, those to the
intents whose questions are nearest do not.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from cache.semantic.cross_encoder import ComparedPairs
from gateway.cli.flags import add_json_flag, whole
from gateway.encoders import load_embedder
from gateway.parts.encoders.cross_encoder import (
    LABEL_ERRORS,
    OTHER_ANSWER,
    SAME_ANSWER,
    SHEET,
    SURELY_OTHER,
    CrossEncoder,
)
from gateway.parts.fit.curves import Floats
from gateway.parts.fit.datasets import DataError
from gateway.parts.fit.flags import add_state_flag
from gateway.parts.hit_audits.comparison import AnswerComparer
from gateway.parts.measures.statements import conflict, differ_in_one_place
from gateway.report import OnProgress, Report, table
from routing.embedder import Embedder
from tools import command
from tools.cache_stages import pair_scores, share_shown
from tools.cross_encoder_data import is_kept_out
from tools.question_families import FamilyPair, QuestionFamily, add_families_flag, family_pairs, read_families
from tools.served_shares import least_threshold, served_shares

_ANSWERS = "answers"
"""Name of the files with families of answers."""
_MOST_WRONG = 0.005
"""Share of statements that say different things and may be called the same."""
_MOST_DENIED = 0.003
"""Share of statements that say the same and differ in one place and may be called different."""
_FEWEST = 100  # pairs of either label
_NEAREST = 3
"""Intents, those with the nearest questions, of which answers are compared with an intent's own."""
DESKS = Path(__file__).with_name("desks")
_FEWEST_NEAR = 30  # pairs that say the same and differ in one place


@dataclass(frozen=True, slots=True)
class AnswerThresholds:
    """The thresholds, and what they call the pairs that they were chosen on, by language."""

    same_answer: float
    other_answer: float
    called_same: dict[str, Any]
    called_different: dict[str, Any]


def choose_thresholds(
    folder: Path, families: Sequence[QuestionFamily], count: int, on_progress: OnProgress
) -> AnswerThresholds:
    """Choose the thresholds on about `count` pairs and write them to the data sheet of the cross-encoder in `folder`.

    Raises CrossEncoderError, DataError, OSError.
    """
    sheet, model = folder / SHEET, CrossEncoder.load(folder)
    if model.strict is None:
        raise DataError(f"{sheet}: not there; it gets the thresholds")
    aside = [family for family in families if is_read(family, model) and is_kept_out(family.name)]
    pairs = list(dict.fromkeys(family_pairs(aside, count, Random(0))))  # noqa: S311  (no secret)
    same = np.array([pair.same_answer for pair in pairs], np.bool_)
    if min(int(same.sum()), int((~same).sum())) < _FEWEST:
        raise DataError(f"too few families of answers are left out of training: {len(pairs)} pairs of {len(aside)}")
    scores = _scores(model, pairs, on_progress)
    language_of = {family.name: family.language for family in aside}
    languages = np.array([language_of[pair.family] for pair in pairs])
    clash = np.array([conflict(pair.a, pair.b, english=language_of[pair.family] == "en") for pair in pairs], np.bool_)
    near = np.array([differ_in_one_place(pair.a, pair.b) for pair in pairs], np.bool_)
    readable = np.where(clash, -1.0, scores)
    least = least_threshold(readable, same, _MOST_WRONG)
    most = denied_up_to(scores[near & same & (scores > 0)], least)
    chosen = AnswerThresholds(
        least,
        most,
        served_shares(readable >= least, same, languages),
        served_shares(near & (scores > 0) & (scores <= most), same, languages),
    )
    facts: dict[str, Any] = json.loads(sheet.read_bytes())
    facts |= {
        SAME_ANSWER: least,
        OTHER_ANSWER: most,
        "answers": {"called_same": chosen.called_same, "called_different": chosen.called_different},
    }
    facts.pop(LABEL_ERRORS, None)
    _write(sheet, facts)
    return chosen


def measure_errors(folder: Path, embedder: Embedder, on_progress: OnProgress) -> ComparedPairs:
    """Count how often an audit errs on the desks' answers with this model, and write that to its data sheet.

    Raises CrossEncoderError, OSError.
    """
    comparer = AnswerComparer(embedder.embed, CrossEncoder.load(folder))
    called: Counter[tuple[str, bool, bool]] = Counter()
    desks = sorted(DESKS.glob("*.toml"))
    for done, desk in enumerate(desks):
        on_progress("comparing answers", done, len(desks))
        for question, stored, fresh, alike in answer_pairs(desk, embedder):
            called[desk.stem, alike, comparer.compare(stored, fresh, question) == "different"] += 1
    on_progress("comparing answers", len(desks), len(desks))
    same, other = (
        {name: (called[name, is_same, True], called[name, is_same, True] + called[name, is_same, False])
         for name in [desk.stem for desk in desks]}
        for is_same in (True, False)
    )  # fmt: skip
    (alarms, agreeing), (found, apart) = (map(sum, zip(*some.values(), strict=True)) for some in (same, other))
    errors = ComparedPairs(agreeing, alarms, apart, found, other)
    sheet = folder / SHEET
    _write(sheet, {**json.loads(sheet.read_bytes()), LABEL_ERRORS: asdict(errors)})
    return errors


def answer_pairs(desk: Path, embedder: Embedder) -> Iterator[tuple[str, str, str, bool]]:
    """Yield (question, answer, answer, whether both say the same) of a desk; slots have their first values."""
    data = tomllib.loads(desk.read_text("utf-8"))

    def filled(text: str) -> str:
        for slot, values in data["slots"].items():
            text = text.replace(f"{{{slot}}}", values[0])
        return text

    intents = [(filled(asks[0]), [filled(answer) for answer in answers]) for asks, answers in data["intents"]]
    vectors = embedder.embed([question for question, _ in intents])
    near = np.argsort(-(vectors @ vectors.T), axis=1, kind="stable").tolist()
    for place, (question, answers) in enumerate(intents):
        yield from ((question, answer, other, True) for answer, other in combinations(answers, 2))
        others = [intents[at][1][0] for at in near[place] if at != place][:_NEAREST]
        yield from ((question, other, answer, False) for other in others for answer in answers)


def _write(sheet: Path, facts: dict[str, Any]) -> None:
    sheet.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def is_read(family: QuestionFamily, model: CrossEncoder) -> bool:
    """Return whether a family is of answers, in a language that the model reads."""
    return family.name.partition(": ")[0].rpartition("/")[2] == _ANSWERS and family.language in model.languages


def denied_up_to(same: Floats, same_answer: float) -> float:
    """Return the highest score up to which few of the pairs that say the same are, by their scores `same`.

    It stays below `same_answer`. Of few pairs nothing is learned: the default.
    """
    if len(same) < _FEWEST_NEAR:
        return min(SURELY_OTHER, same_answer)
    lowest = float(np.sort(same)[int(_MOST_DENIED * len(same))])
    return max(0.0, min(math.nextafter(lowest, 0.0), same_answer))


def _scores(model: CrossEncoder, pairs: Sequence[FamilyPair], on_progress: OnProgress) -> Floats:
    texts = [(pair.a, pair.b) for pair in pairs]
    read = pair_scores(model, [*texts, *((b, a) for a, b in texts)], on_progress)
    return np.array([min(read[a, b], read[b, a]) for a, b in texts])


def main(argv: Sequence[str] | None = None) -> int:
    """Choose the thresholds, write them into the data sheet and print them."""
    parser = command.parser("choose_answer_thresholds")
    parser.add_argument("--cross-encoder", type=Path, required=True, metavar="DIR")
    add_families_flag(parser)
    parser.add_argument("--pairs", type=whole(1), default=6_000, metavar="N")
    add_state_flag(parser)
    add_json_flag(parser, "a table")
    return command.run(parser, _choose, argv)


def _choose(args: argparse.Namespace, on_progress: OnProgress) -> Report:
    chosen = choose_thresholds(args.cross_encoder, read_families(args.families), args.pairs, on_progress)
    errors = measure_errors(args.cross_encoder, load_embedder("static", args.state), on_progress)
    shown = table("score", "threshold", "of the same", "of others")
    for name, threshold, shares in (
        ("the same from", chosen.same_answer, chosen.called_same),
        ("different up to", chosen.other_answer, chosen.called_different),
    ):
        shown.add_row(name, f"{threshold:.3f}", f"{shares['served']:.1%}", f"{shares['wrong']:.1%}")
    counted = table("answers of desks", "the same", "called different", "others", "called different ")
    counted.add_row("all", f"{errors.same:,}", str(share_shown(errors.false_alarms, errors.same)), f"{errors.other:,}",
                    str(share_shown(errors.found, errors.other)))  # fmt: skip
    for language, (found, other) in errors.by_language.items():
        counted.add_row(language, "", "", f"{other:,}", str(share_shown(found, other)))
    values = {
        SAME_ANSWER: chosen.same_answer,
        OTHER_ANSWER: chosen.other_answer,
        "called_same": chosen.called_same,
        "called_different": chosen.called_different,
        LABEL_ERRORS: asdict(errors),
    }
    return Report(values, [shown, "", counted], done=[f"written to {args.cross_encoder}"])


if __name__ == "__main__":
    sys.exit(main())
