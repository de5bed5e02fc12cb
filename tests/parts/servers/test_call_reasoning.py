"""What an answer reasoned before its calls is noted, and put back where a client has left it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gateway.backends.server_forms import Note
from gateway.parts.servers.call_reasoning import AnswerNotes, lacking, with_reasoning


class Memory:
    """Notes by space and id."""

    def __init__(self) -> None:
        self.notes: dict[tuple[str, str], Note | None] = {}

    def keep(self, space: str, call_id: str, note: Note | None) -> None:
        self.notes[space, call_id] = note

    async def find(self, space: str, call_ids: Sequence[str]) -> Mapping[str, Note]:
        return {one: note for one in call_ids if (note := self.notes.get((space, one))) is not None}


def call(ident: str, **more: Any) -> dict[str, Any]:
    return {"id": ident, "type": "function", "function": {"name": "look", "arguments": "{}"}, **more}


def assistant(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def noted(memory: Memory, *deltas: dict[str, Any], space: str = "s") -> None:
    notes = AnswerNotes()
    for delta in deltas:
        notes.add(delta)
        notes.called(delta)
    notes.keep(memory, space)


async def test_pieces_of_a_stream_come_back_as_one_text() -> None:
    memory = Memory()
    noted(
        memory, {"reasoning": "I "}, {"reasoning": "look."}, {"tool_calls": [{"index": 0, **call("functions.look:0")}]}
    )
    made = await with_reasoning([assistant(call("functions.look:0"))], memory, "s")
    assert made == [assistant(call("functions.look:0"), reasoning="I look.")]


async def test_blocks_and_details_are_joined_as_their_server_ends_them() -> None:
    memory = Memory()
    pieces: list[dict[str, Any]] = [
        {"thinking": "a"},
        {"thinking": "b"},
        {"thinking": "", "signature": "c2ln"},
        {"thinking": "c"},
    ]
    blocks = [{"thinking_blocks": [{"type": "thinking", **one}]} for one in pieces]
    details = [{"reasoning_details": [{"type": "reasoning.text", "text": one, "index": 0}]} for one in ("x", "y")]
    noted(memory, *blocks, *details, assistant(call("c1")))
    made = await with_reasoning([assistant(call("c1"))], memory, "s")
    assert made is not None
    assert made[0]["thinking_blocks"] == [
        {"type": "thinking", "thinking": "ab", "signature": "c2ln"},
        {"type": "thinking", "thinking": "c"},
    ]
    assert made[0]["reasoning_details"] == [{"type": "reasoning.text", "text": "xy", "index": 0}]


@pytest.mark.parametrize("shown", ["functions_look_0", "functions_look_0_2"])
async def test_ids_are_known_as_clients_of_other_apis_get_them(shown: str) -> None:
    """Anthropic's API takes few characters in an id, and each id once in a conversation."""
    memory = Memory()
    noted(memory, assistant(call("functions.look:0"), reasoning_content="so"))
    made = await with_reasoning([assistant(call(shown))], memory, "s")
    assert made is not None and made[0]["reasoning_content"] == "so"


async def test_another_space_has_none_of_it_and_what_is_there_stays() -> None:
    memory = Memory()
    noted(memory, assistant(call("c1"), reasoning_content="so"))
    assert await with_reasoning([assistant(call("c1"))], memory, "other") is None
    own = assistant(call("c1"), reasoning_content="as the client says")
    assert await with_reasoning([own], memory, "s") == [own]


async def test_signatures_of_calls_find_their_places() -> None:
    memory, extra = Memory(), {"google": {"thought_signature": "c2ln"}}
    noted(memory, assistant(call("c1", extra_content=extra), call("c2")))
    extra["google"]["thought_signature"] = "sealed since"
    made = await with_reasoning([assistant(call("c1"), call("c2"))], memory, "s")
    assert made == [assistant(call("c1", extra_content={"google": {"thought_signature": "c2ln"}}), call("c2"))]


async def test_an_answer_without_reasoning_is_known_to_have_none_and_one_without_calls_is_not_noted() -> None:
    memory = Memory()
    noted(memory, assistant(call("c1")))
    noted(memory, {"role": "assistant", "content": "a", "reasoning_content": "so"})
    assert memory.notes == {("s", "c1"): None}


@pytest.mark.parametrize("calls", [None, [], "x", [1], [{}], [{"id": 3}]])
def test_calls_of_a_wrong_form_are_left_to_the_server(calls: Any) -> None:
    assert lacking([{"role": "assistant", "content": "", "tool_calls": calls}]) == {}
