"""The seam between two halves of one answer: a model that goes on with a text often says its last words once more."""

from __future__ import annotations

from typing import Any, Final

from gateway.chat.evidence import says_more_than_text
from gateway.chat.stream_text import THOUGHTS

_LONGEST: Final = 80
_LEAST: Final = 12
"""Characters. A shorter repetition is as likely to be meant."""


class Overlap:
    """Holds back the beginning of the second half for as long as it may still turn out to repeat the first.

    That is its end, of which at most 80 characters are looked for, or all of it: some servers send the beginning that
    they were given before what they add (llama.cpp does, though not in streams). As a rule one token is held, for the
    next one seldom fits either. What is dropped is the longest repetition of twelve characters or more, or of nothing
    but white space: a beginning is handed over without the white space at its end, which tokenizers take badly, and the
    model then says that itself.
    """

    __slots__ = ("_held", "_said", "_tail", "open")

    def __init__(self, said: str) -> None:
        self._said = said.rstrip()
        self._tail = said[-_LONGEST:]
        self._held = ""
        self.open = bool(said)

    def feed(self, piece: str) -> str:
        """What may go out, now that this piece has come."""
        if not self.open:
            return piece
        self._held += piece
        return "" if self._may_repeat() else self.close()

    def close(self) -> str:
        """What was held, without what it repeats: nothing follows that could make it longer."""
        held, self._held, self.open = self._held, "", False
        if len(self._said) >= _LEAST and held.startswith(self._said):
            return held[len(self._said) :]
        for length in range(min(len(held), len(self._tail)), 0, -1):
            repeated = held[:length]
            if (length >= _LEAST or repeated.isspace()) and self._tail.endswith(repeated):
                return held[length:]
        return held

    def _may_repeat(self) -> bool:
        """Whether what is held may be the beginning of a repetition, or one that goes on."""
        held = self._held
        if len(held) < len(self._said) and self._said.startswith(held):
            return True
        # It would have to stand in the tail, so far from its end that the rest of the tail is still to come.
        start = self._tail.find(held, 0, -1)
        while start >= 0:
            rest = self._tail[start:]
            if len(rest) >= _LEAST or rest.isspace():
                return True
            start = self._tail.find(held, start + 1, -1)
        return False


def mend(chunk: dict[str, Any], seam: Overlap) -> bool:
    """Fits a chunk of the second half into the stream: no role, no thoughts, no repetition. False: nothing is left."""
    left = False
    for choice in chunk["choices"]:
        delta = choice["delta"] = {
            name: value for name, value in (choice.get("delta") or {}).items() if name not in _ONLY_FIRST
        }
        finish = choice.get("finish_reason")
        if seam.open:
            content = delta.get("content")
            told = seam.feed(content) if isinstance(content, str) else ""
            if finish or says_more_than_text(delta):
                told += seam.close()
            if told or "content" in delta:
                delta["content"] = told
        left = left or bool(finish) or any(delta.values())
    return left


_ONLY_FIRST: Final = frozenset(("role", *THOUGHTS))
