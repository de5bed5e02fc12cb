"""The official OpenAI SDK for Node works by changing only the base URL (`node/client.mjs` is the application)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import Gateway
from tests.support.upstream import Fault, Reply, ToolCall, Upstream, error_reply

FOLDER = Path(__file__).parent / "node"

pytestmark = [
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
    pytest.mark.skipif(
        not (FOLDER / "node_modules/openai").is_dir(),
        reason="the Node SDK is not installed: npm ci --prefix tests/integration/node",
    ),
]


def node(gateway: Gateway, scenario: str, **env: str) -> dict[str, Any]:
    """What the SDK made of one scenario."""
    done = subprocess.run(
        ["node", str(FOLDER / "client.mjs"), scenario],
        check=False,
        env=os.environ | {"TIERLINE_URL": gateway.url} | env,
        capture_output=True,
        timeout=30,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_completes(gateway: Gateway, local_upstream: Upstream) -> None:
    """A completion has its text, usage, request id and our headers."""
    local_upstream.default = Reply(text="one two three")
    got = node(gateway, "complete")
    assert (got["text"], got["finish"], got["path"]) == ("one two three", "stop", "direct")
    assert got["usage"]["completion_tokens"] == 3
    assert got["requestId"]


def test_text_completions(gateway: Gateway, local_upstream: Upstream) -> None:
    """Two prompts in one request, and a stream."""
    local_upstream.default = Reply(text="it is one")
    local_upstream.on("two").reply(text="it is two")
    got = node(gateway, "completions")
    assert got == {"texts": [[0, "it is one"], [1, "it is two"]], "streamed": "it is one"}


def test_embeddings(gateway: Gateway) -> None:
    """The SDK asks for base64 by itself, and reads it as 256 numbers."""
    got = node(gateway, "embeddings")
    assert (got["lengths"], got["model"]) == ([256, 256], "wordllama-256")
    assert isinstance(got["first"], float) and got["usage"]["prompt_tokens"] > 0


def test_streams(gateway: Gateway, local_upstream: Upstream) -> None:
    """A stream has one id, the whole text, a finish reason, and the usage it asked for."""
    local_upstream.default = Reply(text="one two three four five six")
    got = node(gateway, "stream")
    assert (got["text"], got["finish"]) == ("one two three four five six", "stop")
    assert got["usage"]["completion_tokens"] == 6
    assert len(got["ids"]) == 1


def test_calls_tools(gateway: Gateway, local_upstream: Upstream) -> None:
    """The SDK's stream helper puts a streamed tool call together."""
    local_upstream.default = Reply(tool_calls=(ToolCall("weather", '{"city":"Utrecht"}'),))
    got = node(gateway, "tools")
    assert got["finish"] == "tool_calls"
    assert [json.loads(call["arguments"]) for call in got["calls"]] == [{"city": "Utrecht"}]


def test_lists_models(gateway: Gateway) -> None:
    """The models are the surfaces."""
    got = node(gateway, "models")
    assert "chat" in got["ids"]
    assert got["one"]["object"] == "model"


def test_unknown_model(gateway: Gateway) -> None:
    """An unknown model is the SDK's NotFoundError, with code and request id."""
    got = node(gateway, "unknownModel")
    assert (got["class"], got["status"], got["code"]) == ("NotFoundError", 404, "model_not_found")
    assert got["requestId"]


def test_no_retry_where_it_cannot_help(
    own_gateway: Gateway, local_upstream: Upstream, hosted_upstream: Upstream
) -> None:
    """x-should-retry stops the SDK's retries when every backend refuses our keys."""
    local_upstream.default = hosted_upstream.default = error_reply(401, "bad key", "invalid_request_error")
    got = node(own_gateway, "askOnce", MAX_RETRIES="2")
    assert (got["class"], got["status"], got["code"]) == ("InternalServerError", 502, "upstream_http_error")
    assert (len(local_upstream.requests), len(hosted_upstream.requests)) == (1, 1)


def test_broken_streams_raise(gateway: Gateway, local_upstream: Upstream) -> None:
    """A stream that the backend broke raises the error event: this SDK reads a silent end as success."""
    for fault in (Fault.EOF_MID_STREAM, Fault.RESET_MID_STREAM):
        local_upstream.default = Reply(text="one two three four five six seven", fault=fault, fault_after=6)
        got = node(gateway, "broken")
        assert (got["class"], got["code"]) == ("APIError", "upstream_truncated")


def test_leaving_cancels_the_backend(gateway: Gateway, local_upstream: Upstream) -> None:
    """Breaking out of a stream ends the backend's call."""
    local_upstream.default = Reply(text="word " * 500, between_s=0.02)
    node(gateway, "leave")
    local_upstream.requests[0].wait_gone()
