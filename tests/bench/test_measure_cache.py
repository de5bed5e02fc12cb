"""`measure_cache`: the objects it prints, that it decides as the gateway does, and how it refuses."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from policies.loader import SHIPPED
from tests.bench.measure_cache import main

SAMPLE = Path(__file__).parents[1] / "fixtures" / "cache_sample.jsonl"
BASELINES = {"cosine_0.80", "cosine_0.90", "cosine_0.95"}
FIGURE = {"value", "lo", "hi", "n"}

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def evaluate(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `python -m tests.bench.measure_cache ... --json` and parses the one object on stdout."""

    def run(*arguments: str | Path) -> dict[str, Any]:
        code = main([*map(str, arguments), "--json"])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        parsed = json.loads(captured.out)
        assert isinstance(parsed, dict)
        return parsed

    return run


def leaves(found: object) -> Iterator[dict[str, Any]]:
    """Every figure in a report."""
    if isinstance(found, dict) and "value" in found:
        yield found
    elif isinstance(found, dict | list):
        for inner in found.values() if isinstance(found, dict) else found:
            yield from leaves(inner)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main([*map(str, arguments)]) == 2
    return " ".join(capsys.readouterr().err.split())


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_pairs_print_the_object_that_was_promised(evaluate: Run) -> None:
    """All, every group and every baseline have three figures, each with value, lo, hi and n; and there is the best."""
    report = evaluate("--pairs", SAMPLE)
    assert list(report) == ["all", "groups", "baselines", "best_at_1pct", "stages"]
    assert set(report["baselines"]) == BASELINES
    three = {"served", "wrong", "precision"}
    for part in (report["all"], *report["groups"].values(), *report["baselines"].values()):
        assert set(part) == three
    for figure in leaves(report):
        assert set(figure) == FIGURE
        assert figure["value"] is None or figure["lo"] <= figure["value"] <= figure["hi"]
    assert (report["all"]["served"]["n"], report["all"]["wrong"]["n"]) == (5, 8)


def test_gates_count_what_each_rule_stops(evaluate: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Over single questions, as four counts for each; a stream has no pairs to count."""
    gates = evaluate("--pairs", SAMPLE, "--gates", "--cross-encoder", "none")["gates"]
    assert gates
    for counts in gates.values():
        assert list(counts) == ["same", "same_alone", "different", "different_alone"]
        assert counts["same_alone"] <= counts["same"] <= 5
        assert counts["different_alone"] <= counts["different"] <= 8
    assert "--pairs only" in refusal(capsys, "--stream", SAMPLE, "--gates")


def test_a_group_without_such_pairs_has_no_value(evaluate: Run) -> None:
    """Of a group in which no pair wants the same answer, the share served is unknown, not nought."""
    served = evaluate("--pairs", SAMPLE)["groups"]["negation"]["served"]
    assert served == {"value": None, "lo": 0.0, "hi": 1.0, "n": 0}


def test_another_history_is_never_served(evaluate: Run) -> None:
    """The same last message after another conversation or system prompt is a hit for a cosine, and never for us."""
    report = evaluate("--pairs", SAMPLE, "--group", "conversation", "--threshold", "-1")
    assert report["all"]["wrong"]["value"] == 0
    assert report["baselines"]["cosine_0.95"]["wrong"]["value"] > 0


def test_what_asks_the_same_is_served(evaluate: Run) -> None:
    """A repeat is an exact hit, a rephrasing in an equal conversation one by meaning; minimal edits are not served."""
    report = evaluate("--pairs", SAMPLE)
    assert report["groups"]["repeat"]["served"]["value"] == 1
    assert report["groups"]["same conversation"]["served"]["value"] == 1
    assert report["all"]["wrong"]["value"] == 0


def test_a_threshold_counts_instead_of_the_shipped_one(evaluate: Run) -> None:
    """At a score that nothing reaches, repeats alone are served."""
    report = evaluate("--pairs", SAMPLE, "--threshold", "2")
    assert report["all"]["served"]["value"] == pytest.approx(1 / 5)


def test_too_few_pairs_to_be_sure_serve_only_repeats(evaluate: Run) -> None:
    """With eight pairs nobody can promise one wrong in a hundred, so nothing is served by meaning."""
    report = evaluate("--pairs", SAMPLE, "--max-error", "0.01")
    assert report["all"]["served"]["value"] == pytest.approx(1 / 5)


def test_a_stream_prints_the_object_that_was_promised(evaluate: Run) -> None:
    """Hit rate, its two parts, error and precision over all requests, of both halves, and of every baseline."""
    report = evaluate("--stream", SAMPLE, "--max-error", "0.01")
    figures = {"hit_rate", "repeats", "by_meaning", "error", "precision"}
    assert set(report) == figures | {"halves", "baselines"}
    assert [set(half) for half in report["halves"]] == [figures, figures]
    assert set(report["baselines"]) == BASELINES
    assert all(set(part) == figures for part in report["baselines"].values())
    assert all(set(figure) == FIGURE for figure in leaves(report))
    requests = [json.loads(line) for line in SAMPLE.read_text().splitlines()]
    assert report["hit_rate"]["n"] == 2 * len(requests) == sum(half["hit_rate"]["n"] for half in report["halves"])


def test_a_question_that_comes_again_is_a_repeat_and_never_wrong(evaluate: Run, tmp_path: Path) -> None:
    """Nobody labels a question against itself; asked three times, it is answered afresh once."""
    pairs = tmp_path / "pairs.jsonl"
    rows = [("Who wrote Faust?", "How do tides work?"), ("Who wrote Faust?", "Who wrote Faust?")]
    pairs.write_text("".join(json.dumps({"a": a, "b": b, "same_answer": a == b}) + "\n" for a, b in rows))
    report = evaluate("--stream", pairs)
    assert report["hit_rate"]["value"] == report["repeats"]["value"] == 0.5
    assert report["by_meaning"]["value"] == 0
    assert report["error"]["value"] == 0


def test_labels_outside_the_sample_count_in_a_stream(evaluate: Run, tmp_path: Path) -> None:
    """A hit between questions of two pairs is right where a third pair, which is not asked, joins them."""
    one, other = "How do I reset my password?", "how do i reset my password, please"
    asked = [(one, "Who wrote Faust?", False), (other, "Where is Rome?", False)]
    for third, error in (((one, other, True), 0.0), ((one, other, False), 0.25)):
        rows = [{"a": a, "b": b, "same_answer": same} for a, b, same in [*asked, third]]
        report = evaluate("--stream", written(tmp_path / "pairs.jsonl", *rows), "--limit", "2", "--seed", "1")
        assert report["hit_rate"]["n"] == 4
        assert report["by_meaning"]["value"] == 0.25
        assert report["error"]["value"] == error


def test_a_gzipped_file_is_read_whatever_its_name(evaluate: Run, tmp_path: Path) -> None:
    """Whether a file is compressed shows in its first bytes."""
    packed = tmp_path / "pairs"
    packed.write_bytes(gzip.compress(SAMPLE.read_bytes()))
    assert evaluate("--pairs", packed) == evaluate("--pairs", SAMPLE)


def test_equal_runs_give_equal_figures(evaluate: Run) -> None:
    """Every draw hangs on the seed."""
    arguments = ("--stream", SAMPLE, "--max-error", "0.05", "--seed", "3")
    assert evaluate(*arguments) == evaluate(*arguments)


def test_a_table_is_printed_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json, the groups and the baselines stand in tables."""
    assert main(["--pairs", str(SAMPLE)]) == 0
    out = capsys.readouterr().out
    assert "negation" in out
    assert "cosine 0.90" in out


@pytest.mark.long
@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("{", ":2: not JSON"),
        ("[]", ":2: a row is an object"),
        ({"a": "x", "same_answer": True}, ":2: b missing"),
        ({"a": "x", "b": 3, "same_answer": True}, ":2: b is a question or a list of messages, not 3"),
        ({"a": "x", "b": "y", "same_answer": 1}, ":2: same_answer is true or false, not 1"),
        ({"a": [{"role": "user"}], "b": "y", "same_answer": True}, "messages[0].content"),
        ({"a": [], "b": "y", "same_answer": True}, ":2: a: "),
        ('{"a": "\\ud800", "b": "y", "same_answer": true}', ":2: a holds a lone surrogate"),
    ],
)
def test_a_bad_row_is_named_by_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, row: object, wrong: str
) -> None:
    """The message says which line, and what is wrong with it."""
    good = {"a": "x", "b": "y", "same_answer": False}
    assert wrong in refusal(capsys, "--pairs", written(tmp_path / "rows.jsonl", good, row))


def test_an_unknown_group_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelled group does not end in empty figures."""
    said = refusal(capsys, "--pairs", SAMPLE, "--group", "negations")
    assert "negation" in said
    assert "paraphrase" in said


def test_a_file_without_rows_or_that_is_not_there_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Neither ends in a traceback."""
    assert "no rows" in refusal(capsys, "--pairs", written(tmp_path / "empty.jsonl"))
    assert "nowhere.jsonl" in refusal(capsys, "--stream", tmp_path / "nowhere.jsonl")


def test_a_cross_encoder_decides_what_the_verifier_leaves_open(
    evaluate: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On pairs and in a stream: from the threshold on its sheet, or the policy's; a veto stays a veto."""
    pytest.importorskip("onnx", reason="the minilm extra is not installed")
    from tests.support.cross_encoder import write_cross_encoder

    folder = write_cross_encoder(tmp_path / "model")
    model = ("--cross-encoder", folder)
    rows = [
        {"a": "what is the capital of Italy?", "b": "what is the capital of Italy", "same_answer": True},
        {"a": "what is the capital of Italy?", "b": "which city is the capital of Italy?", "same_answer": True},
        {"a": "what is the capital of Italy?", "b": "what is the capital of France", "same_answer": False},
    ]
    pairs = written(tmp_path / "pairs.jsonl", *rows)

    def served(*more: str | Path) -> float:
        value: float = evaluate("--pairs", pairs, *more)["all"]["served"]["value"]
        return value

    assert "no sheet.json states its threshold" in refusal(capsys, "--pairs", pairs, *model)
    report = evaluate("--pairs", pairs, *model, "--threshold", "0")
    assert report["all"]["served"]["value"] == 1.0
    assert report["all"]["wrong"]["value"] == 0.0
    stages = {name: part["same"]["value"] for name, part in report["stages"].items()}
    assert stages == {"rule": 0.5, "cross_encoder": 0.5, "verifier: veto": 0.0}
    graph = hashlib.sha256((folder / "onnx" / "model.onnx").read_bytes()).hexdigest()
    (folder / "sheet.json").write_text(json.dumps({"strict": 1.0, "sha256": graph}))
    assert served(*model) == 0.5
    text = (SHIPPED / "chat.yaml").read_text()
    own = tmp_path / "chat.yaml"
    own.write_text(text.replace("semantic: {", "semantic: {cross_encoder: {min_score: 0}, "))
    assert served(*model, "--policy", own) == 1.0
    assert evaluate("--stream", pairs, *model, "--policy", own)["hit_rate"]["value"] == pytest.approx(4 / 6)
    assert evaluate("--stream", pairs, *model)["hit_rate"]["value"] == pytest.approx(3 / 6)
    own.write_text(text.replace("semantic: {", "semantic: {verify: fast, "))
    assert "none is used" in refusal(capsys, "--pairs", pairs, "--policy", own, *model)
    assert "neither onnx/model.onnx" in refusal(capsys, "--pairs", pairs, "--cross-encoder", tmp_path)
