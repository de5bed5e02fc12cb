"""A server that answers in prose where `tool_choice` requires a call, and nothing better is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.faults.lanes import Answer, Rig
from tests.support.upstream import Reply, ToolCall, Upstream

PROSE = "It is sunny, I think."
PARAMETERS = {"type": "object", "properties": {}}
NAMED = {"type": "function", "function": {"name": "tell"}}
BODIES: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "What is the weather?"}],
        "tools": [NAMED],
        "tool_choice": "required",
    },
    "/v1/chat/completions#named": {
        "messages": [{"role": "user", "content": "What is the weather?"}],
        "tools": [NAMED],
        "tool_choice": NAMED,
    },
    "/v1/chat/completions#functions": {
        "messages": [{"role": "user", "content": "What is the weather?"}],
        "functions": [{"name": "tell"}],
        "function_call": {"name": "tell"},
    },
    "/v1/responses": {
        "input": "What is the weather?",
        "tools": [{"type": "function", "name": "tell", "parameters": PARAMETERS}],
        "tool_choice": "required",
    },
    "/v1/responses#named": {
        "input": "What is the weather?",
        "tools": [{"type": "function", "name": "tell", "parameters": PARAMETERS}],
        "tool_choice": {"type": "function", "name": "tell"},
    },
    "/v1/messages": {
        "max_tokens": 99,
        "messages": [{"role": "user", "content": "What is the weather?"}],
        "tools": [{"name": "tell", "input_schema": PARAMETERS}],
        "tool_choice": {"type": "any"},
    },
    "/v1/messages#named": {
        "max_tokens": 99,
        "messages": [{"role": "user", "content": "What is the weather?"}],
        "tools": [{"name": "tell", "input_schema": PARAMETERS}],
        "tool_choice": {"type": "tool", "name": "tell"},
    },
}
pytestmark = pytest.mark.parametrize("path", BODIES)


def send(rig: Rig, lane: str, path: str, **more: Any) -> Answer:
    return rig.send(path.partition("#")[0], {"model": lane, **BODIES[path], **more})


def path_in_record(rig: Rig, answer: Answer) -> str:
    path = rig.record(answer.headers["x-request-id"])["ledger"]["path"]
    assert isinstance(path, str)
    return path


def test_the_last_tiers_prose_is_degraded(rig: Rig, local_upstream: Upstream, path: str) -> None:
    """It is served, as nothing could replace it, says so, and is made anew for others."""
    local_upstream.default = Reply(text=PROSE)
    lane = rig.take("lone")
    for calls in (1, 2):
        answer = send(rig, lane, path)
        assert (answer.status, PROSE in answer.body.decode()) == (200, True)
        assert answer.headers["x-tierline-path"] == path_in_record(rig, answer) == "degraded"
        assert len(local_upstream.requests) == calls


def test_a_stream_says_it_at_its_end(rig: Rig, local_upstream: Upstream, path: str) -> None:
    """Its head has gone out by then: its last comment has the path, and so has its record."""
    local_upstream.default = Reply(text=PROSE)
    lane = rig.take("lone")
    for calls in (1, 2):
        answer = send(rig, lane, path, stream=True)
        assert (answer.status, b"x-tierline-path=degraded" in answer.body) == (200, True)
        assert path_in_record(rig, answer) == "degraded"
        assert len(local_upstream.requests) == calls


def test_the_last_tiers_answer_is_served_not_an_earlier_draft(
    rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream, path: str
) -> None:
    """Neither tier obeyed: the stronger one's text is the better."""
    local_upstream.default = Reply(text="Sunny.")
    hosted_upstream.default = Reply(text=PROSE)
    answer = send(rig, rig.take("lane"), path)
    assert (answer.status, PROSE in answer.body.decode()) == (200, True)
    assert answer.headers["x-tierline-path"] == "degraded"


def test_a_call_is_as_it_should_be(rig: Rig, local_upstream: Upstream, path: str) -> None:
    """What was asked for is `direct`, whole and streamed."""
    local_upstream.default = Reply(tool_calls=(ToolCall("tell", "{}"),))
    lane = rig.take("lone")
    for stream in (False, True):
        answer = send(rig, lane, path, stream=stream)
        assert (answer.status, answer.headers["x-tierline-path"]) == (200, "direct")
        assert b"x-tierline-path" not in answer.body
        assert path_in_record(rig, answer) == "direct"
