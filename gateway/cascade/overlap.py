"""Two halves of one answer: a model that goes on with a text often repeats its last words, which are left out here."""

from __future__ import annotations

from typing import Any, Final

from gateway.chat.completions import says_more_than_text

_LONGEST: Final = 80
_LEAST: Final = 12
"""Characters. A shorter repetition is as likely to be meant."""


class Overlap:
    """Hold back the beginning of the second half for as long as it may still turn out to repeat the first.

    That is its end, of which at most 80 characters are looked for, or all of it: some servers send the beginning that
    they were given before what they add (llama.cpp does, though not in streams). As a rule one token is held, for the
    next one seldom fits either. What is dropped is the longest repetition of twelve characters or more, or of nothing
    but white space: a beginning is handed over without the white space at its end, which tokenizers take badly, and the
    model then says that itself.
    """

    __slots__ = ("_before", "_held", "_tail", "open")

    def __init__(self, before: str) -> None:
        self._before = before.rstrip()
        self._tail = before[-_LONGEST:]
        self._held = ""
        self.open = bool(before)

    def feed(self, piece: str) -> str:
        """Take a piece of the second half, and return what may go out now."""
        if not self.open:
            return piece
        self._held += piece
        return "" if self._may_repeat() else self.close()

    def close(self) -> str:
        """Stop looking, and return what was held without what it repeats."""
        held, self._held, self.open = self._held, "", False
        if len(self._before) >= _LEAST and held.startswith(self._before):
            return held[len(self._before) :]
        for length in range(min(len(held), len(self._tail)), 0, -1):
            repeated = held[:length]
            if (length >= _LEAST or repeated.isspace()) and self._tail.endswith(repeated):
                return held[length:]
        return held

    def _may_repeat(self) -> bool:
        """Whether what is held may be the beginning of a repetition, or one that goes on."""
        held = self._held
        if len(held) < len(self._before) and self._before.startswith(held):
            return True
        # It would have to stand in the tail, so far from its end that the rest of the tail is still to come.
        start = self._tail.find(held, 0, -1)
        while start >= 0:
            rest = self._tail[start:]
            if len(rest) >= _LEAST or rest.isspace():
                return True
            start = self._tail.find(held, start + 1, -1)
        return False


def mend(chunk: dict[str, Any], overlap: Overlap) -> bool:
    """Remove from a chunk of the second half its role, thoughts and repetition; return whether anything is left."""
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


_ONLY_FIRST: Final = frozenset(("role", "reasoning_content", "reasoning"))
"""What only the first half of an answer has: its role, and what the model thinks before it answers."""
