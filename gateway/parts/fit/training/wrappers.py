"""Put labelled prompts into the templates of exams, programs and chats, so that kinds are told apart by their task."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from gateway.parts.fit.datasets import without_choices

_FILE: Final = Path(__file__).parent / "wrappers.toml"
_CHOICE = re.compile(r"\n\(?[A-J][.):] ")
_ANSWER = re.compile(r"\n?Answer:\s*$")


def wrapped_prompts(prompt: str, kind: str, each: int, generator: random.Random) -> Iterator[tuple[str, bool]]:
    """Yield the prompt in `each` templates of exams and programs, then in one of a chat; and whether it is the former.

    Templates with choices are left to prompts that have some, or whose kind has made-up ones.
    """
    every = _wrappers()
    question, choices = _parted(prompt)
    exams = every["exams"]
    if not choices and kind not in every["options"]:
        exams = [template for template in exams if "{options}" not in template]
    made_up = choices or generator.choice(every["options"].get(kind, [[]]))
    for template in generator.sample(exams, each):
        form = generator.choice(every["forms"])
        lines = "\n".join(_choice(form, at, choice) for at, choice in enumerate(made_up))
        inside = question if "{options}" in template else prompt
        yield template.replace("{options}", lines).replace("{prompt}", inside), True
    yield generator.choice(every["chats"]).replace("{prompt}", prompt), False


def _choice(form: str, at: int, text: str) -> str:
    return form.replace("{letter}", chr(ord("A") + at)).replace("{text}", text)


def _parted(prompt: str) -> tuple[str, list[str]]:
    """Return the question and its choices; none if it has none."""
    question = without_choices(prompt)
    if question is None:
        return prompt, []
    choices = _CHOICE.split(_ANSWER.sub("", prompt[len(question) :]))[1:]
    return question, [choice.strip() for choice in choices]


@cache
def _wrappers() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
