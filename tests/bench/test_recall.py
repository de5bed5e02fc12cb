"""The first stage is measured as a lookup runs it."""

from __future__ import annotations

import json

import pytest

from tests.bench.exam.__main__ import main


def test_the_share_of_rewordings_that_a_full_scope_gives_back_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """What is handed on was found, and each share has its interval."""
    assert main(["--part", "recall", "--languages", "pt", "--cross-encoder", "none", "--limit", "20", "--json"]) == 0
    of = json.loads(capsys.readouterr().out)["recall"]["pt"]
    assert of["scope"] > 5_000
    for share in (of["found"], of["handed_on"]):
        assert share["n"] >= 12
        assert 0 <= share["lo"] <= share["value"] <= share["hi"] <= 1
    assert of["handed_on"]["value"] <= of["found"]["value"]
