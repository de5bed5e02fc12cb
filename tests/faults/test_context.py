"""Requests that are longer than a model can hold, over real sockets, in front of a real gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.faults.lanes import Rig
from tests.support.upstream import Reply, Upstream, error_reply
from tests.support.wait import until

STRONG = "The strong tier knows."
CODE = "context_length_exceeded"
LLAMA = {
    "error": {
        "code": 400,
        "message": "request (8643 tokens) exceeds the available context size (4096 tokens), try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 8643,
        "n_ctx": 4096,
    }
}
CHINESE = "昨天晚上我们沿着河边散步了很久，讨论了明年夏天的计划。" * 10

json_and_stream = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])


@pytest.fixture(autouse=True)
def _strong_answers(hosted_upstream: Upstream) -> None:
    hosted_upstream.default = Reply(text=STRONG)


def too_long(status: int = 400, body: Any = LLAMA) -> Reply:
    """The answer of a backend that cannot hold the request."""
    return Reply(status=status, headers={"Content-Type": "application/json"}, body=json.dumps(body).encode())


@json_and_stream
@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(too_long(), id="llama.cpp"),
        pytest.param(too_long(413, {"message": "The prompt is too long"}), id="bare"),
        pytest.param(too_long(200, LLAMA), id="error-in-200"),
        pytest.param(
            Reply(headers={"Content-Type": "text/event-stream"}, body=b"data: " + json.dumps(LLAMA).encode() + b"\n\n"),
            id="error-event",
        ),
    ],
)
def test_b9_what_a_model_cannot_hold_goes_to_the_next_tier(
    rig: Rig, local_upstream: Upstream, reply: Reply, stream: bool
) -> None:
    """A backend's own context error makes the next tier answer, as an escalation; it rests for none of them."""
    lane = rig.take("lane")
    local_upstream.default = reply
    for number in range(6):
        answer = rig.ask(lane, stream=stream, seed=number)
        assert (answer.status, answer.ended, answer.text) == (200, True, STRONG)
        assert answer.headers["x-tierline-path"] == "escalated"
        assert answer.headers["x-tierline-attempts"] == "2"
    assert len(local_upstream.requests) == 6, "asked once for each request, and never left out for its refusals"
    assert rig.states(lane)["weak"] == "ready"
    first, second = rig.hops(answer)
    assert (first["error"], second["error"]) == (CODE, None)
    assert first["attributes"]["tierline.outcome"] == "too_long"


def test_b9_an_answer_of_the_next_tier_is_kept(rig: Rig, local_upstream: Upstream) -> None:
    """It came about as the policy wants, so it is served again."""
    lane = rig.take("lane")
    local_upstream.default = too_long()
    rig.ask(lane, stream=False, text="long")
    until(lambda: rig.cached(lane, messages=[{"role": "user", "content": "long"}]), 5, "the answer in the cache")


@json_and_stream
def test_b9_no_tier_left_that_could_hold_it(rig: Rig, local_upstream: Upstream, stream: bool) -> None:
    """The last tier's context error is the client's 400, with its words and the code that agents look for."""
    local_upstream.default = too_long()
    answer = rig.ask(rig.take("lone"), stream=stream)
    assert answer.status == 400
    assert answer.error == {
        "message": LLAMA["error"]["message"],
        "type": "invalid_request_error",
        "param": "messages",
        "code": CODE,
    }
    assert answer.headers["x-tierline-attempts"] == "1"


@json_and_stream
def test_b9_agents_are_told_in_the_words_that_they_act_on(rig: Rig, local_upstream: Upstream, stream: bool) -> None:
    """A client of Anthropic's API gets that API's sentence, with the figures of the model's own."""
    local_upstream.default = too_long()
    body = {"model": rig.take("lone"), "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    answer = rig.send("/v1/messages", body | ({"stream": True} if stream else {}))
    assert answer.status == 400
    assert answer.json["error"]["type"] == "invalid_request_error"
    assert answer.json["error"]["message"] == "prompt is too long: 8643 tokens > 4096 maximum"


def test_b9_a_larger_tier_that_fails_is_no_fault_of_the_callers(
    rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream
) -> None:
    """What the small model cannot hold and the large one fails at is a 502: it may be sent again."""
    local_upstream.default, hosted_upstream.default = too_long(), error_reply(500)
    answer = rig.ask(rig.take("lane"), stream=False)
    assert (answer.status, answer.error["code"]) == (502, "upstream_http_error")


def test_b9_a_larger_tier_that_asks_for_a_pause_is_waited_for(
    rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream
) -> None:
    """While the model that could hold it rests, the request is not too long: the client is told when to come again."""
    local_upstream.default = too_long()
    hosted_upstream.default = error_reply(429, headers={"Retry-After": "30"})
    lane = rig.take("lane")
    for number, asked in enumerate((1, 1)):
        answer = rig.ask(lane, stream=False, seed=number)
        assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
        assert 28 <= int(answer.headers["retry-after"]) <= 30
        assert len(hosted_upstream.requests) == asked


@json_and_stream
def test_a_prompt_that_does_not_fit_starts_at_a_tier_that_holds_it(
    rig: Rig, local_upstream: Upstream, stream: bool
) -> None:
    """270 characters of Chinese and room for a reply are more than 512 tokens: the small tier is not asked."""
    lane = rig.take("brief")
    answer = rig.ask(lane, stream=stream, text=CHINESE)
    assert (answer.status, answer.text) == (200, STRONG)
    assert answer.headers["x-tierline-path"] == "direct"
    assert not local_upstream.requests
    (route,) = rig.hops(answer, "route")
    assert f"{lane}.small holds 512 tokens" in route["attributes"]["tierline.reason"]


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        pytest.param({}, True, id="short"),
        pytest.param({"max_tokens": 500}, False, id="reply"),
        pytest.param({"max_completion_tokens": 500}, False, id="completion"),
        pytest.param({"tools": [{"type": "function", "function": {"name": "f" * 600}}]}, False, id="tools"),
    ],
)
def test_the_reply_and_the_tools_must_fit_too(
    rig: Rig, local_upstream: Upstream, changes: dict[str, Any], fits: bool
) -> None:
    """A short prompt fits into 512 tokens, unless it asks for a reply, or brings tools, of as many."""
    answer = rig.ask(rig.take("brief"), stream=False, **changes)
    assert answer.status == 200
    assert len(local_upstream.requests) == fits


def test_where_no_other_tier_can_answer_the_model_itself_counts(rig: Rig, local_upstream: Upstream) -> None:
    """The bound is no count: what may fit after all is sent to the only tier there is, which says so if it does not."""
    lane = rig.take("tight")
    assert rig.ask(lane, stream=False, text=CHINESE).status == 200
    local_upstream.default = too_long()
    answer = rig.ask(lane, stream=False, text=CHINESE, seed=1)
    assert (answer.status, answer.error["code"]) == (400, CODE)
