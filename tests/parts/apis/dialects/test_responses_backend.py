"""Chat-completions bodies as requests to the Responses API: every published field is kept, refused or listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import pytest
from openai.types.chat import (
    ChatCompletionContentPartParam,
    ChatCompletionMessageParam,
    ChatCompletionToolChoiceOptionParam,
    ChatCompletionToolUnionParam,
)
from openai.types.chat.completion_create_params import CompletionCreateParamsBase, CompletionCreateParamsStreaming
from openai.types.shared_params import FunctionDefinition

from gateway.dialects.native import Native
from gateway.dialects.reasoning import maker_of
from gateway.parts.apis.dialects.responses.backend import ResponsesRequest, request_of
from gateway.parts.apis.dialects.responses.input_items import Unsupported, placed_before
from tests.support.responses_upstream import ResponsesUpstream

Json = dict[str, Any]
MINE = maker_of("https://provider/v1 large", "sk-1")
OTHER = maker_of("https://elsewhere/v1 other", "sk-2")
LOOK = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": LOOK}]
FLAT = {"type": "function", **LOOK, "strict": False}
USER = {"role": "user", "content": "json, please"}


@dataclass(frozen=True)
class Kept:
    """The field's value, and where it is in the request; `more` are other fields that it needs."""

    value: Any
    path: str
    sent: Any
    more: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Listed:
    """A value that is left out and listed by its name."""

    value: Any


@dataclass(frozen=True)
class RefusedByName:
    """A value without which the answer would be another."""

    value: Any
    param: str


SCHEMA = {"name": "s", "schema": {"type": "object"}, "strict": True}
FIELDS: dict[str, Kept | Listed | RefusedByName] = {
    "messages": Kept([USER], "input", [{"type": "message", **USER}]),
    "model": Kept("chat", "model", "large"),
    "audio": Listed({"format": "wav", "voice": "ash"}),
    "frequency_penalty": Listed(0.5),
    "function_call": Kept({"name": "look"}, "tool_choice", {"type": "function", "name": "look"}, {"functions": [LOOK]}),
    "functions": Kept([LOOK], "tools", [FLAT]),
    "logit_bias": Listed({"50256": -100}),
    "logprobs": Kept(True, "include", ["reasoning.encrypted_content", "message.output_text.logprobs"]),
    "max_completion_tokens": Kept(100, "max_output_tokens", 100),
    "max_tokens": Kept(100, "max_output_tokens", 100),
    "metadata": Kept({"a": "b"}, "metadata", {"a": "b"}),
    "modalities": RefusedByName(["text", "audio"], "modalities"),
    "moderation": Kept({"model": "omni"}, "moderation", {"model": "omni"}),
    "n": RefusedByName(2, "n"),
    "parallel_tool_calls": Kept(False, "parallel_tool_calls", False),
    "prediction": Listed({"type": "content", "content": "x"}),
    "presence_penalty": Listed(0.5),
    "prompt_cache_key": Kept("k", "prompt_cache_key", "k"),
    "prompt_cache_options": Kept({"mode": "explicit"}, "prompt_cache_options", {"mode": "explicit"}),
    "prompt_cache_retention": Kept("24h", "prompt_cache_retention", "24h"),
    "reasoning_effort": Kept("high", "reasoning.effort", "high"),
    "response_format": Kept(
        {"type": "json_schema", "json_schema": SCHEMA}, "text.format", {"type": "json_schema", **SCHEMA}
    ),
    "safety_identifier": Kept("u", "safety_identifier", "u"),
    "seed": Listed(7),
    "service_tier": Kept("flex", "service_tier", "flex"),
    "stop": Kept(["END"], "", None),  # cut from the reply, see test_reply
    "store": Kept(True, "store", True),
    "stream_options": Kept(
        {"include_usage": True, "include_obfuscation": False},
        "stream_options",
        {"include_obfuscation": False},
        {"stream": True},
    ),
    "temperature": Kept(0.5, "temperature", 0.5),
    "tool_choice": Kept("required", "tool_choice", "required", {"tools": TOOLS}),
    "tools": Kept(TOOLS, "tools", [FLAT]),
    "top_logprobs": Kept(3, "top_logprobs", 3, {"logprobs": True}),
    "top_p": Kept(0.9, "top_p", 0.9),
    "user": Kept("u", "user", "u"),
    "verbosity": Kept("low", "text.verbosity", "low"),
    "web_search_options": Kept(
        {
            "search_context_size": "low",
            "user_location": {"type": "approximate", "approximate": {"city": "Oslo", "country": "NO"}},
        },
        "tools",
        [
            {
                "type": "web_search",
                "search_context_size": "low",
                "user_location": {"type": "approximate", "city": "Oslo", "country": "NO"},
            }
        ],
    ),
    "stream": Kept(True, "stream", True),
}


def translated(body: Json, *, alternatives: int | None = None) -> ResponsesRequest:
    """The request for a body, which a strict provider takes."""
    made = request_of(
        {"model": "chat", "messages": [USER]} | body,
        MINE,
        model="large",
        stream=bool(body.get("stream")),
        alternatives=alternatives,
    )
    ResponsesUpstream(secret="any")._check(made.body)
    return made


def inputs(*messages: Json, dropped: tuple[str, ...] = ()) -> list[Json]:
    """The items of these messages; what they must be without is `dropped`."""
    made = request_of(
        {"model": "chat", "messages": list(messages)}, MINE, model="large", stream=False, alternatives=None
    )
    assert made.dropped == dropped
    items: list[Json] = made.body["input"]
    return items


def at(value: Any, path: str) -> Any:
    for part in path.split(".") if path else ():
        value = value[part]
    return value


def test_the_table_has_every_published_field() -> None:
    published = get_type_hints(CompletionCreateParamsBase) | get_type_hints(CompletionCreateParamsStreaming)
    assert set(FIELDS) == set(published)


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_kept_refused_or_listed(name: str) -> None:
    rule = FIELDS[name]
    if isinstance(rule, RefusedByName):
        with pytest.raises(Unsupported) as refused:
            translated({name: rule.value})
        assert refused.value.param == rule.param
    elif isinstance(rule, Listed):
        made = translated({name: rule.value})
        assert made.dropped == (name,)
        assert name not in made.body
    else:
        made = translated({name: rule.value} | dict(rule.more or {}))
        assert made.dropped == ()
        if name == "stop":
            assert made.stop == ("END",)
            assert "stop" not in made.body
        else:
            assert at(made.body, rule.path) == rule.sent


@pytest.mark.parametrize("name", FIELDS)
def test_null_is_as_good_as_absent(name: str) -> None:
    if name not in ("messages", "model"):
        assert translated({name: None}) == translated({})


@pytest.mark.parametrize(
    ("name", "value"),
    [("frequency_penalty", 0), ("presence_penalty", 0.0), ("logit_bias", {}), ("n", 1), ("modalities", ["text"])],
)
def test_what_changes_nothing_is_not_listed(name: str, value: Any) -> None:
    assert translated({name: value}) == translated({})


def test_asks_for_no_state_and_for_encrypted_reasoning() -> None:
    body = translated({}).body
    assert body["store"] is False
    assert body["include"] == ["reasoning.encrypted_content"]


def test_unknown_fields_are_passed_on() -> None:
    made = request_of(
        {"model": "chat", "messages": [USER], "top_k": 3, "truncation": "auto", "reasoning": {"summary": "auto"},
         "reasoning_effort": "low", "include": ["web_search_call.results"]},
        MINE, model="large", stream=False, alternatives=None,
    ).body  # fmt: skip
    assert (made["top_k"], made["truncation"]) == (3, "auto")
    assert made["reasoning"] == {"summary": "auto", "effort": "low"}
    assert made["include"] == ["web_search_call.results", "reasoning.encrypted_content"]


def test_a_limit_too_small_for_the_api_is_raised_and_listed() -> None:
    made = translated({"max_tokens": 1})
    assert made.body["max_output_tokens"] == 16
    assert made.dropped == ("max_tokens",)


def test_log_probabilities_that_only_the_gateway_wants() -> None:
    made = translated({}, alternatives=5)
    assert made.body["top_logprobs"] == 5
    assert "message.output_text.logprobs" in made.body["include"]
    assert made.hides_logprobs
    assert not translated({"logprobs": True, "top_logprobs": 2}, alternatives=1).hides_logprobs


# --- tools ------------------------------------------------------------------------------------------------------------

GRAMMAR = {"syntax": "lark", "definition": "start: /a/"}
TOOL_FORMS = {
    "ChatCompletionFunctionToolParam": (
        {"type": "function", "function": {**LOOK, "strict": False}},
        {"type": "function", **LOOK, "strict": False},
    ),
    "ChatCompletionCustomToolParam": (
        {"type": "custom", "custom": {"name": "c", "format": {"type": "grammar", "grammar": GRAMMAR}}},
        {"type": "custom", "name": "c", "format": {"type": "grammar", **GRAMMAR}},
    ),
}


def test_the_tables_have_every_published_tool_and_choice() -> None:
    assert set(TOOL_FORMS) == {form.__name__ for form in get_args(ChatCompletionToolUnionParam)}
    assert set(CHOICES) == {form.__name__ for form in get_args(ChatCompletionToolChoiceOptionParam)}


@pytest.mark.parametrize("form", TOOL_FORMS)
def test_every_tool_is_kept(form: str) -> None:
    tool, sent = TOOL_FORMS[form]
    assert translated({"tools": [tool]}).body["tools"] == [sent]


def test_every_member_of_a_function_is_kept() -> None:
    full = {**LOOK, "parameters": {"type": "object", "properties": {}, "additionalProperties": False}, "strict": True}
    assert set(full) == set(get_type_hints(FunctionDefinition))
    assert translated({"tools": [{"type": "function", "function": full}]}).body["tools"] == [
        {"type": "function", **full}
    ]
    bare = translated({"tools": [{"type": "function", "function": {"name": "f"}}]}).body["tools"][0]
    assert bare["strict"] is False
    assert bare["parameters"] == {"type": "object", "properties": {}}


CHOICES: dict[str, tuple[Any, Any]] = {
    "Literal": ("none", "none"),
    "ChatCompletionNamedToolChoiceParam": (
        {"type": "function", "function": {"name": "look"}},
        {"type": "function", "name": "look"},
    ),
    "ChatCompletionNamedToolChoiceCustomParam": (
        {"type": "custom", "custom": {"name": "c"}},
        {"type": "custom", "name": "c"},
    ),
    "ChatCompletionAllowedToolChoiceParam": (
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": TOOLS}},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", **LOOK}]},
    ),
}


@pytest.mark.parametrize("form", CHOICES)
def test_every_tool_choice_is_kept(form: str) -> None:
    choice, sent = CHOICES[form]
    tools = [*TOOLS, TOOL_FORMS["ChatCompletionCustomToolParam"][0]]
    assert translated({"tools": tools, "tool_choice": choice}).body["tool_choice"] == sent


# --- messages ---------------------------------------------------------------------------------------------------------

BREAK = {"mode": "explicit"}
PARTS: dict[str, tuple[Json, Json]] = {
    "ChatCompletionContentPartTextParam": (
        {"type": "text", "text": "a", "prompt_cache_breakpoint": BREAK},
        {"type": "input_text", "text": "a", "prompt_cache_breakpoint": BREAK},
    ),
    "ChatCompletionContentPartImageParam": (
        {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
        {"type": "input_image", "image_url": "https://x/y.png", "detail": "low"},
    ),
    "File": (
        {"type": "file", "file": {"file_data": "data:x", "filename": "f"}},
        {"type": "input_file", "file_data": "data:x", "filename": "f"},
    ),
}


@pytest.mark.parametrize("name", ["background", "conversation", "previous_response_id", "prompt"])
def test_what_the_providers_account_keeps_is_refused(name: str) -> None:
    """All of the gateway's clients share the account: of the API's own clients the gateway keeps the conversation."""
    with pytest.raises(Unsupported) as refused:
        translated({name: "resp_1"})
    assert refused.value.param == name
    assert translated({name: None}).dropped == ()


def test_the_table_has_every_published_part() -> None:
    published = {form.__name__ for form in get_args(ChatCompletionContentPartParam)}
    assert {*PARTS, "ChatCompletionContentPartInputAudioParam"} == published


@pytest.mark.parametrize("form", PARTS)
def test_every_part_is_kept(form: str) -> None:
    part, sent = PARTS[form]
    made = translated({"messages": [{"role": "user", "content": [part]}]})
    assert made.body["input"][0]["content"] == [sent]
    assert made.dropped == ()


@pytest.mark.parametrize("member", ["file_data", "file_id"])
def test_a_file_by_url_goes_without_its_name(member: str) -> None:
    """OpenAI's API refuses both together."""
    url = "https://x.example/y.pdf"
    made = translated({"messages": [{"role": "user", "content": [{"type": "file", "file": {member: url}}]}]})
    assert made.body["input"][0]["content"] == [{"type": "input_file", "file_url": url}]
    assert made.dropped == ()
    part = {"type": "file", "file": {member: url, "filename": "y.pdf"}}
    made = translated({"messages": [{"role": "user", "content": [part]}]})
    assert made.body["input"][0]["content"] == [{"type": "input_file", "file_url": url}]
    assert made.dropped == ("messages[].content[].file.filename",)


def test_audio_is_refused_by_its_path() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    with pytest.raises(Unsupported) as refused:
        inputs(USER, {"role": "user", "content": [{"type": "text", "text": "a"}, audio]})
    assert refused.value.param == "messages[1].content[1]"


MEMBERS: dict[str, tuple[str, ...]] = {
    "ChatCompletionDeveloperMessageParam": ("name",),
    "ChatCompletionSystemMessageParam": ("name",),
    "ChatCompletionUserMessageParam": ("name",),
    "ChatCompletionAssistantMessageParam": ("audio", "name"),
    "ChatCompletionToolMessageParam": (),
    "ChatCompletionFunctionMessageParam": (),
}
"""The members of each message that cannot be said; all others are kept."""
FULL: dict[str, Json] = {
    "ChatCompletionDeveloperMessageParam": {"role": "developer", "content": "a", "name": "n"},
    "ChatCompletionSystemMessageParam": {"role": "system", "content": "a", "name": "n"},
    "ChatCompletionUserMessageParam": {"role": "user", "content": "a", "name": "n"},
    "ChatCompletionAssistantMessageParam": {
        "role": "assistant",
        "content": "a",
        "name": "n",
        "audio": {"id": "audio_1"},
        "refusal": "no",
        "function_call": {"name": "old", "arguments": "{}"},
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    },
    "ChatCompletionToolMessageParam": {"role": "tool", "content": "b", "tool_call_id": "call_1"},
    "ChatCompletionFunctionMessageParam": {"role": "function", "content": "c", "name": "old"},
}


def test_every_member_of_every_message_is_kept_or_listed() -> None:
    published = {form.__name__: form for form in get_args(ChatCompletionMessageParam)}
    assert set(published) == set(FULL)
    for name, message in FULL.items():
        assert set(message) == set(get_type_hints(published[name])), name
        alone = request_of({"messages": [message]}, MINE, model="m", stream=False, alternatives=None)
        assert set(alone.dropped) == {f"messages[].{one}" for one in MEMBERS[name]}
    made = translated({"messages": [USER, *FULL.values()]})
    assert set(made.dropped) == {"messages[].name", "messages[].audio"}
    assert [item.get("role") or item["type"] for item in made.body["input"]] == [
        "user", "developer", "system", "user", "assistant", "function_call", "function_call", "function_call_output",
        "function_call_output",
    ]  # fmt: skip
    assistant = made.body["input"][4]
    assert [part["type"] for part in assistant["content"]] == ["output_text", "refusal"]


def test_calls_and_results_of_custom_tools() -> None:
    call = {"id": "call_1", "type": "custom", "custom": {"name": "c", "input": "x"}}
    items = translated(
        {"messages": [USER, {"role": "assistant", "tool_calls": [call]},
                      {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "y"}]}]}
    ).body["input"]  # fmt: skip
    assert items[1:] == [
        {"type": "custom_tool_call", "call_id": "call_1", "name": "c", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "y"}]},
    ]


@pytest.mark.parametrize("ident", ["functions.look:0", "x" * 65, "ünïcode", ""])
def test_ids_that_the_api_does_not_take_are_replaced_in_both_places(ident: str) -> None:
    items = translated({"messages": [USER, called(ident), result(ident)]}).body["input"]
    assert items[1]["call_id"] == items[2]["call_id"]


def test_an_id_that_a_model_has_used_twice() -> None:
    """Local models count their calls from 0 in every turn."""
    messages = [USER, called("call_0"), result("call_0"), USER, called("call_0"), result("call_0", "2")]
    items = translated({"messages": messages}).body["input"]
    pairs = [(items[1], items[2]), (items[4], items[5])]
    assert [call["call_id"] == answer["call_id"] for call, answer in pairs] == [True, True]
    assert items[1]["call_id"] != items[4]["call_id"]


def test_a_function_message_without_its_call_gets_one() -> None:
    items = translated({"messages": [USER, {"role": "function", "name": "old", "content": "1"}]}).body["input"]
    assert [item["type"] for item in items] == ["message", "function_call", "function_call_output"]


def called(*idents: str, **more: Any) -> Json:
    calls = [{"id": one, "type": "function", "function": {"name": "look", "arguments": "{}"}} for one in idents]
    return {"role": "assistant", "content": None, "tool_calls": calls, **more}


def result(ident: str, content: str = "1") -> Json:
    return {"role": "tool", "tool_call_id": ident, "content": content}


# --- reasoning --------------------------------------------------------------------------------------------------------


def encrypted(data: str, ident: str = "rs_1", **more: Any) -> Json:
    return {"type": "reasoning.encrypted", "data": data, "id": ident, **more}


def summary(text: str, ident: str = "rs_1") -> Json:
    return {"type": "reasoning.summary", "summary": text, "id": ident, "index": 0}


def test_own_reasoning_goes_back_to_its_places() -> None:
    details = [
        summary("first"),
        encrypted(MINE.seal("gAAA1")),
        encrypted(MINE.seal(placed_before("call_2", "gAAA2")), "rs_2"),
    ]
    message = called("call_1", "call_2", content="Looking.", reasoning_content="first", reasoning_details=details)
    items = inputs(USER, message)
    assert [item.get("call_id") or item.get("encrypted_content") or item["content"] for item in items[1:]] == [
        "gAAA1", "Looking.", "call_1", "gAAA2", "call_2",
    ]  # fmt: skip
    assert items[1] == {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "first"}],
        "encrypted_content": "gAAA1",
    }


def test_reasoning_without_its_output_is_not_sent() -> None:
    message = called(
        "call_1", reasoning_details=[encrypted(MINE.seal(placed_before("call_gone", "gAAA"))), summary("why")]
    )
    items = inputs(message, dropped=("reasoning",))
    assert [item["type"] for item in items] == ["message", "function_call"]
    assert items[0]["content"] == "<reasoning>\nwhy\n</reasoning>"


@pytest.mark.parametrize("data", [OTHER.seal("gAAA"), "gAAA", "tl1.x.y.z", 7])
def test_foreign_reasoning_is_removed_and_its_text_kept(data: Any) -> None:
    message = {"role": "assistant", "content": "Hi.", "reasoning_details": [summary("why"), encrypted(data)]}
    items = inputs(USER, message, dropped=("reasoning",))
    assert [item["content"] for item in items[1:]] == ["<reasoning>\nwhy\n</reasoning>", "Hi."]
    assert "gAAA" not in str(items)


def test_readable_reasoning_is_kept_and_nothing_lost() -> None:
    items = inputs(USER, {"role": "assistant", "content": "Hi.", "reasoning_content": "why"})
    assert [item["content"] for item in items[1:]] == ["<reasoning>\nwhy\n</reasoning>", "Hi."]
    signed = {"type": "reasoning.text", "text": "why", "signature": "abc"}
    inputs(USER, {"role": "assistant", "content": "Hi.", "reasoning_details": [signed]}, dropped=("reasoning",))


def test_readable_reasoning_in_pieces_as_a_stream_gave_it() -> None:
    pieces = [{"type": "reasoning.text", "text": text, "index": 0} for text in ("Because ", "it ", "is.")]
    items = inputs(USER, {"role": "assistant", "content": "Hi.", "reasoning_details": pieces})
    assert items[1]["content"] == "<reasoning>\nBecause it is.\n</reasoning>"


def test_reasoning_that_its_server_shows_and_does_not_encrypt() -> None:
    details = [{"type": "reasoning.text", "text": "why", "id": "rs_1", "index": 0}, encrypted(MINE.seal(""))]
    items = inputs({"role": "assistant", "content": "Hi.", "reasoning_details": details})
    assert items[0] == {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "why"}],
    }


# --- the client's own body --------------------------------------------------------------------------------------------


def passed_on(
    own: Json, more: Json | None = None, alternatives: int | None = None, needs: Sequence[str] = ()
) -> ResponsesRequest:
    native = Native("responses", own, {}, needs=frozenset(needs))
    body = {"model": "chat", "messages": [USER], **(more or {})}
    return request_of(body, MINE, model="large", stream=False, alternatives=alternatives, native=native)


def test_the_clients_own_body_is_sent_as_it_is() -> None:
    own = {
        "model": "chat",
        "input": [{"role": "user", "content": "hi"}, {"type": "web_search_call", "id": "ws_1", "status": "completed"}],
        "tools": [{"type": "web_search"}],
        "include": ["reasoning.encrypted_content"],
        "store": True,
        "truncation": "auto",
        "text": {"verbosity": "low"},
        "unknown": {"a": [1]},
    }
    made = passed_on(own)
    assert made.body == own | {"model": "large", "store": False}
    assert made.native
    assert made.dropped == ()


def test_the_gateways_changes_to_the_clients_own_body() -> None:
    own = {"input": "hi", "max_output_tokens": 5000, "prompt_cache_key": "mine", "stream": True, "temperature": 0.5}
    made = passed_on(own, {"max_completion_tokens": 100, "prompt_cache_key": "tl-1", "stop": ["END"]}, alternatives=1)
    assert made.body == {
        "model": "large",
        "input": "hi",
        "max_output_tokens": 100,
        "prompt_cache_key": "tl-1",
        "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
        "top_logprobs": 1,
        "store": False,
    }
    assert (made.stop, made.native, made.dropped) == (("END",), False, ())
    assert made.hides_logprobs
    hosted = {**own, "tools": [{"type": "web_search"}]}
    made = passed_on(hosted, {"stop": "END"}, needs=["responses_hosted_tools"])
    assert (made.stop, made.native, made.dropped) == ((), True, ("stop",))


def test_reasoning_in_the_clients_own_body() -> None:
    def reasoned(sealed: str | None, number: int) -> list[Json]:
        item = {"type": "reasoning", "id": f"rs_{number}", "summary": [{"type": "summary_text", "text": "why"}]}
        if sealed is not None:
            item["encrypted_content"] = sealed
        content = [{"type": "output_text", "text": "a", "annotations": []}]
        said = {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": content}
        return [item, {**said, "status": "completed"}, {"role": "user", "content": "go on"}]

    own, foreign, bare = MINE.seal("gAAA"), OTHER.seal("gBBB"), None
    items = [one for number, sealed in enumerate((own, foreign, bare)) for one in reasoned(sealed, number)]
    made = passed_on({"input": items})
    sent = made.body["input"]
    assert made.dropped == ("reasoning",)
    assert sent[0]["encrypted_content"] == "gAAA"
    assert sent[1]["id"] == "msg_0"
    assert sent[3] == {"type": "message", "role": "assistant", "content": "<reasoning>\nwhy\n</reasoning>"}
    assert sent[4]["id"].startswith("msg_")
    assert sent[4]["id"] != "msg_1", "the API would look for the reasoning that belongs to it"
    assert [item.get("type") for item in sent].count("reasoning") == 1
    assert items[0]["encrypted_content"] == own, "the client's body is not changed"
