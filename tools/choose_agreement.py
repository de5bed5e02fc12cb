"""Fit how likely two answers say the same (`gateway.parts.measures.likeness`), and set the level of its scores.

Topics are left out in all languages at once, since they are told in each. Of these left-out pairs at most _MOST_KEPT of
the contradictions reach the threshold that policies have for agreement if they name none.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from cache import shipped_cross_encoder
from gateway.cli.flags import add_json_flag
from gateway.parts.encoders.cross_encoder import CrossEncoder
from gateway.parts.fit.curves import Floats, auroc
from gateway.parts.measures.likeness import NUMBERS, SIGNS, AnswerLikeness
from gateway.report import OnProgress, Report, table
from policies.model import UNCALIBRATED_BELOW
from tools import command
from tools.agreement_pairs import CHOSEN_ON, AgreementPair, agreement_pairs

_MOST_KEPT: Final = 0.04
_PENALTY: Final = 0.3
"""Inverse of the strength of the penalty on weights of signs with a variance of 1."""


def main(argv: Sequence[str] | None = None) -> int:
    """Fit, print and write the numbers."""
    parser = command.parser("choose_agreement")
    parser.add_argument("--dry-run", action="store_true")
    add_json_flag(parser, "a table")
    return command.run(parser, _choose, argv)


def _choose(args: argparse.Namespace, on_progress: OnProgress) -> Report:
    model = CrossEncoder.load(shipped_cross_encoder())
    engine, pairs, rows = AnswerLikeness(model), list[AgreementPair](), list[list[float]]()
    every = list(agreement_pairs())
    for done, pair in enumerate(every):
        on_progress("reading pairs", done, len(every))
        signs = engine.signs(pair.one, pair.other, pair.question)
        if signs is not None:  # a token is unknown to the model
            pairs.append(pair)
            rows.append([signs[name] for name in SIGNS])
    read, same = np.array(rows), np.array([pair.same for pair in pairs])
    topics = np.array([pair.topic for pair in pairs])
    left_out = np.zeros(len(pairs))
    for topic in sorted(set(topics.tolist())):
        bias, weights = _fitted(read[topics != topic], same[topics != topic])
        left_out[topics == topic] = read[topics == topic] @ weights + bias
    level = float(np.quantile(left_out[~same], 1 - _MOST_KEPT))
    bias, weights = _fitted(read, same)
    bias += math.log(UNCALIBRATED_BELOW / (1 - UNCALIBRATED_BELOW)) - level
    values: dict[str, Any] = {
        "cross_encoder": model.version,
        "fitted_to": CHOSEN_ON.relative_to(CHOSEN_ON.parents[2]).as_posix(),
        "command": "python -m tools.choose_agreement",
        "bias": round(bias, 4),
        "weights": {name: round(float(weight), 4) for name, weight in zip(SIGNS, weights, strict=True)},
        "left_out_topics": {
            "pairs": len(pairs),
            "unread": len(every) - len(pairs),
            "auroc": round(auroc(left_out, same.astype(np.float64)), 4),
            "equal_kept": round(float(np.mean(left_out[same] >= level)), 4),
            "contradictions_kept": round(float(np.mean(left_out[~same] >= level)), 4),
        },
    }
    shown = table("kind", "pairs", "kept as the same")
    for kind in sorted({pair.kind for pair in pairs}):
        kept = left_out[[pair.kind == kind for pair in pairs]] >= level
        shown.add_row(kind, str(len(kept)), f"{np.mean(kept):.1%}")
    if args.dry_run:
        return Report(values, [shown], title=f"topics left out: AUROC {values['left_out_topics']['auroc']}")
    NUMBERS.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    return Report(values, [shown], done=[f"written to {NUMBERS}"])


def _fitted(rows: Floats, same: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[float, Floats]:
    """Return the bias and the weights of a logistic model in which both labels weigh as much."""
    from sklearn.linear_model import LogisticRegression

    mean, scale = rows.mean(axis=0), rows.std(axis=0)
    scale[scale == 0] = 1
    made = LogisticRegression(C=_PENALTY, class_weight="balanced").fit((rows - mean) / scale, same)
    weights = made.coef_[0] / scale
    return float(made.intercept_[0] - mean @ weights), weights


if __name__ == "__main__":
    sys.exit(main())
