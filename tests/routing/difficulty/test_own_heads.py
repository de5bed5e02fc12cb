"""Heads over labels of a surface's own traffic: what nearest labels say, and that heads are kept as tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from routing.difficulty.own_heads import OwnHeads, mean_outcome

STORED = np.array([[1, 0], [0.96, 0.28], [0, 1], [-1, 0]], np.float32)
OUTCOMES = np.array([[1, 1], [0, 1], [0, 0.5], [0, 0]], np.float32)
NOTHING = np.zeros((2, 2), np.float32)
LINEAR = OwnHeads(
    vector=NOTHING,
    counts=np.zeros((2, 1), np.float32),
    base=NOTHING,
    bias=NOTHING,
    low=np.zeros(1, np.float32),
    high=np.ones(1, np.float32),
    centroids=np.array([[1, 0]], np.float32),
    min_similarity=np.array([0.5], np.float32),
    quantiles=np.zeros((1, 101), np.float32),
)
NEIGHBOURS = replace(LINEAR, stored=STORED, outcomes=OUTCOMES, nearest=np.array([2, 4, 8], np.float32))


@pytest.mark.parametrize(("count", "mean"), [(1, [1, 1]), (2, [0.5, 1]), (3, [1 / 3, 2.5 / 3]), (9, [0.25, 0.625])])
def test_the_nearest_labels_count_alike(count: int, mean: list[float]) -> None:
    """The nearest by cosine, and all of them where fewer are stored than count."""
    vectors = np.array([[1, 0], [1, 0]], np.float32)
    assert mean_outcome(vectors, STORED, OUTCOMES, count).tolist() == [pytest.approx(mean)] * 2
    assert mean_outcome(vectors[0], STORED, OUTCOMES, count).tolist() == pytest.approx(mean)


def test_neighbours_move_each_tier_by_its_own_weight() -> None:
    """A linear head without weights says a half, whatever is asked."""
    asked = (np.array([1, 0]), np.zeros(1), np.array([0.5, 0.5]), np.True_)
    assert LINEAR.p_right(*asked).tolist() == [0.5, 0.5]
    assert NEIGHBOURS.p_right(*asked).tolist() == pytest.approx([1 / (1 + np.exp(-2)), 1 / (1 + np.exp(-8))])


@pytest.mark.parametrize(("heads", "kind"), [(LINEAR, "linear"), (NEIGHBOURS, "neighbours")])
def test_heads_are_kept_as_tensors(heads: OwnHeads, kind: str) -> None:
    """Neighbours have three more, and without one of them there are no heads."""
    tensors = heads.tensors()
    kept = OwnHeads.of(tensors)
    assert kept is not None
    assert (kept.kind, len(tensors)) == (kind, 12 if kind == "neighbours" else 9)
    assert all(np.array_equal(tensors[name], value) for name, value in kept.tensors().items())
    assert OwnHeads.of({}) is None
    if kind == "neighbours":
        with pytest.raises(KeyError):
            OwnHeads.of({name: value for name, value in tensors.items() if "outcomes" not in name})


def test_a_request_is_near_by_its_best_centroid() -> None:
    """The least cosine counts as near."""
    assert LINEAR.near(np.array([[1, 0], [0.5, 0.8], [0.4, 0.9]], np.float32)).tolist() == [True, True, False]
