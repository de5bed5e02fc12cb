"""Signs of life before a stream's answer is there, over real sockets and through the official SDK."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest

from tests.integration.test_path import traced
from tests.support import response_events
from tests.support.ask import StreamRead, chat_body, data_of, read_stream
from tests.support.gateway import CHAT, Gateway, serve
from tests.support.store import LocalStore
from tests.support.upstream import Reply, Upstream, error_reply
from tests.support.wait import until

TEXT = "Paris is the capital of France, as everybody knows."
SLOW = Reply(text=TEXT, before_headers_s=0.3)


def policy(surface: str, alive: str) -> str:
    """`CHAT`, for this surface, with signs of life."""
    return (
        CHAT.replace("surface: chat", f"surface: {surface}")
        .replace("models: [chat, gpt-4o-mini]", "models: []")
        .replace("hold_max: 250ms", f"hold_max: 250ms, alive: {alive}")
        .replace("slo: {deadline: 20s}", "slo: {deadline: 20s, ttft: {p99: 10s}}")
    )


@pytest.fixture(scope="module")
def _alive(
    _upstreams: tuple[Upstream, Upstream], _store: LocalStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    local, hosted = _upstreams
    policies = {name: policy(name, name) for name in ("none", "comments", "role")}
    settings = {"default_surface": "none"}
    folder = tmp_path_factory.mktemp("alive")
    with serve(folder, local.url, hosted.url, store_url=_store.url, policies=policies, settings=settings) as gateway:
        yield gateway


@pytest.fixture
def alive(_alive: Gateway, local_upstream: Upstream, hosted_upstream: Upstream, store: LocalStore) -> Gateway:
    """A surface for each kind of sign, over scripts and a store that begin anew."""
    local_upstream.default = SLOW
    return _alive


_prompts = itertools.count()


def streamed(gateway: Gateway, surface: str, prompt: str = "") -> StreamRead:
    return read_stream(gateway, chat_body(prompt or f"capital {next(_prompts)}", surface))


def test_without_it_nothing_goes_out_early(alive: Gateway) -> None:
    """By default the head waits for the answer, and says who gives it."""
    answer = streamed(alive, "none")
    assert answer.head_s >= 0.3
    assert answer.headers["x-tierline-tier"] == "local"
    assert len(answer.comments) == 1


def test_a_comment_comes_early_where_several_prompts_are_sent(alive: Gateway) -> None:
    """The last one says what the head could not, of both; their usage is added up."""
    body = {"model": "comments", "prompt": [f"capital {next(_prompts)}", f"capital {next(_prompts)}"], "stream": True}
    answer = read_stream(alive, body | {"stream_options": {"include_usage": True}}, path="/completions")
    assert answer.comments[0] == ": waiting"
    last = dict(one.split("=", 1) for one in answer.comments[-1].split()[1:])
    assert (last["x-tierline-path"], last["x-tierline-tier"], last["x-tierline-attempts"]) == ("direct", "local", "2")
    assert last["x-tierline-model"] and float(last["x-tierline-cost-usd"]) >= 0
    usage = json.loads(data_of(answer.body)[-2])["usage"]
    assert usage["completion_tokens"] == 2 * len(TEXT.split()) and data_of(answer.body)[-1] == "[DONE]"


def test_a_comment_comes_early(alive: Gateway) -> None:
    """The head and a comment come long before the answer; what the head could not say is in the last comment."""
    answer = streamed(alive, "comments")
    assert answer.comments[0] == ": waiting"
    assert {name for name in answer.headers if name.startswith("x-tierline")} == {
        "x-tierline-surface",
        "x-tierline-policy",
    }
    assert answer.headers["x-request-id"]
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.lines[0] == ": waiting"
    assert answer.lines[1].startswith("data: {"), "no blank line follows a comment"
    assert answer.text == TEXT
    last = answer.comments[-1].split()
    told = dict(one.split("=", 1) for one in last[1:])
    assert (told["x-tierline-path"], told["x-tierline-tier"], told["x-tierline-attempts"]) == ("direct", "local", "1")
    assert float(told["x-tierline-confidence"]) > 0.9
    assert data_of(answer.body)[-1] == "[DONE]"
    assert answer.ended


def test_an_answer_that_is_shared_says_so_in_the_last_comment(alive: Gateway, local_upstream: Upstream) -> None:
    """The head went out before that was known."""
    prompt = f"capital {next(_prompts)}"
    local_upstream.default = Reply(text=TEXT, before_headers_s=1.0)  # the second client's head goes out meanwhile
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(streamed, alive, "comments", prompt)
        local_upstream.wait_for(1)
        answers = [streamed(alive, "comments", prompt), first.result()]
    assert [answer.text for answer in answers] == [TEXT, TEXT]
    assert ["x-tierline-coalesced=1" in answer.comments[-1] for answer in answers] == [True, False]
    assert len(local_upstream.requests) == 1


def test_a_quick_answer_has_its_headers(alive: Gateway, local_upstream: Upstream) -> None:
    """Within a tenth of a second nothing is different: the headers say it all, and no comment waits."""
    local_upstream.default = Reply(text=TEXT)
    for surface in ("comments", "role"):
        answer = until(
            lambda surface=surface: "x-tierline-tier" in (one := streamed(alive, surface)).headers and one, 15
        )
        assert isinstance(answer, StreamRead)
        assert len(answer.comments) == 1
        assert answer.text == TEXT


def test_a_long_wait_has_more_than_one(alive: Gateway, local_upstream: Upstream) -> None:
    """Every two seconds there is another sign."""
    local_upstream.default = Reply(text=TEXT, before_headers_s=2.5)
    assert streamed(alive, "comments").comments[:-1] == [": waiting"] * 2


def test_a_role_comes_early(alive: Gateway) -> None:
    """The first chunk is ours, with the role; every later one has its id, model and time, and none has a role."""
    answer = streamed(alive, "role")
    first = answer.chunks[0]
    assert first["choices"] == [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    assert first["model"] == "role"
    assert {(c["id"], c["model"], c["created"], c["object"]) for c in answer.chunks} == {
        (first["id"], "role", first["created"], "chat.completion.chunk")
    }
    assert sum("role" in choice["delta"] for c in answer.chunks for choice in c["choices"]) == 1
    assert answer.text == TEXT


def in_dialect(alive: Gateway, path: str, body: dict[str, Any]) -> tuple[float, bytes]:
    """When the first bytes of a stream in another dialect were there, and all of them."""
    began = time.monotonic()
    with httpx2.stream(
        "POST", f"{alive.url}/{path}", json={"model": "role", "stream": True, **body}, timeout=15
    ) as got:
        parts = got.iter_raw()
        first = next(parts)
        return time.monotonic() - began, first + b"".join(parts)


def test_other_dialects_have_events_of_their_own(alive: Gateway, local_upstream: Upstream) -> None:
    """The beginning of the stream comes early, and then what each has to show that its connection works."""
    local_upstream.default = Reply(text=TEXT, before_headers_s=2.5)
    message = {"max_tokens": 99, "messages": [{"role": "user", "content": "capital one"}]}
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(in_dialect, alive, "messages", message)
        response_s, response = in_dialect(alive, "responses", {"input": "capital two"})
        message_s, events = asked.result()
    assert response_s < 2.5 and message_s < 2.5
    kinds = [event["type"] for event in response_events.checked(response)]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.in_progress"]
    assert kinds.count("response.created") == 1
    assert response.count(b'"model":"role"') == response.count(b'"model":') and b"x-tierline-tier=local" in response
    kinds = [line[7:] for line in events.decode().split("\n") if line.startswith("event: ")]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds.count("message_start") == 1 and kinds[-1] == "message_stop"
    assert b"x-tierline-tier=local" in events and b"everybody" in events


def test_an_escalation_behind_it(alive: Gateway, local_upstream: Upstream, hosted_upstream: Upstream) -> None:
    """A draft is turned down behind the early head as before it."""
    local_upstream.default = Reply(text="Rome, I should think, or so.", logprob=-3.0, before_headers_s=0.3)
    hosted_upstream.default = Reply(text=TEXT)
    answer = streamed(alive, "role")
    assert answer.text == TEXT
    assert "x-tierline-path=escalated x-tierline-tier=hosted" in answer.comments[-1]


@pytest.mark.parametrize("surface", ["comments", "role"])
def test_an_error_is_an_event(
    alive: Gateway, local_upstream: Upstream, hosted_upstream: Upstream, store: LocalStore, surface: str
) -> None:
    """When nobody answers after all, the error is the last event of a body that ends as HTTP, and no [DONE] follows."""
    local_upstream.default = Reply(status=400, body=error_reply(400, f"no {surface}").body, before_headers_s=0.3)
    hosted_upstream.default = error_reply(400, f"no {surface}")
    answer = streamed(alive, surface)
    assert answer.status == 200
    assert json.loads(data_of(answer.body)[-1])["error"]["message"] == f"no {surface}"
    assert answer.ended
    assert "x-tierline-attempts=2" in answer.comments[-1]
    ledger = traced(store, answer)["ledger"]
    assert (ledger["status"], ledger["error"]) == (200, "server_error")


@pytest.mark.parametrize("surface", ["comments", "role"])
def test_the_sdk_takes_it_for_any_stream(alive: Gateway, surface: str) -> None:
    """The official client skips what it must, and adds up the rest."""
    client = openai.OpenAI(base_url=alive.url, api_key="any", max_retries=0)
    with client.chat.completions.stream(model=surface, messages=[{"role": "user", "content": "capital"}]) as stream:
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == TEXT
    assert completion.choices[0].message.role == "assistant"


def test_a_stored_answer_is_kept_as_the_backend_said_it(alive: Gateway, local_upstream: Upstream) -> None:
    """What goes into the cache has the backend's own id, not the early head's."""
    answer = streamed(alive, "role", "once more")
    again = until(
        lambda: (one := streamed(alive, "role", "once more")).headers.get("x-tierline-path") == "cache-exact" and one
    )
    assert isinstance(again, StreamRead)
    assert again.text == TEXT
    assert again.chunks[0]["id"] != answer.chunks[0]["id"]
    assert again.chunks[0]["model"] == "small"


def test_a_client_that_leaves_meanwhile(alive: Gateway, local_upstream: Upstream) -> None:
    """A client that has seen the early head and leaves ends the call behind it."""
    local_upstream.default = Reply(text=TEXT, before_headers_s=10)
    body = json.dumps({"model": "comments", "stream": True, "messages": [{"role": "user", "content": "x"}]}).encode()
    with socket.create_connection(("127.0.0.1", alive.port), 5) as connection:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        seen = b""
        while b": waiting" not in seen:
            seen += connection.recv(4096)
    left = time.monotonic()
    assert local_upstream.requests[-1].wait_gone(3) - left < 1
