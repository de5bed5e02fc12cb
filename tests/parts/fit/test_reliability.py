"""How far predictions hold: bins, intervals, the calibration error, and in whose word."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.parts.fit.curves import calibration_error
from gateway.parts.fit.reliability import FEWEST, head_claims, head_reliabilities, reliability


def drawn(count: int, shift: float = 0.0) -> tuple[list[float], list[float]]:
    """Predictions of which each comes true as often as it says, or more often by `shift`."""
    chance = np.random.default_rng(7)
    predicted = chance.uniform(0.1, 0.8, count)
    return predicted.tolist(), (chance.random(count) < predicted + shift).astype(float).tolist()


def test_a_right_head_fits_and_errs_as_chance_does() -> None:
    found = reliability(*drawn(5000))
    assert found.verdict == "fits" and len(found.bins) == 10 and sum(one.count for one in found.bins) == 5000
    assert found.ece == calibration_error(*map(np.asarray, drawn(5000)))
    assert found.ece == pytest.approx(found.ece_by_chance, rel=0.6)
    assert sum(one.low <= one.predicted <= one.high for one in found.bins) >= 8
    assert [one.predicted for one in found.bins] == sorted(one.predicted for one in found.bins)


def test_a_head_that_is_off_is_named_so() -> None:
    assert reliability(*drawn(2000, 0.15)).verdict == "too modest"
    sure = reliability(*drawn(2000, -0.08))
    assert sure.verdict == "too sure" and sure.ece > 2 * sure.ece_by_chance


def test_few_predictions_have_few_bins() -> None:
    assert len(reliability(*drawn(19)).bins) == 1 and len(reliability(*drawn(60)).bins) == 3


def answer(tier: str, adequate: float, confidence: float | None = None) -> dict[str, object]:
    return {"tier": tier, "model": f"{tier}-1", "adequate": adequate, "confidence": confidence, "served": True}


def test_each_head_is_measured_in_the_word_that_said_more() -> None:
    """The judge's where it labelled enough; and below the fewest it says how many are missing."""
    labels = [
        {
            "in_domain": True,
            "p_right": [0.4, 0.9],
            "small": answer("local", n % 2, 0.7),
            "strong": answer("hosted", 1.0),
        }
        for n in range(FEWEST)
    ]
    rated = {"tier": "local", "model": "local-1", "confidence": 0.7, "in_domain": True, "p_right": [0.4, 0.9],
             "ladder": ["local", "hosted"], "score": 1.0}  # fmt: skip
    by_judge = head_reliabilities(head_claims(labels, [rated] * 30, ["local", "hosted"]))
    assert [(one["head"], one["tier"], one["whose"]) for one in by_judge] == [
        ("confidence", "local", "judge"), ("difficulty", "hosted", "judge"), ("difficulty", "local", "judge"),
    ]  # fmt: skip
    local = by_judge[2]["reliability"]
    assert (local["predicted"], local["observed"]) == (pytest.approx(0.4), 0.5)
    assert by_judge[1]["reliability"]["predicted"] == pytest.approx(0.9)
    by_people = head_reliabilities(head_claims(labels[:9], [rated] * 30, ["local", "hosted"]))
    assert {one["whose"] for one in by_people if one["tier"] == "local"} == {"people"}
    assert all(one["reliability"] is None for one in by_people)
    assert {one["missing"] for one in by_people if one["tier"] == "local"} == {FEWEST - 30}


def test_predictions_are_of_the_tiers_place_in_the_ladder() -> None:
    """As routing reads them: of three tiers and two predictions, all but the strongest have the first."""
    ladder = ["small", "middle", "large"]
    row = {"model": "m", "confidence": None, "in_domain": True, "p_right": [0.2, 0.9], "ladder": ladder, "score": 1.0}
    claims = head_claims([], [{**row, "tier": tier} for tier in ladder], ladder)
    assert [claim.predicted for claim in claims] == [0.2, 0.2, 0.9]
    three = head_claims([], [{**row, "tier": tier, "p_right": [0.2, 0.5, 0.9]} for tier in ladder], ladder)
    assert [claim.predicted for claim in three] == [0.2, 0.5, 0.9]
    outside = {**row, "tier": "small", "in_domain": False}
    assert head_claims([], [outside], ladder) == []
