"""What is wrong with a body is told in OpenAI's envelope, and who may not ask is refused before a body is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.server.app import App
from tests.support.app import InProcess, in_process
from tests.support.upstream import Reply, Upstream


@pytest.fixture
async def app(local_upstream: Upstream, tmp_path: Path) -> AsyncIterator[InProcess]:
    (tmp_path / "key").write_text("admin-key")
    settings = {"admin": {"key_env": "ADMIN", "port": 8799}}
    local_upstream.default = Reply(text="one two three")
    async with in_process(tmp_path, local_upstream.url, settings=settings, env={"ADMIN": "admin-key"}) as running:
        yield running


def admin_of(app: InProcess) -> httpx2.AsyncClient:
    """A client of the admin port, whose requests carry its key."""
    transport = httpx2.ASGITransport(app=App(app.steps), raise_app_exceptions=False)
    return httpx2.AsyncClient(
        transport=transport, base_url="http://localhost:8799", headers={"authorization": "Bearer admin-key"}
    )


@pytest.mark.parametrize(
    ("body", "code", "param", "message"),
    [
        ({}, "missing_required_parameter", "text", "Missing required parameter: 'text'."),
        ({"text": 3}, "invalid_type", "text", "Invalid type for 'text': expected a string."),
        ({"text": "a", "test": "b"}, "unsupported_value", "test", "Unknown key 'test'; known are text."),
        ({"text": " "}, "missing_required_parameter", "text", "text is required, as text."),
        ([], "invalid_type", None, "The body must be a JSON object."),
        ("{", "invalid_json", None, "The body is not valid JSON"),
        ('{"text": "a", "text": "b"}', "unsupported_value", "text", "The key 'text' is given twice."),
        ('"' + "a" * (4 << 20) + '"', "request_too_large", None, "The body is larger than"),
    ],
)
async def test_what_is_wrong_with_a_body_is_told(
    app: InProcess,
    body: Any,
    code: str,
    param: str | None,
    message: str,
) -> None:
    async with admin_of(app) as client:
        sent = {"content": body} if isinstance(body, str) else {"json": body}
        reply = await client.post("/admin/policies/lint", headers={"content-type": "application/json"}, **sent)
        error = reply.json()["error"]
    assert (error["code"], error["param"], error["type"]) == (code, param, "invalid_request_error")
    assert error["message"].startswith(message)


async def test_a_body_without_the_key_is_not_looked_at(app: InProcess) -> None:
    """A wrong key is what the reply tells of, whatever is wrong with the body."""
    async with admin_of(app) as client:
        client.headers["authorization"] = "Bearer another"
        reply = await client.post("/admin/policies/lint", content="{", headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_a_405_names_all_methods_of_the_url(app: InProcess) -> None:
    async with admin_of(app) as client:
        reply = await client.put("/admin/cache/entries/abcdef012345")
    assert reply.headers["allow"] == "DELETE, GET, HEAD"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/admin/cache/purge", {"tag": None, "surface": "chat"}, "tag"),
        ("/admin/cache/purge", {"surface": "chat", "tenant": None}, "tenant"),
        ("/admin/cache/purge", {"surface": None}, "surface"),
        ("/admin/cache/purge", {"entry": None}, "entry"),
        ("/admin/policies/chat/rollback", {"author": "a", "message": "m", "to": None}, "to"),
        ("/admin/policies/chat/apply", {"author": "a", "message": "m", "text": "t", "base": None}, "base"),
    ],
)
async def test_null_is_not_a_key_that_is_left_out(
    app: InProcess,
    path: str,
    body: dict[str, Any],
    param: str,
) -> None:
    """What a caller narrows a change by must not get lost: a purge of one tenant is not one of all."""
    async with admin_of(app) as client:
        reply = await client.post(path, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, "invalid_type", param)


async def test_a_rating_must_say_that_it_is_json_and_may_have_nulls(app: InProcess) -> None:
    """A page of another site can send a body without a type; SDKs send null for what they leave out."""
    rating = b'{"request_id": "req_1", "score": 0.5, "comment": null}'
    untyped = await app.client.post("/v1/feedback", content=rating)
    assert (untyped.status_code, untyped.json()["error"]["code"]) == (415, "unsupported_media_type")
    typed = await app.client.post("/v1/feedback", content=rating, headers={"content-type": "application/json"})
    assert typed.status_code != 400 and typed.status_code != 415


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/responses/input_tokens"])
async def test_an_overloaded_gateway_counts_no_tokens_and_reads_no_body(app: InProcess, path: str) -> None:
    """The load is looked at first, as for answers: even a body that is wrong gets 503."""
    assert (await app.get("/v1/models")).status_code == 200  # so that nothing is imported meanwhile
    app.steps.gate.memory = 1.0
    reply = await app.client.post(path, content=b"{", headers={"content-type": "application/json"})
    assert reply.status_code == 503


async def test_of_two_jobs_begun_at_the_same_moment_one_runs(app: InProcess) -> None:
    """The other is refused while the first one's process is still being started."""
    async with admin_of(app) as client:
        assert (await client.get("/admin/policies")).status_code == 200
        body = {"action": "replay", "text": "surface: chat"}
        both = await asyncio.gather(*(client.post("/admin/policies/jobs", json=body) for _ in range(2)))
    assert sorted(reply.status_code for reply in both) == [200, 409]
    refused = next(reply for reply in both if reply.status_code == 409)
    assert refused.json()["error"]["code"] == "job_running"
