"""Continue an answer's text: ask a second backend for the rest, and adapt the rest to the text that the client has.

How a backend gets the beginning depends on its config (`continuation`):
    prefill                 the text is an assistant message at the end, and the model takes it as its own beginning
                            (llama.cpp's server, Anthropic's API)
    continue_final_message  the same, and two fields of vLLM's own request it
    prompt                  the text is an assistant message, and a user message asks for the rest
A model that goes on with a text often repeats its last words: `Overlap` finds them, and `fit_to_text` leaves them out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from gateway.chat.completions import says_more_than_text
from routing.confidence.judge import loop_period

Way = Literal["prefill", "continue_final_message", "prompt"]

GO_ON: Final = (
    "Your answer broke off there. Go on from exactly where it stopped, in the middle of a word if need be. "
    "Write only what comes next: repeat nothing, and say nothing about the interruption."
)
_WORD: Final = re.compile(r"\S+")
_LIMITS: Final = ("max_tokens", "max_completion_tokens")
_LONGEST: Final = 80
_LEAST: Final = 12
"""Shortest repetition in characters that is dropped; a shorter one is as likely to be intended."""
_ONLY_FIRST: Final = frozenset(("role", "reasoning_content", "reasoning"))
"""Members of a delta that only the first half of an answer has: its role and its reasoning."""


def continuing_body(body: Mapping[str, Any], text: str, tokens: int, way: Way) -> dict[str, Any]:
    """Return the body that asks for the rest of an answer of which the client has `text`, this many tokens long."""
    changed = dict(body)
    for name in _LIMITS:
        if type(limit := body.get(name)) is int:
            changed[name] = max(1, limit - tokens)
    if way == "prompt":
        changed["messages"] = [*_with_beginning(body["messages"], text), {"role": "user", "content": GO_ON}]
        return changed
    # White space at the end is refused by some backends (Anthropic), trimmed by chat templates, and tokenised badly.
    changed["messages"] = _with_beginning(body["messages"], text.rstrip())
    if way == "continue_final_message":
        changed |= {"add_generation_prompt": False, "continue_final_message": True}
        # vLLM's grammar would require the first bracket again; llama.cpp feeds the beginning through its grammar.
        changed.pop("response_format", None)
    return changed


def _with_beginning(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return the messages with the beginning of the answer added, joined to one that the client itself began."""
    last = messages[-1]
    if last.get("role") == "assistant" and isinstance(last.get("content"), str):
        return [*messages[:-1], {**last, "content": last["content"] + text}]
    return [*messages, {"role": "assistant", "content": text}]


def without_loop(text: str) -> str:
    """Return a text up to the end of its loop's first round, so that the next model does not continue the loop."""
    matches = list(_WORD.finditer(text))
    words = [match.group() for match in matches]
    for end in (len(words), len(words) - 1):  # the last word may not be whole
        if period := loop_period(words[:end]):
            at = end - period
            while at > 0 and words[at - 1] == words[at - 1 + period]:
                at -= 1
            return text[: matches[at + period - 1].end()]
    return text


class Overlap:
    """Hold back the beginning of the second half while it may repeat the end, or all, of the first.

    The end is the last 80 characters. A whole first half is repeated by servers that send the given beginning before
    their own text (llama.cpp does, though not in streams). Usually one token is held, because the next one seldom fits
    either. The longest repetition of at least twelve characters is dropped, or of only white space: a beginning is sent
    without the white space at its end, which tokenizers handle badly, so the model generates it again.
    """

    __slots__ = ("_before", "_held", "_tail", "open")

    def __init__(self, before: str) -> None:
        self._before = before.rstrip()
        self._tail = before[-_LONGEST:]
        self._held = ""
        self.open = bool(before)

    def feed(self, piece: str) -> str:
        """Add a piece of the second half; return the text that may be sent now."""
        if not self.open:
            return piece
        self._held += piece
        return "" if self._may_repeat() else self.close()

    def close(self) -> str:
        """Stop searching; return the held text without the repetition."""
        held, self._held, self.open = self._held, "", False
        if len(self._before) >= _LEAST and held.startswith(self._before):
            return held[len(self._before) :]
        for length in range(min(len(held), len(self._tail)), 0, -1):
            repeated = held[:length]
            if (length >= _LEAST or repeated.isspace()) and self._tail.endswith(repeated):
                return held[length:]
        return held

    def _may_repeat(self) -> bool:
        """Return whether the held text may be the beginning of a repetition, or a repetition that continues."""
        held = self._held
        if len(held) < len(self._before) and self._before.startswith(held):
            return True
        # It must occur in the tail, early enough that the rest of the tail can still follow.
        start = self._tail.find(held, 0, -1)
        while start >= 0:
            rest = self._tail[start:]
            if len(rest) >= _LEAST or rest.isspace():
                return True
            start = self._tail.find(held, start + 1, -1)
        return False


def fit_to_text(chunk: dict[str, Any], overlap: Overlap) -> bool:
    """Remove role, reasoning and repetition from a chunk of the second half; return whether anything is left."""
    left = False
    for choice in chunk["choices"]:
        delta = choice["delta"] = {
            name: value for name, value in (choice.get("delta") or {}).items() if name not in _ONLY_FIRST
        }
        finish = choice.get("finish_reason")
        if overlap.open:
            content = delta.get("content")
            content_left = overlap.feed(content) if isinstance(content, str) else ""
            if finish or says_more_than_text(delta):
                content_left += overlap.close()
            if content_left or "content" in delta:
                delta["content"] = content_left
        left = left or bool(finish) or any(delta.values())
    return left
