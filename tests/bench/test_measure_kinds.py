"""Test `python -m tests.bench.measure_kinds`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.bench.measure_kinds import EXAM, main, texts

TRAINED = Path(__file__).parents[2] / "gateway" / "parts" / "fit" / "training" / "wrappers.toml"


def test_the_exam_has_no_template_that_was_fitted() -> None:
    exam, trained = (tomllib.loads(path.read_text(encoding="utf-8")) for path in (EXAM, TRAINED))
    assert not set(exam["templates"]) & {*trained["exams"], *trained["chats"]}
    assert all(len(tasks) == 24 for tasks in exam["tasks"].values())
    assert not any("{prompt}" in text or "{options}" in text for part in exam["tasks"] for text in texts(exam, part))


def test_most_tasks_are_told_in_templates_never_seen(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was chosen on these: 83% of programming, 89% of maths and all choices, and hardly any is claimed."""
    assert main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for kind, least in (("maths", 0.85), ("code", 0.78), ("choices", 0.95)):
        assert found[kind]["kinds"][kind] >= least * found[kind]["n"], kind
        assert found[kind]["inside"] <= 0.05 * found[kind]["n"], kind
