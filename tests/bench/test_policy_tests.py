"""The bench of policy tests."""

from __future__ import annotations

import pytest

from tests.bench.policy_tests import KINDS, main


def test_each_kind_of_case_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each, with its rate."""
    main(["--cases", "500"])
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("500 cases of each kind against chat.yaml")
    assert [line.split()[0] for line in lines] == list(KINDS)
    assert all(float(line.split()[1].replace(",", "")) > 500 for line in lines)
