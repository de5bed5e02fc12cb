"""The bound by language and by tenant, on simulated requests."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cache.semantic.hit_bound import OTHERS
from gateway.parts.hit_audits.control import WINDOW, RiskControl
from gateway.parts.hit_audits.groups import LEAST_LABELS, MOST, Batch, GroupFigures, Label, decode_batch, encode_batch

MAX_ERROR = 0.01


def fold(control: RiskControl, batch: Batch) -> None:
    """Folds a batch as it comes back from the store."""
    control.fold(decode_batch(encode_batch(batch)))


def wrong(score: float, number: int = 1, language: str = "Han", owner: str = "") -> tuple[Label, ...]:
    return (Label(score, True, 10.0, language=language, owner=owner),) * number


def figures(control: RiskControl) -> dict[str, GroupFigures]:
    return {one.name: one for one in control.figures().groups}


def test_a_minority_with_wrong_hits_has_its_own_threshold_at_once() -> None:
    """57 wrong hits of a Chinese help desk do not hide under an English majority, whose threshold stays."""
    control = RiskControl(MAX_ERROR, strict=0.8)
    fold(control, Batch(384, labels=wrong(0.93, 6), languages={"Han": 384}, owners={"tenant:desk": 384}))
    alone = RiskControl(MAX_ERROR, strict=0.8)
    fold(alone, Batch(20_000, (0.9,) * 400, languages={"Latin": 20_000}))
    fold(alone, Batch(384, labels=wrong(0.93, 6), languages={"Han": 384}))
    assert alone.languages.breached == {"Han"}
    assert not alone.breached
    assert alone.threshold_for("", "Han") > 0.93
    assert alone.threshold_for("", "Latin") == alone.threshold == 0.8
    assert figures(alone)["Han"].error == 0.0
    # While it is all that asks, it is the surface.
    assert control.breached and control.threshold > 0.93 and not control.languages.breached


@pytest.mark.parametrize("kind", ["language", "tenant"])
def test_a_group_moves_before_the_surface(kind: str) -> None:
    """Also where the surface is beyond its bound: what the group's threshold holds back is no loss any more."""
    control = RiskControl(MAX_ERROR, strict=0.8)
    labels = tuple(
        Label(0.93, True, 10.0, language="Han" if kind == "language" else "", owner="t" if kind == "tenant" else "")
        for _ in range(10)
    )
    by = {"Latin": 4_000, "Han": 1_000} if kind == "language" else {}
    of = {"t": 1_000, "u": 4_000} if kind == "tenant" else {}
    fold(control, Batch(5_000, (0.93,) * 100, labels, languages=by, owners=of))
    assert control.breached
    assert control.threshold == 0.8
    assert control.threshold_for("t", "Han") > 0.93
    assert control.threshold_for("u", "Latin") == 0.8
    assert control.figures().served == 0


def test_one_wrong_hit_moves_a_small_group_and_is_no_breach_yet() -> None:
    """A single label may err. As its requests go on, the threshold falls back."""
    control = RiskControl(MAX_ERROR, strict=0.8)
    fold(control, Batch(1_000, languages={"Latin": 900, "Thai": 100}))
    fold(control, Batch(0, labels=wrong(0.9, language="Thai")))
    assert control.threshold_for("", "Thai") > 0.9
    assert not control.languages.breached
    fold(control, Batch(0, labels=wrong(0.9, language="Thai")))
    assert control.languages.breached == {"Thai"}, "a second one, of a candidate that is held back, confirms it"
    fold(control, Batch(0, labels=wrong(0.9, language="Thai")))
    assert not control.languages.breached, "what is held back is no breach"
    fold(control, Batch(30_000, languages={"Latin": 25_000, "Thai": 5_000}))
    assert control.threshold_for("", "Thai") == 0.8


def test_the_main_group_is_known_once_there_are_requests_enough() -> None:
    """It is that of nearly all requests, where there is one."""
    control = RiskControl(MAX_ERROR, strict=0.8)
    fold(control, Batch(99, languages={"Latin": 99}))
    assert control.languages.main is None
    fold(control, Batch(11, languages={"Han": 11}))
    assert control.languages.main == "Latin"
    fold(control, Batch(100, languages={"Han": 100}))
    assert control.languages.main == ""


def test_a_group_never_has_a_threshold_below_the_surfaces() -> None:
    """However good its labels are."""
    control = RiskControl(MAX_ERROR, strict=0.8)
    good = tuple(Label(0.5, False, 2.0, judged=True, language="Han") for _ in range(50))
    fold(control, Batch(10_000, (0.5,) * 50, good, languages={"Latin": 8_000, "Han": 2_000}))
    assert control.threshold_for("", "Han") == control.threshold == 0.8


def test_the_busiest_have_thresholds_of_their_own_and_the_others_one_together() -> None:
    """Names of tenants are not kept without bound."""
    control = RiskControl(MAX_ERROR, strict=0.8)
    owners = {f"tenant:{number}": 1_000 - number for number in range(MOST + 10)}
    fold(control, Batch(sum(owners.values()) + 500, owners=owners))
    small = f"tenant:{MOST + 3}"
    fold(control, Batch(0, labels=wrong(0.9, 20, "", small)))
    assert len(control.tenants.own) == MOST
    assert control.tenants.breached == {OTHERS}
    assert control.threshold_for(small) > 0.9
    assert control.threshold_for("tenant:never-seen") > 0.9
    assert control.threshold_for("tenant:1") == 0.8
    assert figures(control)[OTHERS].requests == 500 + sum(1_000 - number for number in range(MOST, MOST + 10))


def test_what_left_the_window_counts_no_more() -> None:
    """The group's requests and its labels."""
    control = RiskControl(MAX_ERROR, strict=0.8)
    fold(control, Batch(10_000, labels=wrong(0.9, 30), languages={"Latin": 8_000, "Han": 2_000}))
    assert control.threshold_for("", "Han") > 0.9
    for _ in range(WINDOW // 10_000):
        fold(control, Batch(10_000, languages={"Latin": 10_000}))
    assert control.threshold_for("", "Han") == 0.8
    assert not figures(control)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_the_bound_holds_within_a_group_with_enough_labels(seed: int) -> None:
    """One in ten requests is in a language whose wrong candidates score as high as right ones of the others."""
    draw = np.random.default_rng(seed)
    control = RiskControl(MAX_ERROR, strict=1.0)
    requests = errors = others_errors = others_hits = 0
    for _ in range(160):
        scores, labels = [], []
        for _ in range(500):
            han = draw.random() < 0.1
            language = "Han" if han else "Latin"
            requests += han
            if draw.random() >= 0.3:
                continue
            lost = draw.random() < 0.5
            score = float(draw.normal() + (0.0 if lost else 2.5) + (2.0 if han and lost else 0.0))
            scores.append(score)
            threshold = control.threshold_for("", language)
            if weight := control.weight(score, draw.random(), threshold):
                labels.append(Label(score, lost, weight, judged=True, language=language))
            elif score >= threshold:
                errors += han and lost
                others_errors += lost and not han
                others_hits += not han
        languages = {"Han": 50, "Latin": 450}
        fold(control, Batch(500, tuple(scores), tuple(labels), languages=languages))
    assert figures(control)["Han"].labels >= LEAST_LABELS
    assert errors / requests <= 1.5 * MAX_ERROR
    assert others_errors / (80_000 - requests) <= MAX_ERROR
    assert others_hits > 2_000
    assert math.isfinite(control.threshold)
    assert control.threshold_for("", "Han") > control.threshold_for("", "Latin")
