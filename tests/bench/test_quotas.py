"""What the bench of limits and budgets measures, in small: the driver of leases over many workers, in virtual time."""

from __future__ import annotations

import pytest

from tests.bench.quotas import agents, main, minute


@pytest.mark.parametrize(("unit", "limit"), [("requests", 60), ("tokens", 30_000)])
def test_workers_keep_to_one_limit_in_any_minute(unit: str, limit: int) -> None:
    """At twice the limit over 8 workers no 60 seconds have more than it, and little of it is left unused."""
    figures = minute(keys=2, workers=8, limit=limit, seconds=100.0, unit=unit)
    assert (figures.most, figures.first) == (1.0, 1.0)
    assert figures.mean > 0.98


@pytest.mark.parametrize("each", [1, 4])
def test_agents_spend_a_budget_to_its_end(each: int) -> None:
    """Requests that could cost a dollar and cost cents are let in until all is spent or others need it, and not far
    beyond; an agent that is alone is refused nothing before."""
    figures = agents(keys=6, each=each)
    assert figures.requests > 60
    assert (figures.false, figures.overspent_usd) == (0, 0.0)
    assert figures.held < (figures.requests / 10 if each > 1 else 1)
    assert figures.over_limit_usd < 0.5


def test_interleavings_are_explored_by_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """It says how many orders of events it has seen."""
    assert main(["--interleavings", "200", "--first", "7", "--processes", "1"]) == 0
    assert "200 interleavings from seed 7: nothing breaks" in capsys.readouterr().out
