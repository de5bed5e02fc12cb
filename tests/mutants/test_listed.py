"""The lists of mutants can be made: what each changes is there once, and its test is a file."""

from __future__ import annotations

import pytest

from tests.mutants.listed import ROOT, Mutant, mutants


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_a_mutant_changes_a_line_that_is_there(mutant: Mutant) -> None:
    """A list whose lines have moved on proves nothing any more."""
    assert mutant.mutated(ROOT) != (ROOT / mutant.file).read_text()
    assert mutant.rule.endswith(".")
    for test in mutant.test.split(" "):
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text()
        assert not name or f"def {name.partition('[')[0]}(" in text


def test_each_rule_is_broken_once() -> None:
    """Two mutants of one line would count one rule twice."""
    changes = [(mutant.file, mutant.old, mutant.new) for mutant in mutants()]
    assert len(changes) == len(set(changes)) > 0
