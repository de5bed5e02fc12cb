"""Signed reasoning goes back to the backend that made it, and to no other."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.dialects.reasoning import Maker, maker_name, maker_of
from gateway.parts.servers.chat_reasoning import (
    TranslatedReasoning,
    checks_calls,
    own_reasoning,
    seal_reasoning,
    with_joined_calls,
    with_short_ids,
    with_signed_calls,
)

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


# --- clients of other dialects, and what single models want otherwise -------------------------------------------------

BLOCKS: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "two and two", "signature": "c2ln"},
    {"type": "redacted_thinking", "data": "Z2VoZWlt"},
]
CALL: dict[str, Any] = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
SIGNED_CALL: dict[str, Any] = {**CALL, "extra_content": {"google": {"thought_signature": "dGhvdWdodA=="}}}


def as_details(message: dict[str, Any], maker: Maker, *, calls: bool = True) -> dict[str, Any]:
    """The message as a client of another dialect gets it."""
    TranslatedReasoning(maker, calls=calls).turn(message)
    seal_reasoning(message, maker)
    return message


def test_other_spellings_become_details_and_come_back() -> None:
    """Blocks and signatures of calls, which other dialects have no place for, return to where the server had them."""
    message = {"role": "assistant", "content": None, "thinking_blocks": BLOCKS, "tool_calls": [SIGNED_CALL]}
    handed_out = as_details(copy_of(message), ONE)
    assert "thinking_blocks" not in handed_out and "extra_content" not in handed_out["tool_calls"][0]
    assert [one["type"] for one in handed_out["reasoning_details"]] == [
        "reasoning.text", "reasoning.encrypted", "reasoning.encrypted",
    ]  # fmt: skip
    found = own_reasoning([USER, handed_out], ONE)
    assert found == ([USER, message], False)
    elsewhere = own_reasoning([USER, handed_out], OTHER)
    assert elsewhere == ([USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}], True)


def test_signatures_of_calls_stay_where_a_dialect_has_a_place_for_them() -> None:
    handed_out = as_details({"role": "assistant", "tool_calls": [copy_of(SIGNED_CALL)]}, ONE, calls=False)
    assert "reasoning_details" not in handed_out
    assert own_reasoning([handed_out], ONE) == ([{"role": "assistant", "tool_calls": [SIGNED_CALL]}], False)


def test_pieces_of_a_streamed_block_have_one_index_up_to_its_signature() -> None:
    turned = TranslatedReasoning(ONE, calls=True)
    indexes = []
    for piece in ({"thinking": "a"}, {"thinking": "b"}, {"thinking": "", "signature": "c2ln"}, {"thinking": "c"}):
        delta: dict[str, Any] = {"thinking_blocks": [{"type": "thinking", **piece}]}
        assert turned.turn(delta)
        indexes += [one["index"] for one in delta["reasoning_details"]]
    assert indexes == [0, 0, 0, 1]
    assert not turned.turn({"content": "4"})


@pytest.mark.parametrize(
    ("model", "checks"),
    [
        ("gemini-3-pro-preview", True),
        ("google/gemini-3.6-flash", True),
        ("gemini-flash-latest", True),
        ("gemini-2.5-pro", False),
        ("gpt-5.6", False),
    ],
)
def test_gemini_checks_calls_from_version_3_on(model: str, checks: bool) -> None:
    assert checks_calls(model) is checks


def test_calls_of_other_models_are_marked_in_the_turn_in_progress_alone() -> None:
    """The first of each message; those that have a signature stay as they are."""
    calls = {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "call_2"}]}
    results = [{"role": "tool", "tool_call_id": ident, "content": "4"} for ident in ("call_1", "call_2")]
    own = {"role": "assistant", "content": None, "tool_calls": [{**SIGNED_CALL, "id": "call_3"}]}
    last = {"role": "tool", "tool_call_id": "call_3", "content": "4"}
    assert with_signed_calls([USER, calls, *results, USER]) is None
    assert with_signed_calls([USER, own, last]) is None
    changed = with_signed_calls([USER, calls, *results, USER, calls, *results, own, last])
    assert changed is not None
    signed = {**CALL, "extra_content": {"google": {"thought_signature": "skip_thought_signature_validator"}}}
    marked = {**calls, "tool_calls": [signed, {**CALL, "id": "call_2"}]}
    assert changed == [USER, calls, *results, USER, marked, *results, own, last]


def test_long_ids_of_calls_are_shortened_with_those_of_their_results() -> None:
    """OpenAI takes 40 characters; vLLM's have 46."""
    long = f"chatcmpl-tool-{'a' * 32}"
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": long}, CALL]},
        {"role": "tool", "tool_call_id": long, "content": "4"},
        {"role": "tool", "tool_call_id": "call_1", "content": "4"},
    ]
    changed = with_short_ids(messages)
    assert changed is not None
    (first, second), result = changed[1]["tool_calls"], changed[2]
    assert first["id"] == result["tool_call_id"] != long and len(first["id"]) <= 40
    assert (second, changed[3]) == (CALL, messages[3])
    assert with_short_ids([messages[0], messages[3]]) is None


def test_calls_of_neighbouring_turns_are_one_turn() -> None:
    """So that all of their results follow it; a text between them, and turns without calls, stay where they are."""
    one, two = {**CALL, "id": "call_1"}, {**CALL, "id": "call_2"}
    first = {"role": "assistant", "content": "a", "tool_calls": [one]}
    second = {"role": "assistant", "content": None, "tool_calls": [two]}
    results = [{"role": "tool", "tool_call_id": ident, "content": "4"} for ident in ("call_1", "call_2")]
    joined = {"role": "assistant", "content": "a", "tool_calls": [one, two]}
    assert with_joined_calls([USER, first, second, *results]) == [USER, joined, *results]
    assert with_joined_calls([USER, first, results[0], second, results[1]]) is None
    assert with_joined_calls([{"role": "assistant", "content": "b"}, first, results[0]]) is None
