"""Collect the words by which the semantic cache tells a slip from a word (`gateway/parts/encoders/typos.py`).

A word is one that a dictionary has (simplemma's, MIT; in English also SCOWL's, free for any use, of Debian's packages
`wamerican-large` and `wbritish-large`) or that is common (wordfreq's list, Apache-2.0, its data CC BY-SA 4.0). What is
often written all the same, such as a rare name, is kept as `seen`. The artefact holds hashes, no words.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from gateway.cli.flags import add_json_flag
from gateway.parts.encoders.typos import SHEET, Level, digest_of
from gateway.parts.fit.datasets import DataError
from gateway.parts.fit.libraries import require
from gateway.report import OnProgress, Report, table
from tools import command

_LANGUAGES = ("de", "en", "es", "fr", "it", "nl", "pl", "pt", "tr")
_WORD = re.compile(r"[^\W\d_]{2,}\Z")
# Frequencies, as the logarithm of occurrences in a billion words.
_COMMON, _USUAL, _ANYHOW, _SEEN, _IN_ENGLISH = 3.8, 2.5, 3.3, 2.0, 1.0


def levels(code: str, frequent: dict[str, float], listed: frozenset[str], words: frozenset[str]) -> dict[str, Level]:
    """Return the words of a language: of those `listed`, very rare forms are left out, and none of `words`."""
    found = {}
    for word in frequent.keys() | words:
        often = frequent.get(word, 0.0)
        known = word in words or (word in listed and often >= (_IN_ENGLISH if code == "en" else _SEEN))
        if known or often >= _ANYHOW:
            found[word] = Level.COMMON if often >= _COMMON else Level.USUAL if often >= _USUAL else Level.RARE
        elif often >= _SEEN:
            found[word] = Level.SEEN
    return {word: level for word, level in found.items() if _WORD.match(word)}


def word_table(levels: dict[str, Level]) -> NDArray[np.uint32]:
    """Return the table of a language's words."""
    digests: dict[int, int] = {}
    for word, level in levels.items():
        digests[digest_of(word)] = max(level, digests.get(digest_of(word), Level.SEEN))
    return np.array(sorted(digest | level for digest, level in digests.items()), np.uint32)


def _frequent(code: str) -> dict[str, float]:
    require("wordfreq", "the words are counted by wordfreq", install="pip install wordfreq==3.1.1")
    shares = import_module("wordfreq").get_frequency_dict(code, "best")
    return {word: math.log10(share) + 9 for word, share in shares.items()}


def _listed(code: str) -> frozenset[str]:
    require("simplemma", "the dictionaries are simplemma's", install="pip install simplemma==2.0.0")
    factory = import_module("simplemma.strategies.dictionaries.dictionary_factory").DefaultDictionaryFactory()
    forms = factory.get_dictionary(code)
    return frozenset((form.decode() if isinstance(form, bytes) else form).lower() for form in forms)


def _scowl(packages: Path) -> frozenset[str]:
    """Return the words of SCOWL that are no names, from Debian's packages."""
    files = sorted(packages.glob("w*_*.deb"))
    if not files:
        raise DataError(f"{packages}: no w*.deb; `apt-get download wamerican-large wbritish-large` puts them there")
    with tempfile.TemporaryDirectory() as scratch:
        for file in files:
            subprocess.run(["dpkg-deb", "-x", str(file), scratch], check=True)  # noqa: S603, S607
        lists = [file.read_text("utf-8") for file in Path(scratch, "usr", "share", "dict").glob("*-large")]
    return frozenset(word for text in lists for word in text.split() if word.islower())


def collect(args: argparse.Namespace, on_progress: OnProgress) -> Report:
    """Write the table and its data sheet. Raises DataError, LibraryMissing."""
    scowl = _scowl(args.packages)
    shown = table("language", *(level.name.lower() for level in Level if level >= Level.SEEN))
    counts, tables = {}, {}
    for number, code in enumerate(_LANGUAGES):
        on_progress("collecting", number, len(_LANGUAGES))
        words = levels(code, _frequent(code), _listed(code), scowl if code == "en" else frozenset())
        tables[code] = word_table(words)
        count = Counter(words.values())
        counts[code] = {level.name.lower(): count[level] for level in Level if level >= Level.SEEN}
        shown.add_row(code, *(f"{count:,}" for count in counts[code].values()))
    data = save(tables)
    sheet = {
        "what": "which words there are, by language, and how common they are: hashes of them",
        "from": "wordfreq 3.1.1 (Apache-2.0; data CC BY-SA 4.0), simplemma 2.0.0 (MIT), SCOWL 2020.12.07 (free use)",
        "words": counts,
        "sha256": hashlib.sha256(data).hexdigest(),
        "command": "python -m tools.collect_words --packages DIR",
    }
    SHEET.with_suffix(".safetensors").write_bytes(data)
    SHEET.write_text(json.dumps(sheet, indent=1) + "\n", "utf-8")
    return Report(sheet, [shown, f"{SHEET}: {len(data):,} bytes"])


def main(argv: Sequence[str] | None = None) -> int:
    """Collect the words and print how many there are."""
    parser = command.parser("collect_words")
    folder = "the folder with Debian's wamerican-large and wbritish-large"
    parser.add_argument("--packages", type=Path, required=True, metavar="DIR", help=folder)
    add_json_flag(parser)
    return command.run(parser, collect, argv)


if __name__ == "__main__":
    sys.exit(main())
