"""What a judge's one token says."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gateway.cascade.draft_judge import p_yes


def answer(*tokens: tuple[str, float]) -> dict[str, Any]:
    """A completion whose first token is the first of these; the others are its alternatives, with probabilities."""
    first, *others = [{"token": token, "logprob": math.log(p) if p else -9999.0} for token, p in tokens]
    return {"choices": [{"logprobs": {"content": [{**first, "top_logprobs": [first, *others]}]}}]}


@pytest.mark.parametrize(
    ("tokens", "p"),
    [
        ([("yes", 0.6), ("no", 0.2)], 0.75),
        ([("Yes", 0.4), (" yes", 0.2), ("No.", 0.1), ("\u2581NO", 0.1)], 0.75),
        ([("no", 0.9), ("yes", 0.1)], 0.1),
        ([("no", 0.9)], 0.0),
        ([("yes", 0.6)], 0.6),
        ([("yes", 0.6), ("Yes", 0.3)], 0.9),
        ([("The", 0.97), ("yes", 0.02), ("no", 0.01)], None),
        ([("Well", 0.9)], None),
        ([("yes", 0.0)], None),
    ],
)
def test_yes_is_held_against_no_however_they_are_spelled(tokens: list[tuple[str, float]], p: float | None) -> None:
    """Where no is not among the alternatives it has all that they leave over, so a draft is never flattered."""
    said = p_yes(answer(*tokens))
    assert said is None if p is None else said == pytest.approx(p)


@pytest.mark.parametrize(
    "value", [{}, {"choices": []}, {"choices": [{"logprobs": None}]}, {"choices": [{"logprobs": {"content": []}}]}]
)
def test_an_answer_without_log_probabilities_is_no_verdict(value: dict[str, Any]) -> None:
    """Whatever it says."""
    assert p_yes(value) is None
