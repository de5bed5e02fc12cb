"""Cells: every record gets the verdict that `decide` gives it by itself."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

from gateway.parts.lab.replay.cells import CellDecider, Inputs, VerdictTable
from gateway.parts.recorder.decision_record import DecisionBasis, TierFacts
from policies.errors import ConfigError
from policies.expression import KINDS
from policies.loader import made_policy
from policies.model import DeployedTier, Policy

_TIERS = ("small", "middle", "large")
_SHARES = (0.2, 0.25, 0.5, 0.75)
_NUMBERS = {
    "p_adequate": _SHARES,
    "difficulty": _SHARES,
    "quantile": _SHARES,
    "effort": _SHARES,
    "tokens_in": (100, 500),
    "turns": (1, 2),
    "conversation_difficulty": _SHARES,
    "last_tier": (1, 2),
    "budget_ms": (500, 2000),
}
_FLAGS = ("has_tools", "wants_json", "has_images", "stream", "in_domain")
_CLASSIFIER = "0123456789ab"


def test_a_cell_decides_for_each_of_its_members(times: float, seed: int) -> None:
    """Random policies over inputs that often lie exactly on a constant; `--times 1000` has 12,000 of them."""
    policies = round(12 * times)
    results = [differing(number, 400) for number in range(seed, seed + policies)]
    assert [wrong for wrong, _ in results] == [0] * policies
    assert sum(cells for _, cells in results) < policies * 400


def test_records_share_cells() -> None:
    """With few different inputs `decide` runs once for each of them."""
    _, cells = differing(seed=3, records=2000)
    assert cells < 2000


def random_policy(draw: random.Random) -> Policy:
    """Return a policy with rules that anyone might write, and some that nobody would."""
    tiers = _TIERS[: draw.randint(1, 3)]
    start = {tier: _rule(draw) for tier in draw.sample(tiers, draw.randint(1, len(tiers)))}
    start = {**start, tiers[0]: start.get(tiers[0], _rule(draw))}
    start[draw.choice(list(start))] = "otherwise"
    route: dict[str, Any] = {"start": start}
    if draw.random() < 0.4:
        deciles = {kind: sorted(draw.choice((0.1, 0.2, 0.5, 0.6, 0.9)) for _ in range(9)) for kind in KINDS[:3]}
        route["traffic"] = {"classifier": draw.choice((_CLASSIFIER, "fedcba9876543210")), "deciles": deciles}
    content = {"surface": "chat", "slo": {"deadline": "30s"}, "tiers": list(tiers), "route": route}
    without = draw.choice(tiers) if len(tiers) > 1 and draw.random() < 0.2 else ""
    deployed = {
        "ladder": tuple(tier for tier in tiers if tier != without),
        "unconfigured": {without: DeployedTier(without, unconfigured="no key")} if without else {},
    }
    try:
        return made_policy(content, Path("random.yaml"), deployed)
    except ConfigError:
        return random_policy(draw)


def random_inputs(draw: np.random.Generator, n: int, tiers: int) -> Inputs:
    """Return inputs, many of which lie exactly on a constant of the rules."""

    def near(values: tuple[float, ...], spread: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.asarray(draw.choice(values, n) + draw.choice((-spread, 0.0, 0.0, spread), n))

    judged = draw.random(n) < 0.9
    quantile = near((0.0, 0.1, *_SHARES, 1.0), 0.001).clip(0, 1)
    known = draw.random((n, tiers)) < 0.8
    state = draw.choice(3, (n, tiers), p=(0.8, 0.1, 0.1))
    known &= state == 0
    p_right = np.where(judged[:, None], draw.choice((0.25, 0.5, 0.75, 1.0), (n, 2)), np.nan)
    return Inputs(
        tokens_in=near((0, 100, 500), 1).clip(0).astype(np.int64),
        turns=draw.integers(0, 4, n),
        flags=draw.integers(0, 16, n) * (draw.random(n) < 0.8),
        budget_s=near((0.5, 2.0, 10.0), 0.001),
        limit_s=np.where(draw.random(n) < 0.5, near((0.3, 0.5, 1.0), 0.001), np.nan),
        room=draw.integers(0, 4, n) * 1000,
        holdout=draw.random(n) < 0.05,
        clamps=draw.integers(0, 4, (n, 2)) * (draw.random(n) < 0.2)[:, None],
        judged=judged,
        in_domain=judged & (draw.random(n) < 0.8),
        kind=draw.integers(0, len(KINDS) + 1, n),
        quantile=np.where(draw.random(n) < 0.9, quantile, np.nan),
        effort=np.where(draw.random(n) < 0.8, draw.choice((0.0, 0.1, *_SHARES, 1.0), n), np.nan),
        p_right=p_right,
        before=np.where(draw.random(n) < 0.7, near(_SHARES, 0.001), np.nan),
        last_tier=draw.integers(0, 3, n),
        budget_share=np.where(draw.random(n) < 0.4, near((0.5, 0.9, 0.95, 1.0), 0.001), np.nan),
        budget_cap=draw.integers(0, 4, n),
        state=state,
        ttft_s=np.where(known, draw.choice((0.1, 0.3, 0.5, 2.0), (n, tiers)), np.nan),
        whole_s=np.where(known, draw.choice((0.2, 0.5, 2.0, 5.0), (n, tiers)), np.nan),
        usd=np.where(draw.random((n, tiers)) < 0.5, draw.choice((0.1, 0.2, 0.3), (n, tiers)), np.nan),
        cold_s=draw.choice((0.0, 0.2, 1.5), (n, tiers), p=(0.6, 0.2, 0.2)),
        names=_TIERS,
    )


def differing(seed: int, records: int) -> tuple[int, int]:
    """Decide random records by a random policy; return how many verdicts differ, and the number of cells."""
    draw = random.Random(seed)
    policy = random_policy(draw)
    facts = tuple(
        TierFacts(
            name,
            frozenset(one for one in ("tools", "vision", "json") if draw.random() < 0.7),
            1,
            draw.choice((None, 1000, 2000)),
        )
        for name in policy.ladder
    )
    basis = DecisionBasis(policy, facts, {"classifier": _CLASSIFIER})
    inputs = random_inputs(np.random.default_rng(seed), records, len(facts))
    table = VerdictTable()
    decider = CellDecider(policy, basis, table)
    numbers = decider.decide(inputs)
    wrong = sum(table.verdicts[number] != decider.verdict(inputs, at) for at, number in enumerate(numbers.tolist()))
    return wrong, decider.cells


def _rule(draw: random.Random, depth: int = 0) -> str:
    if depth < 2 and draw.random() < 0.5:
        joined = f" {draw.choice(('and', 'or'))} ".join(_rule(draw, depth + 1) for _ in range(draw.randint(2, 3)))
        return f"({joined})" if draw.random() < 0.7 else f"not ({joined})"
    match draw.randint(0, 5):
        case 0:
            return draw.choice((*_FLAGS, *_NUMBERS))
        case 1:
            return f"kind {draw.choice(('==', '!='))} {draw.choice(KINDS)}"
        case 2:
            one, other = draw.sample(("p_adequate", "difficulty", "quantile"), 2)
            return f"{one} {draw.choice(('<', '<=', '==', '>'))} {other}"
        case 3:
            name = draw.choice(list(_NUMBERS))
            low, high = sorted(draw.choices(_NUMBERS[name], k=2))
            return f"{low} {draw.choice(('<', '<='))} {name} {draw.choice(('<', '<='))} {high}"
    name = draw.choice(list(_NUMBERS))
    return f"{name} {draw.choice(('<', '<=', '>', '>=', '==', '!='))} {draw.choice(_NUMBERS[name])}"
