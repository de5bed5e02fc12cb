"""What can be counted in a request: the cheap inputs of the difficulty classifier, beside its words and its vector."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from routing.features import Features
from routing.lexicon import Reading

COUNTS: Final = (
    "log_chars",
    "log_words",
    "log_lines",
    "log_questions",
    "log_choices",
    "share_digits",
    "share_mathematics",
    "share_brackets",
    "share_capitals",
    "share_non_ascii",
    "code",
    "log_question_chars",
    "log_choice_chars",
    "log_choice_spread",
    "share_choices_with_digits",
    "mean_word_chars",
    "share_distinct_words",
    "log_context_tokens",
    "log_turns",
    "tools",
    "json",
)
"""What `counts_of` counts, in order; part of the artefact's format. Logs are of 1 + the count."""

_CHOICE = re.compile(r"\n\(?[A-J][.):] ([^\n]*)")
_DIGIT = re.compile(r"\d")
# Plain substrings: looking for eight of them takes a tenth of the time of one expression that means the same.
_CODE = ("```", "#include", "def ", "import ", "function ", "return ", "SELECT ", "public static ")
_CHARS_PER_TOKEN = 4


def _byte_classes() -> NDArray[np.intp]:
    classes = np.zeros(256, np.intp)
    classes[128:] = 1
    members = (
        b" \t",
        b"\n",
        b"?",
        b"0123456789",
        b"=+*/^<>%$\\|",
        b"{}[]();_`#",
        bytes(range(ord("A"), ord("Z") + 1)),
    )
    for index, some in enumerate(members, start=2):
        classes[list(some)] = index
    return classes


_CLASS_OF_BYTE = _byte_classes()


def counts_of(features: Features, reading: Reading) -> NDArray[np.float32]:
    """The counts in the order of COUNTS, shape (len(COUNTS),), of a request whose bounded text reads so."""
    text, words = reading.text, reading.words
    data = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
    _, non_ascii, spaces, lines, questions, digits, maths, brackets, capitals = np.bincount(
        _CLASS_OF_BYTE[data], minlength=9
    ).tolist()
    size = max(len(data), 1)
    choices, mean, spread, with_digits = _choices_in(text[reading.choices_at :])
    context = max(0, features.approx_tokens - len(features.text) // _CHARS_PER_TOKEN - 4)
    logs = np.log1p(
        [
            len(features.text),
            spaces + lines,
            lines,
            questions,
            choices,
            reading.choices_at,
            mean,
            spread,
            context,
            features.turns,
        ]
    )
    shares = [digits / size, maths / size, brackets / size, capitals / size, non_ascii / size]
    said = max(len(words), 1)
    style = [sum(map(len, words)) / said, len(set(words)) / said]
    code = any(mark in text for mark in _CODE)
    flags = [features.has_tools, features.wants_json]
    return np.array([*logs[:5], *shares, code, *logs[5:8], with_digits, *style, *logs[8:], *flags], np.float32)


def _choices_in(text: str) -> tuple[int, float, float, float]:
    """How many choices, their mean length and its deviation, and the share of them that have a digit."""
    choices = _CHOICE.findall(text)
    if not choices:
        return 0, 0.0, 0.0, 0.0
    lengths = list(map(len, choices))
    mean = sum(lengths) / len(lengths)
    spread = (sum((length - mean) ** 2 for length in lengths) / len(lengths)) ** 0.5
    digits = sum(_DIGIT.search(choice) is not None for choice in choices)
    return len(choices), mean, spread, digits / len(choices)
