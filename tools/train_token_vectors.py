"""Fit the vectors that other languages than English are searched by: `python -m tools.train_token_vectors`.

A text is the sum of its tokens' vectors (see the part `encoders`). They begin as the cross-encoder's own word
vectors, rare words weighing more, in fewer dimensions. Then batches of pairs are drawn: two wordings of one intent of a
family in one language, or a text and its translation of `--texts` (what `tools.package_texts` writes). Each text must
be nearer to its other half than to the other texts of the batch (InfoNCE), by Adagrad with one rate for each token.
One family in six is left out, and measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from cache import shipped_cross_encoder
from gateway.cli.flags import add_json_flag, whole
from gateway.parts.encoders.token_vectors import SHEET, TABLE, sha256_of
from gateway.parts.encoders.unigram import UnigramTokenizer
from gateway.parts.fit.datasets import DataError
from gateway.parts.fit.flags import add_note_flag, add_seed_flag
from gateway.parts.fit.libraries import one_thread, require
from gateway.parts.fit.training.sheet import Remade, data_sheet, write_artefact
from gateway.report import OnProgress, Report, table
from tools import command
from tools.package_texts import read_texts
from tools.question_families import SHIPPED as FAMILIES
from tools.question_families import QuestionFamily, questions_of, read_families, same_wordings

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_DIMENSION: Final = 255
"""With the constant of all vectors 256, as many as the static vectors have."""
_SHARE: Final = 0.25
_BATCH: Final = 512
_RATE: Final = 0.02
_TEMPERATURE: Final = 0.06
_OF_TEXTS: Final = 0.5
_OF_AN_INTENT: Final = 8
_LEFT_OUT: Final = 6
_FREQUENT: Final = 1e-4
_NEAREST: Final = 5
_MOST_TEXTS: Final = 120_000
_SHORTEST: Final = 8
_LONGEST: Final = 200
_AMONG: Final = 12
"""Questions of each intent that a left-out wording is searched among."""

Pieces: TypeAlias = list[int]
Table: TypeAlias = NDArray[np.float32]
Pairs: TypeAlias = list[tuple[Pieces, Pieces, int]]
"""The pieces of two texts that want the same, and a number that is equal for pairs that do."""


class _Bags:
    """Texts as a sparse matrix of how often each has a token, over the tokens that occur (`rows` of the table)."""

    def __init__(self, texts: Sequence[Pieces]) -> None:
        from scipy.sparse import csr_matrix

        ends = np.cumsum([0, *map(len, texts)])
        every = np.concatenate([np.array(text, np.int64) for text in texts])
        self.rows, columns = np.unique(every, return_inverse=True)
        self.matrix: csr_matrix = csr_matrix(
            (np.ones(len(every), np.float32), columns, ends), shape=(len(texts), len(self.rows))
        )

    def vectors(self, vectors: Table) -> tuple[Table, Table]:
        """Return the texts' unit vectors and the norms that they had."""
        total = self.matrix @ vectors[self.rows]
        norms = np.maximum(1e-6, np.linalg.norm(total, axis=1, keepdims=True))
        return total / norms, norms


def fitted_vectors(
    vectors: Table, drawn: Sequence[Pairs], steps: int, rng: np.random.Generator, on_progress: OnProgress
) -> None:
    """Fit the table in place. Each step takes a batch of one of the lists, which are drawn alike."""
    seen = np.full(len(vectors), 1e-6, np.float32)
    for step in range(steps):
        pairs = drawn[int(rng.integers(len(drawn)))]
        chosen = [pairs[at] for at in rng.integers(len(pairs), size=min(_BATCH, len(pairs)))]
        bags = _Bags([text for text, _, _ in chosen] + [other for _, other, _ in chosen])
        unit, norms = bags.vectors(vectors)
        a, b = unit[: len(chosen)], unit[len(chosen) :]
        wants = np.array([want for _, _, want in chosen])
        near = a @ b.T / _TEMPERATURE
        near[(wants[:, None] == wants[None]) & ~np.eye(len(chosen), dtype=bool)] = -np.inf
        # The slope of both cross-entropies: each text's pick among the others', by row and by column.
        slope = sum(_softmax(near, axis) for axis in (0, 1)) - 2 * np.eye(len(chosen))
        slope = (slope / (2 * len(chosen) * _TEMPERATURE)).astype(np.float32)
        pulled = np.concatenate([slope @ b, slope.T @ a])
        pulled = (pulled - (pulled * unit).sum(axis=1, keepdims=True) * unit) / norms
        change = bags.matrix.T @ pulled
        seen[bags.rows] += (change**2).mean(axis=1)
        rate = _RATE * (1 - step / steps)
        vectors[bags.rows] -= rate * change / np.sqrt(seen[bags.rows])[:, None]
        on_progress("fitting", step + 1, steps)


def _softmax(near: Table, axis: int) -> Table:
    powers = np.exp(near - near.max(axis=axis, keepdims=True))
    shares: Table = powers / powers.sum(axis=axis, keepdims=True)
    return shares


def word_vectors(folder: Path) -> Table:
    """Return the word vectors of the cross-encoder in a folder, shape (tokens, hidden). Raises DataError."""
    require("onnx", "reading the cross-encoder's weights needs onnx")
    import onnx
    from onnx import numpy_helper

    model = onnx.load(folder / "model.onnx")
    kept = {tensor.name: tensor for tensor in model.graph.initializer if tensor.name.startswith("words")}
    if "words_quantized" not in kept:
        raise DataError(
            f"{folder}: the cross-encoder has no int8 word vectors; write it with tools.train_cross_encoder"
        )
    rows, scale, zero = (
        numpy_helper.to_array(kept[f"words_{part}"]).astype(np.float32) for part in ("quantized", "scale", "zero_point")
    )
    return (rows - zero) * scale


def first_vectors(words: Table, texts: Sequence[Pieces]) -> Table:
    """Return the table to begin with: word vectors, the rarer in `texts` the longer, along their main directions."""
    counts = np.ones(len(words))
    for text in texts:
        np.add.at(counts, text, 1)
    shares = counts / counts.sum()
    weighed = (words - words.mean(axis=0)) * (_FREQUENT / (_FREQUENT + shares)).astype(np.float32)[:, None]
    frequent = weighed[np.argsort(-counts)[:20_000]]
    directions = np.linalg.eigh(frequent.T @ frequent)[1][:, ::-1][:, :_DIMENSION]
    made = weighed @ directions
    first: Table = np.ascontiguousarray(made / np.linalg.norm(made, axis=1).mean(), np.float32)
    return first


def family_pairs_of(
    families: Sequence[QuestionFamily], tokenizer: UnigramTokenizer, count: int, rng: Random
) -> dict[str, Pairs]:
    """Return pairs of wordings of each intent that want the same, by language."""
    made: dict[str, Pairs] = {}
    for language, a, b, want in same_wordings(families, count, rng):
        pieces, other = tokenizer.pieces_of(a), tokenizer.pieces_of(b)
        if pieces and other:
            made.setdefault(language, []).append((pieces, other, crc32(want.encode())))
    return made


def found_among(vectors: Table, pairs: Pairs, others: Sequence[Pieces]) -> float:
    """Return the share of pairs of which fewer than five of `others` and the pairs' firsts are nearer to the second."""
    stored, _ = _Bags([text for text, _, _ in pairs] + list(others)).vectors(vectors)
    asked, _ = _Bags([other for _, other, _ in pairs]).vectors(vectors)
    near = asked @ stored.T
    own = near[np.arange(len(pairs)), np.arange(len(pairs))]
    return float(((near > own[:, None] + 1e-6).sum(axis=1) < _NEAREST).mean())


def refit(folder: Path, texts: Path | None, steps: int, seed: int, remade: Remade, on_progress: OnProgress) -> Any:
    """Fit the vectors, write them to the cross-encoder's folder and return their data sheet.

    Raises DataError, LibraryMissing, OSError.
    """
    require("sklearn", "fitting needs scikit-learn")
    tokenizer = UnigramTokenizer.of((folder / "tokenizer.json").read_bytes())
    if tokenizer is None:
        raise DataError(f"{folder / 'tokenizer.json'}: only a Unigram tokenizer is read in few words of memory")
    draw, every = Random(seed), read_families(FAMILIES)  # noqa: S311
    left_out = [family for family in every if crc32(family.name.encode()) % _LEFT_OUT == 0]
    families = [family for family in every if crc32(family.name.encode()) % _LEFT_OUT]
    asked = {
        language: [tokenizer.pieces_of(text) for text in dict.fromkeys(
            text for text, _ in questions_of([family for family in every if family.language == language], _AMONG, draw)
        )]
        for language in sorted({family.language for family in every})
    }  # fmt: skip
    pairs = family_pairs_of(families, tokenizer, _OF_AN_INTENT, draw)
    drawn = list(pairs.values())
    if texts is not None:
        found = sorted(row for of in read_texts(texts).values() for row in of if _SHORTEST < len(row[1]) < _LONGEST)
        found = draw.sample(found, min(len(found), _MOST_TEXTS))
        rows = [(tokenizer.pieces_of(english), tokenizer.pieces_of(text)) for _, english, text in found]
        translated = [(text, other, at) for at, (text, other) in enumerate(rows) if text and other]
        drawn += [translated] * max(1, round(len(drawn) * _OF_TEXTS / (1 - _OF_TEXTS)))
    with one_thread():
        vectors = first_vectors(word_vectors(folder), [text for of in asked.values() for text in of])
        fitted_vectors(vectors, drawn, steps, np.random.default_rng(seed), on_progress)
        held = family_pairs_of(left_out, tokenizer, 2, draw)
        figures = {
            language: {"n": len(of), "found": round(found_among(vectors, of, asked[language]), 4)}
            for language, of in sorted(held.items())
        }
    scale = float(np.quantile(np.abs(vectors), 0.99999)) / 127
    rounded = np.clip(np.rint(vectors / scale), -127, 127).astype(np.int8)
    np.save(folder / TABLE, rounded)
    facts = {
        "licence": "Apache-2.0: families written for this project, and the word vectors and texts of the cross-encoder",
        "languages": sorted(set(asked) - {"en"}),
        "trained_on": [f"{len(families)} families of tools/families", *([texts.name] if texts else ())],
        "steps": steps,
        "pairs_of_families": {language: len(of) for language, of in sorted(pairs.items())},
        "texts": 0 if texts is None else len(translated),
    }
    sheet = {
        **data_sheet("vectors of tokens: the sum of a text's finds other wordings of it", facts, remade),
        "sha256": sha256_of(folder / TABLE), "tokenizer": sha256_of(folder / "tokenizer.json"),
        "scale": scale, "share": _SHARE, "figures": {"families_left_out": figures},
    }  # fmt: skip
    write_artefact(folder, {}, SHEET, sheet)
    return sheet


def main(argv: Sequence[str] | None = None) -> int:
    """Fit the vectors and print how they find wordings of families that were left out."""
    parser = command.parser("train_token_vectors")
    parser.add_argument("--cross-encoder", type=Path, default=shipped_cross_encoder(), metavar="DIR")
    parser.add_argument("--texts", type=Path, metavar="FILE")
    parser.add_argument("--steps", type=whole(1), default=1200, metavar="N")
    add_note_flag(parser)
    add_seed_flag(parser)
    add_json_flag(parser, "a table")

    def work(args: argparse.Namespace, on_progress: OnProgress) -> Report:
        remade = Remade((*parser.prog.split(), "--steps", str(args.steps)), tuple(args.note or ()))
        sheet = refit(args.cross_encoder, args.texts, args.steps, args.seed, remade, on_progress)
        made = table("language", "pairs of families left out", "found among five")
        figures: Mapping[str, Any] = sheet["figures"]["families_left_out"]
        for language, figure in figures.items():
            made.add_row(language, f"{figure['n']:,}", f"{figure['found']:.1%}")
        return Report(sheet, [made], done=[f"written to {args.cross_encoder / TABLE}"])

    return command.run(parser, work, argv)


if __name__ == "__main__":
    sys.exit(main())
