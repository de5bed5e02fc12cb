"""What is counted in a request."""

from __future__ import annotations

import numpy as np
import pytest

from routing.difficulty.text_statistics import COUNTS, counts_of, read
from routing.embedding.embedder import bounded
from routing.features import Features


def counted(text: str) -> dict[str, float]:
    counts = counts_of(Features(text=text, turns=1, approx_tokens=len(text) // 4 + 4), read(bounded(text)))
    assert counts.dtype == np.float32
    return dict(zip(COUNTS, counts.tolist(), strict=True))


@pytest.mark.parametrize(
    "text",
    ["", " ", "a" * 2_000_000, "\ud800", "日本の首都は?", "x = {1: 2}\n```\ndef f(): return 1\n```", "\nA. \nB. "],
)
def test_counts_are_finite_for_any_text(text: str) -> None:
    """Empty, huge and strange texts give finite counts, one for each name."""
    assert np.isfinite(list(counted(text).values())).all()


def test_choices_are_counted_apart_from_the_question() -> None:
    """How many there are, how long they and the question are, and whether they are numbers."""
    counts = counted("How many legs has a spider?\nA. 8\nB. 16\nC. six\nD. none\nAnswer:")
    assert counts["log_choices"] == pytest.approx(np.log1p(4))
    assert counts["log_question_chars"] == pytest.approx(np.log1p(len("How many legs has a spider?")))
    assert counts["log_choice_chars"] == pytest.approx(np.log1p((1 + 2 + 3 + 4) / 4))
    assert counts["share_choices_with_digits"] == 0.5
    plain = counted("How many legs has a spider?")
    assert (plain["log_choices"], plain["log_choice_chars"]) == (0, 0)


def test_code_mathematics_and_style_are_seen() -> None:
    """What kind of text it is shows in its marks."""
    assert counted("def f(): pass")["code"] == 1
    assert counted("x^2 + y^2 = 9")["share_mathematics"] > counted("two squares make nine")["share_mathematics"]
    assert counted("the cat the cat")["share_distinct_words"] == 0.5
