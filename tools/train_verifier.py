"""Fit the semantic cache's verifier: boosted trees with monotonic features, then a calibration.

No figure is measured on fitted pairs. `left out` are predictions by fits without the pair's part: a whole group of the
data or, where a data set has few groups, every text of its cluster of paraphrases. `checked` are data sets that no fit
uses. The calibration comes from the left-out predictions, the strict threshold from both.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from cache.semantic.verifier import WORDS, Verifier, VerifierWords
from cache.text.guards import SWITCHED, Pair
from cache.text.normalized_question import gist
from cache.text.pair_features import FEATURES, SIGNS, WordTable, features, leftover
from cache.text.reading import SCRIPTS
from cache.text.thesaurus import KIND, SYNONYM
from gateway.cli.flags import add_json_flag
from gateway.encoders import load_embedder
from gateway.parts.fit.curves import Flags, Floats
from gateway.parts.fit.datasets import DataError
from gateway.parts.fit.embedding import Remembered
from gateway.parts.fit.flags import add_embedding_flag, add_seed_flag, add_state_flag
from gateway.parts.fit.libraries import one_thread, require
from gateway.parts.fit.training.sheet import Remade, data_sheet
from gateway.report import WIDE, OnProgress, Report, table
from routing.embedder import Embedder, StaticEmbedder
from tools import command
from tools.question_pairs import RULES, STRANGERS, QuestionPair, clusters_of, prepared, read_questions
from tools.served_shares import least_threshold, served_shares

_FOLDS = 5
_ROUNDS = 600
_FEW_GROUPS = 8
_NEAR = 0.5
"""Cosine from which two questions are of one topic, whatever they want."""
_WEIGHT_OF_RULES = 0.3
"""Weight of the generated pairs relative to a labelled data set. Without them a score means different things for
commands and for questions; from 1 on they rank labelled pairs worse than the cosine alone does."""
STRICT_ERROR = 0.02
"""Maximum share, of near pairs that differ, that is served at the strict threshold."""


@dataclass(frozen=True, slots=True)
class PairTable:
    """The pairs as arrays.

    `features` (pairs, features); `refused` marks vetoes; `weight` sums to 1 per data set and is 0 for pairs that no fit
    may use; `checked` marks data sets that are only checked against.
    """

    features: Floats
    same: Flags
    refused: Flags
    weight: Floats
    checked: Flags
    dataset: NDArray[np.str_]
    group: NDArray[np.str_]
    fold: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Fitted:
    """What `save_verifier` writes: the verifier's arrays, the strict threshold, and the data sheet's figures."""

    tensors: dict[str, NDArray[Any]]
    strict: float
    figures: dict[str, Any]


def train_verifier(
    data: Sequence[Path],
    check: Sequence[Path],
    out: Path,
    embedder: Embedder,
    seed: int,
    remade: Remade,
    on_progress: OnProgress,
) -> tuple[Fitted, str]:
    """Fit to the pairs in the files `data`, test on those in `check`, and write the artefact to the folder `out`.

    The table of word vectors is written beside it. Return the fit and the SHA-256 of the tensors. Raises DataError,
    LibraryMissing, EmbedderUnavailable, VerifierError, OSError.
    """
    static = StaticEmbedder.load()
    labelled, checked = ([pair for path in paths for pair in read_questions(path)] for paths in (data, check))
    names = {pair.dataset for pair in checked}
    if both := names & {pair.dataset for pair in labelled}:
        raise DataError(f"{', '.join(sorted(both))}: given by --data and by --check; remove it from one of them")
    pairs = prepared(labelled, checked, static.embed, seed)
    own = static.vocabulary()
    words = [*own, *sorted({*SYNONYM, *KIND} - {*own})]
    save_words(words, static.embed(words), out.parent / WORDS)
    vectors = Remembered(embedder, on_progress)
    # In order of length, because a batch takes as long as its longest text.
    vectors.embed(sorted({text for pair in pairs for text in (pair.a, pair.b)}, key=len))
    cosines = [float(np.dot(*vectors.embed([pair.a, pair.b]))) for pair in pairs]
    fitted = fit_verifier(tabulated(pairs, cosines, VerifierWords.load(out.parent / WORDS), names), seed, on_progress)
    counts = {name: sum(pair.dataset == name for pair in pairs) for name in sorted({pair.dataset for pair in pairs})}
    facts = {
        "encoder": embedder.name,
        "trained_on": [{"file": path.name} for path in data],
        "checked_by": [{"file": path.name} for path in check],
        "pairs": {"read": len(labelled), "used": counts},
    }
    what = "P(the answer to one question serves another), from how alike they are and what differs between them"
    digest = save_verifier(fitted, out, data_sheet(what, facts, remade))
    Verifier.load(out)
    return fitted, digest


def tabulated(
    pairs: Sequence[QuestionPair], cosines: Sequence[float], words: WordTable, checked: Collection[str] = ()
) -> PairTable:
    """Compute features, vetoes and weights of the pairs. `checked` names the data sets that are not fitted on."""
    rows, refused = [], []
    for pair, cosine in zip(pairs, cosines, strict=True):
        a, b = gist(pair.a), gist(pair.b)
        refused.append(bool(Pair(pair.a, pair.b).refusal(SWITCHED, "alone")))
        rows.append(features(a, b, leftover(a, b), cosine, words))
    dataset = np.array([pair.dataset for pair in pairs])
    group = np.array([pair.group for pair in pairs])
    aside = np.isin(dataset, sorted(checked))
    return PairTable(
        np.array(rows),
        np.array([pair.same_answer for pair in pairs]),
        np.array(refused),
        np.where(aside, 0.0, _weights(dataset, group, np.array(refused))),
        aside,
        dataset,
        group,
        _folds(pairs, cosines, dataset, group),
    )


def _weights(dataset: NDArray[np.str_], group: NDArray[np.str_], refused: Flags) -> Floats:
    """Weight each data set alike, and each of its groups by the square root of its size; vetoed pairs get 0."""
    weight = np.zeros(len(dataset))
    for name in np.unique(dataset):
        of_set = (dataset == name) & ~refused
        for part in np.unique(group[of_set]):
            rows = of_set & (group == part)
            weight[rows] = 1 / np.sqrt(rows.sum())
        weight[of_set] *= (_WEIGHT_OF_RULES if name == RULES else 1.0) / max(weight[of_set].sum(), 1e-12)
    return weight


def _folds(
    pairs: Sequence[QuestionPair], cosines: Sequence[float], dataset: NDArray[np.str_], group: NDArray[np.str_]
) -> NDArray[np.intp]:
    """Assign folds by whole groups, or by whole topics where there are few groups, so that similar pairs stay together.

    A topic connects pairs that want the same answer, or that are near each other though they do not: a question that
    was fitted on together with its opposite is not independent. A pair of two topics belongs to the first.
    """
    fold = np.zeros(len(pairs), np.intp)
    for name in np.unique(dataset):
        rows = np.flatnonzero(dataset == name).tolist()
        if len(np.unique(group[rows])) >= _FEW_GROUPS and name != RULES:
            fold[rows] = [_fold_of(str(group[row])) for row in rows]
        else:
            topics = clusters_of(
                replace(pairs[row], same_answer=pairs[row].same_answer or cosines[row] >= _NEAR)
                for row in rows
                if group[row] != STRANGERS
            )
            fold[rows] = [_fold_of(str(topics.get(pairs[row].a))) for row in rows]
    return fold


def _fold_of(name: str) -> int:
    return hashlib.blake2b(name.encode(), digest_size=2).digest()[0] % _FOLDS


def fit_verifier(table: PairTable, seed: int, on_progress: OnProgress) -> Fitted:
    """Fit on all pairs; calibration, threshold and figures come from fits that left some out.

    Raises LibraryMissing.
    """
    require("sklearn", "fitting needs scikit-learn")
    live = table.weight > 0
    steps = _FOLDS + 1
    margins = np.zeros(len(table.same))
    for number in range(_FOLDS):
        out = (table.fold == number) & ~table.checked
        margins[out] = _margins(_trees(table, live & ~out, seed), table.features[out])
        on_progress("fitting", number + 1, steps)
    model = _trees(table, live, seed)
    if table.checked.any():
        margins[table.checked] = _margins(model, table.features[table.checked])
    on_progress("fitting", steps, steps)
    calibration = _calibration(margins[live], table.same[live], table.weight[live])
    score = np.interp(margins, *calibration)
    strict = strict_threshold(score, table)
    served = (score >= strict) & ~table.refused
    figures: dict[str, Any] = {"left_out": {}, "checked": {}}
    for name in map(str, np.unique(table.dataset)):
        rows = table.dataset == name
        kind = "checked" if table.checked[rows].any() else "left_out"
        figures[kind][name] = served_shares(served[rows], table.same[rows], table.group[rows])
    return Fitted({**_arrays(model), "steps": np.array(calibration)}, strict, figures)


def _trees(table: PairTable, rows: Flags, seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(
        max_iter=_ROUNDS,
        learning_rate=0.06,
        max_leaf_nodes=3,
        min_samples_leaf=40,
        l2_regularization=5.0,
        monotonic_cst=list(SIGNS),
        early_stopping=False,
        random_state=seed,
    )
    weight = table.weight[rows]
    with one_thread():  # trees this small grow more slowly with several threads
        return model.fit(table.features[rows], table.same[rows], sample_weight=weight * (len(weight) / weight.sum()))


def _margins(model: Any, features: Floats) -> Floats:
    margins: Floats = model.decision_function(features)
    return margins


def _calibration(margin: Floats, same: Flags, weight: Floats) -> tuple[Floats, Floats]:
    """Return (margins, probabilities), strictly increasing so that no two margins become equal."""
    from sklearn.isotonic import IsotonicRegression

    isotonic = IsotonicRegression(y_min=0.001, y_max=0.999).fit(margin, same, sample_weight=weight)
    at = np.quantile(margin, np.linspace(0, 1, 65))
    # A small logistic part keeps the order of pairs within a plateau of the isotonic steps.
    rising = 0.95 * isotonic.predict(at) + 0.05 / (1 + np.exp(-at))
    at, first = np.unique(at, return_index=True)
    ends = np.array([at[0] - 10, *at, at[-1] + 10])
    values = np.maximum.accumulate(rising[first])
    return ends, np.array([values[0] / 2, *values, (1 + values[-1]) / 2])


def strict_threshold(score: Floats, table: PairTable) -> float:
    """Return the lowest score that serves at most 2% of the near pairs that differ, in every labelled data set.

    Pairs that are not near are never compared; counting them would make any threshold look safe.
    """
    near = table.features[:, FEATURES.index("cosine")] >= _NEAR
    labelled = near & ~table.same & (table.group != STRANGERS) & (table.dataset != RULES)
    return max(
        (
            least_threshold(np.where(table.refused, -1.0, score)[rows], table.same[rows], STRICT_ERROR)
            for name in np.unique(table.dataset)
            if (rows := labelled & (table.dataset == name)).any()
        ),
        default=0.5,
    )


def _arrays(model: Any) -> dict[str, NDArray[Any]]:
    """Return the trees as arrays of equal width; see `cache.semantic.verifier.Trees`."""
    nodes = [round_[0].nodes for round_ in model._predictors]
    width = max(map(len, nodes))
    shape = (len(nodes), width)
    feature, left, right = (np.zeros(shape, np.int16) for _ in range(3))
    at, value = np.zeros(shape), np.zeros(shape)
    for tree, entries in enumerate(nodes):
        own, leaf = np.arange(len(entries)), entries["is_leaf"].astype(bool)
        feature[tree, : len(entries)] = np.where(leaf, 0, entries["feature_idx"])
        at[tree, : len(entries)] = np.where(leaf, 0.0, entries["num_threshold"])
        left[tree, : len(entries)] = np.where(leaf, own, entries["left"])
        right[tree, : len(entries)] = np.where(leaf, own, entries["right"])
        value[tree, : len(entries)] = np.where(leaf, entries["value"], 0.0)
    depth = max(int(entries["depth"].max()) for entries in nodes)
    return {
        "feature": feature, "at": at, "left": left, "right": right, "value": value,
        "base": np.array([float(np.ravel(model._baseline_prediction)[0])]), "depth": np.array([depth]),
    }  # fmt: skip


def save_verifier(fitted: Fitted, folder: Path, sheet: Mapping[str, Any]) -> str:
    """Write the artefact's two files; return the SHA-256 of the tensors. Raises OSError."""
    from safetensors.numpy import save as packed

    data = packed({name: np.ascontiguousarray(array) for name, array in fitted.tensors.items()})
    digest = hashlib.sha256(data).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "verifier.safetensors").write_bytes(data)
    content = {
        **sheet,
        "sha256": digest,
        "features": list(FEATURES),
        "strict": fitted.strict,
        "scripts": sorted(SCRIPTS),
        "figures": fitted.figures,
    }
    (folder / "verifier.json").write_text(json.dumps(content, indent=1) + "\n")
    return digest


def save_words(words: Sequence[str], vectors: NDArray[np.float32], path: Path) -> None:
    """Write the table of word vectors as int8, and its data sheet: `words` by rarity, `vectors` (words, dimension)."""
    from safetensors.numpy import save as packed

    lengths = np.abs(vectors).max(axis=1, keepdims=True)
    small = np.round(vectors / np.maximum(lengths, 1e-9) * 127).astype(np.int8)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = packed({"words": np.frombuffer("\n".join(words).encode(), np.uint8), "vectors": small})
    path.write_bytes(data)
    sheet = {
        "what": "words, the commonest first, and static vectors, by which a word of one question finds its like in "
        "the other; each vector scaled so that its largest component is 127",
        "from": "the vocabulary of the package wordllama (256 dimensions), then the words of cache/text/thesaurus.toml "
        "that it lacks, embedded by the same model",
        "licence": "MIT (wordllama's weights); Apache-2.0 (the thesaurus)",
        "words": len(words),
        "dimension": vectors.shape[1],
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "command": "python -m tools.train_verifier --data FILE --out cache/artefacts/static",
    }
    path.with_suffix(".json").write_text(json.dumps(sheet, indent=1) + "\n")


_SEEN = {"left_out": "not this part", "checked": "nothing of it"}


def table_of_shares(fitted: Fitted) -> Table:
    """Return the shares of pairs served at the strict threshold, by data set."""
    made = table("data set", "seen", "n", "same answer", "another answer", left=2)
    for kind, by_dataset in fitted.figures.items():
        for name, figures in by_dataset.items():
            shares = ["-" if figures[key] is None else f"{figures[key]:.1%}" for key in ("served", "wrong")]
            made.add_row(name, _SEEN[kind], str(figures["n"]), *shares)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Train the verifier, write it and print which share of pairs left out it serves."""
    parser = command.parser("train_verifier")
    command.add_training_flags(parser, "test the result", "the verifier")
    add_embedding_flag(parser)
    add_seed_flag(parser)
    add_state_flag(parser)
    add_json_flag(parser, "a table")

    def work(args: argparse.Namespace, on_progress: OnProgress) -> Report:
        embedder = load_embedder(args.embedding, args.state)
        remade = command.remade(parser, args, "--embedding", args.embedding, "--seed", str(args.seed))
        fitted, digest = train_verifier(args.data, args.check, args.out, embedder, args.seed, remade, on_progress)
        values = {"version": digest[:12], "strict": fitted.strict, **fitted.figures}
        done = [f"written to {args.out}, version {digest[:12]}, strict threshold {fitted.strict:.4f}"]
        title = "served at the strict threshold, of pairs left out"
        return Report(values, [table_of_shares(fitted)], title=title, done=done, width=WIDE)

    return command.run(parser, work, argv)


if __name__ == "__main__":
    sys.exit(main())
