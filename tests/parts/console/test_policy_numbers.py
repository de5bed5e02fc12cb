"""The numbers of a policy's text: found, and changed without touching the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.parts.console.policy_numbers import NotANumber, numbers_of, with_numbers
from policies.loader import SHIPPED, policy_files, read_policy

TEXT = """surface: chat
slo: {deadline: 60s, total: {p99: 20s}}
tiers: [local, hosted]
route:
  start:
    local: easiest 40% of its kind and 10 < tokens_in and quantile <= .5   # why
    hosted: otherwise
escalate:
  when: {confidence_below: 62%}
cache:
  semantic: {ttl: "6h"}
"""


def test_each_number_is_found_with_its_unit_and_its_span() -> None:
    found = {number.name: number for number in numbers_of(TEXT)}
    assert list(found) == [
        "route.start.local.0", "route.start.local.1", "route.start.local.2", "escalate.when.confidence_below",
        "cache.semantic.ttl", "cache.semantic.min_similarity", "slo.total.p99",
    ]  # fmt: skip
    values = [(number.value, number.unit) for number in found.values()]
    assert values == [(40, "%"), (10, ""), (0.5, ""), (62, "%"), (6, "h"), (0.4, ""), (20, "s")]
    assert all(number.low <= number.value <= number.high and number.step > 0 for number in found.values())


def test_others_are_written_in_their_place_and_nothing_else_changes() -> None:
    values = {"route.start.local.0": 5, "route.start.local.2": 0.25, "escalate.when.confidence_below": 70.5}
    changed = with_numbers(TEXT, {**values, "cache.semantic.ttl": 1.5, "cache.semantic.min_similarity": 0.8})
    assert "    local: easiest 5% of its kind and 10 < tokens_in and quantile <= 0.25  # why\n" in changed
    assert "{confidence_below: 70.5%}" in changed and '{min_similarity: 0.8, ttl: "1.5h"}' in changed
    own = {number.name: number.value for number in numbers_of(TEXT)}
    assert with_numbers(TEXT, own) == TEXT
    with pytest.raises(NotANumber, match=r"route\.start\.local\.9"):
        with_numbers(TEXT, {"route.start.local.9": 1})


@pytest.mark.parametrize("file", policy_files(SHIPPED), ids=lambda file: file.stem)
def test_shipped_policies_stay_valid_whatever_number_is_changed(file: Path, tmp_path: Path) -> None:
    text = file.read_text()
    for number in numbers_of(text):
        for value in (number.low, number.high):
            edited = tmp_path / file.name
            edited.write_text(with_numbers(text, {number.name: value}))
            read_policy(edited)
