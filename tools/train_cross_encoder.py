"""Train `gateway.parts.encoders.cross_encoder`'s model: an encoder that reads a pair of questions and says one logit.

    pairs -> fine-tuning (torch), some runs and their mean -> thresholds on parts left out -> ONNX graph -> int8

torch and transformers are needed for the fine-tuning alone; they come with the `export` extra. A run that was stopped
goes on from its last checkpoint when the same command is given again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from cache.text.languages import ENGLISH
from gateway.cli.flags import add_json_flag, whole
from gateway.parts.encoders.cross_encoder import SHEET
from gateway.parts.fit.datasets import DataError, file_digest
from gateway.parts.fit.flags import add_seed_flag, share_number
from gateway.parts.fit.libraries import require
from gateway.parts.fit.training.sheet import Remade, data_sheet
from gateway.report import WIDE, OnProgress, Report
from routing.embedder import read_tokenizer
from tools import command
from tools.cross_encoder_artefact import (
    INSTALL,
    MOST_TOKENS,
    TOKENIZER,
    CrossEncoderFit,
    finish,
    pair_encoder,
    save_encoder,
    table_of_served,
)
from tools.cross_encoder_data import PairSource, pair_counts, parted
from tools.fine_tuning import WEIGHTS, Training, add_device_flag, bert_of, chosen_device, half_precision, weights_of
from tools.package_texts import read_texts
from tools.question_families import add_families_flag, read_families
from tools.question_pairs import read_questions
from tools.translated_pairs import TranslatedPairs, chosen

if TYPE_CHECKING:
    import torch

CHECKPOINT = "checkpoint.pt"
"""Where a run stands, in the folder that it writes; removed at its end."""
_RUN = "run-{}.safetensors"
"""Weights of a run that has ended; removed when their mean is written."""
_CHUNK = 20_000  # pairs that are drawn, and sorted by length, together
_DROPOUT = 0.12
_SMOOTHING = 0.06
_OF_WORDS = 0.4  # rate of the word vectors, of that of all else
_STEP = 8  # tokens
_SEEDS_APART = 1_000_000
_FACTS = "base.json"
"""Data sheet of a base of `multilingual_base`."""


@dataclass(frozen=True, slots=True)
class CrossEncoderRecipe:
    """How to train: `pairs` of each of so many `runs`, in batches of so many `tokens`."""

    pairs: int
    runs: int
    tokens: int
    learning_rate: float
    seed: int
    device: str
    checked: int
    """Pairs of the families left out, of each language, that set its threshold."""


@dataclass(frozen=True, slots=True)
class CrossEncoderInputs:
    """Files to train on (`data`, the folder `families`, `texts` of `package_texts`), files that only set the threshold
    (`check`), and the folder to start from: of `multilingual_base`, or of an earlier run.
    """

    data: Sequence[Path]
    families: Path
    check: Sequence[Path]
    texts: Path | None
    start: Path


class _Packed(NamedTuple):
    """Tokenised pairs: their tokens in one row, how many each has, how many of them are the first text's, labels."""

    ids: NDArray[np.int32]
    lengths: NDArray[np.int64]
    firsts: NDArray[np.int64]
    same: NDArray[np.float32]


def train_cross_encoder(
    inputs: CrossEncoderInputs, recipe: CrossEncoderRecipe, out: Path, remade: Remade, on_progress: OnProgress
) -> tuple[CrossEncoderFit, str]:
    """Train on the labelled pairs, the families and the texts, and write the model to the folder `out`.

    Return the model and its SHA-256. Raises DataError, LibraryMissing, EmbedderUnavailable, OSError.
    """
    for library in ("torch", "transformers", "onnx", "onnxruntime"):
        require(library, f"training a cross-encoder needs {library}", install=INSTALL)
    labelled, near = (
        [pair for path in paths for pair in read_questions(path)] for paths in (inputs.data, inputs.check)
    )
    if both := {pair.dataset for pair in near} & {pair.dataset for pair in labelled}:
        raise DataError(f"{', '.join(sorted(both))}: given by --data and by --check; remove it from one of them")
    start, tokenizer = inputs.start / WEIGHTS, inputs.start / TOKENIZER
    if not start.is_file():
        raise DataError(f"{start}: not there; --start takes a folder of tools.multilingual_base or of this command")
    texts = _translated(inputs.texts, tokenizer, on_progress)
    source, left_out = parted(labelled, read_families(inputs.families), recipe.checked, texts)
    weights = fine_tune(source, load_file(start), tokenizer, recipe, out, on_progress)
    save_file(weights, out / WEIGHTS)
    fit = finish(weights, tokenizer, [*left_out, *near], {pair.dataset for pair in near}, on_progress)
    facts = {
        "base": json.loads((inputs.start / _FACTS).read_bytes()) if (inputs.start / _FACTS).is_file() else None,
        "trained_on": [
            *({"file": path.name, "sha256": file_digest(path)} for path in inputs.data),
            {"families": [path.name for path in sorted(inputs.families.glob("*.toml"))], "used": len(source.families)},
            *({"texts": path.name, "sha256": file_digest(path)} for path in (inputs.texts,) if path),
        ],
        "checked_by": [{"file": path.name, "sha256": file_digest(path)} for path in inputs.check],
        "went_on_from": _command_of(inputs.start / SHEET),
        "pairs": {"runs": recipe.runs, "each": recipe.pairs, "of": pair_counts(source.epoch(_CHUNK, 0))},
        "left_out": "one in eight of the families; of the groups, or where they are few of the clusters of paraphrases",
    }
    what = "P(the answer to one question serves another), by reading both together"
    digest = save_encoder(fit, tokenizer, out, data_sheet(what, facts, remade))
    for number in range(recipe.runs):
        (out / _RUN.format(number)).unlink(missing_ok=True)
    return fit, digest


def _translated(path: Path | None, tokenizer: Path, on_progress: OnProgress) -> TranslatedPairs | None:
    if path is None:
        return None
    on_progress("texts", 0, 1)
    texts = [text for text in chosen(read_texts(path)) if text.language != ENGLISH]
    made = TranslatedPairs(texts, read_tokenizer(tokenizer))
    on_progress("texts", 1, 1)
    return made


def _command_of(sheet: Path) -> str | None:
    return json.loads(sheet.read_bytes())["command"] if sheet.is_file() else None


def fine_tune(
    source: PairSource,
    start: Mapping[str, NDArray[np.float32]],
    tokenizer: Path,
    recipe: CrossEncoderRecipe,
    folder: Path,
    on_progress: OnProgress,
) -> dict[str, NDArray[np.float32]]:
    """Return the mean of the weights after `recipe.runs` runs from the same `start`, each on pairs of its own.

    Checkpoints are kept in `folder`. Raises LibraryMissing, OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    runs = []
    for number in range(recipe.runs):
        done = folder / _RUN.format(number)
        if not done.is_file():
            save_file(_one_run(source, start, tokenizer, recipe, number, folder, on_progress), done)
            (folder / CHECKPOINT).unlink(missing_ok=True)
        runs.append(load_file(done))
    return {name: np.mean([run[name] for run in runs], axis=0, dtype=np.float32) for name in runs[0]}


def _one_run(
    source: PairSource,
    start: Mapping[str, NDArray[np.float32]],
    tokenizer: Path,
    recipe: CrossEncoderRecipe,
    number: int,
    folder: Path,
    on_progress: OnProgress,
) -> dict[str, NDArray[np.float32]]:
    import torch

    device = chosen_device(recipe.device)
    seed = recipe.seed + number
    torch.manual_seed(seed)
    model = bert_of(start, _DROPOUT).to(device)
    rates = recipe.learning_rate, _OF_WORDS * recipe.learning_rate
    training = Training(model, rates, folder / CHECKPOINT, {**asdict(recipe), "run": number})
    sizes = [min(_CHUNK, recipe.pairs - at) for at in range(0, recipe.pairs, _CHUNK)]
    seen = sum(sizes[: training.done])
    for chunk, packed in enumerate(_packed(source, tokenizer, sizes, seed, training.done), training.done):
        for rows in _batches(packed, recipe.tokens, np.random.default_rng((seed, chunk))):
            inputs, same = _tensors(packed, rows, device)
            with half_precision(device):
                logits = model(**inputs).logits[:, 0]
            wanted = same * (1 - _SMOOTHING) + _SMOOTHING / 2
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), wanted)
            training.step(loss, seen / recipe.pairs)
            seen += len(rows)
            on_progress("training", number * recipe.pairs + seen, recipe.runs * recipe.pairs)
        seen = sum(sizes[: chunk + 1])
        training.keep(chunk + 1)
    return weights_of(model)


_SHARED: dict[str, Any] = {}
"""What the processes that draw pairs have of the one that began them."""


def _packed(source: PairSource, tokenizer: Path, sizes: Sequence[int], seed: int, done: int) -> Iterator[_Packed]:
    """Yield the chunks of pairs after `done` of them, drawn by processes of their own, as a GPU is faster than one."""
    _SHARED.update(source=source, encode=pair_encoder(tokenizer))
    work = [(size, seed * _SEEDS_APART + number) for number, size in enumerate(sizes)][done:]
    with multiprocessing.get_context("fork").Pool(max(1, (os.cpu_count() or 1) - 1)) as pool:
        yield from pool.imap(_chunk, work)


def _chunk(work: tuple[int, int]) -> _Packed:
    """Return a chunk of so many pairs, drawn by a seed; pairs too long to be read whole are left out."""
    pairs = _SHARED["source"].epoch(*work)
    read = [
        (code, pair) for code, pair in zip(_SHARED["encode"](pairs), pairs, strict=True) if len(code.ids) < MOST_TOKENS
    ]
    return _Packed(
        np.concatenate([np.array(encoding.ids, np.int32) for encoding, _ in read]),
        np.array([len(encoding.ids) for encoding, _ in read]),
        np.array([encoding.type_ids.index(1) for encoding, _ in read]),
        np.array([pair.same_answer for _, pair in read], np.float32),
    )


def _batches(packed: _Packed, tokens: int, rng: np.random.Generator) -> list[NDArray[np.intp]]:
    """Return the rows of batches of about so many tokens, of pairs of similar length, in random order."""
    order = np.argsort(packed.lengths + rng.random(len(packed.lengths)))
    batches: list[NDArray[np.intp]] = []
    end = len(order)
    while end > 0:  # from the longest pair on, which says how many fit
        begin = max(0, end - max(1, tokens // _width(int(packed.lengths[order[end - 1]]))))
        batches.append(order[begin:end])
        end = begin
    return [batches[number] for number in rng.permutation(len(batches))]


def _width(tokens: int) -> int:
    """Return the number of columns for so many tokens: few widths, because torch prepares its kernels for each."""
    return -(-tokens // _STEP) * _STEP


def _tensors(packed: _Packed, rows: NDArray[np.intp], device: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    import torch

    starts = (np.cumsum(packed.lengths) - packed.lengths)[rows, None]
    columns = np.arange(_width(int(packed.lengths[rows].max())))[None, :]
    mask = columns < packed.lengths[rows, None]
    values = {
        "input_ids": np.where(mask, packed.ids[np.minimum(starts + columns, len(packed.ids) - 1)], 0).astype(np.int64),
        "attention_mask": mask.astype(np.int64),
        "token_type_ids": (mask & (columns >= packed.firsts[rows, None])).astype(np.int64),
    }
    inputs = {name: torch.from_numpy(value).to(device) for name, value in values.items()}
    return inputs, torch.from_numpy(packed.same[rows]).to(device)


def main(argv: Sequence[str] | None = None) -> int:
    """Train the cross-encoder, write it and print what it serves at its threshold."""
    parser = command.parser("train_cross_encoder")
    command.add_training_flags(parser, "set the threshold", "the model", required=False)
    add_families_flag(parser)
    parser.add_argument("--parallel", type=Path, metavar="FILE")
    parser.add_argument("--start", type=Path, required=True, metavar="DIR")
    for flag, least, default, what in (
        ("--pairs", 64, 4_000_000, "pairs of a run"),
        ("--runs", 1, 2, "runs, each on other pairs; the result is the mean of their weights"),
        ("--batch-tokens", 64, 65_536, "tokens of a batch"),
        ("--checked", 100, 2_500, "pairs of the families left out, of each language, that set its threshold"),
    ):
        parser.add_argument(
            flag, type=whole(least, None), default=default, metavar="N", help=f"{what} (default: {default})"
        )
    parser.add_argument("--learning-rate", type=share_number, default=2.2e-4, metavar="RATE")
    add_device_flag(parser)
    add_seed_flag(parser)
    add_json_flag(parser, "a table")

    def work(args: argparse.Namespace, on_progress: OnProgress) -> Report:
        recipe = CrossEncoderRecipe(
            args.pairs, args.runs, args.batch_tokens, args.learning_rate, args.seed, args.device, args.checked
        )
        options = ["--families", args.families.name, "--start", args.start.name]
        options += ["--parallel", args.parallel.name] if args.parallel else []
        for flag in ("pairs", "runs", "batch-tokens", "checked", "learning-rate", "seed"):
            options += [f"--{flag}", str(getattr(args, flag.replace("-", "_")))]
        inputs = CrossEncoderInputs(args.data, args.families, args.check, args.parallel, args.start)
        remade = command.remade(parser, args, *options)
        fit, digest = train_cross_encoder(inputs, recipe, args.out, remade, on_progress)
        values = {"version": digest[:12], "strict": fit.strict, **fit.figures}
        done = [f"written to {args.out}, version {digest[:12]}, strict threshold {fit.strict:.4f}"]
        return Report(
            values, [table_of_served(fit.figures)], title="served at the strict threshold", done=done, width=WIDE
        )

    return command.run(parser, work, argv)


if __name__ == "__main__":
    sys.exit(main())
