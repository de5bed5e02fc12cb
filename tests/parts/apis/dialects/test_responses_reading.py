"""Bodies of the Responses API as bodies of chat completions: what is kept, refused, lost, and needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_type_hints

import pytest
from openai.types.responses import response_create_params

from gateway.chat.completions import wants_usage
from gateway.config.schema import Limits
from gateway.dialects.native import Native, lost_fields, native_body
from gateway.errors import InvalidRequest
from gateway.parts.apis.dialects.responses import reading
from gateway.parts.apis.dialects.responses.reading import chat_request, entries_of
from gateway.request.body import ChatFields

Json = dict[str, Any]
CHECKED = ChatFields(Limits())


def both(body: Json, *, hosted: bool = False, kept: bool = False) -> tuple[Json, Native]:
    """The chat body of a request, which the gateway's own check takes, and its own form."""
    whole = {"model": "chat", "input": "hello", **body}
    chat, native, _ = chat_request(whole, entries_of(whole), hosted=hosted, kept=kept)
    CHECKED.check(chat)
    return chat, native


def read(body: Json, *, hosted: bool = False) -> Json:
    """The chat body of a request."""
    return both(body, hosted=hosted)[0]


def own(body: Json, *, hosted: bool = False, kept: bool = False) -> Native:
    """The own form of a request."""
    return both(body, hosted=hosted, kept=kept)[1]


def messages(*items: Any, **more: Any) -> list[Json]:
    """The messages of a conversation."""
    return list(read({"input": list(items), **more})["messages"])


def refused(body: Json, **options: bool) -> tuple[str | None, str | None]:
    """The code and the path with which a body is refused."""
    with pytest.raises(InvalidRequest) as caught:
        read(body, **options)
    assert caught.value.status == 400
    return caught.value.code, caught.value.param


def call(call_id: str, name: str = "look", arguments: str = "{}") -> Json:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id: str, text: Any = "found") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def said(text: str, role: str = "user") -> Json:
    return {"role": role, "content": text}


def test_a_text_is_a_users_message() -> None:
    assert read({"input": "hi", "instructions": "Be brief."})["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]


def test_messages_of_all_roles_and_forms() -> None:
    """Without a type and with one, as a text and in parts; one part of text is a text, which every backend takes."""
    assert messages(
        said("a", "system"),
        said("b", "developer"),
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "c"}]},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "d", "annotations": []}],
        },
        {"role": "user", "content": [{"type": "input_text", "text": "e"}, {"type": "input_text", "text": "f"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ) == [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
        {"role": "user", "content": [{"type": "text", "text": "e"}, {"type": "text", "text": "f"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]


def test_images_files_and_sound() -> None:
    parts = [
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
        {"type": "input_image", "image_url": "https://example.org/a.png"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,AA==", "filename": "a.pdf"},
        {"type": "input_file", "file_id": "file_1"},
        {"type": "input_file", "file_url": "https://a.example/a.pdf"},
        {"type": "input_file", "file_url": "https://a.example/a.pdf", "filename": "a.pdf"},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
    ]
    assert messages({"role": "user", "content": parts})[0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA==", "filename": "a.pdf"}},
        {"type": "file", "file": {"file_id": "file_1"}},
        {"type": "file", "file": {"file_data": "https://a.example/a.pdf"}},
        {"type": "file", "file": {"file_data": "https://a.example/a.pdf", "filename": "a.pdf"}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
    ]


def test_a_turn_with_calls_is_one_message() -> None:
    """Reasoning, text and parallel calls belong together; each round of calls and outputs is a turn of its own."""
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "think"}]}
    made = messages(
        said("go"), reasoning, said("I look.", "assistant"), call("1"), call("2"), output("1"), output("2"),
        call("3"), output("3", [{"type": "input_text", "text": "x"}]), said("done", "assistant"),
    )  # fmt: skip
    assert [(one["role"], one.get("content"), [c["id"] for c in one.get("tool_calls", ())]) for one in made] == [
        ("user", "go", []),
        ("assistant", "I look.", ["1", "2"]),
        ("tool", "found", []),
        ("tool", "found", []),
        ("assistant", None, ["3"]),
        ("tool", "x", []),
        ("assistant", "done", []),
    ]
    assert made[1]["reasoning_details"] == [
        {"type": "reasoning.summary", "summary": "think", "index": 0, "format": "openai-responses-v1", "id": "rs_1"}
    ]


def test_nothing_stands_between_calls_and_their_outputs() -> None:
    """A text after a call, and a second one, are put into the message of the calls."""
    made = messages(said("go"), said("a", "assistant"), call("1"), said("b", "assistant"), output("1"))
    assert [one["role"] for one in made] == ["user", "assistant", "tool"]
    assert made[1]["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def test_pictures_and_files_in_the_outputs_of_calls() -> None:
    """An output of chat completions is text: a user's message after all outputs of the turn shows the rest."""
    text, png = {"type": "input_text", "text": "here"}, "data:image/png;base64,AA=="
    image, pdf = {"type": "input_image", "image_url": png}, {"type": "input_file", "file_data": "data:,x"}
    made = messages(
        said("go"), call("1"), call("2"), output("1", [text, image]), output("2", [pdf]), said("and?"), call("3"),
        output("3", [image]),
    )  # fmt: skip
    assert [one["role"] for one in made] == [
        "user", "assistant", "tool", "tool", "user", "user", "assistant", "tool", "user",
    ]  # fmt: skip
    assert [one["content"] for one in made if one["role"] == "tool"] == ["here", "", ""]
    picture = {"type": "image_url", "image_url": {"url": png}}
    assert made[4]["content"] == [picture, {"type": "file", "file": {"file_data": "data:,x"}}]
    assert made[8]["content"] == [picture]


def test_outputs_that_come_late_stand_before_what_they_show() -> None:
    """An output that comes after other messages joins its call, and its picture the pictures of the turn."""
    image = {"type": "input_image", "image_url": "data:,x"}
    made = messages(call("1"), call("2"), output("1", [image]), said("wait"), output("2", [image]))
    assert [one["role"] for one in made] == ["assistant", "tool", "tool", "user", "user"]
    assert [len(one["content"]) for one in made[3:]] == [2, 4]


@pytest.mark.parametrize("given", [{}, {"input": []}, {"input": None}])
def test_a_stored_prompt_needs_no_input(given: Json) -> None:
    """The provider has the prompt's text; the request goes to it without input, or with as little as it came with."""
    body = {"model": "chat", "prompt": {"id": "pmpt_1"}, **given}
    chat, native, _ = chat_request(body, entries_of(body), hosted=True, kept=False)
    CHECKED.check(chat)
    assert native.body.get("input", ...) == ([] if "input" in given else ...)
    assert native.conversation() == []
    assert native.needs == {reading.HOSTED}


def test_two_texts_in_a_row_stay_two_messages() -> None:
    made = messages(said("a", "assistant"), said("b", "assistant"), said("c"))
    assert [one["content"] for one in made] == ["a", "b", "c"]


def test_reasoning_alone_is_still_a_valid_message() -> None:
    encrypted = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "tl1.x.y.z"}
    assert messages(encrypted, said("go on"))[0] == {
        "role": "assistant",
        "content": "",
        "reasoning_details": [
            {"type": "reasoning.encrypted", "data": "tl1.x.y.z", "format": "openai-responses-v1", "id": "rs_1"}
        ],
    }


def test_custom_calls() -> None:
    made = messages(
        {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "ok"},
    )
    assert made == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
    ]


def test_tools_and_the_choice_of_one() -> None:
    """A custom tool's grammar is one level deeper; `strict: null` is what older SDKs send for nothing."""
    parameters = {"type": "object", "properties": {}}
    chat = read(
        {
            "tools": [
                {"type": "function", "name": "look", "description": "d", "parameters": parameters, "strict": True},
                {"type": "function", "name": "bare", "parameters": None, "strict": None},
                {
                    "type": "custom",
                    "name": "patch",
                    "description": "p",
                    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"},
                },
                {"type": "custom", "name": "free", "format": {"type": "text"}},
            ],
            "tool_choice": {"type": "function", "name": "look"},
            "parallel_tool_calls": False,
        }
    )
    assert chat["tools"] == [
        {
            "type": "function",
            "function": {"name": "look", "description": "d", "parameters": parameters, "strict": True},
        },
        {"type": "function", "function": {"name": "bare"}},
        {
            "type": "custom",
            "custom": {
                "name": "patch",
                "description": "p",
                "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a/"}},
            },
        },
        {"type": "custom", "custom": {"name": "free", "format": {"type": "text"}}},
    ]
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    assert chat["parallel_tool_calls"] is False
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]}
    assert read({"tool_choice": allowed})["tool_choice"] == {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "look"}}]},
    }
    assert read({"tool_choice": "required"})["tool_choice"] == "required"


def test_tools_in_a_namespace_are_functions_with_longer_names() -> None:
    """As Codex CLI sends them; their calls in earlier turns are named alike."""
    tools = [{"type": "namespace", "name": "crm", "tools": [{"type": "function", "name": "find", "strict": False}]}]
    chat, native = both({"tools": tools, "input": [{**call("1", "find"), "namespace": "crm"}, output("1")]})
    assert chat["tools"] == [{"type": "function", "function": {"name": "crm__find", "strict": False}}]
    assert chat["messages"][0]["tool_calls"][0]["function"]["name"] == "crm__find"
    assert native.lost == {}


def test_a_long_name_in_a_namespace_is_cut_to_what_openai_takes() -> None:
    names = ["find_" + "x" * 60, "find_" + "x" * 60 + "y"]
    tools = [{"type": "namespace", "name": "crm", "tools": [{"type": "function", "name": name} for name in names]}]
    asked = {"tools": tools, "input": [{**call("1", names[0]), "namespace": "crm"}, output("1")]}
    chat, _, known = chat_request(asked, entries_of(asked), hosted=False, kept=False)
    made = [tool["function"]["name"] for tool in chat["tools"]]
    assert [len(name) for name in made] == [64, 64]
    assert known == {made[0]: ("crm", names[0]), made[1]: ("crm", names[1])}
    assert chat["messages"][0]["tool_calls"][0]["function"]["name"] == made[0]


def test_who_asks_is_no_part_of_the_key() -> None:
    assert own({"client_metadata": {"turn_id": "1"}}).lost == {"client_metadata": None}


def test_options() -> None:
    chat, native = both(
        {
            "text": {
                "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True},
                "verbosity": "low",
            },
            "reasoning": {"effort": "high"},
            "max_output_tokens": 50,
            "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
            "top_logprobs": 3,
            "temperature": 0.5,
            "stream": True,
            "stream_options": {"include_obfuscation": False},
            "top_k": 4,
        }
    )
    assert chat["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
    }
    expected = {
        "verbosity": "low", "reasoning_effort": "high", "max_completion_tokens": 50, "logprobs": True,
        "top_logprobs": 3, "temperature": 0.5, "stream": True, "top_k": 4,
        "stream_options": {"include_obfuscation": False, "include_usage": True},
    }  # fmt: skip
    assert {name: chat[name] for name in expected} == expected
    assert wants_usage(chat)
    assert native.lost == {}
    assert "response_format" not in read({"text": {"format": {"type": "text"}}})
    assert read({"text": {"format": {"type": "json_object"}}})["response_format"] == {"type": "json_object"}


# --- each field of the schema -----------------------------------------------------------------------------------------

_FIELDS = set(get_type_hints(response_create_params.ResponseCreateParamsBase)) | {"stream"}
_SAMPLES: Json = {
    "access_programs": {"cyber": "standard"},
    "context_management": [{"type": "compaction"}],
    "background_options": {"completion_window": "2h", "continuation_id": "c"},
    "image": {"context_compression": "auto"},
    "max_tool_calls": 3,
    "metadata": {"a": "b"},
    "moderation": {"model": "omni"},
    "parallel_tool_calls": True,
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "service_tier": "flex",
    "stream": True,
    "temperature": 1.0,
    "top_p": 0.5,
    "truncation": "auto",
    "user": "u",
}


def test_each_field_of_the_schema_has_one_fate() -> None:
    """Kept, honoured by the gateway, lost (and listed), needed or refused: none is passed over."""
    fates = [reading.SAME, reading.TRANSLATED, reading.STATE, reading.LOST, reading.NEEDED]
    assert not reading.IDLE & _FIELDS
    assert set().union(*fates) == _FIELDS
    assert sum(map(len, fates)) == len(_FIELDS)
    assert reading.SAME | reading.LOST - {"model"} <= {*_SAMPLES, "model"}


@pytest.mark.parametrize("name", sorted(reading.SAME - {"model"}))
def test_fields_of_both_apis_are_kept(name: str) -> None:
    assert read({name: _SAMPLES[name]})[name] == _SAMPLES[name]


@pytest.mark.parametrize("name", sorted(reading.LOST))
def test_lost_fields_are_listed(name: str) -> None:
    """A backend that speaks chat completions lists the field; one of this API gets it in the client's own body."""
    chat, native = both({name: _SAMPLES[name]})
    assert name not in chat
    assert lost_fields(native, "chat") == (name,)
    assert lost_fields(native, "responses") == ()
    body = native_body(native, "responses")
    assert body is not None
    # A response in the background is the gateway's own: the provider gets a request like any other.
    assert body.get(name) == (None if name == "background_options" else _SAMPLES[name])
    assert lost_fields(own({name: None}), "chat") == ()


def test_what_asks_for_nothing_is_not_listed() -> None:
    body = {"truncation": "disabled", "background": False, "include": [], "text": None, "reasoning": {"summary": None}}
    assert lost_fields(own(body), "chat") == ()


@pytest.mark.parametrize(
    ("body", "lost"),
    [
        ({"reasoning": {"effort": "low", "summary": "auto"}}, "reasoning.summary"),
        ({"text": {"speed": 1}}, "text.speed"),
        ({"include": ["web_search_call.action.sources", "reasoning.encrypted_content"]}, "include"),
        ({"input": [{**said("a"), "phase": "commentary"}]}, "input[0].phase"),
        ({"client_metadata": {"turn_id": "1"}}, "client_metadata"),
        ({"tools": [{"type": "namespace", "name": "n", "description": "d", "tools": []}]}, "tools[0].description"),
        (
            {
                "input": [
                    {
                        "role": "user",
                        "content": [{"type": "input_text", "text": "a", "prompt_cache_breakpoint": {"mode": "x"}}],
                    }
                ]
            },
            "input[0].content[0].prompt_cache_breakpoint",
        ),
        ({"tools": [{"type": "function", "name": "f", "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"input": [{"type": "web_search_call", "id": "ws_1", "status": "completed"}, said("a")]}, "input[0]"),
        ({"tools": [{"type": "web_search", "external_web_access": False}], "tool_choice": "auto"}, "tools[0]"),
        ({"tools": [{"type": "web_search_preview"}]}, "tools[0]"),
        ({"text": {"a\r\nset-cookie": 1}}, "text['a\\r\\nset-cookie']"),
    ],
)
def test_lost_members_are_listed_by_their_paths(body: Json, lost: str) -> None:
    assert lost_fields(own(body), "chat") == (lost,)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "x", "server_url": "https://x"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}, said("a")]}, "input[0].type"),
        ({"input": [{"type": "shell_call", "call_id": "1", "action": {}}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f", "detail": "auto"}]}]},
            "input[0].content[0].file_id",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "gs://x"}]}]},
            "input[0].content[0].file_url",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "computer_screenshot"}]}]},
            "input[0].content[0].type",
        ),
    ],
)
def test_what_needs_a_backend_of_this_api(body: Json, param: str) -> None:
    """It is refused by name where there is none; else the request goes to such tiers, under a key of its own."""
    assert refused(body) == ("unsupported_value", param)
    whole = {"input": [*body["input"], said("b")]} if "input" in body else body
    native = own({**body, **whole}, hosted=True)
    assert native.needs == {"responses_hosted_tools"}
    assert len(native.lost) == 1
    assert not own({}, hosted=True).needs


def test_a_search_that_the_model_may_leave_is_needed_where_a_backend_has_it() -> None:
    """An agent that offers it gets a tier that can search; its own tools go on where none can."""
    tools: list[Json] = [{"type": "web_search"}, {"type": "function", "name": "f"}]
    assert own({"tools": tools}, hosted=True).needs == {"responses_hosted_tools"}
    chat, native = both({"tools": tools, "tool_choice": "auto"})
    assert not native.needs
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["f"]


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"background": "yes"}, "invalid_type", "background"),
        ({"messages": []}, "unsupported_value", "messages"),
        ({"max_tokens": 1}, "unsupported_value", "max_tokens"),
        ({"response_format": {}}, "unsupported_value", "response_format"),
        ({"n": 2}, "unsupported_value", "n"),
        ({"input": 5}, "invalid_type", "input"),
        ({"input": [5]}, "invalid_type", "input[0]"),
        ({"input": [{"type": 5}]}, "invalid_type", "input[0].type"),
        ({"input": [{**said("a"), "id": 5}]}, "invalid_type", "input[0].id"),
        ({"input": [{**call("1"), "id": {"a": 1}}]}, "invalid_type", "input[0].id"),
        ({"input": [{"role": "user"}]}, "missing_required_parameter", "input[0].content"),
        ({"input": [{"content": "a"}]}, "missing_required_parameter", "input[0].role"),
        ({"input": [said("a", "bot")]}, "unsupported_value", "input[0].role"),
        ({"input": [{"role": "user", "content": 5}]}, "invalid_type", "input[0].content"),
        ({"input": [{"role": "user", "content": [5]}]}, "invalid_type", "input[0].content[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]},
            "invalid_type",
            "input[0].content[0].text",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "detail": "low"}]}]},
            "missing_required_parameter",
            "input[0].content[0].image_url",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "filename": "a"}]}]},
            "missing_required_parameter",
            "input[0].content[0].file_data",
        ),
        ({"input": [{**call("1"), "arguments": {}}]}, "invalid_type", "input[0].arguments"),
        ({"input": [{"type": "function_call", "call_id": "1"}]}, "missing_required_parameter", "input[0].name"),
        ({"input": [output("1", None)]}, "missing_required_parameter", "input[0].output"),
        (
            {"input": [{"type": "function_call_output", "output": "a"}]},
            "missing_required_parameter",
            "input[0].call_id",
        ),
        ({"input": [{"type": "reasoning", "summary": "a"}]}, "invalid_type", "input[0].summary"),
        ({"input": [{"type": "reasoning", "summary": [{}]}]}, "missing_required_parameter", "input[0].summary[0].text"),
        ({"input": [{"type": "reasoning", "encrypted_content": 1}]}, "invalid_type", "input[0].encrypted_content"),
        ({"instructions": 5}, "invalid_type", "instructions"),
        ({"max_output_tokens": "5"}, "invalid_type", "max_output_tokens"),
        ({"max_output_tokens": 0}, "unsupported_value", "max_output_tokens"),
        ({"top_logprobs": True}, "invalid_type", "top_logprobs"),
        ({"top_logprobs": 21}, "unsupported_value", "top_logprobs"),
        ({"include": "a"}, "invalid_type", "include"),
        ({"text": "a"}, "invalid_type", "text"),
        ({"text": {"format": "json"}}, "invalid_type", "text.format"),
        ({"text": {"format": {}}}, "missing_required_parameter", "text.format.type"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a"}}},
            "missing_required_parameter",
            "text.format.schema",
        ),
        ({"reasoning": "high"}, "invalid_type", "reasoning"),
        ({"reasoning": {"effort": 1}}, "invalid_type", "reasoning.effort"),
        ({"tools": {}}, "invalid_type", "tools"),
        ({"tools": [5]}, "invalid_type", "tools[0]"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].name"),
        ({"tools": [{"type": "custom", "name": "a", "format": 1}]}, "invalid_type", "tools[0].format"),
        ({"tools": [{"type": "namespace", "tools": []}]}, "missing_required_parameter", "tools[0].name"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "invalid_type", "tools[0].tools"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]},
            "missing_required_parameter",
            "tools[0].tools[0].name",
        ),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}]},
            "unsupported_value",
            "tools[0].tools[0].type",
        ),
        ({"tool_choice": 5}, "invalid_type", "tool_choice"),
        ({"tool_choice": "maybe"}, "unsupported_value", "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "missing_required_parameter", "tool_choice.name"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "invalid_type", "tool_choice.tools"),
        ({"stream": "yes"}, "invalid_type", "stream"),
        ({"stream": True, "stream_options": 1}, "invalid_type", "stream_options"),
        ({"temperature": "hot"}, "invalid_type", "temperature"),
        ({"metadata": []}, "invalid_type", "metadata"),
        ({"user": 5}, "invalid_type", "user"),
        ({"parallel_tool_calls": "no"}, "invalid_type", "parallel_tool_calls"),
    ],
)
def test_errors_name_the_fields_own_path(body: Json, code: str, param: str) -> None:
    assert refused(body) == (code, param)


def test_a_backend_of_this_api_gets_the_clients_own_body() -> None:
    """With the whole conversation as its input. What the gateway keeps must not lose the model's reasoning."""
    body = native_body(own({"input": [said("a")], "previous_response_id": "resp_1"}), "responses")
    assert body == {"model": "chat", "input": [said("a")]}
    kept = native_body(own({"reasoning": {"effort": "low"}, "include": ["a.b"]}, kept=True), "responses")
    assert kept is not None
    assert kept["include"] == ["a.b", "reasoning.encrypted_content"]
    assert native_body(own({}), "messages") is None


# --- values of wrong types --------------------------------------------------------------------------------------------

RICH: Json = {
    "model": "chat",
    "input": [
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u", "detail": "low"},
            {"type": "input_file", "file_data": "d", "filename": "f"},
            {"type": "input_audio", "input_audio": {"data": ""}},
        ]},
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "s"}],
         "content": [{"type": "reasoning_text", "text": "t"}], "encrypted_content": "tlr1.e30="},
        {"role": "assistant", "content": [{"type": "output_text", "text": "b"}, {"type": "refusal", "refusal": "r"}]},
        {**call("1"), "namespace": "n", "extra_content": {}}, output("1", [{"type": "input_text", "text": "x"}]),
        {"type": "custom_tool_call", "call_id": "2", "name": "p", "input": "i"},
        {"type": "custom_tool_call_output", "call_id": "2", "output": "o"},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": {}, "strict": True, "description": "d"},
        {"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "s", "definition": "d"}},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}, "verbosity": "low"},
    "reasoning": {"effort": "low"}, "include": ["a"], "top_logprobs": 1, "max_output_tokens": 1, "instructions": "i",
    "stream_options": {"include_obfuscation": True}, **_SAMPLES,
}  # fmt: skip
ODD: tuple[Any, ...] = (
    None,
    5,
    0.5,
    True,
    "x",
    "",
    [],
    {},
    [5],
    [None],
    {"type": 5},
    [{"type": []}],
    {"type": "function"},
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a value."""
    yield at
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from paths(inner, (*at, key))


def test_no_type_of_any_value_is_a_bug_of_ours() -> None:
    """Whatever stands in the place of any value: the request is read, or refused with a path that names a field."""
    read(RICH)
    refusals = 0
    for at in paths(RICH):
        for odd in ODD if at else ():
            body = json.loads(json.dumps(RICH))
            holder = body
            for key in at[:-1]:
                holder = holder[key]
            holder[at[-1]] = odd
            try:
                read(body)
            except InvalidRequest as error:
                assert error.param is not None and error.param.startswith(str(at[0])), (at, odd)
                refusals += 1
    assert refusals > 500


def test_tools_that_an_item_gives_are_tools() -> None:
    """Codex CLI sends them so for its newest models; of those given again the last counts; calls find their names."""
    first = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "f"}]}
    inner = [{"type": "custom", "name": "exec"}, {"type": "function", "name": "wait", "parameters": {}}]
    later = {
        "type": "additional_tools",
        "tools": [{"type": "namespace", "name": "shell", "tools": inner}, *first["tools"]],
    }
    whole = {
        "model": "chat",
        "input": [first, said("a"), later, said("b")],
        "tools": [{"type": "function", "name": "g"}],
    }
    chat, native, names = chat_request(whole, entries_of(whole), hosted=False, kept=False)
    CHECKED.check(chat)
    assert [tool[tool["type"]]["name"] for tool in chat["tools"]] == ["f", "shell__exec", "shell__wait", "g"]
    assert names["shell__exec"] == ("shell", "exec")
    assert [message["content"] for message in chat["messages"]] == ["a", "b"]
    assert not native.needs
    assert refused({"input": [{"type": "additional_tools", "tools": 5}, said("a")]}) == (
        "invalid_type",
        "input[0].tools",
    )
