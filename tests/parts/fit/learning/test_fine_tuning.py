"""Fine-tuning data: the better answer of judged pairs, nothing that identifies people or opens doors."""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson
import pytest

from gateway.parts.fit.learning.fine_tuning import Exported, ExportRules, chat_rows, redacted


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mail jane.doe+x@mail.example.co.uk today", "Mail [e-mail] today"),
        ("call +49 170 123 45 67 or (030) 123-4567-89", "call [phone number] or [phone number]"),
        ("card 4111 1111 1111 1111, expires 12", "card [card number], expires 12"),
        ("number 4111 1111 1111 1112 has a wrong check digit", "number 4111 1111 1111 1112 has a wrong check digit"),
        ("key sk-proj-abcdefghij0123456789", "key [key]"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789 and AKIAIOSFODNN7EXAMPLE", "[key] and [key]"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----!", "[private key]!"),
        ("Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-DEF_1", "Bearer [key]"),
        ("in 2024, on 2024-05-17 and 17.05.2024 at 3.14159265 of 1,000,000", None),
        ("version 1.2.3 of 10.0.0.1, page 12-15, room 4", None),
        ("def f(x): return x @ y  # skip-this", None),
    ],
)
def test_what_identifies_people_or_opens_doors_is_replaced(text: str, expected: str | None) -> None:
    """By its kind; dates, versions, addresses of machines and code stay."""
    found: Counter[str] = Counter()
    assert redacted(text, found) == (text if expected is None else expected)
    assert bool(found) == (expected not in (None, text))


def pair(**changed: Any) -> dict[str, Any]:
    """A judged pair of which the strong answer is better."""
    answer = {"tier": "local", "adequate": 0.0, "text": "Lyon."}
    row = {
        "better": "strong", "agreed": True, "has_tools": False,
        "messages": [{"role": "user", "content": "I am a@b.org. What is the capital of France?"}],
        "small": answer, "strong": {**answer, "tier": "hosted", "adequate": 1.0, "text": "Paris."},
    }  # fmt: skip
    return {**row, **changed}


def test_rows_are_conversations_with_the_better_answer() -> None:
    """As trainers take them; the same pair once."""
    exported = Exported()
    [line] = chat_rows(
        [pair(), pair(), pair(messages=orjson.dumps(pair()["messages"]).decode())], ExportRules(), exported
    )
    assert orjson.loads(line) == {
        "messages": [
            {"role": "user", "content": "I am [e-mail]. What is the capital of France?"},
            {"role": "assistant", "content": "Paris."},
        ]
    }
    assert exported.written == 1 and exported.redacted == {"e-mail": 1}
    assert exported.left_out == {"it is there already": 2}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"messages": None}, "no text was kept"),
        ({"better": "tie"}, "no answer is better"),
        ({"agreed": False}, "no answer is better"),
        ({"strong": {"adequate": 0.5, "text": "Paris?"}}, "the better answer is not adequate"),
        ({"has_tools": True}, "it has tools"),
        ({"strong": {"adequate": 1.0, "text": "Paris. " * 10_000}}, "it is too long"),
    ],
)
def test_what_would_teach_the_wrong_thing_is_left_out(changed: dict[str, Any], reason: str) -> None:
    """With its reason."""
    exported = Exported()
    assert list(chat_rows([pair(**changed)], ExportRules(), exported)) == []
    assert exported.left_out == {reason: 1} and exported.written == 0
    if reason == "it has tools":
        assert len(list(chat_rows([pair(**changed)], ExportRules(tools=True), Exported()))) == 1
