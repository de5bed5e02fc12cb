"""Match names of models with patterns such as `claude-*`, in which `*` stands for any text, none too.

Of several patterns that match a name, the one with the most other characters counts. Two of equally many that could
match one name are ambiguous.
"""

from __future__ import annotations

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
        place = name.find(part, at, end)
        if place < 0:
            return False
        at = place + len(part)
    return True


def weight(pattern: str) -> int:
    """Return how specific a pattern is: its number of characters that are no star."""
    return len(pattern) - pattern.count(STAR)


def overlap(pattern: str, other: str) -> bool:
    """Return whether some name matches both patterns, of which the first 256 characters are read."""
    pattern, other = pattern[:_MOST_CHARS], other[:_MOST_CHARS]
    # From the end: whether what is left of `pattern` and, by its place, of `other` can match the same text.
    after = [not other[j:].strip(STAR) for j in range(len(other) + 1)]
    for i in reversed(range(len(pattern))):
        here = [not pattern[i:].strip(STAR)] * (len(other) + 1)
        for j in reversed(range(len(other))):
            if STAR in (pattern[i], other[j]):  # it matches nothing, or what the other has next
                here[j] = after[j] or here[j + 1]
            else:
                here[j] = pattern[i] == other[j] and after[j + 1]
        after = here
    return after[0]
