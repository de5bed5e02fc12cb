"""Fit the head that says whether an answer depends on when it is asked: `python -m tools.train_volatile`.

A logistic regression over hashed words and parts of words (`cache.planning.volatile`). It is fitted to the texts in
`volatile/*.toml` and, as texts that are not volatile, to the wordings of the families of questions but for those that a
fit without their family finds volatile. Of a volatile text with several sentences the one that looks most volatile is
fitted, of others all. The thresholds are chosen on the texts by fits that have not seen their line: from `threshold`
on, `_BARRED` of the lines that are not volatile lie; below `doubt`, `_PASSED` of the volatile ones.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from cache.planning.volatile import ARTEFACT, FACT, TOKEN, facts_of, pairs_of, sentences_of, token
from gateway.cli.flags import add_json_flag
from gateway.parts.fit.curves import Flags, Floats
from gateway.parts.fit.flags import add_note_flag, add_seed_flag
from gateway.parts.fit.libraries import one_thread, require
from gateway.parts.fit.training.sheet import Remade, data_sheet, write_artefact
from gateway.report import OnProgress, Report, table
from tools import command
from tools.volatile_texts import SHIPPED, LabelledText, filled_texts, texts_of_families

_BITS: Final = 20
_FOLDS: Final = 5
_FILLINGS: Final = 8
_STRENGTH: Final = 5.0  # inverse of the L2 penalty
_OF_FAMILIES: Final = 0.1  # weight of a wording of a family, beside 1 of a line
_LOOKS_VOLATILE: Final = -1.0  # log-odds from which a wording of a family is left out
_ROUNDS: Final = 3
_BARRED: Final = 0.02  # share of lines that are not volatile with a score of `threshold` or more
_PASSED: Final = 0.10  # share of volatile lines with a score below `doubt`


class _Sentences:
    """The sentences of texts as a sparse matrix of hashed features: of those rows of the table that they have."""

    def __init__(self, texts: Sequence[LabelledText]) -> None:
        from scipy.sparse import csr_matrix

        rows, columns, values, owner = list[int](), list[int](), list[float](), list[int]()
        for number, labelled in enumerate(texts):
            sentences, count = sentences_of(labelled.text)
            for sentence in sentences:
                of, worth = sentence_rows(labelled.text, sentence, count, _BITS)
                rows += [len(owner)] * len(of)
                columns += of
                values += worth
                owner.append(number)
        self._seen, places = np.unique(columns, return_inverse=True)
        self.matrix = csr_matrix((values, (rows, places)), shape=(len(owner), len(self._seen)), dtype=np.float32)
        self.owner: NDArray[np.intp] = np.array(owner)

    def table(self, weights: Floats) -> Floats:
        """Return the whole table of weights, with 0 for what no sentence has."""
        whole = np.zeros(1 << _BITS)
        whole[self._seen] = weights
        return whole

    def highest(self, scores: Floats, count: int) -> Floats:
        """Return the highest score among each text's sentences."""
        best = np.full(count, -np.inf)
        np.maximum.at(best, self.owner, scores)
        return best


def sentence_rows(text: str, sentence: str, count: int, bits: int) -> tuple[list[int], list[float]]:
    """Return the rows of a sentence's features and the value of each, as the head weighs them."""
    tokens = [token(word, bits) for word in TOKEN.findall(sentence)]
    scale = max(1.0, sum(piece.size for piece in tokens)) ** -0.5
    pairs = pairs_of([piece.form for piece in tokens if piece.form], bits)
    facts = facts_of(text, sentence, count, bits)
    rows = [row for piece in tokens for row in piece.rows] + pairs + facts
    values = [scale * value for piece in tokens for value in piece.values] + [scale] * len(pairs) + [FACT] * len(facts)
    return rows, values


def train_volatile(out: Path, seed: int, remade: Remade, on_progress: OnProgress) -> dict[str, Any]:
    """Fit the head, write the artefact to the folder `out` and return the figures of its data sheet.

    Raises DataError, LibraryMissing, OSError.
    """
    require("sklearn", "fitting needs scikit-learn")
    own = filled_texts(SHIPPED, _FILLINGS, seed, around=True)
    others = texts_of_families(seed, _OF_FAMILIES)
    texts = [*own, *others]
    sentences = _Sentences(texts)
    weight = np.array([text.weight for text in texts])
    fold = np.array([crc32(text.origin.encode()) % _FOLDS for text in texts])
    volatile = np.array([text.is_volatile for text in texts])
    with one_thread():
        scores = _left_out(sentences, volatile, weight, fold, on_progress, 0)
        family = np.arange(len(texts)) >= len(own)
        dropped = family & (scores >= _LOOKS_VOLATILE)
        weight[dropped] = 0.0
        scores = _left_out(sentences, volatile, weight, fold, on_progress, _FOLDS)
        table_, bias = _fit(sentences, volatile, weight)
    on_progress("fitting", 2 * _FOLDS + 1, 2 * _FOLDS + 1)
    doubt, threshold = chosen_thresholds(scores[~family], volatile[~family], weight[~family])
    rounded, scale = _as_integers(sentences.table(table_))
    figures = {
        "lines_left_out": _shares(
            scores[~family], doubt, threshold, volatile[~family], [text.language for text in own]
        ),
        "families_left_out": {
            "barred": round(float((scores[family] >= threshold).mean()), 4),
            "in_doubt": round(float(((scores[family] >= doubt) & (scores[family] < threshold)).mean()), 4),
            "n": int(family.sum()),
        },
    }
    facts = {
        "licence": "Apache-2.0: all texts were written for this project",
        "languages": sorted({text.language for text in own}),
        "trained_on": [{"file": f"{SHIPPED.name}/{path.name}", "sha256": _sha256(path)} for path in _files()],
        "texts": {
            "lines": len({text.origin for text in own}), "filled": len(own), "of_families": len(others),
            "of_families_left_out_as_volatile": int(dropped.sum()),
        },
    }  # fmt: skip
    data = _packed(rounded)
    sheet = {
        **data_sheet("log-odds that the answer to a text depends on when it is asked", facts, remade),
        "sha256": hashlib.sha256(data).hexdigest(),
        "bits": _BITS,
        "scale": scale,
        "bias": bias,
        "threshold": threshold,
        "doubt": doubt,
        "figures": figures,
    }
    write_artefact(out, {"volatile.safetensors": data}, "volatile.json", sheet)
    return sheet


def _left_out(
    sentences: _Sentences, volatile: Flags, weight: Floats, fold: NDArray[np.intp], on_progress: OnProgress, done: int
) -> Floats:
    """Return the score of each text by a fit that has not seen its line or family."""
    scores = np.zeros(len(volatile))
    for number in range(_FOLDS):
        out = fold == number
        table_, bias = _fit(sentences, volatile, np.where(out, 0.0, weight))
        scores[out] = sentences.highest(sentences.matrix @ table_ + bias, len(volatile))[out]
        on_progress("fitting", done + number + 1, 2 * _FOLDS + 1)
    return scores


def _fit(sentences: _Sentences, volatile: Flags, weight: Floats) -> tuple[Floats, float]:
    """Return the weight of each feature, and the bias."""
    from sklearn.linear_model import LogisticRegression

    owner = sentences.owner
    last = np.r_[owner[1:] != owner[:-1], True]
    fitted = (weight[owner] > 0) & (~volatile[owner] | last)
    model = LogisticRegression(C=_STRENGTH, max_iter=300, warm_start=True)
    for _ in range(_ROUNDS):
        model.fit(sentences.matrix[fitted], volatile[owner][fitted], sample_weight=weight[owner][fitted])
        scores = model.decision_function(sentences.matrix)
        best = scores >= sentences.highest(scores, len(volatile))[owner]
        chosen = (weight[owner] > 0) & (~volatile[owner] | best)
        if (chosen == fitted).all():
            break
        fitted = chosen
    return model.coef_[0].astype(np.float64), float(model.intercept_[0])


def chosen_thresholds(scores: Floats, volatile: Flags, weight: Floats) -> tuple[float, float]:
    """Return the score below which `_PASSED` of the volatile texts lie, and the one above which `_BARRED` of the others
    do, by their weights: the first is no higher than the second.
    """
    threshold = _quantile(scores[~volatile], weight[~volatile], 1 - _BARRED)
    return min(threshold, _quantile(scores[volatile], weight[volatile], _PASSED)), threshold


def _quantile(scores: Floats, weight: Floats, share: float) -> float:
    """Return the least score up to which this share of the weight lies."""
    order = np.argsort(scores)
    below = np.cumsum(weight[order])
    return float(scores[order][np.searchsorted(below, share * below[-1])])


def _shares(
    scores: Floats, doubt: float, threshold: float, volatile: Flags, languages: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return by language the share of volatile texts that is kept, of others that is barred, and of both in doubt."""
    spoken = np.array(languages)
    barred, doubtful = scores >= threshold, (scores >= doubt) & (scores < threshold)
    return {
        name: {
            "kept": round(float((scores < doubt)[volatile & at].mean()), 4),
            "volatile_in_doubt": round(float(doubtful[volatile & at].mean()), 4),
            "barred": round(float(barred[~volatile & at].mean()), 4),
            "others_in_doubt": round(float(doubtful[~volatile & at].mean()), 4),
        }
        for name in ("all", *sorted(set(languages)))
        if (at := np.ones(len(spoken), bool) if name == "all" else spoken == name).any()
    }


def _as_integers(weights: Floats) -> tuple[NDArray[np.int16], float]:
    """Return the weights as int16, and by what to multiply them."""
    scale = float(np.abs(weights).max()) / 32_767
    return np.round(weights / scale).astype("<i2"), scale


def _packed(weights: NDArray[np.int16]) -> bytes:
    from safetensors.numpy import save

    return bytes(save({"weights": weights}))


def _files() -> list[Path]:
    return sorted(SHIPPED.glob("*.toml"))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(argv: Sequence[str] | None = None) -> int:
    """Train the head, write it and print how it does on lines that were left out."""
    parser = command.parser("train_volatile")
    parser.add_argument("--out", type=Path, default=ARTEFACT, metavar="DIR")
    add_note_flag(parser)
    add_seed_flag(parser)
    add_json_flag(parser, "a table")

    def work(args: argparse.Namespace, on_progress: OnProgress) -> Report:
        remade = Remade((*parser.prog.split(), "--seed", str(args.seed)), tuple(args.note or ()))
        sheet = train_volatile(args.out, args.seed, remade, on_progress)
        made = table("language", "volatile: kept", "in doubt", "not volatile: barred", "in doubt")
        for name, shares in sheet["figures"]["lines_left_out"].items():
            made.add_row(name, *(f"{share:.1%}" for share in shares.values()))
        families = sheet["figures"]["families_left_out"]
        done = [
            f"of the families' wordings {families['barred']:.1%} are barred, {families['in_doubt']:.1%} in doubt",
            f"written to {args.out}, version {sheet['sha256'][:12]}, from {sheet['doubt']:.3f} on in doubt, "
            f"from {sheet['threshold']:.3f} on barred",
        ]
        return Report(sheet, [made], title="lines left out, each by a fit without it", done=done)

    return command.run(parser, work, argv)


if __name__ == "__main__":
    sys.exit(main())
