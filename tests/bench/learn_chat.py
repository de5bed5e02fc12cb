"""Compare what can be learnt from own labels with a table of sources and length, on public sets of chat and exams.

    python -m tests.bench.learn_chat --data PATH [--seeds 10] [--labels 200] [--json]
    python -m tests.bench.learn_chat --data PATH --seeds 3 --exams

Each seed draws the labels that are fitted; all other rows are measured and choose nothing (the choice is by
cross-validation within the labels). AUROC is for "adequate" of the small answer: pooled, the mean verdict over a class
of models is above its median; single, one model's verdict is. APGR is of small against strong. Each figure is the mean
over seeds, with the 2.5 and 97.5 per cent of the seeds, which share rows.
`table` knows source, language and length alone. `within` is the AUROC of the choice within a source, weighed by rows.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.parts.fit.curves import auroc
from gateway.parts.fit.learning.labels import OwnLabels
from gateway.parts.fit.learning.own_fit import KINDS, fit_own
from gateway.parts.fit.learning.source_table import table_scores
from gateway.parts.fit.metrics import apgr
from gateway.report import silent
from routing.difficulty.model import DifficultyModel, shipped_artefact
from routing.difficulty.text_statistics import counts_of, tokenise
from routing.embedder import StaticEmbedder, bounded
from routing.features import features_of_text
from tests.bench.command import bench_parser

_CLASS: Final = (
    "alpaca-7b-neft", "claude2-alpaca-13b", "evo-7b", "ghost-7b-alpha", "llama-2-13b-chat-hf", "llama-2-7b-chat-hf",
    "minichat-1.5-3b", "minichat-3b", "phi-2-sft", "platolm-7b", "recycled-wizardlm-7b-v1.0", "vicuna-13b",
    "wizardlm-13b",
)  # fmt: skip
"""Thirteen models of 3B to 13B that a judge neither always nor never prefers."""
_GUANACO: Final = ("7b-guanaco", "13b-guanaco", "30b-guanaco", "65b-guanaco", "vicuna-13b")
_WEAK: Final = (
    "OpenHermes-2.5-Mistral-7B", "Qwen-14B-Chat", "baize-v2-13b", "gemma-7b-it", "minotaur-13b", "nous-hermes-13b",
    "openbuddy-llama2-13b-v11.1", "ultralm-13b", "vicuna-13b", "vicuna-13b-v1.5", "wizardlm-13b", "jina-chat",
    "humpback-llama2-70b",
)  # fmt: skip
SETS: Final = {
    "alpaca_eval1": (_CLASS, "gpt4_1106_preview"),
    "alpaca_eval2": (_WEAK, "gpt4_1106_preview"),
    "qlora_oa": (_GUANACO, "gpt-4"),
}
_EXAMS: Final = {"routellm_mmlu": (("mixtral-8x7b",), "gpt-4-1106")}
_EXAM_LABELS: Final = 1500
METHODS: Final = ("shipped", *KINDS, "chosen", "table", "within")


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Read a set of gzipped JSON lines. Raises OSError."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def labels_of(rows: Sequence[Mapping[str, Any]], small: NDArray[Any], strong: NDArray[Any]) -> OwnLabels:
    """Return labels of these prompts with these verdicts, 0..1, of the small and the strong answer."""
    embedder = StaticEmbedder.load()
    model = DifficultyModel.load(shipped_artefact("static"), embedder)
    features = [features_of_text(row["prompt"]) for row in rows]
    vectors = embedder.embed([row["prompt"] for row in rows])
    rated = [model.assess(vector, each) for vector, each in zip(vectors, features, strict=True)]
    return OwnLabels(
        np.array([str(row["id"]) for row in rows]),
        np.array(["default"] * len(rows)),
        np.arange(len(rows), dtype=np.float64),
        np.arange(len(rows)),
        np.stack([small, strong], axis=1),
        np.array([[each.p_right[0], each.p_right[-1]] for each in rated]),
        np.array([each.in_domain for each in rated]),
        vectors.astype(np.float64),
        np.array([counts_of(each, tokenise(bounded(each.text))) for each in features], np.float64),
        np.array([row["group"] for row in rows]),
    )


def measured(labels: OwnLabels, count: int, seed: int, single: bool) -> tuple[dict[str, tuple[float, float]], str]:
    """Return AUROC and APGR of each method by a fit to `count` labels, on all others, and the kind that was chosen."""
    order = np.random.default_rng(seed).permutation(len(labels))
    fitted, held = labels.take(order[:count]), labels.take(order[count:])
    small, strong = held.right.T
    adequate = (small >= 0.5 if single else small > np.median(small)).astype(np.float64)
    by_method = {"shipped": held.p_right, "table": table_scores(fitted, held)}
    kind = ""
    for name in (*KINDS, "chosen"):
        made = fit_own(fitted, 1, seed, silent, KINDS if name == "chosen" else (name,))
        by_method[name] = made.heads.p_right(held.vectors, held.counts, held.p_right, held.in_domain)
        kind = made.kind
    figures = {
        name: (float(auroc(p[:, 0], adequate)), float(apgr(p[:, 1] - p[:, 0], small, strong)))
        for name, p in by_method.items()
    }
    inside = []
    for source in np.unique(held.source):
        rows = np.flatnonzero(held.source == source)
        if 5 <= adequate[rows].sum() <= len(rows) - 5:
            p = by_method["chosen"][rows]
            inside.append(
                (auroc(p[:, 0], adequate[rows]), apgr(p[:, 1] - p[:, 0], small[rows], strong[rows]), len(rows))
            )
    if inside:
        parts = np.array(inside, np.float64)
        weights = np.where(np.isfinite(parts[:, :2]), parts[:, 2:], 0.0)
        figures["within"] = tuple((np.nan_to_num(parts[:, :2]) * weights).sum(axis=0) / weights.sum(axis=0))  # type: ignore[assignment]
    return figures, kind


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return the mean of the seeds' figures, and their 2.5 and 97.5 per cent."""
    low, high = np.nanquantile(values, (0.025, 0.975))
    return {"value": float(np.nanmean(values)), "lo": float(low), "hi": float(high)}


def task(labels: OwnLabels, count: int, seeds: int, single: bool) -> dict[str, Any]:
    """Return the summary of each method's AUROC and APGR, of choice minus table, and how often each kind was chosen."""
    runs = [measured(labels, count, seed, single) for seed in range(seeds)]
    figures: dict[str, Any] = {}
    for name in METHODS:
        some = [run[name] for run, _ in runs if name in run]
        if some:
            figures[name] = {what: summary([pair[at] for pair in some]) for at, what in enumerate(("auroc", "apgr"))}
    for at, what in enumerate(("auroc", "apgr")):
        above = [run["chosen"][at] - run["table"][at] for run, _ in runs]
        figures.setdefault("above_table", {})[what] = summary(above)
    kinds = [kind for _, kind in runs]
    return {"figures": figures, "chosen": {kind: kinds.count(kind) for kind in KINDS}}


def main() -> None:
    """Print the figures."""
    parser = bench_parser("learn_chat", __doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the folder with the sets")
    parser.add_argument("--seeds", type=int, default=10, help="draws of the labels (default: %(default)s)")
    parser.add_argument("--labels", type=int, default=200, help="labels that are fitted (default: %(default)s)")
    parser.add_argument("--exams", action="store_true", help="measure exam questions with 1,500 labels, too")
    parser.add_argument("--no-single", action="store_true", help="leave out one model's verdicts")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for name, (small, strong) in {**SETS, **(_EXAMS if args.exams else {})}.items():
        file = args.data / f"{name}.jsonl.gz"
        if not file.exists():
            parser.error(f"{file} is not there; see --help")
        exam = name in _EXAMS
        rows = [row for row in rows_of(file) if {*small, strong} <= row["models"].keys()]
        verdicts = {model: np.array([row["models"][model]["correct"] for row in rows]) for model in {*small, strong}}
        mean = np.mean([verdicts[model] for model in small], axis=0)
        labels = labels_of(rows, mean, verdicts[strong])
        sys.stderr.write(f"{name}: {len(rows)} rows\n")
        results[name] = task(labels, _EXAM_LABELS if exam else args.labels, args.seeds, exam)
        _print(args.json, f"{name}, mean of {len(small)} models", results[name])
        if exam or args.no_single:
            continue
        singles = [
            task(labels_of(rows, verdicts[model], verdicts[strong]), args.labels, max(1, args.seeds // 3), True)
            for model in small
            if 0.2 <= np.mean(verdicts[model] >= 0.5) <= 0.8
        ]
        if singles:
            methods = [key for key in (*METHODS, "above_table") if all(key in one["figures"] for one in singles)]
            over = {
                key: {
                    what: summary([one["figures"][key][what]["value"] for one in singles]) for what in ("auroc", "apgr")
                }
                for key in methods
            }
            chosen = {kind: sum(one["chosen"][kind] for one in singles) for kind in KINDS}
            results[f"{name} single"] = {"figures": over, "chosen": chosen}
            _print(args.json, f"{name}, one model at a time ({len(singles)})", results[f"{name} single"])
    if args.json:
        sys.stdout.write(json.dumps(results) + "\n")


def _print(quiet: bool, title: str, result: Mapping[str, Any]) -> None:
    if quiet:
        return
    print(f"{title}; chosen {', '.join(f'{kind} {times}' for kind, times in result['chosen'].items())}")
    for name, figures in result["figures"].items():
        shown = (f"{what.upper()} {x['value']:.3f} [{x['lo']:.3f}, {x['hi']:.3f}]" for what, x in figures.items())
        print(f"  {name:12} {'  '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
