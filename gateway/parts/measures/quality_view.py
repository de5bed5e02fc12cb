"""Show estimates of quality: the same table in `tierline fit learn quality` and in `tierline ledger`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateway.report import NONE, table
from policies.quantities import percent

if TYPE_CHECKING:
    from rich.table import Table

    from gateway.parts.measures.quality import Feedbacks


def quality_table(rows: Sequence[Mapping[str, Any]], *names: str) -> Table:
    """Return a table of `Quality.as_json` values; `names` are the keys, and headings, of what they are of."""
    made = table(*names, "quality", "95% interval", "judged", "of them rated", "rated alone", "whose word")
    for row in rows:
        made.add_row(
            *(str(row[name]) for name in names),
            f"{percent(row['value'])}",
            f"{percent(row['low'])} to {percent(row['high'])}",
            *(str(row[name] or NONE) for name in ("judged", "both", "rated")),
            row["whose"],
        )
    return made


def surface_view(
    rows: Sequence[Mapping[str, Any]],
    feedback: Feedbacks,
    unjudged: Mapping[str, Sequence[float]],
    shadows: Mapping[str, Sequence[tuple[int, float, float, str]]],
) -> tuple[dict[str, Any], list[str | Table], list[str]]:
    """Return what `surface_quality` does, how it is shown of the tiers and the judge, and a line for each shadow."""
    from gateway.parts.measures.quality import agreement, paired_quality, surface_quality  # with numpy

    quality = surface_quality(rows, feedback, unjudged, shadows)
    lines: list[str | Table] = [quality_table(quality["tiers"], "tier"), str(agreement(rows, feedback))]
    beside = (f"{name} as a shadow, against what was served: {paired_quality(of)}" for name, of in shadows.items())
    return quality, lines, list(beside)
