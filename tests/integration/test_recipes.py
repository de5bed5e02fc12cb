"""What the clients of the recipes in gateway/README.md send, before a server that refuses as OpenAI's does.

The clients themselves run in tests/clients.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from policies.loader import SHIPPED
from tests.support.gateway import Gateway, config, serve
from tests.support.upstream import Received, Upstream, error_reply

DOCKER = "host.docker.internal:8787"
_KNOWN = """frequency_penalty logit_bias logprobs max_completion_tokens max_tokens messages metadata model n
parallel_tool_calls presence_penalty prompt_cache_key response_format safety_identifier seed service_tier stop store
stream stream_options temperature tool_choice tools top_logprobs top_p user"""
KNOWN = frozenset(_KNOWN.split())
"""Fields of chat completions that gpt-4o-mini takes; OpenAI's API refuses every other."""


def refused(request: Received) -> bool:
    """Whether OpenAI's API refuses it: unknown fields, more tokens than the model writes, a choice without tools."""
    body = request.body
    limit = max(body.get("max_tokens") or 0, body.get("max_completion_tokens") or 0)
    lone = not body.get("tools") and not {"tool_choice", "parallel_tool_calls"}.isdisjoint(body)
    return bool(body.keys() - KNOWN) or limit > 16384 or lone


@pytest.fixture(scope="module")
def gateway(_upstreams: tuple[Upstream, Upstream], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The shipped policies; the facts of gpt-4o-mini hold for the hosted backend."""
    local, hosted = _upstreams
    folder = tmp_path_factory.mktemp("recipes")
    facts = {"dated": "2026-11-25", "hosts": {"127.0.0.1": "openai"}, "models": {}}
    (folder / "facts.json").write_text(json.dumps(facts))
    tiers = config(local.url, hosted.url)["tiers"]
    tiers[1]["backends"][0] |= {"model": "gpt-4o-mini"}
    settings = {
        "tiers": tiers,
        "access": {"hosts": [DOCKER.partition(":")[0]]},
        "prices": {"file": str(folder / "facts.json")},
    }
    policies = {file.stem: file.read_text() for file in SHIPPED.glob("*.yaml") if ".test" not in file.name}
    with serve(folder, local.url, hosted.url, policies=policies, settings=settings) as gateway:
        yield gateway


USER = [{"role": "user", "content": "Prove Fermat's last theorem."}]
FUNCTION = {"name": "read", "description": "Read a file.", "parameters": {"type": "object", "properties": {}}}
CLAUDE_CODE = {
    "max_tokens": 32000,
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}],
    "system": [{"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "Read", "description": "Read a file.", "input_schema": {"type": "object", "properties": {}}}],
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "high"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "metadata": {"user_id": "user_1"},
    "stream": True,
}
CODEX = {
    "instructions": "You are Codex.",
    "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
    "tools": [{"type": "function", "strict": False, **FUNCTION}, {"type": "web_search", "external_web_access": False}],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "text": {"verbosity": "low"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "thread-1",
    "client_metadata": {"turn_id": "1"},
    "stream": True,
}
CHAT = {"messages": USER, "stream": True, "stream_options": {"include_usage": True}}
TOOLS = [{"type": "function", "function": FUNCTION}]
REQUESTS: list[tuple[str, str, str, dict[str, Any], str]] = [
    ("claude-code", "/v1/messages?beta=true", "claude-sonnet-4-6", CLAUDE_CODE, "agent"),
    ("claude-code-haiku", "/v1/messages", "claude-haiku-4-5-20251001", {**CLAUDE_CODE, "max_tokens": 64000}, "agent"),
    ("codex", "/v1/responses", "gpt-5.3-codex", CODEX, "agent"),
    ("opencode", "/v1/chat/completions", "agent", {**CHAT, "max_tokens": 32000, "tools": TOOLS}, "agent"),
    ("cline", "/v1/chat/completions", "agent", {**CHAT, "temperature": 0, "tools": TOOLS}, "agent"),
    ("continue", "/v1/chat/completions", "gpt-5.4", {**CHAT, "max_completion_tokens": 32000}, "chat"),
    ("open-webui", "/v1/chat/completions", "chat", {"messages": USER, "stream": True}, "chat"),
    ("n8n", "/v1/chat/completions", "gpt-5-mini", {"messages": USER, "temperature": 0.7, "n": 1}, "chat"),
    ("librechat", "/v1/chat/completions", "chat", {**CHAT, "user": "6650f0", "top_p": 1}, "chat"),
    ("ai-sdk", "/v1/responses", "gpt-5.4", {"input": USER, "max_output_tokens": 32000, "store": False}, "chat"),
]


@pytest.mark.parametrize(("path", "model", "body", "surface"), [pytest.param(*one, id=name) for name, *one in REQUESTS])
def test_a_recipes_requests_are_answered(
    gateway: Gateway, hosted_upstream: Upstream, path: str, model: str, body: dict[str, Any], surface: str
) -> None:
    """By the surface that its model's name means, without a refusal; from a container, too."""
    hosted_upstream.on(refused).reply(error_reply(400, "Unrecognized request argument supplied."))
    for host in ("localhost", DOCKER):
        headers = {"host": host, "x-tierline-cache": "no-cache", "x-tierline-min-tier": "hosted"}
        reply = httpx2.post(gateway.origin + path, json={**body, "model": model}, headers=headers, timeout=20)
        assert (reply.status_code, reply.headers["x-tierline-surface"]) == (200, surface), reply.text
        assert (reply.headers["x-tierline-tier"], reply.headers["x-tierline-attempts"]) == ("hosted", "1")
        assert '"error"' not in reply.text.replace('"error":null', "")
    assert not any(map(refused, hosted_upstream.requests))


def test_a_container_is_let_in_by_the_name_of_its_host(gateway: Gateway) -> None:
    """Open WebUI and LibreChat list the models first; another name stays out."""
    for path in ("/v1/models", "/models"):
        listed = httpx2.get(gateway.origin + path, headers={"host": DOCKER, "authorization": "Bearer any"}, timeout=20)
        assert {"chat", "agent"} <= {one["id"] for one in listed.json()["data"]}
    stranger = httpx2.get(f"{gateway.url}/models", headers={"host": "rebound.example:8787"}, timeout=20)
    assert stranger.json()["error"]["code"] == "host_not_allowed"
