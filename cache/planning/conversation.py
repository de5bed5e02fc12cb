"""Read a conversation from the messages of a request, so that the cache can compare it turn by turn. Pure.

A follow-up (`how long does it take?`) means something only after what was said before it. Two conversations want the
same answer if each of their turns does, so the semantic cache takes the turns apart: what stands around the texts of
user and assistant (system messages, roles, names, the number of turns) must be equal, and goes into the partition; the
texts are compared pair by pair (`cache.semantic.turns`).

What cannot be read like that is compared as a single question is: everything but the last user text must be equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from cache.text.conversation import SEPARATOR, USER, Turn, as_text, assistant_turn, user_turn

_AROUND: Final = frozenset({"system", "developer"})
_MOST_TURNS: Final = 12
_MOST_CHARS: Final = 8_000
"""Longer conversations hardly recur, and reading them would hold the event loop."""
_END: Final = "\0"
"""The index ends a key with it."""


class Conversation(NamedTuple):
    """The turns as one text, the messages without these texts, and the user's turns, a line each, to embed."""

    text: str
    messages: list[Any]
    user_turns: str


def conversation_of(messages: Sequence[Mapping[str, Any]], longest: int, longest_embedded: int) -> Conversation | None:
    """Return the conversation in checked messages; None for a single question, and where it must not be taken apart:

    a message that is not plain text of user, assistant or, before all others, system; a call of a tool; more than 12
    turns or 8,000 characters; a text of more than `longest` characters, or user turns of more than `longest_embedded`.
    """
    begin = next((at for at, message in enumerate(messages) if message.get("role") not in _AROUND), len(messages))
    if not 1 < len(messages) - begin <= _MOST_TURNS or messages[-1].get("role") != "user":
        return None
    turns: list[Turn] = []
    rest: list[Any] = list(messages[:begin])
    chars = 0
    for message in messages[begin:]:
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant") or not isinstance(content, str) or message.get("tool_calls"):
            return None
        chars += len(content)
        if chars > _MOST_CHARS or SEPARATOR in content or _END in content:
            return None
        turns.append(user_turn(content) if role == "user" else assistant_turn(content))
        rest.append({**message, "content": None})
    text = as_text(turns)
    asked = "\n".join(turn.text for turn in turns if turn.speaker == USER)
    if len(text) > longest or len(asked) > longest_embedded:
        return None
    return Conversation(text, rest, asked)
