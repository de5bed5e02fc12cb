"""Look for reasons against serving the answer to one question for a similar one.

A cosine does not show what changes an answer: a negation, another number, another name, `before` for `after`, `A to B`
for `B to A` all stay within 0.95 of each other. So both texts are parsed (`cache.text.reading`) and compared. Fail
closed: a word in only one of the texts counts as a difference unless it is known to be a filler. A policy can switch
`negation`, `numbers`, `entities` and `dates`; question words, the wording and its order are always compared.
"""

from __future__ import annotations

from collections.abc import Collection

from cache.text.reading import read

_MAX_CHARS = 2_000
"""Maximum characters: longer questions hardly recur in other words, and would make the guards slow."""


def difference(stored: str, asked: str, guards: Collection[str]) -> str | None:
    """Return the name of the guard that forbids serving `stored`'s answer for `asked`; None if none does."""
    if stored == asked:
        return None
    if len(stored) > _MAX_CHARS or len(asked) > _MAX_CHARS:
        return "length"
    a, b = read(stored), read(asked)
    if not a.content or not b.content:
        return "wording"
    if "numbers" in guards and a.numbers != b.numbers:
        return "numbers"
    if "negation" in guards and (a.negations != b.negations or a.poles != b.poles):
        return "negation"
    if "entities" in guards and not (a.names <= b.stems and b.names <= a.stems):
        return "entities"
    if "dates" in guards and a.times != b.times:
        return "dates"
    if a.asked != b.asked:
        return "asked"
    if a.content != b.content:
        return "order" if a.stems == b.stems else "wording"
    return None
