"""The difficulty classifier's heads: what labels, kinds of task and counts make of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.parts.fit.curves import Floats
from gateway.parts.fit.datasets import Example, LabelledAnswer
from gateway.parts.fit.training.difficulty import Recipe, cross_validate
from gateway.parts.fit.training.difficulty_heads import Heads, fit
from gateway.parts.fit.training.table import PROMPT, QUESTION, TrainingTable
from routing.difficulty.model import kernel, mix
from routing.embedder import Vectors
from tests.support.extras import needs

pytestmark = needs("sklearn", "the train extra is not installed")

BUCKETS = 8
DIMENSION = 4


def sparse(rows: Floats) -> Any:
    from scipy.sparse import csr_matrix

    return csr_matrix(rows)


def table_of(
    labels: Floats,
    *,
    vectors: Floats | None = None,
    counts: Floats | None = None,
    terms: Floats | None = None,
    task: Sequence[int] | None = None,
) -> TrainingTable:
    """Prompts with these labels (prompts, tiers) that are alike in whatever is not given; each kind has one source."""
    n = len(labels)
    kind = np.zeros(n, np.int64) if task is None else np.array(task)
    return TrainingTable(
        vectors=np.zeros((n, DIMENSION)) if vectors is None else vectors,
        counts=np.zeros((n, 2)) if counts is None else counts,
        terms=sparse(np.zeros((n, BUCKETS)) if terms is None else terms),
        chars=np.full(n, 40),
        owner=np.arange(n),
        labels=labels,
        targets=labels,
        task=kind,
        kinds=("one", "two", "three"),
        group=kind,
        source=kind,
        plain=np.zeros(n, bool),
        has_tools=np.zeros(n, bool),
        kinds_by_vector=True,
        form=np.zeros(n, np.int8),
    )


def fitted(table: TrainingTable) -> Heads:
    return fit(table, np.ones(table.prompts, bool))


def said(table: TrainingTable, kind: int = 0) -> Floats:
    """P(right) of the table's own prompts, by that kind's heads, fitted to all of its prompts."""
    rows = np.arange(table.prompts)
    return mix(fitted(table).logits(kind, table, rows, table.counts))


def unit_vectors(count: int, seed: int = 0) -> Floats:
    drawn = np.random.default_rng(seed).normal(size=(count, DIMENSION))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


def right_where_positive(vectors: Floats, seed: int = 0) -> Floats:
    """Labels of a small model that is right where the first coordinate is high, and of a large one that mostly is."""
    draws = np.random.default_rng(seed).random((2, len(vectors)))
    chances = (1 / (1 + np.exp(-6 * vectors[:, 0])), 0.9)
    return np.array([draws[0] < chances[0], draws[1] < chances[1]], np.float64).T


def test_a_share_of_right_answers_counts_as_that_share() -> None:
    """Two prompts that are each right half of the time teach what one right and one wrong answer do."""
    vectors = np.repeat(unit_vectors(100), 2, axis=0)
    shares, answers = right_where_positive(vectors), right_where_positive(vectors)
    shares[:100, 0], answers[:100, 0] = 0.5, np.tile([0.0, 1.0], 50)
    assert said(table_of(shares, vectors=vectors)) == pytest.approx(said(table_of(answers, vectors=vectors)), abs=5e-3)


def test_shares_alone_are_learned_as_they_are() -> None:
    """Where nothing tells prompts apart, every tier's P(right) is its mean share."""
    probabilities = said(table_of(np.tile([0.3, 0.85], (200, 1))))
    assert probabilities == pytest.approx(np.tile([0.3, 0.85], (200, 1)), abs=0.01)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_a_tier_that_is_always_right_or_never_gets_a_constant(label: float) -> None:
    """By Laplace's rule of succession it is never certain, and nothing of the prompt changes it."""
    vectors = unit_vectors(38)
    labels = right_where_positive(vectors)
    labels[:, 1] = label
    heads = fitted(table_of(labels, vectors=vectors, counts=np.random.default_rng(1).random((38, 2))))
    assert not heads.vector[0, 1].any()
    assert not heads.counts[0, 1].any()
    assert not heads.words[:, 0, 1].any()
    assert 1 / (1 + np.exp(-heads.bias[0, 1])) == pytest.approx((38 * label + 1) / 40)
    assert heads.vector[0, 0].any()


def test_kinds_of_task_are_told_apart_and_have_heads_of_their_own() -> None:
    """What makes a prompt hard in one kind of task may make it easy in another; two kinds or three."""
    for kinds in (2, 3):
        rng = np.random.default_rng(kinds)
        task = np.repeat(np.arange(kinds), 200)
        about = np.eye(DIMENSION)[task]
        length = rng.normal(size=len(task))
        turn = np.where(task == 1, -1.0, 1.0)
        small = rng.random(len(task)) < 1 / (1 + np.exp(-3 * turn * length))
        labels = np.array([small, rng.random(len(task)) < 0.8], np.float64).T
        counts = np.array([length, np.zeros(len(task))]).T
        table = table_of(labels, vectors=about, counts=counts, task=task.tolist())
        heads = fitted(table)
        logits = heads.kind_logits(table, np.arange(table.prompts), table.counts)
        assert (logits.argmax(axis=1) == task).all()
        assert heads.counts[0, 0, 0] > 0.5
        assert heads.counts[1, 0, 0] < -0.5
        for kind in range(kinds):
            own = task == kind
            assert np.corrcoef(said(table, kind)[own, 0], (turn * length)[own])[0, 1] > 0.9


def test_data_sets_of_one_kind_have_heads_of_their_own() -> None:
    """What makes a prompt hard in one exam makes it easy in another of the same kind; each prompt gets its own's."""
    rng = np.random.default_rng(5)
    exam = np.repeat([0, 1], 200)
    about, length = np.eye(DIMENSION)[exam], rng.normal(size=400)
    turn = np.where(exam == 1, -1.0, 1.0)
    labels = np.array([rng.random(400) < 1 / (1 + np.exp(-3 * turn * length)), rng.random(400) < 0.8], np.float64).T
    table = table_of(labels, vectors=about, counts=np.array([length, np.zeros(400)]).T)
    heads = fitted(replace(table, group=exam, source=exam))
    assert heads.owner.tolist() == [0, 0]
    right = mix(heads.logits(0, table, np.arange(400), table.counts))[:, 0]
    assert np.corrcoef(right, turn * length)[0, 1] > 0.9
    assert abs(np.corrcoef(said(table)[:, 0], turn * length)[0, 1]) < 0.3, "one head for both knows neither"


def test_verdicts_are_fitted_by_a_kernel_of_the_vector() -> None:
    """Prompts of two far ends that are alike in how hard they are: no linear head can say so."""
    vectors = unit_vectors(600)
    hard = np.abs(vectors[:, 0]) > 0.5
    labels = np.array([np.where(hard, 0.1, 0.9), np.full(600, 0.9)]).T
    linear = table_of(labels, vectors=vectors)
    judged = replace(linear, kinds=("chat", "two", "three"))
    by_kernel, by_weights = said(judged)[:, 0], said(linear)[:, 0]
    assert np.corrcoef(by_kernel, ~hard)[0, 1] > 0.8
    assert abs(np.corrcoef(by_weights, ~hard)[0, 1]) < 0.3
    heads = fitted(judged)
    assert len(heads.landmarks) <= 256
    assert not heads.vector[0, :-1].any()
    assert kernel(np.array([1.0, 0.0])) == pytest.approx([1.0, np.exp(-2)])


def test_a_kind_of_task_keeps_its_number_where_another_is_left_out() -> None:
    """Heads say which kinds of task they are of, and have none of a kind that was not among the chosen prompts."""
    vectors = unit_vectors(90)
    table = table_of(right_where_positive(vectors), vectors=vectors, task=[0, 1, 2] * 30)
    heads = fit(table, table.task != 1)
    assert heads.tasks.tolist() == [0, 2]
    assert heads.bias.shape == (2, 3)


def test_a_count_that_never_varies_weighs_nothing() -> None:
    """What was the same in all labelled prompts tells nothing of a request where it is not."""
    vectors = unit_vectors(120)
    labels = right_where_positive(vectors)
    counts = np.array([labels[:, 0] + np.random.default_rng(2).normal(size=120), np.full(120, 0.1)]).T
    heads = fitted(table_of(labels, vectors=vectors, counts=counts, task=[0, 1] * 60))
    assert not heads.counts[:, :, 1].any()
    assert heads.counts[:, 0, 0].all()


def test_a_word_of_few_texts_weighs_nothing() -> None:
    """Four texts say nothing of a word that carries over; the five that say another make it count."""
    vectors = unit_vectors(60)
    terms = np.zeros((60, BUCKETS))
    terms[:4, 0], terms[:5, 1] = 1.0, 1.0
    terms[:, 2] = 1.0
    heads = fitted(table_of(right_where_positive(vectors), vectors=vectors, terms=terms))
    assert heads.rarity[0] == 0
    assert heads.rarity[1] > heads.rarity[2] > 0
    assert not heads.words[0].any()
    assert heads.words[1].any()


def test_more_labels_move_the_heads_further_from_what_was_believed_before() -> None:
    """The prior holds a few labels near to no opinion; many of the same kind are listened to."""
    lengths = []
    for count in (40, 400, 4000):
        vectors = unit_vectors(count)
        heads = fitted(table_of(right_where_positive(vectors), vectors=vectors))
        lengths.append(float(np.linalg.norm(heads.vector[0, 0])))
    assert 1.5 * lengths[0] < lengths[1]
    assert 1.5 * lengths[1] < lengths[2]


def test_a_question_without_its_choices_is_fitted_on_as_half_a_prompt() -> None:
    """It has its owner's label, and it is left out where its owner is."""
    vectors = unit_vectors(50)
    labels = right_where_positive(vectors)
    plain = table_of(labels, vectors=vectors)
    asked = replace(
        plain,
        vectors=np.vstack([vectors, vectors]),
        counts=np.vstack([plain.counts, plain.counts]),
        terms=sparse(np.zeros((100, BUCKETS))),
        owner=np.tile(np.arange(50), 2),
        group=np.zeros(100, np.int64),
        source=np.zeros(100, np.int64),
        plain=np.zeros(100, bool),
        form=np.repeat(np.array([PROMPT, QUESTION], np.int8), 50),
    )
    assert asked.prompts == 50
    assert np.linalg.norm(fitted(asked).vector[0, 0]) > np.linalg.norm(fitted(plain).vector[0, 0])
    chosen = np.arange(50) < 40
    elsewhere = replace(asked, vectors=np.where(chosen[asked.owner][:, None], asked.vectors, 9.0))
    assert np.array_equal(fit(elsewhere, chosen).vector, fit(asked, chosen).vector)


class Directions:
    """An encoder made for these tests: a prompt is the number of its vector, of four digits, in any template."""

    name = "directions"
    dimension = DIMENSION
    whole_chars = 1000

    def __init__(self, vectors: Floats) -> None:
        self._vectors = vectors.astype(np.float32)

    def embed(self, texts: Sequence[str]) -> Vectors:
        numbers = [re.search(r"\d{4}", text) for text in texts]
        return self._vectors[[int(number[0]) for number in numbers if number]]


def out_of_fold(vectors: Floats, labels: Floats, fold: NDArray[np.int64]) -> Floats:
    examples = [
        Example(f"{number:04}", "numbers", "numbers", tuple(map(LabelledAnswer, row)))
        for number, row in enumerate(labels.tolist())
    ]
    return cross_validate(examples, Directions(vectors), Recipe(outside=0.0), fold, lambda *_: None)


def test_a_negative_fold_is_fitted_on_and_never_held_out() -> None:
    """What it says of others follows its labels; of itself nothing is said. A held-out label changes nothing of it."""
    vectors = unit_vectors(300)
    labels = right_where_positive(vectors)
    fold = np.arange(300) % 3 - 1
    probabilities = out_of_fold(vectors, labels, fold)
    assert not probabilities[fold == -1].any()
    assert (probabilities[fold >= 0] > 0).all()
    assert np.corrcoef(probabilities[fold >= 0, 0], vectors[fold >= 0, 0])[0, 1] > 0.9

    turned = np.where((fold == -1)[:, None], 1 - labels, labels)
    assert np.corrcoef(out_of_fold(vectors, turned, fold)[fold >= 0, 0], vectors[fold >= 0, 0])[0, 1] < 0.7

    own = np.where((fold == 0)[:, None], 1 - labels, labels)
    assert np.array_equal(out_of_fold(vectors, own, fold)[fold == 0], probabilities[fold == 0])
    assert not np.array_equal(out_of_fold(vectors, own, fold)[fold == 1], probabilities[fold == 1])
