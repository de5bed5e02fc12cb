"""Show estimates of quality: the same table in `tierline learn quality` and in `tierline ledger`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from offline.report import NONE, table

if TYPE_CHECKING:
    from rich.table import Table

    from offline.measures.quality import JudgeAgreement


def quality_table(rows: Sequence[Mapping[str, Any]], *names: str) -> Table:
    """Return a table of `Quality.as_json` values; `names` are the keys, and headings, of what they are of."""
    made = table(*names, "quality", "95% interval", "judged", "of them rated", "rated alone", "whose word")
    for row in rows:
        made.add_row(
            *(str(row[name]) for name in names),
            f"{row['value']:.1%}",
            f"{row['low']:.1%} to {row['high']:.1%}",
            *(str(row[name] or NONE) for name in ("judged", "both", "rated")),
            row["whose"],
        )
    return made


def agreement_line(people: JudgeAgreement) -> str:
    """Say how often judge and people agree."""
    if not people.count:
        return "judge and people: nobody has given feedback on a judged answer yet"
    low, high = people.interval
    return (
        f"judge and people agree on {people.agreed} of {people.count} answers "
        f"({people.agreed / people.count:.0%}, 95% interval {low:.0%} to {high:.0%})"
    )
