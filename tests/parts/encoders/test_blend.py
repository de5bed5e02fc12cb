"""The cosine beside a cross-encoder's score, and the choice by both."""

from __future__ import annotations

from itertools import product

import pytest

from cache.semantic.decision import UNREAD, Doubtful, Shortlist, Verdict
from gateway.parts.encoders.blend import Blend, settled

PLAIN = Blend(0.8, 0.0)
"""The cross-encoder's own score."""


def test_the_first_candidate_that_the_cross_encoder_trusts_is_taken() -> None:
    """Those after it need not be read: their scores change nothing. Without one that is trusted the highest counts."""
    chosen = Shortlist(0, Verdict(0.5, "", "verifier"), (Doubtful(0, 0.5), Doubtful(1, 0.9), Doubtful(2, 1.0)))
    for blend in (PLAIN, Blend(0.8, 4.0)):
        for scores in ([0.88], [0.88, 0.9], [0.88, 0.9, 0.99]):
            best = settled(chosen, scores, blend)
            assert (best.place, best.verdict.read) == (0, 0.88)
        assert settled(chosen, [0.79, 0.8, 0.9], blend).place == 1
        assert settled(chosen, [0.2, 0.79, 0.3], blend).place == 1


def test_of_candidates_that_the_cross_encoder_trusts_the_nearer_scores_higher() -> None:
    """Both are served without labels whatever the cosine."""
    blend = Blend(0.8, 4.0)
    assert blend.score(0.88, 0.9) > blend.score(0.9, 0.5) >= blend.strict


@pytest.mark.parametrize("weight", [0.5, 4.0, 12.0])
def test_what_is_served_without_labels_is_the_cross_encoders_choice(weight: float) -> None:
    """The cosine moves no score across the strict threshold, and neither of the two ever lowers the blended score."""
    blend, steps = Blend(0.75, weight), [step / 40 for step in range(41)]
    for read, cosine in product(steps, steps):
        score = blend.score(read, cosine)
        assert (score >= blend.strict) == (read >= blend.strict)
        assert 0.0 <= score <= 1.0
        assert score == read or read >= blend.strict
        assert blend.score(min(1.0, read + 0.025), cosine) >= score
        assert blend.score(read, min(1.0, cosine + 0.025)) >= score


@pytest.mark.parametrize("strict", [0.0, 1.0])
def test_a_strict_threshold_at_an_end_leaves_the_score_as_it_is(strict: float) -> None:
    """There is nothing between it and the end."""
    assert [Blend(strict, 4.0).score(read, 0.5) for read in (0.0, 0.5, 1.0)] == [0.0, 0.5, 1.0]


def test_candidates_that_a_cross_encoder_cannot_read_are_refused_by_name() -> None:
    """One that it can read beside them is chosen as ever."""
    chosen = Shortlist(0, Verdict(0.5), (Doubtful(0, 0.9), Doubtful(1, 0.8)))
    assert settled(chosen, [UNREAD, UNREAD], Blend(0.9, 3.0)).verdict.refused == "guard: unknown_token"
    assert settled(chosen, [UNREAD, 0.4], Blend(0.9, 3.0)) == Shortlist(1, Verdict(0.4, "", "cross_encoder", 0.4))
