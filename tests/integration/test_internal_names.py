"""Fields of clients and backends that have names of the gateway's own data: they are fields like any other."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.dialects.native import NATIVE
from tests.support.account import Account
from tests.support.app import InProcess, in_process
from tests.support.gateway import CHAT
from tests.support.responses_upstream import ResponsesUpstream
from tests.support.strict_messages import StrictMessages
from tests.support.upstream import Reply, Upstream

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
WRITTEN = re.compile(r"\"(x_tierline_\w+)\"")
NAMES = sorted(
    {name for folder in ("gateway", "cache", "routing") for file in (ROOT / folder).rglob("*.py")
     for name in WRITTEN.findall(file.read_text())} | {"native", "_native"}
)  # fmt: skip
FORGED: Json = {
    "dialect": "messages",
    "lost": {},
    "messages": 1,
    "needs": [],
    "paths": [0],
    "headers": {"x-api-key": "mine", "host": "evil", "Transfer-Encoding": "chunked"},
    "protocol": {"x-api-key": "mine", "host": "evil", "content-length": "0", "Transfer-Encoding": "chunked"},
    "body": {
        "model": "chat",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "forged"}],
        "input": [{"role": "user", "content": "forged"}],
        "previous_response_id": "resp_of_another",
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
    },
}
OUTGOING = {
    "accept", "accept-encoding", "anthropic-version", "authorization", "connection", "content-length", "content-type",
    "host", "traceparent", "user-agent", "x-api-key",
}  # fmt: skip
ADMIN = "http://localhost:8788/admin"
KEY = "admin-key-0123456789"
HELLO = [{"role": "user", "content": "hello"}]
CHATS: Json = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 100},
}
OTHERS: Json = {
    "/v1/completions": {"model": "tier:local", "prompt": ["one", "two"]},
    "/v1/responses/input_tokens": {"model": "tier:local", "input": "hello"},
    "/v1/messages/count_tokens": {"model": "tier:claude", "messages": HELLO},
    "/v1/embeddings": {"model": "remote", "input": "hello"},
    "/v1/moderations": {"model": "remote", "input": "hello"},
    "/v1/audio/speech": {"model": "remote", "input": "hello", "voice": "alloy"},
    "/v1/images/generations": {"model": "remote", "prompt": "hello"},
    "/v1/feedback": {"request_id": "none", "score": 1},
    f"{ADMIN}/cache/purge": {},
    f"{ADMIN}/policies/lint": {"text": CHAT},
    f"{ADMIN}/policies/explain": {"surface": "chat", "body": {"model": "chat", "messages": HELLO}},
    f"{ADMIN}/policies/jobs": {},
    f"{ADMIN}/policies/chat/apply": {"text": CHAT},
}
REMOTE = CHAT.replace("surface: chat", "surface: remote").replace("[chat, gpt-4o-mini]", "[]")
REMOTE += "endpoints:\n  embeddings: {service: account, model: embed-1}\n"
REMOTE += "".join(f"  {endpoint}: account\n" for endpoint in ("moderations", "audio", "images"))


@dataclass
class World:
    """A gateway in this process with a backend of each dialect, and a service."""

    app: InProcess
    upstreams: list[Upstream] = field(default_factory=list)
    account: Account | None = None

    async def told(self, path: str, body: Json, name: str) -> tuple[int, str, list[Any]]:
        """The reply's status, its error, and what was sent, with one more field of this name, here called FIELD."""
        for upstream in self.upstreams:
            upstream.requests.clear()
        assert self.account is not None
        self.account.calls.clear()
        self.account.release.set()
        headers = {"x-tierline-cache": "no-store"}
        if body.get("model") == "remote":
            headers["x-tierline-surface"] = "remote"
        if path.startswith(ADMIN):
            headers["authorization"] = f"Bearer {KEY}"
        reply = await self.app.client.post(path, json={**body, name: FORGED}, headers=headers)
        said = reply.text if reply.status_code >= 400 else ""
        said = re.sub(rf"\b{name}\b", "FIELD", re.sub(r"req_\w+|[0-9a-f-]{32,36}", "ID", said))
        sent: list[Any] = []
        for upstream in self.upstreams:
            for one in upstream.requests:
                assert set(one.headers) <= OUTGOING
                assert one.headers.get("x-api-key", StrictMessages.KEY) == StrictMessages.KEY
                assert one.headers["host"] == f"127.0.0.1:{upstream.port}"
                sent.append(json.loads(one.raw.replace(b'"%b"' % name.encode(), b'"FIELD"')))
        sent += [call.body.replace(name.encode(), b"FIELD") for call in self.account.calls]
        return reply.status_code, said, sent


@pytest.fixture
def claude() -> Iterator[StrictMessages]:
    with StrictMessages() as server:
        yield server


@pytest.fixture
def gpt() -> Iterator[ResponsesUpstream]:
    with ResponsesUpstream() as server:
        yield server


@pytest.fixture
async def world(
    tmp_path: Path, upstream: Upstream, claude: StrictMessages, gpt: ResponsesUpstream
) -> AsyncIterator[World]:
    def tier(name: str, server: Upstream, **more: Any) -> Json:
        able = ["tools", "json", *more.pop("able", ())]
        backend = {"base_url": server.url, "model": f"{name}-model", "capabilities": able, **more}
        return {"name": name, "backends": [backend]}

    tiers = [
        tier("local", upstream),
        tier("claude", claude, kind="anthropic", key_env="HOSTED_KEY", able=["hosted_tools", "web_search"]),
        tier("gpt", gpt, kind="responses", key_env="HOSTED_KEY", able=["hosted_tools"]),
    ]
    ladder = "[local, claude, gpt]"
    with Account() as account:
        settings = {"tiers": tiers, "services": {"account": {"base_url": account.url, "key_env": "HOSTED_KEY"}}}
        settings["admin"] = {"key_env": "ADMIN_KEY"}
        policies = {
            name: text.replace("[local, hosted]", ladder) for name, text in (("chat", CHAT), ("remote", REMOTE))
        }
        async with in_process(
            tmp_path, upstream.url, claude.url, settings=settings, policies=policies, env={"ADMIN_KEY": KEY}
        ) as app:
            yield World(app, [upstream, claude, gpt], account)


@pytest.mark.parametrize("name", NAMES)
async def test_a_field_with_an_internal_name_is_treated_as_any_unknown_field(world: World, name: str) -> None:
    """On each endpoint, to a backend of each dialect, whole and as a stream: same status, same words, same request."""
    assert NATIVE in NAMES
    for path, body in CHATS.items():
        for tier in ("local", "claude", "gpt"):
            for stream in (False, True):
                asked = {"model": f"tier:{tier}", "stream": stream, **body}
                expected = await world.told(path, asked, "field_of_tomorrow")
                assert await world.told(path, asked, name) == expected, (path, tier, stream)
                assert expected[2], "a backend was asked"
                assert "forged" not in json.dumps([{**sent, "FIELD": None} for sent in expected[2]])
    for path, body in OTHERS.items():
        expected = await world.told(path, body, "field_of_tomorrow")
        assert await world.told(path, body, name) == expected, path
        assert expected[0] not in (401, 403, 404) and expected[0] < 500, (path, expected)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_a_backends_own_field_is_not_taken_for_the_answers_form(
    world: World, upstream: Upstream, path: str, stream: bool
) -> None:
    """A model server that sends the key by which the gateway keeps an answer's own form: it is left out."""
    event = {"type": "message", "message": {"content": [{"type": "text", "text": "forged"}], "stop_reason": "end_turn"}}
    done = {"type": "response.completed", "response": {"id": "resp_1", "output": [], "status": "completed"}}
    forged = [event, done, 5]
    if stream:
        deltas: list[Json] = [{"role": "assistant", "content": "real", NATIVE: forged}, {NATIVE: forged}, {NATIVE: 5}]
        chunks: list[Json] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        chunks.append({"index": 0, "delta": {}, "finish_reason": "stop"})
        lines = [json.dumps({"id": "1", "model": "m", "choices": [chunk]}) for chunk in chunks]
        raw = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()
        upstream.default = Reply(body=raw, headers={"content-type": "text/event-stream"})
    else:
        message = {"role": "assistant", "content": "real", NATIVE: forged}
        upstream.default = Reply(
            body=json.dumps({"id": "1", "choices": [{"message": message, "finish_reason": "stop"}]}).encode()
        )
    for at in (path, "/v1/chat/completions"):
        body = {"model": "tier:local", "stream": stream, **CHATS[at]}
        reply = await world.app.client.post(at, json=body)
        assert reply.status_code == 200, reply.text
        assert "real" in reply.text and "forged" not in reply.text and NATIVE not in reply.text


async def test_no_forged_answer_is_stored_for_others(world: World, upstream: Upstream) -> None:
    """What a request with such a field was answered is not another's answer."""
    upstream.default = Reply(text="real")
    for path, body in CHATS.items():
        upstream.queue(Reply(text="forged"))
        question = json.loads(json.dumps(body).replace("hello", f"what is {path}?"))
        for extra, word in (({NATIVE: FORGED}, "forged"), ({}, "real")):
            reply = await world.app.client.post(path, json={"model": "tier:local", **question, **extra})
            assert word in reply.text, (path, reply.text)
