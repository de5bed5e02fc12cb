"""What the scripted models say to the prompts of the clients (`python/scenarios.py`, `node/scenarios.mjs`)."""

from __future__ import annotations

import json
import re
from collections import Counter

from gateway.parts.local.kinds.scripted.script import Fault, ModelReply, ToolCall, error_reply
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
JOKE = {"setup": "Why?", "punchline": "Because."}
"""What LangChain's standard tests ask for as JSON."""
STANDARD_CALLS = {
    "magic_function": {"input": 3},
    "magic_function_no_args": {},
    "my_adder_tool": {"a": 1, "b": 2},
    "get_weather": {"location": "San Francisco, CA"},
    "greeting_generator": {"answer_style": "pirate"},
    "unicode_customer": {"customer_name": "你好啊集团, こんにちは株式会社", "description": "A technology company"},
    "Joke": JOKE,
    "JokeDict": JOKE,
    "color_picker": {"fav_color": "blue"},
    "random_image": {},
    "random_pdf": {},
}
"""For each tool of those tests, the arguments that they ask for."""
PAUSE_S = 3
"""How long the model that refuses every request asks to be left alone."""

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
    _script_standard(local)
    times = Counter[tuple[str, str]]()

    def first(request: Received) -> bool:
        times[asked(request)] += 1
        return times[asked(request)] == 1

    for scenario, status in (("busy", 503), ("limited", 429), ("overloaded", 529)):
        _on(local, scenario, first).reply(error_reply(status, "too busy", headers={"Retry-After": "1"}))
    _on(local, "impatient", first).reply(fault=Fault.HANG_BEFORE_HEADERS)
    for scenario in ("refused", "refused_stream"):
        _on(local, scenario).reply(error_reply(429, "too many requests", headers={"Retry-After": str(PAUSE_S)}))


def _script_standard(local: Upstream) -> None:
    """Call the tool that a standard test asks for, and answer once its result is there; or answer in JSON."""

    def of_model(name: str, holds: Match = lambda request: True) -> Match:
        return lambda request: request.body["model"] == name and holds(request)

    def calls(tool: str) -> Match:
        """Hold for a question with this tool, unless another is chosen."""

        def holds(request: Received) -> bool:
            choice = request.body.get("tool_choice")
            chosen = choice["function"]["name"] if isinstance(choice, dict) else tool
            return chosen == tool and request.body["messages"][-1]["role"] == "user" and _has_tools(tool)(request)

        return holds

    for model in ("standard", "override"):
        local.on(of_model(model)).reply(text=PLAIN, model=model)
        local.on(of_model(model, lambda request: "json" in str(request.body.get("response_format")))).reply(
            text=json.dumps(JOKE), model=model
        )
        for tool, arguments in STANDARD_CALLS.items():
            called = (ToolCall(tool, json.dumps(arguments)),)
            local.on(of_model(model, calls(tool))).reply(tool_calls=called, model=model)


def _on(upstream: Upstream, scenario: str, holds: Match = lambda request: True) -> Rule:
    return upstream.on(lambda request: scenario in asked(request)[0] and holds(request))


def _has_tools(name: str) -> Match:
    return lambda request: any(tool.get("function", {}).get("name") == name for tool in request.body.get("tools") or ())
