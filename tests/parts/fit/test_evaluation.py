"""Figures: what a curve is, how sure a figure is, and the baselines beside it."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.parts.fit import folds
from gateway.parts.fit.curves import Blocks, Curve, Floats, calibration_error
from gateway.parts.fit.datasets import DataError, Example, LabelledAnswer
from gateway.parts.fit.figures import SHARES, Draw, Figures, Method, Outcomes, draw_curves, figures, interval
from gateway.parts.fit.metrics import apgr, bounds, by_length, by_table
from gateway.parts.measures.intervals import wilson
from gateway.report import silent
from tests.bench.measure_robustness import Assessed, best, cuts


def example(small: float, large: float, group: str = "g", cost: tuple[float, float] | None = None) -> Example:
    costs = cost or (None, None)
    return Example(
        "a prompt", "d", group, (LabelledAnswer(small, cost_usd=costs[0]), LabelledAnswer(large, cost_usd=costs[1]))
    )


def distinct(count: int) -> list[str]:
    """Prompts that all differ."""
    return list(map(str, range(count)))


def some_examples(count: int = 400) -> list[Example]:
    generator = np.random.default_rng(0)
    return [
        example(float(small < 0.5), float(large < 0.8), f"group-{row % 4}")
        for row, (small, large) in enumerate(generator.random((count, 2)))
    ]


def figures_of(examples: list[Example], *scores: Floats, cascade: bool = False) -> Figures:
    methods = tuple(Method(f"m{number}", score) for number, score in enumerate(scores))
    return figures(Outcomes.of(examples), [Draw(np.arange(len(examples)), methods, cascade)], 0, silent)


def test_a_constant_score_is_exactly_random_whatever_the_order() -> None:
    """Rows sorted by label teach a score that says nothing nothing."""
    small = np.array([0.0] * 50 + [1.0] * 50)
    large = np.array([1.0] * 80 + [0.0] * 20)
    assert apgr(np.zeros(100), small, large) == pytest.approx(0.5, abs=1e-12)
    assert calibration_error(np.full(100, 0.5), small) == pytest.approx(0, abs=1e-12)


def test_ties_are_worth_what_random_orders_among_them_are_on_average() -> None:
    """A coarse score has the mean APGR of all ways to break its ties."""
    generator = np.random.default_rng(1)
    score = generator.integers(0, 4, 60).astype(float)
    small, large = (generator.random((2, 60)) < [[0.4], [0.8]]).astype(float)
    broken = [apgr(score + 1e-6 * generator.random(60), small, large) for _ in range(4000)]
    assert apgr(score, small, large) == pytest.approx(np.mean(broken), abs=0.005)


def test_a_weight_counts_like_as_many_copies() -> None:
    """A resample is worth what the data set of its prompts would be."""
    generator = np.random.default_rng(2)
    score, gain = generator.random(30), generator.integers(-1, 2, 30).astype(float) + 0.3
    counts = generator.integers(0, 4, 30)
    weighted = Curve.of(Blocks.of(score), gain, counts[None].astype(float)).recovered()[0]
    copied = Curve.of(Blocks.of(np.repeat(score, counts)), np.repeat(gain, counts), np.ones((1, counts.sum())))
    assert weighted == pytest.approx(copied.recovered()[0])


def test_the_least_share_of_calls_is_where_the_target_is_first_met() -> None:
    """By hand: of ten prompts the large model gains two, both found first; it needs 95% of 6 right answers."""
    examples = [example(0, 1)] * 2 + [example(1, 1)] * 4 + [example(0, 0)] * 4
    found = figures_of(examples, np.arange(10, 0, -1.0))
    assert found["cpt50"]["m0"].value == pytest.approx(0.1)
    assert found["cpt80"]["m0"].value == pytest.approx(0.16)
    assert found["calls95"]["m0"].value == pytest.approx(0.17)
    assert found["calls99"]["m0"].value == pytest.approx(0.194)


def test_a_small_model_that_is_good_enough_needs_no_large_calls() -> None:
    """Its own row says so, too; where it is not good enough, it has none."""
    close = figures_of([example(0, 1)] + [example(1, 1)] * 99, np.zeros(100))
    assert close["calls95"]["m0"].value == close["calls95"]["always_small"].value == 0
    far = figures_of(some_examples(), np.zeros(400))
    assert "always_small" not in far["calls95"]
    assert far["calls95"]["always_large"].value == 1


def test_without_a_gap_there_is_nothing_to_recover() -> None:
    """APGR and CPT are left out, never a number that means nothing."""
    found = figures_of([example(1, 0), example(1, 1)] * 20, np.arange(40.0))
    assert "apgr" not in found
    assert "cpt50" not in found
    assert found["calls95"]["m0"].value == 0


def test_a_cascade_pays_for_the_small_call_too() -> None:
    """Half of the prompts go to the large model: routed they cost one call each, in a cascade one and a half."""
    examples = [example(0, 1, cost=(0.001, 0.01)), example(1, 1, cost=(0.001, 0.01))] * 10
    order = np.tile([1.0, 0.0], 10)
    routed, cascade = (figures_of(examples, order, cascade=cascade) for cascade in (False, True))
    calls = routed["calls95"]["m0"].value
    assert calls == cascade["calls95"]["m0"].value == pytest.approx(0.45)
    assert routed["dollars"]["m0"].value == pytest.approx(1000 * (0.001 * (1 - calls) + 0.01 * calls))
    assert cascade["dollars"]["m0"].value == pytest.approx(1000 * (0.001 + 0.01 * calls))
    assert cascade["saved"]["m0"].value == pytest.approx(1 - cascade["dollars"]["m0"].value / 10)
    assert cascade["dollars"]["always_large"].value == pytest.approx(10)


def test_costs_count_only_where_every_answer_has_one() -> None:
    """A mean over those that have one would be of other prompts."""
    assert "dollars" not in figures_of([example(0, 1, cost=(1, 2)), example(1, 1)] * 10, np.arange(20.0))


def test_intervals_are_as_wide_as_the_data_is_small() -> None:
    """The interval of an accuracy is that of a proportion, and holds the figure itself."""
    found = figures_of(some_examples(), np.random.default_rng(3).random(400))
    small = found["accuracy"]["always_small"]
    wide = 1.96 * np.sqrt(small.value * (1 - small.value) / 400)
    assert small.hi - small.lo == pytest.approx(2 * wide, rel=0.15)
    for methods in found.values():
        assert all(figure.lo <= figure.value <= figure.hi for figure in methods.values())


def test_a_mean_distance_is_moved_back_to_what_was_measured() -> None:
    """Resampling adds noise to a calibration error, which is no reason to report a worse one."""
    found = interval(0.01, np.random.default_rng(4).normal(0.05, 0.01, 1000), biased=True)
    assert found.lo < 0.01 < found.hi < 0.04


def test_equal_seeds_give_equal_figures() -> None:
    """Anyone can rerun it."""
    score = np.random.default_rng(5).random(400)
    assert figures_of(some_examples(), score) == figures_of(some_examples(), score)


def test_figures_over_several_draws_are_their_means() -> None:
    """Each draw is tested on its own prompts."""
    examples = some_examples()
    outcomes = Outcomes.of(examples)
    halves = [np.arange(0, 400, 2), np.arange(1, 400, 2)]
    score = np.random.default_rng(6).random(400)
    draws = [Draw(rows, (Method("m", score[rows]),), False) for rows in halves]
    both = figures(outcomes, draws, 0, silent)["apgr"]["m"].value
    each = [apgr(score[rows], outcomes.small[rows], outcomes.large[rows]) for rows in halves]
    assert both == pytest.approx(np.mean(each))


def test_ours_is_compared_on_the_same_resamples() -> None:
    """Two methods that rank alike differ by nothing, however unsure the figure of each is."""
    score = np.random.default_rng(9).random(400)
    methods = (Method("length", score), Method("ours", score * 2), Method("groups", -score))
    found = figures(Outcomes.of(some_examples()), [Draw(np.arange(400), methods, False)], 0, silent)
    assert found["ours_minus"]["length"].exact
    assert found["ours_minus"]["length"].value == 0
    ours, groups = found["apgr"]["ours"].value, found["apgr"]["groups"].value
    assert found["ours_minus"]["groups"].value == pytest.approx(ours - groups)
    assert not found["ours_minus"]["groups"].exact


def test_drawn_curves_join_the_two_models() -> None:
    """From the small model's accuracy to the large one's; random is straight, the oracle above all."""
    outcomes = Outcomes.of(some_examples())
    drawn = draw_curves(outcomes, [Draw(np.arange(400), bounds(outcomes), False)], 0)
    ends = outcomes.small.mean(), outcomes.large.mean()
    assert drawn["random"].accuracy == pytest.approx(ends[0] + SHARES * (ends[1] - ends[0]))
    assert (drawn["oracle"].accuracy >= drawn["random"].accuracy - 1e-9).all()
    assert (drawn["random"].lo <= drawn["random"].hi).all()


def test_a_table_of_groups_knows_only_the_other_folds() -> None:
    """A group seen nowhere else scores 0; one group alone is exactly random, though its folds' means differ."""
    examples = [example(0, 1, "a"), example(1, 1, "b"), example(0, 1, "a"), example(1, 1, "c")]
    table = by_table(examples, Outcomes.of(examples), np.array([0, 0, 1, 1]))
    assert table[:, 0].tolist() == [0.5, 0, 0.5, 0]
    assert table[:, 1].tolist() == [0, 0.5, 0, 0.5]
    alone = [example(one.small, one.large, "only") for one in some_examples()]
    scores = by_table(alone, Outcomes.of(alone), folds.by_prompt(distinct(400), 5, 0))[:, 0]
    assert figures_of(alone, scores)["apgr"]["m0"].value == pytest.approx(0.5, abs=1e-12)


def test_longer_prompts_score_higher() -> None:
    """The length heuristic counts characters."""
    short, long = (
        Example(text, "d", "g", (LabelledAnswer(0), LabelledAnswer(1))) for text in ("short", "a longer prompt")
    )
    assert by_length([short, long]).score.tolist() == [5, 15]


def test_groups_are_held_out_whole() -> None:
    """No group is in two parts; there are ten parts at most; one group alone cannot be held out."""
    few = some_examples()
    fold = folds.by_group(few, 0)
    assert len(np.unique(fold)) == 4
    many = [example(0, 1, f"group-{number % 37}") for number in range(1000)]
    fold = folds.by_group(many, 0)
    assert np.bincount(fold).min() > 50
    assert len(np.unique(fold)) == folds.MOST_PARTS
    parts_of = {one.group: {int(fold[row]) for row, two in enumerate(many) if two.group == one.group} for one in many}
    assert all(len(numbers) == 1 for numbers in parts_of.values())
    with pytest.raises(DataError, match="every prompt is of one group"):
        folds.by_group([example(0, 1)] * 5, 0)


def test_few_labels_are_few_and_never_the_tested_ones() -> None:
    """Every prompt is tested once, each time by a fit to as many others as were asked for."""
    rounds = folds.with_few_labels(folds.by_prompt(distinct(100), 5, 0), 30, 0)
    assert sorted(row for one in rounds for row in one.rows[one.held].tolist()) == list(range(100))
    for one in rounds:
        assert (~one.held).sum() == 30
        assert len(set(one.rows.tolist())) == 50
    with pytest.raises(DataError, match="only 80 prompts"):
        folds.with_few_labels(folds.by_prompt(distinct(100), 5, 0), 80, 0)


def test_calibration_is_tested_on_all_the_rest() -> None:
    """Each draw takes other labels."""
    rounds = folds.calibrations(100, 40, 3, 0)
    assert [int(one.held.sum()) for one in rounds] == [60] * 3
    assert len({tuple(one.rows[~one.held].tolist()) for one in rounds}) == 3
    with pytest.raises(DataError, match="100 labels were asked for"):
        folds.calibrations(100, 100, 3, 0)


def test_equal_prompts_are_held_out_together() -> None:
    """Data sets may share prompts: a fit must not have seen the tested one under another name."""
    fold = folds.by_prompt([*distinct(50), *distinct(50)], 5, 0)
    assert np.array_equal(fold[:50], fold[50:])
    assert np.bincount(fold).tolist() == [20] * 5


def test_more_folds_than_prompts_are_refused() -> None:
    """In one line that says what to do."""
    with pytest.raises(DataError, match="a smaller --folds"):
        folds.by_prompt(distinct(3), 5, 0)


def test_pairs_that_score_alike_stay_together() -> None:
    """Equal scores always do, independent ones half the time at an even split."""
    scores = np.random.default_rng(7).random(2000)
    inside = np.ones((2000, 2), bool)
    alike = cuts(Assessed(np.column_stack([scores, scores]), inside), 0)
    assert all(cut.same.value == 1 for cut in alike)
    chance = cuts(Assessed(np.random.default_rng(8).random((2000, 2)), inside), 0)
    assert chance[2].same.value == pytest.approx(0.5, abs=0.03)
    assert [cut.small_share for cut in chance] == pytest.approx([0.2, 0.35, 0.5, 0.65, 0.8], abs=0.01)
    top = best(chance)
    assert top is not None
    assert top.asked in (20, 80)


def test_a_cut_that_starves_a_tier_is_not_the_best_one() -> None:
    """Where nearly all texts have one score, no cut leaves both tiers a fifth of the traffic."""
    scores = np.ones((200, 2))
    scores[:5] = 0.1
    assert best(cuts(Assessed(scores, np.ones((200, 2), bool)), 0)) is None


@pytest.mark.parametrize(
    ("right", "of", "ends"),
    [(81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611)), (29, 29, (0.8830, 1.0))],
)
def test_the_interval_of_a_share_is_wilsons(right: int, of: int, ends: tuple[float, float]) -> None:
    """The examples of table I of Newcombe (Statistics in Medicine 17, 1998), method 3; both extremes are exact."""
    low, high = wilson(right / of, of)
    assert (low, high) == pytest.approx(ends, abs=6e-5)
    assert (low == 0) == (right == 0) and (high == 1) == (right == of)
