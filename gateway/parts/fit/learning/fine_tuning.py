"""Make fine-tuning data of judged pairs: chat JSON lines with the better answer, filtered and redacted.

A row is `{"messages": [..., {"role": "assistant", "content": ...}]}`, as OpenAI and most trainers take it. Taken are
pairs of which the text was kept and the judge, asked twice, named one answer as better and found it adequate. What
identifies people or opens doors is replaced by its kind in brackets, in every message.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson


def _luhn(digits: str) -> bool:
    """Return whether the last digit is the check digit of a card number (ISO/IEC 7812-1)."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


PATTERNS: Final[Mapping[str, re.Pattern[str]]] = {
    "private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S),
    "key": re.compile(
        r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}|\bgh[opsur]_[A-Za-z0-9]{20,}|\bAKIA[0-9A-Z]{16}\b"
        r"|\bxox[abprs]-[A-Za-z0-9-]{10,}|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+|\bAIza[\w-]{35}"
    ),
    "e-mail": re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+\b"),
    "card number": re.compile(r"(?<![\d-])\d(?:[ -]?\d){12,18}(?![\d-])"),
    "phone number": re.compile(
        r"(?<![\w.])(?:\+\d{1,3}[ .-]?)?(?:\(\d{2,4}\)[ .-]?)?\d{2,4}(?:[ .-]\d{2,4}){2,4}(?!\w)"
    ),
}
"""What is replaced, in this order. A card number must have a right check digit; dates are not phone numbers."""

_DATE: Final = re.compile(r"(?:\d{4}[ .-]\d{1,2}[ .-]\d{1,2}|\d{1,2}[ .-]\d{1,2}[ .-]\d{4})")


@dataclass(slots=True)
class Exported:
    """How many pairs were written, how many were left out by reason, and what was redacted how often."""

    written: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    redacted: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class ExportRules:
    """Which pairs are taken: with `tools` also requests that offer tools, and none longer than `most_chars`."""

    tools: bool = False
    most_chars: int = 32_000


def chat_rows(rows: Sequence[Mapping[str, Any]], rules: ExportRules, exported: Exported) -> Iterator[bytes]:
    """Yield the lines of the file, and count in `exported` what became of each label."""
    seen: set[bytes] = set()
    for row in rows:
        better = row["small"] if row["better"] == "small" else row["strong"]
        messages = _messages(row)
        why = (
            "no text was kept"
            if messages is None or not better["text"]
            else "no answer is better"
            if row["better"] == "tie" or not row["agreed"]
            else "the better answer is not adequate"
            if better["adequate"] < 1
            else "it has tools"
            if row["has_tools"] and not rules.tools
            else ""
        )
        if why or messages is None:
            exported.left_out[why] += 1
            continue
        chat = [*messages, {"role": "assistant", "content": better["text"]}]
        if sum(len(orjson.dumps(message)) for message in chat) > rules.most_chars:
            exported.left_out["it is too long"] += 1
            continue
        counts: Counter[str] = Counter()
        line = orjson.dumps({"messages": _redacted(chat, counts)}) + b"\n"
        if line in seen:
            exported.left_out["it is there already"] += 1
            continue
        seen.add(line)
        exported.redacted.update(counts)
        exported.written += 1
        yield line


def redacted(text: str, counts: Counter[str]) -> str:
    """Return the text with what PATTERNS finds replaced by its kind in brackets, and count it in `counts`."""
    for kind, pattern in PATTERNS.items():

        def replaced(match: re.Match[str], kind: str = kind) -> str:
            found_text = match[0]
            digits = re.sub(r"\D", "", found_text)
            if kind == "card number" and not _luhn(digits):
                return found_text
            if kind == "phone number" and (_DATE.fullmatch(found_text) or not 7 <= len(digits) <= 15):
                return found_text
            counts[kind] += 1
            return f"[{kind}]"

        text = pattern.sub(replaced, text)
    return text


def _redacted(value: Any, counts: Counter[str]) -> Any:
    if isinstance(value, str):
        return redacted(value, counts)
    if isinstance(value, list):
        return [_redacted(item, counts) for item in value]
    return {name: _redacted(item, counts) for name, item in value.items()} if isinstance(value, dict) else value


def _messages(row: Mapping[str, Any]) -> list[Any] | None:
    messages = row.get("messages")
    if isinstance(messages, str):  # as DuckDB returns JSON
        messages = orjson.loads(messages)
    return messages if isinstance(messages, list) else None
