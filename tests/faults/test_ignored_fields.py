"""A server that takes a field and does not honour it: its answer shows it, and the client is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.faults.lanes import Rig
from tests.support.upstream import Reply, Upstream

QUESTION = [{"role": "user", "content": "Which is it?"}]
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
IGNORED = [
    pytest.param(CHAT, {"messages": QUESTION, "logprobs": True}, "logprobs", id="chat"),
    pytest.param(CHAT, {"messages": QUESTION, "n": 2}, "n", id="choices"),
    pytest.param(CHAT, {"messages": QUESTION, "n": 2, "logprobs": True}, "logprobs,n", id="both"),
    pytest.param(
        RESPONSES, {"input": "Which?", "include": ["message.output_text.logprobs"]}, "include", id="responses"
    ),
]


ONE_CHOICE = (
    b'{"id":"one","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop",'
    b'"message":{"role":"assistant","content":"This one."}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
)


@pytest.fixture(autouse=True)
def _ignores(local_upstream: Upstream) -> None:
    local_upstream.default = Reply(body=ONE_CHOICE)


@pytest.mark.parametrize(("path", "body", "told"), IGNORED)
def test_a_whole_answer_names_it(rig: Rig, path: str, body: Mapping[str, Any], told: str) -> None:
    answer = rig.send(path, {"model": rig.take("lone"), **body})
    assert answer.status == 200
    assert answer.headers["x-tierline-dropped"].replace(" ", "") == told


@pytest.mark.parametrize(("path", "body", "told"), IGNORED)
def test_a_stream_names_it_in_its_last_comment(rig: Rig, path: str, body: Mapping[str, Any], told: str) -> None:
    """Its head has gone out by then; its record names them, too."""
    answer = rig.send(path, {"model": rig.take("lone"), "stream": True, **body})
    assert answer.status == 200
    assert f" x-tierline-dropped={told}\n".encode() in answer.body
    (hop,) = rig.hops(answer)
    assert ",".join(hop["attributes"]["tierline.dropped"]) == told


def test_what_was_honoured_is_not_named(rig: Rig, local_upstream: Upstream) -> None:
    local_upstream.default = Reply(text="This one.")
    for stream in (False, True):
        answer = rig.ask(rig.take("lone"), stream=stream, logprobs=True, n=1)
        assert "x-tierline-dropped" not in answer.headers
        assert b"x-tierline-dropped" not in answer.body
