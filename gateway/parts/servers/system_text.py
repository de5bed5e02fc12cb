"""Bring the system's texts into the form that a server's chat template knows, and leave out what is no part of them.

Most chat templates of open models know one system message, at the beginning: they drop `developer` and later `system`
messages in silence, or refuse the request. For such a server the texts before the first turn become one system message.
A later one stays where it is, as a marked text of a turn of the user or of a tool's result: moved to the front it would
hold for what was said before it, and each new one would change the beginning that the server has cached. It goes to the
end of such a turn before it, else to the start of the user's turn after it, else into a turn of its own, so that turns
still alternate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

SYSTEM: Final = ("system", "developer")
"""Roles of the system's messages."""
_BEFORE: Final = ("user", "tool")
MARKED: Final = "<system>\n{}\n</system>"
"""How a text of the system stands in a turn of the user."""
_PLAIN_PART: Final = frozenset({"type", "text"})


def with_one_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]] | None:
    """Return messages with one system message at most, at the beginning; None if they are such already."""
    roles = [message.get("role") for message in messages]
    if "developer" not in roles and "system" not in roles[1:]:
        return None
    first = next((i for i, role in enumerate(roles) if role not in SYSTEM), len(roles))
    made: list[Mapping[str, Any]] = []
    if first:
        contents = [message.get("content") for message in messages[:first]]
        made.append({"role": "system", "content": _joined(contents)})
    waiting: list[Any] = []
    for message in messages[first:]:
        if message.get("role") in SYSTEM:
            text = _marked(message.get("content"))
            if made and not waiting and made[-1]["role"] in _BEFORE:
                made[-1] = {**made[-1], "content": _joined([made[-1].get("content"), text])}
            else:
                waiting.append(text)
            continue
        joins = waiting and message.get("role") == "user"
        if waiting and not joins:
            made.append({"role": "user", "content": _joined(waiting)})
        made.append({**message, "content": _joined([*waiting, message.get("content")])} if joins else message)
        waiting = []
    if waiting:
        made.append({"role": "user", "content": _joined(waiting)})
    return made


def names_of_systems(messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the paths of names of the system's messages, which have no place in one message or a marked text."""
    return tuple(
        f"messages[{i}].name"
        for i, message in enumerate(messages)
        if message.get("role") in SYSTEM and message.get("name")
    )


def _marked(content: Any) -> Any:
    text = _joined([content])
    return MARKED.format(text) if isinstance(text, str) else text


def _joined(contents: Sequence[Any]) -> Any:
    """Return several contents of messages as one: a text if all are plain texts, else a list of parts."""
    parts: list[Any] = []
    for content in contents:
        if isinstance(content, list):
            parts += content
        elif content:
            parts.append({"type": "text", "text": content})
    if all(isinstance(part, dict) and part.keys() == _PLAIN_PART and isinstance(part["text"], str) for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts
