"""Claude Code and Codex CLI, as npm ships them, before the APIs that they were made for: strict servers of each.

The gateway has one tier: Anthropic's API, OpenAI's Responses API, or its chat completions (`make clients`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.clients.scripted import AGENTS_CALLS, PLAIN, SUNNY
from tests.support.gateway import CHAT, serve
from tests.support.responses_upstream import ResponsesUpstream
from tests.support.strict_messages import StrictMessages, text, tool_use
from tests.support.upstream import Received, ToolCall, Upstream

FOLDER = Path(__file__).parent
BIN = FOLDER / "cli" / "node_modules" / ".bin"
AGENTS = {"claude-code": "claude", "codex": "codex"}
MODELS = {"anthropic": "claude-opus-4-8", "responses": "gpt-5.4", "openai": "gpt-4o-mini"}

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def step(body: dict[str, Any]) -> str:
    """What a request asks for: `read` the output of a command, `call` it, or just an answer."""
    said = json.dumps(body.get("messages") or body["input"])
    if any(mark in said for mark in ('"tool_result"', '"function_call_output"', '"role": "tool"')):
        return "read"
    return "call" if "agent-task" in said and tool_in(body) else "plain"


def tool_in(body: dict[str, Any]) -> str:
    """The tool by which the agent runs a command."""
    named = [(tool.get("function") or tool).get("name") for tool in body.get("tools") or ()]
    return next((name for name in AGENTS_CALLS if name in named), "")


class TaskMessages(StrictMessages):
    """Answers each request by what it asks for: agents send others between."""

    def _message(self, body: dict[str, Any]) -> dict[str, Any]:
        name = tool_in(body)
        blocks = {"read": text(SUNNY), "plain": text(PLAIN)}.get(step(body)) or tool_use(name, AGENTS_CALLS[name])
        self._script.clear()
        self.say(blocks)
        return super()._message(body)


def scripted(server: Upstream) -> None:
    """Have a server of OpenAI's APIs answer as `TaskMessages` does."""
    for name, given in AGENTS_CALLS.items():

        def calls(request: Received, name: str = name) -> bool:
            return step(request.body) == "call" and tool_in(request.body) == name

        server.on(calls).reply(tool_calls=(ToolCall(name, json.dumps(given), "call_agent1"),))
    server.on(lambda request: step(request.body) == "read").reply(text=SUNNY)
    server.on(lambda request: step(request.body) == "plain").reply(text=PLAIN)


@pytest.fixture(params=MODELS)
def behind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """A gateway before one API, and the server of that."""
    kind = request.param
    with ExitStack() as stack:
        server: Any = {"anthropic": TaskMessages, "responses": ResponsesUpstream, "openai": Upstream}[kind]()
        stack.enter_context(server)
        if kind != "anthropic":
            scripted(server)
        policy = CHAT.replace("[local, hosted]", "[hosted]").replace("local: otherwise", "hosted: otherwise")
        able = ["tools", "json", "vision", "files", "web_search", *(() if kind == "openai" else ("hosted_tools",))]
        backend = {"kind": kind, "base_url": server.url, "model": MODELS[kind], "key_env": "HOSTED_KEY"}
        tier = {"name": "hosted", "backends": [{**backend, "price": {"input": 1, "output": 5}, "capabilities": able}]}
        settings = {"tiers": [tier]}
        env = {"HOSTED_KEY": StrictMessages.KEY}
        with serve(tmp_path, server.url, policies={"chat": policy}, settings=settings, env=env) as gateway:
            yield gateway.origin, server


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_runs_a_command(behind: tuple[str, Any], agent: str) -> None:
    """Its requests are taken as they come, its command is run, and its models are those of the gateway."""
    origin, server = behind
    program = BIN / AGENTS[agent]
    if not program.exists():
        pytest.skip("not installed: make clients")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "ANTHROPIC_"))}
    env = kept | {"TIERLINE_URL": origin, "CLIENT": agent, "AGENT": agent, "PROGRAM": str(program)}
    script = [sys.executable, str(FOLDER / "python" / "use_coding_agent.py")]
    done = subprocess.run(script, check=False, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["agent"].get("value") == {"outputs": ["sunny"], "text": SUNNY}, told["agent"]
    assert told["plain"]["value"]["text"] == PLAIN
    assert told["models"]["value"] == ({"ids": ["claude-chat"]} if agent == "claude-code" else {"ids": []})
    assert (getattr(server, "refusals", None) or getattr(server, "refused", None) or []) == []
