"""`/v1/completions`, the legacy text completions, through the pipeline of chats: over sockets, with the SDK."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.support.app import in_process
from tests.support.ask import events_of
from tests.support.gateway import Gateway
from tests.support.upstream import Fault, Reply, Upstream, error_reply


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway.url, api_key="any", max_retries=0, timeout=30) as client:
        yield client


def post(gateway: Gateway, **body: Any) -> httpx2.Response:
    return httpx2.post(f"{gateway.url}/completions", json={"model": "chat", "prompt": "say it"} | body, timeout=30)


def test_a_prompt_is_asked_as_a_chat(client: openai.OpenAI, local_upstream: Upstream) -> None:
    """With what chats have too; unknown fields are passed on; the limit is this API's own default."""
    local_upstream.default = Reply(text="one two three")
    raw = client.completions.with_raw_response.create(
        model="chat", prompt="count", temperature=0.5, stop=["x"], user="u", extra_body={"top_k": 3}
    )
    got = raw.parse()
    assert (got.object, got.choices[0].text, got.choices[0].index) == ("text_completion", "one two three", 0)
    assert (got.choices[0].finish_reason, got.choices[0].logprobs) == ("stop", None)
    assert got.id.startswith("cmpl-") and got.usage is not None and got.usage.completion_tokens == 3
    body = local_upstream.requests[0].body
    assert body["messages"] == [{"role": "user", "content": "count"}]
    assert (body["max_tokens"], body["temperature"], body["stop"], body["top_k"]) == (16, 0.5, ["x"], 3)
    assert "prompt" not in body
    assert raw.headers["x-tierline-tier"] == "local" and raw.headers["x-tierline-surface"] == "chat"


def test_a_poor_answer_is_escalated(client: openai.OpenAI, local_upstream: Upstream, hosted_upstream: Upstream) -> None:
    """It is the one pipeline: judged and escalated as a chat's would be."""
    local_upstream.default = Reply(text="no idea", logprob=-3.0)
    hosted_upstream.default = Reply(text="a good answer")
    assert client.completions.create(model="chat", prompt="hard").choices[0].text == "a good answer"


@pytest.mark.parametrize("echo", [False, True])
def test_streams(client: openai.OpenAI, local_upstream: Upstream, echo: bool) -> None:
    local_upstream.default = Reply(text="one two three four five six")
    chunks = list(
        client.completions.create(
            model="chat", prompt="Go: ", echo=echo, stream=True, stream_options={"include_usage": True}
        )
    )
    assert (
        "".join(one.choices[0].text for one in chunks[:-1]) == ("Go: " if echo else "") + "one two three four five six"
    )
    assert len(chunks) > 3 and {one.object for one in chunks} == {"text_completion"}
    assert [one.choices[0].finish_reason for one in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 6
    assert all(one.usage is None for one in chunks[:-1])


def test_a_stream_ends_as_the_sdks_expect(gateway: Gateway, local_upstream: Upstream) -> None:
    local_upstream.default = Reply(text="one two")
    events = post(gateway, stream=True).text.split("\n\n")
    assert events[-2].endswith("data: [DONE]") and events[-1] == ""
    assert all("usage" not in json.loads(one[len("data: ") :]) for one in events[:-2])


def test_logprobs_have_their_old_form(client: openai.OpenAI, local_upstream: Upstream) -> None:
    local_upstream.default = Reply(text="ab cd", logprob=-0.1)
    got = client.completions.create(model="chat", prompt="x", logprobs=2).choices[0].logprobs
    assert got is not None
    assert local_upstream.requests[0].body["top_logprobs"] == 2
    assert "".join(got.tokens or ()) == "ab cd"
    assert got.token_logprobs == [-0.1, -0.1]
    assert got.text_offset == [0, len((got.tokens or [""])[0])]
    assert got.top_logprobs is not None and len(got.top_logprobs) == 2
    streamed = list(client.completions.create(model="chat", prompt="x", logprobs=2, stream=True))
    offsets = [offset for one in streamed for c in one.choices if c.logprobs for offset in c.logprobs.text_offset or ()]
    assert offsets == got.text_offset


def test_prompts_of_a_batch_are_answered_beside_each_other(client: openai.OpenAI, local_upstream: Upstream) -> None:
    """Each by itself, with indices in order, their usage and costs added up."""
    for word in ("alpha", "beta", "gamma"):
        local_upstream.on(word).reply(text=f"{word} it is")
    raw = client.completions.with_raw_response.create(
        model="chat", prompt=["alpha", "beta", "gamma"], echo=True, extra_headers={"x-request-id": "batch-1"}
    )
    got = raw.parse()
    assert [(one.index, one.text) for one in got.choices] == [
        (0, "alphaalpha it is"), (1, "betabeta it is"), (2, "gammagamma it is")
    ]  # fmt: skip
    assert got.usage is not None and got.usage.completion_tokens == 9
    assert raw.headers["x-tierline-attempts"] == "3"
    assert raw.headers["x-request-id"] == "batch-1"
    assert raw.headers["x-tierline-tier"] == "local"
    assert sorted(one.body["messages"][0]["content"] for one in local_upstream.requests) == ["alpha", "beta", "gamma"]


def test_a_batch_streams(gateway: Gateway, client: openai.OpenAI, local_upstream: Upstream) -> None:
    """The choices of all prompts in one stream, with one usage, one comment of costs and one end."""
    local_upstream.on("alpha").reply(text='data: "choices":[] one')
    local_upstream.on("beta").reply(text="two three")
    body = {"prompt": ["alpha", "beta"], "n": 1, "stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.completions.create(model="chat", **body))  # type: ignore[call-overload]
    texts = {0: "", 1: ""}
    for one in chunks[:-1]:
        texts[one.choices[0].index] += one.choices[0].text
    assert texts == {0: 'data: "choices":[] one', 1: "two three"}
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 5
    text = post(gateway, **body).text
    assert text.count("[DONE]") == 1 and text.count("x-tierline-attempts=2") == 1


def last_comment(text: str) -> dict[str, str]:
    """What the last comment of a stream says, by name."""
    (comment,) = [line for line in text.splitlines() if line.startswith(": x-tierline-")]
    return dict(one.split("=", 1) for one in comment[2:].replace(" x-", "\nx-").split("\n"))


@pytest.mark.parametrize("of_both", [True, False])
def test_a_batch_says_what_any_prompt_s_reply_says_late(
    gateway: Gateway, local_upstream: Upstream, hosted_upstream: Upstream, of_both: bool
) -> None:
    """Whole and streamed, whether one server or both ignored a field: for a stream it is known at its end."""
    local_upstream.default = Reply(text="one two", logprob=-0.1)
    for upstream in (local_upstream, hosted_upstream):
        upstream.on("alpha").reply(text="one two", no_logprobs=True)
        if of_both:
            upstream.on("beta").reply(text="one two", no_logprobs=True)
    body = {"prompt": ["alpha", "beta"], "logprobs": 2}
    whole, streamed = post(gateway, **body), post(gateway, **body, stream=True)
    assert (whole.status_code, streamed.status_code) == (200, 200)
    assert whole.headers["x-tierline-dropped"] == last_comment(streamed.text)["x-tierline-dropped"] == "logprobs"
    assert last_comment(streamed.text)["x-tierline-attempts"] == whole.headers["x-tierline-attempts"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_batch_names_each_tier_that_answered(
    gateway: Gateway, local_upstream: Upstream, hosted_upstream: Upstream, stream: bool
) -> None:
    local_upstream.default = Reply(text="a good answer")
    local_upstream.on("hard").reply(text="no idea", logprob=-3.0)
    reply = post(gateway, prompt=["easy", "hard"], stream=stream)
    if stream:
        assert last_comment(reply.text)["x-tierline-attempts"] == "3"
    else:
        assert reply.headers["x-tierline-tier"] == "local, hosted"
        assert reply.headers["x-tierline-path"] == "direct, escalated"


async def test_a_batch_of_unknown_cost_says_so(tmp_path: Path, local_upstream: Upstream) -> None:
    tiers = [
        {"name": name, "backends": [{"base_url": local_upstream.url, "model": "m", "price": None}]}
        for name in ("local", "hosted")
    ]
    body = {"model": "chat", "prompt": ["alpha", "beta"]}
    async with in_process(tmp_path, local_upstream.url, settings={"tiers": tiers}) as app:
        whole = await app.client.post("/v1/completions", json=body)
        streamed = await app.client.post("/v1/completions", json={**body, "stream": True})
    assert (whole.status_code, whole.headers["x-tierline-cost-usd"]) == (200, "unknown")
    assert "x-tierline-cost-usd=unknown x-tierline-attempts=2" in streamed.text


@pytest.mark.parametrize("stream", [False, True])
def test_the_first_error_of_a_batch_is_its_reply(
    gateway: Gateway, local_upstream: Upstream, hosted_upstream: Upstream, stream: bool
) -> None:
    refused = error_reply(400, "not this", "invalid_request_error", "nope")
    local_upstream.on("beta").reply(refused)
    hosted_upstream.on("beta").reply(refused)
    reply = post(gateway, prompt=["alpha", "beta"], stream=stream)
    if stream:
        # Where the text of alpha came first, the reply has begun, and a comment states its cost before the error.
        last = reply.json() if reply.status_code == 400 else events_of(reply.content)[-1]
        assert last["error"]["code"] == "nope"
        assert "[DONE]" not in reply.text
    else:
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "nope")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_calls_of_all_its_prompts(
    gateway: Gateway, local_upstream: Upstream, stream: bool
) -> None:
    """As it does for a chat."""
    local_upstream.default = Reply(fault=Fault.HANG_BEFORE_HEADERS)
    body = json.dumps({"model": "chat", "prompt": ["a", "b", "c"], "stream": stream})
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        connection.sendall((head.replace("\r\n\r\n", "\r\ncontent-type: application/json\r\n\r\n") + body).encode())
        local_upstream.wait_for(3)
    for request in local_upstream.requests:
        request.wait_gone()


def test_a_stream_of_a_batch_that_breaks_ends_with_one_error(
    gateway: Gateway, local_upstream: Upstream, hosted_upstream: Upstream
) -> None:
    """And without the end that would make it a whole one."""
    local_upstream.on("alpha").reply(text="one two three four five six seven")
    broken = Reply(text="one two three four five six seven", fault=Fault.RESET_MID_STREAM, fault_after=6)
    local_upstream.on("beta").reply(broken)
    hosted_upstream.default = broken
    text = post(gateway, prompt=["alpha", "beta"], stream=True).text
    assert text.count('data: {"error":') == 1 and "[DONE]" not in text
    assert int(last_comment(text)["x-tierline-attempts"]) >= 1 and text.index(": x-tierline-") < text.index('{"error":')


def test_the_best_of_several(client: openai.OpenAI, local_upstream: Upstream) -> None:
    """More are drawn than are returned; those with the highest mean log-probability are."""

    def choice(index: int, text: str, logprob: float) -> dict[str, Any]:
        content = [{"token": text, "logprob": logprob, "bytes": None, "top_logprobs": []}]
        return {
            "index": index, "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": {"content": content, "refusal": None}, "finish_reason": "stop",
        }  # fmt: skip

    value = {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "small",
        "choices": [choice(0, "poor", -0.2), choice(1, "best", -0.01), choice(2, "good", -0.1)],
        "usage": {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4},
    }  # fmt: skip
    local_upstream.default = Reply(body=json.dumps(value).encode())
    got = client.completions.create(model="chat", prompt="x", n=2, best_of=3)
    assert local_upstream.requests[0].body["n"] == 3
    assert [(one.index, one.text, one.logprobs) for one in got.choices] == [(0, "best", None), (1, "good", None)]


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"prompt": [1, 2]}, "prompt", "unsupported_value"),
        ({"prompt": [[1, 2], [3]]}, "prompt", "unsupported_value"),
        ({"prompt": None}, "prompt", "missing_required_parameter"),
        ({"prompt": []}, "prompt", "invalid_type"),
        ({"prompt": ["a"] * 129}, "prompt", "unsupported_value"),
        ({"suffix": "end"}, "suffix", "unsupported_value"),
        ({"best_of": 1, "n": 2}, "best_of", "unsupported_value"),
        ({"best_of": 2, "stream": True}, "best_of", "unsupported_value"),
        ({"logprobs": True}, "logprobs", "invalid_type"),
        ({"logprobs": 21}, "logprobs", "unsupported_value"),
        ({"logprobs": 1, "echo": True}, "echo", "unsupported_value"),
        ({"echo": 1}, "echo", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "unsupported_value"),
        ({"n": 0}, "n", "unsupported_value"),
        ({"messages": []}, "messages", "unsupported_value"),
        ({"tools": [{}]}, "tools", "unsupported_value"),
        ({"stop": 5}, "stop", "invalid_type"),
        ({"model": None}, "model", "missing_required_parameter"),
    ],
)
def test_what_a_chat_cannot_do_is_refused_by_name(
    gateway: Gateway, local_upstream: Upstream, more: dict[str, Any], param: str, code: str
) -> None:
    reply = post(gateway, **more)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, param, code)
    assert "x-request-id" in reply.headers
    assert not local_upstream.requests
