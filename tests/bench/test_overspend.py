"""The bench of ways to overspend: a few real ways, and the hardest cells of the grid, hold their bounds."""

from __future__ import annotations

import pytest

from tests.bench.overspend import WayFigures, try_ways
from tests.bench.overspend_grid import Cell, cells, run_cell


@pytest.mark.parametrize("cell", list(cells(quick=True)), ids=str)
def test_nobody_is_held_and_no_budget_overspent(cell: Cell) -> None:
    """Requests that come by chance get in or are refused at once until 80% is spent, and never overtake each other."""
    figures = run_cell(cell, 150)
    assert figures.let_in > 1
    assert (figures.held, figures.overtaken) == (0, 0)
    assert figures.billed <= figures.bound


def test_no_way_spends_more_than_it_must() -> None:
    """What a provider bills stays within a fifth above the budget, or one request, and is booked, left early or not."""
    rows = try_ways(quick=True)
    assert len(rows) == 4 and all(row.billed > 0 for row in rows)
    assert [shown(row) for row in rows if not row.holds] == []


def shown(row: WayFigures) -> str:
    """What a failure says of a way."""
    return f"{row.way.name}: billed ${row.billed:.4f}, booked ${row.booked:.4f}, bound {row.bound:.2f}"
