"""From a chat-completions body to a request of the Messages API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.dialects.native import Native
from gateway.dialects.reasoning import maker_of
from gateway.parts.apis.dialects.messages.backend import MessagesRequest, messages_request, protocol_of
from gateway.parts.apis.dialects.messages.client import chat_body
from gateway.parts.apis.dialects.messages.models import facts_of_model

OWN = maker_of("endpoint model", "key")
FOREIGN = maker_of("endpoint another", "key")
TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"properties": {}}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "map"}'}}


def sent(
    model: str = "claude-haiku-4-5", *, stream: bool = False, native: Native | None = None, **body: Any
) -> MessagesRequest:
    """The request for a chat-completions body."""
    given = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], **body}
    return messages_request(given, model, facts_of_model(model), OWN, stream=stream, native=native)


def native(model: str = "claude-haiku-4-5", **body: Any) -> MessagesRequest:
    """The request for a body of a client of the Messages API."""
    given = {"model": "chat", "max_tokens": 4000, "messages": [{"role": "user", "content": "hi"}], **body}
    chat, own = chat_body(given, {})
    return messages_request(chat, model, facts_of_model(model), OWN, stream=False, native=own)


def test_the_least_request() -> None:
    made = sent()
    assert made.body == {
        "model": "claude-haiku-4-5",
        "max_tokens": 64_000,
        "messages": [{"role": "user", "content": "hi"}],
    }
    assert made.dropped == ()
    assert sent(stream=True).body["stream"] is True


def test_system_messages_come_together_and_keep_their_cache_markers() -> None:
    marked = {"type": "text", "text": "One.", "cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "system", "content": [marked]},
        {"role": "developer", "content": "Two."},
        {"role": "user", "content": "hi"},
    ]
    assert sent(messages=messages).body["system"] == [marked, {"type": "text", "text": "Two."}]
    assert sent(messages=messages[1:]).body["system"] == "Two."


def test_parts_become_blocks() -> None:
    parts = [
        {"type": "text", "text": "look", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": " "},
        {"type": "image_url", "image_url": {"url": "data:image/webp;base64,AAAA", "detail": "high"}},
        {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,BBBB"}},
        {"type": "file", "file": {"file_id": "file_1"}},
        {"type": "file", "file": {"filename": "c.pdf", "file_data": "https://a.example/c.pdf"}},
        {"type": "file", "file": {"file_id": "https://a.example/d.pdf"}},
        {"type": "input_audio", "input_audio": {"data": "CCCC", "format": "wav"}},
        {"type": "search_result", "title": "t", "source": "s", "content": []},
    ]
    made = sent(messages=[{"role": "user", "content": parts}])
    assert made.body["messages"][0]["content"] == [
        {"type": "text", "text": "look", "cache_control": {"type": "ephemeral"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/webp", "data": "AAAA"}},
        {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "BBBB"},
            "title": "a.pdf",
        },
        {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
        {"type": "document", "source": {"type": "url", "url": "https://a.example/c.pdf"}, "title": "c.pdf"},
        {"type": "document", "source": {"type": "url", "url": "https://a.example/d.pdf"}},
        {"type": "search_result", "title": "t", "source": "s", "content": []},
    ]
    assert made.dropped == ("messages[0].content[2].image_url.detail", "messages[0].content[8]")


def test_tool_results_join_one_turn_of_the_user() -> None:
    made = sent(
        messages=[
            {"role": "user", "content": "look twice"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [CALL, {**CALL, "id": "functions.look:1", "function": {"name": "look", "arguments": ""}}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "a sea"},
            {"role": "tool", "tool_call_id": "functions.look:1", "content": [{"type": "text", "text": "a shore"}]},
            {"role": "user", "content": "and?"},
        ],
        tools=[TOOL],
    )
    assert made.body["messages"] == [
        {"role": "user", "content": "look twice"},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": "map"}},
                {"type": "tool_use", "id": "functions_look_1", "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "a sea"},
                {
                    "type": "tool_result",
                    "tool_use_id": "functions_look_1",
                    "content": [{"type": "text", "text": "a shore"}],
                },
                {"type": "text", "text": "and?"},
            ],
        },
    ]


def test_legacy_functions() -> None:
    made = sent(
        messages=[
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "no json"}},
            {"role": "function", "name": "look", "content": "a sea"},
        ],
        functions=[TOOL["function"]],
        function_call={"name": "look"},
    )
    call, result = made.body["messages"][1]["content"][0], made.body["messages"][2]["content"][0]
    assert call["input"] == {"arguments": "no json"}
    assert call["id"] == result["tool_use_id"]
    assert made.body["tool_choice"] == {"type": "tool", "name": "look"}


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ({}, None),
        ({"tool_choice": "auto"}, None),
        ({"tool_choice": "none"}, {"type": "none"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"tool_choice": {"type": "function", "function": {"name": "look"}}}, {"type": "tool", "name": "look"}),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            {"type": "any", "disable_parallel_tool_use": True},
        ),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"type": "none"}),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "required",
                        "tools": [{"type": "function", "function": {"name": "look"}}],
                    },
                }
            },
            {"type": "any"},
        ),
    ],
)
def test_tool_choice(given: dict[str, Any], choice: Any) -> None:
    other = {"type": "function", "function": {"name": "other", "strict": True}}
    made = sent(tools=[TOOL, other], **given).body
    assert made.get("tool_choice") == choice
    names = [tool["name"] for tool in made["tools"]]
    assert names == (["look"] if "allowed_tools" in str(given) else ["look", "other"])
    assert made["tools"][0]["input_schema"] == {"type": "object", "properties": {}}
    assert made["tools"][-1].get("strict") is (None if "allowed_tools" in str(given) else True)


@pytest.mark.parametrize(
    ("model", "given", "made", "dropped"),
    [
        ("claude-opus-4-6", {"reasoning_effort": "high"}, {"thinking": {"type": "adaptive"}, "effort": "high"}, ()),
        (
            "claude-opus-4-6",
            {"reasoning_effort": "xhigh"},
            {"thinking": {"type": "adaptive"}, "effort": "max"},
            ("reasoning_effort",),
        ),
        (
            "claude-haiku-4-5",
            {"reasoning_effort": "low"},
            {"thinking": {"type": "enabled", "budget_tokens": 2048}},
            (),
        ),
        (
            "claude-haiku-4-5",
            {"reasoning": {"max_tokens": 3000}},
            {"thinking": {"type": "enabled", "budget_tokens": 3000}},
            (),
        ),
        ("claude-haiku-4-5", {"reasoning_effort": "high", "max_tokens": 800}, {}, ("reasoning_effort",)),
        (
            "claude-haiku-4-5",
            {"reasoning_effort": "high", "max_tokens": 4000},
            {"thinking": {"type": "enabled", "budget_tokens": 3488}},
            ("reasoning_effort",),
        ),
        ("claude-haiku-4-5", {"reasoning_effort": "none"}, {}, ()),
        ("claude-opus-4-8", {"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}, ()),
        ("claude-opus-5-5", {"reasoning_effort": "none"}, {}, ("reasoning_effort",)),
        (
            "claude-opus-5-5",
            {"reasoning_effort": "minimal"},
            {"thinking": {"type": "adaptive"}, "effort": "low"},
            ("reasoning_effort",),
        ),
        (
            "claude-haiku-4-5",
            {"reasoning_effort": "high", "tools": [TOOL], "tool_choice": "required"},
            {},
            ("reasoning_effort",),
        ),
        (
            "claude-haiku-4-5",
            {"thinking": {"type": "adaptive"}},
            {"thinking": {"type": "enabled", "budget_tokens": 8192}},
            (),
        ),
    ],
)
def test_reasoning(model: str, given: dict[str, Any], made: dict[str, Any], dropped: tuple[str, ...]) -> None:
    request = sent(model, **given)
    assert request.body.get("thinking") == made.get("thinking")
    assert (request.body.get("output_config") or {}).get("effort") == made.get("effort")
    assert request.dropped == dropped


def test_a_schema_and_a_format_that_cannot_be_said() -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    named = sent(response_format=wanted)
    assert named.body["output_config"]["format"] == {"type": "json_schema", "schema": {"title": "x", **schema}}
    said = {"type": "json_schema", "json_schema": {"name": "x", "description": "y", "schema": {**schema, "title": "Z"}}}
    own = sent(response_format=said)
    assert own.body["output_config"]["format"]["schema"] == {"description": "y", **schema, "title": "Z"}
    assert (named.dropped, own.dropped) == ((), ("response_format.json_schema.name",))
    assert sent("claude-sonnet-4-20250514", response_format=wanted).dropped == ("response_format",)
    assert sent(response_format={"type": "json_object"}).dropped == ("response_format",)
    assert sent(response_format={"type": "text"}).dropped == ()


def test_sampling_is_fitted_to_the_model() -> None:
    assert sent(temperature=0.5, top_k=3).body["temperature"] == 0.5
    both = sent(temperature=0.5, top_p=0.9)
    assert ("top_p" in both.body, both.dropped) == (False, ("top_p",))
    hot = sent(temperature=1.7)
    assert (hot.body["temperature"], hot.dropped) == (1, ("temperature",))
    assert sent("claude-opus-4-8", temperature=0.5, top_k=3).dropped == ("temperature", "top_k")
    assert sent("claude-opus-4-8", temperature=1).dropped == ()
    thinking = sent("claude-haiku-4-5", temperature=0.5, top_p=0.97, reasoning_effort="low")
    assert (thinking.body["top_p"], thinking.dropped) == (0.97, ("temperature",))


def test_limits_stops_users_and_service_tiers() -> None:
    made = sent(
        max_tokens=500,
        max_completion_tokens=300,
        stop=["END", "\n"],
        user="u",
        safety_identifier="s",
        service_tier="default",
    ).body
    assert (made["max_tokens"], made["stop_sequences"]) == (300, ["END"])
    assert (made["metadata"], made["service_tier"]) == ({"user_id": "s"}, "standard_only")
    assert sent(max_tokens=90_000).body["max_tokens"] == 64_000
    assert sent(service_tier="flex", metadata={"topic": "x"}).dropped == ("metadata.topic", "service_tier")


def test_other_fields_are_sent_or_listed() -> None:
    made = sent(inference_geo="eu", seed=1, min_p=0.1, n=1, logprobs=False, store=False, presence_penalty=0, extra=None)
    assert made.body["inference_geo"] == "eu"
    assert made.dropped == ("seed", "min_p")
    assert sent(n=2, logprobs=True).dropped == ("n", "logprobs")


def thought(maker: Any) -> dict[str, Any]:
    """An assistant's message that thought and called a tool."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [CALL],
        "reasoning_details": [
            {"type": "reasoning.text", "text": "let", "index": 0},
            {"type": "reasoning.text", "text": " me", "index": 0},
            {"type": "reasoning.text", "signature": maker.seal("sig"), "index": 0},
            {"type": "reasoning.encrypted", "data": maker.seal("data"), "index": 1},
        ],
    }


def test_own_thinking_is_unsealed_and_foreign_thinking_removed() -> None:
    def turn(maker: Any) -> MessagesRequest:
        messages = [
            {"role": "user", "content": "hi"},
            thought(maker),
            {"role": "tool", "tool_call_id": "call_1", "content": "x"},
        ]
        return sent(messages=messages, tools=[TOOL], reasoning_effort="low")

    own, foreign = turn(OWN), turn(FOREIGN)
    assert own.body["messages"][1]["content"][:2] == [
        {"type": "thinking", "thinking": "let me", "signature": "sig"},
        {"type": "redacted_thinking", "data": "data"},
    ]
    assert own.body["thinking"]["type"] == "enabled"
    assert own.dropped == ()
    assert foreign.body["messages"][1]["content"][0]["type"] == "tool_use"
    # A turn that does not begin with thinking cannot go on with it.
    assert "thinking" not in foreign.body
    assert foreign.dropped == ("reasoning", "reasoning_effort")


def test_a_clients_own_body_is_sent_as_it_is() -> None:
    given = {
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        "tools": [
            {"name": "look", "input_schema": {"type": "object"}, "eager_input_streaming": True},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
        ],
        "metadata": {"user_id": "u"},
        "service_tier": "standard_only",
        "context_management": {"edits": []},
        "stop_sequences": ["END"],
        "temperature": 0.3,
    }
    made = native(**given)
    assert made.body == {
        "model": "claude-haiku-4-5",
        "max_tokens": 4000,
        "messages": [{"role": "user", "content": "hi"}],
        **given,
    }
    assert made.dropped == ()


def test_what_the_gateway_changes_in_a_clients_own_body() -> None:
    chat, own = chat_body(
        {"model": "chat", "max_tokens": 4000, "messages": [{"role": "user", "content": "hi"}], "stop_sequences": ["A"]},
        {"anthropic-version": "2026-10-21"},
    )
    chat |= {"max_tokens": 100, "stop": ["A", "B"], "temperature": 0.7}
    chat["messages"] = [*chat["messages"], {"role": "assistant", "content": "Paris is "}]
    facts = facts_of_model("claude-haiku-4-5")
    made = messages_request(chat, "claude-haiku-4-5", facts, OWN, stream=True, native=own)
    assert made.body == {
        "model": "claude-haiku-4-5",
        "max_tokens": 100,
        "stop_sequences": ["A", "B"],
        "temperature": 0.7,
        "stream": True,
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "text", "text": "Paris is "}]},
        ],
    }
    assert protocol_of(chat, own) == {"anthropic-version": "2023-06-01"}  # the later version has no temperature
    del chat["temperature"]
    assert protocol_of(chat, own) == {"anthropic-version": "2026-10-21"}
    assert protocol_of({"model": "chat"}, None) == {}


def test_a_clients_own_blocks_of_other_backends_are_removed() -> None:
    def asked(maker: Any) -> MessagesRequest:
        found = {"type": "web_search_result", "url": "u", "encrypted_content": maker.seal("found")}
        content = [
            {"type": "thinking", "thinking": "hm", "signature": maker.seal("sig")},
            {"type": "redacted_thinking", "data": maker.seal("data")},
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [found]},
            {"type": "text", "text": "Here.", "citations": [{"url": "u", "encrypted_index": maker.seal("at")}]},
        ]
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}]
        return native(messages=[*messages, {"role": "user", "content": "go on"}])

    own, foreign = asked(OWN), asked(FOREIGN)
    blocks = own.body["messages"][1]["content"]
    assert [block["type"] for block in blocks] == [
        "thinking", "redacted_thinking", "server_tool_use", "web_search_tool_result", "text",
    ]  # fmt: skip
    assert (blocks[0]["signature"], blocks[1]["data"]) == ("sig", "data")
    assert blocks[3]["content"][0]["encrypted_content"] == "found"
    assert blocks[4]["citations"][0]["encrypted_index"] == "at"
    assert "tl1." not in json.dumps(own.body)
    assert foreign.body["messages"][1]["content"] == [{"type": "text", "text": "Here."}]
    said = "messages[1].content"
    assert own.dropped == ()
    assert foreign.dropped == ("reasoning", f"{said}[3]", f"{said}[4].citations", f"{said}[2]")


def test_system_turns_of_a_client_are_the_users_where_a_model_knows_none() -> None:
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": [{"type": "text", "text": "and?"}]},
        {"role": "system", "content": [{"type": "text", "text": "In verse."}]},
    ]
    assert native("claude-opus-4-8", messages=turns).body["messages"] == turns
    made = native(messages=turns)
    assert made.dropped == ("messages[1].role", "messages[4].role")
    assert made.body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "Be brief."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]},
        {"role": "user", "content": [{"type": "text", "text": "and?"}, {"type": "text", "text": "In verse."}]},
    ]


def test_what_is_no_text_in_a_systems_turn_is_left_out_where_a_model_knows_none() -> None:
    """Settings and tools that a system's turn brings are listed: in a turn of the user they would be refused."""
    added = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "look"}}
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "system", "output_config": {"effort": "low"}},
        {"role": "system", "content": [added, {"type": "text", "text": "Be brief."}], "clear_at": "never"},
    ]
    assert native("claude-opus-4-8", messages=turns).body["messages"] == turns
    made = native(messages=turns)
    joined = [{"type": "text", "text": "hi"}, {"type": "text", "text": "Be brief."}]
    assert made.body["messages"] == [{"role": "user", "content": joined}]
    assert set(made.dropped) == {
        "messages[1].role", "messages[1].output_config", "messages[2].role", "messages[2].clear_at",
        "messages[2].content[0]",
    }  # fmt: skip


def test_a_container_of_the_account_is_left_out() -> None:
    """All of the gateway's clients share the account, and what one has put there."""
    made = sent(container="container_1")
    assert "container" not in made.body
    assert made.dropped == ("container",)


def test_fields_of_another_dialect_that_were_lost_are_listed() -> None:
    own = Native("responses", {"input": []}, {"truncation": "auto"})
    assert sent(native=own).dropped == ("truncation",)


def test_a_conversation_begins_with_the_user() -> None:
    greeted = [{"role": "assistant", "content": "How can I help?"}, {"role": "user", "content": "hi"}]
    assert sent(messages=greeted).body["messages"] == [{"role": "user", "content": "."}, *greeted]
    alone = sent(messages=[{"role": "system", "content": "Write a haiku."}]).body
    assert alone["messages"] == [{"role": "user", "content": "Write a haiku."}]
    assert "system" not in alone


def test_a_message_of_the_user_without_text_keeps_its_turn() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hi."}]
    made = sent(messages=[*messages, {"role": "user", "content": " "}])
    assert made.body["messages"] == [*messages, {"role": "user", "content": "."}]


def test_a_model_that_continues_no_reply_is_asked_to() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Paris is"}]
    for made in (sent("claude-opus-4-8", messages=messages), native("claude-opus-4-8", messages=messages)):
        assert made.body["messages"] == [*messages, {"role": "user", "content": "Go on."}]
        assert made.dropped == ("messages[1].role",)
    assert sent(messages=messages).body["messages"] == messages


def test_calls_of_text_tools_stay_with_their_results() -> None:
    call = {"id": "call_1", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Done."},
    ]
    made = sent(messages=messages).body
    assert made["messages"][1]["content"] == [
        {"type": "tool_use", "id": "call_1", "name": "patch", "input": {"input": "*** Begin"}}
    ]
    # The API takes calls only of tools that the request defines.
    assert made["tools"] == [{"name": "patch", "input_schema": {"type": "object", "properties": {}}}]
    assert made["tool_choice"] == {"type": "none"}


def test_thinking_that_nothing_follows_is_left_out() -> None:
    detail = {"type": "reasoning.encrypted", "data": OWN.seal("data")}
    cut = {"role": "assistant", "content": None, "reasoning_details": [detail]}
    made = sent(messages=[{"role": "user", "content": "hi"}, cut, {"role": "user", "content": "well?"}])
    assert [block["text"] for block in made.body["messages"][0]["content"]] == ["hi", "well?"]
    assert made.dropped == ("reasoning",)


def test_the_last_four_markers_of_the_prompt_cache_are_kept() -> None:
    marked = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    turns = [{"role": role, "content": [marked]} for role in ("user", "assistant") * 3]
    made = sent(messages=[{"role": "system", "content": [marked]}, *turns])
    kept = ["cache_control" in str(turn) for turn in made.body["messages"]]
    assert (kept, made.body["system"]) == ([False, False, *[True] * 4], [{"type": "text", "text": "a"}])
    assert made.dropped == ("cache_control",)


def test_markers_that_are_not_sent_stay_in_the_given_body() -> None:
    marked = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [marked] * 5}
    messages = [{"role": "user", "content": [result]}]
    assert str(sent(messages=messages).body["messages"]).count("cache_control") == 4
    assert str(messages).count("cache_control") == 5


def test_a_conversation_of_which_nothing_is_left_is_sent() -> None:
    unreadable = {"type": "thinking", "thinking": "hm", "signature": FOREIGN.seal("text")}
    made = native("claude-opus-4-8", messages=[{"role": "assistant", "content": [unreadable]}])
    assert (made.body["messages"], made.dropped) == ([], ("reasoning",))


def test_a_stop_sequence_of_white_space_is_listed() -> None:
    assert sent(stop=["\n", "END"]).dropped == ("stop",)
    assert native(stop_sequences=["\n", "END"]).dropped == ("stop_sequences",)


def test_a_text_file_is_sent_as_a_text() -> None:
    def source(data: str) -> Any:
        part = {"type": "file", "file": {"filename": "a.txt", "file_data": data}}
        return sent(messages=[{"role": "user", "content": [part]}]).body["messages"][0]["content"][0]["source"]

    text = {"type": "text", "media_type": "text/plain", "data": "hello"}
    assert source("data:text/markdown;base64,aGVsbG8=") == text
    assert source("data:text/plain,hello") == text


def test_a_text_keeps_its_words_without_the_citations_of_another_backend() -> None:
    cited = {"type": "web_search_result_location", "url": "u", "encrypted_index": FOREIGN.seal("index")}
    content = [{"type": "text", "text": "It rains.", "citations": [cited]}]
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}]
    made = native(messages=[*turns, {"role": "user", "content": "still?"}])
    assert made.body["messages"][1]["content"] == [{"type": "text", "text": "It rains."}]
    assert made.dropped == ("reasoning", "messages[1].content[0].citations")


def test_a_schema_is_fitted_and_what_it_loses_is_listed() -> None:
    schema = {"type": "object", "title": "x", "properties": {"n": {"type": "integer", "minimum": 1}}}
    made = sent(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    fitted = {**schema, "properties": {"n": {"type": "integer"}}, "additionalProperties": False}
    assert made.body["output_config"]["format"]["schema"] == fitted
    assert made.dropped == ("response_format.json_schema.schema",)
    strict = {"type": "function", "function": {"name": "look", "parameters": schema, "strict": True}}
    made = sent(tools=[strict])
    assert made.body["tools"] == [{"name": "look", "input_schema": schema}]
    assert made.dropped == ("tools[0].function.strict",)
