"""Claude Code (/v1/messages) and Codex CLI (/v1/responses), as npm ships them: one command run, and the answer.

AGENT names the one and PROGRAM its command. Each has a home and a folder of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from scenarios import MODEL, ORIGIN, URL, prompt, run

AGENT = os.environ["AGENT"]
home = Path(tempfile.mkdtemp(prefix="tierline-agent-"))
work = home / "work"
work.mkdir()
(work / "note.txt").write_text("sunny\n")
(home / "config.toml").write_text(f"""
model = "{MODEL}"
model_provider = "tierline"
[model_providers.tierline]
name = "Tierline"
base_url = "{URL}"
env_key = "TIERLINE_KEY"
wire_api = "responses"
""")
CLAUDE_CODE = ["--output-format", "stream-json", "--verbose", "--allowedTools", "Bash"]
CODEX = ["exec", "--json", "--skip-git-repo-check", "--sandbox", "danger-full-access"]
ENVIRONMENTS = {
    "claude-code": {
        "ANTHROPIC_BASE_URL": ORIGIN,
        "ANTHROPIC_API_KEY": "any",
        "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY": "1",
    },
    "codex": {"CODEX_HOME": str(home), "TIERLINE_KEY": "any"},
}


def events(name: str) -> list[Any]:
    """Have the agent do one task, and return what it printed."""
    told = ["-p", prompt(name), *CLAUDE_CODE] if AGENT == "claude-code" else [*CODEX, prompt(name)]
    command = [os.environ["PROGRAM"], *told]
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "127.0.0.1"} | ENVIRONMENTS[AGENT]
    done = subprocess.run(
        command, check=False, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100
    )
    if done.returncode:
        raise RuntimeError(f"{done.stdout}\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def plain() -> Any:
    found = events("plain")
    if AGENT == "codex":
        (used,) = [one["usage"] for one in found if one["type"] == "turn.completed"]
        return {"text": messages(found)[-1], "out": used["output_tokens"]}
    return {"text": found[-1]["result"], "out": found[-1]["usage"]["output_tokens"]}


def agent() -> Any:
    found = events("agent")
    if AGENT == "codex":
        items = [one["item"] for one in found if one["type"] == "item.completed"]
        outputs = [item["aggregated_output"] for item in items if item["type"] == "command_execution"]
        return {"outputs": [output.strip() for output in outputs], "text": messages(found)[-1]}
    blocks = [block for one in found if one["type"] == "user" for block in one["message"]["content"]]
    return {"outputs": [one["content"] for one in blocks if one["type"] == "tool_result"], "text": found[-1]["result"]}


def models() -> Any:
    """The models that Claude Code found at the gateway when it started."""
    kept = home / ".claude" / "cache" / "gateway-models.json"
    listed = json.loads(kept.read_text())["models"] if kept.exists() else []
    return {"ids": [one["id"] for one in listed]}


def messages(found: list[Any]) -> list[str]:
    """What Codex says to its user."""
    items = [one["item"] for one in found if one["type"] == "item.completed"]
    return [item["text"] for item in items if item["type"] == "agent_message"]


run(plain, agent, models)
