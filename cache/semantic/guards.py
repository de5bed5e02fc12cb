"""May the answer to one question be given to another that is close to it? The guards look for reasons why not.

A cosine does not see what changes an answer: a negated question, another number, another name, `before` for `after`,
`A to B` for `B to A` all stay within 0.95 of each other. So both texts are read (`cache.text.reading`) and compared.
Fail closed: a word that is in one text only, and that is not known to be mere wrapping, is a difference. A policy
switches `negation`, `numbers`, `entities` and `dates`; what is asked, the wording and its order always count.
"""

from __future__ import annotations

from collections.abc import Collection

from cache.text.reading import read

_MAX_CHARS = 2_000
"""A longer question is hardly asked twice in other words, and would make the guards slow."""


def difference(stored: str, asked: str, guards: Collection[str]) -> str | None:
    """Why the answer to `stored` must not be given to `asked`, as the guard's word; None when nothing says so."""
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
