"""Signed reasoning goes back to the backend that made it, and to no other."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.dialects.chat_reasoning import own_reasoning, seal_reasoning
from gateway.dialects.reasoning import maker_name, maker_of

ONE, OTHER = maker_of("one", "key"), maker_of("other", "key")
SIGNED: dict[str, Any] = {
    "role": "assistant",
    "content": "4",
    "reasoning_content": "two and two",
    "reasoning_details": [
        {"type": "reasoning.text", "text": "two and two", "signature": "c2ln"},
        {"type": "reasoning.encrypted", "data": "Z2VoZWlt", "id": "rs_1"},
    ],
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "add", "arguments": "{}"},
            "extra_content": {"google": {"thought_signature": "dGhvdWdodA=="}},
        }
    ],
}
USER = {"role": "user", "content": "2 + 2?"}


def copy_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: copy_of(member) for name, member in value.items()}
    return [copy_of(item) for item in value] if isinstance(value, list) else value


def test_the_maker_gets_its_own_back() -> None:
    """What was sealed on the way out is on the way in just what the backend had said."""
    message = copy_of(SIGNED)
    assert seal_reasoning(message, ONE)
    assert message != SIGNED and maker_name(message["reasoning_details"][1]["data"]) == ONE.name
    assert own_reasoning([USER, message], ONE) == ([USER, SIGNED], False)


def test_another_backend_gets_none_of_it() -> None:
    """Signed items are removed, and that is reported; readable reasoning and the calls themselves stay."""
    message = copy_of(SIGNED)
    seal_reasoning(message, ONE)
    own = own_reasoning([USER, message], OTHER)
    assert own is not None and own[1]
    assert own[0][1] == {
        "role": "assistant",
        "content": "4",
        "reasoning_content": "two and two",
        "tool_calls": [{name: value for name, value in SIGNED["tool_calls"][0].items() if name != "extra_content"}],
    }
    assert message["reasoning_details"], "the client's own message stays as it is"


@pytest.mark.parametrize("change", ["tl1.", "tl1.x.y.z", "tl1.{name}.0000000000000000.c2ln"])
def test_a_forged_seal_is_another_makers(change: str) -> None:
    """A text that claims a maker without its tag is removed."""
    details = [{"type": "reasoning.text", "text": "t", "signature": change.format(name=ONE.name)}]
    own = own_reasoning([{"role": "assistant", "content": "", "reasoning_details": details}], ONE)
    assert own == ([{"role": "assistant", "content": ""}], True)


def test_what_nobody_sealed_is_left_alone() -> None:
    """Messages without sealed texts are passed on as they came, and plain ones are not even looked at."""
    assert own_reasoning([USER, SIGNED], ONE) is None
    assert not seal_reasoning({"role": "assistant", "content": "hi"}, ONE)
    assert not seal_reasoning({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, ONE)
