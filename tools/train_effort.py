"""Fit the head that says how much work a request asks for: `python -m tools.train_effort`.

A logistic regression over hashed words and parts of words (`routing.difficulty.effort`), fitted to the prompts, the
frames and the lexicon in `effort/` whose two labels agree. The data sheet says how it ranks kinds that were left out
in all languages, and languages that were left out but for their words, each read by a head of the kind that serves.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.cli.flags import add_json_flag
from gateway.parts.fit.curves import Floats
from gateway.parts.fit.flags import add_note_flag, add_seed_flag
from gateway.parts.fit.libraries import one_thread, require
from gateway.parts.fit.training.sheet import Remade, data_sheet, write_artefact
from gateway.report import OnProgress, Report, table
from routing.difficulty.effort import (
    ARTEFACT,
    SHEET_FILE,
    WEIGHTS_FILE,
    EffortHead,
    is_unspaced,
    rows_of_text,
    rows_of_word,
    without_frames,
)
from routing.difficulty.text_statistics import tokenise
from tools import command
from tools.effort_texts import (
    FOLDER,
    LEFT_OUT,
    EffortPrompt,
    Frames,
    read_frames,
    read_lexicon,
    read_prompts,
    read_second,
)

_BITS: Final = 20
_STRENGTH: Final = 10.0  # inverse of the L2 penalty
_OF_LEXICON: Final = 0.3  # weight of a word of the lexicon, beside 1 of a prompt
_FRAMED: Final = 0.5  # weight of a prompt in a frame
_FEWEST: Final = 2  # texts that a row must occur in
_LEAST: Final = 3  # of 127: what weighs less is left out, so that rows of words not known are mostly empty
_FOLDS: Final = 8
_AS_LONG: Final = 1.25
"""Ratio of two prompts' lengths up to which they are compared."""

Rate = Callable[[str], "float | None"]


def matched_auroc(
    hard: Sequence[tuple[str, float]], trivial: Sequence[tuple[str, float]], as_long: float = _AS_LONG
) -> tuple[float, int]:
    """Return the share of pairs of about equal length whose hard prompt has the higher score, and how many there are.

    Equal scores count half; NaN where no two are of equal length.
    """
    pairs = [
        (high > low) + (high == low) / 2
        for text, high in hard
        for other, low in trivial
        if 1 / as_long <= len(text) / len(other) <= as_long
    ]
    return (sum(pairs) / len(pairs) if pairs else math.nan), len(pairs)


def auroc_by_language(prompts: Sequence[EffortPrompt], scores: Sequence[float]) -> dict[str, float]:
    """Return `matched_auroc` within each language."""
    found = {}
    for language in dict.fromkeys(prompt.language for prompt in prompts):
        own = [(p, s) for p, s in zip(prompts, scores, strict=True) if p.language == language]
        sides = [[(p.text, s) for p, s in own if p.is_hard is is_hard] for is_hard in (True, False)]
        found[language] = matched_auroc(sides[0], sides[1])[0]
    return found


def scored(rate: float | None) -> float:
    """Return a rating as a score to rank by: what is not known lies in the middle."""
    return 0.5 if rate is None else rate


class _Texts:
    """Texts as rows of hashed features, as the head weighs them, with labels and weights."""

    def __init__(
        self, texts: Iterable[tuple[str, bool, float]], nothing: frozenset[str], frames: Sequence[str]
    ) -> None:
        from scipy.sparse import csr_matrix

        stripped = without_frames(frames)
        rows, columns, values = list[int](), list[int](), list[float]()
        labels, weights = list[bool](), list[float]()
        for number, (text, is_hard, weight) in enumerate(texts):
            of, worth = _features(text, nothing, stripped)
            rows += [number] * len(of)
            columns += of
            values += worth
            labels.append(is_hard)
            weights.append(weight)
        shape = (len(labels), 1 << _BITS)
        matrix = csr_matrix((values, (rows, columns)), shape=shape, dtype=np.float64)
        self.kept = np.flatnonzero(np.bincount(matrix.indices, minlength=1 << _BITS) >= _FEWEST)
        self.matrix = matrix[:, self.kept]
        self.labels, self.weights = np.array(labels), np.array(weights)


def _features(text: str, nothing: frozenset[str], frames: Any) -> tuple[list[int], list[float]]:
    """Return the rows of a text and the value of each."""
    if is_unspaced(text):
        rows = rows_of_text(frames.sub("", text), _BITS).tolist()
        return rows, [1 / math.sqrt(max(1, len(rows)))] * len(rows)
    words = [word for word in map(bytes.decode, tokenise(text).words) if word not in nothing]
    rows, values = list[int](), list[float]()
    for word in words:
        own = rows_of_word(word, _BITS)
        rows += own
        values += [1.0, *[1 / math.sqrt(max(1, len(own) - 1))] * (len(own) - 1)]
    return rows, [value / math.sqrt(len(words)) for value in values]


def fitted_head(
    prompts: Sequence[EffortPrompt], lexicon: Sequence[EffortPrompt], frames: Mapping[str, Frames], seed: int
) -> tuple[EffortHead, NDArray[np.int8], float, float, dict[str, Any]]:
    """Return a head fitted to these prompts, with its table, scale, bias and the frames as its data sheet has them."""
    from sklearn.linear_model import LogisticRegression

    random = Random(seed)  # noqa: S311
    nothing = frozenset(word for own in frames.values() for word in (*own.words, *_words_around(own)))
    around = _pieces(frames)
    texts = [(prompt.text, prompt.is_hard, 1.0) for prompt in prompts]
    known = ((prompt, frames[prompt.language].fitted) for prompt in prompts if prompt.language in frames)
    texts += [(random.choice(own).replace("{}", prompt.text), prompt.is_hard, _FRAMED) for prompt, own in known if own]
    texts += [(word.text, word.is_hard, _OF_LEXICON) for word in lexicon]
    made = _Texts(texts, nothing, around)
    model = LogisticRegression(C=_STRENGTH, solver="liblinear", dual=True, max_iter=2000, class_weight="balanced")
    model.fit(made.matrix, made.labels, sample_weight=made.weights)
    weights = np.zeros(1 << _BITS)
    weights[made.kept] = model.coef_[0]
    scale = float(np.quantile(np.abs(model.coef_[0]), 0.9995)) / 127
    rounded = np.clip(np.round(weights / scale), -127, 127).astype(np.int8)
    rounded[np.abs(rounded) < _LEAST] = 0
    sheet = {"words": sorted(nothing), "frames": sorted(around)}
    bias = float(model.intercept_[0])
    return EffortHead(rounded, scale, bias, sheet), rounded, scale, bias, sheet


def _words_around(frames: Frames) -> Iterator[str]:
    """Yield the words of the frames that are seen in training."""
    for frame in frames.fitted:
        yield from map(bytes.decode, tokenise(frame.replace("{}", " ")).words)


def _pieces(frames: Mapping[str, Frames]) -> list[str]:
    """Return the texts around requests in scripts without spaces."""
    pieces = {
        piece.strip()
        for own in frames.values()
        for frame in own.fitted
        for piece in frame.split("{}")
        if is_unspaced(piece)
    }
    return sorted(pieces)


def _rate(head: EffortHead, text: str) -> float:
    return scored(head.rate(tokenise(text)))


def _left_out(
    prompts: Sequence[EffortPrompt],
    lexicon: Sequence[EffortPrompt],
    frames: Mapping[str, Frames],
    seed: int,
    on_progress: OnProgress,
) -> list[float]:
    """Return the rating of each prompt by a head that has seen no prompt of its kind, in any language."""
    fold = dict[tuple[bool, str], int]()
    for is_hard in (True, False):
        kinds = dict.fromkeys(prompt.kind for prompt in prompts if prompt.is_hard is is_hard)
        fold |= {(is_hard, kind): number % _FOLDS for number, kind in enumerate(kinds)}
    ratings = [0.5] * len(prompts)
    for number in range(_FOLDS):
        on_progress("leaving out kinds", number, _FOLDS + 1)
        inside = [prompt for prompt in prompts if fold[prompt.is_hard, prompt.kind] != number]
        head = fitted_head(inside, lexicon, frames, seed)[0]
        for at, prompt in enumerate(prompts):
            if fold[prompt.is_hard, prompt.kind] == number:
                ratings[at] = _rate(head, prompt.text)
    return ratings


def _levelled(ratings: Floats, labels: NDArray[np.bool_]) -> tuple[float, float]:
    """Return by what to multiply the logits of these ratings, and what to add, so that they are probabilities."""
    from sklearn.linear_model import LogisticRegression

    logits = np.log(ratings / (1 - ratings))
    model = LogisticRegression(C=1e6, class_weight="balanced").fit(logits[:, None], labels)
    return float(model.coef_[0, 0]), float(model.intercept_[0])


def train_effort(out: Path, seed: int, remade: Remade, on_progress: OnProgress) -> dict[str, Any]:
    """Fit the head, write the artefact to the folder `out` and return its data sheet.

    Raises DataError, LibraryMissing, OSError.
    """
    require("sklearn", "fitting needs scikit-learn")
    both, lexicon, frames = read_prompts(), list(read_lexicon()), read_frames()
    prompts = [prompt for prompt, second in zip(both, read_second(), strict=True) if prompt.is_hard is second]
    others = [prompt for prompt in prompts if prompt.language in LEFT_OUT]
    with one_thread():
        ratings = np.array(_left_out(prompts, lexicon, frames, seed, on_progress))
        without = fitted_head([prompt for prompt in prompts if prompt.language not in LEFT_OUT], lexicon, frames, seed)[
            0
        ]
        _, weights, scale, bias, listed = fitted_head(prompts, lexicon, frames, seed)
        steeper, more = _levelled(ratings, np.array([prompt.is_hard for prompt in prompts]))
    on_progress("fitting", _FOLDS + 1, _FOLDS + 1)
    figures = {
        "kinds_left_out": _rounded(auroc_by_language(prompts, ratings.tolist())),
        "languages_left_out": _rounded(auroc_by_language(others, [_rate(without, prompt.text) for prompt in others])),
        "length_alone": _rounded(auroc_by_language(prompts, [float(len(prompt.text)) for prompt in prompts])),
    }
    facts = {
        "licence": "Apache-2.0: all prompts were written for this project",
        "assumed": "hard and trivial are labels by written rules (tools/effort/README.md), measured on no model",
        "languages": sorted({prompt.language for prompt in prompts}),
        "trained_on": [
            {"file": str(path.relative_to(FOLDER.parent)), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for path in (*sorted((FOLDER / "prompts").glob("*.toml")), FOLDER / "frames.toml", FOLDER / "lexicon.toml")
        ],
        "labelled_twice": {"prompts": len(both), "agree": len(prompts)},
        "prompts": {"hard": sum(prompt.is_hard for prompt in prompts), "all": len(prompts), "words": len(lexicon)},
    }
    data = _packed(weights)
    sheet = {
        **data_sheet("how much work a request asks for, 0..1, by common sense", facts, remade),
        "sha256": hashlib.sha256(data).hexdigest(),
        "bits": _BITS,
        "scale": scale * steeper,
        "bias": bias * steeper + more,
        "figures": figures,
        **listed,
    }
    write_artefact(out, {WEIGHTS_FILE: data}, SHEET_FILE, sheet)
    return sheet


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    mean = sum(figures.values()) / len(figures)
    return {name: round(value, 4) for name, value in {"mean": mean, **figures}.items()}


def _packed(weights: NDArray[np.int8]) -> bytes:
    from safetensors.numpy import save

    return bytes(save({"weights": weights}))


def main(argv: Sequence[str] | None = None) -> int:
    """Train the head, write it and print how it ranks what was left out."""
    parser = command.parser("train_effort")
    parser.add_argument("--out", type=Path, default=ARTEFACT, metavar="DIR")
    add_note_flag(parser)
    add_seed_flag(parser)
    add_json_flag(parser, "a table")

    def work(args: argparse.Namespace, on_progress: OnProgress) -> Report:
        remade = Remade((*parser.prog.split(), "--seed", str(args.seed)), tuple(args.note or ()))
        sheet = train_effort(args.out, args.seed, remade, on_progress)
        figures = sheet["figures"]
        made = table("language", "kinds left out", "language left out", "length alone")
        for language in figures["length_alone"]:
            shown = (figures[name].get(language) for name in ("kinds_left_out", "languages_left_out", "length_alone"))
            made.add_row(language, *("" if value is None else f"{value:.3f}" for value in shown))
        twice = sheet["labelled_twice"]
        agree = f"labelled twice: {twice['agree']} of {twice['prompts']} prompts alike, the others are left out"
        done = [agree, f"written to {args.out}, version {sheet['sha256'][:12]}"]
        return Report(sheet, [made], title="hard over trivial, lengths matched: AUROC", done=done)

    return command.run(parser, work, argv)


if __name__ == "__main__":
    sys.exit(main())
