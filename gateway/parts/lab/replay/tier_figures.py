"""Sum up what the recorded calls say of each tier, whatever the candidate: prices, drafts, trends, donors."""

from __future__ import annotations

from typing import Any

import numpy as np

from gateway.parts.lab.replay.cells import Bools, Floats, Ints
from gateway.parts.lab.replay.donors import Strata, strata_of
from gateway.parts.lab.replay.history import ACCEPTED, FAILED, NOT_CALLED, REJECTED, History


class TierFigures:
    """Figures of all tiers of a history, a row each; `first_tier` is the row of the candidate's first one."""

    def __init__(self, history: History, tiers: int, first_tier: int) -> None:
        self._history = history
        self._first_tier = first_tier
        self.strata: Strata = strata_of(history)
        """The strata of all requests."""
        self.prices = [self._price(row) for row in range(tiers)]
        """US dollars per token in and out."""
        self.drafts = [self._draft(row) for row in range(tiers)]
        """How long a stream's rejected draft was held back in milliseconds, and its tokens; None without any."""
        self.trends = [self._trend(row) for row in range(tiers)]
        """How the logarithm of an answer's tokens changes with the first tier's confidence, and its error."""
        self.start_ms = _median(np.fmin.reduce(history.call_start_ms, axis=0))
        """When the first call of a request begins, in the middle."""

    def is_donor(self, what: str, tier: int) -> Bools:
        """Return which requests may give others what happened at a tier: `called`, `judged`, or the `whole` answer."""
        history = self._history
        state, judged = history.state[tier], history.signal[tier] > 0
        if what == "called":
            chosen = (state != NOT_CALLED) & (state != FAILED)
        elif what == "judged":
            chosen = judged & (state != NOT_CALLED) & (state != FAILED)
        else:
            chosen = (state == ACCEPTED) | ((state == REJECTED) & ~history.stream)
        return np.asarray(chosen & (history.basis >= 0))

    def _price(self, tier: int) -> tuple[float, float]:
        """Return US dollars per token in and out, as the recorded calls were charged; zeros if there were none."""
        history = self._history
        at = np.flatnonzero((history.call_usd[tier] > 0) & (history.state[tier] != NOT_CALLED))[-20_000:]
        if len(at) < 2:
            return 0.0, 0.0
        tokens = np.stack([history.call_tokens_in[tier, at], history.call_tokens_out[tier, at]], axis=1)
        prices, *_ = np.linalg.lstsq(
            tokens.astype(np.float64), history.call_usd[tier, at].astype(np.float64), rcond=None
        )
        return float(prices[0]), float(prices[1])

    def _draft(self, tier: int) -> tuple[float, float] | None:
        history = self._history
        at = np.flatnonzero((history.state[tier] == REJECTED) & history.stream & (history.signal[tier] > 0))
        held = history.call_total_ms[tier, at] - history.call_ttft_ms[tier, at]
        return (_median(held), _median(history.call_tokens_out[tier, at])) if len(at) else None

    def _trend(self, tier: int) -> tuple[float, float]:
        """Return how the logarithm of an answer's tokens changes with the first tier's confidence, and its error.

        Donors were mostly called because the first tier was not sure, others because it was not called: this is
        what makes up for the difference.
        """
        history = self._history
        sure = np.where(history.signal[self._first_tier] > 0, history.confidence[self._first_tier], np.nan)
        at = np.flatnonzero(self.is_donor("whole", tier) & ~np.isnan(sure))
        if len(at) < 50:
            return 0.0, 0.0
        _, group = np.unique(self.strata[1][at], return_inverse=True)
        tokens = np.log1p(history.call_tokens_out[tier, at].astype(np.float64))
        x, y = _centred(sure[at], group), _centred(tokens, group)
        spread = float(x @ x)
        if spread < 1e-9:
            return 0.0, 0.0
        slope = float(x @ y) / spread
        error = float(np.sqrt(((y - slope * x) ** 2).sum() / max(len(at) - group.max() - 2, 1) / spread))
        return slope, error


def _median(values: Any) -> float:
    known = np.asarray(values)[~np.isnan(values)]
    return float(np.median(known)) if len(known) else 0.0


def _centred(values: Floats, group: Ints) -> Floats:
    sizes = np.bincount(group)
    centred: Floats = values - (np.bincount(group, values) / sizes)[group]
    return centred
