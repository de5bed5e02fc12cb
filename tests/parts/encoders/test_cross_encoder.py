"""The cross-encoder: which folders can be served, and what pairs score."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="the minilm extra is not installed")

from cache.semantic.decision import UNREAD
from gateway.parts.encoders.cross_encoder import CrossEncoder, CrossEncoderError
from tests.support.cross_encoder import write_cross_encoder

ITALY, FRANCE, OTHER_WORDS = "what is the capital of italy", "what is the capital of france", "rome now please"


def score(model: CrossEncoder, stored: str, asked: str) -> float:
    return model.scores([(stored, asked)])[0]


@pytest.mark.parametrize("nested", [True, False])
def test_one_logit_is_a_probability(tmp_path: Path, nested: bool) -> None:
    """The same words score high, other words low, from either place for the graph."""
    model = CrossEncoder.load(write_cross_encoder(tmp_path / "model", nested=nested))
    assert score(model, ITALY, ITALY) > 0.99
    assert 0.9 < score(model, ITALY, FRANCE) < 0.99
    assert score(model, ITALY, OTHER_WORDS) < 0.01


@pytest.mark.parametrize(
    "labels",
    [["not_duplicate", "duplicate"], ["contradiction", "neutral", "entailment"], ["LABEL_0", "LABEL_1"], ["0", "1"]],
)
def test_of_several_labels_the_one_that_means_the_same_counts(tmp_path: Path, labels: list[str]) -> None:
    """Found by its name, wherever the probabilities of the others go."""
    model = CrossEncoder.load(write_cross_encoder(tmp_path / "model", labels))
    assert score(model, ITALY, ITALY) > 0.99
    assert score(model, ITALY, OTHER_WORDS) < 0.01


@pytest.mark.parametrize("labels", [["good", "bad"], ["LABEL_0", "LABEL_1", "LABEL_2"], ["same", "duplicate"]])
def test_labels_that_do_not_say_which_one_it_is_are_an_error(tmp_path: Path, labels: list[str]) -> None:
    """The message names them, and says what to call the one that is meant."""
    folder = write_cross_encoder(tmp_path / "model", labels)
    with pytest.raises(CrossEncoderError, match=f"the labels {', '.join(labels)}.*name it in id2label"):
        CrossEncoder.load(folder)


def test_a_pair_that_is_not_read_whole_is_refused(tmp_path: Path) -> None:
    """Its score is 0, as if they had nothing in common."""
    model = CrossEncoder.load(write_cross_encoder(tmp_path / "model", longest=16))
    assert score(model, ITALY, ITALY) > 0.99
    assert score(model, f"{ITALY} now", f"{ITALY} please") == 0.0


def test_positions_that_lie_behind_the_padding_are_no_tokens(tmp_path: Path) -> None:
    """RoBERTa and its kin read two tokens fewer than they have positions; a tokenizer may say less still."""
    roberta = CrossEncoder.load(write_cross_encoder(tmp_path / "one", longest=16, model_type="roberta", pad_token_id=1))
    assert score(roberta, ITALY, "what is the capital now") > 0.0
    assert score(roberta, ITALY, ITALY) == 0.0
    limited = write_cross_encoder(tmp_path / "other")
    (limited / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 14}))
    assert score(CrossEncoder.load(limited), ITALY, ITALY) == 0.0


def test_the_version_changes_with_whatever_makes_the_scores(tmp_path: Path) -> None:
    """Labels gathered by one model say nothing of another."""
    one = write_cross_encoder(tmp_path / "one")
    other = write_cross_encoder(tmp_path / "other", longest=65)
    versions = [CrossEncoder.load(folder).version for folder in (one, one, other)]
    assert versions[0] == versions[1] != versions[2]


def _without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _garbled(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(b"\x00garbage") and None


def _endless(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"id2label": {"0": "LABEL_0"}}))


def _larger_vocabulary(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["question"] = 999
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (_without("onnx/model.onnx"), "neither onnx/model.onnx nor model.onnx is there"),
        (_garbled("onnx/model.onnx"), "model.onnx: .*export it with sentence-transformers"),
        (_without("config.json"), "config.json: .*No such file"),
        (_garbled("config.json"), "config.json: "),
        (_endless, "config.json: no max_position_embeddings"),
        (_without("tokenizer.json"), "tokenizer.json: "),
        (_garbled("tokenizer.json"), "tokenizer.json: "),
        (_larger_vocabulary, "model.onnx: cannot judge a pair: "),
    ],
)
def test_a_broken_folder_is_said_when_it_is_opened(tmp_path: Path, broken: Callable[[Path], None], said: str) -> None:
    """Each error names the file, and what to do."""
    folder = write_cross_encoder(tmp_path / "model")
    broken(folder)
    with pytest.raises(CrossEncoderError, match=said):
        CrossEncoder.load(folder)


def test_pairs_of_one_call_score_as_they_do_alone(tmp_path: Path) -> None:
    """Shorter pairs are padded, those that are too long left out, and each keeps its place."""
    model = CrossEncoder.load(write_cross_encoder(tmp_path / "model", longest=16))
    pairs = [(ITALY, FRANCE), (f"{ITALY} now", f"{ITALY} please"), ("rome", "rome"), (ITALY, OTHER_WORDS)]
    alone = [score(model, *pair) for pair in pairs]
    assert model.scores(pairs) == pytest.approx(alone)
    assert alone[1] == 0.0 < min(alone[0], alone[2])
    assert model.scores([]) == []


def test_a_data_sheet_states_the_threshold_of_its_graph(tmp_path: Path) -> None:
    """A sheet of another graph is refused, and so is one without a threshold; without a sheet there is none."""
    folder = write_cross_encoder(tmp_path / "model")
    assert CrossEncoder.load(folder).strict is None
    graph = hashlib.sha256((folder / "onnx" / "model.onnx").read_bytes()).hexdigest()
    sheet = folder / "sheet.json"
    sheet.write_text(json.dumps({"strict": 0.75, "sha256": graph}))
    assert CrossEncoder.load(folder).strict == 0.75
    assert CrossEncoder.load(folder).cosine_weights == {}
    sheet.write_text(json.dumps({"strict": 0.75, "sha256": graph, "cosine_weights": {"an-encoder": 4}}))
    assert CrossEncoder.load(folder).cosine_weights == {"an-encoder": 4.0}
    for wrong in ({"an-encoder": -1}, {"an-encoder": "4"}, [4]):
        sheet.write_text(json.dumps({"strict": 0.75, "sha256": graph, "cosine_weights": wrong}))
        with pytest.raises(CrossEncoderError, match=r"cosine_weights is .*; it must map encoders to numbers from 0"):
            CrossEncoder.load(folder)
    sheet.write_text(json.dumps({"strict": 75, "sha256": graph}))
    with pytest.raises(CrossEncoderError, match=r"sheet\.json: strict is 75; it must be a score from 0 to 1"):
        CrossEncoder.load(folder)
    sheet.write_text(json.dumps({"strict": 0.75, "sha256": "0" * 64}))
    with pytest.raises(CrossEncoderError, match=r"sheet\.json: its sha256 is not that of the graph beside it"):
        CrossEncoder.load(folder)


def test_a_model_that_states_its_files_is_opened_later(tmp_path: Path) -> None:
    """And checked then, once; any other is opened at once."""
    folder = write_cross_encoder(tmp_path / "model", strict=0.75)
    version = CrossEncoder.load(folder).version
    sheet = json.loads((folder / "sheet.json").read_text())
    (folder / "sheet.json").write_text(json.dumps(sheet | {"files_version": version}))
    model = CrossEncoder.load(folder, later=True)
    assert (model.version, model.strict) == (version, 0.75)
    assert model.scores([(ITALY, ITALY)])[0] > 0.9
    _garbled("config.json")(folder)
    with pytest.raises(CrossEncoderError, match=r"config\.json: "):
        CrossEncoder.load(folder)
    (folder / "config.json").write_text('{"max_position_embeddings": 32}')
    model = CrossEncoder.load(folder, later=True)
    with pytest.raises(CrossEncoderError, match=r"files_version is not [0-9a-f]{12}, which"):
        model.open()
    assert "files_version" in model.failure
    (folder / "config.json").unlink()
    with pytest.raises(CrossEncoderError, match="files_version"):
        model.scores([(ITALY, ITALY)])
    (folder / "sheet.json").write_text(json.dumps(sheet))
    with pytest.raises(CrossEncoderError, match=r"config\.json: "):
        CrossEncoder.load(folder, later=True)


def test_a_pair_with_an_unknown_token_gets_no_score(tmp_path: Path) -> None:
    """On either side, and beside pairs that are read: two unknown words look the same."""
    model = CrossEncoder.load(write_cross_encoder(tmp_path / "model"))
    read, unread = (ITALY, ITALY), [(ITALY, "what is the capital of spain"), ("rome \U0001f514", "rome \U0001f515")]
    assert model.scores([read, *unread]) == [pytest.approx(1.0, abs=0.1), UNREAD, UNREAD]


def test_the_sheet_lists_what_the_model_reads(tmp_path: Path) -> None:
    """Without lists it reads English in Latin script; a list that is none is an error."""
    folder = write_cross_encoder(tmp_path / "model", strict=0.75)
    model = CrossEncoder.load(folder)
    assert (model.scripts, model.languages) == ({"Latin"}, {"en"})
    sheet = json.loads((folder / "sheet.json").read_text())
    (folder / "sheet.json").write_text(json.dumps(sheet | {"scripts": ["Latin", "Han"], "languages": ["en", "zh"]}))
    model = CrossEncoder.load(folder)
    assert (model.scripts, model.languages) == ({"Latin", "Han"}, {"en", "zh"})
    for key, names in (("scripts", "Latin and Han"), ("languages", "en and zh")):
        (folder / "sheet.json").write_text(json.dumps(sheet | {key: "Latin"}))
        with pytest.raises(CrossEncoderError, match=f"{key} is 'Latin'; it must list names such as {names}"):
            CrossEncoder.load(folder)


def test_statements_have_thresholds_of_their_own(tmp_path: Path) -> None:
    """Without one on the data sheet they are the same from the questions' threshold on."""
    folder = write_cross_encoder(tmp_path / "model", strict=0.75)
    model = CrossEncoder.load(folder)
    assert (model.same_answer, model.other_answer) == (0.75, 0.25)
    sheet = json.loads((folder / "sheet.json").read_text())
    (folder / "sheet.json").write_text(json.dumps(sheet | {"same_answer_strict": 0.9, "other_answer": 0.1}))
    model = CrossEncoder.load(folder)
    assert (model.strict, model.same_answer, model.other_answer) == (0.75, 0.9, 0.1)
    (folder / "sheet.json").write_text(json.dumps(sheet | {"same_answer_strict": 9}))
    with pytest.raises(CrossEncoderError, match="same_answer_strict is 9; it must be a score from 0 to 1"):
        CrossEncoder.load(folder)
    (folder / "sheet.json").unlink()
    assert CrossEncoder.load(folder).same_answer is None
