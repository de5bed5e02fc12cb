"""Budgets as people write them."""

from __future__ import annotations

import pytest

from gateway.parts.access.quotas.terms import Budget


@pytest.mark.parametrize(
    ("text", "usd", "per", "zone"),
    [
        ("25/month", 25, "month", "UTC"),
        (" $0.5/day@Europe/Berlin ", 0.5, "day", "Europe/Berlin"),
        ("100 per total", 100, "total", "UTC"),
        ("5 a week America/New_York", 5, "week", "America/New_York"),
    ],
)
def test_a_budget_is_read_and_written_back(text: str, usd: float, per: str, zone: str) -> None:
    budget = Budget.read(text)
    assert (budget.usd, budget.per, budget.zone) == (usd, per, zone)
    assert Budget.read(budget.text) == budget


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "25/month"), ("5", "25/month"), ("-5/day", "25/month"), ("1.2.3/day", "number"), ("5/hour", "25/month"),
     ("5/day@Nowhere", "no time zone"), ("99999999/day", "9000000")],
)  # fmt: skip
def test_what_is_no_budget_says_how_one_is_written(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Budget.read(text)
