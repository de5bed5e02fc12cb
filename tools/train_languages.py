"""Fit the language detector of the semantic cache (see the part `encoders`): a linear model over groups of letters.

    texts -> windows of two to nine words -> hashed groups of letters -> softmax (torch) -> 8 bits

Needed so that a pair in a language that no model was made for is refused, and one in a language that it was made for is
not taken for English.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from cache.text.languages import ENGLISH
from gateway.cli.flags import add_json_flag
from gateway.parts.encoders.languages import BUCKETS, groups_of_letters
from gateway.parts.fit.datasets import DataError, file_digest
from gateway.parts.fit.flags import add_note_flag, add_seed_flag
from gateway.parts.fit.libraries import require
from gateway.parts.fit.training.sheet import Remade, data_sheet
from gateway.report import OnProgress, Report, table
from tools import command
from tools.package_texts import read_texts
from tools.question_families import SHIPPED, read_families

_SCRIPTS_ALONE = frozenset({"zh", "ja", "ko", "th", "el", "he", "hi"})
"""Languages that their script tells."""
_SLOT = re.compile(r"\{(\w+?)(?:_\d+)?\}")
_FEWEST = 1_500  # texts of a language
_WINDOWS = 25_000  # of a language
_IN_ENGLISH = 60_000
_SHARPNESS = 8.0
_EPOCHS, _BATCH, _RATE = 3, 4_096, 0.03
_HELD_OUT = 10  # one text of this many is only checked


def texts_by_language(path: Path, seed: int) -> dict[str, list[str]]:
    """Return texts by language: those of the file, its English, and the wordings of the families of questions."""
    found = {code: [text for _, _, text in rows] for code, rows in read_texts(path).items()}
    found[ENGLISH] = [english for rows in read_texts(path).values() for _, english, _ in rows]
    rng = Random(seed)  # noqa: S311  (no secret)
    for family in read_families(SHIPPED):
        for ask in (ask for intent in family.intents for ask in intent.asks):
            text = ask
            for slot in _SLOT.finditer(ask):
                text = text.replace(slot[0], rng.choice(family.slots[slot[1]]).partition(" | ")[0])
            found.setdefault(family.language, []).append(text)
    return {
        code: sorted(set(texts))
        for code, texts in sorted(found.items())
        if code not in _SCRIPTS_ALONE and len(set(texts)) >= _FEWEST
    }


def _windows(texts: Sequence[str], count: int, rng: Random) -> list[NDArray[np.int64]]:
    """Return the groups of letters of so many windows of the texts: questions are short, and so is what is learned."""
    made = []
    for _ in range(count):
        words = rng.choice(texts).split()
        size = rng.randint(2, 9)
        at = rng.randrange(max(1, len(words) - size + 1))
        if groups := groups_of_letters(" ".join(words[at : at + size])):
            made.append(np.array(groups))
    return made


def language_tensors(
    texts: Mapping[str, Sequence[str]], seed: int, on_progress: OnProgress
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the tensors of the artefact, and by language the share of held-out windows that is told rightly."""
    require("torch", "training needs torch", install="run: pip install torch==2.13.0")
    import torch

    torch.manual_seed(seed)
    rng, codes = Random(seed), list(texts)  # noqa: S311  (no secret)
    fitted: list[tuple[NDArray[np.int64], int]] = []
    checked: dict[str, list[NDArray[np.int64]]] = {}
    for number, (code, own) in enumerate(texts.items()):
        shuffled = rng.sample(list(own), len(own))
        aside = len(shuffled) // _HELD_OUT
        count = _IN_ENGLISH if code == ENGLISH else _WINDOWS
        fitted += [(groups, number) for groups in _windows(shuffled[aside:], count, rng)]
        checked[code] = _windows(shuffled[:aside], 1_000, rng)
    table_ = torch.nn.EmbeddingBag(BUCKETS, len(codes), mode="mean")
    table_.weight.data.zero_()
    bias = torch.nn.Parameter(torch.zeros(len(codes)))
    optimizer = torch.optim.Adam([table_.weight, bias], lr=_RATE)
    for epoch in range(_EPOCHS):
        rng.shuffle(fitted)
        for start in range(0, len(fitted), _BATCH):
            batch = fitted[start : start + _BATCH]
            starts = np.cumsum([0, *(len(groups) for groups, _ in batch[:-1])])
            groups = torch.from_numpy(np.concatenate([groups for groups, _ in batch]))
            logits = table_(groups, torch.from_numpy(starts)) * _SHARPNESS + bias
            loss = torch.nn.functional.cross_entropy(
                logits, torch.tensor([code for _, code in batch]), label_smoothing=0.02
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            on_progress("training", epoch * len(fitted) + start + len(batch), _EPOCHS * len(fitted))
        optimizer.param_groups[0]["lr"] *= 0.3
    weights = table_.weight.detach().numpy() * np.float32(_SHARPNESS)
    scale = np.maximum(np.abs(weights).max(axis=0), 1e-6) / np.float32(127)
    tensors = {
        "weights": np.round(weights / scale).astype(np.int8),
        "scale": scale.astype(np.float32),
        "bias": bias.detach().numpy().astype(np.float32),
    }
    told = {}
    for number, code in enumerate(codes):
        sums = [tensors["weights"][groups].sum(axis=0, dtype=np.int32) / len(groups) for groups in checked[code]]
        right = np.argmax(np.array(sums) * tensors["scale"] + tensors["bias"], axis=1) == number
        told[code] = {"n": len(right), "right": round(float(right.mean()), 4)}
    return tensors, told


def main(argv: Sequence[str] | None = None) -> int:
    """Fit the detector, write it and print how often it tells a language."""
    parser = command.parser("train_languages")
    parser.add_argument("--texts", type=Path, required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    add_note_flag(parser)
    add_seed_flag(parser)
    add_json_flag(parser, "a table")

    def work(args: argparse.Namespace, on_progress: OnProgress) -> Report:
        texts = texts_by_language(args.texts, args.seed)
        if ENGLISH not in texts:
            raise DataError(f"{args.texts}: too few texts; name more packages for tools.package_texts")
        tensors, told = language_tensors(texts, args.seed, on_progress)
        data = save(tensors)
        facts = {
            "trained_on": [
                {"file": args.texts.name, "sha256": file_digest(args.texts), "licence": "see tools/package_texts.py"},
                {"families": "tools/families", "licence": "Tierline's own"},
            ],
            "languages": list(texts),
            "texts": {code: len(own) for code, own in texts.items()},
            "sha256": hashlib.sha256(data).hexdigest(),
            "figures": {"held_out_windows": told},
        }
        options = ["--texts", args.texts.name, "--out", args.out.name, "--seed", str(args.seed)]
        made = Remade((*shlex.split(parser.prog), *options), tuple(args.note))
        sheet = data_sheet("The language of a text, by its groups of letters", facts, made)
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "languages.safetensors").write_bytes(data)
        (args.out / "languages.json").write_text(json.dumps(sheet, indent=1, ensure_ascii=False) + "\n", "utf-8")
        shown = table("language", "windows held out", "told rightly")
        for code, figures in told.items():
            shown.add_row(code, str(figures["n"]), f"{figures['right']:.1%}")
        return Report(told, [shown], title="languages", done=[f"written to {args.out}"])

    return command.run(parser, work, argv)


if __name__ == "__main__":
    sys.exit(main())
