"""Put what the gateway sets into a body of the Responses API, in that API's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.dialects.native import longer_text, with_changes

_WITHIN: Final[Mapping[str, tuple[str, str]]] = {
    "reasoning_effort": ("reasoning", "effort"),
    "verbosity": ("text", "verbosity"),
}
"""Fields that the Responses API has within another."""
_NOT_ITS_OWN: Final = frozenset({"seed", "logit_bias", "frequency_penalty", "presence_penalty", "prediction"})


def response_with_fields(body: Mapping[str, Any], changes: Mapping[str, Any], instruction: str) -> dict[str, Any]:
    """Return a client's body with fields that chat completions name so, and the instruction."""
    same: dict[str, Any] = {}
    within: list[tuple[tuple[str, str], Any]] = []
    for name, value in changes.items():
        if name in _WITHIN:
            within.append((_WITHIN[name], value))
        elif name not in _NOT_ITS_OWN:
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
        made["instructions"] = longer_text(made.get("instructions"), instruction)
    return made
