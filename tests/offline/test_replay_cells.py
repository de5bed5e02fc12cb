"""Cells: every record gets the verdict that `decide` gives it by itself."""

from __future__ import annotations

from tests.bench.replay_cells import differing


def test_a_cell_decides_for_each_of_its_members() -> None:
    """Random policies over inputs that often lie exactly on a constant."""
    results = [differing(seed, 400) for seed in range(12)]
    assert [wrong for wrong, _ in results] == [0] * 12
    assert sum(cells for _, cells in results) < 12 * 400


def test_records_share_cells() -> None:
    """With few different inputs `decide` runs once for each of them."""
    _, cells = differing(seed=3, records=2000)
    assert cells < 2000
