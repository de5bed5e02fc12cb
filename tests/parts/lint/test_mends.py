"""Edits of a policy file's text that leave the rest as people wrote it."""

from __future__ import annotations

import pytest

from gateway.parts.lint.edit import CannotEdit
from gateway.parts.lint.mends import mended
from policies.errors import Edit

TEXT = """\
surface: chat  # the only one
tiers:
  - local
  - hosted  # paid
cache:
  exact: {ttl: 1h, stale: 5m}
route: {start: {local: otherwise}}
"""


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        (Edit(("surface",), "talk"), "surface: chat  #", "surface: talk  #"),
        (Edit(("cache", "exact", "ttl"), "2h"), "ttl: 1h", "ttl: 2h"),
        (Edit(("cache", "exact", "stale")), "{ttl: 1h, stale: 5m}", "{ttl: 1h}"),
        (Edit(("cache", "exact", "ttl")), "{ttl: 1h, stale: 5m}", "{stale: 5m}"),
        (Edit(("tiers", 0)), "  - local\n", ""),
        (Edit(("tiers", 1), "remote"), "- hosted  # paid", "- remote  # paid"),
        (Edit(("tiers",), "[one]"), "tiers:\n  - local\n  - hosted", "tiers: [one]"),
        (Edit(("cache", "exact", "ttl"), rename="age"), "ttl: 1h", "age: 1h"),
        (Edit(("route", "classifier"), "none"), "otherwise}}", "otherwise}, classifier: none}"),
        (Edit(("cache", "semantic"), "{ttl: 1h}"), "5m}\n", "5m}\n  semantic: {ttl: 1h}\n"),
        (Edit(("slo", "deadline"), "10s"), "otherwise}}\n", "otherwise}}\nslo: {deadline: 10s}\n"),
        (Edit(("cache", "exact")), "cache:\n  exact: {ttl: 1h, stale: 5m}\n", ""),
    ],
)
def test_an_edit_changes_its_place_alone(edit: Edit, before: str, after: str) -> None:
    """Values, keys and items are set, added, renamed and removed; a section goes with its only key."""
    assert before in TEXT
    assert mended(TEXT, [edit]) == TEXT.replace(before, after)


def test_edits_are_made_one_after_the_other() -> None:
    """Each sees the text that the one before has left."""
    edits = [Edit(("tiers", 0)), Edit(("tiers", 0), "remote")]
    assert mended(TEXT, edits) == TEXT.replace("  - local\n", "").replace("- hosted", "- remote")


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (Edit(("holdout",)), "holdout: is not in this file"),
        (Edit(("tiers", 5), "x"), "is not in this file"),
        (Edit(("cache", "exact", "ttl"), rename="stale"), "stale is there already"),
        (Edit(("surface", "name"), "x"), "surface.name"),
    ],
)
def test_what_cannot_be_edited_is_said(edit: Edit, why: str) -> None:
    """Nothing is changed by halves."""
    with pytest.raises(CannotEdit, match=why):
        mended(TEXT, [edit])
