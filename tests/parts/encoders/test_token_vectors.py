"""Test the vectors that questions in other languages than English are searched by."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cache import shipped_cross_encoder
from gateway.parts.encoders.cross_encoder import CrossEncoder, CrossEncoderError
from gateway.parts.encoders.token_vectors import SHEET, TABLE, TokenVectors
from gateway.parts.encoders.unigram import UnigramTokenizer

SHIPPED = shipped_cross_encoder()
DIMENSION = 256


@pytest.fixture(scope="module")
def vectors() -> TokenVectors:
    tokenizer = UnigramTokenizer.of((SHIPPED / "tokenizer.json").read_bytes())
    assert tokenizer is not None
    made = TokenVectors.load(SHIPPED, tokenizer)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("stored", "asked", "other"),
    [
        ("我怎么取消订阅？", "取消订阅的方法", "怎么给自行车换胎？"),
        ("كيف أغير كلمة المرور؟", "طريقة تغيير كلمة المرور", "ما هي عاصمة بيرو؟"),
        ("パスワードを変更する方法は？", "パスワードの変え方を教えて", "カレーの作り方は？"),
        ("¿Cómo cancelo mi pedido?", "quiero cancelar el pedido", "¿Cuánto pesa un elefante?"),
        ("ฉันจะเปลี่ยนรหัสผ่านได้อย่างไร", "วิธีเปลี่ยนรหัสผ่าน", "เมืองหลวงของเปรูคืออะไร"),
    ],
    ids=["zh", "ar", "ja", "es", "th"],
)
def test_another_wording_is_nearer_than_another_question(
    vectors: TokenVectors, stored: str, asked: str, other: str
) -> None:
    """And near enough for a policy's default `min_similarity`."""
    a, b, c = (vectors.embed(text, DIMENSION) for text in (stored, asked, other))
    assert a @ b > a @ c
    assert a @ b >= 0.4
    assert all(float(one @ one) == pytest.approx(1, abs=1e-4) for one in (a, b, c))


def test_a_text_without_tokens_has_no_direction(vectors: TokenVectors) -> None:
    """The cache does not search for it, as for any vector of zeros. More dimensions than its own are left empty."""
    assert not vectors.embed(" ", DIMENSION).any()
    longer = vectors.embed("我怎么取消订阅？", 384)
    assert longer.shape == (384,)
    assert np.array_equal(longer[:DIMENSION], vectors.embed("我怎么取消订阅？", DIMENSION))


def test_a_long_text_is_read_at_its_beginning(vectors: TokenVectors) -> None:
    """What a text costs on the event loop is bounded."""
    text = "如何取消订阅？" * 60
    assert np.array_equal(vectors.embed(text, DIMENSION), vectors.embed(text + "完全不同的问题" * 200, DIMENSION))


def test_the_languages_are_those_of_the_cross_encoder_but_english() -> None:
    """Where the cross-encoder judges, the search has vectors; English keeps those that the verifier was fitted to."""
    model = CrossEncoder.load(SHIPPED)
    assert model.vectors is not None
    assert set(model.vectors.languages) == set(model.languages) - {"en"}


@pytest.mark.parametrize("changed", [TABLE, "tokenizer.json"])
def test_files_that_do_not_belong_together_are_refused(tmp_path: Path, changed: str) -> None:
    """A table of another tokenizer would give every text a vector without meaning."""
    for file in SHIPPED.iterdir():
        shutil.copy(file, tmp_path)
    if changed == TABLE:
        table = np.load(tmp_path / TABLE)
        table[5, 5] += 1
        np.save(tmp_path / TABLE, table)
    else:
        read = json.loads((tmp_path / SHEET).read_bytes())
        (tmp_path / SHEET).write_text(json.dumps({**read, "tokenizer": "0" * 64}), "utf-8")
    with pytest.raises(CrossEncoderError, match=rf"{changed}.*sha256"):
        CrossEncoder.load(tmp_path)
