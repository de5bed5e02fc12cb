"""A PDF by URL, as each API has it, reaches every backend whose API takes one, and is never left out in silence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.app import in_process
from tests.support.responses_upstream import ResponsesUpstream
from tests.support.strict_messages import StrictMessages
from tests.support.upstream import Upstream

URL = "https://files.example/report.pdf"
ASKED: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": (
        {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": URL}}]}]},
        "messages[0].content[0]",
    ),
    "/v1/messages": (
        {
            "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "url", "url": URL}}]}],
            "max_tokens": 100,
        },
        "messages[0].content[0]",
    ),
    "/v1/responses": (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": URL}]}]},
        "input[0].content[0]",
    ),
}
SENT = {
    "openai": {"type": "file", "file": {"file_data": URL}},
    "anthropic": {"type": "document", "source": {"type": "url", "url": URL}},
    "responses": {"type": "input_file", "file_url": URL},
}
"""The part that backends of each kind are to get."""


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Upstream]]:
    with Upstream() as chat, StrictMessages() as claude, ResponsesUpstream() as responses:
        yield {"openai": chat, "anthropic": claude, "responses": responses}


def _backend(servers: dict[str, Upstream], kind: str, **more: Any) -> dict[str, Any]:
    able = {"capabilities": ["files"], "key_env": "HOSTED_KEY", "model": "claude-sonnet-4-5", "kind": kind}
    return {**able, "base_url": servers[kind].url, **more}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", SENT)
@pytest.mark.parametrize("path", ASKED)
async def test_a_backend_that_can_fetch_it_gets_the_url(
    servers: dict[str, Upstream], tmp_path: Path, path: str, kind: str, stream: bool
) -> None:
    """From clients of every API, in its own words; nothing is listed as dropped."""
    server = servers[kind]
    server.reset()
    tiers = [
        {"name": "local", "backends": [_backend(servers, "openai", capabilities=["tools"])]},
        {"name": "hosted", "backends": [_backend(servers, kind)]},
    ]
    async with in_process(tmp_path, "", "http://127.0.0.1:9", settings={"tiers": tiers}) as app:
        reply = await app.client.post(path, json={"model": "chat", "stream": stream, **ASKED[path][0]})
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-tierline-tier"] == "hosted" and "x-tierline-dropped" not in reply.headers
    (received,) = server.requests
    (turn,) = received.body["input" if kind == "responses" else "messages"]
    assert turn["content"] == [SENT[kind]]


@pytest.mark.parametrize("path", ASKED)
async def test_where_nobody_can_fetch_it_the_request_is_refused(
    servers: dict[str, Upstream], tmp_path: Path, path: str
) -> None:
    """By the path of the part, as the client knows it; the model is not asked without the file."""
    for server in servers.values():
        server.reset()
    backends = [
        _backend(servers, "anthropic", capabilities=["tools"]),
        _backend(servers, "openai", omit=["file_urls"]),
    ]
    tiers = [{"name": name, "backends": [one]} for name, one in zip(("local", "hosted"), backends, strict=True)]
    async with in_process(tmp_path, "", "http://127.0.0.1:9", settings={"tiers": tiers}) as app:
        body, param = ASKED[path]
        reply = await app.client.post(path, json={"model": "chat", **body})
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == param and "file_urls" in error["message"]
    assert not [request for server in servers.values() for request in server.requests]
