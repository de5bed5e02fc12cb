"""The controller of the semantic cache's threshold, on simulated streams of requests."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from cache.semantic.hit_bound import Complaint
from gateway.parts.hit_audits.control import WINDOW, RiskControl, calibrated
from gateway.parts.hit_audits.groups import LEAST_LABELS, Batch, Label, decode_batch, encode_batch

MAX_ERROR = 0.01
REQUESTS = 60_000
BATCH = 500
SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2)))

Share = Callable[[float], float]
"""From how much of the stream is over, 0..1, to a share of the requests."""


@dataclass(frozen=True, slots=True)
class Served:
    """Shares of all requests: answered from the cache, and answered wrongly, in the stream's second half."""

    hits: float
    error: float
    afresh: float
    """Share of the would-be hits of that half that a model answered, to compare."""
    control: RiskControl


def served(right: Share, wrong: Share, seed: int, shift: Share = lambda _: 0.0) -> Served:
    """A stream in which so many requests have a right candidate, so many a wrong one; wrong ones score lower."""
    draw = np.random.default_rng(seed)
    control = RiskControl(MAX_ERROR, strict=4.0)
    hits = errors = afresh = 0
    scores: list[float] = []
    labels: list[Label] = []
    kinds, chances, noises = draw.random(REQUESTS), draw.random(REQUESTS), draw.normal(size=REQUESTS)
    drawn = zip(kinds.tolist(), chances.tolist(), noises.tolist(), strict=True)
    for number, (kind, chance, noise) in enumerate(drawn):
        over = number / REQUESTS
        if kind < right(over) + wrong(over):
            lost = kind >= right(over)
            score = noise + (shift(over) if lost else 2.5)
            scores.append(score)
            if weight := control.weight(score, chance):
                labels.append(Label(score, lost, weight, judged=True))
                afresh += score >= control.threshold and over >= 0.5
            elif score >= control.threshold and over >= 0.5:
                hits, errors = hits + 1, errors + lost
        if (number + 1) % BATCH == 0:
            control.fold(Batch(BATCH, tuple(scores), tuple(labels)))
            scores, labels = [], []
    return Served(2 * hits / REQUESTS, 2 * errors / REQUESTS, afresh / max(1, afresh + hits), control)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_steady_stream_stays_below_the_bound_and_serves(seed: int) -> None:
    """The bound is kept, and not by serving next to nothing: the strict threshold would serve 1% here."""
    found = served(lambda _: 0.15, lambda _: 0.3, seed)
    assert found.error <= MAX_ERROR
    assert found.hits > 0.05


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cache_that_fills_up_stays_below_the_bound(seed: int) -> None:
    """The share of requests with a candidate grows all along; labels of the beginning do not mislead."""
    found = served(lambda over: 0.2 * over, lambda over: 0.4 * over, seed)
    assert found.error <= 1.2 * MAX_ERROR
    assert found.hits > 0.04


@pytest.mark.long
def test_the_bound_holds_on_average_over_streams_that_fill_up() -> None:
    """Single streams may end a little above it, their mean does not."""
    errors = [served(lambda over: 0.2 * over, lambda over: 0.4 * over, seed).error for seed in range(3, 9)]
    assert float(np.mean(errors)) <= MAX_ERROR


def test_a_scorer_that_gets_worse_half_way_is_held() -> None:
    """When wrong candidates begin to score higher, the threshold rises until the bound holds again."""
    found = served(lambda _: 0.15, lambda _: 0.3, 0, lambda over: 0.0 if over < 0.5 else 1.0)
    assert found.error <= 1.5 * MAX_ERROR
    assert found.control.threshold > served(lambda _: 0.15, lambda _: 0.3, 0).control.threshold


def test_fewer_hits_are_answered_afresh_the_further_their_error_is_below_the_bound() -> None:
    """A stream that is hardly ever wrong at its threshold needs fewer labels than one at the bound."""
    sure = served(lambda _: 0.15, lambda _: 0.001, 0)
    assert sure.error <= MAX_ERROR / 2
    assert sure.hits > 0.1
    assert sure.afresh < 0.06  # a tenth without regard to the need


def test_what_gets_worse_after_a_long_time_without_errors_is_held() -> None:
    """Labels are few then, and the first wrong ones bring more of them."""
    found = served(lambda _: 0.15, lambda over: 0.001 if over < 0.5 else 0.3, 0)
    assert found.error <= 1.6 * MAX_ERROR  # as with a tenth of all hits answered afresh from the beginning


def test_with_few_labels_the_strict_threshold_holds() -> None:
    """However good they look."""
    control = RiskControl(MAX_ERROR, strict=0.9)
    control.fold(Batch(10_000, (0.5,) * 99, (Label(0.5, False, 2.0, judged=True),) * (LEAST_LABELS - 1)))
    assert control.threshold == 0.9
    control.fold(Batch(10_000, (0.5,), (Label(0.5, False, 2.0, judged=True),)))
    assert control.threshold == 0.5


@pytest.mark.parametrize("judged", [0, LEAST_LABELS - 1])
def test_a_comparison_of_answers_never_lowers_the_threshold_below_the_strict_one(judged: int) -> None:
    """However many of its labels say that all is well: some opposites look the same to it. A few judged ones do not."""
    control = RiskControl(MAX_ERROR, strict=0.9)
    good = Label(0.5, False, 2.0)
    labels = (*[replace(good, judged=True)] * judged, *[good] * 1_000)
    control.fold(Batch(10_000, (0.5,) * 1_000, labels))
    assert (control.threshold, control.labels) == (0.9, len(labels))


@pytest.mark.parametrize("strict", [0.61, 0.774, 0.9, 1.0, math.inf])
def test_labels_of_a_comparison_never_open_what_was_closed(strict: float) -> None:
    """Whatever the strict threshold is: after a breach it may be infinite, and 167 good labels bring it back to it."""
    control = RiskControl(MAX_ERROR, strict)
    good = tuple(Label(0.077 + number / 200, False, 2.0) for number in range(167))
    control.fold(Batch(300, tuple(one.score for one in good), good))
    assert control.threshold >= strict
    control.fold(Batch(20_000, (0.5,) * 500))
    assert control.threshold == strict
    wrong = (Label(0.95, True, 10.0),) * 5
    control.fold(Batch(10, labels=wrong))
    for _ in range(2 * WINDOW // 10_000):
        control.fold(Batch(10_000, (0.5,) * 500, good))
        assert control.threshold >= strict
    assert control.threshold == strict


def test_a_comparison_of_answers_raises_the_threshold_and_lets_it_fall_back() -> None:
    """To the strict one, once its labels of wrong hits have left the window."""
    control = RiskControl(MAX_ERROR, strict=0.9)
    seen = (*[Label(0.95, True, 10.0)] * 30, *[Label(0.99, False, 10.0)] * 100)
    control.fold(Batch(10_000, (0.95,) * 300, seen))
    assert 0.95 < control.threshold < 0.99
    for _ in range(WINDOW // 10_000):
        control.fold(Batch(10_000, (0.8,) * 300, (Label(0.8, False, 10.0),) * 30))
    assert control.threshold == 0.9


def test_below_the_strict_threshold_what_nobody_judged_counts_as_wrong() -> None:
    """Judged labels lower it as far as they reach; compared ones among them stop it where they are too many."""
    judged = tuple(Label(0.6 + at / 1_000, False, 2.0, judged=True) for at in range(200))
    control = RiskControl(MAX_ERROR, strict=0.9)
    control.fold(Batch(10_000, (0.7,) * 400, judged))
    assert control.threshold == 0.6
    control.fold(Batch(10_000, (0.7,) * 400, (*judged, *[Label(0.7, False, 2.0)] * 200)))
    assert 0.7 < control.threshold < 0.9
    assert not control.breached
    assert control.figures().wrong == 0


def test_a_breach_tightens_at_once_even_with_few_labels() -> None:
    """Wrong hits above the bound move the threshold over them with the batch they come in, and it is said."""
    control = RiskControl(MAX_ERROR, strict=0.9)
    labels = tuple(Label(0.95, True, 10.0) for _ in range(3))
    control.fold(Batch(1_000, (0.95,) * 30, labels))
    assert control.threshold > 0.95
    assert control.breached
    control.fold(Batch(100))
    assert not control.breached


def test_nothing_is_served_while_every_score_is_too_risky() -> None:
    """Where even the best scores are often wrong, no threshold keeps the bound but one above all of them."""
    found = served(lambda _: 0.05, lambda _: 0.5, 0, lambda _: 2.5)
    assert found.error <= MAX_ERROR


def test_labels_leave_the_window() -> None:
    """What was learned long ago does not count for ever: without new labels, the strict threshold comes back."""
    control = RiskControl(MAX_ERROR, strict=0.9)
    control.fold(Batch(10_000, (0.5,) * 200, (Label(0.5, False, 2.0, judged=True),) * 200))
    assert control.threshold == 0.5
    for _ in range(6):
        control.fold(Batch(10_000))
    assert control.labels == 0
    assert control.threshold == 0.9


def test_equal_batches_give_equal_thresholds() -> None:
    """The state is what was folded, so a replica that reads the same batches has the same threshold."""
    draw = np.random.default_rng(0)
    one, other = RiskControl(MAX_ERROR, 0.9), RiskControl(MAX_ERROR, 0.9)
    for _ in range(20):
        scores = tuple(draw.random(50).tolist())
        batch = Batch(500, scores, tuple(Label(score, bool(draw.random() < 0.1), 5.0) for score in scores[:20]))
        one.fold(batch)
        other.fold(batch)
    assert one.threshold == other.threshold


def test_the_rarer_hits_are_the_more_of_them_is_compared_and_nothing_at_an_audit_of_nought() -> None:
    """A tenth at most and the policy's share at least; candidates below the threshold more often."""
    control = RiskControl(MAX_ERROR, strict=0.9, audit=0.02)
    assert control.weight(0.95, 0.09) == pytest.approx(10)
    assert control.weight(0.95, 0.11) == 0.0
    assert control.weight(0.5, 0.4) == pytest.approx(2)
    # With too few labels for a bound, and with enough of them, all right.
    for candidates, labels, stands_for in (
        (1_000, 99, 10), (4_000, 99, 20), (10_000, 99, 50), (1_000, 400, 25), (4_000, 400, 50)
    ):  # fmt: skip
        control = RiskControl(MAX_ERROR, strict=0.9, audit=0.02)
        control.fold(Batch(10_000, (0.95,) * candidates, (Label(0.95, False, 10.0),) * labels))
        assert control.weight(0.96, 1.01 / stands_for) == 0.0
        assert control.weight(0.96, 0.99 / stands_for) == pytest.approx(stands_for)
    assert RiskControl(MAX_ERROR, 0.9, audit=0.0).weight(0.95, 0.0) == 0.0


def complaints(owner: str, *scores: float) -> tuple[Complaint, ...]:
    """One owner's, each about a request of its own."""
    return tuple(Complaint(score, owner, f"{owner}/{number}/{score}") for number, score in enumerate(scores))


def told(control: RiskControl, batch: Batch) -> None:
    """Folds a batch as it comes back from the store."""
    control.fold(decode_batch(encode_batch(batch)))


def learned(max_error: float) -> RiskControl:
    """A control with labels of which the wrong ones lie below 0.5."""
    draw = np.random.default_rng(1)
    control = RiskControl(max_error, strict=0.9)
    scores = tuple(draw.uniform(0.3, 1.0, 3_000).tolist())
    labels = tuple(Label(score, score < 0.5 and draw.random() < 0.3, 5.0, judged=True) for score in scores[:600])
    control.fold(Batch(10_000, scores, labels))
    return control


def test_a_complaint_holds_back_its_owners_like_hits_at_once() -> None:
    """To the last digit of the score; nobody else's, whose threshold stays where it is."""
    control, score = RiskControl(MAX_ERROR, strict=0.8), 0.9312345678
    told(control, Batch(200, (score,), complaints=complaints("acme", score)))
    assert control.threshold_for("acme") > score
    assert control.threshold_for("acme") == pytest.approx(score)
    assert control.threshold_for("zeta") == control.threshold == 0.8


def test_a_complaint_that_is_withdrawn_counts_no_more() -> None:
    """Whatever leaves the window afterwards; the same request may be complained of again."""
    control, [one] = RiskControl(MAX_ERROR, strict=0.8), complaints("acme", 0.93)
    told(control, Batch(200, complaints=(one,)))
    told(control, Batch(0, withdrawn=(one.request, "another")))
    assert control.threshold_for("acme") == 0.8 and control.figures().complaints == 0
    assert not control.has_heard(one.request)
    told(control, Batch(0, complaints=(one,)))
    assert control.threshold_for("acme") > 0.93
    told(control, Batch(WINDOW - 1, asked={"acme": 1}))  # the first of the two batches leaves the window
    assert control.figures().complaints == 1


def test_requests_without_complaints_make_up_for_one() -> None:
    """At a bound of 1% one complaint is allowed for in a hundred requests of its owner since then."""
    control = RiskControl(MAX_ERROR, strict=0.8)
    told(control, Batch(0, complaints=complaints("acme", 0.95, 0.9)))
    told(control, Batch(99, asked={"acme": 99}))
    assert control.threshold_for("acme") > 0.95
    told(control, Batch(500, asked={"acme": 1}))
    assert 0.9 < control.threshold_for("acme") < 0.95
    told(control, Batch(100, asked={"acme": 100}))
    assert control.threshold_for("acme") == 0.8


def test_a_request_is_complained_of_once() -> None:
    """However often it is said, in one batch or in several, by whichever worker."""
    control, (once,) = RiskControl(MAX_ERROR, strict=0.8), complaints("acme", 0.95)
    told(control, Batch(100, complaints=(once, once)))
    told(control, Batch(100, complaints=(once,), asked={"acme": 100}))
    assert control.has_heard(once.request)
    assert control.threshold_for("acme") == 0.8


def test_one_owners_flood_moves_others_no_further_than_half_the_bound_would() -> None:
    """A thousand complaints in 2,000 requests raise its own threshold over them all, and nobody else's beyond that."""
    control, quiet, half = learned(MAX_ERROR), learned(MAX_ERROR), learned(MAX_ERROR / 2)
    scores = np.random.default_rng(2).uniform(0.3, 1.0, 1_000).tolist()
    for number in range(0, 1_000, 100):
        told(control, Batch(200, complaints=complaints("acme", *scores[number : number + 100]), asked={"acme": 100}))
        for other in (quiet, half):
            told(other, Batch(200))
    assert control.threshold_for("acme") > sorted(scores)[-20]
    assert quiet.threshold <= control.threshold <= half.threshold < 0.6
    assert control.labels == quiet.labels


def test_what_several_owners_complain_of_moves_all() -> None:
    """Where those of three agree that more than the bound is wrong, hits like these are nobody's any more."""
    control = RiskControl(MAX_ERROR, strict=0.8)
    for owner in ("acme", "zeta", "beta"):
        told(control, Batch(1_000, complaints=complaints(owner, *[0.93] * 20)))
    assert control.threshold_for("quiet") > 0.93
    assert control.breached


def test_complaints_never_loosen_and_leave_with_the_window() -> None:
    """They are no labels: a hundred of them do not end the time of the strict threshold. Later they are forgotten."""
    control = RiskControl(MAX_ERROR, strict=0.9)
    told(
        control,
        Batch(10_000, (0.5,) * 99, (Label(0.5, False, 2.0, judged=True),) * 50, complaints("acme", *[0.3] * 100)),
    )
    assert control.threshold == 0.9
    assert not RiskControl(MAX_ERROR, 0.9).own and set(control.own) == {"acme"}
    for _ in range(WINDOW // 10_000):
        told(control, Batch(10_000))
    assert not control.own


def test_calibration_on_labelled_cases_counts_one_wrong_hit_more() -> None:
    """Of 199 cases two may be lost at 1%, one of them the one that is counted on top."""
    scores = np.arange(199) / 199
    wrong = np.zeros(199, np.bool_)
    wrong[[198, 150, 100]] = True
    assert calibrated(scores, wrong, 0.01) == math.nextafter(150 / 199, math.inf)
    assert calibrated(scores[:50], wrong[:50], 0.01) == math.inf
    assert calibrated(scores, np.zeros(199, np.bool_), 0.01) == -math.inf


def test_calibration_keeps_its_promise_on_average() -> None:
    """Over many draws the share of wrong hits on new cases is at most the bound, and not far below it."""
    draw = np.random.default_rng(0)
    found = []
    for _ in range(300):
        wrong = draw.random(800) < 0.3
        scores = draw.normal(size=800) + np.where(wrong, 0.0, 2.0)
        threshold = calibrated(scores[:400], wrong[:400], 0.05)
        found.append(float(((scores >= threshold) & wrong)[400:].mean()))
    assert 0.035 <= float(np.mean(found)) <= 0.05 + 3 * float(np.std(found)) / math.sqrt(300)
