"""Test `python -m tests.bench.agreement` and its pairs."""

from __future__ import annotations

import json

import pytest

from tests.bench.agreement import HELD_OUT, main
from tools.agreement_pairs import CHOSEN_ON, agreement_pairs

LANGUAGES = {"en", "de", "es", "fr", "zh", "ja"}


def test_sets_are_large_enough_and_share_no_topic() -> None:
    """Both in six languages; no pair is told twice, and each edit applies to an answer."""
    chosen, held_out = (list(agreement_pairs(path)) for path in (CHOSEN_ON, HELD_OUT))
    assert len(chosen) >= 240 and len(held_out) >= 200
    for pairs in (chosen, held_out):
        assert {pair.language for pair in pairs} == LANGUAGES
        assert all(pair.one != pair.other for pair in pairs)
        assert sum(pair.same for pair in pairs) >= 100
    assert {pair.question for pair in chosen}.isdisjoint(pair.question for pair in held_out)


@pytest.mark.long
def test_equal_answers_rank_above_contradictions(capsys: pytest.CaptureFixture[str]) -> None:
    """In each of six languages, and far above what words alone do."""
    assert main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for language in LANGUAGES:
        figures = found["languages"][language]
        assert figures["auroc"][0] >= 0.86 and figures["auroc"][0] > figures["auroc_by_words"] + 0.3
    assert found["languages"]["all"]["auroc"][0] >= 0.9
    assert found["languages"]["all"]["equal_escalated"][0] <= 0.3
    assert found["languages"]["all"]["contradictions_kept"][0] <= 0.1


def test_without_a_cross_encoder_most_pairs_give_no_signal(capsys: pytest.CaptureFixture[str]) -> None:
    """And no contradiction is kept."""
    assert main(["--json", "--cross-encoder", "none"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["no_signal"] > found["pairs"] / 2
    assert found["languages"]["all"]["contradictions_kept"][0] == 0
