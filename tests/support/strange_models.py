"""Models whose difficulty differs from anything shipped: it depends on made-up words that no encoder was trained on.

Every word of the language has a hardness of its own. The small model is right where the words of a prompt are easy on
average, the strong one nearly always; both by chance, drawn once for each prompt.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from zlib import crc32

import numpy as np

_ONSETS = [
    "b",
    "br",
    "c",
    "d",
    "dr",
    "f",
    "fl",
    "g",
    "gl",
    "h",
    "j",
    "k",
    "kr",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "qu",
    "r",
    "s",
    "sk",
    "sn",
    "t",
    "tr",
    "v",
    "vr",
    "w",
    "z",
    "zw",
]
_VOWELS = ["a", "e", "i", "o", "u", "oo", "ai", "ou"]
_CODAS = ["b", "d", "f", "g", "k", "l", "m", "n", "nd", "p", "r", "rk", "sh", "st", "t", "v", "x", "zz"]
RIGHT, WRONG = "The answer is right.", "The answer is wrong."


@dataclass(frozen=True)
class Language:
    """`words` and the hardness of each, in standard deviations."""

    words: tuple[str, ...]
    hardness: dict[str, float]

    @classmethod
    def made(cls, seed: int, words: int = 150) -> Language:
        """A language of so many words."""
        chance = random.Random(seed)
        made: set[str] = set()
        while len(made) < words:
            made.add("".join(chance.choice(_ONSETS) + chance.choice(_VOWELS) for _ in range(2)) + chance.choice(_CODAS))
        some = tuple(sorted(made))
        return cls(some, {word: chance.gauss(0, 1) for word in some})

    def prompt(self, chance: random.Random) -> str:
        """A question of 6 to 12 words."""
        return " ".join(chance.choice(self.words) for _ in range(chance.randint(6, 12))) + "?"

    def p_right(self, prompt: str) -> tuple[float, float]:
        """The probability that the small and that the strong model is right."""
        known = [self.hardness[word] for word in prompt.rstrip("?").split() if word in self.hardness]
        hard = sum(known) / max(1, len(known)) ** 0.5
        return float(1 / (1 + np.exp(3 * hard))), float(1 / (1 + np.exp(hard - 4)))

    def is_right(self, prompt: str, model: int) -> bool:
        """Whether the small (0) or the strong (1) model is right on this prompt: always the same."""
        return crc32(f"{model} {prompt}".encode()) / 2**32 < self.p_right(prompt)[model]
