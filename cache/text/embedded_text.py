"""Detect questions that contain a text to work on; every letter of it may matter, so no neighbour may answer them.

`Translate: the dog is in the house`, `how many letters are in having`, `uppercase "hello"`: what the guards treat as
filler is the subject itself here. Signs of it: a quoted part, a colon with something behind it, code, several lines, a
task that works on text, a word about language. It errs on the side of too many: such a question still has the exact
cache.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from typing import Final

from cache.text.reading import LISTS, groups_of, word_set

_SIGNS = re.compile(
    r"""["“”„«»‹›「」『』`{};]       # quotes and code; 5" matches too, at the cost of a miss
    | (?<!\w)['‘](?=\w)           # an opening quote, not an apostrophe
    | :(?!\d)\s*\S                # `French: good morning`; 10:30 is a time
    | \n\s*\S                     # several lines
    | \w\(|=[=>]|[-=]>|::|</|/>   # code
    """,
    re.VERBOSE,
)
_LISTS: Final = LISTS["payload"]
_POLITE: Final = word_set(_LISTS["polite"])
_ASKS_LEAVE: Final = frozenset(groups_of(_LISTS["asks_leave"]))
_TASKS: Final = word_set(_LISTS["tasks"])
_DESCRIBING: Final = word_set(_LISTS["describing"])
_ON_ITS_WORDS: Final = word_set(_LISTS["on_its_words"])
_OF_TEXT: Final = word_set(_LISTS["of_text"])
_PAIRS: Final = frozenset(groups_of(_LISTS["pairs"]))


def carried(question: str, words: Sequence[str], seen: Set[str], pairs: Set[tuple[str, ...]]) -> bool:
    """Return whether a question contains a text to work on.

    `words` are its words in lower case, `seen` their set, `pairs` the pairs of neighbours.
    """
    if not seen.isdisjoint(_OF_TEXT) or not _PAIRS.isdisjoint(pairs) or _SIGNS.search(question):
        return True
    # `Can I add ...` and `if you want to add ...` ask for information; `can you add ...` gives a task.
    if tuple(words[:2]) in _ASKS_LEAVE:
        return False
    at = next((at for at, word in enumerate(words) if word not in _POLITE), None)
    return at is not None and words[at] in _TASKS and not _describes(words[at : at + 2])


def _describes(begin: Sequence[str]) -> bool:
    """Return whether a task's first two words show that it only describes its object."""
    return len(begin) > 1 and begin[0] not in _ON_ITS_WORDS and begin[1] in _DESCRIBING
