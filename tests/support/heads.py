"""Confidence heads of the tests' own making: one number decides, so that a test can say what is believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gateway.parts.heads.head import FORMAT, numbers_hash

Numbers = dict[str, Any]


def mean_scorer(bias: float, weight: float = 1.0) -> Numbers:
    """P(right) is the logistic function of `bias` + `weight` * the mean log-probability."""
    column = {"centre": [0.0], "scale": [1.0], "weights": [weight], "low": [-20.0], "high": [0.0]}
    return {"features": ["mean"], "bias": bias, "knots": [], **column}


def agreement_scorer(bias: float, weight: float) -> Numbers:
    """P(right) is the logistic function of `bias` + `weight` * the agreement with another sample."""
    column = {"centre": [0.0], "scale": [1.0], "weights": [weight], "low": [0.0], "high": [1.0]}
    return {"features": ["agreement"], "bias": bias, "knots": [], **column}


def write_head(file: Path, model: str, *, alternatives: int = 0, prior_weight: float = 0.0, **scorers: Numbers) -> Path:
    """A head's artefact; `scorers` are those of `whole`, `first_8` and so on, and `agreement`."""
    numbers = {
        "alternatives": alternatives,
        "prior": {"weight": prior_weight, "centre": 0.0},
        "scorers": {part.removeprefix("first_"): [scorer] for part, scorer in scorers.items()},
    }
    artefact = {"format": FORMAT, "model": model, "sha256": numbers_hash(numbers), "numbers": numbers}
    file.write_text(json.dumps(artefact))
    return file
