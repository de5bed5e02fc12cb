"""Put what the gateway sets into a request's bodies: the chat-completions body, and the client's own form beside it.

A backend of the client's dialect is sent the client's own body (`gateway.dialects.native`), so a field that is set is
written there in that API's words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from gateway.dialects.messages.fit import EFFORT_OF, LEAST_BUDGET, budget_of
from gateway.dialects.messages.models import facts_of_model
from gateway.dialects.native import Native
from policies.fields import REASONING

_SYSTEM: Final = frozenset({"system", "developer"})
_IN_RESPONSES: Final[Mapping[str, tuple[str, str]]] = {
    "reasoning_effort": ("reasoning", "effort"),
    "verbosity": ("text", "verbosity"),
}
"""Fields that the Responses API has within another."""
_NOT_IN_RESPONSES: Final = frozenset({"seed", "logit_bias", "frequency_penalty", "presence_penalty", "prediction"})
_IN_MESSAGES: Final = frozenset(
    {
        "temperature", "top_p", "top_k", "thinking", "output_config", "metadata", "speed", "inference_geo",
        "cache_control", "context_management",
    }
)  # fmt: skip
"""Fields of the Messages API that are set under their own name."""
_SERVICE_TIERS: Final = {"auto": "auto", "standard_only": "standard_only", "default": "standard_only"}
_SEPARATOR: Final = "\n\n"


def given_in(native: Native | None) -> frozenset[str]:
    """Return the fields that the client's own form gives and its translation does not, as chat completions name them.

    Adaptive thinking leaves the effort open; thinking that is switched off or has a budget does not.
    """
    if native is None or native.dialect != "messages":
        return frozenset()
    thinking, config = native.body.get("thinking"), native.body.get("output_config")
    if isinstance(config, Mapping) and config.get("effort") is not None:
        return REASONING
    kind = thinking.get("type") if isinstance(thinking, Mapping) else None
    if kind is None:
        return frozenset()
    return REASONING - {"reasoning_effort"} if kind == "adaptive" else REASONING


def with_changes(body: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with these fields; those that are None are left out."""
    return {name: value for name, value in {**body, **changes}.items() if value is not None or name not in changes}


def native_with(native: Native, changes: Mapping[str, Any], instruction: str, model: str) -> Native:
    """Return the client's own form, for a backend of its dialect, with fields that chat completions name so."""
    if native.dialect == "messages":
        return replace(native, body=_messages(native.body, changes, instruction, model))
    return replace(native, body=_responses(native.body, changes, instruction))


def instructed(
    body: Mapping[str, Any], native: Native | None, instruction: str
) -> tuple[Mapping[str, Any], Native | None]:
    """Return a chat-completions body with the instruction at the end of its system text, and its other form.

    Where there is none, a system message is put in front, and the other form's `paths` begin with one for it.
    """
    messages = list(body["messages"])
    for i, message in enumerate(messages):
        if message.get("role") in _SYSTEM:
            messages[i] = {**message, "content": _longer(message.get("content"), instruction)}
            return {**body, "messages": messages}, native
    changed = {**body, "messages": [{"role": "system", "content": instruction}, *messages]}
    if native is None:
        return changed, None
    origin: Any = -1 if native.dialect == "messages" else ("instructions", "")
    return changed, replace(native, paths=(origin, *native.paths))


def _longer(content: Any, instruction: str) -> Any:
    if isinstance(content, list):
        return [*content, {"type": "text", "text": instruction}]
    return f"{content}{_SEPARATOR}{instruction}" if content else instruction


def _responses(body: Mapping[str, Any], changes: Mapping[str, Any], instruction: str) -> dict[str, Any]:
    same: dict[str, Any] = {}
    within: list[tuple[tuple[str, str], Any]] = []
    for name, value in changes.items():
        if name in _IN_RESPONSES:
            within.append((_IN_RESPONSES[name], value))
        elif name not in _NOT_IN_RESPONSES:
            same[name] = value
    if same.get("reasoning", "") is None and isinstance(own := body.get("reasoning"), Mapping):
        same["reasoning"] = {name: value for name, value in own.items() if name != "effort"}  # its summary stays
    made = with_changes(body, same)
    for (outer, inner), value in within:
        members = {**(made.get(outer) or {}), inner: value}
        made[outer] = {name: member for name, member in members.items() if member is not None}
        if not made[outer]:
            del made[outer]
    if instruction:
        made["instructions"] = _longer(made.get("instructions"), instruction)
    return made


def _messages(body: Mapping[str, Any], changes: Mapping[str, Any], instruction: str, model: str) -> dict[str, Any]:
    made = with_changes(body, {name: value for name, value in changes.items() if name in _IN_MESSAGES})
    if (tier := changes.get("service_tier", "")) is None:
        made.pop("service_tier", None)
    elif tier in _SERVICE_TIERS:
        made["service_tier"] = _SERVICE_TIERS[tier]
    reasoning = changes.get("reasoning")
    effort, budget = changes.get("reasoning_effort"), None
    if isinstance(reasoning, Mapping):
        effort, budget = reasoning.get("effort", effort), reasoning.get("max_tokens")
    if effort is not None or budget is not None:
        _think(made, effort, budget, model)
    elif "reasoning_effort" in changes and (config := made.get("output_config")):
        made["output_config"] = {name: value for name, value in config.items() if name != "effort"}
    if instruction:
        made["system"] = _longer(made.get("system"), instruction)
    return made


def _think(made: dict[str, Any], effort: Any, budget: Any, model: str) -> None:
    """Set `thinking` and `output_config.effort` of a Messages body, in place, as the model takes them."""
    facts, own = facts_of_model(model), made.get("thinking")
    shown = {"display": own["display"]} if isinstance(own, Mapping) and "display" in own else {}
    if effort == "none":
        made["thinking"] = {"type": "disabled"}
    elif facts.thinking == "budget":
        wanted = max(budget, LEAST_BUDGET) if isinstance(budget, int) else budget_of(effort)
        made["thinking"] = {"type": "enabled", "budget_tokens": wanted, **shown}
    else:
        made["thinking"] = {"type": "adaptive", **shown}
    if facts.efforts and isinstance(effort, str) and effort != "none":
        made["output_config"] = {**(made.get("output_config") or {}), "effort": EFFORT_OF.get(effort, effort)}
