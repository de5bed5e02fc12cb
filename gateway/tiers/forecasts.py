"""Forecast the latency of the next call to a backend, cached so that every request can read it. No I/O."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from routing.load.latency import Forecast, LatencyModel, Prior

if TYPE_CHECKING:
    from gateway.config.backends import Warm

_FRESH_S = 0.25


class Forecasts:
    """Forecast one backend's latency by prompt length; each forecast is cached for 0.25 s."""

    __slots__ = ("_answered_at", "_cache", "_latency", "_warm", "prior")

    def __init__(self, warm: Warm | None, latency: LatencyModel, prior: Prior | None = None) -> None:
        self._warm = warm
        self._latency = latency
        self.prior = prior
        """What is expected of the model where too few calls were measured; None: nothing is."""
        self._answered_at: float | None = None
        self._cache: dict[tuple[int, bool], tuple[float, Forecast]] = {}

    def answered(self, at: float) -> None:
        """Record that the backend answered at time `at`, for this worker or another."""
        if self._answered_at is None or at > self._answered_at:
            self._answered_at = at

    def idle_s(self, now: float) -> float | None:
        """Return the seconds since the backend last answered any worker; None if it never did."""
        return None if self._answered_at is None else now - self._answered_at

    def unqueued(self, tokens_in: int, now: float) -> Forecast:
        """Return the forecast for a prompt of `tokens_in` tokens without a wait in the queue."""
        cold = False
        if self._warm is not None:
            cold = self._answered_at is None or now - self._answered_at > self._warm.after
        key = ((tokens_in - 1 >> 6).bit_length() if tokens_in > 64 else 0, cold)
        cached = self._cache.get(key)
        if cached is None or now >= cached[0]:
            cached = self._cache[key] = (now + _FRESH_S, self._forecast(tokens_in, now, cold=cold))
        return cached[1]

    def _forecast(self, tokens_in: int, now: float, *, cold: bool) -> Forecast:
        latency = self._latency
        ttft, whole = latency.ttft(0.5, tokens_in, now), latency.whole(0.5, tokens_in, now)
        if cold and self._warm is not None:
            start = self._warm.ttft
            return Forecast(start, start, start + (whole or 0.0), 0.0, known=True, cold=True, least_s=start)
        if self.prior is not None and (ttft is None or whole is None):
            return self._with_prior(self.prior, tokens_in, now, ttft, whole)
        if ttft is None and whole is None:
            return Forecast(0.0, 0.0, 0.0, 0.0, known=False)
        least = latency.whole(0.05, tokens_in, now) if ttft is None else latency.ttft(0.05, tokens_in, now)
        p95 = latency.ttft(0.95, tokens_in, now)
        pace = latency.tpot_s
        return Forecast(ttft or 0.0, p95 or 0.0, whole or 0.0, 0.0, known=True, least_s=least or 0.0, tpot_s=pace)

    def _with_prior(
        self, prior: Prior, tokens_in: int, now: float, ttft: float | None, whole: float | None
    ) -> Forecast:
        """Return the forecast where streams, whole answers or both were measured too rarely."""
        latency = self._latency

        def quantile_s(q: float, *, of_whole: bool = False) -> float:
            measured = (latency.whole if of_whole else latency.ttft)(q, tokens_in, now)
            return latency.with_prior(prior, q, tokens_in, now, whole=of_whole) if measured is None else measured

        return Forecast(
            quantile_s(0.5),
            quantile_s(0.95),
            quantile_s(0.5, of_whole=True),
            0.0,
            known=True,
            least_s=quantile_s(0.05, of_whole=ttft is None and whole is not None),
            tpot_s=latency.tpot_s,
            prior_ttft=ttft is None,
            prior_whole=whole is None,
        )


def queued(forecast: Forecast, queue_s: float) -> Forecast:
    """Return the forecast with a wait of `queue_s` seconds before it; then it counts as known even if it was not."""
    if queue_s <= 0:
        return forecast
    return replace(
        forecast,
        ttft_s=forecast.ttft_s + queue_s,
        ttft_p95_s=forecast.ttft_p95_s + queue_s,
        whole_s=forecast.whole_s + queue_s,
        queue_s=queue_s,
        known=True,
        least_s=forecast.least_s + queue_s,
    )
