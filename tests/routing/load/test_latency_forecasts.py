"""What the next call may expect."""

from __future__ import annotations

import pytest

from routing.load.latency import Forecasts, LatencyModel, Prior, queued


def test_unknown_until_there_are_samples() -> None:
    """Figures that nobody has measured decide nothing."""
    forecast = Forecasts(LatencyModel()).unqueued(100, 10.0)
    assert (forecast.known, forecast.ttft_s, forecast.cold) == (False, 0.0, False)


def test_medians_of_what_was_measured() -> None:
    """Streams give the time to the first token, JSON calls that of the whole answer."""
    latency = LatencyModel()
    forecasts = Forecasts(latency)
    for _ in range(50):
        latency.observe_whole(100, 2.0, 10.0)
    forecast = forecasts.unqueued(100, 10.0)
    assert (forecast.known, forecast.ttft_s) == (True, 0.0)
    assert forecast.whole_s == pytest.approx(2.0, rel=0.06)
    for _ in range(50):
        latency.observe_ttft(100, 0.5, 10.0)
    forecast = forecasts.unqueued(100, 11.0)
    assert forecast.ttft_s == pytest.approx(0.5, rel=0.06)


def test_cold_after_so_long_without_an_answer() -> None:
    """Until a backend has answered again its first token takes what the config says."""
    forecasts = Forecasts(LatencyModel(), cold_after_s=30.0, cold_ttft_s=4.0)
    assert forecasts.unqueued(100, 100.0).cold
    forecasts.answered(100.0)
    assert not forecasts.unqueued(100, 129.0).cold
    forecast = forecasts.unqueued(100, 131.0)
    assert (forecast.cold, forecast.known, forecast.ttft_s, forecast.whole_s) == (True, True, 4.0, 4.0)
    forecasts.answered(90.0)
    assert forecasts.idle_s(131.0) == 31.0


def test_a_queue_comes_on_top_and_is_known() -> None:
    """How long the line is can be told even of a backend that has answered nobody yet."""
    forecast = Forecasts(LatencyModel()).unqueued(100, 10.0)
    assert queued(forecast, 0.0) is forecast
    waiting = queued(forecast, 1.5)
    assert (waiting.known, waiting.ttft_s, waiting.whole_s, waiting.queue_s) == (True, 1.5, 1.5, 1.5)


def test_a_prior_counts_until_calls_were_measured() -> None:
    """An unmeasured model is as slow as its facts say, widely spread; the first calls pull it to what they took."""
    latency = LatencyModel()
    forecasts = Forecasts(latency, Prior(26.0, 5.0, 0.001, 3.0))
    fresh = forecasts.unqueued(1000, 10.0)
    assert (fresh.known, fresh.prior_ttft, fresh.prior_whole) == (True, True, True)
    assert fresh.ttft_s == pytest.approx(27.0, rel=0.1)
    assert fresh.ttft_p95_s == pytest.approx(81.0, rel=0.15)
    assert fresh.whole_s == pytest.approx(32.0, rel=0.1)
    assert fresh.least_s == pytest.approx(9.0, rel=0.15)
    expected = [fresh.ttft_s]
    for now in range(11, 32):
        latency.observe_ttft(1000, 0.5, now)
        expected.append(forecasts.unqueued(1000, now).ttft_s)
    assert expected == sorted(expected, reverse=True)
    assert expected[5] > 1 > expected[10]
    measured = forecasts.unqueued(1000, 32.0)
    assert (measured.prior_ttft, measured.prior_whole) == (False, True)
    assert measured.ttft_s == pytest.approx(0.5, rel=0.06)
