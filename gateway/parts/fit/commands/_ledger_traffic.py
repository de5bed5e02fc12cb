"""Measure how hard a surface's own requests are, by kind, from recorded traffic (`tierline trace list --json`)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from gateway.parts.fit.datasets import DataError, json_objects
from gateway.parts.reasons import detail_names as detail
from gateway.telemetry import names
from policies.expression import KINDS
from policies.model import Traffic

LEAST_OF_A_KIND = 100
"""Requests of a kind that a measurement needs: with fewer, a decile is off by more than 0.1 in one of twenty."""
_TENTHS = np.arange(1, 10) / 10


def traffic_of(surface: str, records: Path) -> tuple[Traffic, str]:
    """Return the surface's traffic by the newest classifier in the records, and what it was measured on, in words.

    Raises DataError where no kind has enough requests.
    """
    judged: list[tuple[str, str, float]] = []
    for place, record in json_objects(records):
        try:
            if record["ledger"]["surface"] != surface:
                continue
            ledger = record["ledger"]
            route: dict[str, Any] = next(
                (hop["attributes"] for hop in record["hops"] if hop["name"] == names.ROUTE), {}
            )
            if detail.KIND in route:
                judged.append(
                    (
                        str(route[detail.CLASSIFIER]),
                        str(route[detail.KIND]),
                        float(route[detail.QUANTILE]),
                    )
                )
            elif ledger.get("kept") == "" and ledger["kind"]:  # its hops were left out by sampling
                judged.append((str(ledger["classifier"]), str(ledger["kind"]), float(ledger["quantile"])))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{place}: not a record as `tierline trace list --json` prints it: {error!r}") from None
    newest = judged[0][0] if judged else ""  # records have the latest first
    counts = Counter(kind for classifier, kind, _ in judged if classifier == newest)
    enough = [kind for kind in KINDS if counts[kind] >= LEAST_OF_A_KIND]
    seen = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind]) or "none"
    if not enough:
        raise DataError(
            f"{records} has too few requests of {surface} whose kind is known ({seen}): a measurement needs "
            f"{LEAST_OF_A_KIND} of a kind"
        )
    deciles = {}
    for kind in enough:
        quantiles = [quantile for classifier, other, quantile in judged if (classifier, other) == (newest, kind)]
        deciles[kind] = [round(float(at), 3) for at in np.quantile(quantiles, _TENTHS)]
    measured = ", ".join(f"{counts[kind]} {kind}" for kind in enough)
    left = sum(counts[kind] for kind in counts if kind not in enough)
    fewer = f"; {left} of kinds with fewer than {LEAST_OF_A_KIND} are left out" if left else ""
    return Traffic.model_validate({"classifier": newest, "deciles": deciles}), (
        f"quantiles count this surface's own requests: {measured}, by classifier {newest}{fewer}"
    )
