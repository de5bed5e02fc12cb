"""Fit a request of Anthropic's Messages API to its model, by the facts in `models.py`.

What the model would refuse is turned into what it takes, or left out and listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.parts.apis.dialects.messages.models import ClaudeFacts
from gateway.parts.apis.dialects.messages.turns import THINKING_BLOCKS

LEAST_BUDGET: Final = 1024
BUDGETS: Final = {"low": 2048, "medium": 8192, "high": 24_576, "xhigh": 32_768, "max": 49_152}
"""Thinking tokens of each effort, for models that think with a budget."""
EFFORT_OF: Final = {"minimal": "low"}
_LEAST_REPLY: Final = 512
SAMPLING: Final = ("temperature", "top_p", "top_k")
_GO_ON: Final = "Go on."
"""Text of the user after a reply that is to be continued, for models that do not go on with one themselves."""


def fit_to_model(sent: dict[str, Any], facts: ClaudeFacts, dropped: list[str], *, removed: bool) -> None:
    """Change, in place, what the model would refuse; `removed`: whether another backend's thinking was left out."""
    if facts.max_output is not None and sent["max_tokens"] > facts.max_output:
        sent["max_tokens"] = facts.max_output
    _fit_last_turn(sent, facts, dropped)
    _fit_thinking(sent, facts, dropped, removed=removed)
    _fit_output(sent, facts, dropped)
    thinks = _thinks(sent, facts)
    for name in SAMPLING:
        if name not in sent:
            continue
        if not facts.sampling or (thinks and not (name == "top_p" and sent[name] >= 0.95)):
            asks_for_default = name == "temperature" and sent[name] == 1
            del sent[name]
            if not asks_for_default:
                dropped.append(name)
    if facts.max_output is not None and "temperature" in sent and "top_p" in sent and facts.schemas:
        # Models from Claude 4.5 on take one of the two.
        del sent["top_p"]
        dropped.append("top_p")
    if isinstance(heat := sent.get("temperature"), int | float) and heat > 1:
        sent["temperature"] = 1  # the API's range ends at 1, OpenAI's at 2
        dropped.append("temperature")


def _fit_last_turn(sent: dict[str, Any], facts: ClaudeFacts, dropped: list[str]) -> None:
    """Ask for the rest of a reply that the last message begins, where the model does not go on with it by itself."""
    messages = sent["messages"]
    if not facts.prefill and messages and messages[-1]["role"] == "assistant":
        sent["messages"] = [*messages, {"role": "user", "content": _GO_ON}]
        dropped.append(f"messages[{len(messages) - 1}].role")


def _thinks(sent: Mapping[str, Any], facts: ClaudeFacts) -> bool:
    thinking = sent.get("thinking")
    if facts.thinking == "always":
        return True
    return isinstance(thinking, dict) and thinking.get("type") not in (None, "disabled")


def _fit_thinking(sent: dict[str, Any], facts: ClaudeFacts, dropped: list[str], *, removed: bool) -> None:
    thinking = sent.get("thinking")
    if not isinstance(thinking, dict):
        return
    kind = thinking.get("type")
    if kind == "enabled" and facts.thinking in ("adaptive", "always"):
        thinking = {**thinking, "type": "adaptive"}
        thinking.pop("budget_tokens", None)
        dropped.append("thinking.budget_tokens")
    elif kind == "disabled" and facts.thinking == "always":
        thinking = None
        dropped.append("thinking")
    elif kind in ("adaptive", "between_tools") and facts.thinking == "budget":
        effort = (sent.get("output_config") or {}).get("effort")
        thinking = {**thinking, "type": "enabled", "budget_tokens": budget_of(effort)}
    if thinking is not None and thinking.get("type") == "enabled":
        budget = thinking.get("budget_tokens")
        thinking = _with_room(thinking, sent, removed=removed)
        if thinking is None:
            dropped.append("thinking")
        elif thinking.get("budget_tokens") != budget:
            dropped.append("thinking.budget_tokens")
    if thinking is not None and thinking.get("type") != "disabled" and _forces_a_tool(sent):
        thinking = None
        dropped.append("thinking")
    if thinking is None:
        del sent["thinking"]
    else:
        sent["thinking"] = thinking


def _with_room(thinking: dict[str, Any], sent: Mapping[str, Any], *, removed: bool) -> dict[str, Any] | None:
    """Return thinking with a budget that leaves room for a reply; None if the model may not think in this request.

    `removed`: whether thinking of another backend was removed from the messages.
    """
    budget = thinking.get("budget_tokens")
    if isinstance(budget, int) and budget >= sent["max_tokens"]:
        budget = sent["max_tokens"] - _LEAST_REPLY
        if budget < LEAST_BUDGET:
            return None
        thinking = {**thinking, "budget_tokens": budget}
    # A turn that calls tools must begin with the thinking that led to the calls. It does not if another backend made
    # it. Later messages of the turn may lack it as well, unless it was removed.
    turn = _turn_in_progress(sent["messages"])
    for message in turn if removed else turn[-1:]:
        if not _begins_with_thinking(message):
            return None
    return thinking


def _turn_in_progress(messages: list[Any]) -> list[Any]:
    """Return the assistant's messages since the last message of the user that is not a tool's result, latest first."""
    turn = []
    for message in reversed(messages):
        content = message.get("content")
        if message["role"] == "assistant":
            turn.append(message)
        elif isinstance(content, str) or not any(block.get("type") == "tool_result" for block in content or ()):
            break
    return turn


def _begins_with_thinking(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and bool(content) and content[0].get("type") in THINKING_BLOCKS


def _forces_a_tool(sent: Mapping[str, Any]) -> bool:
    choice = sent.get("tool_choice")
    return isinstance(choice, dict) and choice.get("type") in ("any", "tool")


def _fit_output(sent: dict[str, Any], facts: ClaudeFacts, dropped: list[str]) -> None:
    config = sent.get("output_config")
    if isinstance(config, dict):
        effort = config.get("effort")
        if effort is not None and effort not in facts.efforts and facts.max_output is not None:
            config = {name: value for name, value in config.items() if name != "effort"}
            if facts.efforts and effort in ("xhigh", "max"):
                config["effort"] = facts.efforts[-1]
                dropped.append("output_config.effort")
            elif "thinking" not in sent:
                dropped.append("output_config.effort")
        if config.get("format") is not None and not facts.schemas:
            config = {name: value for name, value in config.items() if name != "format"}
            dropped.append("output_config.format")
        if config:
            sent["output_config"] = config
        else:
            del sent["output_config"]
    if not facts.schemas and any(tool.get("strict") for tool in sent.get("tools") or ()):
        sent["tools"] = [{name: tool[name] for name in tool if name != "strict"} for tool in sent["tools"]]
        dropped.append("tools[].strict")


def budget_of(effort: object) -> int:
    """Return the thinking tokens for an effort, those of a medium one for any that is not known."""
    return (
        BUDGETS.get(EFFORT_OF.get(effort, effort), BUDGETS["medium"]) if isinstance(effort, str) else BUDGETS["medium"]
    )
