"""Join a reply's content that comes as a list of parts to one text: clients and the gateway itself expect a text.

Mistral's thinking models answer so: parts of type `thinking`, whose texts are the reasoning, and of type `text`.
"""

from __future__ import annotations

from typing import Any, Final

_REASONING: Final = "reasoning_content"


def join_parts(holder: dict[str, Any]) -> bool:
    """Join the content of a message or delta in place; return whether it was a list of parts with texts alone.

    A list with any other part stays, so that nothing of an answer is lost.
    """
    said: list[str] = []
    thought: list[str] = []
    for part in holder["content"]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            said.append(part["text"])
        elif kind == "thinking":
            thought.append(_text_of(part.get("thinking")))
        else:
            return False
    holder["content"] = "".join(said)
    if thought and not holder.get(_REASONING):
        holder[_REASONING] = "".join(thought)
    return True


def _text_of(parts: Any) -> str:
    if isinstance(parts, str):
        return parts
    listed = parts if isinstance(parts, list) else ()
    return "".join(str(part.get("text") or "") for part in listed if isinstance(part, dict))
