"""`tierline fit train`: its command line, ladders of more than two tiers, and figures that `fit eval` gives too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.cli.main import main
from gateway.encoders import load_embedder
from gateway.parts.fit.datasets import DataError, Example, choose_ladder, label, read_rows
from gateway.parts.fit.metrics import measure
from gateway.parts.heads.head import ConfidenceHead
from routing.confidence.judge import Evidence
from routing.difficulty.model import SHEET_FILE, DifficultyModel
from routing.features import Features, features_of_text
from tests.support.claims import claiming_all
from tests.support.extras import needs

pytestmark = needs("sklearn", "the train extra is not installed")

SAMPLE = Path(__file__).parents[2] / "fixtures" / "routing_sample.jsonl"


def row(number: int, prompt: str, **right: float) -> str:
    models = {name: {"correct": correct} for name, correct in right.items()}
    return json.dumps({"id": number, "dataset": "sums", "group": "g", "prompt": prompt, "models": models})


def sums(count: int = 240) -> Iterator[str]:
    """Additions of two, three or four numbers: ever fewer models can do them."""
    rng = np.random.default_rng(0)
    for number in range(count):
        terms = 2 + number % 3
        prompt = "What is " + " plus ".join(str(n) for n in rng.integers(10, 99, terms)) + "?"
        chances = {"tiny": (0.9, 0.2, 0.05), "mid": (0.95, 0.85, 0.2), "big": (0.97, 0.95, 0.85)}
        yield row(number, prompt, **{name: float(rng.random() < some[terms - 2]) for name, some in chances.items()})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "sums.jsonl"
    path.write_text("\n".join(sums()))
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a command line."""
    try:
        code = main([str(word) for word in words])
    except SystemExit as stop:
        code = int(stop.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_ladder_of_three_is_trained_saved_and_judged(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--middle` puts a tier between the two: the artefact says of each how likely it is right, in their order."""
    words = ("--small", "tiny", "--middle", "other", "mid", "--large", "big", "--note", "three")
    code, out, err = run(capsys, "train", "--data", data, "--out", tmp_path / "three", *words)
    assert (code, "ECE middle" in out) == (0, True), err
    model = DifficultyModel.load(tmp_path / "three")
    assert model.tiers == 3
    embedder = load_embedder("static", tmp_path)
    for prompt in ("What is 15 plus 22 plus 81?", "What is 91 plus 17 plus 12 plus 64?"):
        (vector,) = embedder.embed([prompt])
        probabilities = model.probabilities(vector, Features(text=prompt, turns=1, approx_tokens=10))
        assert len(probabilities) == 3
        assert probabilities[0] + 0.1 < probabilities[1] < probabilities[2]
    sheet = json.loads((tmp_path / "three" / SHEET_FILE).read_text())
    assert sheet["what"].count("P(") == 3
    source = sheet["trained_on"][0]
    assert (source["small"], source["middle"], source["large"]) == ("tiny", ["mid"], "big")
    assert "--small tiny --middle other mid --large big" in sheet["command"]
    figures = sheet["measured"]["datasets"]["all"]
    assert figures["small_accuracy"] < figures["middle_accuracy"][0] < figures["large_accuracy"]
    assert len(figures["ece_middle"]) == 1


def test_a_slow_encoder_may_be_spared_prompts_and_templates(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So many prompts of a file are fitted, kinds are told without vectors, and the sheet's command says both."""
    words = ("--at-most", 120, "--kinds-by-words", "--large", "mid")
    code, _, err = run(capsys, "train", "--data", data, "--out", tmp_path / "some", *words)
    assert code == 0, err
    sheet = json.loads((tmp_path / "some" / SHEET_FILE).read_text())
    assert (sheet["trained_on"][0]["rows"], sheet["measured"]["datasets"]["all"]["n"]) == (120, 120)
    assert "--at-most 120 --kinds-by-words" in sheet["command"]
    made = DifficultyModel.load(tmp_path / "some")
    assert not made.kind_vectors.any()
    assert made.vector_weights.any()


def test_a_pair_has_no_middle(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without `--middle` there are two tiers, whatever other models the file has."""
    code, out, err = run(capsys, "train", "--data", data, "--out", tmp_path / "two")
    assert (code, "ECE middle" in out) == (0, False), err
    assert DifficultyModel.load(tmp_path / "two").tiers == 2
    assert "middle" not in (tmp_path / "two" / SHEET_FILE).read_text()


def test_each_rung_is_the_first_name_a_file_has(data: Path) -> None:
    """Rungs keep the order they are given in, and no model is two tiers."""
    rows = read_rows(data)
    assert choose_ladder(rows, [], [], []) == ("tiny", "big")
    assert choose_ladder(rows, [], [["gpt", "mid"]], []) == ("tiny", "mid", "big")
    assert choose_ladder(rows, ["mid"], [["tiny"]], ["big"]) == ("mid", "tiny", "big")
    with pytest.raises(DataError, match="two tiers are big, of tiny, big, big"):
        choose_ladder(rows, [], [["big"]], [])
    with pytest.raises(DataError, match="none of gpt is among the models of the file: big, mid, tiny"):
        choose_ladder(rows, [], [["mid"], ["gpt"]], [])


def test_a_row_counts_only_if_every_tier_answered_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Examples have an answer of each tier; a file without one such row is an error that names the tiers."""
    path = tmp_path / "gaps.jsonl"
    path.write_text("\n".join([row(0, "a?", tiny=1, big=1), row(1, "b?", tiny=0, mid=1, big=1)]))
    (only,) = label(read_rows(path), "tiny", "mid", "big")
    assert [answer.correct for answer in only.answers] == [0, 1, 1]
    path.write_text("\n".join([row(0, "a?", tiny=1, big=1), row(1, "b?", mid=1, big=1)]))
    names = ("--small", "tiny", "--middle", "mid", "--large", "big")
    code, _, err = run(capsys, "train", "--data", path, "--out", tmp_path / "x", *names)
    assert code == 2
    assert "no prompt was answered by all of tiny, mid, big" in err


def test_train_and_eval_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the data sheet says of a classifier is what `tierline fit eval route` measures on the same data."""
    code, out, err = run(capsys, "train", "--data", SAMPLE, "--out", tmp_path / "x", "--seed", "4")
    assert code == 0, err
    sheet = json.loads((tmp_path / "x" / SHEET_FILE).read_text())["measured"]["datasets"]
    code, out, err = run(capsys, "eval", "route", "--data", SAMPLE, "--seed", "4", "--json")
    assert code == 0, err
    evaluated: dict[str, Any] = json.loads(out)
    for shown, measured in {"all": evaluated, **evaluated["datasets"]}.items():
        assert sheet[shown]["n"] == measured["n"]
        for method in ("random", "length", "groups", "ours"):
            assert sheet[shown]["apgr"][method] == pytest.approx(measured["apgr"][method]["value"], abs=1e-4)
        assert sheet[shown]["ece_small"] == pytest.approx(measured["ece"]["ours"]["value"], abs=1e-4)


def test_a_data_set_without_a_gap_has_no_apgr(tmp_path: Path) -> None:
    """Where the large model is no better than the small one, figures that mean nothing are left out of the sheet."""
    examples = list(label(read_rows(SAMPLE), "tiny", "big"))
    equal = [Example(e.prompt, "equal", e.group, (e.answers[0], e.answers[0])) for e in examples]
    both = examples + equal
    fold = np.arange(len(both)) % 5
    figures = measure(both, np.full((len(both), 2), 0.5), fold)
    assert figures["equal"]["apgr"] == {}
    assert figures["all"]["apgr"]["random"] == pytest.approx(0.5)
    assert json.dumps(figures, allow_nan=False)


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ((), "--data, --out"),
        (("--data", "a.jsonl"), "--out"),
        (("--out", "x"), "--data"),
        (("confidence",), "--data, --model, --out"),
        (("confidence", "--data", "a.jsonl", "--out", "x"), "--model"),
    ],
)
def test_what_is_required_is_asked_for(
    words: tuple[str, ...], missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The classifier needs `--data` and `--out`; `confidence` has requirements of its own, and no others."""
    code, _, err = run(capsys, "train", *words)
    assert code == 2
    described = " ".join(["tierline fit train", *(word for word in words[:1] if word == "confidence")])
    assert err.endswith(
        f"error: the following arguments are required: {missing}; `{described} --help` describes them\n"
    )


def test_help_tells_of_both(capsys: pytest.CaptureFixture[str]) -> None:
    """Each of the two is found from the other's name, with its own flags."""
    code, out, _ = run(capsys, "train", "--help")
    assert code == 0
    assert out.startswith("usage: tierline fit train --data FILE... --out DIR [options]\n")
    assert "tierline fit train confidence --data FILE... --model NAME --out FILE" in out
    assert "--middle" in out
    code, out, _ = run(capsys, "train", "confidence", "--help")
    assert code == 0
    assert out.startswith("usage: tierline fit train confidence [options] --data")
    assert "--calibration" in out
    assert "--middle" not in out


def test_confidence_is_trained_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`tierline fit train confidence` fits a head, and its mistakes are one line each like all others."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(60):
        tokens = (-rng.exponential(0.5, 5)).round(3).tolist()
        models = {"tiny": {"correct": int(number % 3 == 0), "logprobs": tokens, "finish_reason": "stop"}}
        lines.append(json.dumps({"id": number, "dataset": "d", "group": "g", "prompt": "why?", "models": models}))
    data, out = tmp_path / "answers.jsonl", tmp_path / "head.json"
    data.write_text("\n".join(lines))
    words = ("train", "confidence", "--data", data, "--out", out, "--model")
    code, said, err = run(capsys, *words, "tiny", "--json")
    assert code == 0, err
    assert json.loads(said)["labels"] == 60
    assert json.loads(out.read_text())["model"] == "tiny"
    code, said, err = run(capsys, *words, "gpt")
    assert (code, said) == (2, "")
    assert err.endswith("no answer of gpt; it has those of tiny\n")


def test_a_confidence_head_may_weigh_in_the_classifier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its estimate for the prompt gets a weight where it tells right from wrong; the data sheet names its version."""
    embedder = load_embedder("static", tmp_path)
    artefact = claiming_all(tmp_path / "claims")
    classifier = DifficultyModel.load(artefact, embedder)
    asked = (
        "Tell me a story about",
        "Can you write a poem about",
        "Why do people love",
        "Give me ideas for a day with",
    )
    what = ("my cat", "an old friend", "two dogs", "the sea", "my grandmother", "a dragon", "good food", "the summer")
    how = ("", " please", ", in short", " and make it funny", " that I can share", " for my sister", " in rhymes")
    prompts = [f"{one} {of}{so}?" for one, of, so in product(asked, what, how)]
    judged = [
        classifier.assess(vector, features_of_text(prompt))
        for vector, prompt in zip(embedder.embed(prompts), prompts, strict=True)
    ]
    assert all(one.in_domain for one in judged)
    middle = np.median([one.p_right[0] for one in judged])
    rng, lines = np.random.default_rng(0), []
    for prompt, one in zip(prompts, judged, strict=True):
        right = int((one.p_right[0] > middle) != (rng.random() < 0.1))
        models = {"tiny": {"correct": right, "confidence": -float(rng.exponential(0.5))}}
        lines.append(json.dumps({"id": prompt, "dataset": "d", "group": "g", "prompt": prompt, "models": models}))
    data, out = tmp_path / "answers.jsonl", tmp_path / "head.json"
    data.write_text("\n".join(lines))
    words = ("train", "confidence", "--data", data, "--out", out, "--model", "tiny", "--json", "--state", tmp_path)
    code, said, err = run(capsys, *words, "--classifier", artefact)
    assert code == 0, err
    report = json.loads(said)
    assert report["prior"]["weight"] > 0.1
    assert report["classifier"] == classifier.version == json.loads(out.read_text())["classifier"]
    head, evidence = ConfidenceHead.load(out), Evidence("a", logprobs=[-0.5])
    assert (head.p_right(evidence, 0.6) or 0) > (head.p_right(evidence, 0.1) or 1)
    code, said, err = run(capsys, *words, "--classifier", tmp_path)
    assert code == 2
    assert "cannot be read" in err
