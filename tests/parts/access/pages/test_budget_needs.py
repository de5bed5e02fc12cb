"""What the console says of budgets that run out."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.parts.access.keys.budgets import BudgetStanding
from gateway.parts.access.pages.budget_needs import budget_needs
from gateway.parts.access.quotas.accounts import OwnerAccounts
from gateway.parts.access.quotas.terms import Terms
from policies.quantities import NANO

NOON = datetime(2026, 11, 26, 12, tzinfo=UTC).timestamp()


def spent(usd: float, of: float = 10.0, per: str = "day", kind: str = "key", owner: str = "k_1") -> BudgetStanding:
    """A budget at noon, of which so much is spent."""
    terms = Terms.model_validate({"budgets": [{"usd": of, "per": per}]})
    [account] = OwnerAccounts(kind, owner, terms).money(NOON)  # type: ignore[arg-type]
    return BudgetStanding(account, round(usd * NANO), 0)


@pytest.mark.parametrize(
    ("budget", "level", "words"),
    [
        (spent(10.2), "bad", "of key ada (k_1) is spent: $10.20 of $10.00 a day; its requests are refused until 2026-"),
        (spent(9.5, per="total"), "warn", "runs out: $9.50 of $10.00 in all (95%)."),
        (spent(6.0), "warn", "(60%), and is spent by about 2026-11-26 20:00 UTC at this pace"),
        (spent(4.9), None, ""),  # the day's half is over
        (spent(6.0, per="month"), None, ""),
        (spent(9.9, kind="team", owner="web"), "warn", "The budget of team web runs out"),
    ],
)  # fmt: skip
def test_a_budget_that_runs_out_is_told_before_it_is_spent(
    budget: BudgetStanding, level: str | None, words: str
) -> None:
    found = list(budget_needs([budget], {"k_1": "ada"}, NOON))
    assert [need.level for need in found] == ([] if level is None else [level])
    assert all(words in need.what for need in found), found


def test_of_many_budgets_the_most_spent_are_told() -> None:
    found = list(budget_needs([spent(11.0, owner=f"k_{number}") for number in range(8)], {}, NOON))
    assert len(found) == 6 and found[-1].what == "3 more budgets are spent or run out."
