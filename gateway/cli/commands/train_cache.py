"""Run `tierline train cache`: fit the semantic cache's verifier to question pairs labelled with `same_answer`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from cache.semantic.verifier import WORDS, Verifier, VerifierError, VerifierWords
from cache.text.thesaurus import KIND, SYNONYM
from gateway.cli.commands import CommandError
from gateway.cli.commands._flags import seed_number
from gateway.cli.commands._output import console_of_stdout
from gateway.exit_codes import Exit
from offline.progress import progress
from offline.training.pairs import PairError, prepared, read_pairs
from offline.training.perturb import PerturbedPair
from offline.training.verifier import CacheTrainingUnavailable, Fitted, fit, save, save_words, tabulated
from routing.embedding.embedder import Embedder, EmbedderUnavailable, load_embedder
from routing.embedding.static import StaticEmbedder

_EXAMPLES = """examples:
  tierline train cache --data pairs.jsonl.gz --out artefacts/static
                              for the static encoder
  tierline train cache --data pairs.jsonl.gz --check others.jsonl.gz --embedding minilm --out artefacts/minilm
                              for the MiniLM encoder, also tested on another file

A row is a line of JSON: {"a", "b", "same_answer", "dataset", "group"}; `same_answer` says whether the answer to
question `a` may be given to question `b`. Generated pairs (a question rephrased, or with one detail changed) are added.
The command prints which share of the pairs is served at the strict threshold, by fits that have not seen the pair's
group or topic, and for --check files nothing of their data set. The strict threshold is the lowest one at which at most
2% of the pairs with different answers and similar vectors are served, in each data set. The table of word vectors is
written
beside the folder, and all artefacts there share it."""

_BATCH = 64
_SEEN = {"left_out": "not this part", "checked": "nothing of it"}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `cache` to the subcommands of `tierline train`."""
    parser = subparsers.add_parser(
        "cache",
        help="train the semantic cache's verifier",
        description="Train the verifier of the semantic cache, which estimates whether the answer to one question may "
        "be given to another.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--data", type=Path, nargs="+", required=True, metavar="FILE", help="labelled pairs: JSON lines, plain or .gz"
    )
    parser.add_argument(
        "--check", type=Path, nargs="+", default=[], metavar="FILE", help="labelled pairs used only to test the result"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write the verifier to")
    parser.add_argument(
        "--embedding", choices=("static", "minilm"), default="static", help="the text encoder (default: static)"
    )
    parser.add_argument(
        "--seed", type=seed_number, default=0, metavar="N", help="random seed; the result depends on it (default: 0)"
    )
    parser.add_argument(
        "--state", type=Path, default=Path(".state"), metavar="DIR", help="the folder of the text encoder's files"
    )
    parser.add_argument(
        "--note", action="append", default=[], metavar="TEXT", help="a remark for the data sheet; repeatable"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    try:
        fitted, digest = _trained(args)
    except (PairError, EmbedderUnavailable, CacheTrainingUnavailable, VerifierError, OSError) as error:
        raise CommandError(str(error)) from None
    if args.json:
        out = {"version": digest[:12], "strict": fitted.strict, **fitted.figures}
        sys.stdout.write(json.dumps(out) + "\n")
        return Exit.OK
    _print(fitted)
    sys.stdout.write(f"written to {args.out}, version {digest[:12]}, strict threshold {fitted.strict:.4f}\n")
    return Exit.OK


def _trained(args: argparse.Namespace) -> tuple[Fitted, str]:
    static = StaticEmbedder.load()
    embedder: Embedder = static if args.embedding == "static" else load_embedder(args.embedding, args.state)
    labelled, checked = ([pair for path in paths for pair in read_pairs(path)] for paths in (args.data, args.check))
    names = {pair.dataset for pair in checked}
    if both := names & {pair.dataset for pair in labelled}:
        raise PairError(f"{', '.join(sorted(both))}: given by --data and by --check; remove it from one of them")
    pairs = prepared(labelled, checked, static.embed, args.seed)
    words_path = args.out.parent / WORDS
    words = _words(static)
    save_words(words, static.embed(words), words_path)
    table = VerifierWords.load(words_path)
    with progress() as on_progress:
        rows = tabulated(pairs, _cosines(pairs, embedder), table, names)
        fitted = fit(rows, args.seed, on_progress)
    digest = save(fitted, args.out, _sheet(args, labelled, pairs, embedder.name))
    Verifier.load(args.out)
    return fitted, digest


def _words(static: StaticEmbedder) -> list[str]:
    """Return the words of the table: the encoder's vocabulary, then the thesaurus's other words."""
    own = static.vocabulary()
    return [*own, *sorted({*SYNONYM, *KIND} - {*own})]


def _cosines(pairs: Sequence[PerturbedPair], embedder: Embedder) -> list[float]:
    texts = sorted({text for pair in pairs for text in (pair.a, pair.b)}, key=len)
    place = {text: i for i, text in enumerate(texts)}
    # Texts are sorted by length, because a batch takes as long as its longest text.
    batches = [embedder.embed(texts[i : i + _BATCH]) for i in range(0, len(texts), _BATCH)]
    vectors: NDArray[np.float32] = np.concatenate(batches)
    return [float(vectors[place[pair.a]] @ vectors[place[pair.b]]) for pair in pairs]


def _sheet(
    args: argparse.Namespace, labelled: Sequence[PerturbedPair], pairs: Sequence[PerturbedPair], encoder: str
) -> dict[str, Any]:
    counts = {name: sum(pair.dataset == name for pair in pairs) for name in sorted({pair.dataset for pair in pairs})}
    return {
        "what": "P(the answer to one question serves another), from how alike they are and what differs between them",
        "encoder": encoder,
        "trained_on": [{"file": path.name} for path in args.data],
        "checked_by": [{"file": path.name} for path in args.check],
        "pairs": {"read": len(labelled), "used": counts},
        "trained_at": datetime.now(UTC).date().isoformat(),
        "tierline": version("tierline"),
        "scikit_learn": version("scikit-learn"),
        "command": shlex.join(_command(args)),
        "notes": args.note,
    }


def _command(args: argparse.Namespace) -> Iterator[str]:
    """Yield the words of the command that makes this artefact again."""
    yield from ("tierline", "train", "cache", "--data", *(path.name for path in args.data))
    if args.check:
        yield from ("--check", *(path.name for path in args.check))
    yield from ("--out", args.out.name)
    yield from ("--embedding", args.embedding, "--seed", str(args.seed))


def _print(fitted: Fitted) -> None:
    table = Table(title="served at the strict threshold, of pairs left out", title_justify="left", box=None)
    table.add_column("data set")
    table.add_column("seen")
    for heading in ("n", "same answer", "another answer"):
        table.add_column(heading, justify="right")
    for kind, by_dataset in fitted.figures.items():
        for name, figures in by_dataset.items():
            shares = ["-" if figures[key] is None else f"{figures[key]:.1%}" for key in ("served", "wrong")]
            table.add_row(name, _SEEN[kind], str(figures["n"]), *shares)
    console_of_stdout().print(table)
