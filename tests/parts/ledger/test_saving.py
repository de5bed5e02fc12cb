"""The one saving: of every request that can be compared, with its interval and with what of it is estimated."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from gateway.parts.ledger.saving import ESTIMATED_COST, SAVING_SQL, net_saving, sums_of


def recorded(alone: float | None, *costs: float, estimated: int = 0, **more: Any) -> dict[str, Any]:
    """A record whose calls cost so much; of the first so many the gateway counted the tokens."""
    calls = [{"cost_usd": usd, "estimated": place < estimated} for place, usd in enumerate(costs)]
    return {
        "counterfactual_usd": alone, "cost_usd": sum(costs), "calls": calls, "cost_unknown": False,
        "answer_estimated": False, "usage_estimated": estimated > 0, **more,
    }  # fmt: skip


RECORDS = (
    recorded(3.0, 1.5, 0.5), recorded(3.0, 1.0, estimated=1), recorded(4.0, 0.75, 0.25, estimated=1),
    recorded(9.0, 1.0, cost_unknown=True), recorded(None, 5.0), recorded(2.0, 4.0, answer_estimated=True),
)  # fmt: skip


def test_the_interval_is_that_of_a_sum() -> None:
    """Of three requests that save 1, 2 and 3 dollars: 6, and 1.96 times the root of three times their variance."""
    saving = net_saving(sums_of(RECORDS[:3]))
    assert saving is not None and (saving.usd, saving.requests, saving.alone_usd) == (6.0, 3, 10.0)
    assert saving.share == pytest.approx(0.6)
    assert (saving.low, saving.high) == pytest.approx((6 - 3.3948, 6 + 3.3948), abs=1e-3)


def test_all_that_can_be_compared_is_in_it() -> None:
    """Estimated or not, dearer or not; neither what has an unknown price nor what nobody can be compared with."""
    saving = net_saving(sums_of(RECORDS))
    assert saving is not None and (saving.usd, saving.requests) == (4.0, 4)
    assert (saving.estimated, saving.estimated_usd) == (3, 1.75)
    assert net_saving(sums_of(RECORDS[3:5])) is None


def test_pages_and_reports_add_up_the_same() -> None:
    """The sums in SQL are those in Python."""
    with duckdb.connect() as database:
        database.execute(
            """CREATE TABLE rows (counterfactual_usd DOUBLE, cost_usd DOUBLE, cost_unknown BOOLEAN,
            answer_estimated BOOLEAN, usage_estimated BOOLEAN, calls STRUCT(cost_usd DOUBLE, estimated BOOLEAN)[])"""
        )
        names = ("counterfactual_usd", "cost_usd", "cost_unknown", "answer_estimated", "usage_estimated", "calls")
        for one in RECORDS:
            database.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)", [one[name] for name in names])
        cursor = database.execute(f"SELECT {SAVING_SQL} FROM (SELECT *, {ESTIMATED_COST} AS estimated_cost FROM rows)")
        columns, row = [column[0] for column in cursor.description or ()], cursor.fetchone()
    assert dict(zip(columns, row or (), strict=True)) == pytest.approx(sums_of(RECORDS))
