from __future__ import annotations

import json

import pytest

from tests.bench import index


@pytest.mark.long
def test_the_bench_measures_every_index_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Both layouts of the replica's: they find what is near, and another worker serves what one has written."""
    index.main(["--quick", "--kind", "replica", "--json", "--questions"])
    said = json.loads(capsys.readouterr().out)
    assert said["questions"] == "0 real questions, 2,200 made up"
    assert [(row["kind"], row["scopes"]) for row in said["rows"]] == [("replica", 100), ("replica", 1)]
    assert all(row["found"] > 0.9 and row["failed"] <= 20 for row in said["rows"])
    assert all(0 < row["to_another"][0] < 1000 for row in said["rows"])
    assert all(row["missed"] == 500 and row["gap_s"] < 60 for row in said["rows"])
