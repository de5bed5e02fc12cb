"""`tierline fit eval`: the object it prints, what it says of the conditions, and how it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.cli.main import main

SAMPLE = Path(__file__).parents[2] / "fixtures" / "routing_sample.jsonl"
POLICY = Path(__file__).parents[3] / "policies" / "chat.yaml"
FIGURES = ("apgr", "cpt50", "cpt80", "calls95", "calls99", "ece")
ROUTED = {"random", "groups", "length", "ours", "oracle"}

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def evaluate(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `tierline fit eval ... --json` and parses the one object on stdout."""

    def run(*arguments: str | Path) -> dict[str, Any]:
        code = main(["fit", "eval", *map(str, arguments), "--json"])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        parsed = json.loads(captured.out)
        assert isinstance(parsed, dict)
        return parsed

    return run


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    """Prompts of two groups whose small model is the surer the righter it is, with costs."""
    return written(tmp_path / "answers.jsonl", labelled(240))


def labelled(count: int) -> list[dict[str, Any]]:
    generator = np.random.default_rng(0)
    rows = []
    for number in range(count):
        skill = float(generator.random())
        small = {
            "correct": int(generator.random() < skill),
            "confidence": -2 * (1 - skill) - 0.1 * float(generator.random()),
            "cost_usd": 0.0001,
        }
        large = {"correct": int(generator.random() < 0.9), "cost_usd": 0.002}
        prompt = f"Question {number} about {('rivers', 'stars')[number % 2]}, of {'some ' * (number % 7)}words."
        row = {"id": number, "dataset": "made_up", "group": ("rivers", "stars")[number % 2], "prompt": prompt}
        rows.append({**row, "models": {"little": small, "great": large}})
    return rows


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What the command says as it fails with exit code 2."""
    assert main(["fit", "eval", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_route_prints_the_object_that_was_promised(evaluate: Run) -> None:
    """Every figure is an object by method of value, lo and hi; no method has one that does not apply to it."""
    pytest.importorskip("sklearn", reason="the train extra is not installed")
    report = evaluate("route", "--data", SAMPLE, "--small", "tiny", "--large", "big")
    assert report["n"] == 230
    assert set(report["apgr"]) == ROUTED
    assert set(report["cpt50"]) == ROUTED | {"always_large"}
    assert set(report["ece"]) == {"groups", "ours"}
    for figure in FIGURES:
        for interval in report[figure].values():
            assert set(interval) == {"value", "lo", "hi"}
            assert interval["lo"] <= interval["value"] <= interval["hi"]
    assert report["apgr"]["random"] == {"value": 0.5, "lo": 0.5, "hi": 0.5}
    assert report["apgr"]["ours"]["value"] > report["apgr"]["random"]["value"]
    assert report["share_per_tier"]["always_large"] == {"tiny": 0.0, "big": 1.0}
    assert (report["small"], report["large"], report["folds"], report["group_out"]) == ("tiny", "big", 5, False)
    assert report["data"][0]["file"] == SAMPLE.name


@pytest.mark.long
def test_whole_groups_are_held_out_when_asked(evaluate: Run) -> None:
    """The table of groups then knows none of them, and is exactly random."""
    pytest.importorskip("sklearn", reason="the train extra is not installed")
    report = evaluate("route", "--data", SAMPLE, "--group-out")
    assert report["apgr"]["groups"]["value"] == 0.5
    assert report["group_out"] is True


def test_whole_data_sets_are_left_out_when_asked(
    evaluate: Run, capsys: pytest.CaptureFixture[str], answers: Path, tmp_path: Path
) -> None:
    """Each row has the ranking beside length alone, and the share that a classifier without them would claim."""
    public = [{**row, "dataset": "routerbench_mbpp"} for row in labelled(120)]
    report = evaluate("route", "--data", answers, written(tmp_path / "public.jsonl", public), "--set-out")
    rows = {(row["dataset"], row["left_out"]): row for row in report["left_out"]}
    assert set(rows) == {("made_up", "prompts"), ("routerbench_mbpp", "set"), ("routerbench_mbpp", "groups")}
    for row in rows.values():
        assert row["apgr"][1] <= row["apgr"][0] <= row["apgr"][2]
        assert row["ahead"][0] == pytest.approx(row["apgr"][0] - row["length"][0], abs=1e-3)
        assert 0 <= row["claimed"] <= 1
    assert "code" not in report["domain"]
    assert "remove --labels" in refusal(capsys, "route", "--data", answers, "--set-out", "--labels", "40")
    few = written(tmp_path / "few.jsonl", public[:30])
    assert "nothing can be left out" in refusal(capsys, "route", "--data", few, "--set-out")


@pytest.mark.long
def test_several_files_are_pooled_and_told_apart(evaluate: Run, answers: Path) -> None:
    """Figures for each data set stand beside those of all."""
    pytest.importorskip("sklearn", reason="the train extra is not installed")
    report = evaluate("route", "--data", SAMPLE, answers, "--labels", "100", "--folds", "2")
    assert report["n"] == 470
    assert report["labels"] == 100
    assert report["datasets"]["made_up"]["n"] == 240
    assert "ours" in report["datasets"]["made_up"]["apgr"]
    assert (report["small"], report["large"]) == ("tiny / little", "big / great")


def test_one_file_is_tested_by_a_fit_to_another(evaluate: Run, answers: Path) -> None:
    """Trained there, tested here: every prompt of --data, and none of the other file's."""
    pytest.importorskip("sklearn", reason="the train extra is not installed")
    report = evaluate("route", "--data", answers, "--fit", SAMPLE)
    assert report["n"] == 240
    assert report["fit"][0]["file"] == SAMPLE.name
    assert report["apgr"]["groups"]["value"] == 0.5


def test_a_served_artefact_is_scored_without_a_fit(evaluate: Run) -> None:
    """By its version, with how much of the data lies in its domain."""
    report = evaluate("route", "--data", SAMPLE, "--artefact", "static")
    assert len(report["artefact"]["version"]) == 12
    assert 0 <= report["in_domain"]["lo"] <= report["in_domain"]["hi"] <= 1
    assert set(report["apgr"]) == ROUTED


@pytest.mark.long
def test_figures_on_what_an_artefact_was_trained_on_say_so(
    evaluate: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """They are no proof of anything, and nobody should take them for one."""
    pytest.importorskip("sklearn", reason="the train extra is not installed")
    assert main(["fit", "train", "--data", str(SAMPLE), "--out", str(tmp_path / "own")]) == 0
    capsys.readouterr()
    report = evaluate("route", "--data", SAMPLE, "--artefact", tmp_path / "own")
    assert any("was trained on routing_sample.jsonl" in note for note in report["notes"])


def test_a_cascade_is_measured_against_the_raw_log_probability(evaluate: Run, answers: Path) -> None:
    """It pays for the small call too, so that always asking the large model costs less than escalating everything."""
    pytest.importorskip("sklearn", reason="the train extra is not installed")
    report = evaluate("cascade", "--data", answers, "--small", "little", "--large", "great")
    assert set(report["apgr"]) == ROUTED | {"raw_logprob"}
    assert report["apgr"]["raw_logprob"]["value"] > 0.6
    assert report["apgr"]["ours"]["value"] > 0.6
    assert set(report["ece"]) == {"groups", "raw_logprob", "ours"}
    dollars = {method: cost["value"] for method, cost in report["dollars"].items()}
    assert dollars["always_small"] == pytest.approx(0.1)
    assert dollars["always_large"] == pytest.approx(2)
    assert dollars["ours"] == pytest.approx(0.1 + 2 * report["calls95"]["ours"]["value"], abs=1e-4)
    assert report["saved"]["ours"]["value"] == pytest.approx(1 - dollars["ours"] / 2, abs=1e-4)


def test_calibration_takes_few_labels_and_tests_on_the_rest(evaluate: Run, answers: Path) -> None:
    """Several draws, and their mean."""
    pytest.importorskip("sklearn", reason="the train extra is not installed")
    report = evaluate("cascade", "--data", answers, "--calibration", "100")
    assert (report["n"], report["calibration"], report["tested"], report["draws"]) == (240, 100, 140, 5)
    assert any("means over 5 draws" in note for note in report["notes"])


def test_a_cascade_is_measured_on_data_sets_left_out(
    evaluate: Run, answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each in turn, by a fit to the others: the head keeps the raw order. One alone, or other flags, are refused."""
    rows = [json.loads(line) | {"dataset": "other"} for line in answers.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["prompt"] += f" ({number})"
    both = (answers, written(tmp_path / "other.jsonl", rows))
    report = evaluate("cascade", "--data", *both, "--small", "little", "--large", "great", "--set-out")
    assert len(report["sets"]) == 2
    for one in report["sets"].values():
        assert one["minus_raw"]["head"] == {"value": 0.0, "lo": 0.0, "hi": 0.0}
        assert set(one["ece"]) == {"raw_logprob", "head", "carried"}
    assert report["worst_minus_raw"]["head"] == 0
    assert "two or more" in refusal(capsys, "cascade", "--data", answers, "--set-out")
    assert "stands alone" in refusal(capsys, "cascade", "--data", *both, "--set-out", "--group-out")


def test_a_cascade_may_be_fitted_on_other_files(evaluate: Run, answers: Path, tmp_path: Path) -> None:
    """With no label of the data's own."""
    pytest.importorskip("sklearn", reason="the train extra is not installed")
    rows = [{**row, "prompt": f"Another one: {row['prompt']}"} for row in labelled(150)]
    report = evaluate("cascade", "--data", answers, "--fit", written(tmp_path / "other.jsonl", rows))
    assert report["fit"][0]["rows"] == 150
    assert report["n"] == 240


def test_files_to_fit_on_that_hold_only_prompts_of_the_data_are_refused(
    answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal prompts are left out of the fit, since their labels would give the answer away."""
    pytest.importorskip("sklearn", reason="the train extra is not installed")
    other = written(tmp_path / "other.jsonl", labelled(150))
    error = refusal(capsys, "cascade", "--data", answers, "--fit", other)
    assert "every prompt of --fit is in --data too" in " ".join(error.split())


@pytest.mark.long
def test_first_tokens_are_judged_like_whole_answers(evaluate: Run, tmp_path: Path) -> None:
    """Here only what comes after eight tokens tells right from wrong: more of a stream is worth more."""
    pytest.importorskip("sklearn", reason="the train extra is not installed")
    rows = labelled(240)
    for row in rows:
        little = row["models"]["little"]
        little["logprobs"] = [-0.5] * 8 + [little.pop("confidence")] * 40
    report = evaluate("cascade", "--data", written(tmp_path / "rows.jsonl", rows), "--small", "little", "--prefix")
    assert set(report["prefix"]) == {"8", "16", "24", "48"}
    raw = {tokens: part["apgr"]["raw_logprob"]["value"] for tokens, part in report["prefix"].items()}
    assert raw["8"] == 0.5
    assert raw["48"] == report["apgr"]["raw_logprob"]["value"] > 0.6
    assert "ours" in report["prefix"]["24"]["calls95"]


@pytest.mark.long
def test_equal_seeds_print_equal_objects(evaluate: Run) -> None:
    """Anyone can rerun the proof."""
    command = ("route", "--data", SAMPLE, "--artefact", "static", "--seed", "3")
    assert evaluate(*command) == evaluate(*command)


def test_the_tables_fit_a_hundred_columns(capsys: pytest.CaptureFixture[str], answers: Path) -> None:
    """Figures with their intervals, never folded; progress goes to stderr."""
    assert main(["fit", "eval", "route", "--data", str(answers), "--artefact", "static"]) == 0
    captured = capsys.readouterr()
    assert all(len(line) <= 100 for line in captured.out.splitlines())
    assert "random" in captured.out
    assert "$ per 1,000" in captured.out
    assert "resampling" in captured.err
    assert "nan" not in captured.out.lower()


@pytest.mark.long
def test_the_picture_is_a_png(capsys: pytest.CaptureFixture[str], answers: Path, tmp_path: Path) -> None:
    """Against dollars where the data gives costs, else against the share of large calls."""
    pytest.importorskip("matplotlib", reason="the train extra is not installed")
    for data in (answers, SAMPLE):
        picture = tmp_path / f"{data.stem}.png"
        assert main(["fit", "eval", "route", "--data", str(data), "--artefact", "static", "--plot", str(picture)]) == 0
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size > 20_000


@pytest.mark.long
@pytest.mark.parametrize("command", [("route", "--artefact", "static"), ("cascade", "--calibration", "60")])
def test_a_picture_that_cannot_be_written_costs_no_figures(
    capsys: pytest.CaptureFixture[str], answers: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """They took minutes, and are printed before it is drawn."""
    pytest.importorskip("matplotlib", reason="the train extra is not installed")
    nowhere = tmp_path / "nowhere" / "curve.png"
    assert main(["fit", "eval", *command, "--data", str(answers), "--plot", str(nowhere)]) == 2
    captured = capsys.readouterr()
    assert "APGR" in captured.out
    assert "the picture cannot be written" in captured.err and str(nowhere) in captured.err


def test_a_picture_without_matplotlib_is_refused_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before minutes of fits, and with what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = refusal(capsys, "route", "--data", "nowhere.jsonl", "--plot", tmp_path / "x.png")
    assert "pip install 'tierline[train]'" in said


def test_fits_without_scikit_learn_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answers: Path
) -> None:
    """With what to install; a served artefact needs none."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    for what in ("route", "cascade"):
        assert "pip install 'tierline[train]'" in refusal(capsys, what, "--data", answers)
    assert main(["fit", "eval", "route", "--data", str(answers), "--artefact", "static"]) == 0


def test_rows_without_a_confidence_are_counted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A cascade cannot be judged without the small model's log-probabilities."""
    rows = labelled(60)
    for row in rows[:7]:
        del row["models"]["little"]["confidence"]
    said = refusal(capsys, "cascade", "--data", written(tmp_path / "rows.jsonl", rows), "--small", "little")
    assert "7 of 60 rows have no confidence" in said
    assert "little" in said
    whole = written(tmp_path / "whole.jsonl", labelled(60))
    assert "60 of 60 rows have no logprobs" in refusal(capsys, "cascade", "--data", whole, "--prefix")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["route", "--data", "nowhere.jsonl"], "nowhere.jsonl"),
        (["route", "--data", str(SAMPLE), "--small", "gpt"], "none of gpt is among the models"),
        (["route", "--data", str(SAMPLE), "--small", "big", "--large", "big"], "two tiers are big"),
        (["route", "--data", str(SAMPLE), "--artefact", "nowhere"], "nowhere"),
        (["route", "--data", str(SAMPLE), "--artefact", "static", "--labels", "50"], "remove one of them"),
        (["route", "--data", str(SAMPLE), "--fit", str(SAMPLE)], "is in --fit and in --data"),
        (["cascade", "--data", str(SAMPLE)], "230 of 230 rows have no confidence"),
        (["cascade", "--data", str(SAMPLE), "--group-out", "--calibration", "50"], "remove it with"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    """It says what is wrong and what to do, without a traceback."""
    assert said in refusal(capsys, *arguments)


def test_values_that_json_allows_and_nothing_can_use_are_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Half a character in a text, and a number of tokens beyond all bounds; the line is named."""
    rows = labelled(2)
    torn = written(tmp_path / "torn.jsonl", [rows[0], rows[1] | {"prompt": "half a \ud83d"}])
    assert f"{torn}:2: prompt holds a lone surrogate" in refusal(capsys, "route", "--data", torn)
    rows[0]["models"]["little"]["tok_in"] = float("inf")
    endless = written(tmp_path / "endless.jsonl", rows)
    assert f"{endless}:1: cannot convert float infinity" in refusal(capsys, "route", "--data", endless)


@pytest.mark.parametrize(
    "arguments",
    [
        ["eval"],
        ["eval", "route"],
        ["eval", "route", "--data", "x", "--folds", "1"],
        ["eval", "route", "--data", "x", "--group-out", "--artefact", "static"],
        ["eval", "cascade", "--data", "x", "--calibration", "3"],
        ["eval", "route", "--data", "x", "--seed", "-1"],
        ["eval", "cascade", "--data", "x", "--seed", "4294967296"],
        ["train", "--data", "x", "--out", "y", "--seed", "-1"],
        ["train", "confidence", "--data", "x", "--model", "m", "--out", "y", "--seed", "-1"],
    ],
)
def test_a_wrong_command_line_is_exit_code_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """argparse says which flag."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err
