"""What is being tried: is a candidate worse, how sure is that, when will it be known, and what stops it. One tile per
guard.

The figures of a canary's present step are computed anew from the recorded requests, by the judge's own rules, at some
forty points in time; so a tile shows the difference over time with the band that holds at all times together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.parts.rollout.policy import Rollout, RolloutSections
from gateway.parts.rollout.registry.records import InForce, Rolling, Version
from gateway.parts.rollout.registry.registry import PolicyRegistry
from gateway.parts.rollout.registry.view import status_of
from gateway.parts.rollout.trial import GuardFigures, Trial, TrialVerdict

if TYPE_CHECKING:
    from gateway.seams import ConsoleShell

POINTS: Final = 40
_MOST: Final = 200_000
_FRESH_S: Final = 5.0
"""How long computed figures are shown again."""
_ARMS: Final = """
SELECT started_s, tenant, request_id, arm, unit, path, total_ms, ttft_ms, status, error, cost_usd,
    cost_unknown, slo, calls
FROM requests WHERE surface = $surface AND arm IN ('candidate', 'control') AND entry_ms >= $since_ms
ORDER BY entry_ms, entry_seq LIMIT $most
"""
_BEFORE: Final = """
SELECT ttft_ms / 1000 AS ttft_s FROM requests WHERE surface = $surface AND entry_ms < $since_ms
    AND entry_ms >= $since_ms - 3600000 AND status = 200 AND error IS NULL AND ttft_ms IS NOT NULL AND arm = ''
ORDER BY entry_ms DESC LIMIT 2000
"""
_RATED: Final = """
SELECT r.tenant, r.request_id, f.score FROM requests r JOIN feedback f USING (tenant, request_id)
WHERE r.surface = $surface AND r.arm IN ('candidate', 'control') AND r.entry_ms >= $since_ms
"""
WORDS: Final[Mapping[str, str]] = {
    "goodput": "Requests that met their limits",
    "quality": "Answers that were good enough",
    "ttft_p95": "First tokens that came late",
    "cost": "Cost of a request",
}
"""What each guard compares, in words; the difference is candidate minus control."""


@dataclass(frozen=True, slots=True)
class GuardOverTime:
    """One tile: the figures of a guard now, and those at earlier points (Unix seconds, difference, low, high)."""

    now: GuardFigures
    points: Sequence[tuple[float, float | None, float | None, float | None]]


class TrialView:
    """Show what is being tried on every surface."""

    def __init__(self, shell: ConsoleShell) -> None:
        self._ask = shell.ask
        self._registry = PolicyRegistry(shell.store, "console")
        self._known: dict[tuple[str, int], tuple[float, dict[str, Any]]] = {}

    async def data(self) -> dict[str, Any]:
        """Return each candidate with its guards. Raises StoreUnavailable and ApiError."""
        status = await status_of(self._registry)
        states = await self._registry.in_force()
        trying = []
        for shown in status["surfaces"]:
            state = states.get(shown["surface"])
            if state is not None and state.rolling is not None:
                trying.append({**shown, "step": await self._step(state, state.rolling)})
        return {"trying": trying, "words": WORDS}

    async def _step(self, state: InForce, rolling: Rolling) -> dict[str, Any] | None:
        """Return the figures of a canary's present step; None for what is tried without clients."""
        key = state.surface, state.revision
        known = self._known.get(key)
        if known is not None and time.monotonic() - known[0] < _FRESH_S:
            return known[1]
        version = await self._registry.version(state.surface, rolling.version)
        rollout = version.policy().of(RolloutSections).rollout
        if rolling.mode != "canary" or rollout is None:
            return None
        asked = {"surface": state.surface, "since_ms": int(rolling.since * 1000)}
        rows = await self._ask(_ARMS, {**asked, "most": _MOST})
        before = [row["ttft_s"] for row in await self._ask(_BEFORE, asked)]
        rated = await self._ask(_RATED, asked)
        learn = await self._learn_of(state, version)
        trial = Trial(rollout, rolling.share, rolling.since, learn=learn, before=before)
        figures = await asyncio.to_thread(_figures, trial, rows, rated, rolling.since, rollout)
        self._known = {key: (time.monotonic(), figures)}
        return figures

    async def _learn_of(self, state: InForce, version: Version) -> Mapping[str, Any]:
        live = await self._registry.version(state.surface, state.live)
        versions = {"candidate": version, "control": live}
        return {arm: version.policy().of(RolloutSections).learn for arm, version in versions.items()}


def _figures(
    trial: Trial, rows: Sequence[Mapping[str, Any]], rated: Sequence[Mapping[str, Any]], since: float, rollout: Rollout
) -> dict[str, Any]:
    """Return the verdict now, and each guard's figures at POINTS places among the requests."""
    every = max(1, len(rows) // POINTS)
    points: dict[str, list[tuple[float, float | None, float | None, float | None]]] = {}
    for number, row in enumerate(rows, 1):
        trial.add(row, row["started_s"])
        if number % every == 0:
            at = row["started_s"] + row["total_ms"] / 1000
            for guard in trial.verdict(at).guards:
                points.setdefault(guard.guard, []).append((at, guard.difference, guard.low, guard.high))
    for rating in rated:
        trial.rate(rating["tenant"], rating["request_id"], rating["score"])
    verdict: TrialVerdict = trial.verdict(time.time())
    return {
        "verdict": verdict,
        "guards": [GuardOverTime(guard, points.get(guard.guard, [])) for guard in verdict.guards],
        "since": since,
        "steps": list(rollout.steps),
        "step_max_s": rollout.step_max,
        "undecided": rollout.undecided,
    }
