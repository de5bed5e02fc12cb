"""Odd requests that one API takes, translated for another: its checks (`tests.support.strict_*`) must take them too."""

from __future__ import annotations

import json
from typing import Any, Final

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.backends.base import BackendRequest
from gateway.backends.openai import OpenAIBackend
from gateway.config.schema import Limits
from gateway.dialects.native import Native
from gateway.dialects.reasoning import maker_of
from gateway.parts.apis.dialects.messages.backend import messages_request
from gateway.parts.apis.dialects.messages.client import chat_body as of_messages
from gateway.parts.apis.dialects.messages.models import facts_of_model
from gateway.parts.apis.dialects.responses.backend import request_of
from gateway.parts.apis.dialects.responses.reading import chat_request as of_responses
from gateway.parts.apis.dialects.responses.reading import entries_of
from gateway.parts.servers.chat_forms import ServerChat
from gateway.request.body import ChatFields
from tests.support.responses_upstream import ResponsesUpstream
from tests.support.strict_chat import StrictChat
from tests.support.strict_messages import StrictMessages

Json = dict[str, Any]
OWN: Final = maker_of("endpoint model", "key")
OTHER: Final = maker_of("another endpoint", "key")
CLAUDE, GPT = StrictMessages(), ResponsesUpstream()
OPENAI: Final = StrictChat("details", reasons=False)
"""OpenAI itself, which takes short ids only."""
MODELS: Final = ("claude-haiku-4-5", "claude-sonnet-4-6", "claude-opus-4-8", "claude-opus-5-5", "kimi-k3")
few = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def to_messages(body: Json, model: str = MODELS[0], native: Native | None = None) -> str | None:
    """What Anthropic's API refuses a chat body for."""
    made = messages_request(body, model, facts_of_model(model), OWN, stream=False, native=native).body
    return CLAUDE.refusal_of(json.loads(json.dumps(made)))


def to_responses(body: Json, native: Native | None = None) -> str | None:
    """What OpenAI's Responses API refuses a chat body for."""
    made = request_of(body, OWN, model="large", stream=False, alternatives=None, native=native)
    return GPT.refusal_of(made.body)


def to_chat(body: Json, native: Native | None) -> str | None:
    """What OpenAI's chat completions refuse a translated body for."""
    ChatFields(Limits()).check(body)
    backend = OpenAIBackend(None, model="small", key=None, maker=OWN, forms=ServerChat("small", OWN))  # type: ignore[arg-type]
    request = BackendRequest(body, ask_logprobs=False, alternatives=None, native=native)
    payload, _, _ = backend._prepare(request, stream=False)
    return OPENAI.refusal_of(json.loads(json.dumps(payload)))


# --- conversations of chat completions --------------------------------------------------------------------------------

IDENTS: Final = st.sampled_from(["call_1", "call_2", "functions.look:0", "x" * 64, "y" * 46])
TEXTS: Final = st.sampled_from(["", " ", "\n", "Hello.", "Ends in white space. "])
SEALED: Final = [
    {"type": "reasoning.text", "text": "so", "signature": maker.seal(CLAUDE.signature("so")), "index": 0}
    for maker in (OWN, OTHER)
]
PARTS: Final = st.lists(
    st.sampled_from(
        [
            {"type": "text", "text": ""},
            {"type": "text", "text": "Look:", "cache_control": {"type": "ephemeral"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,aGVsbG8="}},
        ]
    ),
    min_size=1,
    max_size=3,
)
SAYS: Final = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": TEXTS},
    optional={"refusal": st.just("I cannot."), "reasoning_content": st.just("Hm."), "name": st.just("bot")},
)
THINKS: Final = st.sampled_from(
    [{"role": "assistant", "content": content, "reasoning_details": [one]} for one in SEALED for content in ("", "Yes")]
)


def _called(idents: list[str], said: str | None, results: list[Any], custom: bool) -> list[Json]:
    function = {"name": "look", "arguments": '{"at":"map"}'}
    calls: list[Json] = [{"id": ident, "type": "function", "function": function} for ident in idents]
    if custom:
        calls[0] = {"id": idents[0], "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    answers = [
        {"role": "tool", "tool_call_id": ident, "content": result}
        for ident, result in zip(idents, results, strict=False)
    ]
    return [{"role": "assistant", "content": said, "tool_calls": calls}, *answers]


RESULTS: Final = st.one_of(TEXTS, st.just([{"type": "text", "text": ""}, {"type": "text", "text": "a sea"}]))
ROUND: Final = st.builds(
    _called,
    st.lists(IDENTS, min_size=1, max_size=2, unique=True),
    st.sampled_from([None, "", "Let me look."]),
    st.lists(RESULTS, min_size=2, max_size=2),
    st.booleans(),
)
USER: Final = st.one_of(
    TEXTS.map(lambda text: {"role": "user", "content": text}),
    PARTS.map(lambda parts: {"role": "user", "content": parts}),
)
SYSTEM: Final = st.sampled_from(
    [{"role": role, "content": text} for role in ("system", "developer") for text in ("", "Be brief.")]
)
LEGACY: Final = st.sampled_from(
    [
        [
            {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
            {"role": "function", "name": "look", "content": "a sea"},
        ],
        [{"role": "function", "name": "look", "content": "a sea"}],
    ]
)
ONE: Final = st.one_of(USER, SYSTEM, SAYS, THINKS).map(lambda message: [message])
CONVERSATION: Final = st.lists(st.one_of(ONE, ROUND, LEGACY), min_size=1, max_size=5).map(
    lambda pieces: [message for piece in pieces for message in piece]
)
SCHEMA: Final = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1}, "of": {"$ref": "#/$defs/of"}},
    "required": ["n"],
    "$defs": {
        "of": {"type": "object", "properties": {"tags": {"type": "array", "minItems": 2, "items": {"type": "string"}}}}
    },
}
TOOLS: Final = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
OPTIONS: Final = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.sampled_from([1, 600, 5000]),
        "temperature": st.sampled_from([0, 0.5, 1, 1.7]),
        "top_p": st.sampled_from([0.5, 0.99]),
        "stop": st.sampled_from(["\n", [" ", "END"]]),
        "reasoning_effort": st.sampled_from(["none", "minimal", "low", "medium", "high", "xhigh"]),
        "reasoning": st.sampled_from([{"max_tokens": 200}, {"enabled": True}, {"effort": "low", "exclude": True}]),
        "tools": st.just(TOOLS),
        "response_format": st.just({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}),
        "user": st.just("u"),
    },
)  # fmt: skip


@few
@given(CONVERSATION, OPTIONS, st.sampled_from(MODELS))
@example([{"role": "assistant", "content": "How can I help?"}], {}, MODELS[0])
@example([{"role": "system", "content": "Write a haiku."}], {}, MODELS[0])
def test_anthropic_takes_what_chat_completions_take(messages: list[Json], options: Json, model: str) -> None:
    assert to_messages({"model": "chat", "messages": messages, **options}, model) is None


@few
@given(CONVERSATION, OPTIONS)
def test_openai_responses_take_what_chat_completions_take(messages: list[Json], options: Json) -> None:
    assert to_responses({"model": "chat", "messages": messages, **options}) is None


# --- conversations of Anthropic's messages ----------------------------------------------------------------------------

THOUGHT: Final = {"type": "thinking", "thinking": "so", "signature": OTHER.seal("sig")}
SHOWN: Final = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
KEPT: Final = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}
SAID: Final = st.lists(st.sampled_from(["Hello.", "So."]).map(lambda text: {"type": "text", "text": text}), max_size=2)
GIVEN: Final = st.lists(
    st.sampled_from(
        [{"type": "text", "text": "Look."}, SHOWN, KEPT, {"type": "document", "source": {"type": "text", "data": "a"}}]
    ),
    min_size=1,
    max_size=2,
)
ENDS: Final = st.sampled_from(["a sea", "", None, [{"type": "text", "text": "a sea"}, SHOWN], []])


def _used(idents: list[str], thought: bool, said: list[Json], ends: list[Any], more: list[Json]) -> list[Json]:
    calls = [{"type": "tool_use", "id": ident, "name": "look", "input": {}} for ident in idents]
    results = [
        {"type": "tool_result", "tool_use_id": ident, **({} if end is None else {"content": end})}
        for ident, end in zip(idents, ends, strict=False)
    ]
    return [
        {"role": "assistant", "content": [*([THOUGHT] if thought else []), *said, *calls]},
        {"role": "user", "content": [*results, *more]},
    ]


USED: Final = st.builds(
    _used,
    st.lists(st.sampled_from(["toolu_1", "toolu_" + "x" * 60]), min_size=1, max_size=2, unique=True),
    st.booleans(),
    SAID,
    st.lists(ENDS, min_size=2, max_size=2),
    st.one_of(st.just([]), GIVEN),
)
TURN: Final = st.one_of(
    GIVEN.map(lambda blocks: {"role": "user", "content": blocks}),
    st.sampled_from([{"role": "assistant", "content": content} for content in ("Hi.", [THOUGHT], [THOUGHT, SHOWN])]),
).map(lambda message: [message])
TURNS: Final = st.lists(st.one_of(TURN, USED), min_size=1, max_size=4).map(
    lambda pieces: [{"role": "user", "content": "hi"}, *(message for piece in pieces for message in piece)]
)
CLAUDES_TOOLS: Final = [{"name": "look", "input_schema": {"type": "object", "properties": {"at": {}}}, "strict": True}]


@few
@given(TURNS)
@example([{"role": "user", "content": [KEPT]}])
def test_openai_takes_what_anthropic_takes(messages: list[Json]) -> None:
    given_body = {"model": "chat", "max_tokens": 500, "messages": messages, "tools": CLAUDES_TOOLS, "top_k": 3}
    body, native = of_messages(given_body, {})
    assert (to_chat(body, native), to_responses(body, native)) == (None, None)


# --- conversations of OpenAI's responses ------------------------------------------------------------------------------


def _item(kind: str, call_id: str) -> Json:
    if kind == "function_call":
        return {"type": kind, "call_id": call_id, "name": "look", "arguments": "{}"}
    return {"type": kind, "call_id": call_id, "output": "a sea"}


@st.composite
def items(draw: st.DrawFn) -> list[Json]:
    """A conversation whose calls all have an output, with anything between the two."""
    made: list[Json] = []
    waiting: list[str] = []
    for number in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["user", "developer", "assistant", "reasoning", "call", "output"]))
        if kind == "call":
            waiting.append(f"call_{number}" + draw(st.sampled_from(["", "x" * 50])))
            made.append(_item("function_call", waiting[-1]))
        elif kind == "output" and waiting:
            made.append(_item("function_call_output", waiting.pop(draw(st.integers(0, len(waiting) - 1)))))
        elif kind == "reasoning":
            made.append({"type": kind, "id": f"rs_{number}", "summary": [], "encrypted_content": OTHER.seal("x")})
        elif kind != "output":
            made.append({"role": kind, "content": draw(st.sampled_from(["Hello.", ""]))})
    return [*made, *(_item("function_call_output", call_id) for call_id in waiting)]


@few
@given(items(), st.sampled_from(MODELS))
@example(
    [_item("function_call", "call_1"), {"role": "user", "content": "Wait."}, _item("function_call_output", "call_1")],
    MODELS[0],
)
def test_others_take_what_openai_responses_take(given_items: list[Json], model: str) -> None:
    given_body = {"model": "chat", "input": given_items}
    if not given_items:
        return
    body, native, _ = of_responses(given_body, entries_of(given_body), hosted=False, kept=False)
    assert (to_chat(body, native), to_messages(body, model, native)) == (None, None)
