"""`python -m tools.choose_thresholds`: the rule, the pairs that it is applied to, and what is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cache import shipped_cross_encoder
from gateway.parts.encoders.cross_encoder import SHEET, CrossEncoder
from gateway.seams import read_other_languages
from tools.choose_thresholds import REWORDINGS, choose, labelled_pairs, main
from tools.question_families import SHIPPED, read_families
from tools.question_pairs import read_questions


def near_misses(shares: dict[str, float], at: float = 3.0, n: int = 1_000) -> tuple[list[float], list[str]]:
    """Return logits of near-misses by language: of each this share above `at`, the rest far below."""
    logits, languages = [], []
    for name, share in shares.items():
        above = round(share * n)
        logits += [at + 0.5] * above + [-2.0] * (n - above)
        languages += [name] * n
    return logits, languages


def test_half_of_what_counts_for_a_language_is_the_pool() -> None:
    """One whose own near-misses are all served by 3.5 has to keep above it; the pool alone may go to the bottom."""
    logits, languages = near_misses({"de": 0.05, "es": 0.0, "fr": 0.0, "it": 0.0, "pt": 0.0, "nl": 0.0})
    chosen = choose(np.array(logits), np.zeros(len(logits), np.bool_), languages, 0.01)
    assert chosen.by_language["de"] == pytest.approx(3.51, abs=0.011)  # (.05 + .0083) / 2 > .01
    assert chosen.by_language["es"] == 0.0  # (.0 + .0083) / 2 <= .01
    assert chosen.pooled == 0.0
    assert chosen.offsets["de"] == pytest.approx(-3.51, abs=0.011)


def test_english_is_judged_by_its_own_and_is_not_in_the_pool() -> None:
    """However bad it is, the others keep their threshold."""
    logits, languages = near_misses({"en": 0.2, "es": 0.005, "fr": 0.005})
    chosen = choose(np.array(logits), np.zeros(len(logits), np.bool_), languages, 0.01)
    assert chosen.by_language["en"] > 3.5
    assert chosen.by_language["es"] == chosen.pooled == 0.0


def test_what_a_guard_refuses_is_served_at_no_threshold() -> None:
    """Near-misses that are refused raise none."""
    logits = np.array([-np.inf] * 500)
    assert choose(logits, np.zeros(500, np.bool_), ["de"] * 500, 0.01).pooled == 0.0


def test_the_pairs_are_of_every_language_that_it_reads_and_none_are_answers() -> None:
    """Of families left out, and of the labelled file for fourteen languages."""
    languages = sorted(CrossEncoder.load(shipped_cross_encoder(), later=True).languages)
    pairs = labelled_pairs(read_families(SHIPPED), [REWORDINGS], languages, 40)
    for language in languages:
        own = [pair for pair in pairs if pair.group == language]
        assert {pair.same_answer for pair in own} == {True, False}, language
    kinds, others = ("rewording", "near trap", "trap"), [name for name in languages if name != "en"]
    assert {pair.group for pair in read_questions(REWORDINGS)} == {
        f"{name} {kind}" for name in others for kind in kinds
    }


def test_the_data_sheet_gets_the_thresholds_and_keeps_all_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the scores that are kept are not computed again; with --dry-run nothing is written."""
    read_other_languages()
    folder, scores = tmp_path / "model", tmp_path / "scores.json"
    shutil.copytree(shipped_cross_encoder(), folder)
    before = json.loads((folder / SHEET).read_bytes())
    options = ["--cross-encoder", str(folder), "--of-families", "12", "--pairs", "--scores", str(scores), "--json"]
    assert main([*options, "--dry-run"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert json.loads((folder / SHEET).read_bytes()) == before
    kept = scores.stat().st_mtime_ns
    assert main(options) == 0
    after = json.loads((folder / SHEET).read_bytes())
    assert scores.stat().st_mtime_ns == kept
    assert (after["strict"], after["language_offsets"]) == (told["strict"], told["language_offsets"])
    changed = {"strict", "language_offsets", "thresholds", "figures"}
    assert {name: after[name] for name in after.keys() - changed} == {
        name: before[name] for name in before.keys() - changed
    }
    assert CrossEncoder.load(folder, later=True).strict == after["strict"]


def test_a_share_that_is_none_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, with exit code 2."""
    assert main(["--cross-encoder", str(shipped_cross_encoder()), "--most-wrong", "1.5"]) == 2
    assert "--most-wrong is 1.5" in capsys.readouterr().err
