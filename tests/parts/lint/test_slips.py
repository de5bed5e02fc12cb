"""What is said of slips of the pen, and how values are written back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.parts.lint.slips import yaml_text
from policies.errors import InvalidYaml
from policies.yaml_source import parse_yaml


@pytest.mark.parametrize(
    "value",
    ["x", "x y", "a: b", "1", "1.5", "true", "no", "null", "", "~", "#x", "a #b", "[x]", "it's", 'say "x"', "ä\n", "-x",
     "x < 1 and y >= 2", "40%", "a, b", "doc:42", 1, 1.5, True, None, [], {}, ["a", {"b": [1]}], {"a b": "c, d"}],
)  # fmt: skip
def test_what_is_written_is_read_again(value: Any) -> None:
    """On one line, within braces and brackets as well."""
    text = yaml_text({"a": [value, value], "b": value})
    assert "\n" not in text
    assert parse_yaml(text + "\n", Path("a.yaml")).value == {"a": [value, value], "b": value}


@pytest.mark.parametrize(
    ("text", "line", "mend"),
    [
        ("slo:\n\tdeadline: 60s\n", 2, "indent with spaces, not with tabs"),
        ("surface: chat\nslo:\n  deadline:60s\n  on_miss: fail\n", 4, "colon on line 3: `deadline: 60s`"),
        ("surface:chat\nslo: {}\n", 2, "colon on line 1: `surface: chat`"),
        ("description: Talk: fast\n", 1, 'put the value in quotes: "Talk: fast"'),
        ("tiers: [local, hosted\nslo: {}\n", 2, "close the bracket that opens on line 1 with ]"),
        ("exact: {ttl: 24h\nnever: []\n", 2, "close the bracket that opens on line 1 with }"),
        ('description: "Talk\nsurface: chat\n', 3, "the quote on line 1 begins with another quote"),
        ("description: 'It's'\n", 1, "a quote within single quotes is written twice"),
        ("slo:\n  deadline: 60s\n   on_miss: fail\n", 3, "indent line 3 as far as line 2"),
        ("slo:\n    deadline: 60s\n  on_miss: fail\n", 3, "indent line 3 as far as the keys"),
        ("description: @home\n", 1, 'put the value in quotes: "@home"'),
        ("surface = chat\n", 1, "write `key: value`"),
    ],
)
def test_a_slip_of_the_pen_is_told_with_its_mend(text: str, line: int, mend: str) -> None:
    with pytest.raises(InvalidYaml) as caught:
        parse_yaml(text, Path("chat.yaml"))
    [problem] = caught.value.problems
    assert problem.line == line and mend in problem.mend, str(problem)
