"""Names of tools that OpenAI's APIs find too long: cut to the same one everywhere, and given back in replies."""

from __future__ import annotations

import copy
from typing import Any

from gateway.dialects.tool_names import restore_names, short_name, with_short_names

LONG = "a" * 65


def test_a_name_is_cut_to_one_that_no_other_is_cut_to() -> None:
    assert short_name("a" * 64) == "a" * 64
    assert len({short_name("a" * length) for length in range(65, 129)}) == 64
    assert {len(short_name("a" * length)) for length in range(65, 129)} == {64}


def test_tools_choices_and_calls_are_cut_and_the_body_stays_as_it_is() -> None:
    function = {"type": "function", "function": {"name": LONG, "parameters": {}}}
    custom = {"type": "custom", "custom": {"name": LONG + "c"}}
    chosen = {"mode": "auto", "tools": [{"type": "function", "function": {"name": LONG}}]}
    body: dict[str, Any] = {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "tool_calls": [{"id": "c", **copy.deepcopy(function)}]},
        ],
        "tools": [function, custom, {"type": "function", "function": {"name": "short"}}],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": chosen},
    }
    before = copy.deepcopy(body)
    changed, names = with_short_names(body)
    assert body == before
    assert LONG not in str(changed)
    assert names == {short_name(LONG): LONG, short_name(LONG + "c"): LONG + "c"}
    assert changed["messages"][0] is body["messages"][0]
    turn = changed["messages"][1]
    assert restore_names(turn, names)
    assert turn == before["messages"][1]


def test_names_that_fit_change_nothing() -> None:
    tools = [{"type": "function", "function": {"name": "a" * 64}}]
    assert with_short_names({"messages": [], "tools": tools, "tool_choice": "auto"}) == ({}, {})
    assert not restore_names({"tool_calls": [{"function": {"name": "other"}}]}, {"short": LONG})
