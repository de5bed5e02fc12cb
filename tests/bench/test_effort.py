"""Test `python -m tests.bench.effort`: what the order by effort promises holds on prompts never fitted."""

from __future__ import annotations

import json

import pytest

from tests.bench.effort import exam_prompts, main


def test_the_exam_is_ranked_whatever_the_frame(capsys: pytest.CaptureFixture[str]) -> None:
    """Within each fitted language, and neither case nor frames seen in training move more than 5 of 66."""
    assert main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["auroc"]["mean"] >= 0.9
    assert found["starts"]["batch"]["hard"][0] <= 0.2 * found["starts"]["batch"]["hard"][1]
    assert found["starts"]["batch"]["trivial"][0] <= 0.2 * found["starts"]["batch"]["trivial"][1]
    assert found["starts"]["chat"]["hard"][0] <= 0.05 * found["starts"]["chat"]["hard"][1]
    names = ("capitals", "no full stop", "Quick question: {} (in training)", "{} Answer in one sentence. (in training)")
    for name in names:
        for surface in ("chat", "batch"):
            moved, of = found["moved"][f"en: {name}"][surface]
            assert of == 66 and moved <= 5, (name, surface)


def test_the_exam_has_both_sides_of_each_language() -> None:
    prompts = exam_prompts()
    assert len({prompt.text for prompt in prompts}) == len(prompts) >= 250
    for language in {prompt.language for prompt in prompts}:
        assert {prompt.is_hard for prompt in prompts if prompt.language == language} == {True, False}
