"""The policy's limits on what a model may produce, laid over a client's body."""

from __future__ import annotations

from typing import Any

import pytest

from policies.model import Output
from routing.features import effective_body


@pytest.mark.parametrize(
    ("given", "sent", "own"),
    [
        ({}, {"max_completion_tokens": 64}, False),
        ({"max_tokens": None}, {"max_tokens": None, "max_completion_tokens": 64}, False),
        ({"max_tokens": 10}, {"max_tokens": 10}, True),
        ({"max_tokens": 64}, {"max_tokens": 64}, True),
        ({"max_tokens": 65}, {"max_tokens": 64}, False),
        ({"max_completion_tokens": 100_000}, {"max_completion_tokens": 64}, False),
        ({"max_completion_tokens": 10, "max_tokens": 100_000}, {"max_completion_tokens": 10, "max_tokens": 64}, True),
        ({"max_completion_tokens": 100_000, "max_tokens": 10}, {"max_completion_tokens": 64, "max_tokens": 10}, True),
        ({"max_completion_tokens": 100, "max_tokens": 200}, {"max_completion_tokens": 64, "max_tokens": 64}, False),
    ],
)
def test_every_limit_is_held_to_the_policys(given: dict[str, Any], sent: dict[str, Any], own: bool) -> None:
    """Whichever of the two a backend heeds, it is within the cap; the client's own choice is one that is below it."""
    assert effective_body(given, Output(max_tokens=64)) == (sent, own)


def test_without_a_cap_the_body_is_the_clients() -> None:
    """Nothing is laid over it, and a limit in it is its own."""
    body = {"max_tokens": 100_000}
    assert effective_body(body, Output()) == (body, True)
    assert effective_body({}, Output()) == ({}, False)


@pytest.mark.parametrize(
    ("given", "sent"), [({}, ["END"]), ({"stop": "a"}, ["a", "END"]), ({"stop": ["a", "b"]}, ["a", "b", "END"])]
)
def test_the_policys_stops_come_after_the_clients(given: dict[str, Any], sent: list[str]) -> None:
    """Both end the answer."""
    assert effective_body(given, Output(stop=("END",)))[0]["stop"] == sent
