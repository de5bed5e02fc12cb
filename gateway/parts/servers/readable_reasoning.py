"""Send readable reasoning back under the name by which its server gave it.

Servers of open models call the reasoning of a message `reasoning_content` (DeepSeek, Kimi, GLM, llama.cpp) or
`reasoning` (vLLM, Ollama, Groq), as one text without a signature. Several of them refuse an assistant's message that
calls tools and lacks it. Where it was never given, as in a turn of another model, such a server takes any text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.dialects.reasoning import DETAILS, joined_details

NAMES: Final = ("reasoning_content", "reasoning")
"""What servers call readable reasoning."""
_NOT_GIVEN: Final = " "
"""Stands for reasoning that was never given: servers that ask for it take an empty text as none."""
_ASKED_FOR: Final = re.compile(r"\b(reasoning_content|reasoning)\b")
_IS_MISSING: Final = re.compile(
    r"must be (passed|sent|provided|included)|\bis missing\b|\bmissing\b|\bis required\b", re.I
)
_READABLE: Final = frozenset({"reasoning.text", "reasoning.summary"})


def name_of_reasoning(holder: Mapping[str, Any]) -> str:
    """Return the name of the readable reasoning in a message or delta; '' if it has none."""
    for name in NAMES:
        if (text := holder.get(name)) and isinstance(text, str):
            return name
    return ""


def name_asked_for(refusal: Mapping[str, Any]) -> str:
    """Return the name of the reasoning that an error object says is missing; '' if it says nothing of the kind."""
    message = refusal.get("message")
    if not isinstance(message, str) or not _IS_MISSING.search(message):
        return ""
    match = _ASKED_FOR.search(message)
    return match[1] if match else ""


class ReasoningName:
    """Know how one server calls readable reasoning, as its replies and its refusals tell.

    A server whose replies have `reasoning_details` wants these back, and has no name here.
    """

    __slots__ = ("_needed", "name")

    def __init__(self) -> None:
        self.name = ""
        """Empty as long as it is not known."""
        self._needed = False

    def see(self, holder: Mapping[str, Any]) -> None:
        """Learn the name from a message or delta of the server's."""
        if not self.name and not holder.get(DETAILS):
            self.name = name_of_reasoning(holder)

    def learn(self, refusal: Mapping[str, Any]) -> bool:
        """Return whether an error object says, for the first time, that calls without reasoning are refused."""
        if self._needed or not (name := name_asked_for(refusal)):
            return False
        self.name, self._needed = name, True
        return True

    def sent(self, messages: Sequence[Any]) -> Sequence[Any]:
        """Return the messages with their readable reasoning under the server's name.

        For a server that refuses calls of tools without reasoning, those get a line of text in its place.
        """
        made = under_name(messages, self.name) or messages
        return (with_any_reasoning(made, self.name) if self._needed else None) or made


def under_name(messages: Sequence[Mapping[str, Any]], name: str) -> list[Any] | None:
    """Return the messages with their readable reasoning under one name; None if all are so already.

    Reasoning that is signed or encrypted stays where it is, with all that its message has.
    """
    changed: dict[int, Any] = {}
    for at, message in enumerate(messages):
        if message.get("role") != "assistant" or message.get(name):
            continue
        if details := message.get(DETAILS):
            if (text := _readable(details)) is not None:
                changed[at] = {**{key: message[key] for key in message if key != DETAILS}, name: text}
        elif other := name_of_reasoning(message):
            changed[at] = {**{key: message[key] for key in message if key != other}, name: message[other]}
    return [changed.get(at, message) for at, message in enumerate(messages)] if changed else None


def _readable(details: Any) -> str | None:
    """Return the text of details that are readable, and nothing more; None for all others."""
    joined = joined_details(details) if isinstance(details, list) else []
    if not joined or any(part.get("type") not in _READABLE or part.get("signature") for part in joined):
        return None
    return "".join(str(part.get("text") or part.get("summary") or "") for part in joined) or None


def with_any_reasoning(messages: Sequence[Mapping[str, Any]], name: str) -> list[Any] | None:
    """Return the messages with a text under this name in each that calls tools; None if none lacks it."""
    lacking = [at for at, message in enumerate(messages) if message.get("tool_calls") and not message.get(name)]
    if not lacking:
        return None
    made: list[Any] = list(messages)
    for at in lacking:
        made[at] = {**messages[at], name: _NOT_GIVEN}
    return made
