"""Measure what verifies drafts without log-probabilities, on labelled answers: `python -m tests.bench.verifiers`.

Each data set is judged by itself: the order of a verifier's words is fitted to nothing, and what calibrates them and
weighs in the classifier is fitted to so many labels of each small model's answers there, and tested on its others, at
least as many.
"""

from __future__ import annotations

import argparse
import math
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from cache import shipped_cross_encoder
from gateway.cli.flags import add_json_flag, whole
from gateway.parts.agents.scorer import AnswerScorer
from gateway.parts.encoders.cross_encoder import CrossEncoder
from gateway.parts.fit.curves import Floats, calibration_error
from gateway.parts.fit.datasets import DataError, LabelledAnswer, LabelledRow, file_digest, read_rows, sampled
from gateway.parts.fit.evaluation.artefact import ServedArtefact
from gateway.parts.fit.figures import Interval, interval
from gateway.parts.fit.flags import add_seed_flag, add_state_flag
from gateway.parts.fit.metrics import apgr
from gateway.parts.fit.training.answer_heads import fit_head
from gateway.parts.fit.training.answer_scorer import Answered, fit_scorer, model_pairs
from gateway.parts.fit.training.sheet import trained_on
from gateway.parts.heads.head import OF_VERIFIERS, ConfidenceHead, LogisticScorer
from gateway.parts.measures.likeness import AnswerLikeness
from gateway.report import NONE, WIDE, OnProgress, Report, silent, table
from routing.confidence.judge import Evidence
from routing.difficulty.model import SHEET_FILE, gain_of
from routing.features import features_of_text
from tests.bench.command import bench_parser
from tools import command

_EXAMPLES: Final = """examples:
  python -m tests.bench.verifiers --data judged.jsonl.gz
                              what `tierline fit collect --judge` wrote: the words of a real judge
  python -m tests.bench.verifiers --data cascade_triviaqa.jsonl.gz --self-check
                              `confidence` is the log-probability of a one-token self-check, as it is in this file
  python -m tests.bench.verifiers --data cascade_triviaqa.jsonl.gz --self-check --leave-out llama3.2-1b
                              the same of models of 3B and more, each of which judges its own answers
  python -m tests.bench.verifiers --data routellm_mmlu.jsonl.gz routellm_gsm8k.jsonl.gz --published
                              judges with error rates that were measured on these benchmarks (judge_rates.toml)
  python -m tests.bench.verifiers --data answers.jsonl.gz --rates 0.95/0.1 0.95/0.3 0.95/0.5 --scorer
                              judges with such rates, and a scorer fitted to the other data sets

APGR is the mean over pairs of models of which the larger is right 5 points more often, for the verifier's word as it
stands, with the classifier weighed in by so many labels, and for the classifier alone; `perfect` is a verifier that is
always right. Intervals are 95%, by 200 resamples of the prompts, each of another draw of the labels; those of the ECE,
in ten bins of equal count, are over draws and models. `floor` is the ECE of a calibrated one on as many answers."""
_RATES: Final = Path(__file__).with_name("judge_rates.toml")
_DRAWS: Final = 10
_RESAMPLES: Final = 200
_SAYS: Final = {True: 0.9, False: 0.1}
"""The word of a scripted judge."""

Word = Callable[[LabelledRow, str, LabelledAnswer], float | None]


@dataclass(frozen=True, slots=True)
class DraftVerifier:
    """A verifier: its kind, and what it says of an answer. `sets` are those it can judge; None for all."""

    name: str
    by: str
    word: Word
    sets: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class _Set:
    """The answers of one data set with a verifier's words, in columns; `gain` and `prior` are the classifier's."""

    models: Any
    prompts: Any
    right: Floats
    said: Floats
    gain: Floats
    prior: Floats


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    made = bench_parser("verifiers", f"{(__doc__ or '')}\n{_EXAMPLES}")
    made.add_argument("--data", type=Path, nargs="+", required=True, metavar="FILE", help="labelled rows with answers")
    made.add_argument("--self-check", action="store_true", help="`confidence` is that of a one-token self-check")
    made.add_argument("--published", action="store_true", help="judges with published error rates")
    made.add_argument(
        "--rates", nargs="+", default=[], metavar="RIGHT/WRONG", help="judges that call such shares right"
    )
    made.add_argument("--second", metavar="MODEL", help="a model whose answer stands for a second sample of each other")
    made.add_argument(
        "--leave-out", nargs="+", default=[], metavar="MODEL", help="models that neither answer nor judge"
    )
    made.add_argument("--scorer", action="store_true", help="a scorer that is fitted to the other data sets")
    made.add_argument("--labels", type=whole(20), default=200, metavar="N", help="labels of each model (default: 200)")
    made.add_argument("--at-most", type=whole(20), default=1000, metavar="N", help="prompts of a set (default: 1000)")
    add_seed_flag(made)
    add_state_flag(made)
    add_json_flag(made)
    return command.run(made, _measure, argv)


def _measure(args: argparse.Namespace, on_progress: OnProgress) -> Report:
    by_set: dict[str, list[LabelledRow]] = {}
    served = ServedArtefact.open("static", None, args.state)
    fitted_to = trained_on(served.folder / SHEET_FILE)
    seen: set[str] = set()
    for path in args.data:
        digest = file_digest(path)
        for row in read_rows(path):
            kept = {model: answer for model, answer in row.answers.items() if model not in args.leave_out}
            by_set.setdefault(row.dataset, []).append(replace(row, answers=kept))
            seen.update([row.dataset] if digest in fitted_to else ())
    by_set = {name: sampled(rows, args.at_most, args.seed) for name, rows in by_set.items()}
    made = table(
        "verifier", "data set", "pairs", "APGR as it says", f"with {args.labels} labels", "classifier alone",
        "minus that", "perfect", "ECE as it says", f"with {args.labels} labels", "floor",
    )  # fmt: skip
    found: list[dict[str, Any]] = []
    for name, rows in by_set.items():
        requests = [features_of_text(row.prompt) for row in rows]
        rated = {row.id: one for row, one in zip(rows, served.assess(requests, on_progress), strict=True)}
        for verifier in _verifiers(args, by_set, name):
            if verifier.sets is None or name in verifier.sets:
                figures = _figures(_read(rows, verifier, rated), verifier.by, args.labels, args.seed)
                if figures is not None:
                    found.append({"verifier": verifier.name, "dataset": name, **figures})
    if not found:
        raise DataError(f"no verifier has said anything of {2 * args.labels} answers of a model and a better one")
    for one in found:
        cells = [str(Interval(*one[key])) for key in ("said", "own", "classifier", "ahead")]
        if one["dataset"] in seen:
            cells[2:] = "fitted to it", NONE
        made.add_row(
            one["verifier"], one["dataset"], str(one["pairs"]), *cells, f"{one['perfect']:.3f}",
            f"{one['ece_said']:.3f}", str(Interval(*one["ece"])), f"{one['floor']:.3f}",
        )  # fmt: skip
    return Report({"found": found, "labels": args.labels}, [made], title="verifiers", width=WIDE + 40)


def _verifiers(
    args: argparse.Namespace, by_set: Mapping[str, Sequence[LabelledRow]], out: str
) -> Iterator[DraftVerifier]:
    """Yield the verifiers to be measured on the data set `out`."""
    for by in OF_VERIFIERS:
        yield DraftVerifier(f"{by}, recorded", by, lambda row, model, answer, by=by: getattr(answer, by))  # type: ignore[misc]
    if args.self_check:
        yield DraftVerifier("self-check", "judge", lambda row, model, answer: _probability(answer.confidence))
    if args.second:
        yield DraftVerifier(f"agreement with {args.second}", "agreement", partial(_agreement, args.second))
    for rates in args.rates:
        right, wrong = map(float, rates.split("/"))
        yield DraftVerifier(f"judge {rates}", "judge", _scripted(right, wrong, args.seed))
    if args.published:
        known = tomllib.loads(_RATES.read_text())
        for judge, by_benchmark in known["judges"].items():
            for benchmark, (right, wrong) in by_benchmark.items():
                sets = frozenset(known["measured_on"][benchmark])
                yield DraftVerifier(f"{judge}, published", "judge", _scripted(right, wrong, args.seed), sets)
    if args.scorer and len(by_set) > 1:
        others = [row for name, rows in by_set.items() if name != out for row in rows]
        try:
            fitted = fit_scorer(Answered.of(others, args.at_most, args.seed), (), args.seed, silent).numbers
        except DataError:
            return
        parts = {part: LogisticScorer.of(one) for part, one in fitted["parts"].items()}
        scorer = AnswerScorer("", parts, frozenset())
        yield DraftVerifier(
            "scorer", "scorer", lambda row, model, answer: scorer.p_right(row.prompt, answer.text or "", complete=True)
        )


def _agreement(second: str, row: LabelledRow, model: str, answer: LabelledAnswer) -> float | None:
    other = row.answers.get(second)
    if other is None or model == second or not answer.text or not other.text:
        return None
    compared = _engine().compare(answer.text, other.text, row.prompt)
    return compared.score


@cache
def _engine() -> AnswerLikeness:
    return AnswerLikeness(CrossEncoder.load(shipped_cross_encoder()))


def _probability(logprob: float | None) -> float | None:
    return None if logprob is None else math.exp(min(0.0, logprob))


def _scripted(right: float, wrong: float, seed: int) -> Word:
    rng = np.random.default_rng(seed)
    return lambda row, model, answer: _SAYS[bool(rng.random() < (right if answer.correct > 0.5 else wrong))]


def _read(rows: Sequence[LabelledRow], verifier: DraftVerifier, rated: Mapping[str, Any]) -> _Set:
    found = []
    for row in rows:
        one = rated[row.id]
        gain, prior = float(gain_of(np.array([one.p_right]))[0]), one.p_right[0] if one.in_domain else math.nan
        for model, answer in row.answers.items():
            word = verifier.word(row, model, answer)
            found.append((model, row.id, answer.correct, math.nan if word is None else word, gain, prior))
    models, prompts, *numbers = zip(*found, strict=True)
    return _Set(np.array(models), np.array(prompts), *(np.array(one, np.float64) for one in numbers))


def _figures(data: _Set, by: str, labels: int, seed: int) -> dict[str, Any] | None:
    """Return the figures of a verifier on one data set; None where it says too little or no model is better."""
    known = np.isfinite(data.said)
    pairs = [
        (small[known[small]], large[known[small]])
        for small, large in model_pairs(data.models, data.prompts, data.right, 2 * labels)
        if known[small].sum() >= 2 * labels
    ]
    if not pairs:
        return None
    rng = np.random.default_rng(seed)
    drawn, errors, floors = [], [], []
    for _ in range(_DRAWS):
        p = np.full(len(known), np.nan)
        for model in sorted({data.models[small[0]] for small, _ in pairs}):
            order = rng.permutation(np.flatnonzero(known & (data.models == model)))
            rest = order[labels:]
            try:
                p[rest] = _by_labels(data, by, order[:labels], rest, seed)
            except DataError:  # hardly any right, or hardly any wrong answers
                continue
            errors.append(calibration_error(p[rest], data.right[rest]))
            floors.append(calibration_error(p[rest], (rng.random(len(rest)) < p[rest]).astype(np.float64)))
        drawn.append(p)
    values = [_worth(data, pairs, p, None) for p in drawn]
    again = [_worth(data, pairs, drawn[one % _DRAWS], rng) for one in range(_RESAMPLES)]
    shown = {}
    for key in ("said", "own", "classifier", "ahead", "perfect"):
        it = interval(float(np.nanmean([one[key] for one in values])), np.array([one[key] for one in again]))
        shown[key] = [round(end, 4) for end in (it.value, it.lo, it.hi)]
    low, high = np.quantile(errors, [0.025, 0.975])
    smalls = np.unique(np.concatenate([small for small, _ in pairs]))
    return {
        "pairs": len(pairs),
        **shown,
        "perfect": shown["perfect"][0],
        "ece_said": round(calibration_error(data.said[smalls], data.right[smalls]), 4),
        "ece": [round(float(end), 4) for end in (np.mean(errors), low, high)],
        "floor": round(float(np.mean(floors)), 4),
    }


def _by_labels(data: _Set, by: str, fitted: Any, rest: Any, seed: int) -> list[float | None]:
    """Return P(right) of the answers `rest` by a head fitted to the answers `fitted`, as it serves."""
    words: list[dict[str, Any]] = [{by: word} for word in data.said[fitted].tolist()]
    answers = [LabelledAnswer(right, **word) for right, word in zip(data.right[fitted].tolist(), words, strict=True)]
    priors = [None if math.isnan(one) else one for one in data.prior.tolist()]
    numbers = fit_head(answers, "", seed, silent, [priors[row] for row in fitted.tolist()]).numbers
    head = ConfidenceHead.of("", numbers)
    evidence = [Evidence("", verified={by: word}) for word in data.said[rest].tolist()]  # type: ignore[dict-item]
    return [
        head.p_right(one, priors[row], by)  # type: ignore[arg-type]
        for row, one in zip(rest.tolist(), evidence, strict=True)
    ]


def _worth(data: _Set, pairs: Sequence[tuple[Any, Any]], p: Floats, rng: Any) -> dict[str, float]:
    """Return the mean APGR of the pairs on what a draw did not fit to, or on a random resample of it."""
    each: dict[str, list[float]] = {"said": [], "own": [], "classifier": [], "perfect": []}
    for small, large in pairs:
        rows = np.flatnonzero(np.isfinite(p[small]))
        if not len(rows):
            continue
        some = rows if rng is None else rng.choice(rows, len(rows))
        of_small, right = small[some], (data.right[small[some]], data.right[large[some]])
        scores = (-data.said[of_small], -p[of_small], data.gain[of_small], -data.right[of_small])
        for name, score in zip(each, scores, strict=True):
            each[name].append(apgr(score, *right))
    means = {name: float(np.nanmean(some)) for name, some in each.items()}
    return {**means, "ahead": means["own"] - means["classifier"]}


if __name__ == "__main__":
    sys.exit(main())
