"""What a stream has told its client: enough of it to see that it goes round in circles, and to let another go on.

A small model that has lost its way says the same few words until its limit. The client has them by then, so this looks
for a loop that lasts: three looks in a row, 32 tokens apart, at the last 256 tokens. A row of a table, or of zeros, is
over before that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gateway.chat.evidence import says_more_than_text
from routing.confidence.judge import is_loop

_LOOK_EVERY: Final = 32
_TAIL_BLOCKS: Final = 8
_TAIL_CHARACTERS: Final = 2048
_LOOKS: Final = 3
THOUGHTS: Final = ("reasoning_content", "reasoning")
"""The members of a delta in which backends stream what a model thinks before it answers."""


class StreamText:
    """Grows with the chunks of one stream; of several choices the first is kept."""

    __slots__ = ("_blocks", "_looking", "_looks", "_pieces", "_tokens", "more_than_text", "thought")

    def __init__(self, *, looking: bool) -> None:
        """`looking`: whether loops are looked for."""
        self._looking = looking
        self._looks = 0
        self._blocks: list[str] = []
        self._pieces: list[str] = []
        self._tokens = 0
        self.more_than_text = False
        """A tool call, speech or a refusal has begun: no text can be gone on with."""
        self.thought = False
        """The model has been thinking aloud."""

    def add(self, choices: Iterable[Mapping[str, Any]]) -> None:
        """Takes the choices of one chunk, as the client gets it."""
        for choice in choices:
            delta = choice.get("delta")
            if not delta:
                continue
            content = delta.get("content")
            if type(content) is str:
                if content and not choice.get("index"):
                    self._pieces.append(content)
            elif content:
                self.more_than_text = True
            if len(delta) > 1 or content is None:
                self.more_than_text = self.more_than_text or says_more_than_text(delta) or bool(delta.get("refusal"))
                self.thought = self.thought or any(delta.get(name) for name in THOUGHTS)

    @property
    def begun(self) -> bool:
        """Whether there has been a first token, of whatever kind."""
        return bool(self._pieces or self._tokens or self.more_than_text or self.thought)

    @property
    def tokens(self) -> int:
        """The tokens of the text, as the chunks came; at the least one for eight characters, where chunks are large."""
        return max(self._tokens + len(self._pieces), len(self.text) // 8)

    @property
    def text(self) -> str:
        """The whole text so far."""
        return "".join(self._blocks) + "".join(self._pieces)

    def goes_in_circles(self) -> bool:
        """Whether the text is caught in a loop. To be asked after every read: it looks every 32 tokens."""
        if len(self._pieces) < _LOOK_EVERY:
            return False
        self._tokens += len(self._pieces)
        self._blocks.append("".join(self._pieces))
        self._pieces.clear()
        if not self._looking:
            return False
        # A token may end within a word: the last one is left out.
        tail = "".join(self._blocks[-_TAIL_BLOCKS:])[-_TAIL_CHARACTERS:].rpartition(" ")[0]
        self._looks = self._looks + 1 if is_loop(tail) else 0
        return self._looks >= _LOOKS
