from __future__ import annotations

import json

import pytest

from tests.bench import index


def test_the_bench_measures_every_index_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Both layouts of the replica's: they find what is near, and another worker finds what one has written."""
    index.main(["--quick", "--kind", "replica", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["kind"], row["partitions"]) for row in rows] == [("replica", 100), ("replica", 1)]
    assert all(row["lookups"]["recall_at_5"] > 0.9 and row["lookups"]["failed"] <= 20 for row in rows)
    assert all(0 < row["replication"][0] < 1000 for row in rows)
