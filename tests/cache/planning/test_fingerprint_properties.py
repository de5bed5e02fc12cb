"""Random bodies: equal keys for what is canonically the same, and for nothing else."""

from __future__ import annotations

import random
import unicodedata
from typing import Any

import orjson
import pytest

from cache.planning.plan import DENIED, fingerprint
from cache.scopes.scope import scope_of

LETTERS = (*"ab:{}[],\"'\\/|0123 \n\0", "\u00e9", "e\u0301", "\u0301", "\u212b", "\U0001f600", "\u1e9b\u0323", "\u0344")
NAMES = ("temperature", "stop", "tools", "x", "e\u0301", "\u00e9", "a:b", "1:a", "", "content", "text", "null")
SCOPE = scope_of("tenant:t", "chat", "v", b"s")


def text(chance: random.Random, most: int = 6) -> str:
    return "".join(chance.choice(LETTERS) for _ in range(chance.randrange(most)))


def value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(8 if depth < 3 else 6)
    if kind < 2:
        return text(chance)
    if kind < 6:
        return chance.choice((None, True, False, 0, 1, -1, 0.5, 1.0, 10**15, [], {}, ""))
    if kind == 6:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice(NAMES): value(chance, depth + 1) for _ in range(chance.randrange(4))}


def message(chance: random.Random) -> dict[str, Any]:
    said: Any = text(chance)
    if chance.random() < 0.3:
        said = [{"type": "text", "text": text(chance)} for _ in range(chance.randrange(3))]
    return {
        "role": chance.choice(("user", "user", "assistant", "system")),
        "content": chance.choice((said, said, None)),
    }


def request(chance: random.Random) -> dict[str, Any]:
    """A body of up to three messages and a few fields, known and not."""
    messages = [message(chance) for _ in range(chance.randrange(1, 4))]
    fields = {chance.choice(NAMES): value(chance) for _ in range(chance.randrange(4))}
    return {**fields, "model": "m", "messages": messages}


def key(body: dict[str, Any]) -> str:
    return fingerprint(body, SCOPE, b"s", None, "e").key


def canonical(part: Any) -> Any:
    """What counts of a value, told in another way than the keys are made: a form that compares equal only if it is."""
    if isinstance(part, str):
        return ("text", unicodedata.normalize("NFC", part))
    if isinstance(part, dict):
        names = [unicodedata.normalize("NFC", name) for name in part]
        if len(set(names)) < len(names):
            names = list(part)
        return ("object", frozenset(zip(names, map(canonical, part.values()), strict=True)))
    if isinstance(part, list):
        return ("list", tuple(map(canonical, part)))
    return ("other", orjson.dumps(part))


def shuffled(part: Any, chance: random.Random) -> Any:
    """The same value, its objects in another order and its texts in another Unicode form."""
    if isinstance(part, str):
        return unicodedata.normalize(chance.choice(("NFC", "NFD")), part)
    if isinstance(part, dict):
        items = [(name, shuffled(inner, chance)) for name, inner in part.items()]
        chance.shuffle(items)
        return dict(items)
    return [shuffled(inner, chance) for inner in part] if isinstance(part, list) else part


@pytest.mark.parametrize("bodies", [4_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_keys_are_equal_for_what_is_canonically_equal_and_for_nothing_else(bodies: int) -> None:
    """Of random bodies, many nearly the same, as many keys as canonical forms, and one for each."""
    chance = random.Random(11)
    forms: dict[Any, str] = {}
    for _ in range(bodies):
        body = request(chance)
        assert forms.setdefault(canonical(body), key(body)) == key(body)
    assert len(set(forms.values())) == len(forms) > bodies // 4


def test_neither_order_nor_unicode_form_nor_what_is_denied_counts() -> None:
    """3,000 random bodies, each said in other ways."""
    chance = random.Random(12)
    for _ in range(3_000):
        body = request(chance)
        denied = {name: value(chance) for name in (*DENIED, f"prompt_cache_{text(chance)}") if chance.random() < 0.3}
        assert key({**shuffled(body, chance), **denied}) == key(body)


@pytest.mark.parametrize("seed", range(5))
def test_one_change_anywhere_is_another_key(seed: int) -> None:
    """A letter more, a value swapped, a field renamed, a message cut in two: never the same key."""
    chance = random.Random(seed)
    for _ in range(1_000):
        body = request(chance)
        other = orjson.loads(orjson.dumps(body))
        last = other["messages"][-1]
        kind = chance.randrange(4)
        if kind == 0:
            other["messages"] = [*other["messages"][:-1], {**last, "extra": None}]
        elif kind == 1:
            other["messages"] = [*other["messages"], {"role": "user", "content": ""}]
        elif kind == 2:
            other[f"{chance.choice(NAMES)}!"] = value(chance)
        else:
            last["content"] = "b" + last["content"] if isinstance(last["content"], str) else "b"
        assert key(other) != key(body)


def test_no_text_moves_a_border() -> None:
    """Every way of cutting one text into the history, the question and a field gives a key of its own (S6)."""
    whole = '1:a2:"b"},{"role":"user","content":"c'
    keys = set()
    for i in range(len(whole) + 1):
        for j in range(i, len(whole) + 1):
            before, middle, after = whole[:i], whole[i:j], whole[j:]
            said = [{"role": "system", "content": before}, {"role": "user", "content": middle}]
            keys.add(key({"model": "m", "messages": said, "x": after}))
    assert len(keys) == (len(whole) + 1) * (len(whole) + 2) // 2


def test_scopes_of_hostile_names_never_meet() -> None:
    """20,000 random owners, surfaces, versions and generations: as many scopes as there are different ones."""
    chance = random.Random(13)
    parts = {(text(chance), text(chance), text(chance), chance.randrange(-3, 30)) for _ in range(20_000)}
    scopes = {scope_of(owner, surface, version, b"s", number) for owner, surface, version, number in parts}
    assert len(scopes) == len(parts)
