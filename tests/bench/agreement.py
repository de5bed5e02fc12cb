"""Measure whether `escalate.agreement` tells answers that say the same from those that contradict each other.

The pairs are those of `agreement.toml`, in six languages, which nothing is fitted to. Printed are by language how
well equal answers rank above contradictory ones (AUROC, 95% by resampling topics), the words' F1 beside it, and what
the threshold does that policies have if they name none: contradictions that are kept, and equal answers that escalate.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from cache import shipped_cross_encoder
from gateway.cli.flags import add_json_flag
from gateway.parts.agents.agreement import similarity
from gateway.parts.encoders.cross_encoder import CrossEncoder
from gateway.parts.fit.curves import Floats, auroc
from gateway.parts.fit.figures import Interval
from gateway.parts.fit.flags import add_seed_flag
from gateway.parts.measures.intervals import wilson
from gateway.parts.measures.likeness import AnswerLikeness
from gateway.report import WIDE, OnProgress, Report, table
from policies.model import UNCALIBRATED_BELOW
from tools import command
from tools.agreement_pairs import AgreementPair, agreement_pairs

HELD_OUT: Final = Path(__file__).with_suffix(".toml")
_RESAMPLES: Final = 400
_SLOWEST: Final = 0.95


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures of agreement."""
    parser = command.parser("agreement", "tests.bench")
    parser.add_argument("--pairs", type=Path, default=HELD_OUT, metavar="FILE")
    parser.add_argument("--cross-encoder", choices=("default", "none"), default="default")
    parser.add_argument("--wrong", action="store_true")
    add_seed_flag(parser, " of the resamples")
    add_json_flag(parser, "tables")
    return command.run(parser, _measure, argv)


def _measure(args: argparse.Namespace, on_progress: OnProgress) -> Report:
    pairs = list(agreement_pairs(args.pairs))
    model = CrossEncoder.load(shipped_cross_encoder()) if args.cross_encoder == "default" else None
    engine, scores, took = AnswerLikeness(model), list[float | None](), list[float]()
    for done, pair in enumerate(pairs):
        on_progress("comparing answers", done, len(pairs))
        began = time.perf_counter()
        scores.append(engine.compare(pair.one, pair.other, pair.question).score)
        took.append((time.perf_counter() - began) * 1000)
    ours = np.array([0.0 if score is None else score for score in scores])  # without a signal they escalate
    words = np.array([similarity(pair.one, pair.other) for pair in pairs])
    same = np.array([pair.same for pair in pairs])
    languages = [*dict.fromkeys(pair.language for pair in pairs), "all"]
    ranked = table("language", "equal", "contradictory", "AUROC", "by words", "contradictions kept", "equal escalated")
    values: dict[str, Any] = {"threshold": UNCALIBRATED_BELOW, "pairs": len(pairs), "languages": {}, "kinds": {}}
    for language in languages:
        rows = np.array([language in (pair.language, "all") for pair in pairs])
        own = [pair for pair, is_own in zip(pairs, rows, strict=True) if is_own]
        found, by_words = (_resampled(own, some[rows], args.seed) for some in (ours, words))
        kept = _share(ours[rows & ~same] >= UNCALIBRATED_BELOW)
        lost = _share(ours[rows & same] < UNCALIBRATED_BELOW)
        counts = int((rows & same).sum()), int((rows & ~same).sum())
        ranked.add_row(language, *map(str, counts), str(found), f"{by_words.value:.3f}", str(kept), str(lost))
        values["languages"][language] = {
            "equal": counts[0], "contradictory": counts[1], "auroc": [found.value, found.lo, found.hi],
            "auroc_by_words": by_words.value, "contradictions_kept": [kept.value, kept.lo, kept.hi],
            "equal_escalated": [lost.value, lost.lo, lost.hi],
        }  # fmt: skip
    kinds = table("kind", "pairs", "called the same")
    for kind in sorted({pair.kind for pair in pairs}):
        called = _share(ours[[pair.kind == kind for pair in pairs]] >= UNCALIBRATED_BELOW)
        kinds.add_row(kind, str(sum(pair.kind == kind for pair in pairs)), str(called))
        values["kinds"][kind] = [called.value, called.lo, called.hi]
    wordy = _share(words[~same] >= UNCALIBRATED_BELOW), _share(words[same] < UNCALIBRATED_BELOW)
    values["by_words"] = {"contradictions_kept": wordy[0].value, "equal_escalated": wordy[1].value}
    values["no_signal"] = sum(score is None for score in scores)
    values["ms"] = {"p50": float(np.median(took)), "p95": float(np.quantile(took, _SLOWEST))}
    lines: list[Any] = [
        ranked, "", kinds, "",
        f"by words: contradictions kept {wordy[0]}, equal escalated {wordy[1]}",
        f"no signal: {values['no_signal']} of {len(pairs)}; a pair takes {values['ms']['p50']:.0f} ms (p50), "
        f"{values['ms']['p95']:.0f} ms (p95)",
    ]  # fmt: skip
    if args.wrong:
        lines += [
            f"{pair.language} {pair.kind}, {score:.2f}: {pair.one} | {pair.other}"
            for pair, score in zip(pairs, ours.tolist(), strict=True)
            if (score >= UNCALIBRATED_BELOW) is not pair.same
        ]
    return Report(
        values, lines, title=f"agreement at {UNCALIBRATED_BELOW:g}, pairs that nothing is fitted to", width=WIDE
    )


def _share(flags: Floats | np.ndarray[Any, np.dtype[np.bool_]]) -> Interval:
    value = float(np.mean(flags))
    return Interval(value, *wilson(value, len(flags)))


def _resampled(pairs: Sequence[AgreementPair], scores: Floats, seed: int) -> Interval:
    """Return the AUROC with its interval by resampling topics, which languages share."""
    topics = np.array([pair.topic for pair in pairs])
    same = np.array([pair.same for pair in pairs], np.float64)
    draw = np.random.default_rng(seed)
    names = np.unique(topics)
    places = {name: np.flatnonzero(topics == name) for name in names}
    area: Callable[[Any], float] = lambda rows: auroc(scores[rows], same[rows])  # noqa: E731
    drawn = [area(np.concatenate([places[name] for name in draw.choice(names, len(names))])) for _ in range(_RESAMPLES)]
    return Interval(area(np.arange(len(pairs))), *np.quantile(drawn, (0.025, 0.975)).tolist())


if __name__ == "__main__":
    sys.exit(main())
