"""The classifier as serving sees it: judging a request, knowing its domain, refusing a bad artefact."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from routing.difficulty.text_statistics import BUCKETS, COUNTS, CountRange, counts_of, terms_of, tokenise
from routing.embedder import Embedder, EmbedderKind, StaticEmbedder
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
    """These counts were fitted between these ends, with the middle for their mean; the others never varied.

    The rows, one for the only kind and one for all kinds, are equal.
    """
    low, high = (np.array([[ends.get(name, (0, 0))[end] for name in COUNTS]] * 2, np.float32) for end in (0, 1))
    return CountRange.between(low, high, (low + high) / 2, np.ones((2, 1), bool))


def tiny_model(bias: tuple[float, float]) -> DifficultyModel:
    """One kind of task, whose tiers are right with the probabilities of these logits; at home near the first axis."""
    return DifficultyModel(
        embedder="two",
        version="test",
        tiers=2,
        kinds=("chat",),
        word_places=np.zeros(BUCKETS, np.int32),
        rarity=np.zeros(1, np.float32),
        word_weights=np.zeros((1, 2), np.float16),
        vector_weights=np.zeros((3, 2), np.float32),
        count_weights=np.zeros((3, len(COUNTS)), np.float32),
        bias=np.array([*bias, 0], np.float32),
        groups_of=(slice(0, 1),),
        landmarks=np.zeros((0, 2), np.float32),
        kernel_weights=np.zeros((2, 0), np.float32),
        kind_vectors=np.zeros((2, 2), np.float32),
        kind_counts=np.zeros((2, len(COUNTS)), np.float32),
        kind_words=np.zeros((1, 2), np.float32),
        kind_bias=np.array([0, 1], np.float32),
        shift=np.zeros((1, 2), np.float32),
        general_counts=np.zeros((2, len(COUNTS)), np.float32),
        general_bias=np.array([1, 1], np.float32),
        centroids=np.array([[1, 0]], np.float32),
        starts=np.zeros(1, np.intp),
        min_similarity=np.array([0.5], np.float32),
        min_chars=np.array([5], np.int32),
        count_range=count_range(),
        quantiles=np.linspace(-1, 1, 101, dtype=np.float32)[None],
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


def two_kinds(**changed: object) -> DifficultyModel:
    """Chat near the first axis, where the large tier gains nothing, code near the second, where it gains all.

    The kinds are told apart by the vector, and requests with tools are a third kind.
    """
    model = replace(
        tiny_model((0, 0)),
        kinds=("chat", "code", "tools"),
        vector_weights=np.zeros((9, 2), np.float32),
        count_weights=np.zeros((9, len(COUNTS)), np.float32),
        word_weights=np.zeros((1, 6), np.float16),
        bias=np.array([0, 0, 0, -20, 20, 0, 1, 2, 0], np.float32),
        groups_of=(slice(0, 1), slice(1, 2), slice(2, 3)),
        kind_vectors=np.array([[8, 0], [0, 8], [0, 0], [0, 0], [0, 0], [0, 0]], np.float32),
        kind_counts=np.zeros((6, len(COUNTS)), np.float32),
        kind_words=np.zeros((1, 6), np.float32),
        kind_bias=np.array([0, 0, -30, 1, 1, 1], np.float32),
        shift=np.zeros((3, 2), np.float32),
        centroids=np.array([[1, 0], [0, 1], [0, 0]], np.float32),
        starts=np.arange(3),
        min_similarity=np.array([0.5, 0.9, 2], np.float32),
        min_chars=np.array([5, 20, 0], np.int32),
        count_range=CountRange.between(
            *(np.zeros((4, len(COUNTS)), np.float32) for _ in range(3)), np.ones((4, 1), bool)
        ),
        quantiles=np.tile(np.linspace(-1, 1, 101, dtype=np.float32), (3, 1)),
    )
    return replace(model, **changed)  # type: ignore[arg-type]


def test_a_request_is_judged_by_the_heads_of_its_kind_alone() -> None:
    """The kind is judged first; heads of another kind have no say, and the quantile is among the kind's own prompts."""
    chat = two_kinds().assess(np.array([1, 0], np.float32), features("a question of some length"))
    code = two_kinds().assess(np.array([0, 1], np.float32), features("a question of some length"))
    assert (chat.kind, chat.score, chat.quantile) == ("chat", 0, pytest.approx(0.5))
    assert (code.kind, code.quantile) == ("code", pytest.approx(1))
    assert code.score == pytest.approx(1, abs=1e-6)
    assert chat.p_kind == pytest.approx(1 / (1 + np.exp(-8)), abs=1e-6)


def test_groups_of_heads_are_mixed_by_their_odds() -> None:
    """Of a kind with two data sets, each has its say by how likely the request belongs to it."""
    model = replace(
        tiny_model((0, 0)),
        groups_of=(slice(0, 2),),
        vector_weights=np.zeros((6, 2), np.float32),
        count_weights=np.zeros((6, len(COUNTS)), np.float32),
        word_weights=np.zeros((1, 4), np.float16),
        bias=np.array([-20, 20, np.log(3), 20, 20, 0], np.float32),
    )
    judged = model.assess(np.array([1, 0], np.float32), features("a question"))
    assert judged.p_right == (pytest.approx(0.25, abs=1e-5), pytest.approx(1, abs=1e-5))


def test_the_level_of_the_tiers_in_use_changes_no_quantile() -> None:
    """A weaker cheap tier is right less often, but what is easy for its kind stays easy."""
    at_home = np.array([1, 0], np.float32)
    labelled = tiny_model((1, 2)).assess(at_home, features("a question"))
    weaker = replace(tiny_model((1, 2)), shift=np.array([[-4, 0]], np.float32)).assess(at_home, features("a question"))
    assert weaker.p_adequate < labelled.p_adequate
    assert weaker.quantile == labelled.quantile


def test_chat_weighs_how_near_its_landmarks_are() -> None:
    """The kernel is 1 at a landmark, and less the farther away."""
    model = replace(
        tiny_model((0, 0)),
        landmarks=np.array([[1, 0]], np.float32),
        kernel_weights=np.array([[2], [0]], np.float32),
    )
    for vector, weight in (((1, 0), 2.0), ((0.6, 0.8), 2 * np.exp(-0.8))):
        p_right = model.assess(np.array(vector, np.float32), features("a question")).p_right
        assert p_right == pytest.approx((1 / (1 + np.exp(-weight)), 0.5), abs=1e-5)


def test_a_request_with_tools_is_of_that_kind_whatever_its_text() -> None:
    """Its text may be a scrap; an artefact without that kind judges it by its text."""
    with_tools = features("Go!", has_tools=True, tools=2)
    judged = two_kinds().assess(np.array([1, 0], np.float32), with_tools)
    assert (judged.kind, judged.in_domain) == ("tools", True)
    assert judged.score == pytest.approx(1 / (1 + np.exp(-2)) - 1 / (1 + np.exp(-1)), abs=1e-6)
    assert not tiny_model((0, 0)).assess(np.array([1, 0], np.float32), with_tools).in_domain


def test_it_abstains_where_its_kind_is_not_near() -> None:
    """Far from the kind's prompts, and where the kind takes only longer texts, the kind is named and nothing else."""
    for vector, text in (((-1, 0), "a question of some length"), ((0, 1), "a question")):
        judged = two_kinds().assess(np.array(vector, np.float32), features(text))
        assert (judged.in_domain, judged.kind, judged.quantile) == (False, "code", None)


def test_a_kind_without_a_domain_is_named_and_its_difficulty_is_not() -> None:
    """Beside the labelled prompts of its kind a request is outside if that kind's ranking held nowhere else."""
    bias = np.array([0, 0, -30, 1, -30, -30], np.float32)
    text = "a question of some length"
    chat, code = (two_kinds(kind_bias=bias).assess(np.array(at, np.float32), features(text)) for at in ((1, 0), (0, 1)))
    assert (chat.in_domain, code.in_domain) == (True, False)
    assert (code.kind, code.quantile) == ("code", None)
    with_tools = two_kinds(kind_bias=bias).assess(np.array([1, 0], np.float32), features(text, has_tools=True, tools=1))
    assert (with_tools.kind, with_tools.in_domain, with_tools.quantile) == ("tools", False, None)


def test_a_word_puts_a_request_outside_of_its_domain_however_long_the_text() -> None:
    """Templates of exams are known by their words: each counts once, and is not thinned by the rest of the text."""
    places = np.zeros(BUCKETS, np.int32)
    places[terms_of(tokenise("boxed"))[0]] = 1
    words = np.zeros((2, 2), np.float32)
    words[1, 1] = -2
    model = replace(
        tiny_model((0, 0)),
        word_places=places,
        rarity=np.array([0, 1], np.float32),
        word_weights=np.zeros((2, 2), np.float16),
        kind_words=words,
    )
    at_home = np.array([1, 0], np.float32)
    assert model.assess(at_home, features("a question " * 40)).in_domain
    for text in ("boxed question", "boxed boxed question", "a question " * 40 + "boxed"):
        assert not model.assess(at_home, features(text)).in_domain


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
    assert replace(beyond, effort=end.effort) == end
    assert not far.in_domain
    assert replace(farther, effort=far.effort) == far
    mean = (np.log1p(10) + np.log1p(20)) / 2
    assert far.p_right[0] == pytest.approx(1 / (1 + np.exp(mean - 1)), abs=1e-6)


PLAIN_KINDS: dict[str, list[str]] = tomllib.loads((Path(__file__).parent / "plain_kinds.toml").read_text())


WRAPPED: dict[str, Any] = tomllib.loads((Path(__file__).parent / "wrapped_kinds.toml").read_text())


@pytest.mark.parametrize("kind", list(PLAIN_KINDS))
def test_plain_requests_are_taken_for_what_they_are(model: DifficultyModel, embedder: Embedder, kind: str) -> None:
    """Of fifteen of a kind at most one is taken for another."""
    said = [model.assess(embedder.embed([text])[0], features(text)) for text in PLAIN_KINDS[kind]]
    assert sum(difficulty.kind == kind for difficulty in said) >= 14


@pytest.mark.parametrize("kind", list(WRAPPED["prompts"]))
def test_a_kind_is_told_by_the_task_and_not_by_its_template(
    model: DifficultyModel, embedder: Embedder, kind: str
) -> None:
    """Of requests in templates of exams, programs and chats, none of them fitted, 90% are what they are without."""
    options = WRAPPED["options"].get(kind)
    texts = [
        template.replace("{options}", options or "").replace("{prompt}", prompt)
        for template in WRAPPED["templates"]
        if options or "{options}" not in template
        for prompt in WRAPPED["prompts"][kind]
    ]
    said = [model.assess(vector, features(text)) for vector, text in zip(embedder.embed(texts), texts, strict=True)]
    assert np.mean([difficulty.kind == kind for difficulty in said]) >= 0.9


def test_what_does_not_rank_when_it_is_left_out_is_not_claimed(model: DifficultyModel, embedder: Embedder) -> None:
    """Chat ranks no better than by chance within a language; maths, code and exams no better than by length."""

    def claimed(texts: list[str]) -> float:
        pairs = zip(embedder.embed(texts), texts, strict=True)
        return float(np.mean([model.assess(vector, features(text)).in_domain for vector, text in pairs]))

    for kind in ("chat", "maths", "code", "choices"):
        assert claimed([*WRAPPED["prompts"].get(kind, []), *PLAIN_KINDS[kind]]) == 0


def test_what_is_plainly_harder_in_chat_asks_for_more(model: DifficultyModel, embedder: Embedder) -> None:
    """The last five of the list against the first five, by their mean effort."""
    said = [model.assess(embedder.embed([text])[0], features(text)) for text in PLAIN_KINDS["chat"]]
    efforts = [0.5 if difficulty.effort is None else difficulty.effort for difficulty in said]
    assert np.mean(efforts[-5:]) > np.mean(efforts[:5]) + 0.2


def test_no_hard_question_is_called_easy(model: DifficultyModel, embedder: Embedder) -> None:
    """The shipped artefact abstains, or says that the strong tier would gain; the plain ones are chat."""
    for text in HARD:
        difficulty = model.assess(embedder.embed([text])[0], features(text))
        assert not difficulty.in_domain or difficulty.p_adequate < 0.7, text
        assert difficulty.kind == ("choices" if "\nA. " in text else difficulty.kind)
    for text in PLAIN:
        assert model.assess(embedder.embed([text])[0], features(text)).kind == "chat", text


def test_what_the_data_never_varied_does_not_weigh(model: DifficultyModel, embedder: Embedder) -> None:
    """The training questions with choices had one turn and no messages before it, so neither changes the score."""
    (vector,) = embedder.embed([HARD[3]])
    plain = model.assess(vector, features(HARD[3]))
    later = model.assess(vector, features(HARD[3], turns=9, approx_tokens=9000))
    assert (later.kind, later.p_right) == (plain.kind, plain.p_right)


@pytest.mark.parametrize("kind", ["static", "minilm"])
def test_shipped_artefacts_match_their_data_sheets(kind: EmbedderKind) -> None:
    """Each loads, is small, and its sheet tells data, licences, command and figures."""
    folder = shipped_artefact(kind)
    weights = (folder / WEIGHTS_FILE).read_bytes()
    sheet = json.loads((folder / SHEET_FILE).read_text())
    assert sheet["sha256"] == hashlib.sha256(weights).hexdigest()
    assert len(weights) < 10_000_000
    assert DifficultyModel.load(folder).version == sheet["sha256"][:12]
    assert DifficultyModel.load(folder).embedder == sheet["embedder"]
    assert sheet["command"].startswith(("tierline fit train --data ", "tierline train --data "))  # its name before
    assert {source["file"] for source in sheet["trained_on"]} <= {
        "routellm_mmlu.jsonl.gz",
        "routellm_gsm8k.jsonl.gz",
        "mmlu_pro.jsonl.gz",
        "qlora_oa.jsonl.gz",
        "routerbench_mbpp.jsonl.gz",
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
    with pytest.raises(ArtefactError, match="is not a tierline-difficulty-5 artefact") as caught:
        DifficultyModel.load(copied)
    assert "\n" not in str(caught.value)


def test_an_artefact_of_the_format_before_is_read_as_it_was(copied: Path, embedder: Embedder) -> None:
    """A classifier of one's own outlives an update: what is near one of its kinds is in its domain."""
    kinds = len(DifficultyModel.load(copied).kinds)
    older = load_file(copied / WEIGHTS_FILE)
    del older["kinds.words"]
    older |= {name: older[name][:kinds] for name in ("kinds.vector", "kinds.counts", "kinds.bias")}
    made = {"embedder": "wordllama-256", "tiers": 2, "kinds": [*DifficultyModel.load(copied).kinds]}
    for format_ in ("tierline-difficulty-4", "tierline-difficulty-4+own"):
        weights = serialise(older, metadata={format_: json.dumps(made)})
        (copied / WEIGHTS_FILE).write_bytes(weights)
        (copied / SHEET_FILE).write_text(json.dumps({"sha256": hashlib.sha256(weights).hexdigest()}))
        model = DifficultyModel.load(copied, embedder)
        assert model.assess(embedder.embed([HARD[3]])[0], features(HARD[3])).in_domain


def test_an_artefact_of_an_older_format_is_to_be_trained_again(copied: Path) -> None:
    """One of the format before says what it lacks and where its command stands, in one line."""
    tensors = load_file(copied / WEIGHTS_FILE)
    older = {name: tensor for name, tensor in tensors.items() if not name.startswith("kinds.")}
    weights = serialise(
        older, metadata={"tierline-difficulty-3": json.dumps({"embedder": "wordllama-256", "tiers": 2})}
    )
    (copied / WEIGHTS_FILE).write_bytes(weights)
    (copied / SHEET_FILE).write_text(json.dumps({"sha256": hashlib.sha256(weights).hexdigest()}))
    with pytest.raises(ArtefactError, match=r"tierline-difficulty-3.*cannot read.*train it again") as caught:
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
        "from routing.embedder import StaticEmbedder; e = StaticEmbedder.load();"
        "m = DifficultyModel.load(shipped_artefact('static'), e);"
        "m.assess(e.embed(['What is 2 + 2?'])[0], Features('What is 2 + 2?', 1, 8));"
        "print([n for n in ('torch', 'sklearn', 'scipy', 'onnx', 'onnxruntime', 'asyncio') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_features_of_a_request_are_those_of_training(model: DifficultyModel, embedder: Embedder) -> None:
    """A request with one user message is judged as the same prompt was in training."""
    request = features_of({"messages": [{"role": "user", "content": HARD[0]}]})
    reading = tokenise(HARD[0])
    assert np.array_equal(counts_of(request, reading), counts_of(features(HARD[0]), reading))


def test_a_word_weighs_what_its_bucket_was_taught() -> None:
    """Words never seen in training leave the probabilities where they were; a known one moves them."""
    places = np.zeros(BUCKETS, np.int32)
    places[:] = 1
    weights = np.array([[0, 0], [0, 3]], np.float16)
    known = {"word_places": places, "rarity": np.array([0, 100], np.float32), "word_weights": weights}
    taught = replace(tiny_model((0, 0)), **known, kind_words=np.zeros((2, 2), np.float32))
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


@pytest.mark.parametrize("last", ["yes", "go on", "why?", "what about the second step?", "and now for n = 3?"])
def test_a_follow_up_is_about_as_hard_as_what_it_hangs_on(
    model: DifficultyModel, embedder: Embedder, last: str
) -> None:
    """A short turn behind a proof is not taken for small talk, nor one behind small talk for a proof.

    Of the proof no quantile is said, alone or with its follow-up: maths has no domain.
    """

    def judged(*turns: str) -> tuple[str, float | None]:
        features = features_of({"messages": [{"role": "user", "content": turn} for turn in turns]})
        found = model.assess(embedder.embed((features.rated_text,))[0], features)
        return found.kind, found.quantile

    hard = (
        "Prove that every continuous function on a compact metric space is uniformly continuous, and then explain how "
        "the proof fails on an open interval. Give a rigorous counterexample."
    )
    easy = "What colour is the sky on a clear summer day?"
    assert judged(hard, last) == judged(hard) == ("maths", None)
    kind, quantile = judged(easy, last)
    assert kind == "chat"
    assert quantile is None or quantile < 0.5
