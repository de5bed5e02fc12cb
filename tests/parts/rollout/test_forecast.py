"""How long a canary would take, from recorded requests: what counts as a unit, and that a real trial takes as long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import numpy as np
import pytest

from gateway.parts.rollout.forecast import CanaryForecast, canary_forecast
from gateway.parts.rollout.policy import Rollout
from gateway.parts.rollout.trial import Trial

HOUR = 3600.0
RULES: dict[str, Any] = {"steps": ["10%", "50%"], "step_min": "1s", "step_max": "1000h"}


@pytest.fixture
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as made:
        made.execute(
            "CREATE TABLE requests (surface VARCHAR, tenant VARCHAR, request_id VARCHAR, started_s DOUBLE, "
            "unit VARCHAR, cost_usd DOUBLE, cost_unknown BOOLEAN, status INTEGER, error VARCHAR, ttft_ms DOUBLE, "
            "good BOOLEAN, given STRUCT(turns INTEGER))"
        )
        made.execute("CREATE TABLE feedback (tenant VARCHAR, request_id VARCHAR, score DOUBLE)")
        yield made


def record(database: duckdb.DuckDBPyConnection, lengths: Sequence[int], *, units: bool, bad: float = 0.05) -> None:
    """Record conversations of these lengths within an hour, of five tenants; those of one begin one after the other."""
    draw, rows = np.random.default_rng(3), []
    for number, length in enumerate(lengths):
        for turn in range(1, length + 1):
            met = bool(draw.random() >= bad)
            started = HOUR * (number + turn / (length + 1)) / len(lengths)
            request, unit = f"r{number}-{turn}", f"{number:016x}" if units else ""
            cost, ttft = 0.001 * draw.gamma(2.0), 1000 * draw.gamma(4.0, 0.05)
            words = f"'chat', 't{number % 5}', '{request}', {started}, '{unit}', {cost}, NULL, 200, NULL, {ttft}"
            rows.append(f"({words}, {met}, {{'turns': {turn}}})")
    database.execute(f"INSERT INTO requests VALUES {', '.join(rows)}")


def forecast(database: duckdb.DuckDBPyConnection, goodput: float = 0.95, **rules: Any) -> CanaryForecast:
    made = canary_forecast(database, "chat", None, Rollout(**{**RULES, **rules}) if rules else None, goodput)
    assert made is not None
    return made


LENGTHS = [1, 2, 3, 6] * 30


def test_conversations_are_counted_and_not_their_requests(database: duckdb.DuckDBPyConnection) -> None:
    """By the unit where an earlier rollout recorded it, else by the first turns; tenants by their names."""
    record(database, LENGTHS, units=False)
    by_turns = forecast(database, sticky="conversation", guard={"goodput": "-2%"})
    assert (by_turns.counted, by_turns.requests_per_unit, by_turns.share) == ("turns", 3.0, 0.1)
    assert by_turns.units_per_hour == pytest.approx(0.1 * len(LENGTHS), rel=0.02)
    by_tenants = forecast(database, sticky="tenant", guard={"goodput": "-2%"})
    assert (by_tenants.counted, by_tenants.requests_per_unit) == ("tenants", 72.0)
    database.execute("DELETE FROM requests")
    record(database, LENGTHS, units=True)
    by_units = forecast(database, sticky="conversation", guard={"goodput": "-2%"})
    assert (by_units.counted, by_units.requests_per_unit) == ("units", 3.0)
    # The same requests: what is only known by the turns comes to nearly the same.
    assert by_turns.passes is not None and by_units.passes == pytest.approx(by_turns.passes, rel=0.25)


def test_the_policys_own_step_and_guards_count(database: duckdb.DuckDBPyConnection) -> None:
    """A tighter guard takes longer; without a rollout, what is assumed is said."""
    record(database, LENGTHS, units=True)
    tight, loose = (forecast(database, guard={"goodput": f"-{one}%"}) for one in (2, 10))
    assert tight.passes is not None and loose.passes is not None and tight.passes > 3 * loose.passes
    assumed = forecast(database)
    assert (assumed.share, assumed.own, [one.guard for one in assumed.guards]) == (0.05, False, ["goodput"])
    assert "canary at 5%: " in assumed.lines()[0] and "no `rollout`" in assumed.lines()[0]
    guards = {"goodput": "-5%", "quality": "-2%", "ttft_p95": "+50ms", "cost": "+10%"}
    every = forecast(database, guard=guards, step_max="2s", undecided="rollback")
    assert [one.guard for one in every.guards] == ["goodput", "ttft_p95", "cost"] and every.unknown == ("quality",)
    assert every.passes is None and "settles quality; rollback" in every.lines()[1]
    rated = "SELECT tenant, request_id, 0.8 FROM requests USING SAMPLE reservoir(30 ROWS) REPEATABLE (1)"
    database.execute(f"INSERT INTO feedback {rated}")
    every = forecast(database, guard=guards, step_max="2s", undecided="rollback")
    assert every.passes == max(one.within or 0 for one in every.guards) and not every.unknown
    assert "a step ends after 0.000556 h: rollback" in every.lines()[1]


def test_a_trial_takes_about_as_long(database: duckdb.DuckDBPyConnection) -> None:
    """A candidate as good passes, and one that is worse is taken back, between half and twice the forecast."""
    record(database, LENGTHS, units=True)
    [goodput] = forecast(database, guard={"goodput": "-15%"}).guards
    assert goodput.within is not None and goodput.crossed is not None and goodput.worse == 0.3
    assert moves_after(goodput.within / 2).count("pass") < 2 <= moves_after(goodput.within * 2).count("pass")
    worse = [moves_after(goodput.crossed * factor, worse=0.3).count("rollback") for factor in (0.5, 2)]
    assert worse[0] < 2 <= worse[1]


def moves_after(units: float, worse: float = 0.0) -> list[str]:
    """Return what three trials do after so many units of the candidate."""
    moves = []
    for seed in range(3):
        draw = np.random.default_rng(seed)
        trial = Trial(Rollout(**{**RULES, "guard": {"goodput": "-15%"}}), 0.1, 0.0, settle_s=0.0)
        for number in range(int(units * 10)):
            arm = "candidate" if number % 10 == 0 else "control"
            bad = 0.05 + (worse if arm == "candidate" else 0.0)
            for turn in range(LENGTHS[number // 10 % 4]):
                ledger = {
                    "arm": arm, "path": "direct", "unit": f"{number:016x}", "total_ms": 1.0, "tenant": "t",
                    "request_id": f"{number}-{turn}", "cost_usd": 0.001, "slo": {"ttft_p99": draw.random() >= bad},
                    "status": 200, "error": None, "ttft_ms": None,
                }  # fmt: skip
                trial.add(ledger, 10.0 + number / 100)
        moves.append(trial.verdict(11.0 + units / 10).move)
    return moves
