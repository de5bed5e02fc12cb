"""From a request of the Messages API to a chat-completions body: every field kept, refused by name, or listed."""

from __future__ import annotations

import copy
import json
import random
from typing import Any, get_type_hints

import anthropic.types as schema
import pytest
from anthropic.types.beta import message_create_params as beta_schema
from anthropic.types.message_create_params import MessageCreateParamsStreaming

from gateway.config.schema import Limits
from gateway.dialects.reasoning import maker_of
from gateway.errors import InvalidRequest
from gateway.parts.apis.dialects.messages.backend import messages_request
from gateway.parts.apis.dialects.messages.client import MessagesClient, chat_body
from gateway.parts.apis.dialects.messages.models import facts_of_model
from gateway.request.body import ChatFields

BODY: dict[str, Any] = {"model": "chat", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
SCHEMA = {"type": "object", "properties": {"at": {}}, "required": ["at"], "additionalProperties": False}
LOOK = {"name": "look", "description": "Look.", "input_schema": SCHEMA, "strict": True}


def chat(**more: Any) -> tuple[dict[str, Any], list[str]]:
    """The chat-completions body, and what was lost."""
    made, native = chat_body({**BODY, **more}, {})
    return made, list(native.lost)


KEPT: dict[str, tuple[Any, dict[str, Any]]] = {
    "model": ("chat", {"model": "chat"}),
    "max_tokens": (100, {"max_tokens": 100}),
    "messages": (BODY["messages"], {"messages": BODY["messages"]}),
    "stream": (True, {"stream": True, "stream_options": {"include_usage": True}}),
    "stop_sequences": (["END"], {"stop": ["END"]}),
    "system": ("Be brief.", {"messages": [{"role": "system", "content": "Be brief."}, *BODY["messages"]]}),
    "metadata": ({"user_id": "u"}, {"user": "u"}),
    "service_tier": ("standard_only", {"service_tier": "default"}),
    "tools": ([LOOK], {"tools": [{"type": "function", "function": {"name": "look", "description": "Look.",
        "parameters": SCHEMA, "strict": True}}]}),
    "tool_choice": ({"type": "auto"}, {}),
    "output_config": ({"effort": "low"}, {"reasoning_effort": "low"}),
    "temperature": (0.5, {"temperature": 0.5}),
    "top_p": (0.5, {"top_p": 0.5}),
    "top_k": (5, {"top_k": 5}),
    "output_format": ({"type": "json_schema", "schema": SCHEMA}, {"response_format": {"type": "json_schema",
        "json_schema": {"name": "output", "schema": SCHEMA, "strict": True}}}),
}  # fmt: skip
"""A value of each field that chat completions have too, and what becomes of it."""
LOST: dict[str, Any] = {
    "cache_control": {"type": "ephemeral"},
    "container": "container_1",
    "diagnostics": {"previous_message_id": "msg_1"},
    "inference_geo": "eu",
    "speed": "fast",
    "thinking": {"type": "adaptive"},
    # of the beta API
    "billing_policy": {},
    "compaction": {},
    "context_management": {"edits": []},
    "fallback_credit_token": "t",
    "fallbacks": "default",
    "mcp_servers": [{"type": "url", "name": "x", "url": "https://x.example"}],
    "thread": {},
}
"""A value of each field that only a backend of the dialect can honour."""
HEADERS = {"user_profile_id", "workspace_id", "betas"}
"""Members of the SDK's parameters that it sends as headers."""


def test_every_field_of_the_api_is_in_the_table() -> None:
    fields = get_type_hints(MessageCreateParamsStreaming).keys()
    beta = get_type_hints(beta_schema.MessageCreateParamsStreaming).keys()
    assert (fields | beta) - HEADERS - KEPT.keys() - LOST.keys() == set()


@pytest.mark.parametrize("name", KEPT)
def test_a_field_that_chat_completions_have(name: str) -> None:
    value, expected = KEPT[name]
    made, lost = chat(**{name: value})
    assert made == {**BODY, **expected}
    assert lost == []


@pytest.mark.parametrize("name", [*LOST, "unknown_to_us"])
def test_a_field_that_only_the_dialect_has(name: str) -> None:
    value = LOST.get(name, 1)
    made, lost = chat(**{name: value})
    assert made == BODY
    assert lost == [name]
    assert chat_body({**BODY, name: value}, {})[1].body[name] == value


def block(kind: str, /, **members: Any) -> dict[str, Any]:
    """A content block."""
    return {"type": kind, **members}


OF_USERS: dict[str, tuple[dict[str, Any], list[Any], list[str]]] = {
    "TextBlockParam": (block("text", text="a"), [{"role": "user", "content": "a"}], []),
    "ImageBlockParam": (
        block("image", source=PNG),
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}],
        [],
    ),
    "DocumentBlockParam": (
        block("document", source=PDF, title="a.pdf"),
        [
            {
                "role": "user",
                "content": [
                    {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}}
                ],
            }
        ],
        [],
    ),
    "SearchResultBlockParam": (
        block("search_result", title="t", source="s", content=[{"type": "text", "text": "a"}]),
        [{"role": "user", "content": "t\ns\na"}],
        [],
    ),
    "ToolResultBlockParam": (
        block("tool_result", tool_use_id="t1", content=[block("text", text="a"), block("image", source=PNG)]),
        [
            {"role": "tool", "tool_call_id": "t1", "content": "a"},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
        ],
        [],
    ),
    "ContainerUploadBlockParam": (
        block("container_upload", file_id="f"),
        [{"role": "user", "content": ""}],
        ["messages[0].content[0]"],
    ),
}
OF_ASSISTANTS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "ThinkingBlockParam": (
        block("thinking", thinking="hm", signature="s"),
        {"reasoning_details": [{"type": "reasoning.text", "text": "hm", "index": 0, "signature": "s"}]},
        [],
    ),
    "RedactedThinkingBlockParam": (
        block("redacted_thinking", data="d"),
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "d", "index": 0}]},
        [],
    ),
    "ToolUseBlockParam": (
        block("tool_use", id="t1", name="look", input={"a": 1}),
        {"tool_calls": [{"id": "t1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}]},
        [],
    ),
}
OF_SERVERS = (
    "ServerToolUseBlockParam", "WebSearchToolResultBlockParam", "WebFetchToolResultBlockParam",
    "CodeExecutionToolResultBlockParam", "BashCodeExecutionToolResultBlockParam",
    "TextEditorCodeExecutionToolResultBlockParam", "ToolSearchToolResultBlockParam",
)  # fmt: skip


def test_every_block_of_the_api_is_in_the_tables() -> None:
    names = {member.__name__ for member in schema.ContentBlockParam.__args__}
    assert names - OF_USERS.keys() - OF_ASSISTANTS.keys() - set(OF_SERVERS) == set()


@pytest.mark.parametrize("name", OF_USERS)
def test_blocks_of_users(name: str) -> None:
    given, expected, lost = OF_USERS[name]
    asked = [{"role": "user", "content": [given]}, {"role": "user", "content": "hi"}]
    made, missing = chat(messages=asked)
    assert made["messages"][:-1] == expected
    assert missing == lost


@pytest.mark.parametrize("name", OF_ASSISTANTS)
def test_blocks_of_assistants(name: str) -> None:
    given, expected, lost = OF_ASSISTANTS[name]
    made, missing = chat(messages=[{"role": "assistant", "content": [given, block("text", text="a")]}])
    assert made["messages"] == [{"role": "assistant", "content": "a", **expected}]
    assert missing == lost


@pytest.mark.parametrize("name", OF_SERVERS)
def test_blocks_of_servers_tools(name: str) -> None:
    kind = get_type_hints(getattr(schema, name))["type"].__args__[0]
    made, lost = chat(messages=[{"role": "assistant", "content": [block(kind), block("text", text="a")]}])
    assert made["messages"] == [{"role": "assistant", "content": "a"}]
    assert lost == ["messages[0].content[0]"]


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ({"type": "text", "media_type": "text/plain", "data": "a"}, {"type": "text", "text": "t\nc\na"}),
        ({"type": "content", "content": "a"}, {"type": "text", "text": "t\nc\na"}),
        ({"type": "url", "url": "gs://a/a.pdf"}, None),
        ({"type": "url"}, None),
        ({"type": "file", "file_id": "f"}, None),
    ],
)
def test_documents(source: dict[str, Any], part: dict[str, Any] | None) -> None:
    given = block("document", source=source, title="t", context="c", citations={"enabled": True})
    made, lost = chat(messages=[{"role": "user", "content": [given, block("text", text="b")]}])
    expected = [part, {"type": "text", "text": "b"}] if part else "b"
    assert made["messages"] == [{"role": "user", "content": expected}]
    path = "messages[0].content[0]"
    assert lost == [f"{path}.citations"] + ([] if part else [path])


def test_a_document_by_url() -> None:
    """The part of a chat message has its URL in place of data, also one that a tool gave; nothing of it is lost."""
    url = "https://a.example/a.pdf"
    given = block("document", source={"type": "url", "url": url}, title="t", context="c")
    part = {"type": "file", "file": {"file_data": url, "filename": "t"}}
    made, lost = chat(messages=[{"role": "user", "content": [given]}])
    assert made["messages"] == [{"role": "user", "content": [{"type": "text", "text": "c"}, part]}]
    assert lost == []
    called = {"role": "assistant", "content": [block("tool_use", id="1", name="look", input={})]}
    result = block("tool_result", tool_use_id="1", content=[given])
    made, lost = chat(messages=[called, {"role": "user", "content": [result]}])
    assert made["messages"][1]["content"] == "c" and made["messages"][2] == {"role": "user", "content": [part]}
    assert lost == []


def test_tools_of_the_provider_need_a_tier_that_has_them() -> None:
    tools = [LOOK, {"type": "web_search_20250305", "name": "web_search"}, {"type": "bash_20250124", "name": "bash"}]
    made, native = chat_body({**BODY, "tools": tools, "tool_choice": {"type": "tool", "name": "bash"}}, {})
    assert [tool["function"]["name"] for tool in made["tools"]] == ["look"]
    assert native.needs == {"messages_hosted_tools", "messages_web_search"}
    assert list(native.lost) == ["tools[1]", "tools[2]", "tool_choice"]
    assert "tool_choice" not in made


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
            {"tool_choice": {"type": "function", "function": {"name": "look"}}, "parallel_tool_calls": False},
        ),
        ({"type": "auto", "disable_parallel_tool_use": True}, {"tool_choice": "auto", "parallel_tool_calls": False}),
    ],
)
def test_tool_choice(choice: dict[str, Any], expected: dict[str, Any]) -> None:
    made, lost = chat(tools=[LOOK], tool_choice=choice)
    assert {name: made[name] for name in made if name in ("tool_choice", "parallel_tool_calls")} == expected
    assert lost == []


@pytest.mark.parametrize(
    ("given", "effort", "lost"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low", ["thinking.budget_tokens"]),
        ({"thinking": {"type": "enabled", "budget_tokens": 30000}}, "high", ["thinking.budget_tokens"]),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, None, ["thinking", "thinking.display"]),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "low", []),
        ({"thinking": {"type": "disabled"}}, None, ["thinking"]),
        ({"thinking": {"type": "between_tools"}}, None, ["thinking"]),
        (
            {"output_config": {"effort": "max", "task_budget": {}}},
            "xhigh",
            ["output_config.task_budget", "output_config.effort"],
        ),
    ],
)
def test_thinking(given: dict[str, Any], effort: str | None, lost: list[str]) -> None:
    made, missing = chat(**given)
    assert made.get("reasoning_effort") == effort
    assert missing == lost


def test_markers_of_the_prompt_cache_are_listed_once() -> None:
    marked = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    made, lost = chat(
        system=[marked, marked],
        messages=[{"role": "user", "content": [marked]}],
        tools=[{**LOOK, "cache_control": {"type": "ephemeral"}}],
    )
    assert lost == ["cache_control"]
    assert made["messages"] == [{"role": "system", "content": "a\n\na"}, {"role": "user", "content": "a"}]
    assert "cache_control" not in json.dumps(made)


def test_what_one_message_says_of_another() -> None:
    long = {"user_id": "x" * 65}
    made, lost = chat(
        metadata=long,
        messages=[
            {"role": "system", "content": [{"text": "Now in verse."}]},
            {"role": "user", "content": [block("tool_result", tool_use_id="t", content="no", is_error=True)], "id": 1},
        ],
    )
    assert made["messages"] == [
        {"role": "system", "content": "Now in verse."},
        {"role": "tool", "tool_call_id": "t", "content": "no"},
    ]
    assert lost == ["messages[1].content[0].is_error", "messages[1].id", "metadata"]
    assert chat_body({**BODY, "metadata": long}, {})[1].body["metadata"] == long


def test_a_systems_turn_of_settings_alone_and_unknown_members_of_thinking_are_listed() -> None:
    made, lost = chat(
        messages=[*BODY["messages"], {"role": "system", "output_config": {"effort": "low"}}],
        thinking={"type": "enabled", "budget_tokens": 2000, "block_binding": {"prefix_mismatch_behavior": "error"}},
    )
    assert made["messages"] == chat()[0]["messages"]
    assert lost == ["messages[1].output_config", "thinking.budget_tokens", "thinking.block_binding"]


def test_a_systems_turn_may_have_blocks_of_any_kind() -> None:
    """A backend of the dialect gets them as they came; of any other, the texts remain and the rest is listed."""
    added = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "look"}}
    text = {"type": "text", "text": "Be brief."}
    for blocks, said in (([added, text], ["Be brief."]), ([added], [])):
        turns = [*BODY["messages"], {"role": "system", "content": blocks}]
        made, lost = chat(messages=turns)
        assert [one["content"] for one in made["messages"][1:]] == said
        assert lost == ["messages[1].content[0]"]
        whole, own = chat_body({**BODY, "messages": turns}, {})
        facts, maker = facts_of_model("claude-opus-4-8"), maker_of("m", "k")
        sent = messages_request(whole, "claude-opus-4-8", facts, maker, stream=False, native=own)
        assert sent.body["messages"] == turns


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"text": "hi"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].name"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "text"}]}, "system[0].text"),
        ({"system": [{"type": 5}]}, "system[0].type"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"stream": 1}, "stream"),
        ({"tools": {}}, "tools"),
        ({"tools": [{}]}, "tools[0].name"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"thinking": {"type": []}}, "thinking.type"),
        ({"output_config": []}, "output_config"),
        ({"metadata": "u"}, "metadata"),
    ],
)
async def test_wrong_fields_are_refused_by_their_path(wrong: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await MessagesClient({}, "req_1").read({**BODY, **wrong}, "default", large=False)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("needing", "path", "capability"),
    [
        ({"tools": [LOOK, {"type": "web_search_20250305", "name": "web_search"}]}, "tools[1]", "web_search"),
        ({"tools": [{"type": "code_execution_20260521", "name": "code_execution"}]}, "tools[0]", "hosted_tools"),
        ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "x"}]}, "tools[0]", "hosted_tools"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers", "hosted_tools"),
        (
            {"messages": [{"role": "user", "content": [block("image", source={"type": "file", "file_id": "f"})]}]},
            "messages[0].content[0]",
            "hosted_tools",
        ),
    ],
)
async def test_what_no_backend_can_do_is_refused_by_its_path(
    needing: dict[str, Any], path: str, capability: str
) -> None:
    with pytest.raises(InvalidRequest, match=capability) as refused:
        await MessagesClient({}, "req_1", {"tools"}).read({**BODY, **needing}, "default", large=False)
    assert refused.value.param == path
    needed = f"messages_{capability}"
    _, native, _ = await MessagesClient({}, "req_1", {needed}).read({**BODY, **needing}, "default", large=False)
    assert native.needs == {needed}


EVERYTHING: dict[str, Any] = {
    **BODY,
    "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                block("text", text="a"),
                block("image", source=PNG),
                block("document", source={"type": "content", "content": [block("text", text="a")]}, title="t"),
                block("search_result", title="t", source="s", content=[block("text", text="a")]),
            ],
        },
        {"role": "assistant", "content": [given for given, _, _ in OF_ASSISTANTS.values()]},
        {"role": "user", "content": [block("tool_result", tool_use_id="t1", content=[block("text", text="a")])]},
    ],
    "tools": [LOOK, {"type": "web_search_20250305", "name": "web_search"}],
    "tool_choice": {"type": "tool", "name": "look"},
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": {}}},
    "metadata": {"user_id": "u"},
    "stop_sequences": ["END"],
}
ODD = [None, 5, -1.5, "x", "", [], [5], [[]], {}, {"type": "x"}, {"type": [5]}, True, [block("text")]]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value within a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, member in inside for place in places(member, (*path, name)))]


def test_odd_values_anywhere_are_refused_or_translated() -> None:
    """What is translated passes as a chat completion and back as a request; nothing else is raised."""
    rng = random.Random(5)
    maker, fields = maker_of("scope", "key"), ChatFields(Limits())
    translated = 0
    for path in places(EVERYTHING)[1:] * 6:
        body = copy.deepcopy(EVERYTHING)
        holder = body
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = copy.deepcopy(rng.choice(ODD))
        try:
            made, native = chat_body(body, {})
            fields.check(made)
        except InvalidRequest as refused:
            assert refused.param
            continue
        translated += 1
        facts = facts_of_model("claude-haiku-4-5")
        for own in (native, None):
            messages_request(made, "claude-haiku-4-5", facts, maker, stream=True, native=own)
    assert translated > 100


async def test_errors_have_the_apis_envelope() -> None:
    client = MessagesClient({b"anthropic-beta": b"x"}, "req_1")
    _, native, _ = await client.read(dict(BODY), "default", large=False)
    assert native.protocol == {"anthropic-beta": "x"}
    assert native.lost == {"anthropic-beta": "x"}
    refused = InvalidRequest("No.", code="unsupported_value", param="tools[0]")
    assert json.loads(client.error(refused)) == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "No.", "param": "tools[0]", "code": "unsupported_value"},
        "request_id": "req_1",
    }
