"""Choose the weight of the cosine beside a cross-encoder's logit: see `gateway.parts.encoders.blend.Blend`.

It is chosen on families of questions that the cross-encoder was not trained on, as a cache meets them: each question
with those that are nearest among all the others, and without the pairs that a veto stops. The weight is the one with
which the pairs above the strict threshold are ranked best, by AUROC: below that threshold the cosine has no say.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache.semantic.decision import same_words
from gateway.cli.flags import add_json_flag
from gateway.encoders import load_embedder
from gateway.parts.encoders.blend import Blend
from gateway.parts.encoders.cross_encoder import COSINE_WEIGHTS, SHEET, CrossEncoder
from gateway.parts.fit.curves import Floats, auroc
from gateway.parts.fit.datasets import DataError
from gateway.parts.fit.flags import add_state_flag
from gateway.report import NONE, OnProgress, Report, table
from tools import command
from tools.cache_stages import pair_scores
from tools.cross_encoder_data import is_kept_out, refused
from tools.question_families import QuestionFamily, add_families_flag, questions_of, read_families
from tools.question_pairs import Embed, QuestionPair

_WEIGHTS = np.arange(0.0, 12.5, 0.5)
_PER_INTENT = 12  # questions
_NEIGHBOURS = 3
_LEAST_COSINE = 0.4
"""As in the policies that ship: `cache.semantic.min_similarity`."""
_MOST = 8_000  # pairs, before vetoes
_FEWEST = 30  # pairs above the strict threshold of either label


@dataclass(frozen=True, slots=True)
class CosineWeight:
    """The weight chosen for one encoder, and what it was chosen by: AUROC above the strict threshold with and without
    it, on so many pairs that want the same answer and so many that differ.
    """

    weight: float
    auroc: float | None
    auroc_alone: float | None
    same: int
    different: int


def choose_weights(
    folder: Path,
    families: Sequence[QuestionFamily],
    encoders: Mapping[str, Embed],
    on_progress: OnProgress,
) -> dict[str, CosineWeight]:
    """Choose a weight for each of the `encoders`, by name, and write them to the data sheet of the cross-encoder in
    `folder`. Raises CrossEncoderError, DataError, OSError.
    """
    sheet = folder / SHEET
    model = CrossEncoder.load(folder)
    if model.strict is None:
        raise DataError(f"{sheet}: not there; the weight is chosen above the threshold that it states")
    aside = [family for family in families if is_kept_out(family.name)]
    chosen = {}
    for name, embed in encoders.items():
        pairs, cosines = near_pairs(aside, embed)
        scores = pair_scores(model, [(pair.a, pair.b) for pair in pairs], on_progress)
        read = np.array([scores[pair.a, pair.b] for pair in pairs])
        same = np.array([pair.same_answer for pair in pairs], np.bool_)
        chosen[name] = chosen_weight(read, cosines, same, model.strict)
    facts: dict[str, Any] = json.loads(sheet.read_bytes())
    facts[COSINE_WEIGHTS] = {name: choice.weight for name, choice in chosen.items()}
    facts["cosine_weights_chosen_by"] = {name: _as_json(weight) for name, weight in chosen.items()}
    sheet.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return chosen


def near_pairs(families: Sequence[QuestionFamily], embed: Embed) -> tuple[list[QuestionPair], Floats]:
    """Return questions of the families, each with the nearest others, and the cosine of each pair.

    Pairs that a veto stops are left out.
    """
    rng = Random(0)  # noqa: S311  (no secret)
    asked = sorted(dict(questions_of(families, _PER_INTENT, rng)).items(), key=lambda pair: pair[0])
    if not asked:
        return [], np.empty(0)
    texts = [text for text, _ in asked]
    vectors = np.asarray(embed(texts), np.float32)
    found: dict[tuple[int, int], float] = {}
    for place, vector in enumerate(vectors):
        cosines = vectors @ vector
        cosines[place] = -1.0
        for other in np.argsort(-cosines)[:_NEIGHBOURS].tolist():
            if cosines[other] >= _LEAST_COSINE:
                found[min(place, other), max(place, other)] = float(cosines[other])
    drawn = rng.sample(sorted(found), min(len(found), _MOST))
    some = sorted(pair for pair in drawn if not _stopped(texts[pair[0]], texts[pair[1]]))
    pairs = [QuestionPair(texts[a], texts[b], asked[a][1] == asked[b][1], "near", "") for a, b in some]
    return pairs, np.array([found[pair] for pair in some])


def _stopped(question: str, other: str) -> bool:
    """Return whether no cross-encoder is asked: the same words, or a veto."""
    return same_words(question, other) or refused(question, other)


def chosen_weight(read: Floats, cosines: Floats, same: NDArray[np.bool_], strict: float) -> CosineWeight:
    """Return the weight with the highest AUROC above `strict`, the smallest of equal ones; 0 where pairs are few."""
    above = read >= strict
    read, cosines, same = read[above], cosines[above], same[above]
    counts = int(same.sum()), int((~same).sum())
    if min(counts) < _FEWEST:
        return CosineWeight(0.0, None, None, *counts)
    measured = []
    for weight in _WEIGHTS.tolist():
        blend = Blend(strict, weight)
        scores = np.array([blend.score(*pair) for pair in zip(read.tolist(), cosines.tolist(), strict=True)])
        measured.append((auroc(scores, same.astype(np.float64)), -weight))
    best, weight = max(measured)
    return CosineWeight(-weight, best, measured[0][0], *counts)


def _as_json(weight: CosineWeight) -> dict[str, Any]:
    figures = {"auroc": weight.auroc, "auroc_without": weight.auroc_alone}
    counts = {"same": weight.same, "different": weight.different}
    return {**{key: None if value is None else round(value, 4) for key, value in figures.items()}, **counts}


def main(argv: Sequence[str] | None = None) -> int:
    """Choose the weight for each encoder, write it into the data sheet and print it."""
    parser = command.parser("choose_cosine_weight")
    parser.add_argument("--cross-encoder", type=Path, required=True, metavar="DIR")
    add_families_flag(parser)
    parser.add_argument("--embedding", nargs="+", choices=("static", "minilm"), default=["static", "minilm"])
    add_state_flag(parser)
    add_json_flag(parser, "a table")
    return command.run(parser, _choose, argv)


def _choose(args: argparse.Namespace, on_progress: OnProgress) -> Report:
    embedders = [load_embedder(kind, args.state) for kind in args.embedding]
    encoders = {embedder.name: embedder.embed for embedder in embedders}
    chosen = choose_weights(args.cross_encoder, read_families(args.families), encoders, on_progress)
    shown = table("encoder", "weight", "AUROC", "without it", "same", "different")
    for name, choice in chosen.items():
        figures = (NONE if value is None else f"{value:.3f}" for value in (choice.auroc, choice.auroc_alone))
        shown.add_row(name, f"{choice.weight:g}", *figures, f"{choice.same:,}", f"{choice.different:,}")
    values = {name: asdict(choice) for name, choice in chosen.items()}
    return Report(values, [shown], title="pairs above the strict threshold", done=[f"written to {args.cross_encoder}"])


if __name__ == "__main__":
    sys.exit(main())
