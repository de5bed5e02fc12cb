from __future__ import annotations

import numpy as np
import pytest

from tests.bench.cache_gates import NOT_PARSED, SIMILARITY, GateCount, count_gates, gates_of


@pytest.mark.parametrize(
    ("stored", "asked", "cosine", "screening", "gates"),
    [
        ("How do I boil eggs?", "How can I boil eggs?", 0.9, True, set()),
        ("How do I boil eggs?", "How can I boil eggs?", 0.2, True, {SIMILARITY}),
        ("?", "How do I boil eggs?", 0.9, True, {NOT_PARSED, "eligibility: follow_up: leans"}),
        ("How do I boil 2 eggs?", "How do I boil 3 eggs?", 0.9, True, {"veto: numbers: other"}),
        ("How do I boil eggs?", "How do I boil eggs in the morning?", 0.9, True, set()),
        ("How do I boil eggs?", "How do I boil eggs in the morning?", 0.9, False, {"veto: dates: any"}),
        (
            "Translate to German: the dog barks on Monday",
            "Translate to German: the dog barks on Friday",
            0.9,
            True,
            {
                "eligibility: payload: language",
                "eligibility: payload: colon",
                "veto: dates: told",
                "eligibility: payload: task",
                "veto: dates: other",
            },
        ),
    ],
)
def test_every_gate_that_stops_a_pair_is_named(
    stored: str, asked: str, cosine: float, screening: bool, gates: set[str]
) -> None:
    """Not only the first; without a cross-encoder there are more."""
    assert gates_of(stored, asked, cosine, 0.5, screening=screening) == gates


def test_a_gate_stops_alone_what_its_score_would_serve() -> None:
    """Pairs that another gate stops too, or that no threshold would serve, do not count as its own."""
    gates = [frozenset({"a"}), frozenset({"a", "b"}), frozenset({"a"}), frozenset({"b"}), frozenset[str]()]
    same = np.array([True, True, False, False, True])
    passes = np.array([True, True, False, True, True])
    assert count_gates(gates, passes, same) == {"a": GateCount(2, 1, 1, 0), "b": GateCount(1, 0, 1, 1)}
