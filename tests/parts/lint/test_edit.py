"""Changing a policy's text without disturbing the rest of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.parts.lint.edit import CannotEdit, source_of, with_value
from policies.loader import SHIPPED, policy_files, read_policy

BLOCK = """\
escalate:                       # to the next tier
  when:
    confidence_below: 0.6       # é, a comment
    invalid: [json]
"""


def test_only_the_value_changes_and_its_comment_keeps_its_column() -> None:
    """Comments, order and layout of the rest are as they were."""
    changed = with_value(BLOCK, ("escalate", "when", "confidence_below"), "0.9999")
    assert changed == BLOCK.replace("0.6       #", "0.9999    #")


def test_a_key_that_is_missing_becomes_the_first_of_its_section() -> None:
    """It is indented as its neighbour, in a block, and set off by a comma in braces."""
    path = ("escalate", "when", "uncalibrated_below")
    assert with_value(BLOCK, path, "0.8") == BLOCK.replace(
        "    confidence_below", "    uncalibrated_below: 0.8\n    confidence_below"
    )
    assert (
        with_value("escalate: {when: {refusal: true}}\n", path, "0.8")
        == "escalate: {when: {uncalibrated_below: 0.8, refusal: true}}\n"
    )


def test_what_stands_in_braces_is_replaced_whole() -> None:
    """Over several lines too; a block of lines is left for a person to change."""
    path = ("route", "traffic")
    written = "route:\n  traffic: {a: 1,\n    b: [2, 3]}   # measured\n  start: {}\n"
    assert with_value(written, path, "{c: 4}") == "route:\n  traffic: {c: 4}   # measured\n  start: {}\n"
    with pytest.raises(CannotEdit, match=r"route\.traffic: is written as a block of lines"):
        with_value("route:\n  traffic:\n    a: 1\n", path, "{c: 4}")


@pytest.mark.parametrize("text", ["surface: chat\n", "escalate: {when: {}}\n", "escalate: {no_signal: accept}\n"])
def test_without_its_section_nothing_is_guessed(text: str) -> None:
    """The message names the section that somebody has to write."""
    with pytest.raises(CannotEdit, match=r"no escalate\.when: section to put confidence_below into"):
        with_value(text, ("escalate", "when", "confidence_below"), "0.5")


@pytest.mark.parametrize("file", policy_files(SHIPPED), ids=lambda file: file.stem)
def test_every_shipped_policy_can_be_edited(file: Path, tmp_path: Path) -> None:
    """The changed file loads, says the new value, and differs in one line, which is new where it had no value."""
    before = file.read_text()
    after = with_value(before, ("escalate", "when", "confidence_below"), "0.123")
    changed = tmp_path / file.name
    changed.write_text(after)
    policy, _ = read_policy(changed)
    assert policy.escalate.when.confidence_below == 0.123
    lines, were = after.splitlines(), before.splitlines()
    [at] = [number for number, line in enumerate(lines) if line not in were]
    lines[at : at + 1] = [were[at]] if len(lines) == len(were) else []
    assert lines == were


def test_an_aligned_file_keeps_its_alignment() -> None:
    """Blanks by which people line up their values stay, which a file that is written anew loses."""
    aligned = "slo:    {deadline: 8s}\nescalate:\n  when:  {confidence_below: 0.62}   # by a head\ntiers:  [a, b]\n"
    after = with_value(aligned, ("escalate", "when", "confidence_below"), "0.7")
    assert after == aligned.replace("0.62", "0.7")


def test_a_scalar_is_found_as_it_is_written() -> None:
    """Sections, and what is not there, are no values."""
    assert source_of(BLOCK, ("escalate", "when", "confidence_below")) == "0.6"
    assert source_of('a: "é, quoted"  # é', ("a",)) == '"é, quoted"'
    assert source_of(BLOCK, ("escalate", "when")) is None
    assert source_of(BLOCK, ("escalate", "stream", "hold_tokens")) is None
