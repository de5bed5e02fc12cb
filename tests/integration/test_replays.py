"""Replays through the official SDKs: a hit gives what was given first, in every field, JSON and streams alike."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.integration import test_sdk_node as node_sdk
from tests.support.ask import chat_body
from tests.support.gateway import CHAT, Gateway, serve
from tests.support.store import LocalStore
from tests.support.upstream import Reply, Upstream
from tests.support.wait import until

CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
LOGPROBS = {
    "content": [
        {"token": token, "logprob": -0.05, "bytes": list(token.encode()), "top_logprobs": []}
        for token in ("Rome", ", of", " course.")
    ],
    "refusal": None,
}
CITED = {
    "type": "url_citation",
    "url_citation": {"url": "https://x.example", "title": "x", "start_index": 0, "end_index": 4},
}
_questions = itertools.count()

POLICIES = {
    "chat": CHAT.replace("exact: {ttl: 1h}", "exact: {ttl: 1h}\n  store_tool_calls: true"),
}


def completion(message: dict[str, Any], **choice: Any) -> dict[str, Any]:
    """What a backend sends, with members that few of them have."""
    made = {"index": 0, "message": {"role": "assistant", "content": "Rome, of course.", "refusal": None, **message}}
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "total_tokens": 12,
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    return {
        "id": "chatcmpl-original",
        "object": "chat.completion",
        "created": 1760000000,
        "model": "small",
        "system_fingerprint": "fp_original",
        "service_tier": "default",
        "choices": [{**made, "logprobs": None, "finish_reason": "stop", **choice}],
        "usage": usage,
    }


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": (completion({}), {}),
    "reasoning": (completion({"reasoning_content": "Not Milan, surely."}), {}),
    "annotations": (completion({"annotations": [CITED]}), {}),
    "logprobs": (completion({}, logprobs=LOGPROBS), {"logprobs": True}),
    "tools": (completion({"content": None, "tool_calls": [CALL]}, finish_reason="tool_calls"), {"tools": TOOLS}),
}


@pytest.fixture(scope="module")
def _replaying(
    _upstreams: tuple[Upstream, Upstream], _store: LocalStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    local, hosted = _upstreams
    folder = tmp_path_factory.mktemp("replays")
    with serve(folder, local.url, hosted.url, store_url=_store.url, policies=POLICIES) as gateway:
        yield gateway


@pytest.fixture
def gw(_replaying: Gateway, store: LocalStore, local_upstream: Upstream, hosted_upstream: Upstream) -> Gateway:
    return _replaying


def fresh_body(**more: Any) -> dict[str, Any]:
    """A request that nobody made before."""
    return chat_body(f"Where is the seat of government number {next(_questions)}?", **more)


def whole(client: openai.OpenAI, body: dict[str, Any]) -> tuple[dict[str, Any], httpx2.Headers]:
    """The completion, as the SDK has it, and the headers."""
    raw = client.chat.completions.with_raw_response.create(**body)
    return raw.parse().model_dump(), raw.headers


def streamed(client: openai.OpenAI, body: dict[str, Any]) -> tuple[dict[str, Any], httpx2.Headers]:
    """The completion that the SDK makes of the stream, and the headers."""
    raw = client.chat.completions.with_raw_response.create(**body, stream=True, stream_options={"include_usage": True})
    state = ChatCompletionStreamState(input_tools=body.get("tools", openai.omit))
    for chunk in raw.parse():
        state.handle_chunk(chunk)
    return state.get_final_completion().model_dump(), raw.headers


def stored(gateway: Gateway, body: dict[str, Any]) -> httpx2.Response:
    """The first hit, as JSON. A write that met a store too slow for it is lost: then the same is asked once more."""

    def found() -> httpx2.Response | None:
        response = post(gateway, body, {"x-tierline-cache": "only-if-cached"})
        if response.status_code == 200:
            return response
        time.sleep(0.05)
        post(gateway, body)
        return None

    hit = until(found, 10, "the stored answer")
    assert hit is not None
    return hit


def post(gateway: Gateway, body: dict[str, Any], headers: dict[str, str] | None = None) -> httpx2.Response:
    """One request without an SDK."""
    return httpx2.post(f"{gateway.url}/chat/completions", json=body, headers=headers, timeout=20)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", ["whole", "streamed"])
def test_a_replay_is_the_original(gw: Gateway, local_upstream: Upstream, kind: str, first: str) -> None:
    """Asked for as JSON or as a stream, and again as either: the SDK sees the same, under an id of each reply's own."""
    answer, fields = KINDS[kind]
    local_upstream.default = Reply(body=json.dumps(answer).encode())
    body = fresh_body(**fields)
    with openai.OpenAI(base_url=gw.url, api_key="any", max_retries=0, timeout=30) as client:
        begin, other = (whole, streamed) if first == "whole" else (streamed, whole)
        original, headers = begin(client, body)
        assert headers["x-tierline-path"] == "direct"
        stored(gw, body)
        again, same = begin(client, body)
        converted, different = other(client, body)
    assert same["x-tierline-path"] == different["x-tierline-path"] == "cache-exact"
    assert original["id"] == "chatcmpl-original"
    assert len({one["id"] for one in (original, again, converted)}) == 3
    assert again["created"] > original["created"] and again["id"].startswith("chatcmpl-")
    assert _told(again) == _told(original)
    assert _told(converted) == _told(original)
    assert (original["system_fingerprint"], original["service_tier"]) == ("fp_original", "default")
    assert original["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2


def _told(found: dict[str, Any]) -> dict[str, Any]:
    """A completion without what is each reply's own, and what the SDK's stream helper adds or leaves out."""
    found = {name: value for name, value in found.items() if name not in ("id", "created")}
    for choice in found["choices"]:
        for call in choice["message"].get("tool_calls") or ():
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
        if choice.get("logprobs") is None:
            choice.pop("logprobs", None)
        choice["message"] = {name: value for name, value in choice["message"].items() if value is not None}
    return found


def test_a_stream_that_was_live_replays_as_json(gw: Gateway, local_upstream: Upstream) -> None:
    """Tokens, usage and finish of a real stream come back in one piece."""
    local_upstream.default = Reply(text="one two three four five", extra={"system_fingerprint": "fp_live"})
    body = fresh_body()
    with openai.OpenAI(base_url=gw.url, api_key="any", max_retries=0, timeout=30) as client:
        live, _ = streamed(client, body)
        stored(gw, body)
        replayed, _ = whole(client, body)
        again, _ = streamed(client, body)
    assert _told(replayed) == _told(live) == _told(again)
    assert replayed["choices"][0]["message"]["content"] == "one two three four five"
    assert (replayed["system_fingerprint"], replayed["usage"]["completion_tokens"]) == ("fp_live", 5)


@pytest.mark.skipif(
    shutil.which("node") is None or not (node_sdk.FOLDER / "node_modules/openai").is_dir(),
    reason="Node or its SDK is not installed: npm ci --prefix tests/integration/node",
)
@pytest.mark.parametrize("kind", ["reasoning", "annotations"])
def test_replays_through_the_node_sdk(gw: Gateway, local_upstream: Upstream, kind: str) -> None:
    """Its completion and its stream helper's are the same from the model and from the store."""
    local_upstream.default = Reply(body=json.dumps(KINDS[kind][0]).encode())
    live = node_sdk.node(gw, "wholeStream")
    hit = until(lambda: _hit(node_sdk.node(gw, "whole")), 10, "a hit")
    assert hit is not None
    again = node_sdk.node(gw, "wholeStream")
    assert (
        _told(again["completion"]) == _told(live["completion"])
        and again["completion"]["id"] != live["completion"]["id"]
    )
    assert _told(hit["completion"]) == _told(live["completion"])
    assert hit["completion"]["choices"][0]["message"]["content"] == "Rome, of course."


def _hit(found: dict[str, Any]) -> dict[str, Any] | None:
    return found if found["path"] == "cache-exact" else None


def hit_of(gw: Gateway, body: dict[str, Any]) -> httpx2.Response:
    """The stored answer: a lookup that a busy machine's store has no time for is made again."""
    replies: list[httpx2.Response] = []

    def hit() -> bool:
        replies.append(post(gw, body))
        return replies[-1].headers["x-tierline-path"] == "cache-exact"

    until(hit, 10, "a hit")
    return replies[-1]


def test_a_hit_says_what_it_is(gw: Gateway, local_upstream: Upstream) -> None:
    """Its headers name the path, the entry and its age; it cost nothing, and nobody else may store it."""
    body = fresh_body()
    fresh = post(gw, body)
    assert "age" not in fresh.headers and "x-tierline-cache-entry" not in fresh.headers
    stored(gw, body)
    hits = [hit_of(gw, body), hit_of(gw, {**body, "stream": True})]
    for hit in hits:
        assert hit.headers["x-tierline-cost-usd"] == "0.00000000"
        assert int(hit.headers["age"]) < 10
        assert len(hit.headers["x-tierline-cache-entry"]) == 12
    # RFC 9111: the answer to a POST is stored only where it says how long it is fresh.
    assert {hit.headers.get("cache-control", "no-cache") for hit in (fresh, *hits)} == {"no-cache"}
    assert not any("expires" in hit.headers for hit in hits)


def test_requests_narrow_what_may_answer_them(gw: Gateway, local_upstream: Upstream, hosted_upstream: Upstream) -> None:
    """An age, a freshness or a stronger tier that the stored answer has not got makes a miss, in either header."""
    body = fresh_body()
    post(gw, body)
    stored(gw, body)
    time.sleep(1.1)
    for name in ("x-tierline-cache", "cache-control"):
        for asked, status in (("max-age=600", 200), ("max-age=1", 504), ("min-fresh=60", 200), ("min-fresh=4000", 504)):
            assert post(gw, body, {name: f"only-if-cached, {asked}"}).status_code == status, (name, asked)
    assert post(gw, body, {"x-tierline-cache": "only-if-cached, min-similarity=1"}).status_code == 200
    assert post(gw, body, {"cache-control": "only-if-cached", "x-tierline-min-tier": "hosted"}).status_code == 504
    wrong = post(gw, body, {"x-tierline-cache": "max-age=soon"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-tierline-cache")


def test_a_weaker_answer_never_takes_a_stronger_ones_place(
    gw: Gateway, local_upstream: Upstream, hosted_upstream: Upstream
) -> None:
    """A stronger tier's answer overwrites; a weaker one's, though asked for afresh, does not."""
    local_upstream.default, hosted_upstream.default = Reply(text="by the small"), Reply(text="by the large")
    body = fresh_body()
    post(gw, body)
    assert stored(gw, body).headers["x-tierline-tier"] == "local"

    def tier(**headers: str) -> str:
        return str(
            post(gw, body, {name.replace("_", "-"): value for name, value in headers.items()}).headers[
                "x-tierline-tier"
            ]
        )

    until(lambda: tier(x_tierline_min_tier="hosted") and tier() == "hosted", 10, "the stronger answer")
    writes = _weaker(gw)
    until(lambda: tier(cache_control="no-cache") == "local" and _weaker(gw) > writes, 10, "the refused write")
    assert stored(gw, body).json()["choices"][0]["message"]["content"] == "by the large"


def _weaker(gateway: Gateway) -> float:
    lines = httpx2.get(f"{gateway.origin}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if "cache_writes_total{" in line and "weaker" in line)
