"""Odd requests that one API takes, translated for another: its checks (`tests.support.strict_*`) must take them too."""

from __future__ import annotations

import json
from typing import Any, Final

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.backends.base import BackendRequest
from gateway.backends.openai import OpenAIBackend
from gateway.config.schema import Limits
from gateway.dialects.messages.backend import messages_request
from gateway.dialects.messages.models import facts_of
from gateway.dialects.reasoning import maker_of
from gateway.dialects.responses.backend import request_of
from gateway.request.body import ChatFields
from tests.support.responses_upstream import ResponsesUpstream
from tests.support.strict_chat import StrictChat
from tests.support.strict_messages import StrictMessages

Json = dict[str, Any]
OWN: Final = maker_of("endpoint model", "key")
OTHER: Final = maker_of("another endpoint", "key")
CLAUDE, GPT, CHAT = StrictMessages(), ResponsesUpstream(), StrictChat("plain")
LONGEST: Final = StrictChat("details")
"""OpenAI itself, which takes short ids only."""
MODELS: Final = ("claude-haiku-4-5", "claude-sonnet-4-6", "claude-opus-4-8", "claude-opus-5-5", "kimi-k3")
few = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def to_messages(body: Json, model: str = MODELS[0]) -> str | None:
    """What Anthropic's API refuses a chat body for."""
    made = messages_request(body, model, facts_of(model), OWN, stream=False).body
    return CLAUDE.refusal_of(json.loads(json.dumps(made)))


def to_responses(body: Json) -> str | None:
    """What OpenAI's Responses API refuses a chat body for."""
    return GPT.refusal_of(request_of(body, OWN, model="large", stream=False, alternatives=None).body)


def to_chat(body: Json) -> str | None:
    """What OpenAI's chat completions refuse a translated body for."""
    ChatFields(Limits()).check(body)
    backend = OpenAIBackend(None, model="small", key=None, maker=OWN)  # type: ignore[arg-type]
    payload, _, _ = backend._prepare(BackendRequest(body, ask_logprobs=False, alternatives=None), stream=False)
    return LONGEST.refusal_of(json.loads(payload))


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
