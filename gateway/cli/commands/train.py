"""Run `tierline train [confidence | cache | cross-encoder | cosine-weight]`: fit the classifier or another model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from cache.semantic.cross_encoder import CrossEncoderError
from cache.semantic.verifier import VerifierError
from gateway.cli.commands import CommandError
from gateway.cli.commands._flags import (
    Subparsers,
    add_command,
    add_json_flag,
    add_seed_flag,
    add_state_flag,
    share_number,
    whole,
)
from gateway.exit_codes import Exit
from gateway.fit.datasets import DataError, read_answers, read_labelled
from gateway.fit.embedding import Remembered
from gateway.fit.libraries import LibraryMissing
from gateway.fit.training.answer_heads import fit_head, save_head, table_of_parts
from gateway.fit.training.difficulty import Recipe, save, table_of_apgr, train
from gateway.fit.training.sheet import Remade, data_sheet, trained_on
from gateway.progress import OnProgress, progress
from gateway.report import NONE, Report, show, table
from routing.difficulty.model import SHEET_FILE, ArtefactError, DifficultyModel, version_in
from routing.embedding.embedder import EmbedderUnavailable, load_embedder
from routing.features import features_of_text
from tools.choose_cosine_weight import choose_weights
from tools.question_families import SHIPPED, read_families
from tools.train_cross_encoder import (
    CrossEncoderInputs,
    CrossEncoderRecipe,
    table_of_served,
    train_cross_encoder,
)
from tools.train_verifier import table_of_shares, train_verifier

_USAGE = """tierline train --data FILE... --out DIR [options]
       tierline train confidence --data FILE... --model NAME --out FILE [options]
       tierline train cache --data FILE... --out DIR [options]
       tierline train cross-encoder --data FILE... --out DIR [options]
       tierline train cosine-weight --cross-encoder DIR [options]"""

_EXAMPLES = """examples:
  tierline train --data mmlu.jsonl.gz gsm8k.jsonl.gz --out my-classifier
                              two files, for each file's worst and best model
  tierline train --data mine.jsonl --out my-classifier --small llama-3b --large gpt-4o
                              for two named models
  tierline train --data mine.jsonl --out my-classifier --small llama-3b --middle llama-70b --large gpt-4o
                              for three tiers
  tierline train --data mmlu.jsonl.gz --out my-classifier --embedding minilm --small-accuracy 0.3
                              for a small model that is right on 30% of such prompts
  tierline train --data mine.jsonl mmlu.jsonl.gz --out my-classifier --kind chat=mine --small-accuracy 0.3 chat=0.5
                              with your own traffic as chat

A row is a line of JSON: {"id", "dataset", "group", "prompt", "models": {name: {"correct": 0..1}}}, as `tierline
collect` writes them; `"kind"` may say which kind of request it is: choices, maths, chat, code, tools or a name of your
own (--kind names it for a whole data set). Each kind gets heads of its own. A NAME may be a class of models, `A+B`: it
is as right as they are on average. Labels of chat are compared by rank within their data set. To use the result, set
`classifier:` in the config to the folder. The command prints APGR by cross-validation, which `tierline eval route`
explains and gives with intervals: 0.5 is random routing; `groups` routes by the data's own groups, which a real request
does not have."""

_CONFIDENCE = """examples:
  tierline train confidence --data mine.jsonl.gz --model smollm2-135m-instruct --out heads/smollm2.json
                              fit to all labelled answers of the model
  tierline train confidence --data mine.jsonl.gz --model llama3.2:3b --out llama.json --calibration 200
                              fit to 200 of them
  tierline train confidence --data mine.jsonl.gz --model llama3.2:3b --out llama.json --classifier my-classifier
                              judge by the prompt as well as by the answer

Rows are lines of JSON as `tierline collect` writes them: {"id", "dataset", "group", "prompt", "models": {name:
{"correct": 0..1, "logprobs": [...], "top_logprobs"?, "finish_reason"?}}}. With only `confidence`, the mean
log-probability, the head judges whole answers only; with only `agreement` (0..1), second samples. With 100 to 200
labels the head turns log-probabilities into probabilities and keeps their order; with more it may also improve the
order. The command prints figures by 5-fold cross-validation, for whole answers and for the first tokens of a stream.
AUROC is the probability that a right answer gets a higher confidence than a wrong one.

The head judges the answer alone, unless --classifier names a difficulty classifier: then its estimate for the prompt is
weighed in (`prior` in the artefact) by as much as lowers the loss on held-out answers, and not at all where that may be
chance. Name the one that the gateway uses: the weight holds for its estimates only."""

_CACHE = """examples:
  tierline train cache --data pairs.jsonl.gz --out artefacts/static
                              for the static encoder
  tierline train cache --data pairs.jsonl.gz --check others.jsonl.gz --embedding minilm --out artefacts/minilm
                              for the MiniLM encoder, also tested on another file

A row is a line of JSON: {"a", "b", "same_answer", "dataset", "group"}; `same_answer` says whether the answer to
question `a` may be given to question `b`. Generated pairs (a question rephrased, or with one detail changed) are added.
The command prints which share of the pairs is served at the strict threshold, by fits that have not seen the pair's
group or topic, and for --check files nothing of their data set. The strict threshold is the lowest one at which at most
2% of the pairs with different answers and similar vectors are served, in each data set. The table of word vectors is
written beside the folder, and all artefacts there share it."""

_CROSS_ENCODER = """examples:
  tierline train cross-encoder --data semanticmemo.jsonl.gz checklist_qqp.jsonl.gz --out mine
                              two files and the families of questions that come with Tierline
  tierline train cross-encoder --data pairs.jsonl --families my-families --pairs 200000 --epochs 3 --out mine
                              your own families: *.toml files, as in tools/families
  tierline train cross-encoder --data pairs.jsonl --check near-misses.jsonl --out better --start mine
                              go on from an earlier run, and set the threshold by your own near-misses besides

A row is a line of JSON: {"a", "b", "same_answer", "dataset", "group"}, as for `tierline train cache`. Of an epoch's
pairs about 50% come from families, 25% are made by rule from the questions of --data, the rest are those of --data.
Whole families, groups and topics are left out; the printed shares are theirs. The strict threshold is the lowest
score at which at most 1% of the near-misses of the families left out and of --check are served, after the vetoes on
negation and word order. The folder is what `cross_encoder:` of the config names. On two CPU cores 100,000 pairs take
15 to 30 minutes; a run that was stopped goes on when the same command is given again. This needs torch: pip install
torch==2.13.0, then pip install 'tierline[export,minilm,train]'."""

_COSINE_WEIGHT = """examples:
  tierline train cosine-weight --cross-encoder mine
                              after `tierline train cross-encoder`, or for the same model with other families
  tierline train cosine-weight --cross-encoder mine --embedding static
                              for one encoder of questions; with the other the cosine has no weight then

A cross-encoder is surer than it should be of questions unlike those that it was trained on, and the cosine tells some
of those apart. The weight changes nothing of what is served without labels. Above the strict threshold, where labels of
audits move a surface's threshold, it ranks. It is chosen on questions of the families that are left out of training,
each with those nearest to it, by AUROC above that threshold. The data sheet in the folder gets it, for each encoder."""

_FAILURES = (ArtefactError, CrossEncoderError, DataError, LibraryMissing, EmbedderUnavailable, VerifierError, OSError)
_WIDTH = 120


def add_parser(subparsers: Subparsers) -> None:
    """Add `train` and its subcommands to the command line."""
    parser = add_command(
        subparsers,
        "train",
        "train the difficulty classifier, a confidence head, or the cache's models",
        "Train the difficulty classifier on labelled prompts, and measure it by cross-validation.",
        _EXAMPLES,
        _USAGE,
    )
    parser.add_argument(
        "--data", type=Path, nargs="+", metavar="FILE", help="labelled prompts: JSON lines, plain or .gz; required"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder to write the classifier to; required")
    _add_embedding_flag(parser)
    first = "of several names, the first that a file has"
    parser.add_argument(
        "--small",
        nargs="+",
        default=[],
        metavar="NAME",
        help=f"the model of the small tier; {first} (default: the file's worst model)",
    )
    parser.add_argument(
        "--middle",
        nargs="+",
        action="append",
        default=[],
        metavar="NAME",
        help=f"the model of a tier in between; {first}; repeat for each such tier, cheapest first (default: none)",
    )
    parser.add_argument(
        "--large",
        nargs="+",
        default=[],
        metavar="NAME",
        help=f"the model of the large tier; {first} (default: the file's best model)",
    )
    parser.add_argument(
        "--small-accuracy",
        type=_accuracy,
        nargs="+",
        default=[],
        metavar="[KIND=]SHARE",
        help="share of such prompts that your own cheap tier answers right, if it is not the labels' small model; of "
        "one kind, or of those that no other SHARE names",
    )
    parser.add_argument(
        "--kind",
        type=_kind,
        nargs="+",
        default=[],
        metavar="KIND=DATASET[,DATASET]",
        help="the kind of request of a data set's prompts, such as chat=mine, where its rows do not say "
        "(default: that of the public data sets, else each data set is a kind of its own)",
    )
    parser.add_argument(
        "--bare-questions",
        action="store_true",
        help="also train on multiple-choice prompts without their choices, as people ask them",
    )
    add_seed_flag(parser)
    add_state_flag(parser)
    _add_note_flag(parser)
    # Not `required`: argparse would then require --data and --out before a subcommand too.
    parser.set_defaults(train=_difficulty, refuse=parser.error, json=False)
    others = parser.add_subparsers(title="other models to train", prog="tierline train")
    _add_confidence(others)
    _add_cache(others)
    _add_cross_encoder(others)
    _add_cosine_weight(others)


def _add_confidence(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "confidence",
        "train the confidence head of a backend's model",
        "Train the head that estimates how likely an answer of a backend's model is right, and measure it.",
        _CONFIDENCE,
    )
    parser.add_argument(
        "--data", type=Path, nargs="+", required=True, metavar="FILE", help="labelled rows: JSON lines, plain or .gz"
    )
    parser.add_argument(
        "--model", required=True, metavar="NAME", help="the model whose answers to use: a name under `models` of a row"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the JSON file to write the head to")
    parser.add_argument(
        "--calibration", type=whole(20), metavar="N", help="fit to N random labels, at least 20 (default: all)"
    )
    parser.add_argument(
        "--classifier", type=Path, metavar="DIR", help="also weigh in this classifier's estimate for the prompt"
    )
    _add_embedding_flag(parser)
    add_state_flag(parser)
    add_seed_flag(parser)
    _add_note_flag(parser)
    add_json_flag(parser, "a table")
    parser.set_defaults(train=_confidence)


def _add_cache(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "cache",
        "train the semantic cache's verifier",
        "Train the verifier of the semantic cache, which estimates whether the answer to one question may "
        "be given to another.",
        _CACHE,
    )
    parser.add_argument(
        "--data", type=Path, nargs="+", required=True, metavar="FILE", help="labelled pairs: JSON lines, plain or .gz"
    )
    parser.add_argument(
        "--check", type=Path, nargs="+", default=[], metavar="FILE", help="labelled pairs used only to test the result"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write the verifier to")
    _add_embedding_flag(parser)
    add_seed_flag(parser)
    add_state_flag(parser)
    _add_note_flag(parser)
    add_json_flag(parser, "a table")
    parser.set_defaults(train=_cache)


def _add_cross_encoder(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "cross-encoder",
        "train the semantic cache's cross-encoder",
        "Train the cross-encoder of the semantic cache, which reads two questions together and estimates whether the "
        "answer to one may be given to the other.",
        _CROSS_ENCODER,
    )
    parser.add_argument(
        "--data", type=Path, nargs="+", required=True, metavar="FILE", help="labelled pairs: JSON lines, plain or .gz"
    )
    parser.add_argument(
        "--families", type=Path, default=SHIPPED, metavar="DIR", help="families of questions (default: those shipped)"
    )
    parser.add_argument(
        "--check",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="labelled pairs used only to set the threshold",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write the model to")
    parser.add_argument("--start", type=Path, metavar="DIR", help="the folder of an earlier run to go on from")
    parser.add_argument("--average", action="store_true", help="write the mean of the new weights and those of --start")
    parser.add_argument(
        "--pairs", type=whole(64), default=100_000, metavar="N", help="pairs an epoch (default: 100000)"
    )
    parser.add_argument(
        "--epochs", type=whole(1), default=2, metavar="N", help="number of epochs, each of new pairs (default: 2)"
    )
    parser.add_argument(
        "--layers",
        type=whole(1, 6),
        default=6,
        metavar="N",
        help="how many of the base model's six layers (default: 6)",
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
    _add_note_flag(parser)
    add_json_flag(parser, "a table")
    parser.set_defaults(train=_cross_encoder)


def _add_embedding_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--embedding", choices=("static", "minilm"), default="static", help="the text encoder (default: static)"
    )


def _add_note_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--note", action="append", default=[], metavar="TEXT", help="a remark for the data sheet; repeatable"
    )


def _accuracy(text: str) -> tuple[str, float]:
    """Parse `0.2` or `chat=0.2` into a kind, empty for none, and a share."""
    kind, _, share = text.rpartition("=")
    return kind, share_number(share)


def _kind(text: str) -> tuple[str, tuple[str, ...]]:
    """Parse `chat=mine,yours` into a kind and its data sets. Raises argparse.ArgumentTypeError."""
    kind, _, datasets = text.partition("=")
    names = tuple(filter(None, datasets.split(",")))
    if not kind or not names:
        raise argparse.ArgumentTypeError(f"{text!r} is not a kind and its data sets, such as chat=mine")
    return kind, names


def run(args: argparse.Namespace) -> int:
    """Train the chosen model, write the artefact and print its quality. Raises CommandError."""
    # The subcommands' parsers ask for these themselves; that of `train` cannot, as the subcommands would inherit it.
    missing = [flag for flag, value in (("--data", args.data), ("--out", args.out)) if value is None]
    if missing and args.train is _difficulty:
        args.refuse(f"the following arguments are required: {', '.join(missing)}")
    try:
        with progress() as on_progress:
            report: Report = args.train(args, on_progress)
    except _FAILURES as error:
        raise CommandError(str(error)) from None
    show(report, as_json=args.json)
    return Exit.OK


def _difficulty(args: argparse.Namespace, on_progress: OnProgress) -> Report:
    accuracy: dict[str, float] = dict(args.small_accuracy)
    kinds = {dataset: kind for kind, datasets in args.kind for dataset in datasets}
    recipe = Recipe(seed=args.seed, small_accuracy=accuracy, bare_questions=args.bare_questions, kinds=kinds)
    data = read_labelled(args.data, args.small, args.large, args.middle)
    trained = train(data.examples, load_embedder(args.embedding, args.state), recipe, on_progress)
    tiers = ("small", *(["middle"] * len(args.middle)), "large")
    what = f"difficulty: {' and '.join(f'P({tier} model right)' for tier in tiers)} of a prompt, by kind of task"
    command = ["--embedding", args.embedding, "--seed", str(args.seed)]
    for role, ladders in (("small", [args.small]), ("middle", args.middle), ("large", [args.large])):
        for names in filter(None, ladders):
            command += [f"--{role}", *names]
    if accuracy:
        command += [
            "--small-accuracy",
            *(f"{kind}={share}" if kind else str(share) for kind, share in accuracy.items()),
        ]
    if args.kind:
        command += ["--kind", *(f"{kind}={','.join(datasets)}" for kind, datasets in args.kind)]
    if args.bare_questions:
        command.append("--bare-questions")
    facts = {"trained_on": data.sources, "small_accuracy": accuracy}
    digest = save(trained, args.out, data_sheet(what, facts, _remade(args, (), command)))
    done = [f"written to {args.out}, version {digest[:12]}"]
    title = f"APGR, {trained.metrics['folds']}-fold"
    return Report({}, [table_of_apgr(trained.metrics)], title=title, done=done, width=_WIDTH)


def _confidence(args: argparse.Namespace, on_progress: OnProgress) -> Report:
    answered, sources = read_answers(args.data, args.model)
    if args.calibration:
        if args.calibration > len(answered):
            raise DataError(f"--calibration asks for {args.calibration} labels, but there are {len(answered)}")
        chosen = np.random.default_rng(args.seed).permutation(len(answered))[: args.calibration]
        answered = [answered[row] for row in np.sort(chosen).tolist()]
    priors = _priors(args, [prompt for prompt, _ in answered], on_progress)
    head = fit_head([answer for _, answer in answered], args.model, args.seed, on_progress, priors)
    what = f"confidence: P(an answer of {args.model} is right), from the evidence it leaves"
    calibration = ("--calibration", str(args.calibration)) if args.calibration else ()
    facts: dict[str, Any] = {"trained_on": sources, "labels": len(answered)}
    notes: list[str] = []
    prior: tuple[str, ...] = ()
    lines: list[str | Text | Table] = [table_of_parts(head.metrics)]
    if args.classifier is not None:
        prior = ("--classifier", args.classifier.name, "--embedding", args.embedding)
        facts["classifier"] = version_in(args.classifier)
        weight = head.numbers["prior"]["weight"]
        lines.append(f"weight of the classifier's estimate for the prompt: {weight:g}" + _why_none(weight))
        for file in trained_on(args.classifier / SHEET_FILE) & {source["sha256"] for source in sources}:
            name = next(source["file"] for source in sources if source["sha256"] == file)
            notes.append(f"the classifier was fitted on {name}: its estimates are better there than on new prompts")
    after = ("--seed", str(args.seed), *calibration, *prior)
    remade = _remade(args, ("confidence",), after, ("--model", args.model))
    digest = save_head(head, args.out, data_sheet(what, facts, remade))
    values = {"model": args.model, "version": digest[:12], "prior": head.numbers["prior"], **facts, **head.metrics}
    done = [f"written to {args.out}, version {digest[:12]}"]
    title = f"{head.metrics['folds']}-fold"
    return Report(values, lines, notes=notes, title=title, done=done, width=_WIDTH)


def _priors(args: argparse.Namespace, prompts: Sequence[str], on_progress: OnProgress) -> list[float | None] | None:
    """Return --classifier's P(the first tier is right) of each prompt, None where it abstains; None without one."""
    if args.classifier is None:
        return None
    embedder = load_embedder(args.embedding, args.state)
    classifier = DifficultyModel.load(args.classifier, embedder)
    vectors = Remembered(embedder, on_progress).embed(prompts)
    judged = [
        classifier.assess(vector, features_of_text(prompt)) for prompt, vector in zip(prompts, vectors, strict=True)
    ]
    return [difficulty.p_right[0] if difficulty.in_domain else None for difficulty in judged]


def _add_cosine_weight(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "cosine-weight",
        "choose the weight of the cosine beside a cross-encoder",
        "Choose how much the cosine of two questions' vectors counts beside the score of a cross-encoder.",
        _COSINE_WEIGHT,
    )
    parser.add_argument(
        "--cross-encoder", type=Path, required=True, metavar="DIR", help="its folder; the sheet.json there is changed"
    )
    parser.add_argument(
        "--families", type=Path, default=SHIPPED, metavar="DIR", help="families of questions (default: those shipped)"
    )
    parser.add_argument(
        "--embedding",
        nargs="+",
        choices=("static", "minilm"),
        default=["static", "minilm"],
        help="encoders to choose a weight for (default: both)",
    )
    add_state_flag(parser)
    add_json_flag(parser, "a table")
    parser.set_defaults(train=_cosine_weight)


def _why_none(weight: float) -> str:
    return "" if weight else ", because on held-out answers it adds no more than chance would"


def _cache(args: argparse.Namespace, on_progress: OnProgress) -> Report:
    embedder = load_embedder(args.embedding, args.state)
    check = ("--check", *(path.name for path in args.check)) if args.check else ()
    remade = _remade(args, ("cache",), ("--embedding", args.embedding, "--seed", str(args.seed)), check)
    fitted, digest = train_verifier(args.data, args.check, args.out, embedder, args.seed, remade, on_progress)
    values = {"version": digest[:12], "strict": fitted.strict, **fitted.figures}
    done = [f"written to {args.out}, version {digest[:12]}, strict threshold {fitted.strict:.4f}"]
    title = "served at the strict threshold, of pairs left out"
    return Report(values, [table_of_shares(fitted)], title=title, done=done, width=_WIDTH)


def _cross_encoder(args: argparse.Namespace, on_progress: OnProgress) -> Report:
    recipe = CrossEncoderRecipe(args.pairs, args.epochs, args.layers, args.learning_rate, args.seed, args.device)
    command = ["--families", args.families.name]
    if args.check:
        command += ["--check", *(path.name for path in args.check)]
    if args.start:
        command += ["--start", args.start.name, *(["--average"] if args.average else [])]
    for flag in ("pairs", "epochs", "layers", "learning-rate", "seed"):
        command += [f"--{flag}", str(getattr(args, flag.replace("-", "_")))]
    remade = _remade(args, ("cross-encoder",), command)
    inputs = CrossEncoderInputs(args.data, args.families, args.check, args.start, args.average)
    fit, digest = train_cross_encoder(inputs, recipe, args.out, remade, on_progress)
    values = {"version": digest[:12], "strict": fit.strict, **fit.figures}
    done = [f"written to {args.out}, version {digest[:12]}, strict threshold {fit.strict:.4f}"]
    return Report(values, [table_of_served(fit)], title="served at the strict threshold", done=done, width=_WIDTH)


def _cosine_weight(args: argparse.Namespace, on_progress: OnProgress) -> Report:
    embedders = [load_embedder(kind, args.state) for kind in args.embedding]
    encoders = {embedder.name: embedder.embed for embedder in embedders}
    chosen = choose_weights(args.cross_encoder, read_families(args.families), encoders, on_progress)
    shown = table("encoder", "weight", "AUROC", "without it", "same", "different")
    for name, one in chosen.items():
        figures = (NONE if value is None else f"{value:.3f}" for value in (one.auroc, one.auroc_alone))
        shown.add_row(name, f"{one.weight:g}", *figures, f"{one.same:,}", f"{one.different:,}")
    values = {name: asdict(one) for name, one in chosen.items()}
    return Report(values, [shown], title="pairs above the strict threshold", done=[f"written to {args.cross_encoder}"])


def _remade(
    args: argparse.Namespace, subcommand: Sequence[str], after: Sequence[str], before: Sequence[str] = ()
) -> Remade:
    """Return the command that makes the artefact again; without --note, which has no effect on it.

    `before` and `after` are further options, before and after --out.
    """
    files = (path.name for path in args.data)
    words = ("tierline", "train", *subcommand, "--data", *files, *before, "--out", args.out.name, *after)
    return Remade(words, tuple(args.note))
