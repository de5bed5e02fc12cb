"""The prompts that the head for effort is fitted to, their labels, and what is left out of its figures."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from routing.difficulty.effort import ARTEFACT, SHEET_FILE
from tests.bench.effort import exam_prompts
from tests.support.extras import needs
from tools.effort_texts import FOLDER, LEFT_OUT, read_frames, read_prompts, read_second
from tools.train_effort import auroc_by_language, fitted_head, main, matched_auroc


def test_there_are_prompts_of_each_language_kind_and_label() -> None:
    """Twelve hundred at least, no text twice, none of the exam, and frames that hold the request once."""
    prompts = read_prompts()
    assert len(prompts) >= 1200 and len({prompt.text for prompt in prompts}) == len(prompts)
    assert not {prompt.text for prompt in prompts} & {prompt.text for prompt in exam_prompts()}
    for is_hard in (True, False):
        counts = Counter(prompt.language for prompt in prompts if prompt.is_hard is is_hard)
        assert len(counts) == 14 and min(counts.values()) >= 30
        assert len({prompt.kind for prompt in prompts if prompt.is_hard is is_hard}) >= 10
    for language, frames in read_frames().items():
        assert all(frame.count("{}") == 1 for frame in (*frames.fitted, *frames.held_out)), language
        assert not set(frames.fitted) & set(frames.held_out)


def test_prompts_are_labelled_twice() -> None:
    """And nearly always alike; the data sheet says how often, and is of these files."""
    prompts, second = read_prompts(), read_second()
    agree = sum(prompt.is_hard is label for prompt, label in zip(prompts, second, strict=True))
    sheet = json.loads((ARTEFACT / SHEET_FILE).read_text())
    assert sheet["labelled_twice"] == {"prompts": len(prompts), "agree": agree} and agree >= 0.95 * len(prompts)


def test_length_tells_nothing_where_pairs_are_of_one_length() -> None:
    """So what a head adds is not the length."""
    prompts = [prompt for prompt in read_prompts() if prompt.language not in LEFT_OUT]
    found = auroc_by_language(prompts, [float(len(prompt.text)) for prompt in prompts])
    assert all(0.4 < value < 0.6 for value in found.values()), found
    assert matched_auroc([("abcd", 2.0), ("ab", 9.0)], [("abcde", 1.0), ("abcd", 2.0)]) == (0.75, 2)
    assert math.isnan(matched_auroc([("a", 1.0)], [("abc", 0.0)])[0])


@needs("sklearn", "the train extra is not installed")
def test_a_head_is_fitted_written_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command writes the same head as the one that ships, with figures that hold."""
    assert main(["--out", str(tmp_path), "--json"]) == 0
    sheet = json.loads(capsys.readouterr().out)
    shipped = json.loads((ARTEFACT / SHEET_FILE).read_text())
    assert sheet["trained_on"] == shipped["trained_on"], f"train it again: a file of {FOLDER} has changed"
    for figures in (sheet["figures"], shipped["figures"]):
        assert figures["kinds_left_out"]["mean"] >= 0.9 and min(figures["kinds_left_out"].values()) >= 0.85
        assert figures["languages_left_out"]["mean"] >= 0.85


@needs("sklearn", "the train extra is not installed")
def test_the_labels_alone_decide() -> None:
    """A head fitted to the opposite labels says the opposite."""
    from dataclasses import replace

    from routing.difficulty.text_statistics import tokenise

    prompts = [prompt for prompt in read_prompts() if prompt.language == "en"]
    head = fitted_head([replace(prompt, is_hard=not prompt.is_hard) for prompt in prompts], [], read_frames(), 0)[0]
    rated = head.rate(tokenise("Prove that the square root of two is irrational."))
    assert rated is not None and rated < 0.3
