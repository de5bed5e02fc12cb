"""Replies: the API's messages and events to chat completions, and from these back to what its clients get."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event

from gateway.chat.completions import Assembler, chunks_of
from gateway.dialects.native import NATIVE
from gateway.dialects.reasoning import maker_of
from gateway.parts.apis.dialects.messages.backend_replies import MessageChunks, chat_usage, completion_of
from gateway.parts.apis.dialects.messages.turns import seal
from gateway.parts.apis.dialects.messages.writer import (
    MessageEvents,
    error_body,
    message_id,
    message_of,
    messages_usage,
)
from tests.support.strict_messages import events_of, redacted, text, thinking, tool_use

MAKER = maker_of("endpoint model", "key")
CITED = {"type": "web_search_result_location", "url": "https://a.example", "title": "A", "encrypted_index": "secret"}
USAGE = {"input_tokens": 11, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 7, "output_tokens": 20}
BLOCKS = [
    {**thinking("let me see"), "signature": "sig 1"},
    text("Paris "),
    text("it is.", citations=[CITED]),
    redacted("nobody reads this"),
    {**thinking("more"), "signature": "sig 2"},
    tool_use("look", {"at": "map"}, "toolu_1"),
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [{"type": "web_search_result", "url": "https://a.example", "title": "A", "encrypted_content": "x"}],
    },
]
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": BLOCKS,
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "stop_details": None,
    "container": None,
    "usage": USAGE,
}
SEALED = [seal(block, MAKER) for block in BLOCKS]


def copied(value: Any) -> Any:
    """The value as it comes from a socket."""
    return json.loads(json.dumps(value))


def streamed(message: dict[str, Any], *, native: bool) -> list[dict[str, Any]]:
    """The chunks of a message that is streamed."""
    reader = MessageChunks(MAKER, native=native)
    chunks = [chunk for event in events_of(message) for chunk in reader.add(copied(event))]
    assert reader.finished
    return chunks


def assembled(chunks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The completion that is stored of a stream."""
    assembler = Assembler()
    for chunk in chunks:
        assembler.add(copied(chunk))
    return copied(assembler.completion())


def read(written: bytes) -> dict[str, Any]:
    """The message that the SDK puts together from a stream's events; their order is checked here: block by block."""
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    opened: list[int] = []
    current: int | None = None
    for event in filter(None, written.decode().split("\n\n")):
        name, _, data = event.partition("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        if value["type"] == "content_block_start":
            assert (current, value["index"]) == (None, len(opened))
            current = value["index"]
            opened.append(value["index"])
        elif value["type"] in ("content_block_delta", "content_block_stop"):
            assert value["index"] == current
            current = None if value["type"] == "content_block_stop" else current
        snapshot = accumulate_event(event=value, current_snapshot=snapshot, json_bufs=buffers)
    assert written.rstrip().endswith(b'data: {"type":"message_stop"}')
    assert current is None
    made: dict[str, Any] = json.loads(snapshot.model_dump_json(warnings=False, exclude_unset=True))
    return made


def written(chunks: Iterable[dict[str, Any]], *, thinks: bool = True) -> dict[str, Any]:
    """What a client's SDK makes of a stream of these chunks."""
    writer = MessageEvents("req_1", thinking=thinks)
    return read(b"".join([writer.chunk(copied(chunk)) for chunk in chunks]) + writer.done())


def test_a_message_keeps_its_own_form_for_a_client_of_the_dialect() -> None:
    """Live, stored and given whole, stored and replayed, and as JSON."""
    live = streamed(MESSAGE, native=True)
    stored = assembled(live)
    whole = copied(completion_of(MESSAGE, MAKER, native=True))
    replies = {
        "live": written(live),
        "stored": message_of(stored, thinking=False),
        "replayed": written(chunks_of(stored)),
        "whole": message_of(whole, thinking=False),
        "whole as a stream": written(chunks_of(whole)),
    }
    for name, reply in replies.items():
        assert reply["content"] == SEALED, name
        assert {**reply, "content": BLOCKS} == MESSAGE, name


def test_the_same_message_for_other_clients() -> None:
    live = assembled(streamed(MESSAGE, native=False))
    whole = completion_of(MESSAGE, MAKER, native=False)
    for completion in (live, whole):
        choice = completion["choices"][0]
        message = choice["message"]
        assert NATIVE not in message
        assert (message["content"], message["reasoning_content"]) == ("Paris it is.", "let me seemore")
        assert message["tool_calls"][0]["id"] == "toolu_1"
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"at": "map"}
        assert message["annotations"] == [
            {
                "type": "url_citation",
                "url_citation": {"url": "https://a.example", "title": "A", "start_index": 6, "end_index": 12},
            }
        ]
        assert (choice["finish_reason"], completion["id"], completion["model"]) == ("tool_calls", "msg_1", "claude")
        assert completion["usage"] == chat_usage(USAGE)
    # A client of the dialect that gets it from a backend of another loses the order of the blocks alone.
    kinds = [block["type"] for block in written(chunks_of(live))["content"]]
    assert kinds == ["thinking", "redacted_thinking", "thinking", "text", "tool_use"]


def test_usage_there_and_back() -> None:
    usage = {**USAGE, "output_tokens_details": {"thinking_tokens": 9}, "server_tool_use": None}
    chat = chat_usage(usage)
    assert (chat["prompt_tokens"], chat["completion_tokens"], chat["total_tokens"]) == (23, 20, 43)
    assert chat["completion_tokens_details"] == {"reasoning_tokens": 9}
    assert messages_usage(chat) == usage
    assert messages_usage(None) == dict.fromkeys(USAGE, 0) | {"output_tokens_details": None, "server_tool_use": None}


@pytest.mark.parametrize(
    ("stop_reason", "finish"),
    [
        ("end_turn", "stop"), ("stop_sequence", "stop"), ("pause_turn", "length"), ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"), ("tool_use", "tool_calls"), ("refusal", "content_filter"),
        ("of a later version", "stop"),
    ],
)  # fmt: skip
def test_stop_reasons(stop_reason: str, finish: str) -> None:
    assert (
        completion_of({**MESSAGE, "content": [], "stop_reason": stop_reason}, MAKER, native=False)["choices"][0][
            "finish_reason"
        ]
        == finish
    )
    assert written(streamed({**MESSAGE, "stop_reason": stop_reason}, native=True))["stop_reason"] == stop_reason


def test_a_refusal() -> None:
    details = {"type": "refusal", "category": "bio", "explanation": "I may not."}
    refusal = {**MESSAGE, "content": [], "stop_reason": "refusal", "stop_details": details}
    for completion in (completion_of(refusal, MAKER, native=False), assembled(streamed(refusal, native=False))):
        assert completion["choices"][0]["message"]["refusal"] == "I may not."
        assert completion["choices"][0]["finish_reason"] == "content_filter"
        made = message_of(completion, thinking=False)
        assert (made["stop_reason"], made["stop_details"]["explanation"]) == ("refusal", "I may not.")
    assert written(streamed(refusal, native=True))["stop_details"] == details
    assert written(streamed(refusal, native=False))["stop_details"]["explanation"] == "I may not."


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk of another backend."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **more}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "small", "choices": [choice]}


def test_a_stream_of_another_backend() -> None:
    def call(index: int, **more: Any) -> dict[str, Any]:
        return {"index": index, **more}

    made = written(
        [
            chunk({"role": "assistant", "content": ""}),
            chunk({"reasoning_content": "hm"}),
            chunk({"reasoning": "m"}),
            chunk({"content": "Hel"}),
            chunk({"content": "lo"}),
            chunk({"tool_calls": [call(0, id="c1", function={"arguments": ""})]}),
            chunk({"tool_calls": [call(0, function={"name": "look", "arguments": '{"a"'})]}),
            chunk({"tool_calls": [call(0, function={"arguments": ":1}"})]}),
            chunk({"tool_calls": [call(1, id="c2", function={"name": "stop", "arguments": ""})]}),
            chunk({}, "stop"),
            {**chunk({}), "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
        ]
    )
    assert made["content"] == [
        {"type": "thinking", "thinking": "hmm", "signature": ""},
        {"type": "text", "text": "Hello"},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"a": 1}, "caller": {"type": "direct"}},
        {"type": "tool_use", "id": "c2", "name": "stop", "input": {}, "caller": {"type": "direct"}},
    ]
    assert (made["id"], made["model"], made["stop_reason"]) == ("msg_1", "small", "tool_use")
    assert (made["usage"]["input_tokens"], made["usage"]["output_tokens"]) == (3, 4)


def call_piece(number: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    """A chunk with a piece of one tool call."""
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    call = (
        {"index": number, "function": function} if name is None else {"index": number, "id": name, "function": function}
    )
    return chunk({"tool_calls": [call]})


def test_calls_sent_in_turns_become_one_block_after_the_other() -> None:
    """Random turns of four calls and text, with empty arguments, nested ones, and braces within strings."""
    arguments = ['{"a": {"b": [1, {}]}}', '{"c": "}{ {"}', "", '{"d": "\\"}"}']
    inputs = [json.loads(each or "{}") for each in arguments]
    for seed in range(150):
        turns = random.Random(seed)
        pieces = {number: [call_piece(number, "", f"c{number}")] for number in range(4)}
        for number, whole in enumerate(arguments):
            cuts = sorted(turns.choices(range(len(whole) + 1), k=3))
            cut = [whole[start:end] for start, end in itertools.pairwise([0, *cuts, len(whole)])]
            pieces[number] += [call_piece(number, piece) for piece in cut]
        pieces[4] = [chunk({"content": piece}) for piece in ("one ", "two ", "three")]
        sent, begun = [], []
        while left := [number for number in pieces if pieces[number]]:
            number = turns.choice(left)
            if number not in begun:
                begun.append(number)
            sent.append(pieces[number].pop(0))
        content = written([*sent, chunk({}, "tool_calls")])["content"]
        calls = [block for block in content if block["type"] == "tool_use"]
        assert [(block["name"], block["input"]) for block in calls] == [
            (f"c{number}", inputs[number]) for number in begun if number < 4
        ]
        assert "".join(block["text"] for block in content if block["type"] == "text") == "one two three"


def test_a_call_after_a_whole_one_is_not_held_back() -> None:
    writer = MessageEvents("req_1", thinking=False)
    writer.chunk(call_piece(0, '{"a":1}', "look"))
    events = writer.chunk(call_piece(1, '{"b"', "stop"))
    assert events.count(b"event: content_block_stop") == events.count(b"event: content_block_start") == 1
    assert b'{\\"b\\"' in events
    assert b"content_block_delta" in writer.chunk(call_piece(1, ":2}"))


@pytest.mark.parametrize("more", ['{"a":2}', "}"])
@pytest.mark.parametrize("ended", [False, True])
def test_a_call_that_goes_on_after_its_block_was_closed_fails_the_stream(more: str, ended: bool) -> None:
    """What was written of it cannot be taken back: the client is told, and the stream has no end that says all is well.

    White space says nothing, and is left out.
    """
    writer = MessageEvents("req_1", thinking=False)
    writer.chunk(call_piece(0, '{"a":1}', "look"))
    writer.chunk(call_piece(1, '{"b":2}', "stop"))
    if ended:
        writer.chunk(chunk({}, "tool_calls"))
    assert writer.chunk(call_piece(0, " \n")) == b""
    told = writer.chunk(call_piece(0, more))
    assert told.startswith(b"event: error\n")
    assert b"call of 'look'" in told
    assert b'"upstream_invalid_response"' in told
    assert writer.chunk(chunk({"content": "later"})) == writer.done() == writer.error({"message": "later"}) == b""


def test_thinking_goes_to_clients_that_asked_for_it() -> None:
    thought = [chunk({"reasoning_content": "hm"}), chunk({"content": "Yes."}), chunk({}, "stop", stop_reason="END")]
    assert [block["type"] for block in written(thought)["content"]] == ["thinking", "text"]
    made = written(thought, thinks=False)
    assert [block["type"] for block in made["content"]] == ["text"]
    assert (made["stop_reason"], made["stop_sequence"]) == ("stop_sequence", "END")
    whole = assembled(thought)
    assert message_of(whole, thinking=False)["content"] == [{"type": "text", "text": "Yes."}]
    assert message_of(whole, thinking=True)["content"][0]["thinking"] == "hm"


@pytest.mark.parametrize(
    ("delta", "more", "reason", "sequence"),
    [
        ({"refusal": "I may not."}, {}, "refusal", None),
        ({"content": "Yes."}, {"matched_stop": "END"}, "stop_sequence", "END"),
        ({"content": "Yes."}, {"matched_stop": 128009}, "end_turn", None),
        ({"content": "Yes."}, {"stop_reason": None}, "end_turn", None),
    ],
)
def test_why_a_turn_of_another_api_ended(
    delta: dict[str, Any], more: dict[str, Any], reason: str, sequence: str | None
) -> None:
    """By the stop sequence that its server names, or with a refusal, whose finish reason is `stop`, too."""
    chunks = [chunk(delta), chunk({}, "stop", **more)]
    whole = message_of(assembled(chunks), thinking=False)
    for made in (whole, written(chunks)):
        assert (made["stop_reason"], made["stop_sequence"]) == (reason, sequence)
        assert (made["stop_details"] or {}).get("explanation") == delta.get("refusal")


def test_a_stream_that_was_begun_before_its_answer() -> None:
    """It has one beginning, and the backend's count of the input in its end; pings may come before the first block."""
    live, chunks = streamed(MESSAGE, native=True), streamed(MESSAGE, native=False)
    for sent in (
        live,
        chunks,
        chunks_of(assembled(live)),
        chunks_of(copied(completion_of(MESSAGE, MAKER, native=True))),
    ):
        writer = MessageEvents("req_1", thinking=True, model="agent")
        begun = writer.begin()
        assert writer.alive() == b'event: ping\ndata: {"type":"ping"}\n\n'
        made = read(begun + b"".join([writer.chunk(copied(chunk)) for chunk in sent]) + writer.done())
        assert (made["model"], made["id"][:4], len(made["id"]) > 20) == ("agent", "msg_", True)
        assert [block["type"] for block in made["content"]].count("tool_use") == 1
        assert made["usage"]["output_tokens"] == USAGE["output_tokens"]
        assert made["usage"]["input_tokens"] == USAGE["input_tokens"]


def test_a_stream_that_another_backend_continues() -> None:
    """The blocks of the first backend end with those that it began."""
    live = streamed({**MESSAGE, "content": [text("Paris it is, of course")], "stop_reason": "end_turn"}, native=True)
    broken = live[:3]
    assert broken[-1]["choices"][0]["delta"]["content"]
    made = written([*broken, chunk({"content": " indeed"}), chunk({}, "stop")])
    assert made["content"] == [{"type": "text", "text": "Paris it indeed"}]
    assert made["stop_reason"] == "end_turn"
    assert message_of(assembled([*broken, chunk({"content": " indeed"}), chunk({}, "stop")]), thinking=True)[
        "content"
    ] == [{"type": "text", "text": "Paris it indeed"}]


def test_an_empty_stream_and_an_error() -> None:
    writer = MessageEvents("req_1", thinking=False)
    assert read(writer.done())["content"] == []
    event = writer.error({"message": "The answer broke off.", "type": "upstream_error", "code": "upstream_timeout"})
    name, data = event.decode().strip().split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: ")) == {
        "type": "error",
        "error": {"type": "timeout_error", "message": "The answer broke off.", "code": "upstream_timeout"},
        "request_id": "req_1",
    }


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error"),
        (404, "not_found_error"), (413, "request_too_large"), (418, "invalid_request_error"),
        (429, "rate_limit_error"), (500, "api_error"), (502, "api_error"), (503, "overloaded_error"),
        (504, "timeout_error"), (529, "overloaded_error"),
    ],
)  # fmt: skip
def test_types_of_errors(status: int, kind: str) -> None:
    assert error_body({"message": "m"}, status, "r")["error"] == {"type": kind, "message": "m"}


def test_ids() -> None:
    assert message_id("chatcmpl-1") == "msg_1"
    assert message_id("msg_1") == "msg_1"
    assert message_id(None) == "msg_"
