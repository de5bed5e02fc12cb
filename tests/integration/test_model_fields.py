"""A model that lacks fields behind agents that send them: what it cannot take is left out and listed."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import serve
from tests.support.upstream import Received, Reply, Upstream

REFUSED = {"reasoning_effort", "reasoning", "thinking", "output_config", "verbosity"}


def refusal(received: Received) -> str | None:
    """The first field that the real model refuses, as OpenAI's API does; None if it takes the request."""
    return next((field for field in received.body if field in REFUSED), None)


def sent(url: str, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """A POST's reply and its list of dropped fields."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as reply:
        return json.load(reply), reply.headers["x-tierline-dropped"] or ""


@pytest.mark.parametrize("known", [True, False], ids=["by its facts", "learnt"])
def test_agents_before_a_model_without_reasoning(tmp_path: Path, upstream: Upstream, known: bool) -> None:
    """Claude Code's effort, Codex's and a chat client's do not reach gpt-4o-mini, and all three are answered."""
    for field in REFUSED:
        error = {"message": f"Unrecognized request argument supplied: {field}", "type": "invalid_request_error"}
        raw = json.dumps({"error": {**error, "param": None, "code": None}}).encode()
        upstream.on(lambda one, field=field: refusal(one) == field).reply(Reply(status=400, body=raw))
    upstream.default = Reply(text="done")
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps({"dated": "2026-11-22", "hosts": {"127.0.0.1": "openai"}}))
    settings: dict[str, Any] = {"prices": {"file": str(facts)}} if known else {}
    backend = {"base_url": upstream.url, "model": "gpt-4o-mini", "key_env": "HOSTED_KEY", "capabilities": ["json"]}
    tiers = [{"name": name, "backends": [backend]} for name in ("local", "hosted")]
    settings["tiers"] = json.loads(json.dumps(tiers))  # YAML's anchors are refused
    ask = [{"role": "user", "content": "hi"}]
    with serve(tmp_path, upstream.url, upstream.url, settings=settings) as gateway:
        effort = {"output_config": {"effort": "high"}, "thinking": {"type": "adaptive"}}
        reply, dropped = sent(
            f"{gateway.url}/messages?beta=true", {"model": "chat", "max_tokens": 9, "messages": ask, **effort}
        )
        assert (reply["content"][0]["text"], dropped) == ("done", "output_config.effort")
        assert len(upstream.requests) == (1 if known else 2)
        reply, dropped = sent(
            f"{gateway.url}/responses", {"model": "chat", "input": ask, "reasoning": {"effort": "low"}}
        )
        assert reply["status"] == "completed" and "reasoning.effort" in dropped
        reply, dropped = sent(
            f"{gateway.url}/chat/completions", {"model": "chat", "messages": ask, "reasoning_effort": "minimal"}
        )
        assert (reply["choices"][0]["message"]["content"], dropped) == ("done", "reasoning_effort")
        assert sum(refusal(one) is not None for one in upstream.requests) == (0 if known else 1)
