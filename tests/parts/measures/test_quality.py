"""One quality figure for each tier, from a judge that may be wrong and people who say little."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.parts.measures.quality import (
    Opinions,
    QualityDifference,
    agreement,
    prediction_powered,
    tier_qualities,
)


def row(number: int, adequate: float, served: str = "small") -> dict[str, Any]:
    """A label: the small tier's answer is as adequate as given, the strong one's always."""
    return {
        "tenant": "acme",
        "request_id": f"req_{number}",
        "small": {"tier": "local", "served": served == "small", "adequate": adequate},
        "strong": {"tier": "hosted", "served": served == "strong", "adequate": 1.0},
    }


def test_the_interval_holds_the_truth_though_the_judge_is_biased() -> None:
    """In 95% of 400 draws, where the judge alone is nearly always wrong; and it is narrower than people's alone."""
    generator = np.random.default_rng(0)
    truth, people, judged = 0.6, 60, 600
    covered, by_judge, widths = 0, 0, []
    for _ in range(400):
        right = (generator.random(judged) < truth).astype(float)
        said = np.where(generator.random(judged) < 0.85, right, 1.0)  # too kind: it takes some wrong answers for right
        value, variance = prediction_powered(said[people:], right[:people], said[:people])
        half = 1.96 * variance**0.5
        covered += abs(value - truth) <= half
        by_judge += abs(said.mean() - truth) <= 1.96 * said.std() / judged**0.5
        widths.append(half / (1.96 * (right[:people].var(ddof=1) / people) ** 0.5))
    assert 0.92 <= covered / 400 <= 0.98
    assert by_judge / 400 < 0.5
    assert np.mean(widths) < 0.75


def test_the_figure_says_whose_word_it_is() -> None:
    """Without feedback it is the judge's own opinion; a tier that only people rated has theirs."""
    rows = [row(i, float(i % 4 > 0)) for i in range(200)]
    local, hosted = tier_qualities(rows, {}, {"hosted": [1.0] * 5 + [0.0]}).values()
    assert local.value == 0.75 and not local.corrected and (local.judged, local.both) == (200, 0)
    assert local.low < 0.75 < local.high
    assert hosted.value == 1.0 and hosted.rated == 6 and not hosted.corrected
    feedback = {("acme", f"req_{i}"): 0.0 if i % 2 else 1.0 for i in range(100)}
    [local, _] = tier_qualities(rows, feedback, {}).values()
    assert local.corrected and local.both == 100
    assert local.low < 0.5 < local.high < 0.75, "people say half, the judge says three quarters"
    [only] = tier_qualities([], {}, {"hosted": [1.0] * 30 + [0.0] * 10}).values()
    assert only.value == 0.75 and only.corrected and only.rated == 40


def test_judge_and_people_agree_where_both_spoke() -> None:
    """An answer of which the judge said both things counts for neither."""
    rows = [row(0, 1.0), row(1, 0.0), row(2, 0.5), row(3, 0.0, "strong"), row(4, 1.0)]
    feedback = {("acme", f"req_{i}"): score for i, score in enumerate([1.0, 0.0, 0.0, 0.2])}
    found = agreement(rows, feedback)
    assert (found.count, found.agreed) == (3, 2)
    assert found.interval[0] < 2 / 3 < found.interval[1]
    assert agreement(rows, {}).interval == (0.0, 1.0)
    with pytest.raises(KeyError):
        agreement([{}], {})


@pytest.mark.parametrize(
    ("shares", "interval"),
    [
        ((56 / 70, 70, 48 / 80, 80), (0.0524, 0.3339)),
        ((9 / 10, 10, 3 / 10, 10), (0.1705, 0.8090)),
        ((10 / 10, 10, 0 / 20, 20), (0.6791, 1.0)),
    ],
)
def test_intervals_are_newcombes(shares: tuple[float, int, float, int], interval: tuple[float, float]) -> None:
    """The examples of his table II (Statistics in Medicine 17, 1998), method 10."""
    one, n, other, m = shares
    pairs = [[(float(i < round(share * count)), None) for i in range(count)] for share, count in ((one, n), (other, m))]
    word, qualities = Opinions.in_one_word([Opinions.of(some) for some in pairs]) or ("", [])
    found = QualityDifference.of_sum([(1.0, qualities[0]), (-1.0, qualities[1])], "people")
    assert word == "people" and (found.low, found.high) == pytest.approx(interval, abs=6e-5)


def test_only_what_is_in_one_word_is_compared() -> None:
    """People's where both sides have enough of it, else the judge's on both; nothing where neither speaks of both."""
    many = Opinions.of([(1.0, 0.0)] * 20)
    few = Opinions.of([(0.0, 1.0)] * 3 + [(None, 1.0)] * 20)
    unjudged = Opinions.of([(1.0, None)])
    assert (many.word, few.word, unjudged.word) == ("people", "judge", "people")
    assert (Opinions.in_one_word([many, few]) or ("",))[0] == "judge"
    assert (Opinions.in_one_word([few, unjudged]) or ("",))[0] == "people"
    assert Opinions.in_one_word([Opinions.of([(None, 1.0)]), unjudged]) is None
    assert Opinions.in_one_word([]) is None


def test_answers_of_one_conversation_count_as_less() -> None:
    """Ten alike in each of twenty conversations say little more than twenty answers do."""
    values = np.repeat(np.arange(20) % 2, 10).astype(float)
    nothing = np.full(200, np.nan)
    alone = Opinions(values, nothing).estimate()
    grouped = Opinions(values, nothing, np.repeat(np.arange(20), 10)).estimate()
    assert grouped.value == alone.value == 0.5
    assert 2.5 < (grouped.high - grouped.low) / (alone.high - alone.low) < 4
    perfect = Opinions(np.ones(200), np.ones(200)).estimate()
    assert perfect.low < 1.0, "that nobody complained of a few does not mean that nobody ever will"
