"""`python -m tools.choose_answer_thresholds`: which families it reads, the choice, and what is written."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest

from cache import shipped_cross_encoder
from gateway.parts.encoders.cross_encoder import SHEET, CrossEncoder
from gateway.parts.hit_audits.label_errors import LabelErrors
from tools import choose_answer_thresholds
from tools.choose_answer_thresholds import denied_up_to, is_read, main
from tools.question_families import QuestionFamily


def test_families_of_answers_are_read_in_the_models_languages() -> None:
    """By the name of their file."""
    model = CrossEncoder.load(shipped_cross_encoder())
    assert is_read(QuestionFamily("answers: refunds", (), {}), model)
    assert is_read(QuestionFamily("en/answers: refunds", (), {}), model)
    assert not is_read(QuestionFamily("billing: answers", (), {}), model)
    assert not is_read(QuestionFamily("xx/answers: refunds", (), {}, language="xx"), model)


def test_few_that_say_the_same_are_denied() -> None:
    """Three in a thousand, and none from the score on that says the same; of few pairs the default is kept."""
    scores = np.linspace(0.1, 0.9, 1_001)
    most = denied_up_to(scores, 0.8)
    assert int((scores <= most).sum()) == 3
    assert denied_up_to(scores + 1.0, 0.8) == 0.8
    assert denied_up_to(scores[:5], 0.8) == 0.25


FAMILY = """[[family]]
name = "{name}"
[[family.intent]]
name = "on"
ask = ["Open the page and switch {name} on.", "Go to the page, then turn {name} on."]
[[family.intent]]
name = "off"
ask = ["Open the page and switch {name} off.", "Go to the page, then turn {name} off."]
"""


def smaller_desks(folder: Path, intents: int) -> Path:
    """Write each desk with its first intents alone: a pair of answers takes tens of milliseconds, and there are 2,000.

    The figures of them all are in the data sheet that ships.
    """
    folder.mkdir()
    for desk in choose_answer_thresholds.DESKS.glob("*.toml"):
        data = tomllib.loads(desk.read_text("utf-8"))
        slots = "".join(f"{name} = {json.dumps(values)}\n" for name, values in data["slots"].items())
        text = f"intents = {json.dumps(data['intents'][:intents])}\n[slots]\n{slots}"
        (folder / desk.name).write_text(text, "utf-8")
    return folder


@pytest.mark.long  # it reads some hundred pairs of answers, each by itself
@pytest.mark.timeout(1_200)
def test_the_data_sheet_gets_both_thresholds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And keeps everything else. Without enough families nothing is written."""
    monkeypatch.setattr(choose_answer_thresholds, "DESKS", smaller_desks(tmp_path / "desks", 8))
    mine, families = tmp_path / "mine", tmp_path / "families"
    shutil.copytree(shipped_cross_encoder(), mine)
    families.mkdir()
    flags = ["--cross-encoder", str(mine), "--families", str(families), "--pairs", "600", "--json"]
    (families / "other.toml").write_text(FAMILY.replace("{name}", "sound"))
    before = json.loads((mine / SHEET).read_bytes())
    assert main(flags) == 2
    assert "too few families of answers are left out of training" in capsys.readouterr().err
    assert json.loads((mine / SHEET).read_bytes()) == before
    (families / "answers.toml").write_text("".join(FAMILY.replace("{name}", f"lamp {at}") for at in range(260)))
    assert main(flags) == 0
    chosen = json.loads(capsys.readouterr().out)
    model = CrossEncoder.load(mine)
    assert (model.same_answer, model.other_answer) == (chosen["same_answer_strict"], chosen["other_answer"])
    assert 0.0 <= chosen["other_answer"] <= chosen["same_answer_strict"]
    assert chosen["called_same"]["wrong"] <= 0.005
    errors = LabelErrors.of(model.label_errors)
    assert (errors.same, errors.other) == (6 * 8 * 3, 6 * 8 * 9)
    assert errors.false_alarm <= 0.02 and errors.sensitivity() >= 0.3
    assert set(errors.by_language) == {"ar", "de", "en", "es", "ja", "zh"}
    assert chosen["label_errors"]["found"] == errors.found < errors.other
    after = json.loads((mine / SHEET).read_bytes())
    own = {"same_answer_strict", "other_answer", "answers", "label_errors"}
    assert after.keys() >= own
    assert {key: after[key] for key in after.keys() - own} == {key: before[key] for key in before.keys() - own}
