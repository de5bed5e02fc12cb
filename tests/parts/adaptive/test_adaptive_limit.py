"""A limit on calls at a time that is cut when a backend slows down and grows back when it recovers."""

from __future__ import annotations

import random

import pytest

from gateway.parts.adaptive.part import AdaptiveLimit, Baseline


def drive(
    limit: AdaptiveLimit, ratio: float, start: float, seconds: float, *, rate: int = 100, use: float = 1.0
) -> float:
    """Observes `rate` calls a second at a share of the limit; returns the time when it ends."""
    calls = int(seconds * rate)
    for i in range(calls):
        limit.observe(ratio, max(1, round(use * limit.limit)), start + i / rate)
    return start + calls / rate


def test_it_starts_at_the_most() -> None:
    """Nothing is held back before there is a sign of trouble."""
    assert AdaptiveLimit(64).limit == 64


def test_calls_that_take_three_times_as_long_cut_it_by_fifteen_percent_a_window() -> None:
    """A slow second is four windows, and each multiplies the limit by 0.85."""
    limit = AdaptiveLimit(100)
    drive(limit, 3.0, start=0, seconds=0.3)
    assert limit.limit == 85
    drive(limit, 3.0, start=0.3, seconds=0.9)
    assert 50 <= limit.limit <= 62


def test_normal_latency_leaves_it_alone() -> None:
    """A queue of a call's own length is what a busy backend looks like."""
    limit = AdaptiveLimit(100)
    drive(limit, 1.9, start=0, seconds=10)
    assert limit.limit == 100


def test_a_few_slow_calls_are_not_a_slow_backend() -> None:
    """The median decides: with 40% of the calls slow it stays."""
    limit = AdaptiveLimit(100)
    for i in range(1000):
        limit.observe(9.0 if i % 5 < 2 else 1.0, 100, i / 100)
    assert limit.limit == 100


def test_overload_cuts_at_once_but_once_a_window() -> None:
    """Thirty refusals at the same moment are one piece of news."""
    limit = AdaptiveLimit(100)
    for i in range(30):
        limit.overloaded(5 + i / 1000)
    assert limit.limit == 85
    limit.overloaded(5.25)
    assert limit.limit == 72


@pytest.mark.parametrize("least", [1, 4])
def test_it_never_falls_under_the_least(least: int) -> None:
    """Without any call there would never be the news that the backend has recovered."""
    limit = AdaptiveLimit(50, least)
    for i in range(1000):
        limit.overloaded(float(i))
    assert limit.limit == least


@pytest.mark.parametrize("most", [1, 2, 10, 64, 1000])
@pytest.mark.parametrize("rate", [5, 20, 100, 2000])
def test_it_is_back_at_the_most_within_five_seconds_of_recovery(most: int, rate: int) -> None:
    """From the very bottom, whatever the most is, and even if only five calls a second end."""
    limit = AdaptiveLimit(most)
    for i in range(1000):
        limit.overloaded(i / 4)
    assert limit.limit == 1
    drive(limit, 1.0, start=250, seconds=5, rate=rate)
    assert limit.limit == most


def test_right_after_a_cut_it_grows_in_small_steps() -> None:
    """The backend's capacity is near: a large step would overload it again."""
    limit = AdaptiveLimit(1000)
    for i in range(20):
        limit.overloaded(i / 4)
    low = limit.limit
    drive(limit, 1.0, start=4.8, seconds=0.6)
    assert low < limit.limit <= low * 1.05**3 + 1


def test_without_demand_it_does_not_grow() -> None:
    """That half a limit goes well says nothing about the whole."""
    limit = AdaptiveLimit(100)
    for i in range(8):
        limit.overloaded(i / 4)
    low = limit.limit
    drive(limit, 1.0, start=3, seconds=20, use=0.5)
    assert limit.limit == low


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_it_stays_between_the_least_and_the_most(seed: int) -> None:
    """Random ratios, loads, pauses and refusals."""
    chance = random.Random(seed)
    most, now = chance.randrange(1, 200), 0.0
    least = chance.randrange(1, 10)
    limit = AdaptiveLimit(most, least)
    for _ in range(3000):
        now += chance.expovariate(chance.choice((1, 30, 1000)))
        if chance.random() < 0.1:
            limit.overloaded(now)
        else:
            limit.observe(chance.lognormvariate(0, 1), chance.randrange(1, 200), now)
        assert min(least, most) <= limit.limit <= most


@pytest.mark.parametrize("capacity", [4, 12, 40])
def test_it_settles_near_what_the_backend_can_carry(capacity: int) -> None:
    """Against a backend that serves so many at once and makes the others wait, calls stay near its pace."""
    limit, now, seen = AdaptiveLimit(128), 0.0, []
    for _ in range(4000):
        carried = limit.limit
        latency = max(1.0, carried / capacity)
        now += 0.1 * latency / carried
        limit.observe(latency, carried, now)
        seen.append(carried)
    settled = sorted(seen[1000:])
    assert capacity <= settled[len(settled) // 2] <= 2.6 * capacity


def test_slowness_that_fewer_calls_do_not_mend_is_not_ours() -> None:
    """Cuts that have not helped are taken back: the backend is slow for everybody, and starving it helps nobody."""
    limit = AdaptiveLimit(100)
    end = drive(limit, 5.0, start=0, seconds=1.2)
    assert limit.limit <= 62
    end = drive(limit, 5.0, start=end, seconds=20)
    assert limit.limit == 100
    end = drive(limit, 1.0, start=end, seconds=5)
    drive(limit, 5.0, start=end, seconds=1.2)
    assert limit.limit <= 62  # it had been well meanwhile: this is another trouble


def test_cuts_that_help_are_kept() -> None:
    """A backend that queues what is beyond its capacity gets no more than it can carry at twice its own time."""
    limit = AdaptiveLimit(100)
    now, capacity = 0.0, 10
    for _ in range(4000):
        limit.observe(max(1.0, limit.limit / capacity), limit.limit, now)
        now += 0.01
    assert capacity <= limit.limit <= 2.5 * capacity


def test_one_cut_in_the_time_of_a_call() -> None:
    """Calls that take two seconds show only then what the last cut has done."""
    limit = AdaptiveLimit(100)
    for i in range(390):
        limit.observe(4.0, 100, i / 100, seconds=2.0)
    assert limit.limit == 85


def feed(baseline: Baseline, seconds: float, since: float, lasting: float, tokens_in: int = 100) -> float | None:
    """Ten calls a second; the last ratio."""
    ratio = None
    for step in range(int(lasting * 10)):
        ratio = baseline.ratio(tokens_in, seconds, since + step / 10)
    return ratio


def test_congestion_is_held_against_the_best_there_was() -> None:
    """Five times as long as in its best ten seconds is about five times, however long ago those were."""
    baseline = Baseline()
    assert feed(baseline, 1.0, 0.0, 9.0) is None
    assert feed(baseline, 1.0, 9.0, 21.0) == pytest.approx(1.0, abs=0.05)
    assert feed(baseline, 5.0, 30.0, 60.0) == pytest.approx(5.0, rel=0.15)


def test_a_backend_that_is_slower_for_good_is_forgiven() -> None:
    """Over some minutes the baseline rises to what has become normal."""
    baseline = Baseline()
    feed(baseline, 1.0, 0.0, 30.0)
    assert feed(baseline, 2.0, 30.0, 600.0) == pytest.approx(1.0, abs=0.05)


def test_long_prompts_are_held_against_long_prompts() -> None:
    """A prompt that takes long to read is no congestion."""
    baseline = Baseline()
    feed(baseline, 0.2, 0.0, 30.0, tokens_in=100)
    assert feed(baseline, 2.0, 30.0, 30.0, tokens_in=30_000) == pytest.approx(1.0, abs=0.05)


def test_milliseconds_are_no_congestion() -> None:
    """Ten milliseconds on top of five are noise of our own, not twice the load."""
    baseline = Baseline()
    feed(baseline, 0.005, 0.0, 30.0)
    assert (feed(baseline, 0.015, 30.0, 5.0) or 9) < 1
