"""Write a conversation as one text, and take it apart into turns. Pure.

The cache stores, compares and indexes one text per request. For a single question that is the question; for a
conversation whose turns are compared one by one it is this:

    ␞u:Who was Cleopatra?␞a:She was the last ruler of Egypt.␞u:How did she die?

`␞` is ASCII's record separator; a text that contains one is never part of such a conversation. An answer of the
assistant that is longer than 300 characters stands there as its hash (`h:`), so it can only be equal to another or not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

SEPARATOR: Final = "\x1e"
USER: Final = "u"
ASSISTANT: Final = "a"
HASH: Final = "h"
LONG: Final = 200
"""Characters from which a text tells more than it asks."""
_IN_FULL: Final = 300
_DIGEST_BYTES: Final = 16
_SPEAKERS: Final = {USER: "user", ASSISTANT: "assistant", HASH: "assistant"}


class Turn(NamedTuple):
    """One message: `speaker` is USER, ASSISTANT, or HASH for an answer whose `text` is its hash."""

    speaker: str
    text: str


def user_turn(text: str) -> Turn:
    """Return a turn of the user, without surrounding whitespace."""
    return Turn(USER, text.strip())


def assistant_turn(text: str) -> Turn:
    """Return a turn of the assistant, with single spaces; its hash where it is long."""
    plain = " ".join(text.split())
    if len(plain) <= _IN_FULL:
        return Turn(ASSISTANT, plain)
    return Turn(HASH, blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest())


def as_text(turns: Sequence[Turn]) -> str:
    """Return the turns as one text, which `turns_of` reads back. No turn contains SEPARATOR."""
    return "".join(f"{SEPARATOR}{turn.speaker}:{turn.text}" for turn in turns)


@lru_cache(maxsize=2_048)
def turns_of(text: str) -> tuple[Turn, ...]:
    """Return the turns in a text of `as_text`; () for a single question."""
    if not text.startswith(SEPARATOR):
        return ()
    parts = (part.partition(":") for part in text[1:].split(SEPARATOR))
    return tuple(Turn(speaker, rest) for speaker, _, rest in parts)


def last_of(text: str) -> str:
    """Return the last turn's text; a single question is returned unchanged."""
    return text.rpartition(SEPARATOR)[2].partition(":")[2] if text.startswith(SEPARATOR) else text


def readable(text: str) -> str:
    """Return the text for people: a line per turn with who speaks; a single question is returned unchanged."""
    turns = turns_of(text)
    if not turns:
        return text
    return "\n".join(
        f"{_SPEAKERS.get(turn.speaker, '?')}: {'...' if turn.speaker == HASH else turn.text}" for turn in turns
    )


END: Final = re.compile(r"(?<=[。！？；।؟])|(?<=[.!?…])(?<!\b[A-Z]\.)[\"'”’)\]*_]*+\s++(?![a-z])")
"""The end of a sentence, with the space behind it."""
