"""Donors of a replay: those that ask the same share one, as far as the record says that their answers agree."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.parts.lab.replay.donors import APART, Likeness, Pool

N = 400


def _pool(question: list[int], targets: int, draw: np.random.Generator, strata: int = 1) -> Pool:
    """Return a pool of the last requests as donors for the first `targets`, all of them in one stratum."""
    n = len(question)
    is_donor = np.arange(n) >= targets
    stratum = np.arange(n) % strata
    return Pool.of(is_donor, (stratum,), np.arange(targets), np.array(question), draw)


def test_those_that_ask_the_same_share_a_donor_if_answers_agree() -> None:
    """Without a record of the question one donor is drawn for all; with APART everyone has one of its own."""
    draw = np.random.default_rng(1)
    pool = _pool([7] * 40 + list(range(100, 100 + N)), 40, draw)
    targets, resampled = np.arange(40), pool.resampled(draw)
    assert len(set(pool.shared(resampled, targets, 0.0, draw).tolist())) == 1
    assert len(set(pool.shared(resampled, targets, APART, draw).tolist())) > 30


def test_the_record_of_the_same_question_comes_before_others() -> None:
    """A question that was answered before gets that answer again, and others those of requests alike."""
    draw = np.random.default_rng(2)
    pool = _pool([7, 7, 8, 7, *range(100, 100 + N)], 3, draw)
    donors = pool.shared(pool.resampled(draw), np.arange(3), 0.0, draw)
    assert donors[:2].tolist() == [3, 3] and donors[2] > 3


def test_a_question_with_a_record_needs_no_others_alike() -> None:
    draw = np.random.default_rng(3)
    question = np.array([7, 7, *range(100, 200)])
    stratum = np.array([0, 0, *[1] * 100])
    pool = Pool.of(np.arange(102) > 0, (stratum,), np.array([0]), question, draw)
    assert pool.size[0] == 0 and pool.same_size[0] == 1
    assert pool.shared(pool.resampled(draw), np.array([0]), 5.0, draw).tolist() == [1]


def test_a_stratum_has_one_donor_for_each_question() -> None:
    """A popular question's many records count once, so drawing donors draws questions."""
    draw = np.random.default_rng(4)
    question = [0, *[5] * 500, *range(100, 200)]
    assert _pool(question, 1, draw).size[0] == 101


def test_an_imputation_draws_its_donors_with_replacement() -> None:
    """So 1 - 1/e of them are left in one imputation, others in the next, and each as often as chance has it."""
    draw = np.random.default_rng(7)
    donors, times = 1000, 300
    pool = _pool([*range(1 + donors)], 1, draw)
    resampled = pool.resampled(draw, 40)
    targets = np.zeros(donors * times, np.int64)
    seen = [np.bincount(pool.drawn(resampled, targets, draw, which) - 1, minlength=donors) for which in range(40)]
    left = [np.count_nonzero(counts > times / 2) / donors for counts in seen]
    assert np.mean(left) == pytest.approx(1 - 1 / np.e, abs=0.01)
    # How often a donor was drawn varies as in a bootstrap: by one time the mean between imputations.
    assert np.stack(seen).mean(axis=0).std() / times == pytest.approx(1 / np.sqrt(40), rel=0.15)


@pytest.mark.parametrize("alike", [0.0, 0.5, 0.9])
def test_answers_to_one_question_correlate_in_draws_as_in_the_record(alike: float) -> None:
    """The urn hands the correlation that `Likeness` measures on to what it draws."""
    draw = np.random.default_rng(5)
    questions, each = 600, 3
    question = np.repeat(np.arange(questions), each)
    own, noise = draw.normal(size=questions)[question], draw.normal(size=len(question))
    values = np.sqrt(alike) * own + np.sqrt(1 - alike) * noise
    likeness = Likeness.of(values, question, np.zeros(len(question), np.int64))
    measured = 1 / (1 + likeness.concentration(draw))
    assert measured == pytest.approx(alike, abs=0.12)

    # Two targets of each question, none of which was recorded: do they get donors of equal value as often?
    targets = np.repeat(np.arange(10_000, 13_000), 2)
    every = np.concatenate([targets, question])
    pool = Pool.of(np.arange(len(every)) >= len(targets), (np.zeros(len(every)),), np.arange(len(targets)), every, draw)
    drawn = pool.shared(pool.resampled(draw), np.arange(len(targets)), (1 - alike) / max(alike, 1e-6), draw)
    pairs = values[drawn - len(targets)].reshape(-1, 2)
    assert float(np.corrcoef(pairs.T)[0, 1]) == pytest.approx(alike, abs=0.08)


def test_the_agreement_is_not_known_without_a_question_asked_twice() -> None:
    """Then every correlation is as likely, so imputations differ in it."""
    draw = np.random.default_rng(6)
    likeness = Likeness.of(draw.normal(size=50), np.arange(50), np.zeros(50, np.int64))
    alike = [1 / (1 + likeness.concentration(draw)) for _ in range(400)]
    assert likeness.freedom == 0
    assert np.quantile(alike, [0.1, 0.9]) == pytest.approx([0.1, 0.9], abs=0.08)
