"""Which request is a session's last, and which comes too late."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parts.agents.admission import Used, verdict
from gateway.parts.agents.policy import SessionCaps


@pytest.mark.parametrize(
    ("caps", "used", "expected"),
    [
        ({"calls": 3}, Used(2, 1, 9.0, 9e9), "open"),
        ({"calls": 3}, Used(3, 2, 0.0, 0.0), "last calls"),
        ({"calls": 3}, Used(4, 3, 0.0, 0.0), "over calls"),
        ({"calls": 3, "on_cap": "refuse"}, Used(3, 2, 0.0, 0.0), "open"),
        ({"calls": 3, "on_cap": "refuse"}, Used(4, 3, 0.0, 0.0), "over calls"),
        ({"usd": 1}, Used(1, 0, 0.0, 0.0), "open"),
        ({"usd": 1}, Used(9, 8, 0.8, 0.0), "open"),
        ({"usd": 1}, Used(10, 9, 0.9, 0.0), "last usd"),
        ({"usd": 1}, Used(10, 8, 0.8, 0.0), "last usd"),  # another one is under way
        ({"usd": 1}, Used(11, 10, 1.0, 0.0), "over usd"),
        ({"usd": 1, "on_cap": "refuse"}, Used(10, 9, 0.9, 0.0), "open"),
        ({"time": "60s"}, Used(1, 0, 0.0, 0.0), "open"),
        ({"time": "60s"}, Used(5, 4, 0.0, 40.0), "open"),
        ({"time": "60s"}, Used(6, 5, 0.0, 50.0), "last time"),
        ({"time": "60s"}, Used(7, 6, 0.0, 60.0), "over time"),
        ({"calls": 2, "usd": 1}, Used(2, 1, 1.5, 0.0), "over usd"),
    ],
)
def test_a_request_is_judged_by_what_its_session_has_used(caps: dict[str, Any], used: Used, expected: str) -> None:
    outcome, cap = verdict(SessionCaps.model_validate(caps), used)
    assert (f"{outcome} {cap}" if outcome != "open" else outcome) == expected


def test_a_section_without_a_cap_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="caps nothing"):
        SessionCaps.model_validate({"on_cap": "refuse"})
