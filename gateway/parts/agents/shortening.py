"""Say what of a conversation's older tool results is sent shorter, by the `input` section of a policy. Pure.

Only texts of results change: no message is added or removed, so each call keeps its result, and whatever a provider
takes before, it takes afterwards. The text that stands for a result depends on the messages before the cut alone, and
the cut moves in blocks of turns: between two of its moves, a longer conversation begins as the shorter one did.

    step           what becomes shorter                                 beyond the last
    tool_results   a result: a line that says so                        `tool_results.keep` turns
    repeats        a result that came before: a line that says so       `keep` turns
    minify         a result that is JSON: without white space           `keep` turns

A result that repeats one which was cut to a stub is itself the first that is left, and is sent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from routing.features import estimated_tokens

if TYPE_CHECKING:
    from gateway.parts.agents.policy import InputRules

STEPS: Final = ("tool_results", "repeats", "minify")
_BLOCK: Final = 4
_LEAST: Final = 400
"""Characters of a result from which it is worth a line in its place."""
_STUB: Final = "[This result of {} characters was left out, as it is old. Call the tool again to see it.]"
_REPEAT: Final = "[The same result as that of an earlier call, which is above.]"
_BETWEEN: Final = re.compile(r'("(?:[^"\\]++|\\.?)*+"?)|[ \t\n\r]++', re.DOTALL)


class ShorterInput(NamedTuple):
    """The new texts of tool results, by the place of their message, and the estimated tokens that each step saves."""

    texts: Mapping[int, str]
    saved: Mapping[str, int]


def shorter_input(messages: Sequence[Mapping[str, Any]], rules: InputRules) -> ShorterInput:
    """Return what of a chat-completions conversation is sent shorter."""
    turns = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
    near = _cut(turns, rules.keep)
    far = 0 if rules.tool_results is None else min(near, _cut(turns, max(rules.keep, rules.tool_results.keep)))
    texts: dict[int, str] = {}
    saved = dict.fromkeys(STEPS, 0.0)
    seen: set[str] = set()
    for i in range(near):
        message = messages[i]
        if message.get("role") != "tool" or (text := text_of_result(message.get("content"))) is None:
            continue
        step, shorter = _shorter(text, seen, rules, old=i < far)
        if len(shorter) < len(text):
            texts[i] = shorter
            saved[step] += estimated_tokens(text) - estimated_tokens(shorter)
    return ShorterInput(texts, {step: round(tokens) for step, tokens in saved.items() if tokens})


def history_span(messages: Sequence[Mapping[str, Any]], keep: int) -> range:
    """Return the places of what a summary may stand for: from behind the user's first message to the cut, at a turn of
    the assistant; none where the system's texts, a call without a result or a result without a call are among it.
    """
    first = next((i for i, message in enumerate(messages) if message.get("role") == "user"), len(messages))
    end = _cut([i for i, message in enumerate(messages) if message.get("role") == "assistant"], keep)
    part = messages[first + 1 : end]
    called = Counter(call.get("id") for message in part for call in message.get("tool_calls") or ())
    given = Counter(message.get("tool_call_id") for message in part if message.get("role") == "tool")
    roles = {message.get("role") for message in part}
    return range(first + 1, end) if called == given and roles <= {"user", "assistant", "tool"} else range(0)


def _cut(turns: Sequence[int], keep: int) -> int:
    """Return the place of the first message that stays as it is; 0 for all."""
    block = max(keep, _BLOCK)
    beyond = (len(turns) - keep) // block * block
    return turns[beyond] if beyond > 0 else 0


def _shorter(text: str, seen: set[str], rules: InputRules, *, old: bool) -> tuple[str, str]:
    if len(text) >= _LEAST:
        if old:
            return "tool_results", _STUB.format(f"{len(text):,}")
        if rules.repeats is not None:
            if text in seen:
                return "repeats", _REPEAT
            seen.add(text)
    return "minify", minified(text) if rules.minify is not None else text


def minified(text: str) -> str:
    """Return a JSON object or array without white space between its tokens; any other text as it is.

    Numbers, repeated keys and escapes stay as they are written.
    """
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return _BETWEEN.sub(lambda match: match[1] or "", text)


def text_of_result(content: object) -> str | None:
    """Return the text of a tool's result; None if it has none, or more than one part that is a text."""
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        part = content[0]
        content = part.get("text") if part.get("type") in ("text", "input_text", "output_text") else None
    return content if isinstance(content, str) else None
