"""The second opinion: which folders can be served, what a pair scores, and what becomes of a candidate."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

pytest.importorskip("onnx", reason="the minilm extra is not installed")
pytest.importorskip("onnxruntime", reason="the minilm extra is not installed")

from cache.response_cache import ResponseCache
from cache.risk.audit import Audits
from cache.semantic.cross_encoder import CrossEncoder, CrossEncoderError, SecondOpinion, TextPairScorer
from cache.semantic.decision import Verdict, default_threshold
from cache.store.redis_store import RedisStore
from policies.caching import CrossEncoderRules as Rule
from policies.model import Policy
from tests.cache.samples import Facts, answer, body, policy
from tests.support.cross_encoder import write_cross_encoder

ITALY, FRANCE, OTHER_WORDS = "what is the capital of italy", "what is the capital of france", "rome now please"
SURE = Verdict(0.9)
VECTOR = np.array([1, 0, 0, 0], np.float32)
PATIENT = "30s"


def rule(min_score: float = 0.5, decides: str = "veto", within: str = PATIENT) -> Rule:
    return Rule.model_validate({"min_score": min_score, "decides": decides, "within": within})


class Says:
    """A cross-encoder that says the same of every pair, or raises it."""

    def __init__(self, said: float | Exception) -> None:
        self.said = said
        self.asked = 0

    def score(self, stored: str, asked: str) -> float:
        self.asked += 1
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


class Stuck:
    """A cross-encoder that says nothing until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.asked = 0

    def score(self, stored: str, asked: str) -> float:
        self.asked += 1
        self.let_go.wait(60)
        return 1.0


@pytest.mark.parametrize("nested", [True, False])
def test_one_logit_is_a_probability(tmp_path: Path, nested: bool) -> None:
    """The same words score high, other words low, from either place for the graph."""
    model = CrossEncoder.load(write_cross_encoder(tmp_path / "model", nested=nested))
    assert model.score(ITALY, ITALY) > 0.99
    assert 0.9 < model.score(ITALY, FRANCE) < 0.99
    assert model.score(ITALY, OTHER_WORDS) < 0.01


@pytest.mark.parametrize(
    "labels",
    [["not_duplicate", "duplicate"], ["contradiction", "neutral", "entailment"], ["LABEL_0", "LABEL_1"], ["0", "1"]],
)
def test_of_several_labels_the_one_that_means_the_same_counts(tmp_path: Path, labels: list[str]) -> None:
    """Found by its name, wherever the probabilities of the others go."""
    model = CrossEncoder.load(write_cross_encoder(tmp_path / "model", labels))
    assert model.score(ITALY, ITALY) > 0.99
    assert model.score(ITALY, OTHER_WORDS) < 0.01


@pytest.mark.parametrize("labels", [["good", "bad"], ["LABEL_0", "LABEL_1", "LABEL_2"], ["same", "duplicate"]])
def test_labels_that_do_not_say_which_one_it_is_are_an_error(tmp_path: Path, labels: list[str]) -> None:
    """The message names them, and says what to call the one that is meant."""
    folder = write_cross_encoder(tmp_path / "model", labels)
    with pytest.raises(CrossEncoderError, match=f"the labels {', '.join(labels)}.*name it in id2label"):
        CrossEncoder.load(folder)


def test_a_pair_that_is_not_read_whole_is_refused(tmp_path: Path) -> None:
    """Its score is 0, as if they had nothing in common."""
    model = CrossEncoder.load(write_cross_encoder(tmp_path / "model", longest=16))
    assert model.score(ITALY, ITALY) > 0.99
    assert model.score(f"{ITALY} now", f"{ITALY} please") == 0.0


def test_positions_that_lie_behind_the_padding_are_no_tokens(tmp_path: Path) -> None:
    """RoBERTa and its kin read two tokens fewer than they have positions; a tokenizer may say less still."""
    roberta = CrossEncoder.load(write_cross_encoder(tmp_path / "one", longest=16, model_type="roberta", pad_token_id=1))
    assert roberta.score(ITALY, "what is the capital now") > 0.0
    assert roberta.score(ITALY, ITALY) == 0.0
    limited = write_cross_encoder(tmp_path / "other")
    (limited / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 14}))
    assert CrossEncoder.load(limited).score(ITALY, ITALY) == 0.0


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


@pytest_asyncio.fixture
async def opinion_of() -> AsyncIterator[Callable[[TextPairScorer], SecondOpinion]]:
    made: list[SecondOpinion] = []

    def make(scorer: TextPairScorer) -> SecondOpinion:
        made.append(SecondOpinion(scorer))
        return made[-1]

    yield make
    for one in made:
        one.close()


Make = Callable[[TextPairScorer], SecondOpinion]


async def test_a_veto_refuses_and_changes_nothing_else(opinion_of: Make) -> None:
    """What it lets through keeps its score; what it refuses says the cross-encoder's score."""
    lets, refuses = opinion_of(Says(0.8)), opinion_of(Says(0.7))
    assert await lets.on(rule(0.75), ITALY, FRANCE, SURE, math.inf) == SURE
    assert await refuses.on(rule(0.75), ITALY, FRANCE, SURE, math.inf) == Verdict(0.9, "cross_encoder: 0.700")


async def test_as_the_score_it_takes_the_others_place(opinion_of: Make) -> None:
    """The threshold then starts at min_score, and nothing under it is a veto: labels may move the threshold there."""
    found = await opinion_of(Says(0.3)).on(rule(0.75, "score"), ITALY, FRANCE, SURE, math.inf)
    assert found == Verdict(0.3)
    semantic = asking(decides="score", min_score=0.75).cache.semantic
    assert semantic is not None
    assert default_threshold(semantic) == 0.75


async def test_it_is_asked_only_for_what_might_be_served(opinion_of: Make) -> None:
    """Not after a veto, nor under even odds, where the candidate is refused, nor for the very same text."""
    scorer = Says(1.0)
    opinion = opinion_of(scorer)
    vetoed = Verdict(0.9, "guard: numbers")
    assert await opinion.on(rule(), ITALY, FRANCE, vetoed, math.inf) == vetoed
    assert (await opinion.on(rule(), ITALY, FRANCE, Verdict(0.49), math.inf)).refused == "similarity"
    assert await opinion.on(rule(), ITALY, ITALY, SURE, math.inf) == SURE
    assert not scorer.asked


async def test_a_late_one_refuses_and_nobody_waits_behind_it(opinion_of: Make) -> None:
    """Nor does a request wait that has no time left; once the late one has ended, it is asked again."""
    stuck = Stuck()
    opinion = opinion_of(stuck)
    late = Verdict(0.9, "cross_encoder_late")
    assert await opinion.on(rule(within="200ms"), ITALY, FRANCE, SURE, math.inf) == late
    assert await opinion.on(rule(), ITALY, FRANCE, SURE, math.inf) == late
    assert stuck.asked == 1
    stuck.let_go.set()
    deadline = time.monotonic() + 20
    while (found := await opinion.on(rule(), ITALY, FRANCE, SURE, 30.0)) == late:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)
    assert found == SURE
    assert await opinion.on(rule(), ITALY, FRANCE, SURE, 0.0) == late


async def test_one_that_fails_refuses(opinion_of: Make, caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged."""
    found = await opinion_of(Says(ValueError("broken inside"))).on(rule(), ITALY, FRANCE, SURE, math.inf)
    assert found == Verdict(0.9, "cross_encoder_failed")
    assert "broken inside" in caplog.text


def asking(**fields: object) -> Policy:
    """A policy whose guards and cosine let a pair through, and whose cross-encoder is asked then."""
    asked = {"min_score": 0.9999, "within": PATIENT, **fields}
    return policy(semantic={"ttl": "6h", "verify": "none", "audit": "0%", "cross_encoder": asked})


async def looked_up(store: RedisStore, scorer: TextPairScorer | None, wanted: Policy, left_s: float = math.inf) -> str:
    """How the lookup of a question ends that the guards let through: `hit`, or why not."""
    name = secrets.token_hex(4)
    cache = ResponseCache(store, embedder_name=name, dimension=4, cross_encoder=scorer, audits=Audits(store, name))
    await cache.start()
    try:
        tenant = secrets.token_hex(8)
        await cache.write(cache.plan(body(f"{ITALY}?"), wanted, tenant, Facts()), answer(), VECTOR)
        plan = cache.plan(body(f"please, {ITALY}"), wanted, tenant, Facts())
        found = await cache.semantic(plan, VECTOR, left_s=left_s)
        return found.reason or found.outcome
    finally:
        await cache.aclose()


async def test_a_lookup_asks_a_real_one_before_it_serves(store: RedisStore, tmp_path: Path) -> None:
    """The pair that the guards let through is served or refused by what the model says of it."""
    model = CrossEncoder.load(write_cross_encoder(tmp_path / "model"))
    score = model.score(f"{ITALY}?", f"please, {ITALY}")
    assert 0.5 < score < 0.9999
    assert await looked_up(store, model, asking(min_score=0.4)) == "hit"
    assert await looked_up(store, model, asking()) == f"cross_encoder: {score:.3f}"
    assert await looked_up(store, model, asking(decides="score", min_score=0.4)) == "hit"
    assert await looked_up(store, model, asking(decides="score")) == "similarity"


async def test_a_lookup_fails_closed(store: RedisStore) -> None:
    """Without a model, or without time for it, there is no hit, and the reason is said."""
    assert await looked_up(store, None, asking()) == "cross_encoder_absent"
    assert await looked_up(store, Says(1.0), asking(), left_s=0.0) == "cross_encoder_late"
    assert await looked_up(store, Says(1.0), asking()) == "hit"


def test_labels_belong_to_the_score_in_force(store: RedisStore) -> None:
    """Another model, another role or another veto begin anew; where the threshold starts makes no difference."""

    def stream(version: str, **fields: object) -> str:
        semantic = asking(**fields).cache.semantic
        assert semantic is not None
        return Audits(store, "kind", cross_encoder=version).surface("chat", semantic, 0.9).stream

    kinds = [stream("a"), stream("b"), stream("a", min_score=0.5), stream("a", decides="score")]
    assert len(set(kinds)) == 4
    assert stream("a", decides="score", min_score=0.5) == kinds[3]
    assert stream("a") == kinds[0]
