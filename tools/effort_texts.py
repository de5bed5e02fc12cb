"""Read the prompts of `effort/`, written for this project: does a request ask for much work (hard) or little (trivial)?

effort/prompts/LANGUAGE[_more].toml   `[hard]` and `[trivial]`: by kind, a list of prompts
effort/frames.toml                    what people put around a request, by language
effort/lexicon.toml                   words that ask for much or little, by language
effort/second.txt                     the second labels: a letter for each prompt, in the order of `read_prompts`
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.parts.fit.datasets import DataError

FOLDER: Final = Path(__file__).with_name("effort")
LEFT_OUT: Final = ("ko", "nl", "tr")
"""Languages that are left out as a whole for figures: what the head does for others, of which it knows words alone."""


@dataclass(frozen=True, slots=True)
class EffortPrompt:
    """A prompt, its language, its kind and what the kind says of it."""

    text: str
    language: str
    kind: str
    is_hard: bool


@dataclass(frozen=True, slots=True)
class Frames:
    """What people put around a request in one language: texts with `{}`, seen in training or `held_out`.

    `words` are those that count for nothing.
    """

    fitted: tuple[str, ...]
    held_out: tuple[str, ...]
    words: frozenset[str]


def read_prompts(folder: Path = FOLDER) -> list[EffortPrompt]:
    """Return the prompts of all files, by file, label and kind. Raises DataError."""
    prompts = list[EffortPrompt]()
    for path in sorted((folder / "prompts").glob("*.toml")):
        language = path.stem.partition("_")[0]
        try:
            read = tomllib.loads(path.read_text("utf-8"))
            for label, is_hard in (("hard", True), ("trivial", False)):
                for kind, texts in read[label].items():
                    prompts += [EffortPrompt(text, language, kind, is_hard) for text in texts]
        except (OSError, tomllib.TOMLDecodeError, KeyError, AttributeError) as error:
            raise DataError(f"{path}: {error!r}") from None
    return prompts


def read_second(folder: Path = FOLDER) -> list[bool]:
    """Return whether each prompt of `read_prompts` is hard by its second label. Raises DataError."""
    path = folder / "second.txt"
    try:
        letters = "".join(path.read_text("utf-8").split())
    except OSError as error:
        raise DataError(f"{path}: {error!r}") from None
    count = len(read_prompts(folder))
    if len(letters) != count or not set(letters) <= {"h", "t"}:
        raise DataError(f"{path}: {len(letters)} letters, each h or t, for {count} prompts")
    return [letter == "h" for letter in letters]


def read_frames(folder: Path = FOLDER) -> dict[str, Frames]:
    """Return the frames by language. Raises DataError."""
    path = folder / "frames.toml"
    try:
        read = tomllib.loads(path.read_text("utf-8"))
        return {
            language: Frames(tuple(own["fitted"]), tuple(own["held_out"]), frozenset(own["words"].split()))
            for language, own in read.items()
        }
    except (OSError, tomllib.TOMLDecodeError, KeyError, AttributeError) as error:
        raise DataError(f"{path}: {error!r}") from None


def read_lexicon(folder: Path = FOLDER) -> Iterator[EffortPrompt]:
    """Yield each word of the lexicon as a prompt of the kind `lexicon`. Raises DataError."""
    path = folder / "lexicon.toml"
    try:
        for language, own in tomllib.loads(path.read_text("utf-8")).items():
            for label in ("hard", "trivial"):
                for word in own[label].split():
                    yield EffortPrompt(word, language, "lexicon", label == "hard")
    except (OSError, tomllib.TOMLDecodeError, KeyError, AttributeError) as error:
        raise DataError(f"{path}: {error!r}") from None
