"""`python -m tests.bench.verifiers`: judges that are told apart, and what each brings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bench.verifiers import main


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Answers of a small and a large model, right on three and nine in ten, with a judge that is mostly sure."""
    rng = np.random.default_rng(1)
    lines = []
    for number in range(500):
        small, large = int(rng.random() < 0.6), int(rng.random() < 0.95)
        logit = rng.normal(6.0 if small else 3.0, 1.0)
        models = {"small": {"correct": small, "judge": 1 / (1 + np.exp(-logit))}, "large": {"correct": large}}
        row = {"id": str(number), "dataset": "routellm_gsm8k", "group": "g", "prompt": f"What is {number} plus 3?"}
        lines.append(json.dumps({**row, "models": models}))
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(lines))
    return file


@pytest.mark.long
def test_a_recorded_judge_and_scripted_ones_are_measured_alike(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """APGR with intervals, beside that of the classifier and of a perfect one; ECE as it says and with labels."""
    assert main(["--data", str(rows), "--rates", "1/0", "0.5/0.5", "--published", "--json"]) == 0
    found: dict[str, dict[str, Any]] = {one["verifier"]: one for one in json.loads(capsys.readouterr().out)["found"]}
    recorded, sure, none = found["judge, recorded"], found["judge 1/0"], found["judge 0.5/0.5"]
    assert recorded["pairs"] == 1
    assert recorded["said"][0] > 0.8 and recorded["said"][1] < recorded["said"][0] < recorded["said"][2]
    assert recorded["own"][0] == pytest.approx(recorded["said"][0], abs=0.02)
    assert recorded["ece_said"] > 0.3 > 0.09 > recorded["ece"][0]
    assert sure["said"][0] == pytest.approx(sure["perfect"], abs=0.001)
    assert none["said"][0] == pytest.approx(0.5, abs=0.06)
    assert found["Qwen 3 4B, published"]["said"][0] > found["Llama 3 8B, published"]["said"][0]
    assert recorded["ahead"][0] == pytest.approx(recorded["own"][0] - recorded["classifier"][0], abs=0.001)


def test_too_few_words_are_an_error(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing would be left to test on."""
    assert main(["--data", str(rows), "--labels", "400", "--json"]) == 2
    assert "no verifier has said anything of 800 answers" in capsys.readouterr().err


def test_a_model_that_is_left_out_neither_answers_nor_judges(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two models one is left, and there is no pair to measure."""
    assert main(["--data", str(rows), "--leave-out", "large", "--json"]) == 2
    assert "no verifier has said anything" in capsys.readouterr().err
