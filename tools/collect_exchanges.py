"""Collect the pairs of English words that may stand for each other (`gateway/parts/encoders/exchange.py`).

They are from WordNet 3.0 (Princeton University; free for any use, with its notice), as Debian's package `wordnet-base`
has it: members of one set of synonyms, a verb and the verb it is a kind of, adjectives of one cluster, words derived
from each other, and irregular forms. Opposites are left out, and so are kinds of one thing: `adenine` is no `guanine`.
The artefact holds hashes, no words.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from safetensors.numpy import save

from gateway.cli.flags import add_json_flag
from gateway.parts.encoders.exchange import SHEET, pair_digest
from gateway.parts.fit.datasets import DataError
from gateway.report import OnProgress, Report, table
from tools import command

_FILES: Final = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
_WORD: Final = re.compile(r"[a-z][a-z-]+\Z")
_ANTONYM, _DERIVED, _PERTAINS, _SIMILAR, _KIND_OF = "!", "+", "\\", "&", "@"


class Synset(NamedTuple):
    """A set of synonyms: its words in lower case, and its pointers, each (sign, part of speech, offset, word at either
    end from 1, or 0 for all).
    """

    words: tuple[str, ...]
    pointers: tuple[tuple[str, str, int, int, int], ...]


def synsets(text: str) -> Iterator[tuple[int, Synset]]:
    """Return the sets of synonyms of a file `data.*` of WordNet by their offset (the format `wndb(5WN)`)."""
    for line in text.splitlines():
        if line.startswith(" "):
            continue
        fields = line.partition(" | ")[0].split()
        count = int(fields[3], 16)
        words = tuple(fields[at].partition("(")[0].lower() for at in range(4, 4 + 2 * count, 2))
        at = 5 + 2 * count
        pointers = tuple(
            (fields[at + 4 * i], fields[at + 4 * i + 2].replace("s", "a"), int(fields[at + 4 * i + 1]),
             int(fields[at + 4 * i + 3][:2], 16), int(fields[at + 4 * i + 3][2:], 16))
            for i in range(int(fields[at - 1]))
        )  # fmt: skip
        yield int(fields[0]), Synset(words, pointers)


def word_pairs(net: dict[tuple[str, int], Synset]) -> dict[str, set[tuple[str, str]]]:
    """Return the pairs of words that may stand for each other, by what relates them; no opposites."""
    relations = ("synonyms", "kind of (verbs)", "cluster", "derived")
    found: dict[str, set[tuple[str, str]]] = {name: set() for name in relations}
    opposites: set[tuple[str, str]] = set()
    for (part, _), synset in net.items():
        found["synonyms"].update(combinations(synset.words, 2))
        for sign, other_part, offset, own, others in synset.pointers:
            other = net[other_part, offset]
            ours = synset.words[own - 1 : own] if own else synset.words
            theirs = other.words[others - 1 : others] if others else other.words
            if sign == _ANTONYM:
                opposites.update(_ordered(pair) for pair in product(ours, theirs))
            elif sign in {_DERIVED, _PERTAINS}:
                found["derived"].update(product(ours, theirs))
            elif sign == _SIMILAR:
                found["cluster"].update(product(ours, theirs))
            elif sign == _KIND_OF and part == "v":
                found["kind of (verbs)"].update(product(ours, theirs))
    return {
        name: {_ordered(pair) for pair in pairs if pair[0] != pair[1] and all(map(_WORD.match, pair))} - opposites
        for name, pairs in found.items()
    }


def _ordered(pair: tuple[str, str]) -> tuple[str, str]:
    return (pair[0], pair[1]) if pair[0] < pair[1] else (pair[1], pair[0])


def _irregular(text: str) -> set[tuple[str, str]]:
    """Return the pairs of a file `*.exc`: the forms of a word, and the word, by two."""
    forms: dict[str, set[str]] = {}
    for form, *bases in map(str.split, text.splitlines()):
        for base in filter(_WORD.match, bases):
            forms.setdefault(base, {base}).update([form] if _WORD.match(form) else [])
    return {_ordered(pair) for group in forms.values() for pair in combinations(sorted(group), 2)}


def _notice(copyright_file: str) -> str:
    """Return WordNet's licence, which every copy must have, from `copyright` of its package. Raises DataError."""
    _, found, rest = copyright_file.partition("License: WordNet3.0\n")
    lines = [line.removeprefix(" ") for line in rest.partition("\n\n")[0].splitlines()]
    if not found or not lines:
        raise DataError("wordnet-base: its file `copyright` has no `License: WordNet3.0`; is it another version?")
    return "\n".join("" if line == "." else line for line in lines) + "\n"


def collect_pairs(args: argparse.Namespace, on_progress: OnProgress) -> Report:
    """Write the table and its data sheet. Raises DataError."""
    packages = sorted(args.packages.glob("wordnet-base_*.deb"))
    if not packages:
        raise DataError(f"{args.packages}: no wordnet-base_*.deb; `apt-get download wordnet-base` puts it there")
    net: dict[tuple[str, int], Synset] = {}
    irregular: set[tuple[str, str]] = set()
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["dpkg-deb", "-x", str(packages[-1]), scratch], check=True)  # noqa: S603, S607
        folder = Path(scratch, "usr", "share", "wordnet")
        for number, (part, name) in enumerate(_FILES.items()):
            on_progress("reading", number, len(_FILES))
            text = (folder / f"data.{name}").read_text("utf-8")
            net.update({(part, offset): synset for offset, synset in synsets(text)})
            irregular |= _irregular((folder / f"{name}.exc").read_text("utf-8"))
        notice = _notice(Path(scratch, "usr", "share", "doc", "wordnet-base", "copyright").read_text("utf-8"))
    pairs = {**word_pairs(net), "irregular forms": irregular}
    digests = sorted({pair_digest(*pair) for group in pairs.values() for pair in group})
    data = save({"pairs": np.array(digests, np.uint32)})
    counts = {name: len(group) for name, group in pairs.items()}
    sheet = {
        "what": "pairs of English words that may stand for each other in two questions: hashes of them",
        "from": f"WordNet 3.0 (Princeton University, the WordNet licence), {packages[-1].stem.replace('%3a', ':')}",
        "languages": ["en"],
        "pairs": counts,
        "sha256": hashlib.sha256(data).hexdigest(),
        "command": "python -m tools.collect_exchanges --packages DIR",
    }
    SHEET.with_suffix(".safetensors").write_bytes(data)
    SHEET.with_suffix(".LICENSE").write_text(notice, "utf-8")
    SHEET.write_text(json.dumps(sheet, indent=1) + "\n", "utf-8")
    shown = table("related by", "pairs")
    for name, count in counts.items():
        shown.add_row(name, f"{count:,}")
    return Report(sheet, [shown, f"{SHEET}: {len(data):,} bytes"])


def main(argv: Sequence[str] | None = None) -> int:
    """Collect the pairs and print how many there are."""
    parser = command.parser("collect_exchanges")
    folder = "the folder with Debian's wordnet-base"
    parser.add_argument("--packages", type=Path, required=True, metavar="DIR", help=folder)
    add_json_flag(parser)
    return command.run(parser, collect_pairs, argv)


if __name__ == "__main__":
    sys.exit(main())
