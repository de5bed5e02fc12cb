"""Names of tools that OpenAI's APIs find too long: cut to the same one everywhere, and given back in replies."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from gateway.parts.servers.custom_tools import plain_name, restore_names, short_name, with_names

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
    changed, names = with_names(body)
    assert body == before
    assert LONG not in str(changed)
    assert names == {short_name(LONG): LONG, short_name(LONG + "c"): LONG + "c"}
    assert changed["messages"][0] is body["messages"][0]
    turn = changed["messages"][1]
    assert restore_names(turn, names)
    assert turn == before["messages"][1]


def test_names_that_fit_change_nothing() -> None:
    tools = [{"type": "function", "function": {"name": "a" * 64}}]
    assert with_names({"messages": [], "tools": tools, "tool_choice": "auto"}) == ({}, {})
    assert not restore_names({"tool_calls": [{"function": {"name": "other"}}]}, {"short": LONG})


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("fs.read", "fs_read_"),
        ("a/b:c", "a_b_c_"),
        ("lüge", "l_ge_"),
        ("x" * 129, "x" * 119 + "_"),
        ("ok-name_1", "ok-name_1"),
    ],
)
def test_names_that_anthropic_takes(name: str, begins: str) -> None:
    """A changed name is told from others by its end, and comes back as the client's own."""
    tool = {"type": "function", "function": {"name": name}}
    body = {"tools": [tool], "messages": [{"role": "assistant", "tool_calls": [{"id": "a", **tool}]}]}
    changed, names = with_names(body, plain_name)
    sent = {**body, **changed}["tools"][0]["function"]["name"]
    assert sent.startswith(begins) and len(sent) <= 128 and re.fullmatch("[a-zA-Z0-9_-]+", sent)
    assert plain_name(name) == sent != plain_name(f"{name}.") and names == ({} if sent == name else {sent: name})
    turn = {"tool_calls": [{"function": {"name": sent}}]}
    restore_names(turn, names)
    assert turn["tool_calls"][0]["function"]["name"] == name
