"""The bench of translations."""

from __future__ import annotations

import json

import pytest

from tests.bench.dialects import Row, main, measured


def test_each_row_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--rounds", "2", "--json"])
    figures = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(figures) >= 9
    assert all(0 < one["low_us"] <= one["us"] <= one["high_us"] for one in figures)
    assert {one["target_us"] for one in figures} == {60.0, 15.0}


def test_a_call_is_timed_by_itself() -> None:
    """A run of ten calls is divided by ten, and a longer run takes longer."""
    one, ten = measured([Row("a", 1, lambda: sum(range(3000))), Row("b", 1, lambda: sum(range(3000)), calls=10)], 5)
    assert ten.us < one.us / 5
