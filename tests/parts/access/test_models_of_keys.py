"""Keys that are limited by models, over HTTP: what may answer them, by every way to ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from gateway.parts.access.keys.registry import KeyRegistry
from tests.integration.endpoints import ENDPOINTS
from tests.parts.access.keys.conftest import registry, server, store
from tests.parts.access.test_keys_of_store import made
from tests.support.account import Account
from tests.support.app import InProcess, in_process
from tests.support.gateway import CHAT, serve
from tests.support.store import LocalStore
from tests.support.upstream import Fault, Reply, Upstream, error_reply

__all__ = ["registry", "server", "store"]
Json = dict[str, Any]
BIG = CHAT.replace("surface: chat", "surface: big").replace("[chat, gpt-4o-mini]", "[big]").replace(
    "tiers: [local, hosted]", "tiers: [hosted]").replace("{local: otherwise}", "{hosted: otherwise}")  # fmt: skip
REMOTE = CHAT.replace("surface: chat", "surface: remote").replace("[chat, gpt-4o-mini]", "[]") + ENDPOINTS
POLICIES = {"chat": CHAT, "big": BIG, "remote": REMOTE}
USER = [{"role": "user", "content": "hi"}]
ASKING: dict[str, Json] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hi"},
    "/v1/completions?several": {"prompt": ["hi", "ho"]},
    "/v1/responses": {"input": "hi", "store": False},
    "/v1/responses/compact": {"input": "hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": USER},
    "/v1/embeddings": {"input": "hi"},
}


def backend(url: str, *models: str) -> Json:
    """The backends of one tier, each a mapping of its own: YAML would have anchors for equal objects."""
    given = {
        "base_url": url,
        "capabilities": ["tools", "json"],
        "price": {"input": 1, "output": 1},
        "continuation": "prompt",
    }
    return {"backends": [json.loads(json.dumps({**given, "model": model})) for model in models]}


@asynccontextmanager
async def gateway(
    folder: Path, local: Upstream, hosted: Upstream, server: LocalStore, account: str = "http://127.0.0.1:9/v1"
) -> AsyncIterator[InProcess]:
    """A gateway whose hosted tier has two models."""
    tiers = [
        {"name": "local", **backend(local.url, "small")},
        {"name": "hosted", **backend(hosted.url, "large", "huge")},
    ]
    names = ("account", "unset", "judge", "claude")
    services = {name: {"base_url": account, "key_env": "HOSTED_KEY", "models": {"tts": "tts-1-hd"}} for name in names}
    settings = {"embedding": {"state": str(folder / "state")}, "tiers": tiers, "services": services}
    async with in_process(
        folder, local.url, hosted.url, store_url=server.url, policies=POLICIES, settings=settings
    ) as app:
        yield app


@pytest.fixture
def hosted() -> Any:
    with Upstream() as upstream:
        yield upstream


def asked(upstream: Upstream) -> set[str]:
    return {one.body["model"] for one in upstream.requests}


@pytest.mark.parametrize("path", ASKING)
async def test_a_header_opens_nothing(
    path: str, upstream: Upstream, hosted: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """Neither another surface's models, nor a stronger tier's, with a name in the body that is open to the key."""
    async with gateway(tmp_path, upstream, hosted, server) as app:
        headers, _ = await made(registry, models=("small",))
        for more in ({"x-tierline-surface": "big"}, {"x-tierline-min-tier": "hosted"}):
            if "min-tier" in str(more) and path in ("/v1/embeddings", "/v1/messages/count_tokens"):
                continue
            body = {"model": "chat", **ASKING[path]}
            reply = await app.client.post(path.partition("?")[0], json=body, headers={**headers, **more})
            assert reply.status_code == 403, (path, more, reply.text)
        assert not hosted.requests
        if path not in ("/v1/embeddings", "/v1/messages/count_tokens"):
            body = {"model": "chat", **ASKING[path]}
            reply = await app.client.post(path.partition("?")[0], json=body, headers=headers)
            assert reply.status_code == 200 and asked(upstream) == {"small"}, (path, reply.text)


async def test_the_model_that_answers_opens_its_backends(
    upstream: Upstream, hosted: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """By any name that leads there, and of a tier of several models that one alone; it is not locked out."""
    async with gateway(tmp_path, upstream, hosted, server) as app:
        headers, _ = await made(registry, models=("huge",))
        for model in ("chat", "gpt-4o-mini", "big", "auto", "tier:hosted"):
            for _ in range(5):
                reply = await app.ask(f"a question {model}", {**headers, "x-tierline-cache": "no-store"}, model=model)
                assert (reply.status_code, reply.headers["x-tierline-model"]) == (200, "huge")
        assert asked(hosted) == {"huge"} and not upstream.requests
        refused = await app.ask(headers=headers, model="tier:local")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_allowed")
        assert "huge" in refused.json()["error"]["message"]
        assert (await app.ask(headers={**headers, "x-tierline-max-tier": "local"})).status_code == 403
        listed = (await app.get("/v1/models", headers)).json()["data"]
        assert [one["id"] for one in listed] == ["auto", "big", "chat", "remote"]
        headers, _ = await made(registry, models=("small",))
        listed = (await app.get("/v1/models", headers)).json()["data"]
        assert [one["id"] for one in listed] == ["auto", "chat", "remote"]
        assert (await app.get("/v1/models/big", headers)).status_code == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_takes_over_beyond_the_list(
    upstream: Upstream,
    hosted: Upstream,
    tmp_path: Path,
    server: LocalStore,
    registry: KeyRegistry,
    *,
    stream: bool,
) -> None:
    """Neither an escalation, nor a fallback of a tier that fails, nor who would continue a broken stream."""
    async with gateway(tmp_path, upstream, hosted, server) as app:
        headers, _ = await made(registry, models=("small",))
        upstream.queue(Reply(text="no idea at all of that", logprob=-4.0))
        reply = await app.ask("hard", headers, stream=stream, logprobs=True)
        assert (reply.status_code, reply.headers["x-tierline-model"]) == (200, "small")
        if stream:
            upstream.queue(
                Reply(text="one two three four five six seven eight nine", fault=Fault.CLOSE_MID_STREAM, fault_after=6)
            )
            await app.ask("cut", headers, stream=True)
        upstream.queue(*[error_reply(500)] * 4)
        assert (await app.ask("broken", headers, stream=stream)).status_code >= 500
        assert asked(upstream) == {"small"} and not hosted.requests
    async with gateway(tmp_path / "two", upstream, hosted, server) as app:
        headers, _ = await made(registry, models=("large",))
        if stream:
            hosted.queue(Reply(text="one two three four five six seven", fault=Fault.CLOSE_MID_STREAM, fault_after=6))
            assert "six" in (await app.ask("cut too", headers, model="big", stream=True)).text
        hosted.queue(*[error_reply(500)] * 4)
        assert (await app.ask("broken too", headers, model="big", stream=stream)).status_code >= 500
        assert asked(hosted) == {"large"}


async def test_stored_answers_of_closed_models_are_not_served(
    upstream: Upstream, hosted: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """Nor is one under way shared; of a tier that is wholly open they are."""
    async with gateway(tmp_path, upstream, hosted, server) as app:
        headers, _ = await made(registry)
        small, _ = await made(registry, models=("small",))
        huge, _ = await made(registry, models=("huge",))
        assert (await app.ask("a", headers, model="tier:hosted")).status_code == 200
        async with asyncio.timeout(20):
            while "age" not in (await app.ask("a", headers, model="chat")).headers:
                await asyncio.sleep(0.002)
        reply = await app.ask("a", small)
        assert "age" not in reply.headers and reply.headers["x-tierline-model"] == "small"
        reply = await app.ask("a", huge)
        assert "age" not in reply.headers and reply.headers["x-tierline-model"] == "huge"
        hosted.on("slow").reply(text="large or huge", before_first_s=0.3)
        large, _ = await made(registry, models=("large",))
        replies = await asyncio.gather(*(app.ask("slow", one, model="big") for one in (large, huge)))
        assert [one.headers["x-tierline-model"] for one in replies] == ["large", "huge"]


async def test_fields_that_ask_for_further_models(
    upstream: Upstream, hosted: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """A server that takes such would answer by them; a key without a list may send them."""
    async with gateway(tmp_path, upstream, hosted, server) as app:
        for models, status in (("small",), 403), ((), 200):
            headers, _ = await made(registry, models=models)
            for field in ("models", "fallbacks"):
                assert (await app.ask(headers=headers, **{field: ["huge"]})).status_code == status


async def test_services_answer_by_the_models_of_the_list(
    upstream: Upstream, hosted: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """Where the request says its model in JSON; what cannot be read is closed to the key, batches and files too."""
    with Account() as account:
        account.release.set()
        async with gateway(tmp_path, upstream, hosted, server, account.url) as app:
            headers, _ = await made(registry, models=("embed", "tts-1-hd", "rerank", "omni-moderation"))
            headers["x-tierline-surface"] = "remote"
            sent: list[tuple[str, Json, int]] = [
                ("/v1/embeddings", {"input": "hi", "model": "embed"}, 200),
                ("/v1/embeddings", {"input": "hi", "model": "remote"}, 403),
                ("/v1/embeddings", {"input": "hi", "model": "embed-large"}, 403),
                ("/v1/moderations", {"input": "hi", "model": "omni-moderation"}, 200),
                ("/v1/moderations", {"input": "hi"}, 403),
                ("/v1/moderations?model=other", {"input": "hi", "model": "omni-moderation"}, 403),
                ("/v1/audio/speech", {"input": "hi", "model": "tts", "voice": "a"}, 200),
                ("/v1/audio/speech", {"input": "hi", "model": "tts-2", "voice": "a"}, 403),
                ("/v1/images/generations", {"prompt": "hi", "model": "gpt-image-1"}, 403),
                ("/v1/completions", {"prompt": "hi", "model": "codestral"}, 403),
                ("/v1/rerank", {"query": "hi", "documents": ["a"], "model": "rerank"}, 200),
                ("/v1/rerank", {"query": "hi", "documents": ["a"], "model": "rerank-large"}, 403),
                ("/v1/rerank/more", {"query": "hi", "documents": ["a"], "model": "rerank"}, 403),
                ("/v1/messages/batches", {"model": "rerank", "requests": [{"params": {"model": "opus"}}]}, 403),
                ("/v1/batches", {"model": "rerank", "input_file_id": "file-1", "endpoint": "/v1/embeddings"}, 403),
            ]
            for path, body, status in sent:
                reply = await app.client.post(path, json=body, headers=headers)
                assert reply.status_code == status, (path, body, reply.text)
            form = {"file": ("a.wav", b"RIFF"), "model": (None, "whisper-1")}
            assert (await app.client.post("/v1/audio/transcriptions", files=form, headers=headers)).status_code == 403
            assert (await app.get("/v1/files", headers)).status_code == 403
            headers, _ = await made(registry, models=("remote",))
            body = {"input": "hi", "model": "remote"}
            surface = {**headers, "x-tierline-surface": "remote"}
            assert (await app.client.post("/v1/embeddings", json=body, headers=surface)).status_code == 200
            body = {"input": "hi", "model": "embed"}
            assert (await app.client.post("/v1/embeddings", json=body, headers=surface)).status_code == 403


async def test_a_web_socket_opens_no_more(
    upstream: Upstream, hosted: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """The header of the handshake holds for its requests, and so does the key's list."""
    headers, _ = await made(registry, models=("small",))
    policies = {name: POLICIES[name] for name in ("chat", "big")}
    with serve(tmp_path, upstream.url, hosted.url, store_url=server.url, policies=policies) as running:
        url = running.url.replace("http", "ws") + "/responses"
        for model, more, kind in (
            ("chat", {"x-tierline-surface": "big"}, "error"),
            ("big", {}, "error"),
            ("tier:hosted", {}, "error"),
            ("chat", {}, "response.completed"),
        ):
            async with connect(url, additional_headers={**headers, **more}) as socket, asyncio.timeout(20):
                await socket.send(json.dumps({"type": "response.create", "model": model, "input": "hi"}))
                event: Json = {"type": ""}
                while event["type"] not in ("error", "response.failed", "response.completed"):
                    event = json.loads(await socket.recv())
                assert event["type"] == kind, (model, more, event)
    assert asked(upstream) == {"small"} and not hosted.requests
