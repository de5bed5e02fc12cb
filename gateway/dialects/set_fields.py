"""Put what the gateway sets into a request's bodies: the chat-completions body, and the client's own form beside it.

A backend of the client's dialect is sent the client's own body (`gateway.dialects.native`), so a field that is set is
written there in that API's words, by its kind (`BackendConfig.with_fields`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from gateway.dialects.native import Native

_SYSTEM: Final = frozenset({"system", "developer"})
_SEPARATOR: Final = "\n\n"


def with_changes(body: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with these fields; those that are None are left out."""
    return {name: value for name, value in {**body, **changes}.items() if value is not None or name not in changes}


def instructed(
    body: Mapping[str, Any], native: Native | None, instruction: str
) -> tuple[Mapping[str, Any], Native | None]:
    """Return a chat-completions body with the instruction at the end of its system text, and its other form.

    Where there is none, a system message is put in front, and the other form's `paths` begin with one for it.
    """
    messages = list(body["messages"])
    for i, message in enumerate(messages):
        if message.get("role") in _SYSTEM:
            messages[i] = {**message, "content": longer_text(message.get("content"), instruction)}
            return {**body, "messages": messages}, native
    changed = {**body, "messages": [{"role": "system", "content": instruction}, *messages]}
    if native is None:
        return changed, None
    return changed, replace(native, paths=(native.front, *native.paths))


def longer_text(content: Any, instruction: str) -> Any:
    """Return the content of a message with the instruction at its end."""
    if isinstance(content, list):
        return [*content, {"type": "text", "text": instruction}]
    return f"{content}{_SEPARATOR}{instruction}" if content else instruction
