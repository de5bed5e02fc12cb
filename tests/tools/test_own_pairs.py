"""The pairs of tools/pairs: they parse, are balanced, and occur neither twice nor in what is trained on."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from gateway.parts.encoders.languages import lexicons
from gateway.parts.fit.datasets import LabelledPair, Messages, read_pairs

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tools" / "pairs"
HALVES = ("dev-rephrasings", "dev-vetoes", "held-out-rephrasings", "dev-conversations", "held-out-conversations")
FILES = (*HALVES, "dev-languages")
SHORT = 20
"""A shorter text, such as "How old is it?", may occur anywhere."""


@cache
def pairs_of(name: str) -> list[LabelledPair]:
    return read_pairs(FOLDER / f"{name}.jsonl")


def texts(messages: Messages) -> list[str]:
    if isinstance(messages, str):
        return [messages.casefold()]
    return [str(message["content"]).casefold() for message in messages]


@pytest.mark.parametrize("name", HALVES)
def test_one_half_is_the_same_and_each_group_is_of_one_kind(name: str) -> None:
    pairs = pairs_of(name)
    assert 2 * sum(pair.same_answer for pair in pairs) == len(pairs) >= (80 if "conversations" in name else 240)
    labels = {(pair.group, pair.same_answer) for pair in pairs}
    assert len(labels) == len({group for group, _ in labels})
    assert {pair.dataset for pair in pairs} == {name}


@pytest.mark.parametrize("name", [*FILES, "dev-lost"])
def test_ids_are_unique_and_no_pair_is_one_text_twice(name: str) -> None:
    ids = [json.loads(line)["id"] for line in (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()]
    assert len(set(ids)) == len(ids)
    assert all(texts(pair.a) != texts(pair.b) for pair in pairs_of(name))


@pytest.mark.parametrize("name", [name for name in FILES if "conversations" in name])
def test_a_conversation_ends_with_the_user(name: str) -> None:
    for pair in pairs_of(name):
        for messages in (pair.a, pair.b):
            roles = [message["role"] for message in messages if not isinstance(message, str)]
            assert roles in (["user", "assistant", "user"], ["user", "assistant", "user", "assistant", "user"])


def test_the_pairs_in_other_languages_have_the_same_groups_in_each() -> None:
    """Each kind of pair is in every language, and is of one label."""
    pairs = pairs_of("dev-languages")
    kinds: dict[str, set[tuple[str, bool]]] = {}
    for pair in pairs:
        language, _, kind = str(pair.group).partition(" ")
        kinds.setdefault(language, set()).add((kind, pair.same_answer))
    assert set(kinds) == set(lexicons())
    (shared,) = {frozenset(own) for own in kinds.values()}
    assert len(shared) == len(dict(shared)) == 8


def test_no_question_occurs_in_two_pairs() -> None:
    dialogues = [name for name in FILES if "conversations" in name]
    singles = [
        text
        for name in FILES
        if name not in dialogues
        for pair in pairs_of(name)
        for side in (pair.a, pair.b)
        if isinstance(side, str)
        for text in texts(side)
    ]
    assert [text for text, count in Counter(singles).items() if count > 1] == []
    whole = ["\n".join(texts(side)) for name in dialogues for pair in pairs_of(name) for side in (pair.a, pair.b)]
    assert [text for text, count in Counter(whole).items() if count > 1] == []


def test_nothing_that_is_trained_on_holds_one_of_these_texts() -> None:
    tools = ROOT / "tools"
    files = [*tools.glob("*.py"), *tools.glob("*.toml"), *tools.glob("families/*.toml")]
    trained_on = "\n".join(file.read_text("utf-8", errors="replace").casefold() for file in files)
    for name in FILES:
        for pair in pairs_of(name):
            found = [text for text in (*texts(pair.a), *texts(pair.b)) if len(text) > SHORT and text in trained_on]
            assert found == []
