"""Show estimates of quality: the same table in `tierline fit learn quality` and in `tierline ledger`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateway.report import NONE, table
from policies.quantities import percent

if TYPE_CHECKING:
    from rich.table import Table

    from gateway.parts.measures.quality import JudgeAgreement


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


def agreement_line(people: JudgeAgreement) -> str:
    """Say how often judge and people agree."""
    if not people.count:
        return "judge and people: nobody has given feedback on a judged answer yet"
    (low, high), kappa = people.interval, people.kappa
    beyond = "" if kappa is None else f"; kappa {kappa[0]:.2f}, {kappa[1]:.2f} to {kappa[2]:.2f}"
    return (
        f"judge and people agree on {people.agreed} of {people.count} answers "
        f"({percent(people.agreed / people.count, 0)}, 95% interval {percent(low, 0)} to {percent(high, 0)}){beyond}"
    )


def reliability_table(heads: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of heads with a reliability, as `head_reliabilities` gives them."""
    made = table(
        "head", "tier", "predictions", "predicted", "observed", "95% interval", "ECE", "by chance", "whose word"
    )
    for head in heads:
        if (figures := head["reliability"]) is not None:
            made.add_row(
                head["head"],
                f"{head['tier']} ({head['model']})" if head["model"] else head["tier"],
                str(figures["count"]),
                f"{percent(figures['predicted'])}",
                f"{percent(figures['observed'])}, {figures['verdict']}",
                f"{percent(figures['low'])} to {percent(figures['high'])}",
                f"{figures['ece']:.3f}",
                f"{figures['ece_by_chance']:.3f}",
                "the judge's" if head["whose"] == "judge" else "people's",
            )
    return made


def missing_line(head: Mapping[str, Any]) -> str:
    """Say how many more answers must be labelled or rated before a head's reliability is known."""
    return (
        f"{head['head']} of {head['tier']}: {head['count']} answers labelled or rated; {head['missing']} more to tell"
    )
