"""What a scorer counts in an answer, and of what it says nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.parts.agents.scorer import BEGINNING, FEATURES, FORMAT, WHOLE, AnswerScorer, answer_features
from gateway.parts.heads.head import numbers_hash
from routing.difficulty.model import ArtefactError


def written(path: Path, *parts: str, not_for: tuple[str, ...] = (), **changed: Any) -> Path:
    """A scorer that trusts short answers: its logit is 2 minus the log of their words."""
    numbers = {
        "features": ["words"], "centre": [0.0], "scale": [1.0], "weights": [-1.0], "bias": 2.0, "low": [0.0],
        "high": [9.0], "knots": [],
    }  # fmt: skip
    made = {"parts": dict.fromkeys(parts or (WHOLE, BEGINNING), numbers), "not_for": list(not_for)}
    path.write_text(json.dumps({"format": FORMAT, "sha256": numbers_hash(made), "numbers": made} | changed))
    return path


def test_a_short_answer_is_trusted_more_here(tmp_path: Path) -> None:
    """As the numbers say, and the version is that of the numbers."""
    scorer = AnswerScorer.load(written(tmp_path / "scorer.json"))
    short = scorer.p_right("What is 2 + 2?", "Four.", complete=True)
    long = scorer.p_right("What is 2 + 2?", "Four, I think, but I may be wrong about that.", complete=True)
    assert short is not None and long is not None and short > 0.7 > long
    assert len(scorer.version) == 12


def test_numbers_that_were_altered_are_refused(tmp_path: Path) -> None:
    """The file states their hash."""
    with pytest.raises(ArtefactError, match="SHA-256"):
        AnswerScorer.load(written(tmp_path / "scorer.json", sha256="0" * 64))


def test_it_says_nothing_of_what_it_was_not_fitted_to(tmp_path: Path) -> None:
    """Beginnings without a part of their own, kinds that it leaves alone, other scripts, no words."""
    scorer = AnswerScorer.load(written(tmp_path / "scorer.json", WHOLE, not_for=("chat",)))
    assert scorer.p_right("Why?", "Because.", complete=True, kind="maths") is not None
    assert scorer.p_right("Why?", "Because.", complete=False) is None
    assert scorer.p_right("Why?", "Because.", complete=True, kind="chat") is None
    assert scorer.p_right("为什么?", "因为天空是蓝色的。", complete=True) is None
    assert scorer.p_right("Warum?", "Über Köln fährt kein Zug nach Düsseldorf.", complete=True) is not None
    assert scorer.p_right("Why?", "...", complete=True) is None


def test_features_are_what_they_say() -> None:
    """Counted in lower case, over the first characters of both texts."""
    values = answer_features("Which city is the capital?", "Perhaps Rome.\nNone of these 12,500 fit; Rome, Rome.")
    assert values is not None and tuple(values) == FEATURES
    assert (values["doubts"], values["finds_none"], values["longest_number"]) == (10.0, 1.0, 5.0)
    assert (values["variety"], values["lines"]) == (0.8, 1.0)
    assert values["overlap"] == 0.0
    assert answer_features("a", "b " * 100_000) == answer_features("a", "b " * 3_000)


@pytest.mark.parametrize(
    "changed",
    [{"format": "other"}, {"sha256": "0" * 64}, {"numbers": {}}],
)
def test_a_broken_artefact_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    """With the file's name."""
    with pytest.raises(ArtefactError, match=r"scorer\.json"):
        AnswerScorer.load(written(tmp_path / "scorer.json", **changed))
    with pytest.raises(ArtefactError, match="cannot be read"):
        AnswerScorer.load(tmp_path / "none.json")
