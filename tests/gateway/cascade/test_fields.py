"""What a call sends for the fields that several levels set."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.cascade.fields import changes_to, plan_of
from policies.fields import SetFields

Json = dict[str, Any]


def changed(body: Json, *levels: Json, given: tuple[str, ...] = ()) -> Json:
    """What is sent otherwise, for these levels, the least specific first."""
    return changes_to(body, plan_of([SetFields.model_validate(level) for level in levels]), given)


def test_the_most_specific_level_counts() -> None:
    """Each field by itself, for open ones and for forced ones."""
    backend: Json = {"set": {"verbosity": "high", "seed": 1}, "force": {"service_tier": "flex"}}
    tier: Json = {"set": {"verbosity": "low"}, "force": {"service_tier": "priority"}}
    assert changed({}, backend, tier) == {"verbosity": "low", "seed": 1, "service_tier": "priority"}
    assert changed({"verbosity": "medium", "service_tier": "auto"}, backend, tier) == {
        "seed": 1,
        "service_tier": "priority",
    }


def test_null_of_the_client_leaves_a_field_open() -> None:
    """As the APIs take it."""
    assert changed({"verbosity": None}, {"set": {"verbosity": "low"}}) == {"verbosity": "low"}


def test_null_of_a_more_specific_level_sets_nothing() -> None:
    """Forced, it takes away what the client gives."""
    assert changed({}, {"set": {"verbosity": "low"}}, {"set": {"verbosity": None}}) == {}
    assert changed({"verbosity": "low"}, {"force": {"verbosity": None}}) == {"verbosity": None}


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ({"temperature": 1.2}, {"temperature": 0.7}),
        ({"temperature": 0.5}, {}),
        ({"temperature": 0.1}, {"temperature": 0.2}),
        ({}, {"temperature": 0.7}),
        ({"temperature": "warm"}, {}),
    ],
)
def test_bounds_limit_what_the_client_asks_for(body: Json, sent: Json) -> None:
    """A field that nobody gives is sent at the upper limit; what is no number is the backend's to refuse."""
    assert changed(body, {"set": {"temperature": {"at_most": 0.7, "at_least": 0.2}}}) == sent


def test_a_lower_bound_alone_sends_nothing() -> None:
    """Nobody knows whether the model's default is below it."""
    assert changed({}, {"set": {"top_p": {"at_least": 0.1}}}) == {}


def test_bounds_limit_what_another_level_sets_but_not_what_is_forced() -> None:
    """A limit of the config holds for the policy's values."""
    bound: Json = {"set": {"temperature": {"at_most": 0.7}}}
    assert changed({}, bound, {"set": {"temperature": 0.9}}) == {"temperature": 0.7}
    assert changed({}, bound, {"force": {"temperature": 0.9}}) == {"temperature": 0.9}


def test_all_words_for_reasoning_are_one_field() -> None:
    """Who gives one of them leaves none open; forcing one takes the others away."""
    low: Json = {"reasoning_effort": "low"}
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 2048}}
    assert changed({"reasoning": {"max_tokens": 900}}, {"set": low}) == {}
    assert changed(thinking, {"force": low}) == {"thinking": None, "reasoning_effort": "low"}
    assert changed({}, {"set": thinking}, {"set": low}) == low
    assert changed({}, {"set": low}, given=("reasoning_effort",)) == {}
