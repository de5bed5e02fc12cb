"""Test the reader of Unigram vocabularies against the library's own."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from cache import shipped_cross_encoder
from gateway.parts.encoders.unigram import UnigramTokenizer
from tests.support.cross_encoder import write_cross_encoder
from tests.support.gateway import ROOT

SHIPPED = shipped_cross_encoder() / "tokenizer.json"
UNKNOWN = 1


def texts() -> list[str]:
    """Lines of the exam in nineteen languages, and texts of random signs, words without spaces and odd spaces."""
    files = sorted((ROOT / "tests" / "bench" / "exam").rglob("*.toml"))
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    generator = random.Random(0)
    some = generator.sample([line for line in lines if line.strip()], 1_500)
    signs = "aé ßИ漢字かなหก عربي😀\u200b\n\t'\"[SEP][UNK]▁0123½ﬁ"
    odd = ["".join(generator.choices(signs, k=generator.randint(0, 90))) for _ in range(500)]
    return [*some, *odd, "", " ", "\u00a0", "x" * 2_000, "漢" * 300, "[CLS] a [SEP]"]


def test_a_pair_has_the_tokens_that_the_library_gives_it() -> None:
    """In every language and for odd texts; the library makes one of neighbouring unknown tokens, which are refused."""
    ours = UnigramTokenizer.of(SHIPPED.read_bytes())
    library = Tokenizer.from_file(str(SHIPPED))
    assert ours is not None
    read = texts()
    pairs = list(zip(read, reversed(read), strict=True))
    unknown = 0
    for pair, one, other in zip(pairs, ours.encode_batch(pairs), library.encode_batch(pairs), strict=True):
        assert (UNKNOWN in one.ids) == (UNKNOWN in other.ids), pair
        unknown += UNKNOWN in one.ids
        if UNKNOWN not in one.ids:
            assert (one.ids, one.type_ids) == (other.ids, other.type_ids), pair
            assert one.attention_mask == other.attention_mask
    assert ours.unknown == UNKNOWN
    assert 100 < unknown < len(pairs) / 2


@pytest.mark.parametrize(
    "changed",
    [
        {"model": {"byte_fallback": True}},
        {"model": {"unk_id": None}},
        {"added_tokens": [{"id": 0, "content": "[PAD]"}]},
        {"post_processor": {"type": "BertProcessing"}},
    ],
)
def test_what_it_does_not_know_is_left_to_the_library(changed: dict[str, Any]) -> None:
    read = json.loads(SHIPPED.read_bytes())
    for key, value in changed.items():
        read[key] = read[key] | value if isinstance(value, dict) else value
    assert UnigramTokenizer.of(json.dumps(read).encode()) is None


def test_a_vocabulary_of_another_kind_is_left_to_the_library(tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path / "model")
    assert UnigramTokenizer.of((folder / "tokenizer.json").read_bytes()) is None


@pytest.mark.parametrize("pattern", [{"String": "-"}, {"Regex": "[a-c]"}, {"Regex": "[-؟]"}])
def test_a_normaliser_that_may_part_a_latin_word_reads_the_whole_text(pattern: dict[str, str]) -> None:
    read = json.loads(SHIPPED.read_bytes())
    read["normalizer"]["normalizers"].insert(2, {"type": "Replace", "pattern": pattern, "content": " "})
    content = json.dumps(read).encode()
    ours = UnigramTokenizer.of(content)
    assert ours is not None
    text = "A well-known cat, a-b and back."
    assert ours.pieces_of(text) == Tokenizer.from_str(content.decode()).encode(text, add_special_tokens=False).ids
