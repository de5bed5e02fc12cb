"""Turn trained weights into what the part `encoders` loads: a graph in 8 bits, thresholds, a data sheet.

    weights -> calibration, one threshold, an offset for each language, all on parts left out -> ONNX graph -> int8

A sheet always says which languages and scripts the model reads: without that the cache gives it English alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from cache.text.languages import ENGLISH, language_of
from gateway.parts.encoders.cross_encoder import (
    FILES_VERSION,
    LANGUAGE_OFFSETS,
    READ_LANGUAGES,
    READ_SCRIPTS,
    SHEET,
    digests_of_files,
)
from gateway.parts.fit.curves import Flags, Floats
from gateway.parts.fit.datasets import DataError
from gateway.parts.fit.libraries import require
from gateway.parts.fit.training.logistic import fit_logistic
from gateway.report import NONE, OnProgress, table
from routing.embedder import read_tokenizer
from tools.cross_encoder_data import LANGUAGES, LEFT_OUT_FAMILIES, read_languages, refused
from tools.question_pairs import QuestionPair
from tools.served_shares import least_threshold, served_shares

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

MODEL = "model.onnx"
_IN_GRAPH = 1024
"""Bytes of the largest constant that stays in the graph's file."""
TOKENIZER = "tokenizer.json"
INSTALL = "run: pip install torch==2.13.0, then pip install 'tierline[export,minilm]'"
STRICT_ERROR = 0.005
"""Maximum share, of the near-misses checked against, that is served at the strict threshold."""
ENGLISH_ERROR = 0.01
"""The same for English, of which a hundred families are left out; of the other languages 5 to 25."""
MOST_TOKENS = 288
"""Tokens of a pair; longer ones are cut."""
_MOST_UNKNOWN = 0.25  # share of a language's pairs with a token that the tokenizer does not know
_POSITIONS = 512
_BATCH = 32
_STEP = 8  # tokens
_COMPARED = 1_000  # pairs on which 8 bits are compared with 32
_FEWEST = 100

Weights = Mapping[str, NDArray[np.float32]]
"""Weights in the names of BertForSequenceClassification."""


@dataclass(frozen=True, slots=True)
class CrossEncoderFit:
    """A finished model: its graph as bytes, the strict threshold, what is added to the logit of a pair by language, and
    the figures of the data sheet. `offsets` has every language that the model reads.
    """

    model: bytes
    strict: float
    offsets: Mapping[str, float]
    figures: dict[str, Any]


def finish(
    weights: Weights,
    tokenizer: Path,
    checked: Sequence[QuestionPair],
    strict_on: Collection[str],
    on_progress: OnProgress,
) -> CrossEncoderFit:
    """Return the model in 8 bits, calibrated, with its threshold for each language and its figures on pairs left out.

    The families left out, a data set for each language (`LEFT_OUT_FAMILIES`), say which languages it reads, and set its
    thresholds; so do the data sets named in `strict_on`. Raises LibraryMissing, DataError.
    """
    for library in ("onnx", "onnxruntime"):
        require(library, f"writing a cross-encoder needs {library}", install=INSTALL)
    same = np.array([pair.same_answer for pair in checked])
    part = np.array([pair.dataset for pair in checked])
    stated = [name for name in np.unique(part).tolist() if name.startswith(LEFT_OUT_FAMILIES)]
    parts = {name.removeprefix(LEFT_OUT_FAMILIES): part == name for name in stated}
    if not parts or same.all() or not same.any():
        raise DataError(
            "no family is left out to check against, or only pairs of one label: give more data or families"
        )
    encoded = pair_encoder(tokenizer)(checked)
    _require_readable(read_tokenizer(tokenizer), encoded, parts)
    raw = _logits(quantized(weights), encoded, on_progress)
    # Each part counts alike, whatever its number of pairs.
    scale, offset = _calibration(raw, same, part)
    calibrated = dict(weights)
    calibrated["classifier.weight"] = weights["classifier.weight"] * np.float32(scale)
    calibrated["classifier.bias"] = weights["classifier.bias"] * np.float32(scale) + np.float32(offset)
    model = quantized(calibrated)
    logits = _logits(model, encoded, on_progress)
    # What a guard refuses is served at no score.
    open_ = np.where([refused(pair.a, pair.b) for pair in checked], -1.0, _sigmoid(logits))
    setting = np.isin(part, sorted(strict_on)) | np.logical_or.reduce(list(parts.values()))
    strict = least_threshold(open_[setting], same[setting], STRICT_ERROR)
    offsets = {name: _offset(open_[rows], same[rows], strict, name == ENGLISH) for name, rows in parts.items()}
    added = np.array([min(offsets.get(language_of(text), 0.0) for text in (pair.a, pair.b)) for pair in checked])
    scores = _sigmoid(logits + added)
    served = (scores >= strict) & (open_ >= 0)
    some = np.sort(np.random.default_rng(0).choice(len(checked), min(len(checked), _COMPARED), replace=False))
    exact = _sigmoid(_logits(_graph(calibrated), [encoded[row] for row in some], on_progress) + added[some])
    groups = np.array([pair.group for pair in checked])
    figures = {
        "left_out": {
            name: _figures(served[rows], np.where(open_ < 0, -1.0, scores)[rows], same[rows], groups[rows])
            for name, rows in ((str(name), part == name) for name in np.unique(part))
        },
        "int8": {
            "pairs": len(some),
            "served": round(float(np.mean(scores[some] >= strict)), 4),
            "served_by_32_bits": round(float(np.mean(exact >= strict)), 4),
            "other_side_of_strict": round(float(np.mean((exact >= strict) != (scores[some] >= strict))), 4),
            "mean_difference": round(float(np.abs(exact - scores[some]).mean()), 4),
        },
    }
    return CrossEncoderFit(model, strict, offsets, figures)


def save_encoder(fit: CrossEncoderFit, tokenizer: Path, folder: Path, sheet: Mapping[str, Any]) -> str:
    """Write what `CrossEncoder.load` reads, and the data sheet beside it. Return the SHA-256 of the model.

    Raises DataError where the model would read no language, or one of which `languages.toml` names no script; OSError.
    """
    known = read_languages()
    if not fit.offsets or (missing := sorted(fit.offsets.keys() - known.keys())):
        what = f"{LANGUAGES.name} does not list {', '.join(missing)}" if fit.offsets else "no language is stated"
        raise DataError(f"{folder / SHEET}: {what}; without it the cache would give the model English alone")
    folder.mkdir(parents=True, exist_ok=True)
    digest = write_model(fit.model, folder / MODEL)
    config = {"model_type": "bert", "num_labels": 1, "max_position_embeddings": _POSITIONS, "base": "all-MiniLM-L6-v2"}
    stated = {
        "strict": fit.strict,
        READ_SCRIPTS: sorted({script for code in fit.offsets for script in known[code]["scripts"]}),
        READ_LANGUAGES: sorted(fit.offsets),
        LANGUAGE_OFFSETS: dict(sorted(fit.offsets.items())),
        "figures": fit.figures,
    }
    read = json.loads(tokenizer.read_text(encoding="utf-8")) | {"truncation": None, "padding": None}
    (folder / TOKENIZER).write_text(json.dumps(read, ensure_ascii=False), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    _, of_files = digests_of_files(folder, folder / MODEL)
    whole = {**sheet, "version": digest[:12], "sha256": digest, FILES_VERSION: of_files, **stated}
    (folder / SHEET).write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return digest


def _require_readable(tokenizer: Tokenizer, encoded: Sequence[Encoding], parts: Mapping[str, Flags]) -> None:
    """Raise DataError for languages that the tokenizer does not know: their pairs would be refused, or be one row of
    unknown tokens.
    """
    unknown = tokenizer.token_to_id("[UNK]")
    strange = np.array([unknown in encoding.ids for encoding in encoded])
    unread = [name for name, rows in parts.items() if strange[rows].mean() > _MOST_UNKNOWN]
    if unread:
        raise DataError(
            f"the tokenizer of --start does not know the signs of {', '.join(unread)}: start from what "
            "`python -m tools.multilingual_base` writes, or leave the families of these languages out"
        )


def _offset(scores: Floats, same: Flags, strict: float, english: bool) -> float:
    """Return what is added to the logits of a language, whose own threshold is that of its `scores`.

    Of few families little is learned: no threshold but that of English is below the one for all.
    """
    error = ENGLISH_ERROR if english else STRICT_ERROR
    own, common = (_logit(threshold) for threshold in (least_threshold(scores, same, error), strict))
    return math.floor(100 * (common - (own if english else max(common, own)))) / 100


def table_of_served(figures: Mapping[str, Any], groups: bool = True) -> Table:
    """Return the shares served at the strict threshold, for each part and group left out, of a data sheet's figures."""
    shown = table("left out", "group", "pairs", "served", "wrong", left=2)
    for name, of_part in figures["left_out"].items():
        for group, part in {"all": of_part, **(of_part.get("groups", {}) if groups else {})}.items():
            shown.add_row(
                name,
                group,
                f"{part['n']:,}",
                *(NONE if part[key] is None else f"{part[key]:.1%}" for key in ("served", "wrong")),
            )
    return shown


def _figures(served: Flags, scores: Floats, same: Flags, groups: NDArray[np.str_]) -> dict[str, Any]:
    values = served_shares(served, same, groups)
    if same.any():
        best = least_threshold(scores, same, 0.01)
        values["served_at_1pct_wrong"] = round(float((scores[same] >= best).mean()), 4)
    return values


def _calibration(logits: Floats, same: Flags, part: NDArray[np.str_]) -> tuple[float, float]:
    """Return the scale and offset of the logits at which they are log-odds where half of all pairs are the same."""
    taken: list[NDArray[np.intp]] = []
    parts = [np.flatnonzero(part == name) for name in np.unique(part)]
    size = min(max(1, int(min((rows_same := same[rows]).sum(), (~rows_same).sum()))) for rows in parts)
    rng = np.random.default_rng(0)
    for rows in parts:
        for label in (True, False):
            own = rows[same[rows] == label]
            taken.append(rng.choice(own, min(len(own), max(size, _FEWEST)), replace=False))
    chosen = np.concatenate(taken)
    scale, offset = fit_logistic(logits[chosen, None], same[chosen].astype(np.float64), 1.0)
    return float(max(scale, 1e-3)), float(offset)


def _sigmoid(logits: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-logits))


def _logit(score: float) -> float:
    bounded = min(score, 1.0 - 1e-12)
    return math.log(bounded / (1.0 - bounded))


def write_model(model: bytes, path: Path) -> str:
    """Write a graph, and its weights in a file beside it, which is mapped at load. Return the SHA-256 of both."""
    import onnx

    weights = path.with_name(f"{path.name}.data")
    weights.unlink(missing_ok=True)  # it would be appended to
    onnx.save_model(
        onnx.load_model_from_string(model),
        path,
        save_as_external_data=True,
        location=weights.name,
        size_threshold=_IN_GRAPH,
    )
    return hashlib.sha256(path.read_bytes() + weights.read_bytes()).hexdigest()


def _graph(weights: Weights) -> bytes:
    from gateway.parts.encoders.minilm_graph import build_pair_scorer

    return bytes(build_pair_scorer(weights).SerializeToString())


def quantized(weights: Weights) -> bytes:
    """Return the graph with 8-bit weights, one scale per output channel.

    They use seven of the bits: sums of products do not overflow then, and every CPU gets the same integers.
    """
    from onnx import TensorProto
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch, "float.onnx"), Path(scratch, MODEL)
        source.write_bytes(_graph(weights))
        # The quantizer cannot infer the type of what a fused operator returns.
        options = {"DefaultTensorType": TensorProto.FLOAT}
        quantize_dynamic(
            source, target, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8, extra_options=options
        )
        return target.read_bytes()


def _logits(model: bytes, encodings: Sequence[Encoding], on_progress: OnProgress) -> Floats:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    logits = np.zeros(len(encodings))
    order = np.argsort([len(encoding.ids) for encoding in encodings])
    for start in range(0, len(order), _BATCH):
        rows = order[start : start + _BATCH]
        inputs = padded([encodings[row] for row in rows])
        logits[rows] = session.run(["logits"], {name: value.astype(np.int32) for name, value in inputs.items()})[0][
            :, 0
        ]
        on_progress("checking", start + len(rows), len(order))
    return logits


def pair_encoder(tokenizer: Path) -> Callable[[Sequence[QuestionPair]], list[Encoding]]:
    """Return a function that tokenises pairs, at most MOST_TOKENS tokens each."""
    read = read_tokenizer(tokenizer)
    read.no_padding()
    read.enable_truncation(MOST_TOKENS)
    return lambda pairs: read.encode_batch([(pair.a, pair.b) for pair in pairs])


def padded(encodings: Sequence[Encoding]) -> dict[str, NDArray[np.int64]]:
    """Return the inputs of a batch, each of shape (pairs, tokens)."""
    # Few lengths, because torch prepares its kernels for each of them.
    longest = -(-max(len(encoding.ids) for encoding in encodings) // _STEP) * _STEP
    inputs = {
        name: np.zeros((len(encodings), longest), np.int64)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    for row, encoding in enumerate(encodings):
        inputs["input_ids"][row, : len(encoding.ids)] = encoding.ids
        inputs["attention_mask"][row, : len(encoding.ids)] = 1
        inputs["token_type_ids"][row, : len(encoding.ids)] = encoding.type_ids
    return inputs
