"""`python -m tests.bench.measure_robustness`: the object it prints, and how it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policies.loader import SHIPPED
from routing.difficulty.model import shipped_artefact
from tests.bench.measure_robustness import main
from tests.support.claims import claiming_all

SAMPLE = Path(__file__).parents[1] / "fixtures" / "routing_sample.jsonl"
POLICY = SHIPPED / "chat.yaml"

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def evaluate(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the tool with --json and parses the one object on stdout."""

    def run(*arguments: str | Path) -> dict[str, Any]:
        code = main([*map(str, arguments), "--json"])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        parsed: dict[str, Any] = json.loads(captured.out)
        return parsed

    return run


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_robustness_says_how_many_pairs_stay_together(evaluate: Run, tmp_path: Path) -> None:
    """Of the pairs that ask the same; conversations are skipped, and the note says how many."""
    texts = [f"How do I change setting number {number} of my {'very ' * number}old telephone?" for number in range(60)]
    pairs: list[dict[str, Any]] = [{"a": text, "b": text, "same_answer": True} for text in texts]
    pairs += [{"a": texts[0], "b": texts[1], "same_answer": False}, {"a": [], "b": [], "same_answer": True}]
    rows = [{"id": number, "dataset": "d", "group": f"g{number % 2}", **pair} for number, pair in enumerate(pairs)]
    report = evaluate("--pairs", written(tmp_path / "pairs.jsonl", rows), "--policy", POLICY)
    assert report["n"] == 60
    assert set(report["agreement"]) == {"20", "35", "50", "65", "80"}
    assert report["same_tier"]["value"] == 1
    assert report["same_tier"]["at"] in (20, 35, 50, 65, 80)
    assert report["in_domain_flips"]["value"] == 0
    assert report["groups"]["g0"]["n"] == 30
    assert report["policy"]["same_tier"]["value"] == 1
    assert "1 pairs of conversations were skipped" in report["notes"]


def test_robustness_reads_start_rules_as_the_gateway_does(evaluate: Run, tmp_path: Path) -> None:
    """Each tier's rule compares that tier's own p_adequate: of the strongest it is 1 for all texts in the domain."""
    policy = tmp_path / "chat.yaml"
    rules = "{hosted: p_adequate >= 1, local: otherwise}"
    policy.write_text(f"surface: chat\nslo: {{deadline: 30s}}\ntiers: [local, hosted]\nroute: {{start: {rules}}}\n")
    sums = [json.loads(line)["prompt"] for line in SAMPLE.read_text("utf-8").splitlines()[:20]]
    prompts = [*sums, *(f"Can you tell me a story about my friend and {number} dogs?" for number in range(3, 23))]
    rows = [{"id": n, "dataset": "d", "group": "g", "a": text, "b": text} for n, text in enumerate(prompts)]
    pairs = written(tmp_path / "pairs.jsonl", [{**row, "same_answer": True} for row in rows])
    for artefact, claimed in ((shipped_artefact("static"), 0.0), (claiming_all(tmp_path / "claims"), 1.0)):
        report = evaluate("--pairs", pairs, "--policy", policy, "--artefact", artefact)
        assert report["in_domain"]["value"] == report["policy"]["share_per_tier"]["hosted"] == claimed


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It says what is wrong and where, without a traceback; argparse refuses what no draw can start from."""
    torn = {"dataset": "d", "group": "g", "a": "\ud83d", "b": "b", "same_answer": True}
    for pairs, wrong in (
        (Path("nowhere.jsonl"), "nowhere.jsonl"),
        (SAMPLE, ":1: a missing; a row is"),
        (written(tmp_path / "pairs.jsonl", [torn]), "pairs.jsonl:1: a holds a lone surrogate"),
    ):
        assert main(["--pairs", str(pairs)]) == 2
        assert wrong in " ".join(capsys.readouterr().err.split())
    with pytest.raises(SystemExit):
        main(["--pairs", "x", "--seed", "4294967296"])
