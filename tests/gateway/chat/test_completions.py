"""Completions and their chunks: there and back again."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.chat.completions import assemble, chunks_of, entries_in, wants_usage
from gateway.chat.usage import usage_of

COMPLETION: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "system_fingerprint": "fp",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Hello.",
                "refusal": None,
                "reasoning_content": "greet",
                "annotations": [],
            },
            "logprobs": {"content": [{"token": "Hello", "logprob": -0.1}], "refusal": None},
            "finish_reason": "stop",
        },
        {
            "index": 1,
            "message": {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
            },
            "logprobs": None,
            "finish_reason": "tool_calls",
        },
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": {"cached": 1}},
}


def test_a_completion_survives_streaming() -> None:
    """Every field a client sees is the same after chunks_of and assemble."""
    assert assemble(chunks_of(COMPLETION)) == COMPLETION


def test_chunks_are_a_proper_stream() -> None:
    """The role comes first, a finish last, usage alone at the end, one id in all."""
    chunks = list(chunks_of(COMPLETION))
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]] == [
        None,
        "stop",
        None,
        "tool_calls",
    ]
    assert chunks[-1]["choices"] == []
    assert {(chunk["id"], chunk["model"], chunk["object"]) for chunk in chunks} == {
        ("chatcmpl-1", "m", "chat.completion.chunk")
    }


def test_tokens_and_tool_arguments_add_up() -> None:
    """Content, log-probabilities and tool arguments that come in pieces are joined in order."""
    pieces: list[dict[str, Any]] = [
        {"delta": {"role": "assistant", "content": ""}},
        {"delta": {"content": "He"}, "logprobs": {"content": [{"token": "He", "logprob": -1.0}]}},
        {"delta": {"content": "y"}, "logprobs": {"content": [{"token": "y", "logprob": -2.0}]}},
        {"delta": {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f"}}]}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}},
        {"delta": {}, "finish_reason": "tool_calls"},
    ]
    chunks = [{"id": "x", "choices": [{"index": 0, **piece}]} for piece in pieces]
    choice = assemble(chunks)["choices"][0]
    assert choice["message"]["content"] == "Hey"
    assert [entry["logprob"] for entry in entries_in(choice)] == [-1.0, -2.0]
    assert choice["message"]["tool_calls"] == [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    ]
    assert choice["finish_reason"] == "tool_calls"


def message_of(*deltas: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The message that these deltas of one choice come to; `more` are members of every choice."""
    choice: dict[str, Any] = assemble({"choices": [{"index": 0, "delta": delta, **more}]} for delta in deltas)[
        "choices"
    ]
    message: dict[str, Any] = choice[0]["message"]
    return message


@pytest.mark.parametrize("message", ["x", None, {"content": "other"}, []])
def test_a_chunk_never_sets_the_message(message: Any) -> None:
    """What a chunk's choice calls its message is not the message that its deltas spell."""
    assert message_of({"content": "a"}, {"content": "b"}, message=message)["content"] == "ab"


def test_objects_are_told_in_pieces_too() -> None:
    """Speech and a legacy function call come in pieces of an object, and are put together as texts are."""
    audio = [{"id": "a", "transcript": "He"}, {"transcript": "y", "data": "UklG"}, {"data": "Rg==", "expires_at": 9}]
    call = [{"name": "f", "arguments": ""}, {"name": None, "arguments": '{"a"'}, {"arguments": ":1}"}]
    message = message_of(*({"audio": one, "function_call": other} for one, other in zip(audio, call, strict=True)))
    assert message["audio"] == {"id": "a", "transcript": "Hey", "data": "UklGRg==", "expires_at": 9}
    assert message["function_call"] == {"name": "f", "arguments": '{"a":1}'}


def test_nesting_is_no_recursion() -> None:
    """However deep the objects of a backend go, they are taken."""
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"x": deep}
    assert message_of({"x": deep}, {"x": deep})["x"]["x"] is deep["x"]


def test_a_tool_call_of_its_own_type() -> None:
    """A call that is not of a function is kept as it was told, its id and type once."""
    first = {"index": 3, "id": "c", "type": "custom", "custom": {"name": "t", "input": "a"}}
    second = {"index": 3, "id": "c", "type": "custom", "custom": {"input": "b"}}
    calls = message_of({"tool_calls": [first, "nonsense"]}, {"tool_calls": [second]})["tool_calls"]
    assert calls == [{"id": "c", "type": "custom", "custom": {"name": "t", "input": "ab"}}]


def test_the_chunks_stay_as_they_were() -> None:
    """Putting an answer together changes none of its chunks."""
    logprobs = {"content": [{"token": "a", "logprob": -1.0}]}
    delta = {"content": "a", "annotations": [{"type": "url"}]}
    chunks = [{"choices": [{"index": 0, "delta": delta, "logprobs": logprobs}]}] * 2
    choice = assemble(chunks)["choices"][0]
    assert len(entries_in(choice)) == len(choice["message"]["annotations"]) == 2
    assert len(logprobs["content"]) == len(delta["annotations"]) == 1


def test_totals_are_told_once_and_last() -> None:
    """An answer's totals replay in one chunk at the end, wherever the live stream had them, and in no other."""
    live: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": None},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": COMPLETION["usage"]},
        {"choices": [], "usage": COMPLETION["usage"]},
    ]
    chunks = list(chunks_of(assemble(live)))
    assert ["usage" in chunk for chunk in chunks] == [False, False, True]
    assert (chunks[-1]["choices"], chunks[-1]["usage"]) == ([], COMPLETION["usage"])


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, False),
        ({"stream_options": None}, False),
        ({"stream_options": []}, False),
        ({"stream_options": {"include_usage": None}}, False),
        ({"stream_options": {"include_usage": False}}, False),
        ({"stream_options": {"include_usage": True}}, True),
    ],
)
def test_who_wants_totals(options: dict[str, Any], wanted: bool) -> None:
    """Only a client that asked for its totals wants them."""
    assert wants_usage(options) is wanted


def test_nonsense_usage_is_no_usage() -> None:
    """Negative, missing or non-integer counts are never booked."""
    assert usage_of({"usage": {"prompt_tokens": -1, "completion_tokens": 2}}) is None
    assert usage_of({"usage": {"prompt_tokens": 1}}) is None
    assert usage_of({"usage": None}) is None
    assert usage_of({}) is None
