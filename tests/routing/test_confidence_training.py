"""Heads fitted to made-up answers of which it is known what they tell."""

from __future__ import annotations

import numpy as np
import pytest

from routing.dataset import Answer, DataError, Example
from routing.evaluation.metrics import Floats, apgr, calibration_error, folds_of
from routing.training.confidence import cross_validate, fit_and_judge

pytest.importorskip("sklearn", reason="fitting needs scikit-learn (the extra `train`)")

DIMENSION = 16


def silent(stage: str, done: int, total: int) -> None:
    """Shows nothing."""


def answers(n: int, *, dataset: str = "quiz", seed: int = 0, topic: float = 0.0) -> tuple[list[Example], Floats]:
    """n answered prompts. P(small right) rises with the log-probability; `topic` is how much the vector says besides.

    The prompts of a data set lie around a corner of their own.
    """
    rng = np.random.default_rng([seed, *dataset.encode()])
    logprob = -rng.exponential(0.6, n)
    corner = np.random.default_rng(list(dataset.encode())).normal(size=DIMENSION)
    vectors = corner / np.linalg.norm(corner) + 0.15 * rng.normal(size=(n, DIMENSION))
    side = np.sign(vectors[:, 0] - np.median(vectors[:, 0]))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    small = rng.random(n) < 1 / (1 + np.exp(-(1.2 + 2.0 * logprob)))
    large = rng.random(n) < np.clip(0.8 + topic * side, 0.02, 0.98)
    examples = [
        Example(f"{dataset} {i}", dataset, dataset, (Answer(float(a), confidence=c, tok_out=1), Answer(float(b))))
        for i, (a, b, c) in enumerate(zip(small, large, logprob.tolist(), strict=True))
    ]
    return examples, vectors


def worth(examples: list[Example], gain: Floats) -> float:
    """The APGR of ranking by this gain, less the raw log-probability's."""
    small, large = np.array([e.small for e in examples]), np.array([e.large for e in examples])
    raw = np.array([-(e.answers[0].confidence or 0.0) for e in examples])
    return apgr(gain, small, large) - apgr(raw, small, large)


def right(examples: list[Example]) -> Floats:
    return np.array([example.small for example in examples])


def test_what_the_prompt_tells_besides_improves_the_order() -> None:
    """Where some prompts are lost on the large model too, the order by expected gain beats the raw log-probability."""
    examples, vectors = answers(900, topic=0.35)
    judged = cross_validate(examples, vectors, folds_of(900, 5, 0), silent)
    assert worth(examples, judged.gain) > 0.02
    assert calibration_error(judged.p_right, right(examples)) < 0.06


def test_where_nothing_more_is_to_be_learned_the_order_hardly_changes() -> None:
    """On prompts whose vectors say nothing, the head keeps to the raw log-probability's order, or next to it."""
    differences = []
    for seed in range(4):
        examples, vectors = answers(500, seed=seed)
        judged = cross_validate(examples, vectors, folds_of(500, 5, seed), silent)
        differences.append(worth(examples, judged.gain))
    assert min(differences) > -0.01
    assert np.mean(differences) > -0.005


@pytest.mark.parametrize("labels", [20, 100, 200])
def test_few_labels_calibrate_and_leave_the_order_alone(labels: int) -> None:
    """With a few labels the order is exactly the raw log-probability's, and the probabilities are already true."""
    examples, vectors = answers(1500, topic=0.3)
    judged = fit_and_judge(examples[:labels], vectors[:labels], examples[labels:], vectors[labels:])
    assert worth(examples[labels:], judged.gain) == pytest.approx(0.0, abs=1e-9)
    if labels >= 100:
        assert calibration_error(judged.p_right, right(examples[labels:])) < 0.1


def test_another_domain_keeps_the_order_of_the_raw_logprob() -> None:
    """Answers to prompts unlike all that was fitted are ranked by their log-probability alone."""
    fitted, vectors = answers(600, topic=0.35)
    others, elsewhere = answers(400, dataset="law", topic=-0.35)
    judged = fit_and_judge(fitted, vectors, others, elsewhere)
    assert worth(others, judged.gain) == pytest.approx(0.0, abs=0.003)
    assert ((judged.p_right > 0) & (judged.p_right < 1)).all()


def test_each_task_has_a_log_probability_scale_of_its_own() -> None:
    """Two tasks whose log-probabilities mean different things are ranked together better than by the raw ones."""
    examples, vectors = answers(500)
    shifted, other = answers(500, dataset="law")
    shifted = [
        Example(e.prompt, e.dataset, e.group, (Answer(e.small, (e.answers[0].confidence or 0) - 3.0), e.answers[1]))
        for e in shifted
    ]
    both = examples + shifted
    judged = cross_validate(both, np.vstack([vectors, other]), folds_of(1000, 5, 0), silent)
    assert worth(both, judged.gain) > 0.02
    assert calibration_error(judged.p_right, right(both)) < 0.06


def test_equal_data_gives_equal_judgements() -> None:
    """Nothing in a fit depends on chance."""
    examples, vectors = answers(400, topic=0.2)
    one, two = (fit_and_judge(examples[:350], vectors[:350], examples[350:], vectors[350:]) for _ in range(2))
    assert np.array_equal(one.p_right, two.p_right)
    assert np.array_equal(one.gain, two.gain)


@pytest.mark.parametrize("small", [0.0, 1.0])
def test_a_model_always_right_or_always_wrong_has_a_probability_short_of_certain(small: float) -> None:
    """Labels of one kind only are no proof of the other's absence."""
    examples, vectors = answers(60)
    same = [Example(e.prompt, e.dataset, e.group, (Answer(small, -0.5), e.answers[1])) for e in examples]
    judged = fit_and_judge(same[:50], vectors[:50], same[50:], vectors[50:])
    assert ((judged.p_right > 0) & (judged.p_right < 1)).all()
    assert (abs(judged.p_right - small) < 0.1).all()


def test_answers_without_log_probabilities_are_an_error_that_counts_them() -> None:
    """A head cannot be fitted to answers that carry no evidence; the message says how many there are."""
    examples, vectors = answers(50)
    examples[3] = Example("p", "quiz", "quiz", (Answer(1.0), Answer(1.0)))
    with pytest.raises(DataError, match="1 of 50"):
        cross_validate(examples, vectors, folds_of(50, 5, 0), silent)
