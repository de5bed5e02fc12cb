"""What the scripted models say to the prompts of the clients (`python/scenarios.py`, `node/scenarios.mjs`)."""

from __future__ import annotations

import json
import re
from collections import Counter

from gateway.backends.script import Fault, ModelReply, ToolCall, error_reply
from tests.support.upstream import Match, Received, Rule, Upstream

PLAIN = "one two three four five six"
SUNNY = "It is sunny in Utrecht."
HARD = "It is forty-two, as everybody knows."
CITY = {"name": "Utrecht", "country": "Netherlands"}
WEATHER = ToolCall("weather", '{"city":"Utrecht"}', "call_weather1")
AGENTS_CALLS = {
    "Bash": {"command": "cat note.txt", "description": "Read the note"},
    "exec_command": {"cmd": "cat note.txt"},
    "shell_command": {"command": "cat note.txt"},
}
"""For each tool by which a coding agent runs a command: the call that reads the note in its folder."""

_PROMPT = re.compile(r"(\w+)-task for ([\w.-]+)")


def asked(request: Received) -> tuple[str, str]:
    """Return the scenario and the client of a request: those of the last prompt in it."""
    found = _PROMPT.findall(json.dumps(request.body.get("messages"))) if isinstance(request.body, dict) else []
    return found[-1] if found else ("", "")


def script(local: Upstream, hosted: Upstream) -> None:
    """Give both models their rules; of those that fit, the one given last holds."""
    local.default = hosted.default = ModelReply(text=PLAIN)
    _on(local, "hard").reply(text="er I do not really know that", logprob=-4.0)
    hosted.default = ModelReply(text=HARD)
    for upstream in (local, hosted):
        _on(upstream, "slow").reply(fault=Fault.HANG_BEFORE_HEADERS)
    _on(local, "leave").reply(text="word " * 400, between_s=0.05)
    for scenario in ("tools", "structured"):
        _on(local, scenario, _has_tools("weather")).reply(tool_calls=(WEATHER,))
    _on(local, "structured").reply(text=json.dumps(CITY))
    for tool in ("City", "PartialCity", "final_result"):
        _on(local, "structured", _has_tools(tool)).reply(tool_calls=(ToolCall(tool, json.dumps(CITY)),))
    for tool, arguments in AGENTS_CALLS.items():
        _on(local, "agent", _has_tools(tool)).reply(tool_calls=(ToolCall(tool, json.dumps(arguments), "call_agent1"),))
    local.on(lambda request: request.body["messages"][-1]["role"] == "tool").reply(text=SUNNY)
    busy = Counter[str]()

    def first(request: Received) -> bool:
        busy[asked(request)[1]] += 1
        return busy[asked(request)[1]] == 1

    _on(local, "busy", first).reply(error_reply(503, "too busy", headers={"Retry-After": "1"}))


def _on(upstream: Upstream, scenario: str, holds: Match = lambda request: True) -> Rule:
    return upstream.on(lambda request: scenario in asked(request)[0] and holds(request))


def _has_tools(name: str) -> Match:
    return lambda request: any(tool.get("function", {}).get("name") == name for tool in request.body.get("tools") or ())
