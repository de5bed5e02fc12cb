"""The fit of `cache.semantic.verifier`: boosted trees whose every feature may move the score one way only, then a
calibration.

Nothing is judged on what it was fitted on. `left out` are predictions of fits that never saw the pair's part: a whole
group of the data, or every text of its cluster of paraphrases where a data set has few groups. `checked` are data sets
that no fit sees at all. The calibration comes from what was left out, the strict threshold from both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache.offline.training.pairs import STRANGERS, clusters_of
from cache.offline.training.perturb import OURS, PerturbedPair
from cache.semantic import pair_features as contrast
from cache.semantic.verifier import ALL_GUARDS
from cache.text.normalized_question import gist

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
OnProgress = Callable[[str, int, int], None]
"""Told of each fit: what it is for, how many are done, of how many."""

_FOLDS = 5
_ROUNDS = 600
_FEW_GROUPS = 8
_NEAR = 0.5
"""The cosine from which on two questions are of one topic, whatever they want."""
_WEIGHT_OF_OURS = 0.3
"""Of the pairs of our own making, against a labelled data set. With none of them a score means something else for
commands than for questions; from 1 on they rank labelled pairs worse than the cosine alone does."""
STRICT_ERROR = 0.02
"""Of the pairs that differ and are near, the share that may be served at the strict threshold."""


class CacheTrainingUnavailable(RuntimeError):
    """scikit-learn is not installed; the message says how to get it."""


@dataclass(frozen=True, slots=True)
class PairTable:
    """The pairs as numbers. `features` (pairs, features); `refused` where a veto spoke; `weight`: 1 a data set, 0 for
    what no fit may see; `checked` where the data set is there to be checked by only.
    """

    features: Floats
    same: Mask
    refused: Mask
    weight: Floats
    checked: Mask
    dataset: NDArray[np.str_]
    group: NDArray[np.str_]
    fold: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Fitted:
    """What `save` writes: the verifier's arrays, the strict threshold, and the figures of the data sheet."""

    tensors: dict[str, NDArray[Any]]
    strict: float
    figures: dict[str, Any]


def tabulated(
    pairs: Sequence[PerturbedPair], cosines: Sequence[float], words: contrast.WordTable, checked: Collection[str] = ()
) -> PairTable:
    """Features, vetoes and weights of the pairs. `checked` names the data sets that nothing is fitted on."""
    rows, refused = [], []
    for pair, cosine in zip(pairs, cosines, strict=True):
        a, b = gist(pair.a), gist(pair.b)
        rest = contrast.leftover(a, b)
        refused.append(
            not a.words
            or not b.words
            or bool(contrast.early_veto(a, b, ALL_GUARDS) or contrast.veto(a, b, rest, ALL_GUARDS))
        )
        rows.append(contrast.features(a, b, rest, cosine, words))
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


def _weights(dataset: NDArray[np.str_], group: NDArray[np.str_], refused: Mask) -> Floats:
    """Each data set counts alike, and in it each group by the root of its size. What is vetoed counts for nothing."""
    weight = np.zeros(len(dataset))
    for name in np.unique(dataset):
        of_set = (dataset == name) & ~refused
        for part in np.unique(group[of_set]):
            rows = of_set & (group == part)
            weight[rows] = 1 / np.sqrt(rows.sum())
        weight[of_set] *= (_WEIGHT_OF_OURS if name == OURS else 1.0) / max(weight[of_set].sum(), 1e-12)
    return weight


def _folds(
    pairs: Sequence[PerturbedPair], cosines: Sequence[float], dataset: NDArray[np.str_], group: NDArray[np.str_]
) -> NDArray[np.intp]:
    """Whole groups together, or whole topics where there are few groups: what is alike is left out together.

    A topic is what pairs connect that want the same answer, or are near each other though they do not: a question that
    was fitted on with its opposite is no stranger. A pair of two topics is left out with the first.
    """
    fold = np.zeros(len(pairs), np.intp)
    for name in np.unique(dataset):
        rows = np.flatnonzero(dataset == name).tolist()
        if len(np.unique(group[rows])) >= _FEW_GROUPS and name != OURS:
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


def fit(table: PairTable, seed: int, on_progress: OnProgress) -> Fitted:
    """Fits on all pairs, with the calibration, the threshold and the figures of fits that left some out.

    Raises TrainingUnavailable.
    """
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
    figures: dict[str, Any] = {"left_out": {}, "checked": {}}
    for name in map(str, np.unique(table.dataset)):
        rows = table.dataset == name
        kind = "checked" if table.checked[rows].any() else "left_out"
        figures[kind][name] = figures_of(score, table, rows, strict)
    return Fitted({**_arrays(model), "steps": np.array(calibration)}, strict, figures)


def _trees(table: PairTable, rows: Mask, seed: int) -> Any:
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError:
        raise CacheTrainingUnavailable("scikit-learn is not installed: pip install 'tierline[train]'") from None
    model = HistGradientBoostingClassifier(
        max_iter=_ROUNDS,
        learning_rate=0.06,
        max_leaf_nodes=3,
        min_samples_leaf=40,
        l2_regularization=5.0,
        monotonic_cst=list(contrast.SIGNS),
        early_stopping=False,
        random_state=seed,
    )
    weight = table.weight[rows]
    with threadpool_limits(1):  # trees this small are grown slower by several threads that wait for each other
        return model.fit(table.features[rows], table.same[rows], sample_weight=weight * (len(weight) / weight.sum()))


def _margins(model: Any, features: Floats) -> Floats:
    margins: Floats = model.decision_function(features)
    return margins


def _calibration(margin: Floats, same: Mask, weight: Floats) -> tuple[Floats, Floats]:
    """Margins to probabilities, (margins, probabilities), rising everywhere so that no two margins become equal."""
    from sklearn.isotonic import IsotonicRegression

    isotonic = IsotonicRegression(y_min=0.001, y_max=0.999).fit(margin, same, sample_weight=weight)
    at = np.quantile(margin, np.linspace(0, 1, 65))
    # A little of the logistic keeps a plateau of the isotonic steps from hiding which of two pairs is the surer.
    rising = 0.95 * isotonic.predict(at) + 0.05 / (1 + np.exp(-at))
    at, first = np.unique(at, return_index=True)
    ends = np.array([at[0] - 10, *at, at[-1] + 10])
    values = np.maximum.accumulate(rising[first])
    return ends, np.array([values[0] / 2, *values, (1 + values[-1]) / 2])


def strict_threshold(score: Floats, table: PairTable) -> float:
    """The lowest score at which of no labelled data set more than 2% are served of the pairs that differ and are near.

    Those that are not near are never compared; to count them would make any threshold look safe.
    """
    near = table.features[:, contrast.FEATURES.index("cosine")] >= _NEAR
    labelled = near & ~table.same & (table.group != STRANGERS) & (table.dataset != OURS)
    return max(
        (_within(score, table.refused, labelled & (table.dataset == name)) for name in np.unique(table.dataset)),
        default=0.5,
    )


def _within(score: Floats, refused: Mask, false: Mask) -> float:
    """The lowest score at which at most STRICT_ERROR of these false pairs are served."""
    served = np.sort(score[false & ~refused])[::-1]
    most = int(STRICT_ERROR * false.sum())
    return float(min(served[most] + 1e-6, 0.999)) if len(served) > most else 0.5


def figures_of(score: Floats, table: PairTable, rows: Mask, threshold: float) -> dict[str, Any]:
    """Shares of true pairs served and of false ones wrongly served, in all and by group."""
    served = (score >= threshold) & ~table.refused
    found: dict[str, Any] = _shares(served, table.same, rows)
    if len(np.unique(table.group[rows])) > 1:
        found["groups"] = {
            str(part): _shares(served, table.same, rows & (table.group == part))
            for part in np.unique(table.group[rows])
        }
    return found


def _shares(served: Mask, same: Mask, rows: Mask) -> dict[str, Any]:
    true, false = rows & same, rows & ~same
    return {
        "served": round(float(served[true].mean()), 4) if true.any() else None,
        "wrong": round(float(served[false].mean()), 4) if false.any() else None,
        "n": int(rows.sum()),
    }


def _arrays(model: Any) -> dict[str, NDArray[Any]]:
    """The trees as arrays of equal width; see `cache.semantic.verifier.Trees`."""
    nodes = [round_[0].nodes for round_ in model._predictors]
    width = max(map(len, nodes))
    shape = (len(nodes), width)
    feature, left, right = (np.zeros(shape, np.int16) for _ in range(3))
    at, value = np.zeros(shape), np.zeros(shape)
    for tree, found in enumerate(nodes):
        own, leaf = np.arange(len(found)), found["is_leaf"].astype(bool)
        feature[tree, : len(found)] = np.where(leaf, 0, found["feature_idx"])
        at[tree, : len(found)] = np.where(leaf, 0.0, found["num_threshold"])
        left[tree, : len(found)] = np.where(leaf, own, found["left"])
        right[tree, : len(found)] = np.where(leaf, own, found["right"])
        value[tree, : len(found)] = np.where(leaf, found["value"], 0.0)
    depth = max(int(found["depth"].max()) for found in nodes)
    return {
        "feature": feature, "at": at, "left": left, "right": right, "value": value,
        "base": np.array([float(np.ravel(model._baseline_prediction)[0])]), "depth": np.array([depth]),
    }  # fmt: skip


def save(fitted: Fitted, folder: Path, sheet: Mapping[str, Any]) -> str:
    """Writes the artefact's two files; the SHA-256 of the tensors. Raises OSError."""
    from safetensors.numpy import save as packed

    data = packed({name: np.ascontiguousarray(array) for name, array in fitted.tensors.items()})
    digest = hashlib.sha256(data).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "verifier.safetensors").write_bytes(data)
    content = {
        **sheet,
        "sha256": digest,
        "features": list(contrast.FEATURES),
        "strict": fitted.strict,
        "figures": fitted.figures,
    }
    (folder / "verifier.json").write_text(json.dumps(content, indent=1) + "\n")
    return digest


def save_words(words: Sequence[str], vectors: NDArray[np.float32], path: Path) -> None:
    """Writes the table of word vectors, a byte a number: `words` in order of rarity, `vectors` (words, dimension)."""
    from safetensors.numpy import save as packed

    lengths = np.abs(vectors).max(axis=1, keepdims=True)
    small = np.round(vectors / np.maximum(lengths, 1e-9) * 127).astype(np.int8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed({"words": np.frombuffer("\n".join(words).encode(), np.uint8), "vectors": small}))
