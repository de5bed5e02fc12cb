"""Completions and their chunks: there and back again."""

from __future__ import annotations

from typing import Any

from gateway.completions import assemble, chunks_of, token_logprobs, usage_of

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
    assert token_logprobs(choice) == [-1.0, -2.0]
    assert choice["message"]["tool_calls"] == [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    ]
    assert choice["finish_reason"] == "tool_calls"


def test_nonsense_usage_is_no_usage() -> None:
    """Negative, missing or non-integer counts are never booked."""
    assert usage_of({"usage": {"prompt_tokens": -1, "completion_tokens": 2}}) is None
    assert usage_of({"usage": {"prompt_tokens": 1}}) is None
    assert usage_of({"usage": None}) is None
    assert usage_of({}) is None
