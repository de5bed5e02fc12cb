"""Training: what the artefact is made of, how it is measured, and `tierline fit train` around it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.cli.main import main
from gateway.parts.fit.curves import calibration_error
from gateway.parts.fit.datasets import (
    DataError,
    Example,
    LabelledAnswer,
    choose_pair,
    label,
    read_rows,
    without_choices,
)
from gateway.parts.fit.folds import folds_of
from gateway.parts.fit.metrics import apgr
from gateway.parts.fit.training.difficulty import Recipe, Trained, cross_validate, save, train
from routing.difficulty.model import SHEET_FILE, DifficultyModel
from routing.difficulty.text_statistics import COUNTS
from routing.embedder import Vectors
from routing.features import Features
from tests.support.extras import needs

pytestmark = needs("sklearn", "the train extra is not installed")

SAMPLE = Path(__file__).parents[2] / "fixtures" / "routing_sample.jsonl"
RECIPE = Recipe(folds=2, centroids=4, outside=0.1)


class HashedWords:
    """An encoder made for these tests: each word is a fixed direction, a text their normalised sum."""

    name = "hashed-words"
    dimension = 16
    whole_chars = 1000

    def embed(self, texts: Sequence[str]) -> Vectors:
        sums = np.array([np.sum([self._direction(word) for word in text.lower().split()], axis=0) for text in texts])
        return (sums / np.linalg.norm(sums, axis=1, keepdims=True)).astype(np.float32)

    @staticmethod
    @cache
    def _direction(word: str) -> NDArray[np.float64]:
        return np.random.default_rng(list(word.encode())).normal(size=HashedWords.dimension)


def run_tierline(*arguments: str) -> int:
    """Run a command line in this process and return its exit code."""
    try:
        return main(list(arguments))
    except SystemExit as end:
        return int(end.code or 0)


def silently(stage: str, done: int, total: int) -> None:
    """No progress bar."""


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    return list(label(read_rows(SAMPLE), "tiny", "big"))


@pytest.fixture(scope="module")
def trained(examples: list[Example]) -> Trained:
    return train(examples, HashedWords(), RECIPE, silently)


def features(text: str) -> Features:
    return Features(text=text, turns=1, approx_tokens=len(text) // 4 + 4)


def test_what_is_saved_is_what_is_loaded(trained: Trained, tmp_path: Path) -> None:
    """An artefact goes to disk and back with its numbers, its encoder and its hash."""
    digest = save(trained, tmp_path, {"what": "a test"})
    model = DifficultyModel.load(tmp_path, HashedWords())
    assert model.version == digest[:12]
    assert np.array_equal(model.vector_weights, trained.tensors["heads.vector"])
    assert np.array_equal(model.centroids, trained.tensors["domain.centroids"])
    assert json.loads((tmp_path / SHEET_FILE).read_text())["what"] == "a test"


def test_equal_inputs_give_equal_bytes(examples: list[Example], trained: Trained, tmp_path: Path) -> None:
    """Training twice with one seed gives one artefact."""
    again = train(examples, HashedWords(), RECIPE, silently)
    assert save(trained, tmp_path / "a", {}) == save(again, tmp_path / "b", {})


def test_it_learns_what_gains_and_beats_chance(examples: list[Example], trained: Trained, tmp_path: Path) -> None:
    """Questions of many steps, which the small model fails, score harder than one-step ones."""
    save(trained, tmp_path, {})
    model = DifficultyModel.load(tmp_path)
    scores: dict[str, list[float]] = {"steps-1": [], "steps-3": []}
    for example in examples:
        if example.group in scores:
            vector = HashedWords().embed([example.prompt])[0]
            scores[example.group].append(model.assess(vector, features(example.prompt)).score)
    assert np.mean(scores["steps-3"]) > np.mean(scores["steps-1"]) + 0.05
    assert trained.metrics["datasets"]["all"]["apgr"]["ours"] > 0.5


def test_the_domain_leaves_out_the_share_it_was_told_to(examples: list[Example], trained: Trained) -> None:
    """About one in ten training texts is farther from every centroid than the threshold."""
    for number, kind in enumerate(trained.kinds[:-1]):
        texts = [example.prompt for example in examples if example.dataset == kind]
        centroids = trained.tensors["domain.centroids"][trained.tensors["domain.kind"] == number]
        nearest = (HashedWords().embed(texts) @ centroids.T).max(axis=1)
        threshold = trained.tensors["domain.min_similarity"][number]
        beyond, not_nearer = (nearest < threshold - 1e-6).mean(), (nearest <= threshold + 1e-6).mean()
        assert beyond - 1 / len(texts) <= 0.1 <= not_nearer + 1 / len(texts), "texts of equal words are equally near"


def test_the_range_of_counts_is_that_of_the_training_texts(examples: list[Example], trained: Trained) -> None:
    """So few texts keep theirs whole: its ends are the shortest text's and the longest's."""
    size = np.log1p([len(example.prompt) for example in examples])
    low, high, mean = (trained.tensors[f"domain.counts_{part}"] for part in ("low", "high", "mean"))
    ours = COUNTS.index("log_chars")
    assert (low[-1, ours], high[-1, ours], mean[-1, ours]) == pytest.approx(
        (size.min(), size.max(), size.mean()), abs=1e-5
    )


def test_a_trend_of_the_fitted_prompts_does_not_lead_on_to_others() -> None:
    """The longer of the fitted prompts mostly fail; of one that is twenty times as long only the mean is said."""
    rng = np.random.default_rng(0)
    words = rng.integers(20, 40, 300)
    small = np.where(words > 30, rng.random(300) < 0.1, rng.random(300) < 0.9)
    long = np.full(50, 800)
    examples = [
        Example("word " * count, "d", "g", (LabelledAnswer(float(right)), LabelledAnswer(float(index % 3 > 0))))
        for index, (count, right) in enumerate(zip([*words, *long], [*small, *np.zeros(50)], strict=True))
    ]
    fold = np.where(np.arange(350) < 250, -1, 0)
    said = cross_validate(examples, HashedWords(), Recipe(outside=0.0), fold, silently)[:, 0]
    assert said[250:300].min() < 0.25
    assert said[250:300].max() > 0.75
    assert said[300:] == pytest.approx(np.full(50, small[:250].mean()), abs=0.1)


def test_bare_questions_are_fitted_too_when_asked_for(examples: list[Example], trained: Trained) -> None:
    """Then the same prompts without their choices lie in the domain as well, and the heads are others."""
    chosen = [replace(e, prompt=f"{e.prompt} Which of these is it?\nA. one\nB. two") for e in examples]
    plain, both = (
        train(chosen, HashedWords(), replace(RECIPE, bare_questions=asked), silently) for asked in (False, True)
    )
    assert not np.array_equal(plain.tensors["heads.vector"], both.tensors["heads.vector"])
    assert both.tensors["domain.min_chars"][0] < plain.tensors["domain.min_chars"][0]


def test_a_weaker_cheap_tier_raises_every_score(examples: list[Example], trained: Trained, tmp_path: Path) -> None:
    """Told how seldom the tier in use is right, the classifier expects more of the strong one."""
    weaker = train(examples, HashedWords(), replace(RECIPE, small_accuracy={"": 0.1}), silently)
    save(trained, tmp_path / "labels", {})
    save(weaker, tmp_path / "weaker", {})
    before, after = (DifficultyModel.load(tmp_path / name) for name in ("labels", "weaker"))
    cheap = []
    for example in examples:
        vector = HashedWords().embed([example.prompt])[0]
        seen = before.probabilities(vector, features(example.prompt))
        moved = after.probabilities(vector, features(example.prompt))
        assert moved[0] < seen[0]
        assert moved[1] == pytest.approx(seen[1], abs=1e-6)
        cheap.append(moved[0])
    assert np.mean(cheap) == pytest.approx(0.1, abs=0.03)


def test_labels_that_tell_nothing_are_refused(examples: list[Example]) -> None:
    """A model that is always right, or no data at all, is said in one line that names the data set."""
    always = [replace(e, answers=(e.answers[0], LabelledAnswer(1.0))) for e in examples]
    with pytest.raises(DataError, match=r"sample_words: the large model was right on 150 of 150"):
        train(always, HashedWords(), RECIPE, silently)
    with pytest.raises(DataError, match="no labelled prompts"):
        train([], HashedWords(), RECIPE, silently)


def test_rows_are_read_plain_and_gzipped(tmp_path: Path) -> None:
    """The same rows come out of both, and a printed list of one prompt is unwrapped."""
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(SAMPLE.read_bytes()))
    assert read_rows(packed) == read_rows(SAMPLE)
    wrapped = tmp_path / "wrapped.jsonl"
    wrapped.write_text('{"id": 1, "dataset": "d", "group": "g", "prompt": "[\'a\\\\nb\']", "models": {}}\n')
    assert read_rows(wrapped)[0].prompt == "a\nb"
    wrapped.write_text('{"id": 1, "dataset": "d", "group": "g", "prompt": "[\'a\', \'b\']", "models": {}}\n')
    assert read_rows(wrapped)[0].prompt == "a\nb"


def test_a_damaged_gzipped_file_is_named(tmp_path: Path) -> None:
    """One that ends too early, and one with other bytes in its middle."""
    packed = gzip.compress(SAMPLE.read_bytes())
    cut, changed = tmp_path / "cut.jsonl.gz", tmp_path / "changed.jsonl.gz"
    cut.write_bytes(packed[:-20])
    changed.write_bytes(packed[:20] + bytes(100) + packed[120:])
    for file in (cut, changed):
        with pytest.raises(DataError, match=file.name):
            read_rows(file)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("not json", "not JSON"),
        ("[]", r"a row is an object, this is \[\]"),
        ("{}", "prompt missing"),
        ('{"id": 1, "dataset": "d", "group": "g", "prompt": 3, "models": {}}', "prompt is a text, not 3"),
        (
            '{"id": 1, "dataset": "d", "group": "g", "prompt": "p", "models": {"m": 1}}',
            "models is an object of objects",
        ),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, line: str, reason: str) -> None:
    """Whoever prepared the data finds the line."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text(SAMPLE.read_text().splitlines()[0] + "\n" + line + "\n")
    with pytest.raises(DataError, match=rf"bad\.jsonl:2: {reason}"):
        read_rows(bad)


def test_the_pair_is_the_first_named_or_the_worst_and_the_best() -> None:
    """Names may be spelt as each file spells them; none of them there is an error that lists what is."""
    rows = read_rows(SAMPLE)
    assert choose_pair(rows, [], []) == ("tiny", "big")
    assert choose_pair(rows, ["other", "big"], ["tiny"]) == ("big", "tiny")
    with pytest.raises(DataError, match="none of gpt is among the models of the file: big, tiny"):
        choose_pair(rows, [], ["gpt"])


def test_a_class_of_models_is_as_right_as_they_are_on_average(tmp_path: Path) -> None:
    """Those that did not answer a prompt do not count there; a class that a file lacks a model of is not taken."""
    path = tmp_path / "rows.jsonl"
    row = (
        '{"id": 1, "dataset": "d", "group": "g", "prompt": "p", "models": {"a": {"correct": 1}, "c": {"correct": 1}%s}}'
    )
    path.write_text("\n".join([row % ', "b": {"correct": 0}', row % ""]))
    rows = read_rows(path)
    assert choose_pair(rows, ["a+x", "a+b"], ["c"]) == ("a+b", "c")
    assert [one.small for one in label(rows, "a+b", "c")] == [0.5, 1.0]


def test_apgr_of_a_perfect_a_random_and_a_reversed_order() -> None:
    """The earlier the gains, the higher; chance gives a half; where nothing can be gained it is undefined."""
    small, large = np.array([1.0, 1, 0, 0]), np.array([1.0, 1, 1, 1])
    assert apgr(np.array([0.0, 0, 1, 1]), small, large) == pytest.approx(0.75)
    assert apgr(np.array([1.0, 1, 0, 0]), small, large) == pytest.approx(0.25)
    assert np.isnan(apgr(np.zeros(4), large, large))
    order = np.random.default_rng(0).random(20_000)
    labels = np.random.default_rng(1).random((2, 20_000)) < [[0.3], [0.7]]
    assert apgr(order, *labels.astype(float)) == pytest.approx(0.5, abs=0.02)


def test_calibration_error_is_the_distance_from_the_truth() -> None:
    """What is said with 0.8 and comes true in half the cases is 0.3 off."""
    truth = np.tile([0.0, 1.0], 500)
    assert calibration_error(np.full(1000, 0.5), truth) == pytest.approx(0, abs=1e-9)
    assert calibration_error(np.full(1000, 0.8), truth) == pytest.approx(0.3)


def test_folds_differ_in_size_by_one_at_most() -> None:
    """Every prompt is in one fold, and no fold has more than its share."""
    assert np.bincount(folds_of(100, 5, seed=3)).tolist() == [20] * 5
    assert sorted(np.bincount(folds_of(11, 3, seed=3)).tolist()) == [3, 4, 4]


def test_a_question_is_told_from_its_choices() -> None:
    """A multiple-choice prompt yields its question; prose does not, however short the question."""
    assert without_choices("Which gas do plants take in?\nA. Oxygen\nB. Neon") == "Which gas do plants take in?"
    assert without_choices("Short?\nA. x\nB. y") is None
    assert without_choices("No choices here. A. Smith wrote it.") is None


def test_the_command_trains_and_says_how_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`tierline fit train` writes a loadable artefact whose sheet holds the command, the pair and every file's hash."""
    out = tmp_path / "classifier"
    command = [
        "fit",
        "train",
        "--data",
        str(SAMPLE),
        "--out",
        str(out),
        "--seed",
        "3",
        "--small",
        "tiny",
        "--note",
        "ours",
    ]
    code = run_tierline(*command)
    output = capsys.readouterr()
    assert code == 0, output.err
    assert "ours" in output.out
    assert "cross-validating" in output.err
    sheet = json.loads((out / SHEET_FILE).read_text())
    assert sheet["command"] == (
        "tierline fit train --data routing_sample.jsonl --out classifier --embedding static --seed 3 --small tiny"
    )
    assert sheet["trained_on"][0] | {"sha256": ""} == {
        "file": "routing_sample.jsonl",
        "sha256": "",
        "rows": 230,
        "small": "tiny",
        "large": "big",
    }
    assert sheet["notes"] == ["ours"]
    assert DifficultyModel.load(out).version in output.out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--data", "nowhere.jsonl", "--out", "x"], 2, "nowhere.jsonl"),
        (["--data", str(SAMPLE), "--out", "x", "--large", "gpt"], 2, "none of gpt is among the models"),
        (["--data", str(SAMPLE), "--out", "x", "--small-accuracy", "7"], 2, "is not a share between 0 and 1"),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    """No traceback, and an exit code that says whose fault it is."""
    monkeypatch.chdir(tmp_path)
    assert run_tierline("fit", "train", *arguments) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "x").exists()
