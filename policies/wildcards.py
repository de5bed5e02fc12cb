"""Match names of models with patterns such as `claude-*`, in which `*` stands for any text, none too.

Of several patterns that match a name, the one with the most other characters counts. Two of equally many that could
match one name are ambiguous.
"""

from __future__ import annotations

from functools import cache
from typing import Final

STAR: Final = "*"
_MOST_CHARS: Final = 256
"""A request names no longer model."""


def matches(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a whole name. Takes linear time for one star, and little more for several."""
    first, *inner = pattern.split(STAR)
    if not inner:
        return name == pattern
    *middle, last = inner
    at, end = len(first), len(name) - len(last)
    if end < at or not name.startswith(first) or not name.endswith(last):
        return False
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def weight(pattern: str) -> int:
    """Return how specific a pattern is: its number of characters that are no star."""
    return len(pattern) - pattern.count(STAR)


def overlap(one: str, other: str) -> bool:
    """Return whether some name matches both patterns, of which the first 256 characters are read."""
    one, other = one[:_MOST_CHARS], other[:_MOST_CHARS]

    @cache
    def meets(i: int, j: int) -> bool:
        """Return whether what is left of both from these places on can match the same text."""
        if i == len(one) or j == len(other):
            return not (one[i:] + other[j:]).strip(STAR)
        if one[i] == STAR:  # matches nothing, or what the other has next
            return meets(i + 1, j) or meets(i, j + 1)
        if other[j] == STAR:
            return meets(i, j + 1) or meets(i + 1, j)
        return one[i] == other[j] and meets(i + 1, j + 1)

    return meets(0, 0)
