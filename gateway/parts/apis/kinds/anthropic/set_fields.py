"""Put what the gateway sets into a body of the Messages API, in that API's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.dialects.native import longer_text, with_changes
from gateway.parts.apis.dialects.messages.fit import EFFORT_OF, LEAST_BUDGET, budget_of
from gateway.parts.apis.dialects.messages.models import facts_of_model

_SAME: Final = frozenset(
    {
        "temperature", "top_p", "top_k", "thinking", "output_config", "metadata", "speed", "inference_geo",
        "cache_control", "context_management",
    }
)  # fmt: skip
"""Fields of the Messages API that are set under their own name."""
_SERVICE_TIERS: Final = {"auto": "auto", "standard_only": "standard_only", "default": "standard_only"}


def message_with_fields(
    body: Mapping[str, Any], changes: Mapping[str, Any], instruction: str, model: str
) -> dict[str, Any]:
    """Return a client's body with fields as the model takes them, and the instruction.

    `changes` has them under the names that chat completions give them.
    """
    made = with_changes(body, {name: value for name, value in changes.items() if name in _SAME})
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
        made["system"] = longer_text(made.get("system"), instruction)
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
