"""Names of models with a `*`: what matches, which counts, and what is ambiguous."""

from __future__ import annotations

import itertools
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.wildcards import matches, overlap, weight


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("claude-*", "claude-sonnet-4-5-20250929", True),
        ("claude-*", "claude-", True),
        ("claude-*", "claude", False),
        ("claude-*", "anthropic/claude-x", False),
        ("*codex*", "gpt-5.3-codex-max", True),
        ("*codex*", "codex", True),
        ("a*b*a", "aba", True),
        ("ab*ba", "aba", False),
        ("*", "", True),
        ("gpt-4o", "gpt-4o", True),
        ("gpt-4o", "gpt-4o-mini", False),
        ("gpt.*", "gpt-x", False),
    ],
)
def test_a_star_stands_for_any_text(pattern: str, name: str, fits: bool) -> None:
    """None too; every other character stands for itself."""
    assert matches(pattern, name) is fits


@given(st.text("ab*", max_size=6), st.text("ab", max_size=6))
def test_names_match_as_those_of_files_do(pattern: str, name: str) -> None:
    """The standard library agrees."""
    assert matches(pattern, name) == fnmatchcase(name, pattern)


NAMES = ["".join(letters) for size in range(9) for letters in itertools.product("ab", repeat=size)]


@given(st.text("ab*", max_size=4), st.text("ab*", max_size=4))
def test_patterns_overlap_where_a_name_matches_both(one: str, other: str) -> None:
    """Held against every name of up to eight letters."""
    assert overlap(one, other) == any(matches(one, name) and matches(other, name) for name in NAMES)


def test_long_patterns_are_told_apart() -> None:
    """However many stars they have."""
    assert not overlap("a*" * 128 + "a", "b*" * 128)
    assert overlap("*a" * 128, "a*" * 128)
    assert overlap("*" + "a" * 300, "*" + "a" * 299)


def test_what_is_more_specific_has_more_characters() -> None:
    """Stars do not count."""
    assert weight("*codex*") > weight("gpt-*") > weight("*")
