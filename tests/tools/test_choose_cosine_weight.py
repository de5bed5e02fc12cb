"""`python -m tools.choose_cosine_weight`: the pairs that it is chosen on, the choice, and what is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cache import shipped_cross_encoder
from gateway.parts.encoders.cross_encoder import SHEET, CrossEncoder
from tools.choose_cosine_weight import chosen_weight, main, near_pairs
from tools.question_families import Intent, QuestionFamily

CANCEL = Intent("cancel", ("How do I cancel {it}?", "I want to end {it}, how?"), False)
DISTANCE = Intent("distance", ("How far is {city_1} from {city_2}?",), True)
SLOTS = {"it": ("my plan", "the order", "a trip"), "city": ("Paris", "Lyon", "Rome", "Oslo")}


def by_letters(texts: Sequence[str]) -> NDArray[np.float32]:
    """Vectors of how often each letter occurs: alike for questions of similar words."""
    counts = np.array([[text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts])
    found: NDArray[np.float32] = (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)
    return found


def test_near_pairs_are_questions_beside_their_nearest_others() -> None:
    """Both labels are there; equal ones and vetoed ones, such as two cities for two others, are not."""
    pairs, cosines = near_pairs([QuestionFamily("one", (CANCEL, DISTANCE), SLOTS)], by_letters)
    assert len(pairs) == len(cosines) > 5
    assert {pair.same_answer for pair in pairs} == {True, False}
    assert all(pair.a != pair.b for pair in pairs)
    assert 0.4 <= cosines.min() <= cosines.max() <= 1.0001
    assert near_pairs([], by_letters)[0] == []


@pytest.mark.parametrize(("tells", "least", "most"), [(1.0, 8.0, 12.0), (0.0, 0.0, 2.0), (-1.0, 0.0, 0.0)])
def test_the_weight_is_that_of_the_best_ranking(tells: float, least: float, most: float) -> None:
    """Large where the cosine tells right from wrong, small where it is noise, none where it misleads."""
    draw = np.random.default_rng(0)
    same = draw.random(4_000) < 0.6
    read = 1 / (1 + np.exp(-(2.0 + same + draw.normal(size=4_000))))
    cosines = np.clip(0.7 + 0.1 * (tells * (2.0 * same - 1) + draw.normal(size=4_000)), 0, 1)
    chosen = chosen_weight(read, cosines, same, 0.75)
    assert least <= chosen.weight <= most
    assert chosen.auroc is not None and chosen.auroc_alone is not None
    assert chosen.auroc >= chosen.auroc_alone
    assert chosen.same + chosen.different == int((read >= 0.75).sum())


def test_with_few_pairs_the_cosine_has_no_weight() -> None:
    """Whatever they say."""
    same = np.arange(40) % 2 == 0
    assert chosen_weight(np.full(40, 0.9), same.astype(np.float64), same, 0.75).weight == 0.0
    assert chosen_weight(np.empty(0), np.empty(0), np.empty(0, np.bool_), 0.75).weight == 0.0


def test_the_data_sheet_gets_the_weight_of_each_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And keeps everything else; a folder without a data sheet is refused."""
    mine, families = tmp_path / "mine", tmp_path / "families"
    shutil.copytree(shipped_cross_encoder(), mine)
    families.mkdir()
    names = "".join(
        f'[[family]]\nname = "{n}"\n[[family.intent]]\nname = "end"\nask = ["How do I end plan {n}?", "End plan {n}"]\n'
        for n in range(12)
    )
    (families / "plans.toml").write_text(names)
    before = json.loads((mine / SHEET).read_bytes())
    words = ["--cross-encoder", str(mine), "--families", str(families), "--json"]
    assert main([*words, "--embedding", "static"]) == 0
    assert json.loads(capsys.readouterr().out)["wordllama-256"]["weight"] == 0.0
    after = json.loads((mine / SHEET).read_bytes())
    assert CrossEncoder.load(mine).cosine_weights == after["cosine_weights"] == {"wordllama-256": 0.0}
    own = {"cosine_weights", "cosine_weights_chosen_by"}
    assert {key: value for key, value in after.items() if key not in own} == {
        key: value for key, value in before.items() if key not in own
    }
    (mine / SHEET).unlink()
    assert main([*words, "--embedding", "static"]) == 2
    assert "sheet.json: not there" in " ".join(capsys.readouterr().err.split())
