"""Provide the seam `hit_bound` (`gateway.seams`): build a worker's audits, and show what they have published."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from gateway.parts.hit_audits.audit import Audits
from gateway.parts.hit_audits.comparison import ALIKE, AuditJudge
from gateway.parts.hit_audits.metrics import AuditMetrics
from gateway.parts.hit_audits.published import PublishedRisk, complain, read_published, withdraw
from gateway.parts.measures.daily_budget import DailyBudget
from policies.quantities import percent

if TYPE_CHECKING:
    from rich.console import Console

    from cache.store.base import Store
    from gateway.steps import Core

__all__ = ["build_hit_bound", "complain", "draw_published", "read_published", "shown_published", "withdraw"]

_FIGURES: Final = (
    "max_error", "error", "error_most", "audit", "breached", "requests", "labels", "fewest", "served", "wrong",
    "complaints", "owners", "false_alarm", "sensitivity",
)  # fmt: skip


def build_hit_bound(core: Core) -> Audits:
    """Return a worker's audits, which are not started."""
    models, counted = core.models, AuditMetrics(core.metrics)
    cross_encoder = models.cross_encoder
    audits = Audits(
        core.store,
        f"{models.embedder.name}/{models.verifier.version}",
        models.embedder.embed,
        alike=ALIKE[core.deployment.embedding.kind],
        cross_encoder="" if cross_encoder is None else cross_encoder.version,
        cosine_weight=models.cosine_weight,
        scorer=cross_encoder,
        judge=AuditJudge(core.endpoints, counted.judged, DailyBudget(core.store)),
    )
    counted.watch(audits.state)
    return audits


async def shown_published(store: Store) -> list[dict[str, Any]]:
    """Return how many hits were wrong as JSON values, by surface. Raises StoreUnavailable."""
    return [risk_shown(risk) for risk in await read_published(store)]


def risk_shown(risk: PublishedRisk) -> dict[str, Any]:
    """Return how many hits of a surface were wrong as JSON values, with the languages and tenants that were compared.

    A threshold that nothing reaches is None.
    """
    figures = risk.figures
    return {
        "surface": risk.surface,
        "at": risk.at,
        **{name: getattr(figures, name) for name in _FIGURES},
        "threshold": _finite(figures.threshold),
        "strict": _finite(figures.strict),
        "groups": [
            {**asdict(group), "words": group.words, "threshold": _finite(group.threshold)}
            for group in figures.groups
            if group.labels
        ],
    }


def _finite(threshold: float) -> float | None:
    return threshold if math.isfinite(threshold) else None


def draw_published(shown: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print how many hits were wrong, by surface, and by the languages and tenants that have compared answers."""
    from rich.table import Table  # a worker needs neither, and they are slow to import
    from rich.text import Text

    if not shown:
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("wrong hits of")
    for name in ("bound", "estimated", "threshold", "compared", "requests"):
        table.add_column(name, justify="right")
    for risk in shown:
        for name, one in ((risk["surface"], risk), *((f"  {group['words']}", group) for group in risk["groups"])):
            state = " breached" if one["breached"] else ""
            error = percent(one["error"], 2) if one["labels"] else "not known"
            lowest = "none served" if one["threshold"] is None else f"{one['threshold']:.3f}"
            counts = (str(one["labels"]), str(one["requests"]))
            cells = (name, percent(risk["max_error"], 2), error + state, lowest, *counts)
            table.add_row(*map(Text, cells), style="red" if one["breached"] else "")
    console.print(table)
    for false_alarm, sensitivity in {(one["false_alarm"], one["sensitivity"]) for one in shown}:
        if false_alarm is not None and sensitivity is not None:
            console.print(
                f"corrected by the comparison's own errors: it calls {percent(false_alarm, 1)} of right hits wrong and "
                f"{percent(sensitivity)} of wrong ones",
                style="dim",
            )
