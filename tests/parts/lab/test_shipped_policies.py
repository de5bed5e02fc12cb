"""The test files of the shipped policies: they pass, and cover nearly every clause."""

from __future__ import annotations

import pytest

from gateway.cli.main import main
from policies.loader import SHIPPED, policy_files


def test_every_shipped_policy_has_a_test_file() -> None:
    """It lies beside the policy and has its name."""
    for file in policy_files(SHIPPED):
        assert file.with_suffix(".test.yaml").is_file(), file.name


def test_the_shipped_policies_keep_what_their_tests_promise(capsys: pytest.CaptureFixture[str]) -> None:
    """All pass, and nearly every clause held in one case and did not in another."""
    assert main(["policy", "test", str(SHIPPED), "--fail-under", "95%"]) == 0, capsys.readouterr().out
