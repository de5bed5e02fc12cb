"""The bench of a routing decision."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.decision import main


def test_each_part_of_a_decision_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for the vector, one for the difficulty and one for both, each with its three quantiles in order."""
    file = tmp_path / "rows.jsonl"
    rows = [
        {"id": str(i), "dataset": "d", "group": "g", "prompt": f"What is {i} plus {i}?", "models": {}}
        for i in range(210)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(["--data", str(file), "--prompts", "10"])
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("10 prompts, static vectors")
    times = {line.split()[0]: [float(word) for word in line.split()[2::2]] for line in lines}
    assert list(times) == ["embedding", "difficulty", "decision"]
    assert all(0 < p50 <= p95 <= p99 for p50, p95, p99 in times.values())
    assert times["decision"][0] >= max(times["embedding"][0], times["difficulty"][0])
