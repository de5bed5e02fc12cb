"""The gain of calling the large model: learnt heads move the raw order only where they rank held-out parts better."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gateway.parts.fit.training.gain import GainTable, GainTask


def table_of(by_vector: float, seed: int) -> GainTable:
    """400 answers whose being right hangs on the log-probability, and by so much on the prompt's first number."""
    chance = np.random.default_rng(seed)
    vectors = chance.normal(size=(400, 16))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    logprob = -chance.exponential(1.0, 400)
    likely = 1 / (1 + np.exp(-(4 * (logprob + 0.7) + by_vector * vectors[:, 0])))
    small = (chance.random(400) < likely).astype(np.float64)
    evidence = np.stack([-np.log(0.001 - logprob), np.exp(logprob), np.maximum(logprob, -6), np.full(400, 3.0)], axis=1)
    return GainTable(logprob, evidence, vectors, small, np.ones(400), ("one",) * 400)


def test_what_ranks_no_better_on_held_out_parts_keeps_the_raw_order() -> None:
    """Where vectors say nothing the raw order mostly stands whole; where they decide, the heads count."""
    kept = [GainTask.of(table_of(0.0, seed), 0.0).weight == 0 for seed in range(8)]
    counted = [GainTask.of(table_of(20.0, seed), 0.0).weight > 0.3 for seed in range(8)]
    assert sum(kept) >= 6 and all(counted)


def test_the_raw_order_is_that_of_the_log_probability() -> None:
    """With no weight for the heads, every answer's gain falls as its log-probability rises."""
    table = table_of(0.0, 0)
    task = replace(GainTask.of(table, 0.0), weight=0.0)
    gain = task.judge(table).gain
    assert (np.diff(gain[np.argsort(table.logprob)]) <= 1e-12).all()
