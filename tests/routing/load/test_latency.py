"""Quantiles of a backend's latencies over a sliding window, by prompt length, merged with siblings'."""

from __future__ import annotations

import json
import math
import random

import pytest

from routing.load.latency import LatencyModel, Sketch

QUANTILES = (0.05, 0.5, 0.9, 0.95, 0.99)


def exact(samples: list[float], q: float) -> float:
    return sorted(samples)[max(0, math.ceil(q * len(samples) - 1e-9) - 1)]


def fill(model: LatencyModel, seconds: float, now: float, tokens_in: int = 10, count: int = 30) -> None:
    for _ in range(count):
        model.observe_ttft(tokens_in, seconds, now)


@pytest.mark.parametrize("seed", range(20))
def test_a_sketchs_quantiles_are_within_five_percent_of_the_exact_ones(seed: int) -> None:
    """Whatever the distribution, a quantile read from the bins is within the bound that the bins promise."""
    chance = random.Random(seed)
    samples = [chance.lognormvariate(chance.uniform(-6, 3), 1.5) for _ in range(chance.randrange(1, 3000))]
    sketch = Sketch()
    for sample in samples:
        sketch.add(sample)
    for q in QUANTILES:
        assert sketch.quantile(q) == pytest.approx(exact(samples, q), rel=0.051)


@pytest.mark.parametrize("seed", range(10))
def test_merged_sketches_answer_as_one_that_saw_everything(seed: int) -> None:
    """Where the samples were counted does not matter."""
    chance = random.Random(seed)
    parts, whole = [Sketch() for _ in range(4)], Sketch()
    for _ in range(500):
        sample, censored = chance.expovariate(2), chance.random() < 0.2
        chance.choice(parts).add(sample, censored=censored)
        whole.add(sample, censored=censored)
    merged = Sketch()
    for part in parts:
        merged.merge(part)
    assert [merged.quantile(q) for q in QUANTILES] == pytest.approx([whole.quantile(q) for q in QUANTILES])


def test_durations_beyond_the_bins_count_as_the_ends() -> None:
    """Zero, a negative rounding error or a week do no harm."""
    for seconds, least, most in ((0.0, 0, 2e-6), (-1.0, 0, 2e-6), (1e9, 9e3, 1.1e4), (math.inf, 9e3, 1.1e4)):
        sketch = Sketch()
        sketch.add(seconds)
        value = sketch.quantile(0.5)
        assert value is not None and least <= value <= most


def test_calls_given_up_early_move_the_quantiles_as_if_they_had_been_waited_for() -> None:
    """With a third of calls cancelled at random, the estimate is near the truth; leaving them out would be far off."""
    chance = random.Random(7)
    truth = [chance.expovariate(1) for _ in range(20_000)]
    sketch, naive = Sketch(), Sketch()
    for duration in truth:
        given_up = chance.expovariate(0.5)
        sketch.add(min(duration, given_up), censored=given_up < duration)
        if duration <= given_up:
            naive.add(duration)
    for q in (0.5, 0.9):
        assert sketch.quantile(q) == pytest.approx(exact(truth, q), rel=0.08)
        assert naive.quantile(q) != pytest.approx(exact(truth, q), rel=0.2)


def test_where_every_long_call_was_given_up_the_longest_duration_is_the_answer() -> None:
    """Nothing is known beyond the bound, so the bound itself is said."""
    sketch = Sketch()
    for _ in range(10):
        sketch.add(0.1)
        sketch.add(1.0, censored=True)
    assert sketch.quantile(0.95) == pytest.approx(1.0, rel=0.051)


def test_nothing_is_forecast_of_too_few_samples() -> None:
    """A guess from three calls would be worse than to say that nothing is known."""
    model = LatencyModel()
    fill(model, 0.2, now=0, count=19)
    assert model.ttft(0.5, 10, now=0) is None
    fill(model, 0.2, now=1, count=1)
    assert model.ttft(0.5, 10, now=1) == pytest.approx(0.2, rel=0.051)
    assert model.whole(0.5, 10, now=1) is None


def test_prompt_lengths_are_kept_apart() -> None:
    """A long prompt's first token comes later, and a short one's forecast must not suffer from it."""
    model = LatencyModel()
    fill(model, 0.1, now=0, tokens_in=50)
    fill(model, 2.0, now=0, tokens_in=6000)
    assert model.ttft(0.5, 64, now=0) == pytest.approx(0.1, rel=0.051)
    assert model.ttft(0.5, 5000, now=0) == pytest.approx(2.0, rel=0.051)


def test_a_bucket_with_too_few_samples_takes_its_nearest_neighbours() -> None:
    """Of a prompt length nobody has sent lately, the nearest lengths tell most."""
    model = LatencyModel()
    fill(model, 0.1, now=0, tokens_in=50)
    fill(model, 2.0, now=0, tokens_in=6000)
    assert model.ttft(0.5, 200, now=0) == pytest.approx(0.1, rel=0.051)
    assert model.ttft(0.5, 100_000, now=0) == pytest.approx(2.0, rel=0.051)


def test_old_samples_leave_the_window() -> None:
    """A backend that was slow two minutes ago and is fast now is fast."""
    model = LatencyModel()
    fill(model, 3.0, now=0)
    for second in range(10, 80):
        model.observe_ttft(10, 0.1, now=second)
    assert model.ttft(0.99, 10, now=80) == pytest.approx(0.1, rel=0.051)


def test_under_load_the_newest_samples_are_enough() -> None:
    """When every ten seconds bring plenty of calls, a change is known within ten seconds, not sixty."""
    model = LatencyModel()
    for tick in range(500):
        model.observe_ttft(10, 0.1, now=tick / 10)
    for tick in range(500, 720):
        model.observe_ttft(10, 1.0, now=tick / 10)
    assert model.ttft(0.5, 10, now=72) == pytest.approx(1.0, rel=0.051)


def test_what_was_known_before_counts_while_the_window_is_empty_and_then_fades() -> None:
    """Five idle minutes do not make a backend unknown; five idle hours do."""
    model = LatencyModel()
    fill(model, 0.4, now=0, count=100)
    assert model.ttft(0.5, 10, now=300) == pytest.approx(0.4, rel=0.051)
    assert model.ttft(0.5, 10, now=18_000) is None


def test_a_quantile_is_kept_for_a_quarter_of_a_second() -> None:
    """Asking on every request costs a look-up, and news is seen soon enough."""
    model = LatencyModel()
    fill(model, 0.1, now=0, count=100)
    assert model.ttft(0.5, 10, now=0) == pytest.approx(0.1, rel=0.051)
    fill(model, 1.0, now=0.1, count=400)
    assert model.ttft(0.5, 10, now=0.2) == pytest.approx(0.1, rel=0.051)
    assert model.ttft(0.5, 10, now=0.3) == pytest.approx(1.0, rel=0.051)


def test_a_sibling_that_hears_every_report_knows_the_same() -> None:
    """Reports go through JSON, each sample is in exactly one, and what was heard is not reported again."""
    one, other = LatencyModel(), LatencyModel()
    chance = random.Random(3)
    for tick in range(400):
        one.observe_ttft(chance.randrange(1, 2000), chance.expovariate(3), tick / 20, censored=tick % 9 == 0)
        one.observe_whole(10, 1 + chance.random(), tick / 20)
        if tick % 5 == 0:
            other.hear(json.loads(json.dumps(one.report(tick / 20))), tick / 20)
    other.hear(one.report(20), 20)
    assert one.report(20) == {} and other.report(20) == {}
    for tokens_in in (30, 100, 1500):
        assert other.ttft(0.9, tokens_in, 20.5) == pytest.approx(one.ttft(0.9, tokens_in, 20.5))
    assert other.whole(0.5, 10, 20.5) == pytest.approx(one.whole(0.5, 10, 20.5))


@pytest.mark.parametrize(
    "hostile",
    [
        {},
        {"n": None},
        {"n": "abc"},
        {"n": {"1": 2}},
        {"n": [1]},
        {"n": [1, "2", None, 4, 5.0, 6, True, 8, [], {}]},
        {"n": [1, -5, 2, 0, 3, 10**30]},
        {"n": [-1, 5, 32 << 9, 5, 10**30, 5]},
        {"n": [1, math.nan, math.inf, 3]},
    ],
)
def test_a_hostile_report_changes_nothing(hostile: dict[str, object]) -> None:
    """What a sibling sends is a stranger's word: wrong types, huge numbers and NaN are left out."""
    model = LatencyModel(min_samples=1)
    model.hear(hostile, 0)
    assert model.ttft(0.5, 1, 1) is None
    assert model.report(1) == {}


def test_every_key_that_a_report_may_hold_can_be_read() -> None:
    """No number within the allowed range breaks a quantile."""
    model = LatencyModel(min_samples=1)
    model.hear({"n": [number for key in range(0, 32 << 9, 7) for number in (key, 1)]}, 0)
    for tokens_in in (1, 1000, 10**9):
        assert model.ttft(0.99, tokens_in, 1) is not None
        assert model.whole(0.99, tokens_in, 1) is not None


def test_the_slope_is_what_a_prompt_token_costs() -> None:
    """A backend that reads 5,000 tokens a second is seen to take 0.2 ms for each."""
    model = LatencyModel()
    chance = random.Random(5)
    for _ in range(4000):
        tokens_in = int(2 ** chance.uniform(3, 13))
        model.observe_ttft(tokens_in, 0.1 + 0.0002 * tokens_in, 0)
    assert model.slope(0) == pytest.approx(0.0002, rel=0.2)


def test_the_slope_needs_two_prompt_lengths_and_is_never_negative() -> None:
    """From one length nothing can be said, and noise must not make long prompts cheap."""
    model = LatencyModel()
    fill(model, 0.3, now=0, tokens_in=20)
    assert model.slope(0) is None
    fill(model, 0.1, now=3, tokens_in=5000)
    assert model.slope(3) == 0.0
