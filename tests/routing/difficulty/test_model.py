"""The classifier as serving sees it: judging a request, knowing its domain, refusing a bad artefact."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from safetensors.numpy import save as serialise

from routing.difficulty.model import (
    SHEET_FILE,
    WEIGHTS_FILE,
    ArtefactError,
    Difficulty,
    DifficultyModel,
    shipped_artefact,
)
from routing.difficulty.text_statistics import BUCKETS, COUNTS, CountRange, counts_of, read
from routing.embedding.embedder import Embedder, EmbedderKind, StaticEmbedder
from routing.features import Features, features_of

PLAIN = ["Name the capital city of France.", "Say hello", "Thanks, that helps!", "What is the opposite of hot?"]
HARD = [
    "Evaluate the integral of x*e^x from 0 to 1.",
    "What is the probability of drawing two aces in a row from a deck of 52 cards without replacement?",
    "Under the UCC, when may a buyer revoke acceptance of goods that do not conform to the contract?",
    "Which of the following is true of the mitochondrial electron transport chain?\n"
    "A. Complex II pumps protons\nB. Complex IV reduces oxygen\nC. Complex I accepts FADH2\n"
    "D. ATP synthase consumes ATP\nAnswer:",
]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return StaticEmbedder.load()


@pytest.fixture(scope="module")
def model(embedder: Embedder) -> DifficultyModel:
    return DifficultyModel.load(shipped_artefact("static"), embedder)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the shipped artefact, to be damaged."""
    return Path(shutil.copytree(shipped_artefact("static"), tmp_path / "artefact"))


def features(text: str, **changed: bool | int) -> Features:
    return Features(**{"text": text, "turns": 1, "approx_tokens": len(text) // 4 + 4, **changed})  # type: ignore[arg-type]


def count_range(**ends: tuple[float, float]) -> CountRange:
    """These counts were fitted between these ends, with the middle for their mean; the others never varied."""
    low, high = (np.array([ends.get(name, (0, 0))[end] for name in COUNTS], np.float32) for end in (0, 1))
    return CountRange.between(low, high, (low + high) / 2)


def tiny_model(bias: tuple[float, float]) -> DifficultyModel:
    """One kind of task, whose tiers are right with the probabilities of these logits; at home near the first axis."""
    return DifficultyModel(
        embedder="two",
        version="test",
        tiers=2,
        word_places=np.zeros(BUCKETS, np.int32),
        rarity=np.zeros(1, np.float32),
        word_weights=np.zeros((1, 3), np.float16),
        vector_weights=np.zeros((3, 2), np.float32),
        count_weights=np.zeros((3, len(COUNTS)), np.float32),
        bias=np.array([*bias, 0], np.float32),
        general_counts=np.zeros((2, len(COUNTS)), np.float32),
        general_bias=np.array([1, 1], np.float32),
        centroids=np.array([[1, 0]], np.float32),
        min_similarity=0.5,
        min_chars=5,
        count_range=count_range(),
    )


def test_the_score_is_what_the_strong_tier_is_expected_to_gain() -> None:
    """Equal tiers, or a better cheap one, gain nothing; a sure strong and a hopeless cheap one gain everything."""
    at_home = np.array([1, 0], np.float32)
    assert tiny_model((0, 0)).assess(at_home, features("a question")).score == 0
    assert tiny_model((3, -3)).assess(at_home, features("a question")).score == 0
    sure = tiny_model((-20, 20)).assess(at_home, features("a question"))
    assert sure.score == pytest.approx(1, abs=1e-6)
    assert sure.p_adequate == pytest.approx(0, abs=1e-6)


def test_two_hopeless_tiers_are_not_difficult() -> None:
    """Where the strong tier would fail as well, the cheap one is good enough: nothing is gained by asking another."""
    both_wrong = tiny_model((-4, -3)).assess(np.array([1, 0], np.float32), features("a question"))
    assert both_wrong.p_adequate > 0.95


@pytest.mark.parametrize(
    ("vector", "request_features", "known"),
    [
        ((1, 0), features("a question"), True),
        ((0.6, 0.8), features("a question"), True),
        ((0, 1), features("a question"), False),
        ((0, 0), features("     \n    "), False),
        ((1, 0), features("Hm?"), False),
        ((1, 0), features("a question", has_images=True), False),
    ],
)
def test_it_knows_only_what_is_near_its_training_data(
    vector: tuple[float, float], request_features: Features, known: bool
) -> None:
    """Far texts, empty ones, scraps and pictures are out of the domain."""
    assert tiny_model((0, 0)).assess(np.array(vector, np.float32), request_features).in_domain is known


WORKED = "Which gas do plants take in?\nA) Oxygen\nB) Neon\nC) Argon\nD) Carbon dioxide\nAnswer:\nD\n\n"


def test_a_prompt_with_worked_examples_in_front_is_out_of_the_domain(
    model: DifficultyModel, embedder: Embedder
) -> None:
    """Its vector is that of the question alone, but it has more choices than any prompt it was trained on."""
    question = HARD[3]
    for text, known in ((question, True), (WORKED * 5 + question, False)):
        (vector,) = embedder.embed([text])
        assert float((model.centroids @ vector).max()) >= model.min_similarity
        assert model.assess(vector, features(text)).in_domain is known


@pytest.mark.parametrize(("chars", "known"), [(11, True), (19, True), (20, True), (21, True), (22, False), (9, False)])
def test_a_count_far_past_what_was_fitted_is_out_of_the_domain(chars: int, known: bool) -> None:
    """A tenth of the range's width is near enough, on either side; a vector at home does not make up for more."""
    fitted = count_range(log_chars=(float(np.log1p(10)), float(np.log1p(20))))
    model = replace(tiny_model((0, 0)), count_range=fitted)
    assert model.assess(np.array([1, 0], np.float32), features("a" * chars)).in_domain is known


def test_no_head_is_led_on_past_what_was_fitted() -> None:
    """A count a little beyond counts as the last that was seen; one far beyond, as the mean of what was."""
    weights, longer = np.zeros((3, len(COUNTS)), np.float32), np.zeros((2, len(COUNTS)), np.float32)
    weights[0, 0] = longer[0, 0] = -1
    fitted = count_range(log_chars=(float(np.log1p(10)), float(np.log1p(20))))
    model = replace(tiny_model((0, 0)), count_range=fitted, count_weights=weights, general_counts=longer)
    at_home = np.array([1, 0], np.float32)
    end, beyond, far, farther = (model.assess(at_home, features("a" * chars)) for chars in (20, 21, 200, 2000))
    assert end.in_domain
    assert beyond == end
    assert not far.in_domain
    assert farther == far
    mean = (np.log1p(10) + np.log1p(20)) / 2
    assert far.p_right[0] == pytest.approx(1 / (1 + np.exp(mean - 1)), abs=1e-6)


def test_hard_questions_go_past_a_weak_local_tier_and_plain_ones_do_not(
    model: DifficultyModel, embedder: Embedder
) -> None:
    """With the shipped artefact and a start rule of `p_adequate >= 0.7`, only the hard ones skip the cheap tier."""
    for text in HARD:
        difficulty = model.assess(embedder.embed([text])[0], features(text))
        assert difficulty.in_domain, text
        assert difficulty.p_adequate < 0.7, text
    for text in PLAIN:
        assert not model.assess(embedder.embed([text])[0], features(text)).in_domain, text


def test_what_the_data_never_varied_does_not_weigh(model: DifficultyModel, embedder: Embedder) -> None:
    """The training prompts had one turn and no tools, so neither changes the score."""
    (vector,) = embedder.embed([HARD[0]])
    plain = model.assess(vector, features(HARD[0]))
    assert model.assess(vector, features(HARD[0], turns=9, has_tools=True, approx_tokens=9000)) == plain


@pytest.mark.parametrize("kind", ["static", "minilm"])
def test_shipped_artefacts_match_their_data_sheets(kind: EmbedderKind) -> None:
    """Each loads, is small, and its sheet tells data, licences, command and figures."""
    folder = shipped_artefact(kind)
    weights = (folder / WEIGHTS_FILE).read_bytes()
    sheet = json.loads((folder / SHEET_FILE).read_text())
    assert sheet["sha256"] == hashlib.sha256(weights).hexdigest()
    assert len(weights) < 4_000_000
    assert DifficultyModel.load(folder).version == sheet["sha256"][:12]
    assert DifficultyModel.load(folder).embedder == sheet["embedder"]
    assert sheet["command"].startswith("tierline train --data ")
    assert {source["file"] for source in sheet["trained_on"]} <= {
        "routellm_mmlu.jsonl.gz",
        "routellm_gsm8k.jsonl.gz",
        "mmlu_pro.jsonl.gz",
    }, "the shipped artefact is trained on nothing without a licence"
    assert sheet["measured"]["datasets"]["all"]["apgr"]["ours"] > sheet["measured"]["datasets"]["all"]["apgr"]["length"]


def test_an_altered_artefact_is_refused(copied: Path) -> None:
    """One changed byte is enough."""
    weights = bytearray((copied / WEIGHTS_FILE).read_bytes())
    weights[-5] ^= 1
    (copied / WEIGHTS_FILE).write_bytes(weights)
    with pytest.raises(ArtefactError, match="SHA-256"):
        DifficultyModel.load(copied)


@pytest.mark.parametrize("name", [WEIGHTS_FILE, SHEET_FILE])
def test_a_missing_file_is_named(copied: Path, name: str) -> None:
    """The error says which file is not there."""
    (copied / name).unlink()
    with pytest.raises(ArtefactError, match=name):
        DifficultyModel.load(copied)


@pytest.mark.parametrize(
    "content", [b"", b"not safetensors", (2**40).to_bytes(8, "little") + b"{}", b"\x02" + b"\0" * 7 + b"{}"]
)
def test_a_file_of_another_kind_is_refused_in_one_line(copied: Path, content: bytes) -> None:
    """Even with a data sheet that vouches for it."""
    (copied / WEIGHTS_FILE).write_bytes(content)
    (copied / SHEET_FILE).write_text(json.dumps({"sha256": hashlib.sha256(content).hexdigest()}))
    with pytest.raises(ArtefactError, match="is not a tierline-difficulty-3 artefact") as caught:
        DifficultyModel.load(copied)
    assert "\n" not in str(caught.value)


def test_an_artefact_without_fitted_ranges_is_to_be_trained_again(copied: Path) -> None:
    """One of the format before says what it lacks and where its command stands, in one line."""
    tensors = load_file(copied / WEIGHTS_FILE)
    older = {name: tensor for name, tensor in tensors.items() if not name.startswith("domain.counts_")}
    weights = serialise(
        older, metadata={"tierline-difficulty-2": json.dumps({"embedder": "wordllama-256", "tiers": 2})}
    )
    (copied / WEIGHTS_FILE).write_bytes(weights)
    (copied / SHEET_FILE).write_text(json.dumps({"sha256": hashlib.sha256(weights).hexdigest()}))
    with pytest.raises(ArtefactError, match=r"tierline-difficulty-2.*range of each count.*train it again") as caught:
        DifficultyModel.load(copied)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sheet", [b"", b"[]", b"{}", b"\xff"])
def test_a_damaged_data_sheet_is_refused(copied: Path, sheet: bytes) -> None:
    """Without the sheet's hash nothing is loaded."""
    (copied / SHEET_FILE).write_bytes(sheet)
    with pytest.raises(ArtefactError, match="is not a data sheet"):
        DifficultyModel.load(copied)


def test_an_artefact_for_another_encoder_is_refused(embedder: Embedder) -> None:
    """Vectors of two encoders are never mixed, and the error names both."""
    with pytest.raises(ArtefactError, match=r"all-minilm-l6-v2.*wordllama-256"):
        DifficultyModel.load(shipped_artefact("minilm"), embedder)


def test_serving_needs_neither_torch_nor_scikit_learn() -> None:
    """Loading and judging import numpy and safetensors, no learning library and nothing of the network."""
    code = (
        "import sys; from routing.difficulty.model import *; from routing.features import Features;"
        "from routing.embedding.embedder import StaticEmbedder; e = StaticEmbedder.load();"
        "m = DifficultyModel.load(shipped_artefact('static'), e);"
        "m.assess(e.embed(['What is 2 + 2?'])[0], Features('What is 2 + 2?', 1, 8));"
        "print([n for n in ('torch', 'sklearn', 'scipy', 'onnx', 'onnxruntime', 'asyncio') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_features_of_a_request_are_those_of_training(model: DifficultyModel, embedder: Embedder) -> None:
    """A request with one user message is judged as the same prompt was in training."""
    request = features_of({"messages": [{"role": "user", "content": HARD[0]}]})
    reading = read(HARD[0])
    assert np.array_equal(counts_of(request, reading), counts_of(features(HARD[0]), reading))


def test_a_word_weighs_what_its_bucket_was_taught() -> None:
    """Words never seen in training leave the probabilities where they were; a known one moves them."""
    places = np.zeros(BUCKETS, np.int32)
    places[:] = 1
    weights = np.array([[0, 0, 0], [0, 3, 0]], np.float16)
    known = {"word_places": places, "rarity": np.array([0, 100], np.float32), "word_weights": weights}
    taught = replace(tiny_model((0, 0)), **known)
    vector = np.array([1, 0], np.float32)
    assert tiny_model((0, 0)).probabilities(vector, features("a question")) == (0.5, 0.5)
    small, large = taught.probabilities(vector, features("a question"))
    assert (small, large) == (0.5, pytest.approx(1 / (1 + np.exp(-3)), abs=1e-3))
    assert taught.probabilities(vector, features("? ? ? ?")) == (0.5, 0.5)


def test_outside_the_domain_the_counts_alone_speak() -> None:
    """Neither the heads of known tasks nor the vector have a say there, and the request is not in the domain."""
    longer = np.zeros((2, len(COUNTS)), np.float32)
    longer[0, 0] = -1
    model = replace(
        tiny_model((-4, 4)),
        general_counts=longer,
        general_bias=np.array([3, 2], np.float32),
        count_range=count_range(log_chars=(0, 8)),
    )
    far = np.array([0, 1], np.float32)
    short, long = (model.assess(far, features(text)) for text in ("a question", "a question " * 20))
    assert not short.in_domain
    assert short.p_right[0] > long.p_right[0]
    assert short.p_right[1] == long.p_right[1] == pytest.approx(1 / (1 + np.exp(-2)), abs=1e-6)
    assert model.probabilities(np.array([1, 0], np.float32), features("a question"))[0] < 0.02


@pytest.mark.parametrize(
    ("tiers", "expected"),
    [(2, (0.2, 0.9)), (3, (0.2, 0.6, 0.9)), (4, (0.2, 0.2, 0.6, 0.9)), (5, (0.2, 0.2, 0.6, 0.6, 0.9))],
)
def test_a_ladder_of_another_height_is_met_at_its_ends(tiers: int, expected: tuple[float, ...]) -> None:
    """The ends are taken for one another, and a tier between them is promised no more than one at or below it."""
    difficulty = Difficulty((0.2, 0.6, 0.9), True, "v")
    assert tuple(difficulty.p_right_of(position, tiers) for position in range(tiers)) == expected
    assert difficulty.p_adequate_of(tiers - 1, tiers) == 1
    assert difficulty.p_adequate_of(0, tiers) == pytest.approx(difficulty.p_adequate)
