"""A field that a tier cannot honour: the tier is passed over, or the field is refused by name, or listed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support.app import InProcess, in_process
from tests.support.gateway import CHAT
from tests.support.responses_upstream import ResponsesUpstream
from tests.support.upstream import Reply, Upstream

Json = dict[str, Any]
SURE = Reply(text="Yes.", logprob=-0.01)
TIERS = "tiers: [local, hosted]"


@pytest.fixture
def provider() -> Iterator[ResponsesUpstream]:
    with ResponsesUpstream() as upstream:
        yield upstream


@pytest.fixture
def strong(hosted_upstream: Upstream) -> Upstream:
    hosted_upstream.default = SURE
    return hosted_upstream


@pytest.fixture
async def app(
    tmp_path: Path, local_upstream: Upstream, provider: ResponsesUpstream, strong: Upstream
) -> AsyncIterator[InProcess]:
    """Four tiers: one of a server of one's own, two of other APIs, and one that honours every field."""
    local_upstream.default = SURE
    able = {"capabilities": ["tools", "json", "vision"], "key_env": "HOSTED_KEY", "price": {"input": 1, "output": 2}}

    def tier(name: str, **backend: Any) -> Json:
        return {"name": name, "backends": [deepcopy({"model": name, **backend})]}

    tiers: list[Json] = [
        tier("local", base_url=local_upstream.url, capabilities=["tools"]),
        tier("claude", kind="anthropic", base_url="http://127.0.0.1:9", **able),
        tier("responses", kind="responses", base_url=provider.url, **able, service_tiers=["flex"]),
        tier("hosted", base_url=strong.url, **able, service_tiers=["flex", "priority"], omit=["prompt_cache_key"]),
    ]
    tiers[-1]["backends"][0]["capabilities"] += ["store"]
    policies = {
        "chat": CHAT.replace(TIERS, "tiers: [local, claude, responses, hosted]"),
        "small": CHAT.replace(TIERS, "tiers: [local, claude]")
        .replace("surface: chat", "surface: small")
        .replace("[chat, gpt-4o-mini]", "[small]"),
    }
    async with in_process(tmp_path, "", strong.url, settings={"tiers": tiers}, policies=policies) as made:
        yield made


@pytest.mark.parametrize(
    ("fields", "tier"),
    [
        ({"n": 2}, "local"),
        ({"n": 2, "response_format": {"type": "json_object"}}, "hosted"),
        ({"service_tier": "auto"}, "local"),
        ({"service_tier": "flex"}, "responses"),
        ({"service_tier": "flex", "n": 3}, "hosted"),
        ({"service_tier": "priority"}, "hosted"),
        ({"service_tier": "fast"}, "hosted"),
    ],
)
async def test_a_tier_that_cannot_honour_a_field_is_passed_over(app: InProcess, fields: Json, tier: str) -> None:
    """The next tier that can answers, and is sent the field."""
    reply = await app.ask(f"Which tier honours {fields}?", **fields)
    assert (reply.status_code, reply.headers["x-tierline-tier"]) == (200, tier), reply.text
    assert "x-tierline-dropped" not in reply.headers


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"service_tier": "flex"}, "service_tier"),
        ({"service_tier": "scale", "n": 2}, "service_tier"),
        ({"background": True}, "background"),
        ({"modalities": ["text", "audio"], "audio": {"voice": "a", "format": "mp3"}}, "modalities"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"response_format": {"type": "json_object"}, "n": 2}, "response_format"),
    ],
)
async def test_what_no_tier_can_honour_is_refused_by_name(app: InProcess, fields: Json, param: str) -> None:
    """400, before any call; the message names what is lacking."""
    reply = await app.ask("hello", model="small", **fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, "unsupported_value", param), error
    assert reply.headers["x-tierline-attempts"] == "0"


@pytest.mark.parametrize(
    ("fields", "dropped"),
    [
        ({"store": True, "prompt_cache_key": "k"}, "store"),
        ({"store": False, "prompt_cache_key": "k"}, None),
        ({"store": True, "prompt_cache_key": "k", "service_tier": "priority"}, "prompt_cache_key"),
    ],
)
async def test_what_changes_no_answer_moves_no_request(
    app: InProcess, local_upstream: Upstream, strong: Upstream, fields: Json, dropped: str | None
) -> None:
    """Where a completion is kept, and which prompt cache it uses, is listed if the tier that answers lacks it."""
    reply = await app.ask(f"What of {fields} is dropped?", **fields)
    hosted = fields.get("service_tier") == "priority"
    assert (reply.status_code, reply.headers["x-tierline-tier"]) == (200, "hosted" if hosted else "local")
    assert reply.headers.get("x-tierline-dropped") == dropped
    (sent,) = (strong if hosted else local_upstream).requests
    assert ("store" in sent.body, "prompt_cache_key" in sent.body) == (hosted, not hosted)


async def test_tools_of_a_provider_go_to_its_own_api(app: InProcess) -> None:
    """No tier here runs any, so both dialects are refused by the path of the tool."""
    asked: list[tuple[str, Json]] = [
        ("/v1/responses", {"input": "a", "tools": [{"type": "web_search"}], "tool_choice": "required"}),
        (
            "/v1/messages",
            {
                "max_tokens": 9,
                "messages": [{"role": "user", "content": "a"}],
                "tools": [{"type": "code_execution_20260521", "name": "code_execution"}],
            },
        ),
    ]
    for path, body in asked:
        reply = await app.client.post(path, json={"model": "chat", **body})
        assert reply.status_code == 400 and "hosted_tools" in reply.json()["error"]["message"]


@pytest.mark.parametrize(("kind", "answers"), [("responses", "responses"), ("anthropic", None)])
async def test_hosted_tools_are_those_of_one_api(
    tmp_path: Path, local_upstream: Upstream, provider: ResponsesUpstream, kind: str, answers: str | None
) -> None:
    """A client of the Responses API gets a tier that runs that API's tools, never one that runs another's."""
    backends = [
        {
            "kind": "anthropic",
            "base_url": "http://127.0.0.1:9",
            "model": "c",
            "capabilities": ["tools", "hosted_tools"],
        },
        {"kind": "responses", "base_url": provider.url, "model": "m", "capabilities": ["tools"]},
    ]
    if kind == "responses":
        backends[1]["capabilities"] = ["tools", "hosted_tools"]
    tiers = [{"name": str(one["kind"]), "backends": [one]} for one in backends]
    policy = CHAT.replace(TIERS, "tiers: [anthropic, responses]").replace("local:", "anthropic:")
    settings = {"tiers": tiers}
    async with in_process(tmp_path, "", settings=settings, policies={"chat": policy}) as app:
        body = {"model": "chat", "input": "a", "tools": [{"type": "web_search"}], "tool_choice": "required"}
        reply = await app.client.post("/v1/responses", json=body)
        assert reply.headers.get("x-tierline-tier") == answers
        assert reply.status_code == (400 if answers is None else 200), reply.text
        if answers is None:
            assert reply.json()["error"]["param"] == "tools[0].type"
        else:
            assert "x-tierline-dropped" not in reply.headers
            (sent,) = provider.requests
            assert sent.body["tools"] == [{"type": "web_search"}]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_policys_stop_sequences_cut_answers_to_clients_of_the_same_api(
    tmp_path: Path, provider: ResponsesUpstream, stream: bool
) -> None:
    """The Responses API has none, so the gateway cuts its replies, whatever the client speaks."""
    provider.default = Reply(text="One. END Two.")
    tiers = [{"name": "local", "backends": [{"kind": "responses", "base_url": provider.url, "model": "m"}]}]
    policy = CHAT.replace(TIERS, "tiers: [local]") + "output: {stop: [END]}\n"
    async with in_process(tmp_path, "", settings={"tiers": tiers}, policies={"chat": policy}) as app:
        body = {"model": "chat", "input": "Count.", "stream": stream, "store": False}
        reply = await app.client.post("/v1/responses", json=body)
        assert reply.status_code == 200 and "x-tierline-dropped" not in reply.headers
        events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
        response = orjson.loads(events[-1])["response"] if stream else reply.json()
        assert response["status"] == "completed"
        assert response["output"][-1]["content"][0]["text"] == "One. "
        assert "END" not in reply.text and "Two" not in reply.text
