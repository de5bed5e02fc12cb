from __future__ import annotations

import math
from typing import Any

import pytest

from cache.write import why_not_kept
from tests.cache.samples import answer

CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}


def whole(**members: Any) -> dict[str, Any]:
    """A good answer, but for these members."""
    return {**answer().completion, **members}


def said(**message: Any) -> dict[str, Any]:
    """A good answer, but for these members of its message."""
    return dict(answer(message={"role": "assistant", "content": "Rome.", **message}).completion)


def calling(finish: str = "tool_calls", **call: Any) -> dict[str, Any]:
    """An answer that calls a tool."""
    message = {"role": "assistant", "content": None, "tool_calls": [{**CALL, **call}]}
    return dict(answer(message=message, finish_reason=finish).completion)


@pytest.mark.parametrize(
    "completion",
    [
        answer().completion,
        whole(usage=None, id=None, system_fingerprint="fp", service_tier="default", created=1760000000, novel={"a": 1}),
        said(reasoning_content="It is the seat of government.", annotations=[]),
        dict(answer(content_filter_results={"hate": {"filtered": False, "severity": "safe"}}).completion),
        dict(answer(logprobs={"content": []}).completion),
    ],
)
def test_a_good_answer_is_kept(completion: dict[str, Any]) -> None:
    """Finished by `stop`, with text; what we do not know of may stand beside it."""
    assert why_not_kept(completion) == ""


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ({}, "no_choices"),
        ({"choices": []}, "no_choices"),
        ({"choices": None}, "no_choices"),
        (whole(error={"message": "overloaded"}), "error"),
        (whole(choices=[*answer().completion["choices"] * 2]), "choices"),
        (dict(answer(finish_reason="length").completion), "finish: length"),
        (dict(answer(finish_reason=None).completion), "finish: None"),
        (dict(answer(finish_reason="content_filter").completion), "finish: content_filter"),
        (dict(answer(finish_reason="tool_calls").completion), "finish: tool_calls"),
        (dict(answer(finish_reason=["stop"]).completion), "malformed"),
        (dict(answer("").completion), "empty"),
        (dict(answer(" \n").completion), "empty"),
        (said(content=None), "empty"),
        (said(content=["Rome."]), "malformed"),
        (said(role="user"), "malformed"),
        (said(reasoning_content=7), "malformed"),
        (dict(answer(message=None).completion), "empty"),
        (dict(answer(message="Rome.").completion), "malformed"),
        (dict(answer(index=1).completion), "malformed"),
        (dict(answer(logprobs="none").completion), "malformed"),
        ({"choices": ["Rome."]}, "malformed"),
        (whole(object="chat.completion.chunk"), "malformed"),
        (whole(id=7), "malformed"),
        (whole(created=math.nan), "malformed"),
        (whole(usage=[]), "malformed"),
        (whole(usage={"prompt_tokens": math.nan, "completion_tokens": 2}), "malformed"),
        (whole(usage={"prompt_tokens": 9, "completion_tokens": -2}), "malformed"),
        (whole(usage={"prompt_tokens": 9}), "malformed"),
        (said(refusal="I cannot"), "refusal"),
        (whole(prompt_filter_results=[{"content_filter_results": {"hate": {"filtered": True}}}]), "content_filter"),
        (dict(answer(content_filter_results={"hate": {"filtered": True}}).completion), "content_filter"),
        (said(tool_calls=[CALL]), "tool_calls"),
        (said(function_call={"name": "weather", "arguments": "{}"}), "tool_calls"),
    ],
)
def test_a_broken_or_unfinished_answer_is_not_kept(completion: dict[str, Any], reason: str) -> None:
    """Every choice must be whole, and every member of the type that clients expect."""
    assert why_not_kept(completion) == reason


def test_every_choice_that_was_asked_for_must_be_there_and_whole() -> None:
    """Two where two were asked for; one that is empty, or numbered twice, spoils them all."""
    first = answer().completion["choices"][0]
    assert why_not_kept(whole(choices=[first, {**first, "index": 1}]), 2) == ""
    assert why_not_kept(whole(choices=[first]), 2) == "choices"
    assert why_not_kept(whole(choices=[first, first]), 2) == "malformed"
    assert why_not_kept(whole(choices=[first, {**first, "index": 1, "message": {"content": ""}}]), 2) == "empty"


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        (calling(), ""),
        (calling("stop"), ""),
        (said(tool_calls=[CALL]), ""),
        (calling("length"), "finish: length"),
        (calling(id=None), "malformed"),
        (calling(function={"name": "", "arguments": "{}"}), "malformed"),
        (calling(function={"name": "weather", "arguments": '{"city": "Ro'}), "malformed"),
        (calling(function={"name": "weather", "arguments": "[]"}), "malformed"),
        (calling(function={"name": "weather"}), "malformed"),
        (said(tool_calls="weather"), "malformed"),
        (dict(answer(finish_reason="tool_calls").completion), "empty"),
    ],
)
def test_calls_of_tools_are_kept_where_the_policy_says_so(completion: dict[str, Any], reason: str) -> None:
    """A call must have an id, a name and whole arguments, and never is kept where the policy does not say so."""
    assert why_not_kept(completion, tool_calls=True) == reason
    assert why_not_kept(completion)
