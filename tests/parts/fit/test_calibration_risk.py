"""The bound: how often it errs, and how many labels it wants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gateway.parts.fit.calibration.risk import Losses, best_level, labels_needed, proven
from gateway.parts.fit.curves import Floats

DRAWS = 2000
Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]


def losses(values: Floats, low: float = -1.0, high: float = 1.0, *, binary: bool = False) -> Losses:
    width = values.shape[1]
    return Losses(values, np.full(width, low), np.full(width, high), binary)


def chance(delta: float) -> float:
    """What a share of DRAWS may be over delta by, three standard deviations of it."""
    return 3 * float(np.sqrt(delta * (1 - delta) / DRAWS))


# Each has a mean of exactly 0: the claim holds by a hair, and its neighbour above is false.
AT_THE_EDGE: dict[str, tuple[Draw, float, float]] = {
    "even": (lambda draw, shape: draw.uniform(-1, 1, shape), -1, 1),
    "rare and great": (lambda draw, shape: np.where(draw.random(shape) < 0.02, 0.98, -0.02), -0.02, 0.98),
    "rare gains": (lambda draw, shape: np.where(draw.random(shape) < 0.05, -0.95, 0.05), -0.95, 0.95),
    "three values": (lambda draw, shape: draw.choice([-0.03, 0.97, -1], p=[0.9, 0.0639, 0.0361], size=shape), -1, 0.97),
}


@pytest.mark.parametrize("name", AT_THE_EDGE)
@pytest.mark.parametrize("n", [50, 400])
@pytest.mark.parametrize("delta", [0.1, 0.02])
def test_what_is_not_so_is_rarely_proven(name: str, n: int, delta: float) -> None:
    """At the edge of truth, the share of draws that prove the claim is delta at most, whatever the losses' shape."""
    draw_one, low, high = AT_THE_EDGE[name]
    values = draw_one(np.random.default_rng(n), (n, DRAWS))
    assert proven(losses(values, low, high), delta).mean() <= delta + chance(delta)


@pytest.mark.parametrize("delta", [0.1, 0.02])
def test_the_exact_tail_is_exact(delta: float) -> None:
    """Right-or-wrong losses at the edge prove the claim in nearly delta of the draws, and in no more."""
    values = np.where(np.random.default_rng(1).random((1000, DRAWS)) < 0.1, 0.9, -0.1)
    share = proven(losses(values, -0.1, 0.9, binary=True), delta).mean()
    assert delta / 2 < share <= delta + chance(delta)


def test_no_error_in_114_labels_is_under_two_percent() -> None:
    """0.98 ** 114 is the first power under 0.1: the rule of thumb that anybody can check."""
    clean = losses(np.full((114, 1), -0.02), -0.02, 0.98, binary=True)
    assert proven(clean, 0.1).all()
    assert not proven(losses(clean.values[:113], -0.02, 0.98, binary=True), 0.1).any()
    assert labels_needed(clean, 0.1) == 114


def test_it_adapts_to_the_variance() -> None:
    """Losses that hardly vary prove in 130 labels what takes Hoeffding's bound 5,100."""
    values = np.random.default_rng(2).normal(-0.03, 0.01, (130, 20)).clip(-1, 1)
    assert proven(losses(values), 0.1).all()


def test_the_best_level_is_proven_and_its_neighbour_is_not() -> None:
    """A level is found for each setting by itself, on the sure side of what was seen."""
    seen = np.random.default_rng(3).random((500, 2)) < np.array([0.1, 0.3])

    def claim(level: Floats) -> Losses:
        return Losses(seen - level, -level, 1 - level, binary=True)

    level = best_level(claim, 0.1, np.ones(2), 0.0)
    assert proven(claim(level), 0.1).all() and not proven(claim(level - 0.001), 0.1).any()
    assert (level > seen.mean(axis=0)).all() and (level < seen.mean(axis=0) + 0.05).all()


@pytest.mark.long
@pytest.mark.parametrize("mean", [-0.03, -0.1])
def test_the_number_of_labels_needed_is_about_right(mean: float) -> None:
    """With so many, about every second draw proves it; with half as many few do, with twice as many nearly all."""
    draw = np.random.default_rng(4)
    shares = [0.5 - mean / 2, 0.5 + mean / 2]
    population = draw.choice([-0.5, 0.5], p=shares, size=(20_000, 1))
    needed = labels_needed(losses(population), 0.1)
    assert needed is not None

    def share(n: int) -> float:
        return float(proven(losses(draw.choice([-0.5, 0.5], p=shares, size=(n, 400))), 0.1).mean())

    assert share(needed // 2) < 0.5 < share(2 * needed)
    assert 0.3 < share(needed) < 0.9


def test_no_number_of_labels_proves_what_is_not_so() -> None:
    """At a mean of 0 or more there is nothing to wait for."""
    assert labels_needed(losses(np.zeros((10, 1))), 0.1) is None
    assert labels_needed(losses(np.full((10, 1), 0.1)), 0.1) is None
