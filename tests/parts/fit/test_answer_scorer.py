"""A scorer of answers is fitted to labelled answers, and kept only as far as sets left out prove it."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.main import main
from gateway.parts.agents.scorer import AnswerScorer

TEXT = "the train leaves from a station near our old town hall at noon and comes back when it is dark"
WORDS = re.findall(r"\w+", TEXT)


def labelled(path: Path, *sets: str, telling: bool) -> Path:
    """Answers of a small model that is right where it is short, if that is `telling`, and of a large one that is."""
    rng = random.Random(4)
    with path.open("w") as file:
        for name in sets:
            for number in range(260):
                right = rng.random() < 0.5
                many = rng.randint(4, 9) if right or not telling else rng.randint(30, 60)
                models: dict[str, Any] = {
                    "small": {"correct": int(right), "answer": " ".join(rng.choices(WORDS, k=many))},
                    "large": {"correct": 1, "answer": " ".join(rng.choices(WORDS, k=6))},
                }
                row = {"id": f"{number}", "dataset": name, "group": "", "prompt": "When does it go?", "models": models}
                file.write(json.dumps(row) + "\n")
    return path


def test_what_sets_left_out_prove_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole answer tells, its first words do not: one part is there, with the figures of each set."""
    data, out = labelled(tmp_path / "rows.jsonl", "one", "other", telling=True), tmp_path / "scorer.json"
    assert main(["fit", "train", "scorer", "--data", str(data), "--out", str(out), "--not-for", "chat", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["left_out"]
    assert set(measured) == {"one", "other"}
    for one in measured.values():
        assert one["whole"]["apgr"][1] > 0.7, one
        assert one["whole"]["auroc"] > 0.9
    scorer = AnswerScorer.load(out)
    short, long = (scorer.p_right("When?", text, complete=True) for text in ("At noon.", " ".join(WORDS * 3)))
    assert short is not None and long is not None and short > long
    assert scorer.p_right("When?", "At noon.", complete=True, kind="chat") is None
    sheet = json.loads(out.read_bytes())
    assert sheet["command"].startswith("tierline fit train scorer --data rows.jsonl --out scorer.json")


def test_what_is_no_better_than_chance_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is better than a number that says nothing."""
    data = labelled(tmp_path / "rows.jsonl", "one", "other", telling=False)
    assert main(["fit", "train", "scorer", "--data", str(data), "--out", str(tmp_path / "scorer.json")]) == 2
    assert "no better than chance" in capsys.readouterr().err
    assert not (tmp_path / "scorer.json").exists()
