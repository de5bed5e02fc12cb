"""Ask the archive for what a judge and people say of answers.

With `$surface` NULL it is of all surfaces, from the entry `$from_ms` on (milliseconds since 1970; 0 for all that is
kept).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gateway.parts.ledger.columns import Row
from gateway.parts.ledger.query import connect, rows_of
from gateway.parts.ledger.summaries import Summary

_TEXT: Final = Path(__file__).with_suffix(".sql").read_text("utf-8")
_SQL: Final = {name: sql.strip() for name, sql in re.findall(r"^-- name: (\w+)\n(.*?)(?=^--|\Z)", _TEXT, re.M | re.S)}
OPINIONS: Final = _SQL["opinions"]
"""The labels without what a fit takes of them, such as vectors: in place of `labels` where only figures are made."""
QUERIES: Final[Mapping[str, str]] = {
    name: _SQL[name].format(verified="") for name in ("labels", "scores", "rated", "shadows", "ladders")
}
"""What `surface_labels` takes the rows of, by name."""
LENGTHS: Final = _SQL["lengths"]
"""SQL of one row per surface: the mean tokens of its fresh answers, `tokens_in` and `tokens_out`."""
_TO_FIT: Final = {**QUERIES, "rated": _SQL["rated"].format(verified=_SQL["verified"])}
"""The same, with what the verifiers said of the rated answers, which confidence heads are fitted to."""
DRAWN: Final = Summary(
    "drawn",
    "SELECT hash(tenant, request_id) AS key, surface, holdout, entry_ms AS slot_ms FROM rows "
    "WHERE holdout IS NOT NULL AND NOT contains(surface, '/') AND surface <> ''",
    1,
    86400.0 + 3600,
)
"""The requests that took part in the draw of the holdout, which feedback and labels are of."""
HOLDOUT: Final = _SQL["holdout"]
"""SQL of the drawn requests that were rated or judged since `$from_ms`."""


@dataclass(slots=True)
class SurfaceLabels:
    """Labels, oldest first; people's scores by (tenant, request id); scores of answers without a label, by tier."""

    rows: list[Mapping[str, Any]] = field(default_factory=list)
    feedback: dict[tuple[str, str], float] = field(default_factory=dict)
    unjudged: dict[str, list[float]] = field(default_factory=dict)
    shadows: dict[str, list[tuple[int, float, float, str]]] = field(default_factory=dict)
    """By candidate policy in shadow mode, as `gateway.parts.measures.quality.paired_quality` takes them."""
    rated: list[Mapping[str, Any]] = field(default_factory=list)
    """Fresh answers that people rated, with what was predicted of them."""
    ladder: Sequence[str] = ()
    """The tiers, the cheapest first; empty where it is not known."""


def surface_labels(rows: Mapping[str, Iterable[Row]]) -> dict[str, SurfaceLabels]:
    """Return what is said of each surface's answers, from the rows of QUERIES."""
    surfaces: dict[str, SurfaceLabels] = {}

    def of(row: Row) -> SurfaceLabels:
        return surfaces.setdefault(row["surface"], SurfaceLabels())

    for row in rows["labels"]:
        of(row).rows.append(row)
    for row in rows["scores"]:
        of(row).feedback[row["tenant"], row["request_id"]] = float(row["score"])
    labelled = {(row["tenant"], row["request_id"]) for surface in surfaces.values() for row in surface.rows}
    for row in rows["rated"]:
        surface = of(row)
        surface.rated.append(row)
        if (row["tenant"], row["request_id"]) not in labelled:
            surface.unjudged.setdefault(row["tier"], []).append(float(row["score"]))
    for row in rows["shadows"]:
        pair = row["conversation"], row["new"], row["present"], row["better"]
        of(row).shadows.setdefault(row["candidate"], []).append(pair)
    for row in rows["ladders"]:
        of(row).ladder = row["ladder"] or ()
    return surfaces


def labels_to_fit(folder: Path, surface: str) -> SurfaceLabels:
    """Return what is said of a surface's answers in an archive. Raises ArchiveError and QueryError."""
    values = {"surface": surface, "from_ms": 0}
    with connect(folder) as database:
        found = {name: rows_of(database, sql, values) for name, sql in _TO_FIT.items()}
    return surface_labels(found).get(surface, SurfaceLabels())
