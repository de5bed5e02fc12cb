"""What the head of a backend says of an answer, and when it says nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from gateway.parts.heads.head import (
    ALTERNATIVE_FEATURES,
    FORMAT,
    TOKEN_FEATURES,
    ConfidenceHead,
    numbers_hash,
    shipped_head,
    token_facts,
)
from routing.confidence.judge import Evidence
from routing.difficulty.model import ArtefactError


def scorer(*features: str, bias: float = 0.0, low: float = -9.0, high: float = 9.0, **other: Any) -> dict[str, Any]:
    n = len(features)
    columns = {"centre": [0.0] * n, "scale": [1.0] * n, "weights": [1.0] * n, "low": [low] * n, "high": [high] * n}
    return {"features": list(features), "bias": bias, "knots": [], **columns, **other}


def head(alternatives: int = 0, weight: float = 0.0, **scorers: list[dict[str, Any]]) -> ConfidenceHead:
    numbers = {
        "alternatives": alternatives,
        "prior": {"weight": weight, "centre": 0.0},
        "scorers": {part.removeprefix("first_"): some for part, some in scorers.items()},
    }
    return ConfidenceHead.of("tiny", numbers)


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_the_whole_answer_is_judged_by_its_own_scorer() -> None:
    """A complete answer goes to the scorer of whole answers, over the mean of its log-probabilities."""
    judge = head(whole=[scorer("mean")], first_8=[scorer("mean", bias=5.0)])
    assert judge.p_right(Evidence("a b", logprobs=[-1.0, -3.0])) == pytest.approx(logistic(-2.0))


@pytest.mark.parametrize(("seen", "used"), [(1, 8), (8, 8), (15, 8), (16, 16), (47, 24), (48, 48), (90, 48)])
def test_first_tokens_are_judged_by_the_longest_prefix_they_fill(seen: int, used: int) -> None:
    """Of a stream's first tokens, those are read that the largest fitted prefix has; the rest changes nothing."""
    parts = {f"first_{n}": [scorer("mean", bias=n / 10)] for n in (8, 16, 24, 48)}
    logprobs = [-1.0] * min(seen, used) + [-7.0] * max(0, seen - used)
    judged = head(**parts).p_right(Evidence("a", logprobs=logprobs, complete=False))
    assert judged == pytest.approx(logistic(used / 10 - 1.0))


def test_unfamiliar_evidence_falls_back_to_the_raw_logprob() -> None:
    """A value outside of what the first scorer was fitted on leaves the answer to the one over the mean alone."""
    judge = head(whole=[scorer("mean", "least", low=-2.0), scorer("mean", bias=1.0, low=-4.0)])
    familiar, unfamiliar = Evidence("a", logprobs=[-1.0, -1.5]), Evidence("a", logprobs=[0.0, -2.5])
    assert judge.p_right(familiar) == pytest.approx(logistic(-1.25 - 1.5))
    assert judge.p_right(unfamiliar) == pytest.approx(logistic(1.0 - 1.25))


def test_the_last_scorer_judges_beyond_its_range_as_at_its_end() -> None:
    """Evidence that no scorer has met is judged as the nearest that the last one has, never by a wild extrapolation."""
    judge = head(whole=[scorer("mean", low=-4.0, high=-0.1)])
    assert judge.p_right(Evidence("a", logprobs=[-15.0])) == pytest.approx(logistic(-4.0))
    assert judge.p_right(Evidence("a", logprobs=[0.0])) == pytest.approx(logistic(-0.1))


def test_a_scorer_over_alternatives_is_passed_over_where_there_are_none() -> None:
    """Without the alternatives the first scorer needs, the next one judges."""
    judge = head(2, whole=[scorer("first_margin"), scorer("mean")])
    tokens = {"logprobs": [-1.0], "text": "a"}
    assert judge.p_right(Evidence(**tokens, top_logprobs=[[-1.0, -3.0]])) == pytest.approx(logistic(2.0))
    for top in (None, [], [[-1.0]], [[]]):
        assert judge.p_right(Evidence(**tokens, top_logprobs=top)) == pytest.approx(logistic(-1.0))


def test_no_usable_evidence_gives_no_opinion() -> None:
    """Without log-probabilities, or without a scorer for what there is, the head says None and never a constant."""
    judge = head(whole=[scorer("mean")])
    assert judge.p_right(Evidence("a")) is None
    assert judge.p_right(Evidence("a", logprobs=[])) is None
    assert judge.p_right(Evidence("a", verified={"agreement": 0.9}), by="agreement") is None
    assert judge.p_right(Evidence("a", logprobs=[-1.0], complete=False)) is None


def test_agreement_stands_in_where_there_are_no_logprobs() -> None:
    """A backend without log-probabilities is judged by how far a second sample agrees, if that was fitted."""
    judge = head(agreement=[scorer("agreement")])
    assert judge.p_right(Evidence("a", verified={"agreement": 0.5}), by="agreement") == pytest.approx(logistic(0.5))
    assert judge.p_right(Evidence("a")) is None


def test_knots_map_the_logit_and_are_level_beyond_their_ends() -> None:
    """An isotonic map is linear between its knots and constant outside of them."""
    judge = head(whole=[scorer("mean", knots=[[-2.0, 0.1], [-1.0, 0.3], [-0.5, 0.9]])])
    said = [judge.p_right(Evidence("a", logprobs=[x])) for x in (-5.0, -2.0, -1.5, -0.75, -0.1)]
    assert said == pytest.approx([0.1, 0.1, 0.2, 0.6, 0.9])


def test_the_classifiers_prior_moves_the_answers_probability() -> None:
    """A prior above its centre raises the probability, one below lowers it, and none leaves it."""
    judge, evidence = head(weight=0.5, whole=[scorer("mean")]), Evidence("a", logprobs=[-1.0])
    low, none, high = (judge.p_right(evidence, prior) for prior in (0.1, None, 0.9))
    assert low is not None and none is not None and high is not None
    assert low < none < high
    assert none == pytest.approx(logistic(-1.0))


def test_features_bear_what_servers_write_for_impossible_tokens() -> None:
    """-inf, -9999, NaN and a rounding above 0 all count as the nearest log-probability that can be."""
    values = token_facts(Evidence("a", logprobs=[-math.inf, -9999.0, math.nan, 1e-6]), None, 0)
    assert set(values) == set(TOKEN_FEATURES)
    assert values["mean"] == -15.0
    assert values["least"] == -20.0


def test_features_of_alternatives_say_how_undecided_the_model_was() -> None:
    """Two equal alternatives have no margin and an entropy of log 2; a certain token has a margin and next to none."""
    evidence = Evidence("a b", logprobs=[-0.7, 0.0], top_logprobs=[[math.log(0.5)] * 2, [0.0, -20.0]])
    values = token_facts(evidence, None, 2)
    assert set(values) == {*TOKEN_FEATURES, *ALTERNATIVE_FEATURES}
    assert values["first_margin"] == 0.0
    assert values["first_entropy"] == values["most_entropy"] == pytest.approx(math.log(2), abs=1e-6)
    assert values["mean_entropy"] == pytest.approx(math.log(2) / 2, abs=1e-6)


def write(path: Path, **changes: Any) -> Path:
    numbers = {"alternatives": 0, "prior": {"weight": 0.0, "centre": 0.0}, "scorers": {"whole": [scorer("mean")]}}
    artefact = {"format": FORMAT, "model": "tiny", "sha256": numbers_hash(numbers), "numbers": numbers, **changes}
    path.write_text(json.dumps(artefact))
    return path


def test_an_artefact_is_read_with_its_version(tmp_path: Path) -> None:
    """A head knows the model it was fitted on, and is named by the hash of its numbers."""
    path = write(tmp_path / "head.json")
    loaded = ConfidenceHead.load(path)
    assert loaded.model == "tiny"
    assert loaded.version == json.loads(path.read_text())["sha256"][:12]
    assert loaded.p_right(Evidence("a", logprobs=[-1.0])) == pytest.approx(logistic(-1.0))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sha256": "0" * 64}, "SHA-256"),
        ({"format": "tierline-confidence-0"}, "tierline-confidence-0"),
        ({"sha256": None, "model": "other"}, "SHA-256"),
        ({"format": None}, "not a tierline-confidence-1"),
    ],
)
def test_an_altered_artefact_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    """Numbers that are not those of the data sheet, or of another format, are an error that names the file."""
    path = write(tmp_path / "head.json", **changes)
    with pytest.raises(ArtefactError, match=said) as error:
        ConfidenceHead.load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "flaw",
    [
        {"weights": [1.0, 2.0]},
        {"scale": [0.0]},
        {"bias": math.inf},
        {"knots": [[0.0, 0.1], [0.0, 0.2]]},
        {"features": []},
    ],
)
def test_numbers_that_make_no_scorer_are_refused(tmp_path: Path, flaw: dict[str, Any]) -> None:
    """A head that could not score is an error when it is loaded, not when the first answer comes."""
    numbers = {
        "alternatives": 0,
        "prior": {"weight": 0.0, "centre": 0.0},
        "scorers": {"whole": [scorer("mean", **{} if "features" in flaw else flaw) | flaw]},
    }
    with pytest.raises(ArtefactError):
        ConfidenceHead.load(write(tmp_path / "head.json", numbers=numbers, sha256=numbers_hash(numbers)))


def test_a_missing_artefact_is_an_error_that_names_it(tmp_path: Path) -> None:
    """The message says which file cannot be read."""
    with pytest.raises(ArtefactError, match=r"nowhere\.json"):
        ConfidenceHead.load(tmp_path / "nowhere.json")


def test_a_model_without_a_shipped_head_has_none() -> None:
    """For a model nobody fitted a head to there is none; a path in its name leads nowhere else."""
    assert shipped_head("no-such-model") is None
    assert shipped_head("../static/difficulty") is None


def test_the_shipped_head_of_the_local_model_knows_how_weak_it_is() -> None:
    """It calls none of its answers likely to be right, and orders them as their mean log-probability does."""
    path = shipped_head("smollm2-135m-instruct")
    assert path is not None
    shipped = ConfidenceHead.load(path)
    assert shipped.model == "smollm2-135m-instruct"
    rambling = Evidence("word " * 200, logprobs=[-0.9, -0.4] * 100, finish_reason="length")
    short = Evidence("Paris.", logprobs=[-0.05, -0.02, -0.01], finish_reason="stop")
    beginning = Evidence("The capital", logprobs=[-0.5] * 24, complete=False)
    low, high, first = (shipped.p_right(evidence) for evidence in (rambling, short, beginning))
    assert low is not None and high is not None and first is not None
    assert 0.15 < low < high < 0.3
    assert first < 0.3
