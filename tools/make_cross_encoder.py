"""Make the semantic cache's cross-encoder from data to artefact, with one command.

    texts     translations in Debian's packages, and WordNet's definitions          (tools.package_texts)
    base      MiniLM with a vocabulary of many languages, aligned on the texts       (tools.multilingual_base)
    train     fine-tuning on pairs, thresholds by language, 8 bits, a data sheet     (tools.train_cross_encoder)
    answers   from which score two statements of answers say the same                (tools.choose_answer_thresholds)
    cosine    what the cosine of the vectors counts beside it                        (tools.choose_cosine_weight)

What is done is not done again: a step runs again where its options, its data or a step before it have changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

from gateway.cli.flags import add_json_flag
from gateway.encoders import load_embedder
from gateway.parts.encoders.cross_encoder import SHEET
from gateway.parts.fit.datasets import file_digest
from gateway.parts.fit.flags import add_seed_flag, add_state_flag
from gateway.parts.fit.training.sheet import Remade
from gateway.report import WIDE, OnProgress, Report
from tools import command
from tools.choose_answer_thresholds import choose_thresholds
from tools.choose_cosine_weight import choose_weights
from tools.cross_encoder_artefact import MODEL, table_of_served
from tools.fine_tuning import WEIGHTS, add_device_flag
from tools.multilingual_base import BaseRecipe, make_base
from tools.package_texts import Texts, collect, download, packages_of, write_texts
from tools.question_families import add_families_flag, read_families
from tools.train_cross_encoder import CrossEncoderInputs, CrossEncoderRecipe, train_cross_encoder

_STEPS = "steps"


@dataclass(frozen=True, slots=True)
class MakingSize:
    """Sizes of the data, the model and the training runs; the defaults make the shipped cross-encoder."""

    packages: tuple[str, ...] = ("",)
    """How the names of the packages begin that are used."""
    texts: int | None = None
    """Texts of each language and source; None for all."""
    pieces: int = 62_000
    layers: int = 6
    steps: int = 2_000
    batch: int = 1_024
    pairs: int = 4_000_000
    runs: int = 2
    learning_rate: float = 2.2e-4
    tokens: int = 65_536
    checked: int = 2_500
    answers: int = 6_000
    encoders: tuple[Literal["static", "minilm"], ...] = ("static", "minilm")


FULL = MakingSize()
"""As the model that ships was made, but for texts that no package carries."""
SMALL = MakingSize(
    packages=("libreoffice-l10n", "wordnet"), texts=300, pieces=30_000, layers=2, steps=24, batch=64, pairs=2_400,
    tokens=4_096, checked=120, answers=2_400, encoders=("static",),
)  # fmt: skip
"""Minutes on two CPU cores: it proves the chain, and the model is worth nothing."""


class DoneOnce:
    """Runs steps one after the other, and skips those that are done."""

    def __init__(self, folder: Path) -> None:
        """Take the folder that says which steps are done."""
        self.skipped: list[str] = []
        self._folder = folder
        self._key = ""

    def run(self, name: str, made_with: Any, work: Callable[[], object], *made: Path) -> None:
        """Do the work, unless it was done with the same, after the same steps, and what it `made` is still there."""
        self._key = hashlib.sha256(json.dumps([self._key, name, made_with]).encode()).hexdigest()
        done = self._folder / f"{name}.done"
        if done.is_file() and done.read_text() == self._key and all(path.exists() for path in made):
            self.skipped.append(name)
            return
        done.unlink(missing_ok=True)
        work()
        self._folder.mkdir(parents=True, exist_ok=True)
        done.write_text(self._key)


def make_cross_encoder(args: argparse.Namespace, remade: Remade, on_progress: OnProgress) -> DoneOnce:
    """Make what is missing in the folder `args.out`. Raises what the steps raise."""
    size = SMALL if args.small else FULL
    folder, out = args.out / _STEPS, args.out
    texts, base = args.texts or folder / "texts.tsv", folder / "base"
    families = read_families(args.families)
    languages = sorted({family.language for family in families})
    steps = DoneOnce(folder)
    if args.texts is None:
        names = [name for name in packages_of(languages) if name.startswith(size.packages)]
        packages = args.packages or folder / "packages"
        steps.run(
            "texts", [names, size.texts], lambda: _collect(names, size.texts, packages, texts, on_progress), texts
        )
    recipe = BaseRecipe(size.pieces, size.layers, size.steps, size.batch, args.seed, args.device)
    made_with = [file_digest(texts), _without_device(recipe)]
    steps.run("base", made_with, lambda: make_base(texts, recipe, base, on_progress), base / WEIGHTS)
    inputs = CrossEncoderInputs(args.data, args.families, args.check, texts, base)
    pairs = CrossEncoderRecipe(
        size.pairs, size.runs, size.tokens, size.learning_rate, args.seed, args.device, size.checked
    )
    read = [file_digest(path) for path in (*args.data, *args.check, *sorted(args.families.rglob("*.toml")))]
    steps.run(
        "train",
        [read, _without_device(pairs)],
        lambda: train_cross_encoder(inputs, pairs, out, remade, on_progress),
        out / MODEL,
        out / SHEET,
    )
    steps.run("answers", size.answers, lambda: choose_thresholds(out, families, size.answers, on_progress))

    def choose_cosine_weights() -> None:
        embedders = [load_embedder(kind, args.state) for kind in size.encoders]
        choose_weights(out, families, {embedder.name: embedder.embed for embedder in embedders}, on_progress)

    steps.run("cosine", size.encoders, choose_cosine_weights)
    return steps


def _without_device(recipe: BaseRecipe | CrossEncoderRecipe) -> dict[str, Any]:
    return {name: value for name, value in asdict(recipe).items() if name != "device"}


def _collect(names: Sequence[str], most: int | None, packages: Path, texts: Path, on_progress: OnProgress) -> None:
    download(names, packages, on_progress)
    found: Texts = {}
    for language, rows in collect(packages, on_progress).items():
        by_source: dict[str, list[tuple[str, str, str]]] = {}
        for row in sorted(rows):
            by_source.setdefault(row[0], []).append(row)
        rng = Random(0)  # noqa: S311  (no secret)
        found[language] = {
            row for own in by_source.values() for row in (own if most is None else rng.sample(own, min(len(own), most)))
        }
    write_texts(found, texts)


def main(argv: Sequence[str] | None = None) -> int:
    """Make the cross-encoder and print what it serves of the parts left out."""
    parser = command.parser("make_cross_encoder")
    command.add_training_flags(parser, "set the threshold", "the model", required=False)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--texts", type=Path, metavar="FILE")
    parser.add_argument("--packages", type=Path, metavar="DIR")
    add_families_flag(parser)
    add_device_flag(parser)
    add_seed_flag(parser)
    add_state_flag(parser)
    add_json_flag(parser, "a table")

    def work(args: argparse.Namespace, on_progress: OnProgress) -> Report:
        options = ["--small"] if args.small else []
        options += ["--texts", args.texts.name] if args.texts else []
        options += ["--families", args.families.name, "--seed", str(args.seed)]
        steps = make_cross_encoder(args, command.remade(parser, args, *options), on_progress)
        sheet = json.loads((args.out / SHEET).read_bytes())
        done = [f"written to {args.out}, version {sheet['version']}; {', '.join(sheet['languages'])}"]
        done += [f"{', '.join(steps.skipped)}: done before"] if steps.skipped else []
        shown = table_of_served(sheet["figures"], groups=False)
        return Report(sheet, [shown], title="served at the strict threshold", done=done, width=WIDE)

    return command.run(parser, work, argv)


if __name__ == "__main__":
    sys.exit(main())
